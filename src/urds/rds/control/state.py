"""The states of a path over TCP and of a peer over RDMA; what the table does not hold is an error.

A path over TCP:

    DOWN        no stream, and none is wanted
    WAITING     no stream; the next attempt has its time, or waits for path 0
    CONNECTING  lower side: a `Connect` is out
    CALL_BACK_REQUESTED  higher side: a `RequestCallBack` is out
    ATTACHED    a stream, but no frame of the peer yet: TCP accepts before RDS does
    UP          the peer has sent a frame on this stream

Only the lower side leaves CONNECTING, only the higher side requests a call-back and accepts. An
accepted stream supersedes the one before it. `Connect` and `RequestCallBack` are answered exactly
once, even after the path was given up; the answer to a call-back request may come long after its
purpose is fulfilled.

A peer over RDMA:

    DOWN        no connection, and none is wanted
    WAITING     no connection; the next attempt has its time
    CONNECTING  a `Connect` is out
    ACCEPTING   an `Accept` is out
    UP          a connection is established

A request of the peer that replaces a connection ends that first, by FAIL or LOSE.
"""

from enum import Enum, StrEnum, auto
from typing import Final, TypeVar

from urds.common.errors import LocalProtocolError
from urds.common.records import record


class ConnectionState(StrEnum):
    """What a user is told of a connection."""

    UP = "up"
    SILENT = "silent"  # connected, and the peer has sent nothing on it yet
    CONNECTING = "connecting"  # attempts go on
    DOWN = "down"  # and no message waits for it


@record
class ConnectionReport:
    """How a connection is, as a user is told."""

    state: ConnectionState
    since_ns: int | None  # None: it was never anything else
    attempts: int  # of the present outage
    attempt_at_ns: int | None  # the next one


class PathState(Enum):
    """The state of a path over TCP."""

    DOWN = auto()
    WAITING = auto()
    CONNECTING = auto()
    CALL_BACK_REQUESTED = auto()
    ATTACHED = auto()
    UP = auto()


class PathInput(Enum):
    """An input that changes the state of a path over TCP."""

    RECONNECT = auto()  # a stream is wanted
    CONNECT = auto()
    REQUEST_CALL_BACK = auto()
    ANSWERED = auto()  # the attempt ended without a stream
    ATTACH = auto()
    FRAME = auto()
    LOSE = auto()
    GIVE_UP = auto()


class PeerState(Enum):
    """The state of a peer over RDMA."""

    DOWN = auto()
    WAITING = auto()
    CONNECTING = auto()
    ACCEPTING = auto()
    UP = auto()


class PeerInput(Enum):
    """An input that changes the state of a peer over RDMA."""

    RECONNECT = auto()
    CONNECT = auto()
    ACCEPT = auto()
    FAIL = auto()  # the attempt or the answer ended without a connection
    ESTABLISH = auto()
    LOSE = auto()
    GIVE_UP = auto()


WITHOUT_STREAM: Final = (PathState.DOWN, PathState.WAITING, PathState.CALL_BACK_REQUESTED)
WITHOUT_CONNECTION: Final = (PeerState.DOWN, PeerState.WAITING)
UNDER_WAY: Final = (PeerState.CONNECTING, PeerState.ACCEPTING)

_State = TypeVar("_State", PathState, PeerState)

TRANSITIONS: Final[dict[tuple[Enum, Enum], Enum]] = {
    (PathState.DOWN, PathInput.RECONNECT): PathState.WAITING,
    (PathState.WAITING, PathInput.RECONNECT): PathState.WAITING,
    (PathState.WAITING, PathInput.CONNECT): PathState.CONNECTING,
    (PathState.WAITING, PathInput.REQUEST_CALL_BACK): PathState.CALL_BACK_REQUESTED,
    (PathState.CONNECTING, PathInput.ATTACH): PathState.ATTACHED,
    (PathState.CONNECTING, PathInput.GIVE_UP): PathState.CONNECTING,  # its answer is still to come
    # The answer to a call-back request changes nothing once a stream is here or none is wanted.
    **{(state, PathInput.ANSWERED): state for state in PathState},
    (PathState.CONNECTING, PathInput.ANSWERED): PathState.DOWN,
    (PathState.CALL_BACK_REQUESTED, PathInput.ANSWERED): PathState.DOWN,
    **{(state, PathInput.ATTACH): PathState.ATTACHED for state in WITHOUT_STREAM},
    (PathState.ATTACHED, PathInput.ATTACH): PathState.ATTACHED,
    (PathState.UP, PathInput.ATTACH): PathState.ATTACHED,
    (PathState.ATTACHED, PathInput.FRAME): PathState.UP,
    (PathState.ATTACHED, PathInput.LOSE): PathState.DOWN,
    (PathState.UP, PathInput.LOSE): PathState.DOWN,
    **{(state, PathInput.GIVE_UP): PathState.DOWN for state in WITHOUT_STREAM},
    (PathState.ATTACHED, PathInput.GIVE_UP): PathState.ATTACHED,
    **{(state, PeerInput.RECONNECT): PeerState.WAITING for state in WITHOUT_CONNECTION},
    (PeerState.WAITING, PeerInput.CONNECT): PeerState.CONNECTING,
    **{(state, PeerInput.ACCEPT): PeerState.ACCEPTING for state in WITHOUT_CONNECTION},
    **{(state, PeerInput.FAIL): PeerState.DOWN for state in UNDER_WAY},
    **{(state, PeerInput.ESTABLISH): PeerState.UP for state in UNDER_WAY},
    (PeerState.UP, PeerInput.LOSE): PeerState.DOWN,
    **{(state, PeerInput.GIVE_UP): PeerState.DOWN for state in WITHOUT_CONNECTION},
    **{(state, PeerInput.GIVE_UP): state for state in UNDER_WAY},  # its end is still to come
}


def next_state(state: _State, event: PathInput | PeerInput) -> _State:
    """Return the state after `event`. Raises LocalProtocolError if it is not allowed."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise LocalProtocolError(f"{event.name} in state {state.name}")
    return after  # type: ignore[return-value]  # a transition stays within its enum
