"""Which timers exist, and when the next is due.

One `Timers` serves all connections of a local address: a heap whose changed and cancelled entries
are skipped lazily. At most five timers exist per path and one per pending connection.
"""

from enum import IntEnum
from typing import NamedTuple

from urds.common.timers import Deadlines
from urds.common.types import IPAddress


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
