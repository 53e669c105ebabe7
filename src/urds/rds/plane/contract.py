"""The data-plane contract: what the control plane may ask of a plane, and what a plane reports.

The plane does what happens once per message, packet or octet. It exists twice behind these
protocols: the Python reference (`dataplane.reference`), which is the specification, and a compiled
twin. The control plane (`proto`, `driver`) decides who connects, when, and what a handshake means;
it never sees a message on its way.

Three kinds of objects. A `Plane` is everything of one process. A `Mailbox` is a bound socket:
receive queue, send account, readable descriptor. A `Path` is one ordered stream to a peer; its TCP
connection comes and goes, its numbers and its queue stay. Objects are handles: the plane owns all
state, `close` is explicit and idempotent.

Rules. Any thread may make any call at any time; `help` belongs to one thread. Only `sendto`,
`send`, `recvfrom`, `receive`, `help` and `close` may wait, and `close` wakes them all. What is rare
leaves the plane as an event record out of `help`; the plane calls up once only, `resolve`, in the
thread of the sender. Refusals are `errors.os_error(Refusal.X)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntFlag, auto
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from urds.dataplane.operations import Operation, OperationNotice, OperationNotices
from urds.dataplane.rows import Carrier, MailboxRow, MessageRow, PathRow, RdmaRow, Snapshot

if TYPE_CHECKING:
    from urds.dataplane.carriage import CarriedPath

__all__ = [  # rows and notices are told on, for whoever has the contract from here
    "ALL_GROUPS", "Address", "Agreement", "Buffer", "Carrier", "CongestionNotice", "Control",
    "Down", "DownReason", "Event", "FirstFrame", "Hold", "Interest", "Limits", "LingerOver",
    "Mailbox", "MailboxRow", "MailboxSettings", "Message", "MessageRow", "Notice", "Operation",
    "OperationNotice", "OperationNotices", "Path", "PathRow", "PeerRestarted", "Plane", "RdmaRow",
    "Ready", "Release", "Snapshot", "SocketAddress", "Stream", "Wanted",
]  # fmt: skip

Address = IPv4Address | IPv6Address
SocketAddress = tuple[str, int] | tuple[str, int, int, int]
Buffer = bytes | bytearray | memoryview

ALL_GROUPS = (1 << 64) - 1  # a congestion monitor that watches every port group


class Interest(IntFlag):
    """What `Plane.watch` waits for on a descriptor of the control plane."""

    READ = 1
    WRITE = 4


class Hold(Enum):
    """What a freshly attached path waits for before it sends anything but its congestion map."""

    NOTHING = auto()
    # The lower side towards Linux: TCP accepts and acknowledges before RDS does, so octets sent
    # into a connection that the peer then refuses are lost. Source: linux v6.1, v6.12 (observed).
    FIRST_FRAME = auto()
    # Between own nodes: until `release`, which follows the peer's hello.
    RELEASE = auto()


class Release(Enum):
    """What frees a message of the sender."""

    NOT_YET = auto()  # kind of peer unknown: keep everything
    STREAM_ACKNOWLEDGED = auto()  # Linux: TCP acknowledged the last octet
    PEER_ACKNOWLEDGED = auto()  # own node: the header's acknowledgement field


class DownReason(Enum):
    """Why a path lost its stream."""

    END_OF_STREAM = auto()
    ERROR = auto()  # errno in the event
    TOO_LONG = auto()  # a header announced more than `message_bytes_max`
    BAD_MAP = auto()  # a congestion map that is not 8192 octets (own nodes only; Linux skips it)
    BAD_CHECKSUM = auto()
    BAD_ACKNOWLEDGEMENT = auto()  # acknowledged more than was handed to the stream


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a plane; all octets unless named otherwise."""

    message_bytes_max: int = 1 << 20  # that our sockets may send
    frame_bytes_max: int = 1 << 20  # that a peer may announce; checked before memory is taken
    path_messages_max: int = 65536
    control_events_max: int = 64  # pings and handshakes of a path at once, then
    control_interval_ns: int = 10_000_000  # one in so long: more are dropped
    receive_hard_factor: int = 4
    receive_hard_bytes: int = 16 << 20
    flush_bytes: int = 32768
    acknowledge_messages: int = 256
    acknowledge_bytes: int = 256 << 10
    acknowledge_delay_ns: int = 40_000_000  # as TCP, linux v6.12 include/net/tcp.h TCP_DELACK_MIN
    unacked_packets_max: int = 8  # then ACK_REQUIRED; as net.rds.max_unacked_packets
    unacked_bytes_max: int = 16 << 20
    linger_ns: int = 1_000_000_000  # a closed mailbox's queued messages get this long


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What a handshake found out about a peer, for all of its paths."""

    release: Release
    checksum: bool = False  # every header carries one
    message_bytes_max: int = 1 << 20  # the longest message that both sides take


@dataclass(frozen=True, slots=True)
class MailboxSettings:
    """Everything a socket can change about its mailbox; a change replaces the whole record."""

    send_bytes_max: int = 106_496
    receive_bytes_max: int = 106_496
    send_wait_ns: int | None = None  # None waits for ever, 0 never
    receive_wait_ns: int | None = None
    monitor: bool = False
    monitor_mask: int = ALL_GROUPS  # groups a monitor watches; port p is group p % 64
    timestamps: bool = False
    traces: tuple[int, ...] = ()  # receive-path latency positions, at most three
    tos: int = 0  # type of service of its connections, where the transport knows any
    busy_poll_ns: int = 0  # a receive that waits looks so long without sleep; compiled plane only
    single_account: bool = False  # all destinations in one, as Linux has it


class Message(NamedTuple):
    """A received message with everything recvmsg can tell about it."""

    payload: bytes
    source: SocketAddress
    extension: bytes  # 16 octets, or empty when all of them were zero
    time_ns: int  # wall clock at queueing; 0 without timestamps
    trace: tuple[tuple[int, int], ...]  # (position, nanoseconds); empty unless asked for


@dataclass(frozen=True, slots=True)
class CongestionNotice:
    """Port groups that a congestion map update concerned; delivered without data."""

    groups: int


Notice = OperationNotices | CongestionNotice


@dataclass(frozen=True, slots=True)
class Wanted:
    """The first message was queued while the path has no stream; once per outage."""

    path: Path


@dataclass(frozen=True, slots=True)
class FirstFrame:
    """The peer's first whole header arrived on the current stream.

    Events and calls cross: `attachment` counts the path's streams, to tell which one is meant.
    """

    path: Path
    attachment: int


@dataclass(frozen=True, slots=True)
class Down:
    """The stream ended; the plane read it to its end and closed it."""

    path: Path
    reason: DownReason
    errno: int
    frames: int  # received on this stream; 0: the peer never took the connection
    attachment: int  # see FirstFrame


@dataclass(frozen=True, slots=True)
class Control:
    """A message for the control plane: ping, pong or probe."""

    path: Path
    sequence: int
    acknowledgement: int
    source_port: int
    target_port: int
    extension: bytes
    payload: bytes  # cut at 64 octets
    attachment: int  # see FirstFrame


@dataclass(frozen=True, slots=True)
class PeerRestarted:
    """A Linux peer began a new life (seen before the duplicate rule); our numbers go on."""

    path: Path


@dataclass(frozen=True, slots=True)
class LingerOver:
    """Messages of a closed mailbox were cancelled: their time (`Limits.linger_ns`) is over."""

    path: Path | CarriedPath
    unsent: int  # never written to a stream
    unacknowledged: int  # written: the peer may have them, or not


@dataclass(frozen=True, slots=True)
class Ready:
    """A watched descriptor is ready; the watch is over."""

    descriptor: int
    interest: Interest


Event = Wanted | FirstFrame | Down | Control | PeerRestarted | LingerOver | Ready


class Stream(Protocol):
    """What a path writes to and reads from; `socket.socket` in non-blocking mode is one."""

    def fileno(self) -> int:
        """Return a descriptor that epoll can watch."""

    def recv(self, octets_max: int, /) -> bytes:
        """Read once; b"" at the end. Raises BlockingIOError or OSError."""

    def recv_into(self, memory: memoryview, /) -> int:
        """Read once into memory; return the octets, 0 at the end. Raises as `recv` does."""

    def sendmsg(
        self, buffers: Sequence[Buffer], ancillary: Sequence[Any] = (), flags: int = 0, /
    ) -> int:
        """Write once; return the octets taken. Raises BlockingIOError or OSError.

        Called without ancillary data and with MSG_NOSIGNAL, which only a socket needs.
        """

    def shutdown(self, how: int, /) -> None:
        """End one direction. Raises OSError."""

    def expect(self, octets: int, /) -> None:
        """Be readable only once so many octets are here, or the end is; a hint, 1 ends it."""

    def waiting(self) -> int:
        """Return how many octets `recv` would give, 0 once closed; never raises."""

    def unacknowledged(self) -> int:
        """Return the octets written that the peer's TCP has not acknowledged. Raises OSError."""

    def close(self) -> None:
        """Release the descriptor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What a path knows of its peer's numbers: it tells a repeat from a new message."""

    sequence_expected: int
    floor: int | None  # lowest of the last stream with traffic
    probe_sequence: int | None  # of a kernel's probe
    generation: int | None  # that a kernel told
    life: int | None  # that an own node told in its maps
    watch_restarts: bool  # by its numbers, for a kernel does not always tell


