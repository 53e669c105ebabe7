"""Which timers exist, and when the next is due.

One `Timers` serves all connections of an endpoint: a heap, from which a timer that was set anew or
cancelled is left out lazily. At most five timers exist per path and one per stranger.
"""

from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from urds.proto.paths import Address

_STALE_MIN: Final = 64  # below this many entries nobody tidies


class TimerKind(IntEnum):
    """What is to be done when a timer fires."""

    ATTEMPT = 1  # connect or knock
    GIVE_UP = 2  # drop what waits for a path that stays down
    ANSWER = 3  # the peer said nothing about itself: take it for Linux
    STRANGER = 4  # an accepted stream stayed silent
    QUESTION = 5  # an own node does not answer on its stream: take the one that came after it


class TimerKey(NamedTuple):
    """A timer's name; `number` is the path's index, for STRANGER the stream."""

    peer: Address
    kind: TimerKind
    number: int


class Timers:
    """Deadlines by key, in nanoseconds of the driver's clock."""

    def __init__(self) -> None:
        self._live: dict[TimerKey, tuple[int, int]] = {}  # deadline and count of its entry
        self._heap: list[tuple[int, int, TimerKey]] = []
        self._count = 0  # keys hold addresses of two families, which do not compare

    def set(self, key: TimerKey, deadline_ns: int) -> None:
        """Set a timer, in place of one with the same key."""
        self._count += 1
        self._live[key] = (deadline_ns, self._count)
        heappush(self._heap, (deadline_ns, self._count, key))
        if len(self._heap) > max(_STALE_MIN, 2 * len(self._live)):
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapify(self._heap)

    def cancel(self, key: TimerKey) -> None:
        """Forget a timer; one that is not set is no mistake."""
        self._live.pop(key, None)

    def is_set(self, key: TimerKey) -> bool:
        """Tell whether the timer will fire."""
        return key in self._live

    def next_ns(self) -> int | None:
        """Return the next deadline, None without timers."""
        while self._heap and not self._is_live(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ns: int) -> TimerKey | None:
        """Take the timer that is due for longest; None when none is."""
        deadline_ns = self.next_ns()
        if deadline_ns is None or deadline_ns > now_ns:
            return None
        key = heappop(self._heap)[2]
        del self._live[key]
        return key

    def _is_live(self, entry: tuple[int, int, TimerKey]) -> bool:
        return self._live.get(entry[2]) == entry[:2]
