"""Receive queues, and which message holds which receive buffer.

A queue pair takes receives from its own queue or from a shared one. The tracker numbers messages
by MSN, the ordinal of a message among those that consume a receive: when the queue pair accepts
messages ahead of others, buffers are held out of order and gaps exist. `ReceiveTracker.held`
counts both: how many buffers are held, and the span that they cover. A message takes its buffer
when its first byte is accepted; it completes in message order, whenever its buffer was taken.
Source: docs/reference/verbs-and-roce.md 12; docs/reference/dat.md 12.1, 13.1, 13.5 and 14.

Nothing here takes a lock: the adapter's lock guards every change. Each change publishes both counts
as one tuple, `ReceiveTracker.held`, so that a thread without the lock reads counts of one set of
buffers too.
"""

import errno
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from urds.verbs.engine.completions import Outbox
from urds.verbs.engine.keys import AccessError
from urds.verbs.engine.numbers import AsyncEventType, ReceiveOrder, WCFlag, WCOpcode, WCStatus
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind
from urds.verbs.engine.work import WC, EngineEvent, RecvWR, check_count, check_wr_id

if TYPE_CHECKING:
    from urds.verbs.engine.queue_pair import QueuePair

MSN_BITS: Final = 32  # on the wire; inside, message numbers have no width
_MSN_COUNT: Final = 1 << MSN_BITS
_NONE_HELD: Final = (0, 0)


class ReceiveQueue:
    """Up to `capacity` receives, each of at most `max_sge` pieces, taken in posting order."""

    def __init__(self, capacity: int, max_sge: int) -> None:
        self.capacity = capacity
        self.max_sge = max_sge
        self.entries: deque[RecvWR] = deque()  # for others to look at

    def __len__(self) -> int:
        """Return how many receives wait to be taken."""
        return len(self.entries)

    def post(self, wr: RecvWR) -> None:
        """Queue a receive. Raises as `check`."""
        self.check(wr)
        self.entries.append(wr)

    def check(self, wr: RecvWR) -> None:
        """See that a receive may be queued. Raises OSError: ENOMEM if full, EINVAL for pieces."""
        if wr.num_sge is not None:
            check_count(wr.num_sge, wr.sg)
        if len(wr.sg) > self.max_sge:
            raise OSError(
                errno.EINVAL, f"receive of {len(wr.sg)} pieces, limit {self.max_sge} (max_sge)"
            )
        if len(self.entries) >= self.capacity:
            raise OSError(
                errno.ENOMEM, f"receive queue is full: {self.capacity} work requests (max_wr)"
            )

    def take(self) -> RecvWR | None:
        """Take the oldest receive, `None` if there is none."""
        return self.entries.popleft() if self.entries else None

    def resize(self, capacity: int) -> None:
        """Change the capacity. Raises OSError: EINVAL below 1 or below what is queued."""
        if capacity < max(1, len(self.entries)):
            raise OSError(
                errno.EINVAL,
                f"receive queue of {capacity} work requests, at least 1 and the "
                f"{len(self.entries)} that wait",
            )
        self.capacity = capacity


class SharedReceiveQueue(ReceiveQueue):
    """A receive queue of several queue pairs, with an event for running low: once per arming."""

    def __init__(
        self, capacity: int, max_sge: int, *, pd: object = None, outbox: Outbox | None = None
    ) -> None:
        super().__init__(capacity, max_sge)
        self.pd = pd  # whose keys the receives use
        self.limit = 0  # 0: not armed
        self.attached = 0  # queue pairs that take from here
        self.outbox = Outbox() if outbox is None else outbox

    def post(self, wr: RecvWR) -> None:
        """See `ReceiveQueue.post`."""
        check_wr_id(wr.wr_id)
        super().post(wr)

    def take(self) -> RecvWR | None:
        """Take the oldest receive, `None` if there is none; an armed limit may be passed."""
        if not self.entries:
            return None
        wr = self.entries.popleft()
        if self.limit:
            self._check_limit()
        return wr

    def arm_limit(self, limit: int) -> None:
        """Request one event when fewer than `limit` receives wait; at once if so. 0 disarms.

        Raises OSError: EINVAL for a limit below 0 or above the capacity; the old one stays.
        """
        if not 0 <= limit <= self.capacity:
            raise OSError(errno.EINVAL, f"limit {limit}, from 0 to max_wr {self.capacity}")
        self.limit = limit
        self._check_limit()

    def resize(self, capacity: int) -> None:
        """Change the capacity. Raises OSError: EINVAL below 1, below what waits, or the limit."""
        if capacity < self.limit:
            raise OSError(errno.EINVAL, f"{capacity} work requests, below the limit {self.limit}")
        super().resize(capacity)

    def _check_limit(self) -> None:
        if len(self) < self.limit:
            self.limit = 0
            self.outbox.events.append(EngineEvent(AsyncEventType.SRQ_LIMIT_REACHED, self))


