"""Which peer is evicted next: the one that has been idle for longest.

A search through all peers takes milliseconds. So one search yields several candidates, and the next
one waits for a while unless a candidate was evicted: else each new address of a flood would cost
one.
"""

from collections import deque
from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Final, Generic, Protocol, TypeVar

_TRIES: Final = 8  # of the peers idle for longest; it is rare that one is needed
_FOUND_MAX: Final = 64  # by one search
_LOOK_AGAIN_NS: Final = 50_000_000  # after a search of which nothing was evicted


class _Used(Protocol):
    used_ns: int  # when something happened last


P = TypeVar("P", bound=_Used)


class IdleQueue(Generic[P]):
    """The idle peers of one group, those idle for longest first.

    members: the peers of the group, for a search.  is_idle: whether one is still a member, and
    idle.
    """

    def __init__(
        self, members: Callable[[], Iterable[P]], is_idle: Callable[[P, int], bool]
    ) -> None:
        self._members = members
        self._is_idle = is_idle
        self._found: deque[tuple[int, P]] = deque()
        self._look_at_ns = 0

    def evict(self, now_ns: int, end: Callable[[P], bool]) -> bool:
        """Have `end` evict the next peer, if it does not return false; false if nothing goes."""
        for _ in range(_TRIES):
            peer = self._next(now_ns)
            if peer is None:
                return False
            if end(peer):
                self._look_at_ns = now_ns
                return True
        return False

    def _next(self, now_ns: int) -> P | None:
        while self._found or self._search(now_ns):
            used_ns, peer = self._found.popleft()
            if peer.used_ns == used_ns and self._is_idle(peer, now_ns):
                return peer
        return None

    def _search(self, now_ns: int) -> bool:
        if now_ns < self._look_at_ns:
            return False
        self._look_at_ns = now_ns + _LOOK_AGAIN_NS
        idle = (peer for peer in self._members() if self._is_idle(peer, now_ns))
        oldest = nsmallest(_FOUND_MAX, idle, key=lambda peer: peer.used_ns)
        self._found.extend((peer.used_ns, peer) for peer in oldest)
        return bool(oldest)
