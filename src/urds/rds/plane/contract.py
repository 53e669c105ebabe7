"""The data-plane contract: what the control plane asks of a plane, and what a plane reports.

The plane does what happens once per message, packet or byte. It exists twice behind these
protocols: the Python plane (`rds.plane.python`), which is the specification, and the compiled
plane. The control plane (`rds.control`, `rds.runtime`) decides which peer to connect, when, and
what a handshake means; it never sees a message in transit.

Four kinds of objects. A `Plane` is everything of one process. A `Mailbox` is a bound socket:
receive queue, send account, readable descriptor. A `Path` is one ordered stream to a peer; its TCP
connection comes and goes, its numbers and its queue stay. An `ExternalPath` is the plane's part of
a path that a message transport has (`message_transport`). Objects are handles: the plane owns all
state, `close` is explicit and idempotent.

Rules. Any thread may make any call at any time; `help` belongs to one thread. Only calls that send
or receive, `help` and `close` may wait, and `close` wakes them all. Rare events leave the plane as
event records returned by `help`; the plane calls up once only, `resolve`, in the sender's thread.
Errors are `errors.os_error(ErrorReason.X)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, IntFlag, StrEnum, auto
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any, Final, Protocol

from urds.common.named_tuples import NamedTuple
from urds.common.records import field, record
from urds.common.types import IPAddress
from urds.rds.constants import RdmaStatus
from urds.rds.types import AckMode, Hold

if TYPE_CHECKING:
    from urds.rds.plane.message_transport import ExternalPath, MessageTransport

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
Buffer = bytes | bytearray | memoryview

ALL_GROUPS = (1 << 64) - 1  # a congestion monitor that watches every port group
_NO_GID: Final = IPv6Address(0)


class Carrier(StrEnum):
    """The transport of a path, by Linux's name."""

    TCP = "tcp"
    SHARED_MEMORY = "shm"  # urds only: a path over TCP whose stream is in shared memory
    RDMA = "infiniband"  # also without InfiniBand hardware: kernel parity


class MessageRow(NamedTuple):
    """One queued message, as rds-info lists it."""

    sequence: int  # 0 before it is numbered
    payload_bytes: int
    local: IPAddress
    local_port: int
    peer: IPAddress
    peer_port: int
    tos: int = 0


@record
class MailboxRow:
    """One bound socket, as rds-info lists it."""

    local: IPAddress
    port: int
    send_bytes_max: int
    receive_bytes_max: int
    send_queued_bytes: int
    receive_queued_bytes: int
    receive_queued_messages: int
    congested: bool
    inode: int


@record
class RdmaRow:
    """The RDMA part of a path's row; all zeros while it has no connection."""

    is_passive: bool = False  # the accepting end of a connection to itself, which Linux hides
    device: str = ""  # the local one
    service_level: int = 0
    local_gid: IPv6Address = _NO_GID
    peer_gid: IPv6Address = _NO_GID
    send_requests_max: int = 0
    receive_requests_max: int = 0
    send_segments_max: int = 0
    regions_max: int = 0
    region_pages_max: int = 0


@record
class ConnectionFacts:
    """Why a path is up or not, and for how long; seconds are counted back from the snapshot."""

    state: str  # a `ConnectionState`
    state_s: float | None  # for how long; None: it was never anything else
    attempts: int  # to connect, in the present outage
    next_attempt_s: float | None  # from now
    last_error: str  # why an attempt failed or the connection ended last; "" if none did
    last_error_s: float | None
    last_received_s: float | None  # to within a second, as is the next one
    oldest_unacknowledged_s: float | None  # at least so long ago; None without such a message


@record
class PathRow:
    """One path, as rds-info lists its connection and transport."""

    local: IPAddress
    peer: IPAddress
    index: int
    transport: Carrier
    tos: int
    up: bool
    sending: bool
    held: bool
    sequence_next: int
    sequence_expected: int
    unsent_messages: int
    unacknowledged_messages: int
    local_stream: tuple[str, int] | None  # TCP address of the local end
    peer_stream: tuple[str, int] | None
    header_remaining_bytes: int
    data_remaining_bytes: int
    stream_sent_bytes: int
    stream_expected_bytes: int
    stream_acknowledged_bytes: int
    rdma: RdmaRow | None = None  # of `Carrier.RDMA`
    connection: ConnectionFacts | None = None  # what the control plane adds

    @property
    def is_listed(self) -> bool:
        """Whether Linux lists its connection: path 0, and not a passive end."""
        return not self.index and (self.rdma is None or not self.rdma.is_passive)


