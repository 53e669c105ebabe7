"""Datagrams: the sending and receiving of a queue pair of type UD.

A datagram is sent once and may be lost; its request completes when it is sent. The receiver needs
the right Q_Key and a posted receive, else the datagram is dropped silently. The data follow 40
bytes that hold the sender's address: the GRH area, laid out as an IPv6 header whose flow label
carries the port of the sender's `AddressVector`.

A datagram that is longer than its receive completes that receive with LOC_LEN_ERR and the queue
pair continues: an unknown sender must not be able to end it.
Source: docs/reference/verbs-and-roce.md 12.
"""

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final

from urds.common.errors import WireError
from urds.verbs.engine.keys import AccessError
from urds.verbs.engine.numbers import (
    GRH_BYTES,
    PSN_MASK,
    QPState,
    SendFlag,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind
from urds.verbs.engine.receives import ReceiveQueue
from urds.verbs.engine.requester import SendQueue
from urds.verbs.engine.work import WC, AddressVector

if TYPE_CHECKING:
    from urds.verbs.engine.queue_pair import QueuePair

OWN_QKEY_BIT: Final = 1 << 31  # in a work request: use the queue pair's own Q_Key
GID_BYTES: Final = 16

#                     version and flow label, payload length, next header, hop limit, sgid, dgid
_GRH: Final = Struct(">I H B B 16s 16s")
assert _GRH.size == GRH_BYTES
_VERSION_6: Final = 6 << 28
_PORT_MASK: Final = 0xFFFF
_NEXT_HEADER: Final = 0x1B  # "IBA transport", as in a GRH
_HOP_LIMIT: Final = 64
_SOLICITED: Final = int(PacketFlag.SOLICITED)
_IMMEDIATE: Final = int(PacketFlag.IMMEDIATE)


def emit_grh(source: AddressVector, target_gid: bytes, payload_bytes: int) -> bytes:
    """Return the 40 bytes before the data of a received datagram."""
    return _GRH.pack(
        _VERSION_6 | source.port & _PORT_MASK,
        payload_bytes & 0xFFFF,
        _NEXT_HEADER,
        _HOP_LIMIT,
        source.dgid,
        target_gid,
    )


def parse_grh(data: bytes | bytearray | memoryview) -> AddressVector:
    """Return where a received datagram came from. Raises WireError for bytes that are no GRH."""
    if len(data) < GRH_BYTES:
        raise WireError(f"GRH of {len(data)} bytes, it has {GRH_BYTES}")
    label, _, next_header, _, source_gid, _ = _GRH.unpack_from(data)
    if label >> 28 != _VERSION_6 >> 28 or next_header != _NEXT_HEADER:
        raise WireError(f"GRH of version {label >> 28} before header {next_header:#x}")
    return AddressVector(source_gid, label & _PORT_MASK)


@dataclass(slots=True, eq=False)
class UdTransport:
    """Both halves of a queue pair of type UD."""

    _qp: "QueuePair"
    _sends: SendQueue
    _queue: ReceiveQueue
    next_psn: int = 0

    def poll(self) -> Packet | None:
        """Return the next datagram; its request completes with that."""
        qp = self._qp
        if not self._sends.posted or qp.state is not QPState.RTS:
            return None
        request = self._sends.posted.pop(0)
        try:
            payload = request.data(qp.keys, qp.pd, 0, request.length)
        except AccessError as fault:
            qp.complete_send(request, fault.status)
            qp.enter_send_error()
            return None
        packet = Packet(
            PacketKind.DATAGRAM,
            request.remote_qpn,
            self.next_psn & PSN_MASK,
            PacketFlag.FIRST | PacketFlag.LAST,
            source_qpn=qp.qpn,
            qkey=qp.attr.qkey if request.remote_qkey & OWN_QKEY_BIT else request.remote_qkey,
            payload=payload,
            destination=request.ah,
        )
        if request.flags & int(SendFlag.SOLICITED):
            packet.flags |= PacketFlag.SOLICITED
        if request.opcode is WROpcode.SEND_WITH_IMM:
            packet.flags |= PacketFlag.IMMEDIATE
            packet.immediate = request.immediate
        self.next_psn += 1
        if request.signalled:
            qp.complete_send(request, WCStatus.SUCCESS)
        return packet

    def receive(self, packet: Packet, source: AddressVector | None) -> None:
        """Deliver a datagram, or drop it: wrong Q_Key, too long for the link, no receive."""
        qp = self._qp
        size = len(packet.payload)
        if packet.qkey != qp.attr.qkey or size > qp.link.mtu_bytes:
            return
        wr = self._queue.take()
        if wr is None:
            return
        origin = source or AddressVector(bytes(GID_BYTES))
        bits = int(packet.flags)
        status = WCStatus.SUCCESS
        try:
            grh = emit_grh(origin, qp.gid, size)
            qp.keys.scatter(qp.receive_pd, wr.sg, 0, grh)
            qp.keys.scatter(qp.receive_pd, wr.sg, GRH_BYTES, packet.payload)
        except AccessError as fault:
            status = fault.status
        qp.recv_cq.push(
            WC(
                wr.wr_id,
                status,
                WCOpcode.RECV,
                byte_len=GRH_BYTES + size,
                qp_num=qp.qpn,
                src_qp=packet.source_qpn,
                imm_data=packet.immediate,
                wc_flags=_WITH_IMMEDIATE if bits & _IMMEDIATE else WCFlag.GRH,
                solicited=bool(bits & _SOLICITED),
            )
        )


_WITH_IMMEDIATE: Final = WCFlag.GRH | WCFlag.WITH_IMM
