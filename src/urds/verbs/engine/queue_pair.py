"""One queue pair as a value machine: work requests, packets and `now_ns` in; packets out.

The queue pair holds what its parts share and what an application sees of it: state, attributes,
queues, events. Its parts do the protocol: `Requester` and `Responder` of a connected queue pair,
`UdTransport` of a datagram one. It takes no lock; its adapter's lock guards it.
"""

import errno
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Final

from urds.common.types import BytesLike
from urds.verbs.engine.attributes import (
    LinkTraits,
    QPAttr,
    QPCap,
    adopt,
    check_modify,
    check_values,
)
from urds.verbs.engine.completions import CompletionQueue, Outbox
from urds.verbs.engine.datagrams import GID_BYTES, UdTransport
from urds.verbs.engine.keys import AccessError, KeyTable
from urds.verbs.engine.numbers import (
    AsyncEventType,
    QPAttrMask,
    QPState,
    QPType,
    ReceiveOrder,
    SendFlag,
    WCOpcode,
    WCStatus,
)
from urds.verbs.engine.packets import Packet, PacketKind
from urds.verbs.engine.receives import (
    IncomingMessages,
    ReceiveQueue,
    ReceiveTracker,
    SharedReceiveQueue,
)
from urds.verbs.engine.requester import Requester, SendQueue
from urds.verbs.engine.requests import OPCODES, SendRequest, check_numbers, check_send
from urds.verbs.engine.responder import Responder
from urds.verbs.engine.work import WC, AddressVector, EngineEvent, RecvWR, SendWR, check_wr_id

__all__ = ["LinkTraits", "QPAttr", "QPCap", "QueuePair"]

_ANSWERS: Final = {PacketKind.READ_RESPONSE, PacketKind.ATOMIC_RESPONSE, PacketKind.ACK}
_RECEIVING: Final = {QPState.RTR, QPState.RTS, QPState.SQD, QPState.SQE}
_SENDING: Final = {QPState.RTS, QPState.SQD}
_SIGNALED: Final = int(SendFlag.SIGNALED)


