"""What the control core asks its driver to do, and what it tells.

Every record names the peer it concerns; `index` is the path's. The driver carries actions out in
the order in which `poll_event` gives them. One that names no path concerns all that exist then.

A stream is an opaque number that the driver chose when it reported the stream; it stands for one
TCP connection. The core names it in exactly one `Attach` or `Refuse`; after that it is the plane's,
or closed.
"""

from dataclasses import dataclass
from enum import Enum, auto

from urds.constants import MAX_MESSAGE_BYTES, Capability
from urds.proto.paths import Address, SourcePortRule


class PeerKind(Enum):
    """Who the peer is; see `docs/architecture.md`, "Two kinds of peer"."""

    UNKNOWN = auto()
    LINUX = auto()  # a kernel, or anything else without our mark
    URDS = auto()


class Hold(Enum):
    """What a freshly attached stream waits for; the data plane's enum of the same name."""

    NOTHING = auto()
    FIRST_FRAME = auto()
    RELEASE = auto()


class ReleaseRule(Enum):
    """What frees a message of the sender; `Release` of the data plane."""

    NOT_YET = auto()
    STREAM_ACKNOWLEDGED = auto()
    PEER_ACKNOWLEDGED = auto()


class Reason(Enum):
    """Why an inbound connection was refused."""

    NOT_ALLOWED = auto()  # the peer is not in the allowed networks: setting URDS_ALLOW
    TOO_MANY_STRANGERS = auto()  # too many connections that have not said anything yet
    TOO_MANY_PEERS = auto()
    NO_DESCRIPTORS_LEFT_TO_SHARE = auto()  # the program needs some itself: `ulimit -n`
    NETWORK_HAS_ITS_SHARE = auto()  # the /64 of an IPv6 peer holds a quarter of all already
    NO_FREE_PATH = auto()  # every path has a stream: the peer tries again
    SILENT = auto()  # no frame within the stranger's time
    STILL_CONNECTED = auto()  # the peer answers on the stream that it has: this is another process


# -- actions


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a TCP connection to port 16385 of the peer, from the local address.

    Answer with `handle_connected` or `handle_connect_failed`, once.
    """

    peer: Address
    index: int
    source_ports: SourcePortRule


@dataclass(frozen=True, slots=True)
class Knock:
    """Open a TCP connection that carries nothing: it asks the lower side to connect.

    Answer with `handle_knocked` once it stands, or `handle_connect_failed` for path 0, once. Close
    it when the peer closes it, or after 1 s.
    """

    peer: Address


@dataclass(frozen=True, slots=True)
class Attach:
    """Hand a stream to the path; one attached before is superseded."""

    peer: Address
    index: int
    stream: int
    hold: Hold


@dataclass(frozen=True, slots=True)
class Refuse:
    """Close a stream with a reset (linger 0), so that no TIME_WAIT stays."""

    peer: Address
    stream: int


@dataclass(frozen=True, slots=True)
class Detach:
    """Take the path's stream away and close it; no `handle_down` follows."""

    peer: Address
    index: int


@dataclass(frozen=True, slots=True)
class SendControl:
    """Queue a ping, pong or probe on the path; `hello` is the plane's: unsequenced, never held.

    A pong is subject to `ping_enable` and to the peer's congestion map: the driver asks both.
    """

    peer: Address
    index: int
    source_port: int
    target_port: int
    extension: bytes  # 16 octets
    hello: bool


@dataclass(frozen=True, slots=True)
class Release:
    """Let the held path send; the peer has everything up to `received_by_peer` (None: unknown)."""

    peer: Address
    index: int
    received_by_peer: int | None


@dataclass(frozen=True, slots=True)
class Agree:
    """Set what the handshake found out, on every path."""

    peer: Address
    release: ReleaseRule
    checksum: bool
    message_bytes_max: int = MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class RestartPeer:
    """An own node began a new life: every path drops what the old life was handed."""

    peer: Address


@dataclass(frozen=True, slots=True)
class RememberHandshake:
    """Note a kernel's generation (None: it sends none), so that the plane sees its restart."""

    peer: Address
    generation: int | None


@dataclass(frozen=True, slots=True)
class Poke:
    """Send our congestion map: a dead connection answers with a reset, a live one ignores it."""

    peer: Address
    index: int


@dataclass(frozen=True, slots=True)
class FanOut:
    """Make the missing ones of paths 1 to `count` - 1, held behind path 0; route by port hash."""

    peer: Address
    count: int


@dataclass(frozen=True, slots=True)
class FanIn:
    """The peer's new life has fewer paths: route to `count` paths; give up and close the others.

    What their queues hold was meant for the old life. It is counted as given up; routes come first,
    so that nothing new strands.
    """

    peer: Address
    count: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The path was down for `reconnect_give_up_ns`: drop its queue (`Path.drop_queue`), log it."""

    peer: Address
    index: int
    down_ns: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The connection was evicted, idle for longest: drop the queues, close the paths."""

    peer: Address


# -- notices


@dataclass(frozen=True, slots=True)
class PeerKnown:
    """The handshake told who the peer is, or silence did; also when that changed."""

    peer: Address
    kind: PeerKind
    npaths: int
    capabilities: Capability  # of both sides


@dataclass(frozen=True, slots=True)
class PeerStartedAnew:
    """The peer restarted. Generations are None for a kernel that sends none."""

    peer: Address
    generation_before: int | None
    generation: int | None


@dataclass(frozen=True, slots=True)
class Refused:
    """An inbound connection was refused; the `Refuse` or `Detach` came before."""

    peer: Address
    reason: Reason


Action = (
    Connect
    | Knock
    | Attach
    | Refuse
    | Detach
    | SendControl
    | Release
    | Agree
    | RestartPeer
    | RememberHandshake
    | Poke
    | FanOut
    | FanIn
    | GiveUp
    | Forget
    | PeerKnown
    | PeerStartedAnew
    | Refused
)
