"""Deadlines by key: a heap from which changed and cancelled entries are removed lazily."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

_STALE_MIN: Final = 64  # fewer stale entries stay

Key = TypeVar("Key", bound=Hashable)


class Deadlines(Generic[Key]):
    """One deadline per key, in nanoseconds of the owner's clock."""

    def __init__(self) -> None:
        self._live: dict[Key, tuple[int, int]] = {}  # deadline and count of its entry
        self._heap: list[tuple[int, int, Key]] = []
        self._count = 0  # breaks ties: keys need not compare

    def __len__(self) -> int:
        """Count the keys that have a deadline."""
        return len(self._live)

    def set(self, key: Key, deadline_ns: int) -> None:
        """Set a deadline, in place of an earlier one of the same key."""
        self._count += 1
        self._live[key] = (deadline_ns, self._count)
        heappush(self._heap, (deadline_ns, self._count, key))
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
        """Remove a deadline; no error if the key has none."""
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
        del self._live[key]
        return key

    def _is_live(self, entry: tuple[int, int, Key]) -> bool:
        return self._live.get(entry[2]) == entry[:2]