@record
class Snapshot:
    """Counters and tables of a plane; consistent per object, not over all."""

    counters: Mapping[str, int]
    mailboxes: Sequence[MailboxRow]
    paths: Sequence[PathRow]
    send_queue: Sequence[MessageRow] = field(default=())
    retransmit_queue: Sequence[MessageRow] = field(default=())
    receive_queue: Sequence[MessageRow] = field(default=())
    rdma_in_use: bool = False  # a socket of this process used it, even if closed now


@record(frozen=False, eq=False, kw_only=True)
class Operation:
    """Fields of every RDMA and atomic operation, as a socket hands it to a transport.

    An operation belongs to one message: it completes before the message leaves, on the same
    connection, so that its bytes are in place when the message arrives. It ends exactly once: the
    transport sets `status` and calls `Mailbox.note_operation` of the sender's mailbox. The socket
    creates it and has checked every limit. Source: rds-rdma(7); docs/reference/rds.md 4.3 (linux
    v6.12 net/rds/rdma.c).
    """

    key: int  # the peer's r_key: lower half of its cookie
    remote_address: int  # within that region: the requested address plus the cookie's offset
    token: int = 0  # the application's, returned with the status
    notify: bool = False  # NOTIFY_ME: a notice at the end, whatever the status
    report_failure: bool = False  # RDS_RECVERR: a notice of a failure, also without NOTIFY_ME
    silent: bool = False  # without payload and cookie no message follows
    fence: bool = False  # the message waits for this read
    status: RdmaStatus | None = None  # None while it has not ended

    @property
    def wants_notice(self) -> bool:
        """Whether its present status makes a notice for the application."""
        return self.notify or (self.report_failure and bool(self.status))


@record(frozen=False, eq=False, kw_only=True)
class RdmaTransfer(Operation):
    """Move bytes between local memory and one region of the peer."""

    is_write: bool  # to the peer; else from it
    pieces: tuple[memoryview, ...]  # local, of bytes, in order; writable for a read

    @property
    def payload_bytes(self) -> int:
        """Bytes to move."""
        return sum(len(piece) for piece in self.pieces)


@record(frozen=False, eq=False, kw_only=True)
class AtomicOperation(Operation):
    """Fetch and add, or compare and swap, on eight bytes of the peer; 64-bit operands.

    An add with a no-carry mask adds within fields whose highest bits the mask sets; 0 is plain. A
    compare uses the bits of `compare_mask` and swaps those of `swap_mask`; all ones is plain.
    """

    is_compare: bool
    operand: int  # what is added, or compared
    swap: int = 0
    no_carry_mask: int = 0
    compare_mask: int = (1 << 64) - 1
    swap_mask: int = (1 << 64) - 1
    result: memoryview  # eight writable bytes: the old value, in host order


class OperationNotice(NamedTuple):
    """How an operation ended, for an application that requested a notice."""

    token: int
    status: RdmaStatus


class OperationNotices(tuple[OperationNotice, ...]):
    """The notices of one receive: a tuple, in the order in which the operations ended."""

    __slots__ = ()


class Interest(IntFlag):
    """What `Plane.watch` waits for on a descriptor of the control plane."""

    READ = 1
    WRITE = 4


class DownReason(Enum):
    """Why a path lost its stream."""

    END_OF_STREAM = auto()
    ERROR = auto()  # errno in the event
    TOO_LONG = auto()  # a header announced more than `message_bytes_max`
    BAD_MAP = auto()  # a congestion map that is not 8192 bytes (urds nodes only; Linux skips it)
    BAD_CHECKSUM = auto()
    BAD_ACKNOWLEDGEMENT = auto()  # acknowledged more than was sent on the stream