class Path(Protocol):
    """One ordered stream to a peer: numbers, unacknowledged messages, partial frames."""

    local: Address
    peer: Address
    index: int
    attachment: int  # streams so far; see FirstFrame

    def attach(self, stream: Stream, *, hold: Hold) -> None:
        """Take a connected stream: map first, then (once not held) repeats, then new messages.

        A stream attached before is superseded: first it is read until it would block, and closed.
        """

    def detach(self) -> Stream | None:
        """Give the stream back, read until it would block; the queue stays, no Down follows."""

    def release(self, *, received_by_peer: int | None) -> None:
        """End `Hold.RELEASE`; the peer has everything up to `received_by_peer` (None: unknown)."""

    def agree(self, agreement: Agreement) -> None:
        """Set what a handshake found out about the peer."""

    def restart_peer(self) -> int:
        """Begin a new life of the peer: drop what its old life was handed; return how many."""

    def remember_handshake(self, generation: int | None) -> None:
        """Note the peer's generation: a kernel's later probe with another one is its restart."""

    def control(
        self, *, source_port: int, target_port: int, extension: bytes, hello: bool = False
    ) -> None:
        """Queue a ping, pong or probe: behind repeats, ahead of new messages.

        A hello is not sequenced (number 0), tells our highest received number in the
        acknowledgement field, and goes out once the peer's first frame came, held or not.
        """

    def poke(self) -> None:
        """Queue a map: a dead connection answers with a reset, a live one ignores it."""

    def peer_is_congested(self, port: int) -> bool:
        """Tell whether the peer's map in force marks a port: a pong to it is kept back."""

    def hold_behind(self, other: Path | None) -> None:
        """Hold new messages until `other` delivered what it has queued now; None: until told."""

    def holds_messages(self) -> bool:
        """Tell whether messages of sockets are queued or unacknowledged."""

    def has_delivered(self) -> bool:
        """Tell whether a message of the peer ever reached a socket here."""

    def drop_queue(self) -> int:
        """Drop every queued and unacknowledged message (they count as given up); return how many.

        Each mailbox that lost one gets EHOSTUNREACH from its next send, once.
        """

    def close(self) -> None:
        """Forget the path; its stream is closed."""


