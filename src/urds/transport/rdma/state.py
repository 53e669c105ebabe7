"""The life of a peer over RDMA, as a table. What is not in it cannot happen.

    DOWN        no connection, and nobody looks for one
    WAITING     no connection; the next attempt has its time
    CONNECTING  a `Connect` is out
    ACCEPTING   an `Accept` is out
    UP          a connection is established

A request of the peer that takes the place of something ends it first, by FAIL or LOSE.
"""

from enum import Enum, auto
from typing import Final

from urds.errors import LocalProtocolError


class State(Enum):
    """Where a peer stands."""

    DOWN = auto()
    WAITING = auto()
    CONNECTING = auto()
    ACCEPTING = auto()
    UP = auto()


class Input(Enum):
    """What moves a peer."""

    SEEK = auto()
    CONNECT = auto()
    ACCEPT = auto()
    FAIL = auto()  # the attempt or the answer ended without a connection
    ESTABLISH = auto()
    LOSE = auto()
    GIVE_UP = auto()


RESTING: Final = (State.DOWN, State.WAITING)
UNDER_WAY: Final = (State.CONNECTING, State.ACCEPTING)

TRANSITIONS: Final[dict[tuple[State, Input], State]] = {
    **{(state, Input.SEEK): State.WAITING for state in RESTING},
    (State.WAITING, Input.CONNECT): State.CONNECTING,
    **{(state, Input.ACCEPT): State.ACCEPTING for state in RESTING},
    **{(state, Input.FAIL): State.DOWN for state in UNDER_WAY},
    **{(state, Input.ESTABLISH): State.UP for state in UNDER_WAY},
    (State.UP, Input.LOSE): State.DOWN,
    **{(state, Input.GIVE_UP): State.DOWN for state in RESTING},
    **{(state, Input.GIVE_UP): state for state in UNDER_WAY},  # its end is still to come
}


def next_state(state: State, event: Input) -> State:
    """Return the state after `event`. Raises LocalProtocolError if it is not allowed."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise LocalProtocolError(f"{event.name} in state {state.name}") from None
