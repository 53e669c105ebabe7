"""From an agreed set-up to a running stream: the queue pair to RTS, the codec, the limits."""

import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from urds.common.types import HostPort
from urds.verbs.cm.mpa import MpaEstablished
from urds.verbs.engine.attributes import QPAttr
from urds.verbs.engine.numbers import AccessFlag, QPAttrMask, QPState
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.base import ConnectParameters
from urds.verbs.providers.tcp.codec import Decoder, Encoder, OutstandingReads
from urds.verbs.providers.tcp.fpdu import CRC_BYTES, LENGTH_BYTES, UNTAGGED_BYTES
from urds.verbs.providers.tcp.sockets import gid_of, segment_bytes
from urds.verbs.providers.tcp.stream import IwarpStream, IwarpStreamEnd

if TYPE_CHECKING:
    from urds.verbs.providers.tcp.adapter import TcpAdapter

# Payload of one packet, and so of one FPDU between our own nodes: the largest multiple of 32 that
# an FPDU holds. No FPDU needs padding then, and 64 KiB are two of them.
PACKET_BYTES_MAX: Final = 65_504
_OVERHEAD_BYTES: Final = LENGTH_BYTES + UNTAGGED_BYTES + 3 + CRC_BYTES
_PLAIN_BYTES_MIN: Final = 256  # whatever a path says its segments are

_MASKS: Final = {
    QPState.INIT: QPAttrMask.STATE
    | QPAttrMask.PKEY_INDEX
    | QPAttrMask.PORT
    | QPAttrMask.ACCESS_FLAGS,
    QPState.RTR: QPAttrMask.STATE
    | QPAttrMask.AV
    | QPAttrMask.PATH_MTU
    | QPAttrMask.DEST_QPN
    | QPAttrMask.RQ_PSN
    | QPAttrMask.MAX_DEST_RD_ATOMIC
    | QPAttrMask.MIN_RNR_TIMER,
    QPState.RTS: QPAttrMask.STATE
    | QPAttrMask.SQ_PSN
    | QPAttrMask.MAX_QP_RD_ATOMIC
    | QPAttrMask.RETRY_CNT
    | QPAttrMask.RNR_RETRY
    | QPAttrMask.TIMEOUT,
}


def make_stream(
    adapter: "TcpAdapter",
    connection: socket.socket,
    qp: QueuePair,
    agreed: MpaEstablished,
    parameters: ConnectParameters,
    *,
    peer: HostPort,
    is_initiator: bool,
    on_end: Callable[[IwarpStreamEnd, str], None],
) -> IwarpStream:
    """Take the queue pair to RTS and connect it to the socket by the codec."""
    _lead_to_ready(adapter, qp, agreed, parameters, peer)
    reads = OutstandingReads(inbound_max=max(1, agreed.ird))
    payload_bytes_max = PACKET_BYTES_MAX
    if not agreed.urds_peer:
        # RFC 5044 section 5 asks for FPDUs that fit one TCP segment; hardware likes them so.
        fitting = segment_bytes(connection) - _OVERHEAD_BYTES
        payload_bytes_max = max(_PLAIN_BYTES_MIN, min(PACKET_BYTES_MAX, fitting))
    return IwarpStream(
        adapter,
        connection,
        qp,
        Encoder(
            reads, urds_peer=agreed.urds_peer, crc=agreed.crc, payload_bytes_max=payload_bytes_max
        ),
        Decoder(reads, target_qpn=qp.qpn, urds_peer=agreed.urds_peer, crc=agreed.crc),
        urds_peer=agreed.urds_peer,
        may_send=agreed.urds_peer or is_initiator,
        farewell_ns=adapter.settings.farewell_ns,
        on_end=on_end,
    )


def _lead_to_ready(
    adapter: "TcpAdapter",
    qp: QueuePair,
    agreed: MpaEstablished,
    parameters: ConnectParameters,
    peer: HostPort,
) -> None:
    attr = QPAttr(
        # The keys' rights decide; a queue pair in INIT keeps the rights it has.
        qp_access_flags=AccessFlag.LOCAL_WRITE
        | AccessFlag.REMOTE_WRITE
        | AccessFlag.REMOTE_READ
        | AccessFlag.REMOTE_ATOMIC,
        ah_attr=AddressVector(gid_of(peer[0]), peer[1]),
        max_rd_atomic=agreed.ord,
        max_dest_rd_atomic=agreed.ird,
        min_rnr_timer=adapter.settings.rnr_timer_code,
        retry_cnt=min(7, parameters.retry_count),
        rnr_retry=min(7, parameters.rnr_retry_count),
    )
    steps = [QPState.RTR, QPState.RTS]
    if qp.state is QPState.RESET:
        steps.insert(0, QPState.INIT)
    for state in steps:
        attr.qp_state = state
        qp.modify(attr, _MASKS[state], time.monotonic_ns())