class Mailbox(Protocol):
    """A bound socket."""

    local: Address
    port: int
    settings: MailboxSettings  # in force; `configure` replaces it

    @property
    def has_route(self) -> bool:
        """Whether it has a way to any peer: what belongs to connections is settled then."""

    def sendto(
        self,
        payload: Buffer,
        flags_or_address: int | SocketAddress,
        address: SocketAddress | None = None,
        /,
    ) -> int:
        """Queue one message, as `socket.socket.sendto`; return its length.

        What is not `bytes`, nor a view of such, is copied.
        """

    def recvfrom(self, payload_bytes_max: int, flags: int = 0, /) -> tuple[bytes, SocketAddress]:
        """Take one message, as `socket.socket.recvfrom`; an excess is discarded."""

    def send(
        self,
        buffers: Sequence[Buffer],
        address: SocketAddress,
        *,
        wait_ns: int | None,
        extension: bytes = b"",
        operations: Sequence[Operation] = (),
        copy: bool = True,
    ) -> int:
        """Queue one message gathered from `buffers`; `wait_ns` None waits for ever, 0 never.

        Its operations are done before it leaves. Without `copy` one long buffer is kept by
        reference until it is acknowledged. Raises EOPNOTSUPP if its path knows none.
        """

    def receive(
        self, *, wait_ns: int | None, peek: bool = False, notices_max: int = 1
    ) -> Message | Notice | None:
        """Take (or look at) what is next; None when nothing came in `wait_ns`.

        First come notices of operations, up to `notices_max` at once, then a congestion notice,
        then messages. A look takes notices as well: kernel parity.
        """

    def wait_operation(self, operation: Operation, wait_ns: int | None) -> bool:
        """Wait until an operation has ended; return whether it has. Raises EBADF once closed."""

    def route(self, peer: Address, path: Path | CarriedPath | None) -> None:
        """Say which path leads to `peer`; None forgets it, so that the next send resolves again."""

    def subscribe(
        self,
        callback: Callable[[], None],
        *,
        room: bool,
        address: SocketAddress | None = None,
    ) -> Callable[[], None]:
        """Have `callback` called once, from any thread, when a message or room may be there.

        For a message that is there already it is called at once; for room subscribe first, then
        look. With an `address` whose peer was refused for want of room it waits for room for that
        peer alone. Return what cancels it; once called, that passes the call on to the next who
        waits.
        """

    def configure(self, settings: MailboxSettings) -> None:
        """Replace the settings; waiters and the descriptor see the change."""

    def cancel(self, peer: Address | None, port: int | None) -> int:
        """Remove unacknowledged messages to that address and port, or all; return how many."""

    def unacknowledged(self) -> int:
        """Return how many messages wait to be sent or acknowledged."""

    def fileno(self) -> int:
        """Return a descriptor whose readiness is that of the socket; made on the first call."""

    def close(self, linger_ns: int | None = None) -> None:
        """Unbind. Queued messages have `linger_ns` to be acknowledged, then they are cancelled.

        0 cancels at once; None gives them `Limits.linger_ns` in the background.
        """


