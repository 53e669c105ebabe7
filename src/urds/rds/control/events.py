"""Actions that the control core of TCP asks of its driver, and its notices.

Those of RDMA are in `rdma_events`; `Action`, `Reason` and `Refused` are of both.

Every record names the peer it concerns; `index` is the path's. The driver does actions in the order
in which `poll_event` returns them. One that names no path concerns all that exist then.

A stream is an opaque number that the driver chose when it reported the stream; it names one TCP
connection. The core names it in exactly one `Attach` or `Refuse`; after that the plane has it, or
it is closed.
"""

from enum import Enum, auto

from urds.common.records import record
from urds.common.types import IPAddress
from urds.rds.constants import MAX_MESSAGE_BYTES, Capability
from urds.rds.control.paths import SourcePortRule
from urds.rds.types import AckMode, Hold


class PeerKind(Enum):
    """The kind of a peer; see `docs/architecture.md`, "Kinds of peers"."""

    UNKNOWN = auto()
    LINUX = auto()  # a kernel, or any other node without the mark
    URDS = auto()


class Reason(Enum):
    """Why a connection was refused for good; races and quarantines are only counted."""

    NOT_ALLOWED = auto()  # the peer is not in the allowed networks: setting URDS_ALLOW
    TOO_MANY_PENDING = auto()  # too many connections without a first frame
    TOO_MANY_PEERS = auto()
    NO_DESCRIPTORS_LEFT_TO_SHARE = auto()  # the program needs some itself: `ulimit -n`
    NETWORK_HAS_ITS_SHARE = auto()  # the /64 of an IPv6 peer holds a quarter of all already
    NO_FREE_PATH = auto()  # every path has a stream: the peer tries again
    SILENT = auto()  # no frame within the pending connection's time
    STILL_CONNECTED = auto()  # the peer answers on its present stream: this is another process
    VERSION = auto()  # RDMA: of the protocol
    WRONG_ADDRESS = auto()  # RDMA: the private data names other addresses than the connection


# -- actions


@record
class Action:
    """An action or a notice."""


@record
class PeerAction(Action):
    """What concerns one peer."""

    peer: IPAddress


@record
class PathAction(PeerAction):
    """An action about one path of the peer."""

    index: int


@record
class Connect(PathAction):
    """Open a TCP connection to port 16385 of the peer, from the local address.

    Answer with `handle_connected` or `handle_connect_failed`, once.
    """

    source_ports: SourcePortRule


@record
class RequestCallBack(PeerAction):
    """Open a TCP connection that carries nothing: it asks the lower side to connect.

    Answer with `handle_call_back_requested` once it stands, or `handle_connect_failed` for path 0,
    once. Close it when the peer closes it, or after 1 s.
    """


@record
class Attach(PathAction):
    """Attach a stream to the path; one attached before is superseded."""

    stream: int
    hold: Hold
    probe: bytes | None = None  # extension of a numbered probe that leads what is new


@record
class Refuse(PeerAction):
    """Close a stream with a reset (linger 0), so that no TIME_WAIT stays."""

    stream: int


@record
class Detach(PathAction):
    """Detach the path's stream and close it; no `handle_down` follows."""


@record
class SendControl(PathAction):
    """Queue a ping, pong or probe on the path; `hello` is the plane's: unsequenced, never held.

    A pong is subject to `ping_enable` and to the peer's congestion map: the driver asks both.
    """

    source_port: int
    target_port: int
    extension: bytes  # 16 bytes
    hello: bool


@record
class Release(PathAction):
    """Let the held path send; the peer has everything up to `received_by_peer` (None: unknown)."""

    received_by_peer: int | None


@record
class Agree(PeerAction):
    """Set the result of the handshake on every path."""

    ack_mode: AckMode
    checksum: bool
    message_bytes_max: int = MAX_MESSAGE_BYTES


@record
class RestartPeer(PeerAction):
    """A urds node restarted: every path drops what it sent to the old generation."""


@record
class RememberHandshake(PeerAction):
    """Note a kernel's generation (None: it sends none), so that the plane sees its restart."""

    generation: int | None


@record
class ProbeDeadStream(PathAction):
    """Send the local map: a dead connection answers with a reset, a live one ignores it."""


@record
class FanOut(PeerAction):
    """Make the missing ones of paths 1 to `count` - 1; route by port hash.

    Each is held behind the path that its sockets had.
    """

    count: int


@record
class FanIn(PeerAction):
    """The peer's restart has fewer paths: go on with `count`, and close the others.

    What was never sent moves to the path that its socket has from now on, the oldest first and
    together with the route, so that nothing new overtakes it. The rest was for the old generation,
    and is counted as given up.
    """

    count: int


@record
class GiveUp(PathAction):
    """The path was down for `reconnect_give_up_ns`: drop its queue (`Path.drop_queue`), log it."""

    down_ns: int


@record
class Forget(PeerAction):
    """The connection was evicted, idle for longest: drop the queues, close the paths."""


# -- notices


@record
class PeerKnown(PeerAction):
    """The handshake, or its absence, identified the peer; also sent when that changed."""

    kind: PeerKind
    npaths: int
    capabilities: Capability  # of both sides


@record
class PeerStartedAnew(PeerAction):
    """The peer restarted."""


class LossCause(Enum):
    """Why a path that was up lost its stream, as far as the core knows."""

    ENDED = auto()  # by itself; the driver reported how
    DROPPED = auto()  # by this side
    SUPERSEDED = auto()  # the peer connected anew


@record
class PathUp(PathAction):
    """The peer has sent its first frame on the path's stream: messages flow."""


@record
class PathLost(PathAction):
    """A path that was up has lost its stream."""

    cause: LossCause


@record
class Refused(PeerAction):
    """A connection was refused; the action that ends it came before."""

    reason: Reason
