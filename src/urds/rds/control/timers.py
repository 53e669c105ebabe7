"""Which timers exist, when the next is due, and how long to wait before the next attempt.

One `Timers` serves all connections of a local address: a heap whose changed and cancelled entries
are skipped lazily. At most five timers exist per path and one per pending connection.

The first attempt is immediate; then delays are random in [0, d), where d doubles from its minimum
to its maximum. The first frame on a new stream resets them, not TCP's handshake: TCP accepts before
RDS does, and a peer that closes at once would get thousands of attempts a second. Source: linux
v6.12 net/rds/threads.c for the shape, docs/reference/linux-peer-notes.md 3 rule 2 for the reset.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from urds.common.timers import Deadlines
from urds.common.types import IPAddress

if TYPE_CHECKING:
    from random import Random


class TimerKind(IntEnum):
    """What is done when a timer fires."""

    ATTEMPT = 1  # connect, or request a call-back
    GIVE_UP = 2  # drop the queue of a path that stays down
    ANSWER = 3  # the peer did not identify itself: take it for Linux
    PENDING = 4  # an accepted stream stayed silent
    LIVENESS = 5  # an own node does not answer on its stream: take the newer one


class TimerKey(NamedTuple):
    """A timer's name; `number` is the path's index, for PENDING the stream."""

    peer: IPAddress
    kind: TimerKind
    number: int


Timers = Deadlines[TimerKey]  # in nanoseconds of the control thread's clock


class Backoff:
    """Delays between connection attempts of one path, or of one peer over RDMA.

    Each is at random below a span, which doubles from `min_ns` to the `max_ns` of the call. Both
    bounds, and what reaches them from the tunables, are in `settings.ReconnectSettings`.
    """

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