class Plane(Protocol):
    """All of a process, whose life is `generation`: told in the header of maps, if not None."""

    tails: bool  # perhaps a message waits for others to join it; `pump` sends it

    def __init__(
        self,
        *,
        limits: Limits,
        resolve: Callable[[Mailbox, Address], None],
        clock_ns: Callable[[], int] | None = None,
        generation: int | None = None,
    ) -> None: ...

    def mailbox(self, *, local: Address, port: int, settings: MailboxSettings) -> Mailbox:
        """Bind; the caller has checked that the port is free."""

    def path(self, *, local: Address, peer: Address, index: int, sequence_first: int) -> Path:
        """Make a path without a stream; its first message gets `sequence_first`."""

    def received(self, path: Path) -> Received:
        """Return what a path knows of its peer's numbers, for one that is made later."""

    def expect(self, path: Path, received: Received) -> None:
        """Have a path without a first stream go on where an earlier one to the peer ended."""

    def loop(self, *, local: Address, peer: Address) -> Path:
        """Make a path between two addresses of this process, without a stream."""

    def watch(self, descriptor: int, interest: Interest) -> None:
        """Report `Ready` once for a listener or a connecting socket."""

    def unwatch(self, descriptor: int) -> None:
        """Stop watching; the descriptor may then be closed."""

    def help(self, deadline_ns: int | None) -> list[Event]:
        """Do what no application thread does; return events, or [] at the deadline.

        The deadline is on the plane's clock; one in the past makes one pass and never blocks.
        """

    def wake(self) -> None:
        """Make `help` return early."""

    def adopt(self) -> None:
        """Promise, as an event loop, to `pump` whenever `fileno()` is readable."""

    def abandon(self) -> None:
        """End one `adopt`; takes no lock, for a loop may end in a finaliser."""

    def pump(self) -> int:
        """Make one pass without blocking; return how many descriptors were served."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when `pump` would read something."""

    def is_inside(self) -> bool:
        """Tell whether the calling thread holds a lock of the plane.

        Then what calls is a signal handler or finaliser that interrupted another call. It may
        close, ask for the descriptor and configure; the rest raises OSError (EDEADLK).
        """

    def snapshot(self) -> Snapshot:
        """Return counters and tables."""

    def drain(self, drain_ns: int) -> int:
        """Send what is queued, with the control plane at work; return the messages left."""

    def end_streams(self) -> None:
        """End the streams in order and wake no call: the process ends. Sockets stay as they are."""

    def close(self, drain_ns: int) -> int:
        """Drain for at most `drain_ns`, end the streams, wake all; return messages left."""

    def fail(self) -> None:
        """Refuse everything with EIO from now on and wake all: the control plane failed."""

    def release(self) -> None:
        """Close the plane's own descriptors; after `close`, with nobody in `help`."""

    def abandon_in_child(self) -> None:
        """After a fork, in the child: refuse everything; take no lock, leave the parent's alone."""
