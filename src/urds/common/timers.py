"""Deadlines by key, and calls that are due at a time.

One heap serves both; changed and cancelled entries are removed from it lazily.
"""

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

_STALE_MIN: Final = 64  # fewer stale entries stay

Key = TypeVar("Key", bound=Hashable)


class Deadlines(Generic[Key]):
    """One deadline per key, in nanoseconds of the owner's clock."""

    def __init__(self) -> None:
        self._live: dict[Key, tuple[int, int]] = {}  # deadline and count of its entry
        self._heap: list[tuple[int, int, Key]] = []
        # They break ties, for keys need not compare; no two are equal, even if a handler or
        # finaliser sets a deadline while this thread does.
        self._numbers = count()

    def __len__(self) -> int:
        """Count the keys that have a deadline."""
        return len(self._live)

    def set(self, key: Key, deadline_ns: int) -> None:
        """Set a deadline, in place of an earlier one of the same key."""
        number = next(self._numbers)
        self._live[key] = (deadline_ns, number)
        heappush(self._heap, (deadline_ns, number, key))
        if len(self._heap) > max(_STALE_MIN, 2 * len(self._live)):
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapify(self._heap)

    def get(self, key: Key) -> int | None:
        """Return the deadline of a key, None if it has none."""
        entry = self._live.get(key)
        return None if entry is None else entry[0]

    def is_set(self, key: Key) -> bool:
        """Return whether a key has a deadline."""
        return key in self._live

    def cancel(self, key: Key) -> None:
        """Remove a deadline; no error if the key has none. Any thread, without the owner's lock."""
        self._live.pop(key, None)

    def next_ns(self) -> int | None:
        """Return the next deadline, None without any."""
        heap = self._heap
        while heap and not self._is_live(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now_ns: int) -> Key | None:
        """Remove and return the key that is due for longest; None when none is."""
        deadline_ns = self.next_ns()
        if deadline_ns is None or deadline_ns > now_ns:
            return None
        key = heappop(self._heap)[2]
        self._live.pop(key, None)  # another thread may cancel it at this moment
        return key

    def _is_live(self, entry: tuple[int, int, Key]) -> bool:
        return self._live.get(entry[2]) == entry[:2]


class Timer:
    """One call that is due at a time; once cancelled it keeps nothing alive."""

    __slots__ = ("_calls", "call", "deadline_ns")

    def __init__(self, deadline_ns: int, call: Callable[[], None], calls: "TimedCalls") -> None:
        self.deadline_ns = deadline_ns
        self.call: Callable[[], None] | None = call
        self._calls = calls

    def cancel(self) -> None:
        """Forget the call, from any thread. It may be running."""
        self.call = None
        self._calls.cancel(self)


class TimedCalls(Deadlines[Timer]):
    """Calls that are due at times of the owner's clock."""

    def add(self, deadline_ns: int, call: Callable[[], None]) -> Timer:
        """Have `call` made at a time."""
        timer = Timer(deadline_ns, call, self)
        self.set(timer, deadline_ns)
        return timer

    def take_due(self, now_ns: int) -> Callable[[], None] | None:
        """Remove and return the call that is due for longest; None when none is."""
        while (timer := self.pop_due(now_ns)) is not None:
            if timer.call is not None:
                return timer.call
        return None
