"""The states of a path, as a table; transitions that it does not hold are errors.

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
"""

from enum import Enum, StrEnum, auto
from typing import Final

from urds.common.errors import LocalProtocolError
from urds.common.records import record
from urds.rds.control.timers import Backoff


class PathState(Enum):
    """The state of a path."""

    DOWN = auto()
    WAITING = auto()
    CONNECTING = auto()
    CALL_BACK_REQUESTED = auto()
    ATTACHED = auto()
    UP = auto()


class ConnectionState(StrEnum):
    """What a user is told of a connection."""

    UP = "up"
    SILENT = "silent"  # connected, and the peer has sent nothing on it yet
    CONNECTING = "connecting"  # attempts go on
    DOWN = "down"  # and no message waits for it


@record
class ConnectionReport:
    """How a path is, as a user is told."""

    state: ConnectionState
    since_ns: int | None  # None: it was never anything else
    attempts: int  # of the present outage
    attempt_at_ns: int | None  # the next one


class PathInput(Enum):
    """An input that changes the state of a path."""

    RECONNECT = auto()  # a stream is wanted
    CONNECT = auto()
    REQUEST_CALL_BACK = auto()
    ANSWERED = auto()  # the attempt ended without a stream
    ATTACH = auto()
    FRAME = auto()
    LOSE = auto()
    GIVE_UP = auto()


WITHOUT_STREAM: Final = frozenset(
    {PathState.DOWN, PathState.WAITING, PathState.CALL_BACK_REQUESTED}
)

TRANSITIONS: Final[dict[tuple[PathState, PathInput], PathState]] = {
    (PathState.DOWN, PathInput.RECONNECT): PathState.WAITING,
    (PathState.WAITING, PathInput.RECONNECT): PathState.WAITING,
    (PathState.WAITING, PathInput.CONNECT): PathState.CONNECTING,
    (PathState.WAITING, PathInput.REQUEST_CALL_BACK): PathState.CALL_BACK_REQUESTED,
    (PathState.CONNECTING, PathInput.ANSWERED): PathState.DOWN,
    (PathState.CONNECTING, PathInput.ATTACH): PathState.ATTACHED,
    (PathState.CONNECTING, PathInput.GIVE_UP): PathState.CONNECTING,  # its answer is still to come
    # The answer to a call-back request changes nothing once a stream is here or none is wanted.
    **{
        (state, PathInput.ANSWERED): state
        for state in PathState
        if state is not PathState.CONNECTING
    },
    (PathState.CALL_BACK_REQUESTED, PathInput.ANSWERED): PathState.DOWN,
    **{(state, PathInput.ATTACH): PathState.ATTACHED for state in WITHOUT_STREAM},
    (PathState.ATTACHED, PathInput.ATTACH): PathState.ATTACHED,
    (PathState.UP, PathInput.ATTACH): PathState.ATTACHED,
    (PathState.ATTACHED, PathInput.FRAME): PathState.UP,
    (PathState.ATTACHED, PathInput.LOSE): PathState.DOWN,
    (PathState.UP, PathInput.LOSE): PathState.DOWN,
    **{(state, PathInput.GIVE_UP): PathState.DOWN for state in WITHOUT_STREAM},
    (PathState.ATTACHED, PathInput.GIVE_UP): PathState.ATTACHED,
}


def next_state(state: PathState, event: PathInput) -> PathState:
    """Return the state after `event`. Raises LocalProtocolError if it is not allowed."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise LocalProtocolError(f"{event.name} in state {state.name}") from None


@record(frozen=False)
class PathRecord:
    """What the connection knows of one path."""

    index: int
    backoff: Backoff
    state: PathState = PathState.DOWN
    wants_connection: bool = False  # attempts go on until it is up or given up
    wanted: bool = False  # messages wait for it
    attempted_ns: int | None = None  # the last attempt
    attempts: int = 0
    quarantined_until_ns: int = 0  # no attempt before: the peer broke the protocol
    down_ns: int | None = None  # since when it is down, while it is tried for
    attachment: int = 0  # streams so far
    tries: int = 0  # to connect, or to be called back, in the present outage
    since_ns: int | None = None  # when its stream came, came up, or was lost
    # Of the current stream:
    stream: int | None = None
    source_port: int = 0  # the peer's; 0 where this side connected
    hello_sent: bool = False
    probe_sent: bool = False
    held: bool = False  # until `Release`
    # The stream itself shows that the peer is an own node, of whatever generation.
    own: bool = False
    acquainted: bool = False  # the peer was known as an own node when the stream began
    confirmed: bool = False  # the peer showed on this stream that it knows this node

    def move(self, event: PathInput) -> None:
        """Change the state by the table. Raises LocalProtocolError for a missing transition."""
        self.state = next_state(self.state, event)

    def report(self, attempt_at_ns: int | None) -> ConnectionReport:
        """Tell how the path is."""
        state, since_ns = ConnectionState.DOWN, self.since_ns
        if self.state in (PathState.UP, PathState.ATTACHED):
            is_up = self.state is PathState.UP
            state = ConnectionState.UP if is_up else ConnectionState.SILENT
        elif self.down_ns is not None:
            state, since_ns = ConnectionState.CONNECTING, self.down_ns
        return ConnectionReport(state, since_ns, self.tries, attempt_at_ns)

    def begin_stream(self, stream: int, source_port: int, *, own: bool) -> None:
        """Take a stream; what the last one taught about its end is void."""
        self.move(PathInput.ATTACH)
        self.attachment += 1
        self.stream, self.source_port, self.own = stream, source_port, own
        self.hello_sent = self.probe_sent = self.held = False
        self.acquainted = self.confirmed = False

    def end_stream(self) -> None:
        """Forget the stream: it is gone."""
        self.move(PathInput.LOSE)
        self.stream = None
        self.held = self.confirmed = False
