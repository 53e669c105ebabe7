"""How long to wait before the next attempt.

The first attempt is immediate; then delays are random in [0, d), where d doubles from its minimum
to its maximum. The first frame on a new stream resets them, not TCP's handshake: TCP accepts before
RDS does, and a peer that closes at once would get thousands of attempts a second. Source: linux
v6.12 net/rds/threads.c for the shape, docs/reference/linux-peer-notes.md 3 rule 2 for the reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random


class Backoff:
    """Delays of one path."""

    __slots__ = ("_min_ns", "_random", "_span_ns")

    def __init__(self, *, min_ns: int, random: Random) -> None:
        self._min_ns = min_ns
        self._random = random
        self._span_ns = 0

    def reset(self, *, span_ns: int = 0) -> None:
        """Make the next attempt immediate, or random in [0, `span_ns`)."""
        self._span_ns = span_ns

    def next_ns(self, *, max_ns: int) -> int:
        """Return the delay before the next attempt; the one after may wait twice as long."""
        span_ns = min(self._span_ns, max_ns)
        self._span_ns = min(max(2 * span_ns, self._min_ns), max_ns)
        return self._random.randrange(span_ns) if span_ns else 0
