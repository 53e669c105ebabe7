"""Connections of the providers that carry packets: the manager's core, joined to queue pairs.

The core negotiates numbers; here they take a queue pair through INIT, RTR and RTS, and an end takes
it to ERR. Source: docs/reference/verbs-and-roce.md 14.3 for the order and the attributes.
"""

import errno
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from urds.common.types import HostPort
from urds.verbs.cm.core import check_private_data
from urds.verbs.cm.messages import READS_MAX, CmMessage, CmMessageKind, Offer
from urds.verbs.cm.records import CmConnection, CmEvent, CmEventKind, CmListener, CmState
from urds.verbs.engine.attributes import TRANSITIONS
from urds.verbs.engine.numbers import AccessFlag, QPAttrMask, QPState, QPType
from urds.verbs.engine.packets import Packet
from urds.verbs.engine.queue_pair import QPAttr, QueuePair
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    Listener,
    OnConnectionEvent,
    PortSpace,
    VerbsConnection,
    VerbsConnectionEvent,
)

if TYPE_CHECKING:
    from urds.verbs.providers.packet_adapter import PacketAdapter

ADDRESSES_KEPT: Final = 1024  # spellings: to read one takes longer than all else of a request
# rdma_cm gives 19 and 0, which is 2.1 s and 0.65 s; on a path that loses packets both only
# stall (docs/reference/verbs-and-roce.md 8). The engine's own timer is the shorter one, this is its
# upper end.
TIMEOUT_CODE: Final = 18  # 1.07 s; eight of them without an answer end a connection
RNR_TIMER_CODE: Final = 12  # 0.64 ms
# What each step on the way to RTS needs. Source: docs/reference/verbs-and-roce.md 10.
_STEPS: Final = {
    after: QPAttrMask.STATE | TRANSITIONS[QPType.RC][before, after].required
    for before, after in pairwise((QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS))
}
_CONNECTED: Final = (QPState.RTR, QPState.RTS, QPState.SQD)


@dataclass(slots=True, eq=False)
class QueuePairEntry:
    """One queue pair of an adapter, and the connection it belongs to."""

    qp: QueuePair
    connection: "PacketConnection | None" = None
    has_sent: bool = False  # since it last found no room
    rank: int = 0  # among those that wait for room: the lowest is served first
    # At work, or left in the middle of it by an exception: what a signal handler raises comes
    # behind any call.
    is_torn: bool = False

    def begin(self, now_ns: int) -> None:
        """Note that the queue pair is at work; one that was left in the middle of it fails."""
        if self.is_torn:
            self.fail(now_ns)
        self.is_torn = True

    def receive_packet(self, packet: Packet, now_ns: int, source: AddressVector) -> None:
        """Have the queue pair process a packet."""
        self.begin(now_ns)
        self.qp.receive_packet(packet, now_ns, source)
        self.is_torn = False

    def handle_timeout(self, now_ns: int) -> None:
        """Have the queue pair do what is due."""
        self.begin(now_ns)
        self.qp.handle_timeout(now_ns)
        self.is_torn = False

    def fail(self, now_ns: int) -> None:
        """Take a queue pair to ERR that was left in the middle of its work.

        Of datagrams at most one is lost, as may be.
        """
        self.is_torn = False
        is_connected = self.qp.qp_type is QPType.RC
        if is_connected and self.qp.state not in (QPState.RESET, QPState.ERR):
            self.qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE, now_ns)

    def break_if_in(self, *states: QPState) -> None:
        """Break the connection of a queue pair in one of these states: it can do nothing for it."""
        if self.connection is not None and self.qp.state in states:
            self.connection.handle_queue_pair_error()