@record
class Limits:
    """Limits of a plane, in bytes unless named otherwise."""

    message_bytes_max: int = 1 << 20  # that sockets of this node may send
    frame_bytes_max: int = 1 << 20  # that a peer may announce; checked before memory is allocated
    path_messages_max: int = 65536
    control_events_max: int = 64  # pings and handshakes of a path at once, then
    control_interval_ns: int = 10_000_000  # one per interval; the rest are dropped
    receive_hard_factor: int = 4
    receive_hard_bytes: int = 16 << 20
    flush_bytes: int = 32768
    # Between urds nodes a header acknowledges. Without one to send, a frame does: at once when the
    # peer asks (ACK_REQUIRED) or one of these two is reached, else after the delay
    # (`receiver`, `path`). native/crates/path/src/limits.rs has the same figures.
    acknowledge_messages: int = 256
    acknowledge_bytes: int = 256 << 10
    acknowledge_delay_ns: int = 200_000_000  # linux v6.12 include/net/tcp.h TCP_DELACK_MAX
    unacked_packets_max: int = 8  # then ACK_REQUIRED; as net.rds.max_unacked_packets
    unacked_bytes_max: int = 16 << 20
    linger_ns: int = 1_000_000_000  # how long a closed mailbox's queued messages are kept


@record(kw_only=True)
class Agreement:
    """Result of a handshake with a peer, for all of its paths."""

    ack_mode: AckMode
    checksum: bool = False  # every header carries one
    message_bytes_max: int = 1 << 20  # the longest message that both sides accept


@record
class MailboxSettings:
    """Every mailbox setting that a socket can change; a change replaces the whole record."""

    send_bytes_max: int = 106_496
    receive_bytes_max: int = 106_496
    send_wait_ns: int | None = None  # None waits without limit, 0 never waits
    receive_wait_ns: int | None = None
    monitor: bool = False
    monitor_mask: int = ALL_GROUPS  # groups a monitor watches; port p is group p % 64
    timestamps: bool = False
    traces: tuple[int, ...] = ()  # receive-path latency positions, at most three
    tos: int = 0  # type of service of its connections, if the transport has any
    busy_poll_ns: int = 0  # how long a waiting receive polls before it sleeps; compiled plane only
    single_account: bool = False  # one account for all destinations, as in Linux


class Message(NamedTuple):
    """A received message with everything recvmsg can report about it."""

    payload: bytes
    source: SocketAddress
    extension: bytes  # 16 bytes, or empty if all are zero
    time_ns: int  # wall clock at queueing; 0 without timestamps
    trace: tuple[tuple[int, int], ...]  # (position, nanoseconds); empty unless requested


@record
class CongestionNotice:
    """Port groups changed by a congestion map update; delivered without data."""

    groups: int


Notice = OperationNotices | CongestionNotice


@record
class ConnectWanted:
    """The first message was queued while the path has no stream; once per outage."""

    path: Path


@record
class FirstFrame:
    """The peer's first whole frame arrived on the current stream.

    Events and calls cross: `attachment` counts the path's streams and identifies the one meant.
    """

    path: Path
    attachment: int
    generation: int | None  # by a map, on this stream or an earlier one: the peer is a urds node


@record
class Down:
    """The stream ended; the plane read it to its end and closed it."""

    path: Path
    reason: DownReason
    errno: int
    frames: int  # received on this stream; 0: the peer never accepted the connection
    attachment: int  # see FirstFrame


@record
class Control:
    """A message for the control plane: ping, pong or probe."""

    path: Path
    sequence: int
    acknowledgement: int
    source_port: int
    target_port: int
    extension: bytes
    payload: bytes  # truncated to 64 bytes
    attachment: int  # see FirstFrame


@record
class PeerRestarted:
    """A Linux peer restarted (detected before the duplicate rule); local numbers continue."""

    path: Path


@record
class LingerOver:
    """Messages of a closed mailbox were cancelled after `Limits.linger_ns`."""

    path: Path | ExternalPath
    unsent: int  # never written to a stream
    unacknowledged: int  # written: the peer may have them


@record
class LocalMapChanged:
    """The congestion map of a local address changed: its message transports send it."""

    local: IPAddress


@record
class Resumed:
    """A mailbox that had paused a message transport's path is at half of its hard bound."""

    path: ExternalPath


@record
class GiveUp:
    """A mailbox's messages to an absent peer are to be dropped, to make room for others."""

    path: ExternalPath
    mailbox: Mailbox


@record
class LingerEnded:
    """The linger time of a closed mailbox is over: what it still has on a path is cancelled."""

    path: ExternalPath
    mailbox: Mailbox


@record
class Left:
    """The last descriptor of an attached mailbox was closed: its program closed it, or ended."""

    mailbox: Mailbox


