"""The requester of a connected queue pair: it sends requests until they are answered.

Every packet has a PSN, and each PSN waits for its own answer: a send or write for an
acknowledgement, a read for its bytes, an atomic operation for its result. A window bounds them.
Requests complete in posting order, each when none of its PSNs waits.

Loss is found in four ways, and only unanswered PSNs are retried:
- the responder names the PSN from which packets are missing (go back N), or, when it accepts
  selectively, the ranges that it has;
- packets that were sent later have been answered: each transmission has an ordinal, and one that
  is `REORDER_MAX` behind an answered one is lost. So a lost response of a read is found as well;
- the responder had no receive and named the PSN to retry after a time;
- nothing came at all until the timer expired (`LossTimer`).
Source: docs/reference/verbs-and-roce.md 8.
"""

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from urds.common.types import BytesLike
from urds.verbs.engine.flight import Flight, LossTimer, timeout_ns
from urds.verbs.engine.keys import AccessError
from urds.verbs.engine.numbers import (
    ATOMIC_BYTES,
    PSN_BITS,
    PSN_MASK,
    RNR_RETRY_FOREVER,
    RNR_TIMER_NS,
    AsyncEventType,
    QPState,
    SendFlag,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, Syndrome
from urds.verbs.engine.requests import READ_PORTION_PACKETS, SendRequest, overtakes

if TYPE_CHECKING:
    from urds.verbs.engine.queue_pair import QueuePair

_HALF: Final = 1 << PSN_BITS - 1
_FENCE: Final = int(SendFlag.FENCE)
_LAST: Final = int(PacketFlag.LAST)
_RNR_PAUSE_MAX_NS: Final = 100_000_000
_RNR_DOUBLINGS_MAX: Final = 14  # from 10 us to more than that
_RNR_CODES: Final = range(Syndrome.RNR_NAK, Syndrome.RNR_NAK + 32)
_STATUS: Final = {
    int(Syndrome.NAK_INVALID_REQUEST): WCStatus.REM_INV_REQ_ERR,
    int(Syndrome.NAK_REMOTE_ACCESS): WCStatus.REM_ACCESS_ERR,
    int(Syndrome.NAK_REMOTE_OPERATION): WCStatus.REM_OP_ERR,
}


@dataclass(slots=True, eq=False)
class Requester:
    """The half of a queue pair that sends requests to its peer."""

    _qp: "QueuePair"
    _queue: "SendQueue"
    _next_psn: int  # counted without wrapping
    _building: SendRequest = field(init=False)  # whose memory is looked up now
    _current: SendRequest | None = None  # the last one started, while packets are unsent
    _is_stopped: bool = False  # one has failed: what is behind it is not sent any more
    _next_msn: int = 1
    _flight: Flight = field(default_factory=Flight)
    _answered_open: int = 0  # reads and atomics that have not completed
    _resources_open: int = 0  # of them what the peer spends: portions of reads, atomics
    # What bytes that the provider places may overtake.
    _unplaced: list[SendRequest] = field(default_factory=list)
    _look_again_ns: int | None = None  # for what was overtaken a moment ago
    _paused_until_ns: int | None = None
    _paused_psn: int = 0
    _rnr_left: int = 0
    _rnr_waits: int = 0  # for one receive, until there is progress
    _timer: LossTimer = field(default_factory=LossTimer)

    def __post_init__(self) -> None:
        self.configure()

    def configure(self) -> None:
        """Apply the attributes of the queue pair that a modify changed."""
        attr = self._qp.attr
        lossless = self._qp.link.lossless
        self._timer.configure(timeout_ns(attr.timeout), attr.retry_cnt, lossless=lossless)
        self._rnr_left = attr.rnr_retry

    # -- time

    @property
    def deadline_ns(self) -> int | None:
        """Return when `handle_timeout` is due."""
        if self._paused_until_ns is not None:
            return self._paused_until_ns
        due_ns = self._timer.deadline_ns
        if due_ns is None or self._look_again_ns is None:
            return due_ns
        return min(due_ns, self._look_again_ns)

    def handle_timeout(self, now_ns: int) -> None:
        """Resume after a pause, or retry what was not answered in time."""
        if self._paused_until_ns is not None:
            if now_ns >= self._paused_until_ns:
                self._paused_until_ns = None
                self._flight.retry_from(self._paused_psn)
            return
        if self._look_again_ns is not None and now_ns >= self._look_again_ns:
            self._find_lost(now_ns)
        deadline_ns = self._timer.deadline_ns
        if deadline_ns is not None and now_ns >= deadline_ns:
            self._retry_all(now_ns)

    def _retry_all(self, now_ns: int) -> None:
        """Retry all unanswered PSNs: no answer came in time."""
        oldest = self._flight.oldest(self._next_psn)
        if not self._timer.expire(now_ns):
            if self._qp.link.retries:
                self._flight.narrow()
                self._flight.retry_from(oldest)
        elif (request := self._flight.request_of(oldest)) is not None:
            self._queue.fail(request, WCStatus.RETRY_EXC_ERR)

    # -- packets out

    def poll(self, now_ns: int) -> Packet | None:
        """Return the next request packet: a retry first, then a new one."""
        if self._current is None and not self._queue.posted and not self._flight.retries:
            return None
        while True:
            try:
                if (psn := self._flight.next_retry()) is not None:
                    return self._next_retry(psn, now_ns)
                if self._paused_until_ns is not None or self._is_stopped:
                    return None
                return self._next_new(now_ns)
            except AccessError as fault:
                self._stop_at(self._building, fault.status)

    def _next_retry(self, psn: int, now_ns: int) -> Packet | None:
        is_paused = self._paused_until_ns is not None and psn >= self._paused_psn
        if is_paused or not self._flight.has_room(psn, 1):
            return None
        request, psn, count = self._flight.take_retry()
        return self._emit(request, psn, count, now_ns, is_retry=True)

    def _next_new(self, now_ns: int) -> Packet | None:
        while (request := self._current) is None:
            if not self._start_next():
                return None
        psn = request.psn + request.sent
        count = 1
        if request.kind is PacketKind.READ_REQUEST:
            if self._resources_open >= self._qp.attr.max_rd_atomic:
                return None
            count = min(READ_PORTION_PACKETS, request.psn_count - request.sent)
        if not self._flight.has_room(psn, count):
            return None
        if request.is_answered:
            if request.kind is PacketKind.READ_REQUEST:
                request.portions_left[request.sent // READ_PORTION_PACKETS] = count
            self._resources_open += 1
        packet = self._emit(request, psn, count, now_ns, is_retry=False)
        request.sent += count
        if request.sent == request.psn_count:
            self._current = None
        return packet

    def _start_next(self) -> bool:
        """Start the next posted request; return whether one was, or was executed here."""
        qp = self._qp
        if not self._queue.posted or qp.state is not QPState.RTS or self._is_stopped:
            return False
        request = self._queue.posted[0]
        if request.flags & _FENCE and self._answered_open:
            return False
        if request.is_answered and self._resources_open >= qp.attr.max_rd_atomic:
            return False
        self._queue.started.append(self._queue.posted.pop(0))
        self._building = request
        if request.kind is None:
            self._carry_out_here(request)
            return True
        msn = self._next_msn
        if request.takes_receive:
            self._next_msn += 1
        request.is_placed = self._place_remote(request)
        if request.is_placed and not request.takes_receive:
            self._queue.complete()  # the bytes are there: no packet, no answer
            return True
        request.start(self._next_psn, msn, qp.link, qp.mtu_bytes)
        self._next_psn += request.psn_count
        if request.is_answered:
            self._answered_open += 1
        if request.is_overtakable:
            self._unplaced.append(request)
        self._current = request
        return True

    def _place_remote(self, request: SendRequest) -> bool:
        """Have the provider write the bytes into the peer's memory itself, if it can.

        Not while a write or atomic before it that may change the same bytes is in flight.
        """
        qp = self._qp
        if (
            qp.place_remote is None
            or request.length < qp.placed_bytes_min
            or request.kind is not PacketKind.WRITE
            or (self._unplaced and overtakes(request, self._unplaced))
        ):
            return False
        data = request.data(qp.keys, qp.pd, 0, request.length)
        return qp.place_remote(qp, request.rkey, request.remote_addr, data)

    def _carry_out_here(self, request: SendRequest) -> None:
        """Bind or invalidate a memory window; no packet is sent."""
        qp, bind = self._qp, request.bind
        if request.opcode is WROpcode.LOCAL_INV:
            qp.keys.invalidate(request.immediate, pd=qp.pd, qpn=qp.qpn)
        else:
            region, access = bind.region, bind.access
            qp.keys.bind(request.window, region, bind.address, bind.length, access, qpn=qp.qpn)
        self._queue.complete()

    def _emit(
        self, request: SendRequest, psn: int, count: int, now_ns: int, *, is_retry: bool
    ) -> Packet:
        """Make the packet of a PSN, or of `count` of a read, and record them as in flight."""
        qp = self._qp
        target_qpn, mtu_bytes = qp.attr.dest_qp_num, qp.mtu_bytes
        if request.kind is PacketKind.READ_REQUEST:
            packet = request.build_read(psn, count, target_qpn, mtu_bytes)
        elif request.is_answered:
            packet = request.build_atomic(target_qpn)
        else:
            offset = (psn - request.psn) * mtu_bytes
            payload: BytesLike = b""
            if not request.is_placed:
                size = min(mtu_bytes, request.length - offset)
                self._building = request
                payload = request.data(qp.keys, qp.pd, offset, size)
            packet = request.build_data(psn, payload, target_qpn, mtu_bytes)
            if is_retry:
                packet.flags |= PacketFlag.ACK_REQUEST
        self._flight.note_sent(request, psn, count, now_ns)
        if self._timer.is_used:
            self._timer.note_sent(psn, now_ns, is_retry=is_retry)
        return packet

    # -- answers in

    def receive(self, packet: Packet, now_ns: int) -> None:
        """Process an answer. One to an unknown or answered request is dropped."""
        psn = self._unwrap(packet.psn)
        if psn >= self._next_psn:
            return
        if packet.kind is PacketKind.ACK:
            progress = self._take_ack(packet, psn, now_ns)
        else:
            # A read or atomic was executed, hence everything before it as well.
            progress = self._acknowledge(psn - 1)
            progress = self._take_data(packet, psn, now_ns) or progress
        if progress:
            self._go_on(now_ns)

    def receive_ack(self, wire_psn: int, now_ns: int) -> None:
        """Process an acknowledgement that rode on another packet."""
        psn = self._unwrap(wire_psn)
        if psn < self._next_psn:
            self._timer.note_answered(psn, now_ns)
            if self._acknowledge(psn):
                self._go_on(now_ns)

    def _unwrap(self, wire_psn: int) -> int:
        """Return the PSN next to the oldest one that waits."""
        first = self._flight.oldest(self._next_psn)
        return first + ((wire_psn - first + _HALF) & PSN_MASK) - _HALF

    def _take_ack(self, packet: Packet, psn: int, now_ns: int) -> bool:
        """Process an ACK or NAK; return whether there was progress."""
        syndrome = packet.syndrome
        if syndrome <= Syndrome.ACK:
            self._timer.note_answered(psn, now_ns)
            progress = self._acknowledge(psn)
            for first, last in packet.selective:
                progress = self._acknowledge_range(psn, first, last) or progress
            return progress
        if syndrome in _RNR_CODES:
            # Acknowledges nothing: a selective responder sends it ahead of a gap, too.
            self._pause(psn, syndrome - Syndrome.RNR_NAK, now_ns)
            return False
        progress = self._acknowledge(psn - 1)
        if syndrome == Syndrome.NAK_SEQUENCE:
            self._go_back(psn, now_ns)
        elif syndrome in _STATUS and (request := self._flight.request_of(psn)) is not None:
            self._queue.fail(request, _STATUS[syndrome])
            return False
        return progress

    def _acknowledge(self, up_to: int) -> bool:
        """Complete sends and writes up to a PSN."""
        found = self._flight.acknowledged(up_to)
        for psn in found:
            self._complete_psn(psn)
        return bool(found)

    def _acknowledge_range(self, base: int, first: int, last: int) -> bool:
        """Complete what a selective responder has beyond `base`."""
        progress = False
        start = base + ((first - base) & PSN_MASK)
        end = start + ((last - first) & PSN_MASK) + 1
        # The peer names ranges of any width; what waits is bounded.
        for psn in [psn for psn in self._flight if start <= psn < end]:
            request = self._flight.request_of(psn)
            if request is None:
                continue
            if request.is_answered:
                self._flight.note_kept(psn)
            else:
                self._complete_psn(psn)
                progress = True
        return progress

    def _complete_psn(self, psn: int) -> None:
        request = self._flight.complete_psn(psn)
        request.unanswered -= 1
        if request.unanswered:
            return
        if request.is_answered:
            self._answered_open -= 1
        if request.is_overtakable:
            self._unplaced.remove(request)

    def _take_data(self, packet: Packet, psn: int, now_ns: int) -> bool:
        """Process a response to a read or atomic; return whether it is new."""
        request = self._flight.request_of(psn)
        if request is None or not request.is_answered:
            return False
        is_read = request.kind is PacketKind.READ_REQUEST
        if is_read is not (packet.kind is PacketKind.READ_RESPONSE):
            return False
        if is_read:
            data: BytesLike = packet.payload
            offset = self._read_offset(request, packet, psn)
        else:
            data, offset = packet.compare_add.to_bytes(ATOMIC_BYTES, sys.byteorder), 0
        if offset is None:
            return False
        try:
            self._qp.keys.scatter(self._qp.pd, request.sg, offset, data)
        except AccessError as fault:
            self._stop_at(request, fault.status)
            return False
        self._timer.note_answered(psn, now_ns)
        if is_read and self._qp.link.lossless:
            request.received += len(data)
            if not int(packet.flags) & _LAST:
                return True
        self._complete_psn(psn)
        self._release_resource(request, psn)
        return True

    def _read_offset(self, request: SendRequest, packet: Packet, psn: int) -> int | None:
        """Return where in the message a response belongs, `None` if it is not one."""
        size = len(packet.payload)
        if not self._qp.link.lossless:
            offset = (psn - request.psn) * self._qp.mtu_bytes
            return offset if size == min(self._qp.mtu_bytes, request.length - offset) else None
        offset = request.received
        is_whole = offset + size == request.length
        is_last = bool(int(packet.flags) & _LAST)
        if packet.offset != offset or offset + size > request.length or is_last is not is_whole:
            # No answer of this link is ever wrong at random.
            self._stop_at(request, WCStatus.BAD_RESP_ERR)
            return None
        return offset

    def _release_resource(self, request: SendRequest, psn: int) -> None:
        """Free what the peer spends: per portion of a read, per atomic."""
        if request.kind is PacketKind.READ_REQUEST:
            portion = (psn - request.psn) // READ_PORTION_PACKETS
            request.portions_left[portion] -= 1
            if request.portions_left[portion]:
                return
            del request.portions_left[portion]
        self._resources_open -= 1

    # -- what answers lead to

    def _go_on(self, now_ns: int) -> None:
        """Update timers and completions after progress."""
        if self._timer.is_used:
            self._timer.note_progress(now_ns, is_idle=not self._flight)
        if not self._qp.link.lossless:
            self._find_lost(now_ns)
        self._rnr_left, self._rnr_waits = self._qp.attr.rnr_retry, 0
        self._queue.complete()

    def _find_lost(self, now_ns: int) -> None:
        self._look_again_ns = self._flight.find_lost(now_ns, self._timer.overdue_ns)

    def _go_back(self, psn: int, now_ns: int) -> None:
        """Retry everything from a PSN that the responder expects."""
        # A NAK cannot concern what was sent within the round trip.
        if psn in self._flight:
            age_ns = now_ns - self._flight.sent_ns(psn)
            if age_ns >= self._timer.round_trip_ns // 2:
                self._flight.narrow()
                self._flight.retry_from(psn)

    def _pause(self, psn: int, code: int, now_ns: int) -> None:
        """Wait for a receive of the peer; count it once per wait."""
        request = self._flight.request_of(psn)
        if request is None:
            return
        if self._paused_until_ns is not None:
            self._paused_psn = min(psn, self._paused_psn)
            return
        pause_ns = RNR_TIMER_NS[code]
        if self._qp.attr.rnr_retry == RNR_RETRY_FOREVER:
            # The time is the peer's minimum. Many peers without receives, and with 10 us each,
            # would keep this side busy; a late receive is served at most that much later.
            pause_ns = max(pause_ns, min(pause_ns << self._rnr_waits, _RNR_PAUSE_MAX_NS))
            self._rnr_waits += self._rnr_waits < _RNR_DOUBLINGS_MAX
        elif self._rnr_left:
            self._rnr_left -= 1
        else:
            self._queue.fail(request, WCStatus.RNR_RETRY_EXC_ERR)
            return
        self._timer.deadline_ns = None
        self._paused_psn = psn
        self._paused_until_ns = now_ns + pause_ns

    # -- ends

    def _stop_at(self, request: SendRequest, status: WCStatus) -> None:
        """Fail a request once all before it are done; nothing behind it is sent."""
        self._is_stopped = True
        self._current = None
        request.failed = request.failed or status
        self._flight.drop(request)
        self._queue.complete()

    def flush(self) -> None:
        """Complete everything as flushed, in posting order."""
        self._current = None
        self._flight.clear()
        self._timer.deadline_ns = None
        self._paused_until_ns = self._look_again_ns = None
        self._queue.flush()


@dataclass(slots=True, eq=False)
class SendQueue:
    """Requests that were posted and not started, and those that were started and not completed.

    Lists: an empty deque takes 600 bytes, twice for each of thousands of queue pairs, and shifting
    a list costs less.
    """

    _qp: "QueuePair"
    posted: list[SendRequest] = field(default_factory=list)
    started: list[SendRequest] = field(default_factory=list)
    _is_drained: bool = False  # told since SQD began

    def __len__(self) -> int:
        return len(self.posted) + len(self.started)

    def detach_data(self) -> int:
        """See `SendRequest.detach`: of all that is queued or under way."""
        return sum(request.detach() for request in (*self.started, *self.posted))

    def complete(self) -> None:
        """Complete requests from the oldest on, up to the first unanswered one."""
        while self.started:
            request = self.started[0]
            if request.failed is not None:
                self.fail(request, request.failed)
                return
            if request.unanswered:
                return
            self.started.pop(0)
            if request.signalled:
                self._qp.complete_send(request, WCStatus.SUCCESS)
        self.note_draining()

    def fail(self, request: SendRequest, status: WCStatus) -> None:
        """Complete a request with an error now, and end the queue pair.

        Unfinished requests before it, reads without their responses, are flushed like the rest.
        """
        while self.started:
            other = self.started.pop(0)
            if other is request:
                self._qp.complete_send(request, status)
                break
            if other.unanswered:
                self._qp.complete_send(other, WCStatus.WR_FLUSH_ERR)
            elif other.signalled:
                self._qp.complete_send(other, WCStatus.SUCCESS)
        self._qp.enter_error()

    def flush(self) -> None:
        """Complete everything as flushed, in posting order."""
        for queue in (self.started, self.posted):
            while queue:
                self._qp.complete_send(queue.pop(0), WCStatus.WR_FLUSH_ERR)

    def note_draining(self) -> None:
        """Emit SQ_DRAINED once per SQD when everything that was started has completed."""
        if self._qp.state is not QPState.SQD:
            self._is_drained = False
        elif not self.started and not self._is_drained:
            self._is_drained = True
            self._qp.emit_event(AsyncEventType.SQ_DRAINED)