@dataclass(slots=True, eq=False)
class ReceiveTracker:
    """Which messages of one connection hold a receive buffer.

    A buffer counts from `allocate` (taken from the shared queue, or posted to the queue pair's
    own) until `complete` (its completion is generated). Completions come in message order.
    """

    last_completed: int = 0
    # How many buffers are held, and the span of messages that they cover: from the last completed
    # one to the highest that holds a buffer, so never below the count; (0, 0) when nothing is held.
    # Replaced as a whole: may be read without the lock, from any thread.
    held: tuple[int, int] = _NONE_HELD
    _allocated: dict[int, None] = field(default_factory=dict)  # an empty set takes three times more
    _highest: int = 0
    soft_max: int | None = None  # None: not armed
    hard_max: int | None = None

    def allocate(self, msn: int) -> None:
        """Count a buffer for message `msn`, which must be neither completed nor counted."""
        assert msn > self.last_completed, f"message {msn}, completed up to {self.last_completed}"
        assert msn not in self._allocated, f"message {msn} holds a buffer already"
        count, highest = len(self._allocated) + 1, max(self._highest, msn)
        # Stores alone: between them no signal handler runs.
        self._allocated[msn] = None
        self._highest = highest
        self.held = count, highest - self.last_completed

    def allocate_next(self) -> int:
        """Count a buffer for the message after all others and return its number.

        For a queue pair with a receive queue of its own: what is posted belongs to the messages
        that come next. Source: docs/reference/dat.md 13.3.
        """
        msn = max(self._highest, self.last_completed) + 1
        self.allocate(msn)
        return msn

    def complete(self, msn: int) -> None:
        """Count the completion of the next message in order."""
        assert msn == self.last_completed + 1, f"message {msn} after {self.last_completed}"
        del self._allocated[msn]
        self.last_completed = msn
        count = len(self._allocated)
        self.held = (count, self._highest - msn) if count else _NONE_HELD

    def flush(self) -> None:
        """Count every held buffer as completed: the connection is over."""
        self._allocated.clear()
        self.held = _NONE_HELD
        self.last_completed = max(self.last_completed, self._highest)

    def reset(self) -> None:
        """Start a new connection: nothing held, the next message is number 1. Watermarks stay."""
        self._allocated.clear()
        self.held = _NONE_HELD
        self.last_completed = self._highest = 0

    def unwrap(self, msn32: int) -> int:
        """Return the message number of a 32-bit one: the nearest to the last completed.

        May be 0 or negative for a retry from before the first wrap: such a message is completed.
        """
        ahead = (msn32 - self.last_completed) % _MSN_COUNT
        if ahead >= _MSN_COUNT // 2:
            ahead -= _MSN_COUNT
        return self.last_completed + ahead

    # -- marks

    def set_marks(self, soft: int | None, hard: int | None) -> None:
        """Set both watermarks and arm them; `None` is none. Source: docs/reference/dat.md 14."""
        self.soft_max, self.hard_max = soft, hard

    def passes_soft(self) -> bool:
        """Return True once per `set_marks`: when more buffers are held than the soft mark."""
        if self.soft_max is None or len(self._allocated) <= self.soft_max:
            return False
        self.soft_max = None
        return True

    def passes_hard(self) -> bool:
        """Return True once per `set_marks`: when more buffers are held than the hard mark."""
        if self.hard_max is None or len(self._allocated) <= self.hard_max:
            return False
        self.hard_max = None
        return True


_IMMEDIATE = int(PacketFlag.IMMEDIATE)
_INVALIDATE = int(PacketFlag.INVALIDATE)
_SOLICITED = int(PacketFlag.SOLICITED)
_WC_FLAGS = {
    0: WCFlag(0),
    _IMMEDIATE: WCFlag.WITH_IMM,
    _INVALIDATE: WCFlag.WITH_INV,
    _IMMEDIATE | _INVALIDATE: WCFlag.WITH_IMM,
}