@record
class ClientError:
    """The program of an attached mailbox wrote into their memory what makes no sense."""

    mailbox: Mailbox
    what: str


@record
class RouteWanted:
    """A program goes on with a route that was removed; its messages wait until there is one."""

    mailbox: Mailbox
    peer: IPAddress


@record
class Ready:
    """A watched descriptor is ready; the watch has ended."""

    descriptor: int
    interest: Interest


OfTransport = LocalMapChanged | Resumed | GiveUp | LingerEnded
OfClient = Left | ClientError | RouteWanted  # of mailboxes whose program is another process
OfPath = ConnectWanted | FirstFrame | Down | Control | PeerRestarted
Event = OfPath | LingerOver | Ready | OfTransport | OfClient


class Stream(Protocol):
    """What a path writes to and reads from; a non-blocking `socket.socket` is one."""

    def fileno(self) -> int:
        """Return a descriptor that epoll can watch."""

    def recv(self, bytes_max: int, /) -> bytes:
        """Read once; b"" at the end. Raises BlockingIOError or OSError."""

    def recv_into(self, memory: memoryview, /) -> int:
        """Read once into memory; return the bytes, 0 at the end. Raises as `recv`."""

    def sendmsg(
        self, buffers: Sequence[Buffer], ancillary: Sequence[Any] = (), flags: int = 0, /
    ) -> int:
        """Write once; return the bytes taken. Raises BlockingIOError or OSError.

        Called without ancillary data and with MSG_NOSIGNAL, which only a socket needs.
        """

    def shutdown(self, how: int, /) -> None:
        """End one direction. Raises OSError."""

    def expect(self, byte_count: int, /) -> None:
        """Be readable only at so many bytes or at the end; a hint, 1 ends it."""

    def waiting(self) -> int:
        """Return how many bytes `recv` would return, 0 once closed; never raises."""

    def unacknowledged(self) -> int:
        """Return the bytes written that the peer's TCP has not acknowledged. Raises OSError."""

    def close(self) -> None:
        """Release the descriptor."""


@record(kw_only=True)
class Received:
    """The peer's numbers on a path: they tell a retransmission from a new message."""

    sequence_expected: int
    floor: int | None  # lowest of the last stream with traffic
    probe_sequence: int | None  # of a kernel's probe
    generation: int | None  # the kernel's generation
    map_generation: int | None  # the generation in a urds node's maps
    watch_restarts: bool  # by its numbers, since a kernel does not always send its generation


class PathActivity(NamedTuple):
    """How far a path is; two looks show what has moved between them."""

    received: int  # changes with what the peer sends, and with its stream
    oldest_unacknowledged: int | None  # number of a message that was sent; None without one
    sequence_next: int


class Path(Protocol):
    """One ordered stream to a peer: numbers, unacknowledged messages, partial frames."""

    local: IPAddress
    peer: IPAddress
    index: int
    attachment: int  # streams so far; see FirstFrame

    def attach(self, stream: Stream, *, hold: Hold, probe: bytes | None = None) -> None:
        """Attach a connected stream: map first, then (once not held) retransmissions, new messages.

        A numbered probe with the extension `probe` (16 bytes) goes ahead of the new messages.
        An attached stream is superseded: it is read until it would block, then closed.
        """

    def detach(self) -> Stream | None:
        """Return the stream, read until it would block; the queue stays, no Down follows."""

    def end_hold(self, *, received_by_peer: int | None) -> None:
        """End `Hold.HELLO`; the peer has everything up to `received_by_peer` (None: unknown)."""

    def agree(self, agreement: Agreement) -> None:
        """Set what the handshake agreed with the peer."""

    def restart_peer(self) -> int:
        """Note the peer's restart: drop messages sent before it; return how many."""

    def remember_handshake(self, generation: int | None) -> None:
        """Note the peer's generation: a later kernel probe with another one is a restart."""

    def control(
        self, *, source_port: int, target_port: int, extension: bytes, hello: bool = False
    ) -> None:
        """Queue a ping, pong or probe: behind retransmissions, ahead of new messages.

        A hello is not sequenced (number 0), carries the highest received number in the
        acknowledgement field, and goes out once the peer's first frame came, held or not.
        """

    def probe_dead_stream(self) -> None:
        """Queue a map: a dead connection answers with a reset, a live one ignores it."""

    def peer_is_congested(self, port: int) -> bool:
        """Return whether the peer's current map marks a port: a pong to it is withheld."""

    def hold_behind(self, other: Path | None) -> None:
        """Hold new messages until `other` delivered its present queue; None: until called again."""

    def holds_messages(self) -> bool:
        """Return whether messages of sockets are queued or unacknowledged."""

    def has_delivered(self) -> bool:
        """Return whether a message of the peer ever reached a local socket."""

    def activity(self) -> PathActivity:
        """Return how far the path is."""

    def drop_queue(self) -> int:
        """Drop every queued and unacknowledged message (counted as given up); return how many.

        The next send of each mailbox that lost one fails once with EHOSTUNREACH.
        """

    def close(self) -> None:
        """Remove the path; its stream is closed."""


