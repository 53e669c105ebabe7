"""Deadlines by key, and calls that are due at a time.

One heap serves both; changed and cancelled entries are removed from it lazily.

A signal handler or a finaliser may call in here between the steps of a call, in a thread whose lock
lets it in, and a handler may raise there. So no call lies between a look at the heap and the change
that rests on it: CPython runs handlers behind calls, and where a loop or a function begins.
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
        self._live: dict[Key, tuple[int, int, Key]] = {}  # the entry that counts
        self._heap: list[tuple[int, int, Key]] = []
        # They break ties, for keys need not compare; no two are equal, even if a handler or
        # finaliser sets a deadline while this thread does.
        self._numbers = count()
        self._change_count = 0  # of the heap

    def __len__(self) -> int:
        """Count the keys that have a deadline."""
        return len(self._live)

    def set(self, key: Key, deadline_ns: int) -> None:
        """Set a deadline, in place of an earlier one of the same key."""
        entry = (deadline_ns, next(self._numbers), key)
        self._live[key] = entry
        self._change_count += 1
        heappush(self._heap, entry)
        if len(self._heap) > max(_STALE_MIN, 2 * len(self._live)):
            self._drop_stale()

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
        entry = self._first()
        return None if entry is None else entry[0]

    def pop_due(self, now_ns: int) -> Key | None:
        """Remove and return the key that is due for longest; None when none is."""
        while (entry := self._first()) is not None and entry[0] <= now_ns:
            key = entry[2]
            # What is not live any more leaves the heap at the next look.
            live = self._live.pop(key, None)
            if live is entry:
                return key
            if live is not None:
                self._live[key] = live  # set anew meanwhile
        return None

    def _first(self) -> tuple[int, int, Key] | None:
        """Return the entry of the next deadline; stale ones before it leave the heap."""
        while heap := self._heap:
            entry = heap[0]
            if self._live.get(entry[2]) is entry:
                return entry
            if heap is self._heap and heap[0] is entry:
                self._change_count += 1
                heappop(heap)
        return None

    def _drop_stale(self) -> None:
        heap, change_count = self._heap, self._change_count
        kept = [entry for entry in heap if self._live.get(entry[2]) is entry]
        heapify(kept)
        if self._change_count == change_count:  # else the next one that is set has it done
            self._heap = kept


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
