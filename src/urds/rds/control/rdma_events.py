"""Actions that the control core of RDMA asks of its shell, and its notices.

The shell does actions in the order in which `poll_event` returns them. A connection has a number:
`next_number` drew it for an attempt of this side, the shell for a request of the peer.

A number named by `Connect` or `Accept` is ended by exactly one `Abandon` or `Detach`, whatever
happened to it: there the shell releases what it took for it. One of a request alone is answered by
exactly one `Accept` or `Reject`. Reports about a number that has ended are ignored.
"""

from enum import Enum, auto

from urds.common.named_tuples import NamedTuple
from urds.common.records import record
from urds.common.types import IPAddress
from urds.rds.control.events import Action
from urds.rds.wire.frame_format import FrameFormat


class PeerKey(NamedTuple):
    """The peer of a connection: there is one for each address and type of service."""

    peer: IPAddress
    tos: int
    passive: bool = False  # the accepting end of a connection to the same node


class Failure(Enum):
    """How an attempt, or an answer to a request, ended without a connection."""

    REJECTED = auto()  # by RDS, with private data
    REFUSED = auto()  # the peer does not listen
    UNREACHABLE = auto()
    ERROR = auto()


# -- actions


@record
class KeyAction(Action):
    """What concerns one peer."""

    key: PeerKey


@record
class ConnectionAction(KeyAction):
    """What concerns one connection to a peer, attempted or requested."""

    number: int


@record
class Connect(ConnectionAction):
    """Ask the peer for a connection, with the private data of `offer`.

    Answer with `handle_established` or `handle_failed`, once, unless `Abandon` comes first.
    """


@record
class Accept(ConnectionAction):
    """Accept the peer's request, with the private data of `offer`; answered as `Connect` is."""


@record
class Reject(Action):
    """Reject the request."""

    number: int
    private_data: bytes


@record
class Attach(ConnectionAction):
    """Attach the established connection to the path; there is no other then."""

    acknowledged: int  # the highest own number that this generation of the peer has; 0: none
    credits: int  # 0: no flow control
    is_urds_peer: bool
    frame_format: FrameFormat = FrameFormat.SHORT  # the newest that both sides take


@record
class Detach(ConnectionAction):
    """Detach the connection from the path, unless it is gone, and close it.

    If the path still holds messages then, answer with `handle_wanted`.
    """


@record
class Abandon(ConnectionAction):
    """Close what was never established: an attempt, or an accepted request."""


@record
class RestartPeer(KeyAction):
    """The peer restarted: drop what was sent to the old generation, forget its numbers."""


@record
class GiveUp(KeyAction):
    """There was no connection for `reconnect_give_up_ns`: drop all messages, log it."""

    down_ns: int


@record
class Forget(KeyAction):
    """The peer was evicted, idle for longest: drop its messages, close its path."""


# -- notices


@record
class PeerKnown(KeyAction):
    """The private data identified the peer; also sent when that changed."""

    is_urds_peer: bool
    version: tuple[int, int]
