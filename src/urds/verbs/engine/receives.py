"""Receive queues, and the account of which message holds which receive buffer.

A queue pair takes receives from a queue of its own or from one that it shares. The tracker beside
it numbers messages by MSN, the ordinal of a message among those that consume a receive: when the
queue pair accepts messages ahead of others, buffers are held out of order and gaps exist.
`ReceiveTracker.snapshot` counts both: how many buffers are held, and how far they reach.
Source: verbs-and-roce.md section 12; dat.md sections 13.1, 13.5 and 14.

Nothing here knows a lock: the adapter's lock guards it, so that one snapshot describes one set of
buffers.
"""

import errno
from collections import deque
from collections.abc import Callable
from typing import Final

from urds.verbs.engine.work import RecvWR

MSN_BITS: Final = 32  # on the wire; inside, message numbers have no width
_MSN_COUNT: Final = 1 << MSN_BITS


class ReceiveQueue:
    """Up to `capacity` receives, each of at most `max_sge` pieces, taken in posting order."""

    def __init__(self, capacity: int, max_sge: int) -> None:
        self.capacity = capacity
        self.max_sge = max_sge
        self._entries: deque[RecvWR] = deque()

    def __len__(self) -> int:
        """Return how many receives wait to be taken."""
        return len(self._entries)

    def post(self, wr: RecvWR) -> None:
        """Queue a receive. Raises OSError: ENOMEM when full, EINVAL for too many pieces."""
        if len(wr.sg) > self.max_sge:
            raise OSError(
                errno.EINVAL, f"receive of {len(wr.sg)} pieces, limit {self.max_sge} (max_sge)"
            )
        if len(self._entries) >= self.capacity:
            raise OSError(
                errno.ENOMEM, f"receive queue is full: {self.capacity} work requests (max_wr)"
            )
        self._entries.append(wr)

    def take(self) -> RecvWR | None:
        """Take the oldest receive, `None` if there is none."""
        return self._entries.popleft() if self._entries else None

    def resize(self, capacity: int) -> None:
        """Change the capacity. Raises OSError: EINVAL below 1 or below what is queued."""
        if capacity < max(1, len(self._entries)):
            raise OSError(
                errno.EINVAL,
                f"receive queue of {capacity} work requests, at least 1 and the "
                f"{len(self._entries)} that wait",
            )
        self.capacity = capacity


class SharedReceiveQueue(ReceiveQueue):
    """A receive queue of several queue pairs, with an alarm for running low.

    `on_limit` is called once per `arm_limit`, when fewer receives than the limit wait.
    `on_taken` is called after each receive that a queue pair takes.
    """

    def __init__(self, capacity: int, max_sge: int, *, pd: object = None) -> None:
        super().__init__(capacity, max_sge)
        self.pd = pd  # whose keys the receives use
        self.limit = 0  # 0: not armed
        self.attached = 0  # queue pairs that take from here
        self.on_limit: Callable[[], None] | None = None
        self.on_taken: Callable[[RecvWR], None] | None = None

    def take(self) -> RecvWR | None:
        """Take the oldest receive, `None` if there is none; may call `on_limit`."""
        if not self._entries:
            return None
        wr = self._entries.popleft()
        if self.on_taken is not None:
            self.on_taken(wr)
        if self.limit:
            self._check_limit()
        return wr

    def arm_limit(self, limit: int) -> None:
        """Ask for one call when fewer than `limit` receives wait; at once if so. 0 disarms.

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
            if self.on_limit is not None:
                self.on_limit()


class ReceiveTracker:
    """Which messages of one connection hold a receive buffer now.

    A buffer counts from `allocate` (taken from the shared queue, or posted to the queue pair's
    own) until `complete` (its completion is generated). Completions come in message order.
    """

    __slots__ = (
        "_allocated", "_hard_armed", "_highest", "_soft_armed", "hard_max", "last_completed",
        "soft_max",
    )  # fmt: skip

    def __init__(self) -> None:
        self.last_completed = 0
        self._allocated: dict[int, None] = {}  # an empty set takes three times as much
        self._highest = 0
        self.soft_max: int | None = None
        self.hard_max: int | None = None
        self._soft_armed = self._hard_armed = False

    def snapshot(self) -> tuple[int, int]:
        """Return how many buffers are held, and the span of messages that they reach over.

        The span runs from the last completed message to the highest that holds a buffer, so it is
        never below the count; (0, 0) when nothing is held. Costs the same for any number.
        """
        count = len(self._allocated)
        return (count, self._highest - self.last_completed) if count else (0, 0)

    def is_allocated(self, msn: int) -> bool:
        """Return whether message `msn` holds a buffer."""
        return msn in self._allocated

    def allocate(self, msn: int) -> None:
        """Count a buffer for message `msn`, which must be neither completed nor counted."""
        assert msn > self.last_completed, f"message {msn}, completed up to {self.last_completed}"
        assert msn not in self._allocated, f"message {msn} holds a buffer already"
        self._allocated[msn] = None
        self._highest = max(self._highest, msn)

    def allocate_next(self) -> int:
        """Count a buffer for the message after all others and return its number.

        For a queue pair with a receive queue of its own: what is posted belongs to the messages
        that come next. Source: dat.md section 13.3.
        """
        msn = max(self._highest, self.last_completed) + 1
        self.allocate(msn)
        return msn

    def complete(self, msn: int) -> None:
        """Count the completion of the next message in order."""
        assert msn == self.last_completed + 1, f"message {msn} after {self.last_completed}"
        del self._allocated[msn]
        self.last_completed = msn

    def flush(self) -> None:
        """Count every held buffer as completed: the connection is over."""
        self._allocated.clear()
        self.last_completed = max(self.last_completed, self._highest)

    def reset(self) -> None:
        """Begin a new connection: nothing held, the next message is number 1. Marks stay."""
        self._allocated.clear()
        self.last_completed = self._highest = 0

    def unwrap(self, msn32: int) -> int:
        """Return the message number that a 32-bit one means: the nearest to the last completed.

        May be 0 or negative for a repeat from before the first wrap: such a message is completed.
        """
        ahead = (msn32 - self.last_completed) % _MSN_COUNT
        if ahead >= _MSN_COUNT // 2:
            ahead -= _MSN_COUNT
        return self.last_completed + ahead

    # -- marks

    def set_marks(self, soft: int | None, hard: int | None) -> None:
        """Set both marks and arm them; `None` is no mark. Source: dat.md section 14."""
        self.soft_max, self.hard_max = soft, hard
        self._soft_armed, self._hard_armed = soft is not None, hard is not None

    def passes_soft(self) -> bool:
        """Return True once per `set_marks`: when more buffers are held than the soft mark."""
        if not self._soft_armed or self.soft_max is None or len(self._allocated) <= self.soft_max:
            return False
        self._soft_armed = False
        return True

    def passes_hard(self) -> bool:
        """Return True once per `set_marks`: when more buffers are held than the hard mark."""
        if not self._hard_armed or self.hard_max is None or len(self._allocated) <= self.hard_max:
            return False
        self._hard_armed = False
        return True
