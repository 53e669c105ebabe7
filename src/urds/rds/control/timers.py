"""Which timers exist, and when the next is due.

One `Timers` serves all connections of a local address: a heap whose changed and cancelled entries
are skipped lazily. At most five timers exist per path and one per pending connection.
"""

from enum import IntEnum

from urds.common.named_tuples import NamedTuple
from urds.common.timers import Deadlines
from urds.common.types import IPAddress


class TimerKind(IntEnum):
    """What is done when a timer fires."""

    ATTEMPT = 1  # connect, or request a call-back
    GIVE_UP = 2  # drop the queue of what stays down
    ANSWER = 3  # TCP: the peer did not identify itself. RDMA: the device did not report the end
    PENDING = 4  # an accepted stream stayed silent
    LIVENESS = 5  # a urds node does not answer on its stream: take the newer one


class TimerKey(NamedTuple):
    """A timer's name; `number` is the path's index, for PENDING the stream."""

    peer: IPAddress
    kind: TimerKind
    number: int


Timers = Deadlines[TimerKey]  # in nanoseconds of the control thread's clock


class OwnTimers:
    """The timers of one path, or of one peer over RDMA, among those of its local address."""

    __slots__ = ("_number", "_peer", "_timers")

    def __init__(self, timers: Timers, peer: IPAddress, number: int) -> None:
        self._timers = timers
        self._peer = peer
        self._number = number

    def set(self, kind: TimerKind, deadline_ns: int) -> None:
        """Set a timer, in place of an earlier one of the same kind."""
        self._timers.set(TimerKey(self._peer, kind, self._number), deadline_ns)

    def get(self, kind: TimerKind) -> int | None:
        """Return when a timer is due, None if it is not set."""
        return self._timers.get(TimerKey(self._peer, kind, self._number))

    def cancel(self, *kinds: TimerKind) -> None:
        """Cancel timers; no error if one is not set."""
        for kind in kinds:
            self._timers.cancel(TimerKey(self._peer, kind, self._number))