@dataclass(eq=False, repr=False)
class PacketConnection(VerbsConnection):
    """One connection of a packet provider."""

    _adapter: "PacketAdapter"
    _: KW_ONLY
    space: PortSpace
    local: HostPort
    peer: HostPort
    on_event: OnConnectionEvent
    qp: QueuePair | None = None
    record: CmConnection | None = None
    wants_data: bool = True  # packets for the queue pair are signs of life
    _is_over: bool = False

    def accept(self, qp: QueuePair | None, parameters: ConnectParameters) -> None:
        """Accept a request, within the requester's offer. See `VerbsConnection.accept`."""
        record, adapter = self._requested(), self._adapter
        if qp is None:
            raise OSError(errno.EINVAL, "accept without a queue pair")
        check_private_data(parameters.private_data)
        wanted = record.peer_offer
        offer = adapter.offer(qp, parameters, _vector(record))
        offer = replace(
            offer,
            responder_resources=min(offer.responder_resources, wanted.initiator_depth),
            initiator_depth=min(offer.initiator_depth, wanted.responder_resources),
            retry_count=wanted.retry_count,
        )
        if not record.is_datagram:
            self._connect_queue_pair(qp, offer, wanted)
        adapter.cm.accept(
            record,
            offer=offer,
            private_data=parameters.private_data,
            now_ns=adapter.now_ns(),
        )
        adapter.progress_qp(qp)

    def reject(self, private_data: bytes = b"") -> None:
        """Reject a request. See `VerbsConnection.reject`."""
        self._adapter.cm.reject(self._requested(), private_data=private_data)
        self._is_over = True
        self._adapter.flush()

    def disconnect(self) -> None:
        """End the connection. See `VerbsConnection.disconnect`."""
        record, adapter = self.record, self._adapter
        if self._is_over or record is None:
            return
        if record.is_datagram and record.state is CmState.OVER:
            # The look-up was over when it was answered: no DREQ is needed.
            adapter.later.append((self, ConnectionEventKind.DISCONNECTED))
        else:
            adapter.cm.disconnect(record, now_ns=adapter.now_ns())
        self._break_queue_pair()
        # Its owner may reset and connect it again while the DREQ is still in flight.
        self._unbind()
        self.qp = None
        adapter.flush()

    def close(self) -> None:
        """Forget the connection. See `VerbsConnection.close`."""
        self._is_over = True
        if self.record is not None:
            self._adapter.cm.forget(self.record, now_ns=self._adapter.now_ns())
        self._break_queue_pair()
        self._unbind()
        self._adapter.flush()

    # -- calls of the adapter

    def request(
        self, route: AddressVector, parameters: ConnectParameters, timeout_ns: int | None
    ) -> None:
        """Ask the peer for the connection. Raises OSError: EINVAL for the queue pair, numbers."""
        adapter, offer, now_ns = self._adapter, Offer(), self._adapter.now_ns()
        if self.qp is not None:
            offer = adapter.offer(self.qp, parameters, route)
            self._bind(self.qp)
        request = CmMessage(
            kind=CmMessageKind.REQ,
            context_guid=adapter.cm.context_guid,
            source=packed(self.local[0]),
            source_port=self.local[1],
            target=packed(self.peer[0]),
            target_port=self.peer[1],
            offer=offer,
            private_data=parameters.private_data,
        )
        try:
            self.record = adapter.cm.connect(
                route=route,
                space=self.space,
                local=self.local,
                peer=self.peer,
                request=request,
                now_ns=now_ns,
                give_up_ns=None if timeout_ns is None else now_ns + timeout_ns,
                owner=self,
            )
        except OSError:
            self._unbind()
            raise

    def handle_cm_event(self, event: CmEvent) -> None:
        """Handle an event of the core, and pass it to the owner."""
        kind = ConnectionEventKind[event.kind.name]
        if kind is ConnectionEventKind.ESTABLISHED:
            if not self._establish():
                return
        else:
            self._break_queue_pair()
            self._unbind()
        self.tell(kind, event.message, event.reason)

    def handle_data(self) -> bool:
        """Record a packet of the peer for the queue pair; true if that established it."""
        record, cm = self.record, self._adapter.cm
        if record is None:
            return False
        is_new = cm.handle_data(record, self._adapter.now_ns())
        # Once it is established only the liveness check needs to know.
        is_established = record.state is CmState.ESTABLISHED
        self.wants_data = not is_established or cm.settings.alive_idle_ns is not None
        return is_new

    def handle_queue_pair_error(self) -> None:
        """End the connection after its queue pair failed."""
        if self.record is not None:
            now_ns = self._adapter.now_ns()
            self._adapter.cm.fail(self.record, reason="queue pair failed", now_ns=now_ns)

    def forget_queue_pair(self) -> None:
        """End the connection of a queue pair that is removed."""
        self.disconnect()
        self.qp = None

    def tell(
        self, kind: ConnectionEventKind, message: CmMessage | None = None, reason: str = ""
    ) -> None:
        """Deliver one event to the owner, unless the connection is over."""
        if self._is_over:
            return
        self._is_over = kind not in (ConnectionEventKind.REQUEST, ConnectionEventKind.ESTABLISHED)
        event = VerbsConnectionEvent(kind, self, reason=reason)
        if message is not None:
            event.parameters = _parameters(message)
            if self.space is PortSpace.UDP and self.record is not None:
                event.qpn = message.offer.qpn
                event.vector = _vector(self.record)
        self._adapter.finish_pass()  # what has completed is told before the end
        self.on_event(event)

    # -- leaves

    def _requested(self) -> CmConnection:
        record = self.record
        if record is None or record.state is not CmState.REQUESTED:
            state = "that is over" if record is None else record.state.name
            raise OSError(errno.EINVAL, f"no request waits for an answer: connection {state}")
        return record

    def _establish(self) -> bool:
        """Take the requester's queue pair to RTS; false if that failed and the owner was told."""
        record, qp, adapter = self.record, self.qp, self._adapter
        assert record is not None
        if qp is None or not record.is_requester or record.is_datagram:
            return True
        try:
            self._connect_queue_pair(qp, record.offer, record.peer_offer)
        except OSError as error:  # its owner has changed the state since the connect
            adapter.cm.forget(record, now_ns=adapter.now_ns())
            self.tell(ConnectionEventKind.ERROR, reason=str(error))
            return False
        adapter.progress_qp(qp)
        return True

    def _connect_queue_pair(self, qp: QueuePair, own: Offer, peer: Offer) -> None:
        """Bind a queue pair to this connection and take it to RTS. Raises OSError EINVAL."""
        adapter, record = self._adapter, self.record
        assert record is not None
        self._bind(qp)
        try:
            connect_queue_pair(
                qp, own=own, peer=peer, route=_vector(record), now_ns=adapter.now_ns()
            )
        except OSError:
            self._unbind(qp)
            raise
        self.qp = qp

    def _break_queue_pair(self) -> None:
        qp = self.qp
        if qp is not None and qp.state in _CONNECTED:
            error = QPAttr(qp_state=QPState.ERR)
            qp.modify(error, QPAttrMask.STATE, self._adapter.now_ns())
            self._adapter.progress_qp(qp)

    def _bind(self, qp: QueuePair) -> None:
        """Assign a queue pair to this connection. Raises OSError EINVAL if it has another."""
        entry = self._adapter.entries[qp.qpn]
        if entry.connection not in (None, self):
            raise OSError(errno.EINVAL, f"queue pair {qp.qpn} has a connection")
        entry.connection = self

    def _unbind(self, qp: QueuePair | None = None) -> None:
        """Release the queue pair, or the one given, for another connection."""
        qp = qp or self.qp
        entry = None if qp is None else self._adapter.entries.get(qp.qpn)
        if entry is not None and entry.connection is self:
            entry.connection = None