class Mailbox(Protocol):
    """A bound socket."""

    local: IPAddress
    port: int
    settings: MailboxSettings  # in force; `configure` replaces it

    @property
    def has_route(self) -> bool:
        """Whether any route exists; connection-level options can no longer change."""

    def sendto(
        self,
        payload: Buffer,
        flags_or_address: int | SocketAddress,
        address: SocketAddress | None = None,
        /,
    ) -> int:
        """Queue one message, as `socket.socket.sendto`; return its length.

        A payload that is neither `bytes` nor a view of `bytes` is copied.
        """

    def recvfrom(self, bufsize: int, flags: int = 0, /) -> tuple[bytes, SocketAddress]:
        """Take one message, as `socket.socket.recvfrom`; excess bytes are discarded."""

    def send_many(
        self,
        messages: Sequence[tuple[Buffer, SocketAddress | None]],
        peer: SocketAddress | None,
        /,
    ) -> int:
        """Queue messages of a list or tuple as `sendto` does one after the other; return how many.

        An address None means `peer`. The first that raises OSError ends it, and raises if none was
        queued before. Other errors are raised always; what came before is queued.
        """

    def recv_many(self, count_max: int, bufsize: int, /) -> list[tuple[bytes, SocketAddress]]:
        """Wait for a message as `recvfrom` does, and take what is queued then, `count_max` at most.

        What the peers have sent and no thread has read yet is for the next call.
        """

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
        """Queue one message gathered from `buffers`; `wait_ns` None waits without limit, 0 never.

        Its operations complete before it leaves. Without `copy` one long buffer is kept by
        reference until it is acknowledged. Raises EOPNOTSUPP if its path supports no operations.
        """

    def receive(
        self, *, wait_ns: int | None, peek: bool = False, notices_max: int = 1
    ) -> Message | Notice | None:
        """Take (or peek at) the next item; None when nothing came in `wait_ns`.

        Operation notices come first, up to `notices_max` at once, then a congestion notice, then
        messages. A peek takes notices as well: kernel parity.
        """

    def wait_operation(self, operation: Operation, wait_ns: int | None) -> bool:
        """Wait until an operation has ended; return whether it has. Raises EBADF once closed."""

    def note_operation(self, operation: Operation) -> None:
        """Note that an operation of this mailbox has ended; its status is set.

        The transport that did it calls, with locks of its own held.
        """

    def route(self, peer: IPAddress, path: Path | ExternalPath | None) -> None:
        """Set the path to `peer`; None removes it, so that the next send resolves again."""

    def subscribe(
        self,
        callback: Callable[[], None],
        *,
        room: bool,
        address: SocketAddress | None = None,
    ) -> Callable[[], None]:
        """Have `callback` called once, from any thread, when a message or room may be there.

        It is called at once if a message is there already; for room subscribe first, then look.
        With an `address` whose peer was rejected for lack of room it waits for room for that peer
        only. Return the cancel function; called after the notification, it passes that on to the
        next waiter.
        """

    def configure(self, settings: MailboxSettings) -> None:
        """Replace the settings; waiters and the descriptor see the change."""

    def cancel(self, peer: IPAddress | None, port: int | None) -> int:
        """Remove unacknowledged messages to that address and port, or all; return how many."""

    def request_acks(self) -> None:
        """Request acknowledgements of what is queued, without waiting for them."""

    def unacknowledged(self) -> int:
        """Return how many messages wait to be sent or acknowledged."""

    def fileno(self) -> int:
        """Return a descriptor with the socket's readiness; created on the first call."""

    def close(self, linger_ns: int | None = None) -> None:
        """Unbind. Queued messages have `linger_ns` to be acknowledged, then they are cancelled.

        0 cancels at once; None gives them `Limits.linger_ns` in the background.
        """