@dataclass(slots=True, eq=False)
class IncomingMessages:
    """The receives of one connected queue pair that have been taken and not yet completed."""

    _qp: "QueuePair"
    _queue: ReceiveQueue
    _tracker: ReceiveTracker
    _shared: bool
    # Taken receives by message number; the numbers may have gaps with ARRIVAL_ORDER only.
    _taken: dict[int, RecvWR] = field(default_factory=dict)
    _taken_up_to: int = 0  # without gaps: the highest message that has a receive
    _held: list[tuple[int, WC]] = field(default_factory=list)  # no deque: see SendQueue

    def take(self, msn: int, receive_order: ReceiveOrder) -> bool:
        """Assign a receive to message `msn` if it has none; return whether it has one now.

        The receives of a queue pair's own queue belong to the next messages in posting order, so
        those of earlier messages are taken as well. All that are needed, or none.
        """
        if msn in self._taken:
            return True
        if msn == self._taken_up_to + 1:
            wr = self._queue.take()  # the usual case
            if wr is None:
                return False
            self._taken[msn], self._taken_up_to = wr, msn
            if self._shared:
                self._tracker.allocate(msn)
            return True
        if self._shared and receive_order is ReceiveOrder.ARRIVAL_ORDER:
            wanted = range(msn, msn + 1)
        else:
            wanted = range(self._taken_up_to + 1, msn + 1)
        if len(self._queue) < len(wanted):
            return False
        for number in wanted:
            wr = self._queue.take()
            assert wr is not None, "the queue has as many as it said"
            self._taken[number] = wr
            self._taken_up_to = max(self._taken_up_to, number)
            if self._shared:
                self._tracker.allocate(number)
        return True

    def place(self, packet: Packet, msn: int) -> None:
        """Copy the bytes of a SEND packet into the receive of its message.

        Raises AccessError: LOC_LEN_ERR for a receive that is too small, LOC_PROT_ERR.
        """
        qp = self._qp
        qp.keys.scatter(qp.receive_pd, self._taken[msn].sg, packet.offset, packet.payload)

    def finish(self, packet: Packet, msn: int, message_bytes: int) -> None:
        """Complete the receive of message `msn`: all packets up to its last have arrived."""
        bits = int(packet.flags)
        wc = WC(
            self._taken.pop(msn).wr_id,
            WCStatus.SUCCESS,
            WCOpcode.RECV if packet.kind is PacketKind.SEND else WCOpcode.RECV_RDMA_WITH_IMM,
            byte_len=message_bytes,
            qp_num=self._qp.qpn,
            src_qp=self._qp.attr.dest_qp_num,
            imm_data=packet.immediate,
            wc_flags=_WC_FLAGS[bits & (_IMMEDIATE | _INVALIDATE)],
            solicited=bool(bits & _SOLICITED),
        )
        self._held.append((msn, wc))
        if not self._qp.hold_receives:
            self.release()

    def release(self) -> None:
        """Deliver the completions that were held back."""
        while self._held:
            msn, wc = self._held.pop(0)
            self._tracker.complete(msn)
            self._qp.recv_cq.push(wc)

    def fail(self, msn: int, fault: AccessError) -> None:
        """Complete the receive of message `msn`, the next in order, with a local error."""
        self.release()
        wr = self._taken.pop(msn)
        self._tracker.complete(msn)
        self._qp.recv_cq.push(WC(wr.wr_id, fault.status, qp_num=self._qp.qpn))

    def flush(self) -> None:
        """Complete all receives as flushed, in message order; those of a shared queue stay there.

        Completions that are held back are delivered first.
        """
        self.release()
        self._tracker.flush()
        for msn in sorted(self._taken):
            self._qp.flush_receive(self._taken.pop(msn))
        while not self._shared and (wr := self._queue.take()) is not None:
            self._qp.flush_receive(wr)
        if self._shared:
            self._qp.emit_event(AsyncEventType.QP_LAST_WQE_REACHED)

    def forget(self) -> None:
        """Drop everything without a completion: the queue pair is reset."""
        self._taken.clear()
        self._held.clear()
        self._taken_up_to = 0
        self._tracker.reset()
        while not self._shared and self._queue.take() is not None:
            pass
