"""The life of a path, as a table. What is not in it cannot happen.

    DOWN        no stream, and nobody looks for one
    WAITING     no stream; the next attempt has its time, or waits for path 0
    CONNECTING  lower side: a `Connect` is out
    KNOCKING    higher side: a `Knock` is out
    ATTACHED    a stream, but no frame of the peer yet: TCP accepts before RDS does
    UP          the peer spoke on this stream

Only the lower side leaves CONNECTING, only the higher side knocks and accepts. An accepted stream
supersedes whatever was there. `Connect` and `Knock` are answered exactly once, even after the path
was given up; the answer to a knock may come when its purpose is long fulfilled.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from urds.errors import LocalProtocolError
from urds.proto.backoff import Backoff


class State(Enum):
    """Where a path stands."""

    DOWN = auto()
    WAITING = auto()
    CONNECTING = auto()
    KNOCKING = auto()
    ATTACHED = auto()
    UP = auto()


class Input(Enum):
    """What moves a path."""

    SEEK = auto()  # somebody wants a stream
    CONNECT = auto()
    KNOCK = auto()
    ANSWERED = auto()  # the attempt ended without a stream
    ATTACH = auto()
    FRAME = auto()
    LOSE = auto()
    GIVE_UP = auto()


WITHOUT_STREAM: Final = frozenset({State.DOWN, State.WAITING, State.KNOCKING})

TRANSITIONS: Final[dict[tuple[State, Input], State]] = {
    (State.DOWN, Input.SEEK): State.WAITING,
    (State.WAITING, Input.SEEK): State.WAITING,
    (State.WAITING, Input.CONNECT): State.CONNECTING,
    (State.WAITING, Input.KNOCK): State.KNOCKING,
    (State.CONNECTING, Input.ANSWERED): State.DOWN,
    (State.CONNECTING, Input.ATTACH): State.ATTACHED,
    (State.CONNECTING, Input.GIVE_UP): State.CONNECTING,  # its answer is still to come
    # The answer to a knock decides nothing once a stream is here or nobody looks for one.
    **{(state, Input.ANSWERED): state for state in State if state is not State.CONNECTING},
    (State.KNOCKING, Input.ANSWERED): State.DOWN,
    **{(state, Input.ATTACH): State.ATTACHED for state in WITHOUT_STREAM},
    (State.ATTACHED, Input.ATTACH): State.ATTACHED,
    (State.UP, Input.ATTACH): State.ATTACHED,
    (State.ATTACHED, Input.FRAME): State.UP,
    (State.ATTACHED, Input.LOSE): State.DOWN,
    (State.UP, Input.LOSE): State.DOWN,
    **{(state, Input.GIVE_UP): State.DOWN for state in WITHOUT_STREAM},
    (State.ATTACHED, Input.GIVE_UP): State.ATTACHED,
}


def next_state(state: State, event: Input) -> State:
    """Return the state after `event`. Raises LocalProtocolError if it is not allowed."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise LocalProtocolError(f"{event.name} in state {state.name}") from None


@dataclass(slots=True)
class PathLife:
    """What the connection knows of one path."""

    index: int
    backoff: Backoff
    state: State = State.DOWN
    sought: bool = False  # attempts go on until it is up or given up
    wanted: bool = False  # messages of ours wait for it
    attempted_ns: int | None = None  # the last attempt
    attempts: int = 0
    rest_until_ns: int = 0  # no attempt before: the peer broke the protocol
    down_ns: int | None = None  # since when it is down, while it is sought
    attachment: int = 0  # streams so far
    # Of the current stream:
    stream: int | None = None
    source_port: int = 0  # the peer's; 0 where we connected
    hello_sent: bool = False
    probe_sent: bool = False
    held: bool = False  # until `Release`
    own: bool = False  # the stream itself shows that the peer is an own node, of whatever life
    acquainted: bool = False  # we knew the peer for an own node when the stream began
    confirmed: bool = False  # the peer showed on this stream that it knows our handshake

    def move(self, event: Input) -> None:
        """Follow the table. Raises LocalProtocolError if it has no such line."""
        self.state = next_state(self.state, event)

    def begin_stream(self, stream: int, source_port: int, *, own: bool) -> None:
        """Take a stream; what the last one taught about its end is void."""
        self.move(Input.ATTACH)
        self.attachment += 1
        self.stream, self.source_port, self.own = stream, source_port, own
        self.hello_sent = self.probe_sent = self.held = False
        self.acquainted = self.confirmed = False

    def end_stream(self) -> None:
        """Forget the stream: it is gone."""
        self.move(Input.LOSE)
        self.stream = None
        self.held = self.confirmed = False