@dataclass(eq=False, repr=False)
class PacketListener(Listener):
    """One listening address of a packet provider."""

    _adapter: "PacketAdapter"
    local: HostPort
    space: PortSpace
    on_event: OnConnectionEvent
    record: CmListener | None = None

    def close(self) -> None:
        """Stop listening. See `Listener.close`."""
        record, self.record = self.record, None
        if record is not None:
            self._adapter.unlisten(self, record)

    def handle_cm_event(self, event: CmEvent) -> None:
        """Make a connection of a request and pass it to the owner."""
        record = event.connection
        assert event.kind is CmEventKind.REQUEST
        connection = PacketConnection(
            self._adapter,
            space=self.space,
            local=record.local,
            peer=record.peer,
            on_event=self.on_event,
            record=record,
        )
        record.owner = connection
        connection.tell(ConnectionEventKind.REQUEST, event.message)


def connect_queue_pair(
    qp: QueuePair, *, own: Offer, peer: Offer, route: AddressVector, now_ns: int
) -> None:
    """Take a queue pair from RESET or INIT to RTS. Raises OSError EINVAL from another state.

    Each side's resources bound the other's depth. Receives that were posted in INIT stay.
    """
    served = min(own.responder_resources, peer.initiator_depth)
    access = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE
    if served:
        access |= AccessFlag.REMOTE_READ | AccessFlag.REMOTE_ATOMIC
    attr = QPAttr(
        qp_access_flags=access,
        ah_attr=route,
        dest_qp_num=peer.qpn,
        rq_psn=peer.sequence_start,
        max_dest_rd_atomic=served,
        min_rnr_timer=RNR_TIMER_CODE,
        sq_psn=own.sequence_start,
        max_rd_atomic=min(own.initiator_depth, peer.responder_resources),
        retry_cnt=own.retry_count,
        # Each side states how long it waits for the other's receives.
        rnr_retry=peer.rnr_retry_count,
        # Without loss the connection reports every end of the peer; a peer that is stopped
        # for a while has not ended.
        timeout=0 if qp.link.lossless else TIMEOUT_CODE,
    )
    take_to_rts(qp, attr, now_ns)
    # Both links and the path between them count; the codes of InfiniBand are too coarse for it.
    qp.mtu_bytes = min(qp.mtu_bytes, own.mtu_bytes, peer.mtu_bytes)


def take_to_rts(qp: QueuePair, attr: QPAttr, now_ns: int) -> None:
    """Take a queue pair from RESET or INIT to RTS; in INIT it keeps the rights that it has.

    Raises OSError EINVAL from another state.
    """
    for state, mask in _STEPS.items():
        if state is not QPState.INIT or qp.state is QPState.RESET:
            attr.qp_state = state
            qp.modify(attr, mask, now_ns)


@lru_cache(ADDRESSES_KEPT)
def packed(host: str) -> bytes:
    """Return 16 bytes of an address, IPv4 mapped into IPv6; a scope is left out."""
    address = ip_address(host)
    if isinstance(address, IPv6Address):
        return address.packed
    return bytes(10) + b"\xff\xff" + address.packed


def _vector(record: CmConnection) -> AddressVector:
    assert isinstance(record.route, AddressVector)
    return record.route


def _parameters(message: CmMessage) -> ConnectParameters:
    """Convert the peer's parameters to this side's view: its depth are our resources."""
    offer = message.offer
    return ConnectParameters(
        private_data=message.private_data,
        responder_resources=min(offer.initiator_depth, READS_MAX),
        initiator_depth=min(offer.responder_resources, READS_MAX),
        retry_count=offer.retry_count,
        rnr_retry_count=offer.rnr_retry_count,
        qkey=offer.qkey,
    )
