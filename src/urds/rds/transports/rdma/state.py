"""The states of a peer over RDMA, as a table; transitions that it does not hold are errors.

    DOWN        no connection, and none is wanted
    WAITING     no connection; the next attempt has its time
    CONNECTING  a `Connect` is out
    ACCEPTING   an `Accept` is out
    UP          a connection is established

A request of the peer that replaces a connection ends that first, by FAIL or LOSE.
"""

from enum import Enum, auto
from typing import Final

from urds.common.errors import LocalProtocolError


class PeerState(Enum):
    """The state of a peer."""

    DOWN = auto()
    WAITING = auto()
    CONNECTING = auto()
    ACCEPTING = auto()
    UP = auto()


class PeerInput(Enum):
    """An input that changes the state of a peer."""

    RECONNECT = auto()
    CONNECT = auto()
    ACCEPT = auto()
    FAIL = auto()  # the attempt or the answer ended without a connection
    ESTABLISH = auto()
    LOSE = auto()
    GIVE_UP = auto()


WITHOUT_CONNECTION: Final = (PeerState.DOWN, PeerState.WAITING)
UNDER_WAY: Final = (PeerState.CONNECTING, PeerState.ACCEPTING)

TRANSITIONS: Final[dict[tuple[PeerState, PeerInput], PeerState]] = {
    **{(state, PeerInput.RECONNECT): PeerState.WAITING for state in WITHOUT_CONNECTION},
    (PeerState.WAITING, PeerInput.CONNECT): PeerState.CONNECTING,
    **{(state, PeerInput.ACCEPT): PeerState.ACCEPTING for state in WITHOUT_CONNECTION},
    **{(state, PeerInput.FAIL): PeerState.DOWN for state in UNDER_WAY},
    **{(state, PeerInput.ESTABLISH): PeerState.UP for state in UNDER_WAY},
    (PeerState.UP, PeerInput.LOSE): PeerState.DOWN,
    **{(state, PeerInput.GIVE_UP): PeerState.DOWN for state in WITHOUT_CONNECTION},
    **{(state, PeerInput.GIVE_UP): state for state in UNDER_WAY},  # its end is still to come
}


def next_state(state: PeerState, event: PeerInput) -> PeerState:
    """Return the state after `event`. Raises LocalProtocolError if it is not allowed."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise LocalProtocolError(f"{event.name} in state {state.name}") from None