@dataclass(kw_only=True, eq=False, repr=False)
class QueuePair:
    """A queue pair of type RC or UD. Not thread-safe: its adapter's lock guards it."""

    qpn: int
    qp_type: QPType
    pd: object
    send_cq: CompletionQueue
    recv_cq: CompletionQueue
    srq: SharedReceiveQueue | None = None
    cap: InitVar[QPCap]
    sq_sig_all: bool = False
    keys: KeyTable
    link: LinkTraits
    receive_order: ReceiveOrder = ReceiveOrder.IN_ORDER
    outbox: Outbox = field(default_factory=Outbox)

    def __post_init__(self, cap: QPCap) -> None:
        is_in_order = self.receive_order is ReceiveOrder.IN_ORDER
        assert self.link.names_places or is_in_order, "what packets do not name follows their order"
        self.gid = bytes(GID_BYTES)  # of its port, for the GRH: a provider may set it
        self.tracker = ReceiveTracker()
        self.on_close: Callable[[QueuePair], None] | None = None  # of the engine that made it
        # Shared memory: writes bytes straight to the peer's key and address; True if done.
        self.place_remote: Callable[[QueuePair, int, int, BytesLike], bool] | None = None
        self.placed_bytes_min = 1  # shorter ones always go in packets
        # A provider that keeps payloads after `poll_transmit`: copies them when it is called.
        self.on_detach: Callable[[], None] | None = None
        self._last_ack: Packet | None = None  # of the time before a reset
        self._hold_receives = False
        own = ReceiveQueue(cap.max_recv_wr, cap.max_recv_sge)
        # An empty queue is false.
        self._queue: ReceiveQueue = own if self.srq is None else self.srq
        self.receives = self._queue.entries  # that wait for its next messages: not to be changed
        self._begin(cap)

    def _begin(self, cap: QPCap) -> None:
        """Begin, or begin anew: no work, no connection."""
        self.state = QPState.RESET
        self.attr = QPAttr(QPState.RESET, cap=cap)
        self.mtu_bytes = self.link.mtu_bytes
        self.peer: AddressVector | None = None
        self._incoming = IncomingMessages(self, self._queue, self.tracker, self.srq is not None)
        is_datagram = self.qp_type is QPType.UD
        self._sends = SendQueue(self)
        self._datagrams = UdTransport(self, self._sends, self._queue) if is_datagram else None
        self._requester = Requester(self, self._sends, 0)
        self._responder: Responder | None = None
        self._is_established = False  # a packet has come since RTR

    # -- states and attributes

    def modify(self, attr: QPAttr, mask: QPAttrMask, now_ns: int) -> None:
        """Change state and attributes. Raises OSError: EINVAL; then nothing changes."""
        mask = QPAttrMask(mask)
        new_state = attr.qp_state if QPAttrMask.STATE in mask else self.state
        check_modify(self.qp_type, self.state, mask, new_state)
        check_values(attr, mask, self.state)
        adopt(self.attr, attr, mask)
        if new_state is QPState.RESET:
            self._keep_last_ack()
            self._incoming.forget()
            self._begin(self.attr.cap)
            self.discard_completions()
        elif new_state is QPState.ERR:
            self.enter_error()
        else:
            self._enter(new_state)

    def discard_completions(self) -> None:
        """Drop what has completed and was not polled: the queue pair starts over, or is gone."""
        self.send_cq.discard(self.qpn)
        self.recv_cq.discard(self.qpn)

    def _enter(self, new_state: QPState) -> None:
        old_state, self.state = self.state, new_state
        self.attr.qp_state = new_state
        if new_state is QPState.RTR and old_state is QPState.INIT:
            if self.attr.path_mtu is not None:
                self.mtu_bytes = min(self.link.mtu_bytes, 1 << self.attr.path_mtu + 7)
            self.peer = self.attr.ah_attr
            self._responder = Responder(self, self._incoming, self.attr.rq_psn)
        elif new_state is QPState.RTS and old_state is QPState.RTR:
            self._requester = Requester(self, self._sends, self.attr.sq_psn)
            if self._datagrams is not None:
                self._datagrams.next_psn = self.attr.sq_psn
        elif old_state is QPState.SQD:
            self.peer = self.attr.ah_attr
            self._requester.configure()
        self._sends.note_draining()

    def enter_error(self) -> None:
        """Go to ERR: all posted work completes as flushed. Safe twice."""
        if self.state is QPState.ERR:
            return
        self.state = self.attr.qp_state = QPState.ERR
        if self._responder is not None:
            self._responder.abandon()
        self._requester.flush()
        if self._datagrams is None:
            self._incoming.flush()
            return
        while self.srq is None and (wr := self._queue.take()) is not None:
            self.flush_receive(wr)

    def enter_send_error(self) -> None:
        """Go to SQE after a failed datagram: sending stops, receiving continues."""
        self.state = self.attr.qp_state = QPState.SQE
        self._sends.flush()

    def close(self) -> None:
        """End its service by the engine that made it; nothing completes any more. Safe twice."""
        if self.on_close is not None:
            self.on_close(self)

    # -- work

    def detach_data(self) -> int:
        """Stop using the memory of `SendWR.data`; return how many bytes were copied for that.

        See `SendRequest.detach`, which does so for one request.
        """
        return self._sends.detach_data()

    def post_send(self, wr: SendWR, now_ns: int) -> SendRequest | None:
        """Queue a request; return its record, `None` if it was flushed at once.

        Raises OSError: EINVAL (state, opcode, sizes, keys of inline data), ENOMEM when full.
        """
        check_wr_id(wr.wr_id)
        check_numbers(wr)
        if self.state is QPState.ERR or self.state is QPState.SQE:
            known = OPCODES.get(wr.opcode)
            opcode = WCOpcode.SEND if known is None else known.wc_opcode
            self.send_cq.push(WC(wr.wr_id, WCStatus.WR_FLUSH_ERR, opcode, qp_num=self.qpn))
            return None
        if self.state not in _SENDING:
            raise OSError(errno.EINVAL, f"send posted in state {self.state.name}")
        cap = self.attr.cap
        check_send(wr, self.qp_type, self.attr, self.link)
        if self.outstanding_requests >= cap.max_send_wr:
            raise OSError(
                errno.ENOMEM, f"send queue is full: {cap.max_send_wr} work requests (max_send_wr)"
            )
        signalled = self.sq_sig_all or bool(int(wr.send_flags) & _SIGNALED)
        try:
            request = SendRequest(
                wr, self.keys, self.pd, signalled=signalled, on_detach=self.on_detach
            )
        except AccessError as fault:
            raise OSError(errno.EINVAL, f"inline data: {fault}") from fault
        self._sends.posted.append(request)
        return request

    def post_recv(self, wr: RecvWR, now_ns: int) -> None:
        """Queue a receive. Raises OSError: EINVAL (state, shared queue, sizes), ENOMEM if full."""
        check_wr_id(wr.wr_id)
        if self.srq is not None:
            raise OSError(errno.EINVAL, "the queue pair takes its receives from a shared queue")
        if self.state is QPState.RESET:
            raise OSError(errno.EINVAL, f"receive posted in state {self.state.name}")
        if self.state is QPState.ERR:
            self.flush_receive(wr)
            return
        queue = self._queue
        queue.check(wr)
        posted = RecvWR(wr.wr_id, list(wr.sg), num_sge=wr.num_sge)
        if self.qp_type is QPType.RC:
            self.tracker.allocate_next()
        # Last: a receive without a number would be no message's. The other way round is harmless.
        queue.entries.append(posted)

    def complete_send(self, request: SendRequest, status: WCStatus) -> None:
        """Complete a request that has left its queue."""
        brings = status is WCStatus.SUCCESS and request.is_answered
        byte_len = request.length if brings else 0
        self.send_cq.push(WC(request.wr_id, status, request.wc_opcode, byte_len, self.qpn))

    def flush_receive(self, wr: RecvWR) -> None:
        """Complete a receive that has left its queue as flushed."""
        self.recv_cq.push(WC(wr.wr_id, WCStatus.WR_FLUSH_ERR, WCOpcode.RECV, qp_num=self.qpn))

    @property
    def receive_pd(self) -> object:
        """Return the domain whose keys its receives use."""
        return self.pd if self.srq is None or self.srq.pd is None else self.srq.pd

    @property
    def outstanding_requests(self) -> int:
        """Return how many posted sends have not completed."""
        return len(self._sends)

    # -- acknowledgements on a link where they wait

    @property
    def ack_pending(self) -> bool:
        """Whether an acknowledgement waits for a packet to ride on."""
        responder = self._responder
        return responder is not None and responder.ack_due

    def hurry_ack(self) -> None:
        """Let the acknowledgement that waits go alone, with the next `poll_transmit`."""
        if self._responder is not None:
            self._responder.hurry_ack()

    def _keep_last_ack(self) -> None:
        """Keep the acknowledgement that waits beyond a reset: what it is for was executed."""
        if self.link.acks_wait and self._responder is not None:
            self._last_ack = self._responder.last_ack()
            if self._last_ack is not None:
                self._last_ack.destination = self.peer

    # -- packets and time

    def receive_packet(
        self, packet: Packet, now_ns: int, source: AddressVector | None = None
    ) -> None:
        """Process a packet that arrived for this queue pair; one that does not fit is dropped."""
        if self._datagrams is not None:
            if packet.kind is PacketKind.DATAGRAM and self.state in _RECEIVING:
                self._datagrams.receive(packet, source)
            return
        if packet.kind is PacketKind.DATAGRAM or self._responder is None:
            return
        if packet.acknowledged is not None and self.state in _SENDING:
            self._requester.receive_ack(packet.acknowledged, now_ns)
        if packet.kind in _ANSWERS:
            if self.state in _SENDING:
                self._requester.receive(packet, now_ns)
            return
        if self.state is QPState.RTR and not self._is_established:
            self._is_established = True
            self.emit_event(AsyncEventType.COMM_EST)
        if self.state in _RECEIVING or self.state is QPState.ERR:
            self._responder.receive(packet)

    def poll_transmit(self, now_ns: int) -> Packet | None:
        """Return the next packet to send, `None` when there is none now.

        Its payload may be a view of registered memory: use it before the next call.
        """
        if self._datagrams is not None:
            return self._datagrams.poll()
        if (last_ack := self._last_ack) is not None:
            self._last_ack = None
            return last_ack
        responder = self._responder
        packet = None if responder is None else responder.poll()
        if packet is None and self.state in _SENDING:
            packet = self._requester.poll(now_ns)
            if packet is None and responder is not None and self.state is QPState.ERR:
                packet = responder.poll()  # it has ended itself: what waited goes
        if packet is not None and responder is not None and self.link.acks_wait:
            responder.add_ack(packet)
        return packet

    def handle_timeout(self, now_ns: int) -> None:
        """Run the timers that are due."""
        if self.state in _SENDING:
            self._requester.handle_timeout(now_ns)

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` is due, `None` if never."""
        return self._requester.deadline_ns if self.state in _SENDING else None

    # -- events and receive buffers

    def emit_event(self, event_type: AsyncEventType) -> None:
        """Tell the owner an asynchronous event at the end of the pass."""
        self.outbox.events.append(EngineEvent(event_type, self))

    def set_recv_watermarks(self, soft: int | None, hard: int | None) -> None:
        """Set and arm both watermarks of held receive buffers; `None` is none.

        Above the soft one an event follows, once; above the hard one the queue pair goes to ERR.
        Source: docs/reference/dat.md 14.
        """
        self.tracker.set_marks(soft, hard)
        self.check_marks()

    def check_marks(self) -> None:
        """Act on watermarks that are passed. Posted receives of an own queue are not held ones."""
        tracker = self.tracker
        if self.srq is None or (tracker.soft_max is None and tracker.hard_max is None):
            return
        if tracker.passes_soft():
            self.emit_event(AsyncEventType.QP_RECV_SOFT_WATERMARK)
        if tracker.passes_hard():
            self.emit_event(AsyncEventType.QP_RECV_HARD_WATERMARK)
            self.enter_error()

    def recv_query(self) -> tuple[int, int]:
        """Return how many receive buffers are held, and the span of messages that they cover.

        Both are of one moment, with the adapter's lock and without it.
        """
        return self.tracker.held

    @property
    def hold_receives(self) -> bool:
        """Whether finished receives stay held and undelivered until this is False again."""
        return self._hold_receives

    @hold_receives.setter
    def hold_receives(self, hold: bool) -> None:
        self._hold_receives = hold
        if not hold:
            self._incoming.release()