class Plane(Protocol):
    """The plane of a process; maps carry `generation` in their header, unless it is None."""

    def __init__(
        self,
        *,
        limits: Limits,
        resolve: Callable[[Mailbox, IPAddress], None],
        clock_ns: Callable[[], int] | None = None,
        generation: int | None = None,
    ) -> None: ...

    @property
    def batches(self) -> bool:
        """Whether a message may wait for others to join it; `progress` sends it."""

    def mailbox(self, *, local: IPAddress, port: int, settings: MailboxSettings) -> Mailbox:
        """Bind; the caller has checked that the port is free."""

    def path(self, *, local: IPAddress, peer: IPAddress, index: int, sequence_first: int) -> Path:
        """Create a path without a stream; its first message gets `sequence_first`."""

    def received(self, path: Path) -> Received:
        """Return the peer's numbers on a path, for a path created later."""

    def expect(self, path: Path, received: Received) -> None:
        """Have a path without a first stream continue from an earlier one to the peer."""

    def move_queue(self, path: Path, other: Path, mailboxes: Sequence[Mailbox]) -> None:
        """Route `mailboxes` over another path to the peer, and move what was never sent on `path`.

        One step: each of their messages is moved, behind what `other` has queued, or queued there
        later. What was sent stays, as do fences and what the control plane queued. No account
        changes; `other` may be over its limit of messages then.
        """

    def loop(self, *, local: IPAddress, peer: IPAddress) -> Path:
        """Create a path between two addresses of this process, without a stream."""

    def external_path(
        self,
        *,
        local: IPAddress,
        peer: IPAddress,
        tos: int,
        message_bytes_max: int,
        transport: MessageTransport,
    ) -> ExternalPath:
        """Create the plane's part of a path that a message transport has.

        `tos` is the type of service of its connection, `message_bytes_max` its longest message.
        """

    def finish_pass(self) -> None:
        """End a pass of a message transport: check congestion, show states, wake callers."""

    def watch(self, descriptor: int, interest: Interest) -> None:
        """Report `Ready` once for a listener or a connecting socket."""

    def unwatch(self, descriptor: int) -> None:
        """Stop watching; the descriptor may then be closed."""

    def help(self, deadline_ns: int | None) -> list[Event]:
        """Do the work that no application thread does; return events, or [] at the deadline.

        The deadline is on the plane's clock; one in the past makes one pass and never blocks.
        """

    def wake(self) -> None:
        """Make `help` return early."""

    def adopt(self) -> None:
        """Promise, as an event loop, to call `progress` whenever `fileno()` is readable."""

    def abandon(self) -> None:
        """End one `adopt`; takes no lock, since a loop may end in a finaliser."""

    def progress(self) -> int:
        """Make one pass without blocking; return how many descriptors were served."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when `progress` would read something."""

    def is_inside(self) -> bool:
        """Return whether the calling thread holds a lock of the plane.

        If so, the caller is a signal handler or finaliser that interrupted another call. It may
        close, get the descriptor and configure; other calls raise OSError (EDEADLK).
        """

    def snapshot(self) -> Snapshot:
        """Return counters and tables."""

    def drain(self, drain_ns: int) -> int:
        """Send queued messages while the control plane runs; return the messages left."""

    def end_streams(self, flush_ns: int = 0) -> None:
        """End the streams in order and wake no call: the process ends. Sockets stay unchanged.

        With `flush_ns`, of a node's worker that another one follows, kernels get nothing new but a
        ping; its answer, and then the kernel's end, are waited for while something comes, and so
        long after it.
        """

    def close(self, drain_ns: int) -> int:
        """Drain for at most `drain_ns`, end the streams, wake all calls; return messages left."""

    def fail(self) -> None:
        """Fail every call with EIO from now on and wake all: the control plane failed."""

    def release(self) -> None:
        """Close the plane's own descriptors; after `close`, with no thread in `help`."""

    def abandon_in_child(self) -> None:
        """After a fork, in the child: fail every call; take no lock, leave the parent's alone."""
