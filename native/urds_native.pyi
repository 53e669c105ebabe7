"""The compiled plane, raw: plain values in and out; for `urds.rds.plane.native`.

Values. An address is its packed bytes (4 or 16) and a scope (0 without one). A record is a tuple
of its fields in the order of `urds.rds.plane.contract`; a member of an enumeration is its name.

Handles. The classes are meant to be subclassed; the plane returns and passes (events, `resolve`)
the very object that was made. A forgotten handle closes nothing.

Errors are `urds.common.errors.os_error(ErrorReason.X, detail)`. Any thread may make any call at
any time; `help` belongs to one thread. The interpreter lock is released for every wait and for
writes of more than 128 KiB.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Self

from urds.rsocket.core.stream.records import StreamSettings
from urds.verbs.cq import CQ
from urds.verbs.engine import work
from urds.verbs.engine.attributes import LinkTraits, QPAttr, QPCap
from urds.verbs.engine.numbers import (
    AccessFlag,
    QPAttrMask,
    QPState,
    QPType,
    ReceiveOrder,
    SendFlag,
    WROpcode,
)
from urds.verbs.engine.work import WC, AddressVector, Event

VERSION: Final[str]  # of this module; `urds` accepts only its own

_Buffer = bytes | bytearray | memoryview
_SocketAddress = tuple[str, int] | tuple[str, int, int, int]
_Limits = tuple[int, ...]  # base.Limits, field by field
_Settings = tuple[
    int, int, int | None, int | None, bool, int, bool, tuple[int, ...], int, int
]  # base.MailboxSettings, field by field
_Agreement = tuple[str, bool, int]  # base.Agreement: name of the release, checksum, bytes max
_Received = tuple[int, int | None, int | None, int | None, int | None, bool]  # base.Received
_Message = tuple[bytes, _SocketAddress, bytes, int, tuple[tuple[int, int], ...]]  # base.Message
_StreamAddress = tuple[str, int]

# The name of the record, then its fields. ConnectWanted, PeerRestarted: path. FirstFrame: path,
# attachment, generation or None. Down: path, name of the reason, errno, frames, attachment. Control: path, sequence,
# acknowledgement, ports of source and target, extension (16 bytes), payload, attachment. Ready:
# descriptor, interest. LingerOver: path, messages never sent, messages not acknowledged.
# LocalMapChanged: address and its scope. Left: number of a mailbox. ClientError: the same, what was
# wrong. RouteWanted: the same, peer and its scope. Resumed: number of an external path. GiveUp, LingerEnded:
# the same, and number of a mailbox.
_Event = tuple[Any, ...]

# Local address and its scope, port, then base.MailboxRow from `send_bytes_max` on.
_MailboxRow = tuple[bytes, int, int, int, int, int, int, int, bool, int]
# Local address and its scope, peer and its scope, index, then base.PathRow from `up` on, but the
# transport of the stream and its addresses come last: our end and the peer's, None without.
_PathRow = tuple[
    bytes, int, bytes, int, int, bool, bool, bool,
    int, int, int, int, int, int, int, int, int, str,
    tuple[_StreamAddress, _StreamAddress] | None,
]  # fmt: skip
# As base.MessageRow, each address followed by its scope.
_MessageRow = tuple[int, int, bytes, int, int, bytes, int, int, int]

def open_socket(
    sizes: tuple[int, int, int, int, int, int, int, int, bool] | None,
    place: bytes,
    nonblock: bool,
    words: bytes = b"",
    /,
) -> tuple[int, int, int, int]:
    """Make a socket for another process: four descriptors, which are the caller's.

    They are the client's, then what the node keeps: the other end of its control socket, the memory
    of the socket, the journal. `sizes`: entries of the submission ring, bytes of the send area and of
    the receive area, default SO_SNDBUF and SO_RCVBUF, their greatest values, the longest message,
    whether `strict_linux` is set. `place` is the path of the node's socket. `words` replace the first
    words of its options, at most 128 bytes. Raises OSError.
    """

def memory_formats() -> list[str]:
    """Name the formats of the memories that a worker of a node can take over from another one."""

def line_floor_ns(first: int, second: int, /) -> float:
    """Return how long a cache line takes there and back between two processors, in nanoseconds.

    Two threads bound to them measure it, for half a second at most; the best of many moments
    counts. The interpreter lock is released meanwhile. Raises ValueError if both are one, or one
    cannot be used by this process; OSError, EBUSY if others had them all the time.
    """

class Plane:
    """The plane of a process; see `contract.Plane`."""

    def __new__(
        cls,
        limits: _Limits,
        resolve: Callable[[Any, bytes, int], None],
        clock_ns: Callable[[], int] | None = None,
        generation: int | None = None,
        /,
    ) -> Self:
        """Make a plane. `resolve(mailbox, peer, scope)` is called in the sender's thread."""

    @property
    def batches(self) -> bool:
        """Whether messages may wait to be sent in one batch."""

    def received(self, path: Path, /) -> _Received: ...
    def expect(self, path: Path, received: _Received, /) -> None: ...
    def discard_mailbox(self, number: int, /) -> None:
        """Close a mailbox whose object got lost; no effect on a closed one."""

    def move_queue(self, path: Path, other: Path, mailboxes: Sequence[Mailbox], /) -> None: ...
    def watch(self, descriptor: int, interest: int, /) -> None: ...
    def unwatch(self, descriptor: int, /) -> None: ...
    def help(self, deadline_ns: int | None, /) -> list[_Event]: ...
    def wake(self) -> None: ...
    def adopt(self) -> None: ...
    def abandon(self) -> None: ...
    def progress(self) -> int: ...
    def congestion_memory(self) -> int:
        """Return the descriptor of the congestion maps for clients, which cannot write it; ours."""

    def congestion_file(self) -> int:
        """Return the descriptor of the same memory for the next worker of a node; ours."""

    def take_congestion_memory(self, file: int, /) -> None:
        """Go on with that of an earlier worker; the descriptor stays the caller's.

        Before anything is attached. Raises OSError, EINVAL for what is none.
        """

    def path_journal(self) -> int:
        """Keep the numbers of paths for the next worker of a node; return the descriptor, which is ours.

        Before any path is made. Raises OSError.
        """

    def take_path_journal(self, file: int, /) -> int:
        """Go on with the numbers of an earlier worker; return its generation, 0 for none.

        Before any path is made. The generation is this plane's from now on, and nothing is sent or
        read until `finish_restore`. The descriptor stays the caller's. Raises OSError, EINVAL for
        what is none.
        """

    def npaths_before(self) -> list[tuple[tuple[bytes, int], tuple[bytes, int], int]]:
        """Return between which addresses the earlier worker had several paths, and how many.

        Each address as its bytes and scope: the local one and the peer's. After `take_path_journal`
        and before any path is made or closed.
        """

    def finish_restore(self) -> list[tuple[tuple[bytes, int], tuple[bytes, int]]]:
        """Send and read: every socket of the earlier worker is attached.

        Return between which addresses it had connections, each as its bytes and scope: the local
        one and the peer's.
        """

    def attach(
        self,
        mailbox: Mailbox,
        node_end: int,
        memory: int,
        journal: int,
        was_left: bool = False,
        /,
    ) -> None:
        """Serve the memory of a socket of another process; the descriptors stay the caller's.

        What the journal has of an earlier worker goes on. A socket that `was_left` had been closed
        by that worker: it has no port, and is reported as left once all that it sent is on paths.

        They are those of `open_socket`. Raises OSError, EINVAL for memory that is none.
        """

    def finish_pass(self) -> None: ...
    def fileno(self) -> int: ...
    def snapshot(
        self,
    ) -> tuple[
        dict[str, int],
        list[_MailboxRow],
        list[_PathRow],
        list[_MessageRow],  # send queue
        list[_MessageRow],  # retransmit queue
        list[_MessageRow],  # receive queue: local is the mailbox, peer the source
    ]: ...
    def drain(self, drain_ns: int, /) -> int: ...
    def end_streams(self, flush_ns: int = 0, /) -> None: ...
    def close(self, drain_ns: int, /) -> int: ...
    def fail(self) -> None: ...
    def release(self) -> None: ...
    def abandon_in_child(self) -> None:
        """In the child of a fork: fail every call, touch nothing that is the parent's."""

class ShmStream:
    """A shm stream to another process of this host."""

    def __new__(
        cls,
        line: int,
        memory: int,
        ring_bytes: int,
        dials: bool,
        local: tuple[bytes, int, int],
        peer: tuple[bytes, int, int],
        /,
    ) -> Self:
        """Make our end; both descriptors stay the caller's. An end is address, scope, port.

        Raises OSError, EINVAL for memory that is not sealed or not of `memory_bytes(ring_bytes)`.
        """

    @staticmethod
    def memory_bytes(ring_bytes: int, /) -> int: ...
    @property
    def has_protocol_error(self) -> bool:
        """Whether the other side broke the protocol in the memory; also once closed."""

    def fileno(self) -> int: ...
    def recv(self, bytes_max: int, /) -> bytes: ...
    def sendmsg(
        self, buffers: Sequence[_Buffer], ancillary: Sequence[Any] = (), flags: int = 0, /
    ) -> int: ...
    def shutdown(self, how: int, /) -> None: ...
    def expect(self, bytes: int, /) -> None: ...
    def waiting(self) -> int: ...
    def unacknowledged(self) -> int: ...
    def rest_memory(self) -> None:
        """Give the memory of an idle ring back to the system; call it from time to time."""

    def end(self) -> None:
        """End both directions; the descriptor stays open."""

    def close(self) -> None: ...

class Mailbox:
    """A bound socket; see `contract.Mailbox`."""

    def __new__(
        cls,
        plane: Plane,
        local: bytes,
        scope: int,
        port: int,
        settings: _Settings,
        made: list[int],
        /,
    ) -> Self:
        """Bind; the caller has checked that the port is free. `made` is given its number."""

    @property
    def has_route(self) -> bool: ...
    def sendto(
        self,
        payload: _Buffer,
        flags_or_address: int | _SocketAddress,
        address: _SocketAddress | None = None,
        /,
    ) -> int: ...
    def recvfrom(self, bufsize: int, flags: int = 0, /) -> tuple[bytes, _SocketAddress]: ...
    def recv_into(self, buffer: _Buffer, nbytes: int = 0, flags: int = 0) -> int: ...
    def send_many(
        self,
        messages: Sequence[tuple[_Buffer, _SocketAddress | None]],
        peer: _SocketAddress | None,
        /,
    ) -> int: ...
    def recv_many(self, count_max: int, bufsize: int, /) -> list[tuple[bytes, _SocketAddress]]: ...
    def send(
        self,
        buffers: Sequence[_Buffer],
        address: _SocketAddress,
        wait_ns: int | None,
        extension: bytes = b"",
        operations: bool = False,
        copy: bool = True,
        /,
    ) -> int | None:
        """Queue one message. `operations`: it has some, which no stream of this plane supports.

        None: a message transport has the route, which is to send it.

        Without `copy` one long buffer is kept by reference.
        """

    def receive(
        self, wait_ns: int | None, peek: bool = False, notices_max: int = 1, /
    ) -> _Message | int | list[tuple[int, int]] | None:
        """Return what is next: a message, the groups of a congestion notice, None for nothing.

        A list has notices of operations: token and status.
        """

    def route(self, peer: bytes, scope: int, path: Path | None, /) -> None: ...
    def route_external(self, peer: bytes, scope: int, path: ExternalPath, /) -> None: ...
    def route_loop(self, peer: bytes, scope: int, /) -> None:
        """Set the route to an address of this process: the sender delivers."""

    def sends_by_loop_to(self, peer: bytes, scope: int, /) -> bool: ...
    def subscribe(
        self, callback: Callable[[], None], room: bool, peer: bytes | None, scope: int, /
    ) -> Callable[[], None]: ...
    def configure(self, settings: _Settings, /) -> None: ...
    def cancel(self, peer: bytes | None, scope: int, port: int | None, /) -> int: ...
    def request_acks(self) -> None: ...
    def unacknowledged(self) -> int: ...
    @property
    def number(self) -> int:
        """Its number in events."""

    def note_operation(self, wants_notice: bool, token: int, status: int, /) -> None: ...
    def route_number(self, peer: bytes, scope: int, /) -> tuple[int, int]:
        """Return number and generation of the route to a peer, for the client of an attached socket.

        Raises OSError without a route to it.
        """

    def fail_route(self, peer: bytes, scope: int, errno: int, /) -> None:
        """Drop what waits for a route to a peer; the client's next send to it gets the error."""

    def restrict(self, is_over_quota: bool, /) -> None:
        """Take no messages of an attached socket, and mark its port as congested, for a while."""

    def take_rest(self) -> bool:
        """Take what the client of an attached socket submitted before its end was closed.

        Return whether nothing of it waits, for a route or for a restore.
        """

    @property
    def is_over(self) -> bool:
        """Whether it is closed, and none of its messages is left to send."""

    def words(self) -> dict[str, Any]:
        """Return what the client keeps in the memory of an attached socket.

        Options by name, the mask of the monitor, and as `connected` the peer: 16 bytes, scope, port,
        or None. Raises OSError, EBADF for another mailbox.
        """

    def operations_ended(self) -> int: ...
    def wait_operation(self, seen: int, wait_ns: int | None, /) -> bool:
        """Wait until more than `seen` operations have ended; return whether they have."""

    def fileno(self) -> int: ...
    def close(self, linger_ns: int | None = None, /) -> None: ...

class AttachedMailbox:
    """A socket that belongs to a node, another process; see `contract.Mailbox`.

    An address is 16 bytes, IPv4 mapped, or 4 of IPv4; a name is address, scope, port. Its descriptor
    shows POLLIN and POLLOUT, and every process that has it has the socket.
    """

    def __new__(
        cls,
        place: bytes,
        address: bytes,
        scope: int,
        port: int,
        transport: int,
        settings: _Settings,
        /,
    ) -> Self:
        """Make a socket at the node of that path, bound to a name; port 0 chooses a free one.

        `transport` is SO_RDS_TRANSPORT, 2^32 - 1 for none. Raises OSError: ENOENT or ECONNREFUSED
        without a node; as it answers.
        """

    @staticmethod
    def status(place: bytes, /) -> bytes:
        """Return the report of a node, JSON."""

    def info(self, option: int, /) -> tuple[int, bytes]:
        """Return the size of an element and a list of RDS_INFO_*."""

    @property
    def cookie(self) -> int:
        """SO_COOKIE of its descriptors."""

    def set_peer(self, peer: bytes | None, scope: int, port: int, /) -> None: ...
    @property
    def name(self) -> tuple[bytes, int, int]:
        """The name that it is bound to."""

    def cancel(self, peer: bytes | None, scope: int, port: int | None, /) -> int: ...
    def set_option(self, level: int, name: int, value: bytes, /) -> None: ...
    def word(self, name: str, /) -> int:
        """Return a word of the options, which all processes with this socket share.

        They are send_bytes, receive_bytes, report_errors, monitor, has_mask, mask_low, mask_high,
        timestamp, traces, transport, tos, reuse_address, broadcast, keep_alive, zero_copy, linger,
        busy_poll, has_route.
        """

    def set_word(self, name: str, value: int, /) -> None: ...
    def limits(self) -> tuple[int, int, int]:
        """Return the greatest SO_SNDBUF and SO_RCVBUF, as they count, and the longest message."""

    @property
    def is_strict(self) -> bool: ...
    @property
    def has_route(self) -> bool: ...
    def configure(self, settings: _Settings, /) -> None:
        """Set the words that settings are; the waits are this object's alone."""

    def sendto(
        self,
        payload: _Buffer,
        flags_or_address: int | _SocketAddress,
        address: _SocketAddress | None = None,
        /,
    ) -> int: ...
    def recvfrom(self, bufsize: int, flags: int = 0, /) -> tuple[bytes, _SocketAddress]: ...
    def send_many(
        self,
        messages: Sequence[tuple[_Buffer, _SocketAddress | None]],
        peer: _SocketAddress | None,
        /,
    ) -> int: ...
    def recv_many(self, count_max: int, bufsize: int, /) -> list[tuple[bytes, _SocketAddress]]: ...
    def send(
        self,
        buffers: Sequence[_Buffer],
        address: _SocketAddress,
        wait_ns: int | None,
        extension: bytes = b"",
        operations: bool = False,
        copy: bool = True,
        /,
    ) -> int: ...
    def receive(
        self, wait_ns: int | None, peek: bool = False, notices_max: int = 1, /
    ) -> _Message | int | None:
        """Return what is next: a message, the groups of a congestion notice, None for nothing."""

    def queued_bytes(self) -> int:
        """Return the bytes that are sent and not acknowledged."""

    @property
    def has_something(self) -> bool:
        """Whether a receive would find something."""

    def fileno(self) -> int: ...
    def detach(self) -> int:
        """Return the descriptor, which is the caller's now; -1 once closed."""

    def unacknowledged(self) -> int:
        """Return 0 if nothing is left to be acknowledged, else 1."""

    def close(self) -> None:
        """Close the descriptor; the socket lives while any other process has it."""

class Path:
    """One ordered stream to a peer; see `contract.Path`."""

    def __new__(
        cls,
        plane: Plane,
        local: bytes,
        local_scope: int,
        peer: bytes,
        peer_scope: int,
        index: int,
        sequence_first: int,
        /,
    ) -> Self: ...
    @property
    def attachment(self) -> int: ...
    def attach(
        self, stream: object, descriptor: int, hold: str, probe: bytes | None, /
    ) -> None:
        """Take a connected stream; a probe with that extension leads what is new.

        With a `descriptor` (not -1: a plain TCP socket in non-blocking mode) the plane reads and
        writes that itself, and calls `close()` of `stream`, its owner, once it is done with it.
        With -1 every call is a call of `stream`, a `contract.Stream`.
        """

    def detach(self) -> object | None:
        """Return the `stream` of `attach`, read until it would block."""

    def end_hold(self, received_by_peer: int | None, /) -> None: ...
    def agree(self, agreement: _Agreement, /) -> None: ...
    def restart_peer(self) -> int: ...
    def remember_handshake(self, generation: int | None, /) -> None: ...
    def control(
        self, source_port: int, target_port: int, extension: bytes, hello: bool = False, /
    ) -> None: ...
    def probe_dead_stream(self) -> None: ...
    def peer_is_congested(self, port: int, /) -> bool: ...
    def hold_behind(self, other: Path | None, /) -> None: ...
    def holds_messages(self) -> bool: ...
    def has_delivered(self) -> bool: ...
    def activity(self) -> tuple[int, int | None, int]: ...  # contract.PathActivity
    def drop_queue(self) -> int: ...
    def close(self) -> None: ...

class ExternalPath:
    """The plane's part of a path of a message transport; see `contract.ExternalPath`."""

    def __new__(
        cls,
        plane: Plane,
        local: bytes,
        local_scope: int,
        peer: bytes,
        peer_scope: int,
        tos: int,
        message_bytes_max: int,
        /,
    ) -> Self: ...
    @property
    def number(self) -> int:
        """Its number in events."""

    def charge(
        self, mailbox: Mailbox, port: int, payload_bytes: int, may_wait: bool, /
    ) -> str:
        """Return the name of a `contract.Charge`."""

    def wait_for_charge(
        self, mailbox: Mailbox, port: int, payload_bytes: int, is_first: bool, wait_ns: int | None, /
    ) -> bool: ...
    def held(self, mailbox: Mailbox, /) -> tuple[int, int]: ...
    def refund(self, mailbox: Mailbox, messages: int, payload_bytes: int, /) -> None: ...
    def deliver(
        self, source_port: int, target_port: int, payload: bytes, extension: bytes, /
    ) -> bool: ...
    def set_gathering(self, room_bytes: int, /) -> None:
        """Have plain messages of less than so many bytes gather, with their headers; 0 for none."""

    def take_gathered(self) -> GatheredMessages | None:
        """Take what has gathered, if anything has; nothing gathers any more."""

    def deliver_plain(
        self, frame: bytes | memoryview, payload_bytes_max: int, sequence_expected: int, /
    ) -> tuple[int, int, int, int, bool]:
        """Put the plain messages at the front of a frame's bytes into their mailboxes.

        Returns the bytes that they take, the next expected number, how many there are, how many of
        them ask for an acknowledgement, and whether the path has to pause.
        """

    def take_peer_map(self, data: bytes, /) -> None: ...
    def local_map(self) -> bytes: ...
    def peer_is_congested(self, port: int, /) -> bool: ...
    def set_full(self, full: bool, /) -> None: ...
    def set_connected(self, connected: bool, /) -> None: ...
    def fail(self, mailbox: Mailbox, /) -> None: ...
    def close(self) -> None: ...

class GatheredMessages:
    """Messages that gathered in the plane for a path, in the order of their sends."""

    def __len__(self) -> int: ...
    @property
    def frame_bytes(self) -> int:
        """Bytes of all, with their headers."""

    @property
    def payload_bytes(self) -> int: ...
    def emit(
        self,
        sequence: int,
        acknowledgement: int,
        credit: int,
        budget: tuple[int, int, int, int],
        /,
    ) -> tuple[bytes, int, int, int]:
        """Return the bytes of a frame; the first message has `sequence` and acknowledges.

        `budget`: messages and bytes left until one asks for an acknowledgement, and of a whole
        budget. Returns also how many ask because it was spent, and what is left of it.
        """

    def accounts(self) -> list[tuple[int, int, int]]:
        """Return numbers of mailboxes, each with its messages and their bytes."""

    def messages(self) -> list[tuple[int, int, int, bytes, bool]]:
        """Return number of the mailbox, source and target port, payload, whether it asks."""

# -- the verbs engine: see `urds.verbs.engine.contract`

class Engine:
    """`contract.Engine`, for links without loss whose packets name their places."""

    def __new__(
        cls,
        link: LinkTraits,
        *,
        gid: bytes,
        checksum: bool = False,
        has_random_keys: bool = False,
    ) -> Self:
        """Make an engine. `has_random_keys`: peers cannot guess them; else they count up.

        Raises OSError: EOPNOTSUPP for another link.
        """

    @property
    def link(self) -> LinkTraits: ...
    @property
    def gid(self) -> bytes: ...
    @property
    def fed(self) -> int: ...
    @property
    def events(self) -> int: ...
    @property
    def region_count(self) -> int: ...
    def completion_queue(
        self, capacity: int, *, sink: Callable[[list[WC]], None] | None = None
    ) -> CompletionQueue: ...
    def shared_receive_queue(
        self, capacity: int, sge_max: int, *, pd: object
    ) -> SharedReceiveQueue: ...
    def queue_pair(
        self,
        *,
        qpn: int,
        kind: QPType,
        pd: object,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        cap: QPCap,
        srq: SharedReceiveQueue | None = None,
        sq_sig_all: bool = False,
        receive_order: ReceiveOrder = ...,
    ) -> QueuePair: ...
    def register(
        self,
        pd: object,
        memory: _Buffer,
        address: int,
        access: AccessFlag,
        *,
        key: int | None = None,
    ) -> Region: ...
    def reregister(
        self,
        region: Region,
        *,
        pd: object | None = None,
        view: _Buffer | None = None,
        address: int | None = None,
        access: AccessFlag | None = None,
    ) -> None: ...
    def deregister(self, region: Region, *, unbind: bool = False) -> None: ...
    def find_region(self, lkey: int) -> Region | None: ...
    def window(self, pd: object, kind: int) -> MemoryWindow: ...
    def free_window(self, window: MemoryWindow) -> None: ...
    def receive(self, data: _Buffer, source: AddressVector, now_ns: int) -> None: ...
    def poll_transmit(self, now_ns: int) -> tuple[AddressVector, bytes] | None: ...
    def poll_timeout(self) -> int | None: ...
    def handle_timeout(self, now_ns: int) -> None: ...
    def feed_sinks(self) -> None: ...
    def take_events(self) -> list[Event]: ...
    def snapshot(self) -> tuple[int, int, int, int, int, int, int]: ...  # contract.EngineSnapshot

class ShmEngine(Engine):
    """The engine of a `shm` device: packets go through channels (docs/protocol/verbs-channel.md).

    Posting sends, polling an empty queue looks at the channels; the rest is the adapter's to call.
    """

    def __new__(
        cls,
        link: LinkTraits,
        *,
        gid: bytes,
        on_pass: Callable[[], object] | None = None,
        on_idle: Callable[[], object] | None = None,
        owner: object = None,
        set: int = -1,
        doorbell: int = -1,
        placed_bytes_min: int = 256,
    ) -> Self:
        """`on_pass` is called when a call has left work to the adapter; keys are random.

        `on_idle` is called by threads that use `public_poll` in a loop, at most once per
        millisecond: sockets and timers are no channels.

        `owner` is the loop of threads that wait: `run_due` for what the engine does not do itself,
        `yield_lead` where the progress thread leads, `handle_left` where no thread waits any more,
        `resume` where an exception ends a wait; each is called without locks. `set` and `doorbell` are
        the loop's epoll set and an eventfd in it.

        Writes from `placed_bytes_min` on go into mapped memory without a packet.

        Raises as `Engine`.
        """

    def completion_channel(self, on_taken: Callable[[], object], /) -> CompletionChannel:
        """Make a completion channel.

        `on_taken` is called, without a lock of the engine, when an event was taken there of which the
        owner was told. Raises OSError, EIO, after a panic of the engine.
        """

    def begin_wait(self, number: int, asks: bool, /) -> None:
        """Begin a wait for what the loop tells, with a number of its own; `end_wait` ends it.

        `asks`: for what Python alone can see. Then the loop is called after each look that has read.
        """

    def end_wait(self, number: int, /) -> None: ...
    def tell(self, number: int, /) -> None:
        """Tell a thread that its wait is over, or may be. Any thread."""

    def wait(self, number: int, until_ns: int | None, cq: CompletionQueue | None = None, /) -> bool:
        """Wait until the loop tells, and make progress meanwhile, without the interpreter.

        Or until there is something for the sink of `cq`, which the caller gives it by `look`.
        What was told since the last return counts. Returns false at `until_ns` of the monotonic
        clock, and where no thread may wait any more. Raises what signal handlers and the calls of the
        adapter raise. Call it without locks.
        """

    def forget_doorbell(self) -> None:
        """Have no doorbell any more: the loop closes it."""

    def leave_plane(self) -> None:
        """Have no plane serve the engine any more: the loop is about to close the set."""

    nap_ns: int
    """The longest sleep, the net below a lost ring and below a signal just before a sleep."""

    @property
    def sleepers(self) -> int:
        """How many threads sleep, or are about to."""

    @property
    def has_waiters(self) -> bool: ...
    def note_due(self) -> None:
        """Have the loop called before the next sleep, and end one."""

    def note_timer(self, at_ns: int, /) -> None:
        """Have the loop called at a time, if that is sooner than planned."""

    def plan_loop(self, at_ns: int | None, /) -> None:
        """Have the loop called at a time, `None` for never, instead of what was planned."""

    def rearm(self) -> None:
        """Have the leader arm its doorbells anew: another thread may have heard them."""

    def lead_in_thread(self) -> bool:
        """Have the progress thread lead; false while a thread waits, and `handle_left` follows."""

    def take_from_thread(self) -> None:
        """Take the lead from the progress thread."""

    def want(self, is_coming: bool = False, /) -> bool:
        """Ask for `handle_left` behind the last thread that waits; false if none does.

        `is_coming`: one is about to wait.
        """

    def end_waits(self) -> None:
        """End all waits, for good."""

    def note_trim(self, is_planned: bool, /) -> None:
        """Note whether a timer of the loop gives memory of idle channels back."""

    def attach(self, gid: bytes, memory: int, socket: int, is_connector: bool, /) -> None:
        """Use a channel after its greeting; both descriptors stay the caller's.

        The socket has to be open until `detach` or `abandon_in_child`.

        Raises OSError: EINVAL for memory that is not a channel's.
        """

    def release(self) -> None:
        """Read on behind the messages that were told, once the device has done what they say."""

    def detach(self, gid: bytes, /) -> None:
        """End the channels of a peer; what was not read is lost."""

    def abandon_in_child(self) -> None:
        """Forget all channels in the child of a fork, without a word to peers."""

    def close(self) -> None:
        """Send nothing any more: what is posted from here on stays in its queue pair."""

    def progress(self) -> bool:
        """Read all channels and send what is due; return whether packets came."""

    def drain(self, gid: bytes, /) -> bool:
        """Read what is left of a peer that is gone, as `progress`."""

    @property
    def is_paused(self) -> bool:
        """Whether a reader stopped where receives ran dry, which sinks may give back."""

    def acknowledge(self) -> None:
        """Send all acknowledgements that wait, as far as there is room."""

    @property
    def waiting_acks(self) -> int:
        """How many acknowledgements wait."""

    @property
    def is_stirred(self) -> bool:
        """Whether a channel was written to since its memory was given back."""

    def trim(self) -> bool:
        """Give memory of idle channels back; return whether others are busy.

        A channel idles when nothing was written to it between two calls, and all was read.
        """

    def flush(self) -> None:
        """Send what queue pairs have to send."""

    def arm_doorbell(self) -> bool:
        """Have peers ring from now on; false if there is something to do instead."""

    def disarm_doorbell(self) -> None: ...
    def plan(self, at_ns: int | None, /) -> None:
        """Note when the adapter's timer runs; what is due sooner is told by `on_pass`."""

    def watch(self, change: int, /) -> None:
        """Count a thread of the adapter that waits for completions, 1, or a wait that ended, -1.

        While there are any, calls that complete something are told by `on_pass`.
        """

    def take_channel_events(self) -> list[tuple[Any, ...]]:
        """Return what the device has to do, and forget it.

        `("message", gid, qkey, data)` to the connection manager, `("connect", gid)`, `("map", gid,
        qpn, key)`: request that memory, `("gone", gid)`: the peer has ended and all is read,
        `("error", gid, what)`: it broke the protocol;
        `("failed", qpn)`: a queue pair has entered ERR. What a peer wrote after a message is read
        when `release` was called.
        """

    def send_message(self, gid: bytes, qkey: int, content: bytes, /) -> bool:
        """Send a message to a connection manager; false without a channel or room."""

    def map(
        self,
        gid: bytes,
        qpn: int,
        key: int,
        file: int,
        address: int,
        length: int,
        generation: int,
        /,
    ) -> None:
        """Map the memory behind a key, as the peer answered. Raises OSError: EINVAL."""

    def reject_map(self, gid: bytes, qpn: int, key: int, /) -> None:
        """Remember that the memory behind a key is not to be mapped. Raises as `map`."""

    def unmap(self, gid: bytes, qpn: int, /) -> None:
        """Forget what was mapped for a queue pair of a peer."""

    def is_placing(self, gid: bytes, /) -> bool:
        """Return whether a peer says that it is copying into our memory."""

    @property
    def regions_mapped(self) -> int:
        """How many regions of peers are mapped."""

    def costs(self) -> tuple[int, int, int, int]:
        """Return how often the engine's lock was taken, and the bytes of payload that were copied:
        into channels, out of them, into memory of peers.

        Bytes that came out of a channel are copied once more, to where they belong.
        """

    def channel_counters(self) -> tuple[int, int, int, int, int, int, int]:
        """Return slots sent and received, doorbells rung, waits for room, writes placed, directions
        whose memory was given back, packets lost.

        Of all channels that there were.
        """

class CompletionQueue:
    """`contract.CompletionQueue`; made by `Engine.completion_queue`."""

    @property
    def capacity(self) -> int: ...
    @property
    def overrun(self) -> bool: ...
    @property
    def lost_count(self) -> int: ...
    def __len__(self) -> int: ...
    def poll(self, count: int = 1, /) -> list[WC]: ...
    def public_poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """`urds.verbs.CQ.poll`: looks at the channels where none is queued. From any thread."""

    def wait_for(self, count: int, until_ns: int | None, /) -> list[WC] | None:
        """Wait until `count` completions are queued and take them; the caller makes progress.

        `None` at `until_ns` of the monotonic clock, and where no thread may wait any more; nothing is
        taken then. Raises VerbsClosedError, and as `ShmEngine.wait`.
        """

    def join(self, channel: CompletionChannel | None, owner: object, /) -> None:
        """Have the events come to a channel, or to none; a thread that takes one gets `owner`, kept weakly.

        Events that wait in the channel of before are dropped.
        """

    @property
    def unacked_events(self) -> int:
        """How many events were taken from a channel and not acknowledged."""

    def public_req_notify(self, solicited_only: bool = False) -> None:
        """`urds.verbs.CQ.req_notify`. From any thread."""

    def public_ack_events(self, num_events: int) -> None:
        """`urds.verbs.CQ.ack_events`. From any thread."""

    def close(self) -> None:
        """End the public calls and the events; the queue stays the engine's."""

    def arm(self, solicited_only: bool = False) -> None: ...
    def resize(self, capacity: int) -> None: ...
    def discard(self, qpn: int) -> None: ...
    def drain(self) -> None: ...
    def look(self) -> bool:
        """Look at the channels; give the sink what completed, or have `on_pass` tell all there is.

        Returns whether there was anything. The caller holds the lock that the sink asks for.
        """

class CompletionChannel:
    """The events of queues that have joined it; made by `ShmEngine.completion_channel`.

    From any thread, without a lock.
    """

    def public_get_cq_event(
        self, cq: CQ | None = None, timeout_s: float | None = None
    ) -> CQ:
        """`urds.verbs.CompChannel.get_cq_event`: the caller makes progress, as in `wait_for`."""

    def take(self, cq: CQ | None, /) -> CQ | None:
        """Take the oldest event, of one queue if it is given, and return its owner.

        Raises VerbsClosedError: the channel or `cq` is closed.
        """

    def tell(self) -> None:
        """Have each event from here on told by `take_events` as well, as a `Completed`."""

    @property
    def has_event(self) -> bool:
        """Whether an event waits; false after a panic of the engine."""

    def close(self) -> None:
        """End the public calls and all waits, and drop what waits."""

class SharedReceiveQueue:
    """`contract.SharedReceiveQueue`; made by `Engine.shared_receive_queue`."""

    attached: int
    capacity: int

    @property
    def pd(self) -> object: ...
    @property
    def limit(self) -> int: ...
    @property
    def max_sge(self) -> int: ...
    def __len__(self) -> int: ...
    def post(self, wr: _RecvWR | Sequence[_RecvWR], /) -> None: ...
    def arm_limit(self, limit: int) -> None: ...
    def resize(self, capacity: int) -> None: ...

class QueuePair:
    """`contract.QueuePair`; made by `Engine.queue_pair`."""

    gid: bytes
    mtu_bytes: int
    hold_receives: bool
    pd: object

    @property
    def qpn(self) -> int: ...
    @property
    def qp_type(self) -> QPType: ...
    @property
    def link(self) -> LinkTraits: ...
    @property
    def receive_order(self) -> ReceiveOrder: ...
    @property
    def sq_sig_all(self) -> bool: ...
    @property
    def send_cq(self) -> CompletionQueue: ...
    @property
    def recv_cq(self) -> CompletionQueue: ...
    @property
    def srq(self) -> SharedReceiveQueue | None: ...
    @property
    def state(self) -> QPState: ...
    @property
    def attr(self) -> QPAttr: ...
    @property
    def peer(self) -> AddressVector | None: ...
    @property
    def outstanding_requests(self) -> int: ...
    @property
    def receives(self) -> int: ...
    def modify(self, attr: QPAttr, mask: QPAttrMask, now_ns: int = 0) -> None: ...
    def enter_error(self) -> None: ...
    def discard_completions(self) -> None: ...
    def post_send(self, wr: _SendWR | Sequence[_SendWR], now_ns: int = 0, /) -> None:
        """Queue requests; those before a rejected one stay."""

    def post_recv(self, wr: _RecvWR | Sequence[_RecvWR], now_ns: int = 0, /) -> None:
        """Queue receives; those before a rejected one stay."""

    # As `urds.verbs.QP` has them, errors included: they send, and do what that leaves to the device.
    # From any thread; a list or chain is one piece of work.
    def public_post_send(self, wr: _SendWR | Iterable[_SendWR]) -> None: ...
    def public_post_recv(self, wr: _RecvWR | Iterable[_RecvWR]) -> None: ...
    def public_send(self, data: _Buffer, wr_id: int = 0, flags: int = 2) -> None: ...
    def public_write(
        self, data: _Buffer, address: int, rkey: int, wr_id: int = 0, flags: int = 2
    ) -> None: ...
    def detach_data(self) -> int: ...
    def recv_query(self) -> tuple[int, int]: ...
    def set_recv_watermarks(self, soft: int | None, hard: int | None) -> None: ...
    @property
    def ack_pending(self) -> bool: ...
    def hurry_ack(self) -> None: ...
    def poll_timeout(self) -> int | None: ...
    def close(self) -> None: ...

class Region:
    """`contract.Region`; made by `Engine.register`."""

    tag: Any

    @property
    def view(self) -> memoryview: ...
    @property
    def pd(self) -> object: ...
    @property
    def address(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def lkey(self) -> int: ...
    @property
    def rkey(self) -> int: ...
    @property
    def access(self) -> AccessFlag: ...
    @property
    def windows(self) -> int: ...

# What a connection core gives to a courier: messages without acknowledgement and without number, each
# `GatheredMessages` or owner, ports, payload, whether it was ASKS. Then the next number; packets and bytes left
# of the budget, and of a whole one; the next frame and those under way, each with whether it acknowledges alone;
# of what was received: the number expected, named, whether that is asked for, told; receives in use and at most.
_CourierMessages = tuple[list[Any], list[Any]]
_CourierNumbers = tuple[
    int, tuple[int, int, int, int], int, list[tuple[int, bool]],
    tuple[int, int, bool, int], tuple[int, int],
]  # fmt: skip
# What it gets back: the same without what is constant; the highest number acknowledged; counts; messages; header
# and bytes of one that has come in part; bytes that are done of the frame that completes next; whether the map
# is due, whether the path pauses, and which receive was not posted again.
_CourierBack = tuple[
    tuple[
        int, tuple[int, int], int, list[tuple[int, bool]], tuple[int, int, bool, int], int,
    ],
    int, list[int], GatheredMessages | None, GatheredMessages | None,
    tuple[bytes, bytes] | None, int, tuple[bool, bool, int | None],
]  # fmt: skip

class RdmaCourier:
    """The plain traffic of one connection of RDS over RDMA: `urds.rds.transports.rdma.courier`."""

    def __new__(
        cls,
        engine: ShmEngine,
        path: ExternalPath,
        queues: tuple[QueuePair, CompletionQueue, SharedReceiveQueue],
        memory: _Buffer,
        lkey: int,
        places: tuple[int, int, int],
        limits: tuple[int, int, int, int],
        doorbell: int,
        /,
    ) -> Self:
        """Make one that does nothing. Raises OSError: EINVAL beside couriers of another plane.

        `places`: receives with room for a long frame, bytes of such and of others. `limits`: receives,
        frames under way, bytes of a message, nanoseconds that an acknowledgement waits for a message
        to ride on. From the first one on threads of the plane serve the
        engine, until `ShmEngine.leave_plane`; they write to `doorbell` when the adapter has something to do.
        """

    @property
    def is_on(self) -> bool: ...

    def give(self, messages: _CourierMessages, numbers: _CourierNumbers, /) -> None:
        """Make and take frames from here on."""

    def take(self) -> _CourierBack | None:
        """Do nothing any more, and return the numbers; None: it did nothing."""

    def send_map(self) -> bool:
        """Send the local congestion map; false: the courier does nothing, its owner does."""

    def close(self) -> None:
        """Serve the queue pair no more; its owner has taken the numbers."""

class MemoryWindow:
    """`contract.MemoryWindow`; made by `Engine.window`."""

    @property
    def pd(self) -> object: ...
    @property
    def kind(self) -> int: ...
    @property
    def rkey(self) -> int: ...
    @property
    def region(self) -> Region | None: ...

class SGE:
    """As `urds.verbs.engine.work.SGE`."""

    def __new__(cls, addr: int, length: int, lkey: int) -> Self: ...
    @property
    def addr(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def lkey(self) -> int: ...

class RecvWR:
    """As `urds.verbs.engine.work.RecvWR`."""

    wr_id: int
    sg: list[Any]
    next_wr: RecvWR | None
    num_sge: int | None

    def __new__(
        cls,
        wr_id: int = 0,
        sg: list[Any] = ...,
        next_wr: RecvWR | None = None,
        *,
        num_sge: int | None = None,
    ) -> Self: ...

class SendWR:
    """As `urds.verbs.engine.work.SendWR`."""

    wr_id: int
    opcode: WROpcode
    sg: list[Any]
    send_flags: SendFlag
    imm_data: int
    invalidate_rkey: int
    remote_addr: int
    rkey: int
    compare_add: int
    swap: int
    compare_mask: int
    swap_mask: int
    boundary: int
    ah: AddressVector | None
    remote_qpn: int
    remote_qkey: int
    window: Any
    bind: Any
    data: bytes | memoryview | None
    next_wr: SendWR | None
    num_sge: int | None

    def __new__(
        cls,
        wr_id: int = 0,
        opcode: WROpcode = ...,
        sg: list[Any] = ...,
        send_flags: SendFlag = ...,
        imm_data: int = 0,
        invalidate_rkey: int = 0,
        remote_addr: int = 0,
        rkey: int = 0,
        compare_add: int = 0,
        swap: int = 0,
        compare_mask: int = ...,
        swap_mask: int = ...,
        boundary: int = 0,
        ah: AddressVector | None = None,
        remote_qpn: int = 0,
        remote_qkey: int = 0,
        window: Any = None,
        bind: Any = None,
        data: bytes | memoryview | None = None,
        next_wr: SendWR | None = None,
        *,
        num_sge: int | None = None,
    ) -> Self: ...
    @property
    def message_bytes(self) -> int: ...
    def set_wr_rdma(self, rkey: int, addr: int) -> None: ...
    def set_wr_ud(self, ah: Any, qpn: int, qkey: int) -> None: ...
    def set_wr_atomic(self, rkey: int, addr: int, compare_add: int, swap: int = 0) -> None: ...
    def set_wr_masked_atomic(
        self,
        rkey: int,
        addr: int,
        compare_add: int,
        swap: int = 0,
        *,
        compare_mask: int = ...,
        swap_mask: int = ...,
        boundary: int = 0,
    ) -> None: ...

_SendWR = SendWR | work.SendWR
_RecvWR = RecvWR | work.RecvWR

# -- the stream core of rsockets: see `urds.rsocket.core.stream`

# kind, bytes, (ordinal of a send, offset, length), address, rkey, immediate data
_PlainPost = tuple[str, bytes | None, tuple[int, int, int], int, int, int | None]

class StreamCore:
    """`StreamCore` of Python with flat calls; `tests/support/native_stream.py` has its parts.

    The emulation of librdmacm is Python's alone. Memory that the ring wants to grow into and gives
    back is the caller's to bring and to release, after each read.
    """

    def __new__(cls, settings: StreamSettings, memory: _Buffer, address: int, rkey: int) -> Self:
        """Make a stream with `region_bytes` of zeroed memory. Raises ValueError for less."""

    @staticmethod
    def region_bytes(settings: StreamSettings) -> int: ...
    def begin_at(self, messages: int) -> None:
        """Have exchanged so many messages, all read: for tests."""

    @property
    def connect_data(self) -> bytes: ...
    def adopt(self, data: bytes) -> None: ...
    def send(self, data: _Buffer, may_zero_copy: bool) -> tuple[int, int]:
        """Return how many bytes were taken, and the ordinal by which posts refer to the data."""

    def write_mapped(self, data: _Buffer, offset: int, may_zero_copy: bool) -> tuple[int, int]: ...
    def poll_transmit(self) -> _PlainPost | None: ...
    def handle_posted(self) -> None: ...
    def handle_sent(self) -> None: ...
    def handle_disconnected(self, reason: str, error: int) -> None: ...
    def receive_data(self, word: int) -> None: ...
    def receive(self, wanted: int, peek: bool) -> bytes: ...
    @property
    def wanted_ring(self) -> int | None: ...
    def grow(self, memory: _Buffer, address: int, rkey: int) -> None: ...
    def refuse_growth(self) -> None: ...
    def take_released(self) -> list[tuple[int, int]]:
        """Return address and key of memory into which the peer writes no more."""

    def expect(self, memory: _Buffer, address: int, rkey: int, byte_count: int) -> int: ...
    def end_expect(self) -> int: ...
    def holds(self, address: int, length: int) -> bool: ...
    def map_buffer(
        self, name: int, address: int, rkey: int, length: int, offset: int | None
    ) -> int: ...
    def unmap(self, name: int, address: int) -> None: ...
    def is_mapped(self, offset: int) -> bool: ...
    def shut_down(self, how: int) -> None: ...
    def take_error(self) -> int: ...
    def set_keepalive(self, interval_ns: int | None) -> None: ...
    def set_no_delay(self, no_delay: bool) -> None: ...
    def poll_timeout(self) -> int | None: ...
    def handle_timeout(self, now_ns: int) -> None: ...
    def close(self) -> None: ...
    def values(self) -> dict[str, Any]:
        """Return all that can be seen, by the names of Python's core: `sending.credits`."""

    def stats(self) -> list[int]:
        """Return the counters in the order of `StreamStats`."""

class Stream:
    """The stream of an rsocket over a `shm` device: `urds.rsocket.link.native_stream` has its words.

    Any thread, with or without the device's lock. `send_some`, `take_some` and the like never wait;
    the calls at the end are placed in a socket, and call `transfer` for what they leave.
    """

    def __new__(cls, engine: ShmEngine, qp: QueuePair, settings: object, source: object) -> Self:
        """Make a stream on a queue pair in INIT; `source` has `allocate` and `release`.

        Raises OSError: EINVAL in another state, what `source` raises.
        """

    @property
    def connect_data(self) -> bytes: ...
    def adopt(self, data: bytes) -> str | None:
        """Take the private data of the peer; return what is wrong with them."""

    def begin(self) -> None:
        """Take words that came before the connect data, and begin to send."""

    def send_some(self, data: object, may_zero_copy: bool = True) -> int:
        """Take bytes to send; return how many. Raises OSError: ENOTCONN, EPIPE, ECONNRESET."""

    def write_some(self, data: object, offset: int) -> int:
        """Write into buffers of the peer; else as `send_some`."""

    def take_some(self, bytes_max: int, peek: bool) -> bytes:
        """Return bytes that are there, after a look at the channels."""

    def take_some_into(self, view: object, peek: bool) -> int:
        """Copy bytes that are there; return how many."""

    def post_pending(self) -> None: ...
    def expect(self, memory: object, byte_count: int) -> int:
        """Raises RuntimeError: another receive is expected."""

    def end_expect(self) -> int: ...
    def take_ahead(self, view: object) -> int:
        """Take bytes in front of those that are expected, while looking finds some."""

    def look_filled(self) -> bool:
        """Look for a moment whether all that is expected has come."""

    def holds(self, address: int, length: int) -> bool: ...
    def map_buffer(self, address: int, rkey: int, length: int, offset: int) -> None:
        """Raises OSError: EINVAL, ENOMEM."""

    def unmap(self, rkey: int, address: int) -> None:
        """Raises OSError: EINVAL."""

    def is_mapped(self, offset: int) -> bool: ...
    def shut_down(self, how: int) -> None: ...
    def handle_disconnected(self, reason: str, error: int) -> None: ...
    def take_error(self) -> int: ...
    def take_cut(self) -> str | None:
        """Return why the connection is to be cut."""

    def close(self) -> None: ...
    def poll_timeout(self) -> int | None: ...
    def handle_timeout(self, now_ns: int) -> None: ...
    def set_keepalive(self, interval_ns: int | None, /) -> None: ...
    def set_no_delay(self, no_delay: bool) -> None: ...
    @property
    def word(self) -> int:
        """Bits: readable, writable, ended, can read, can write, over, wants to disconnect, cut.

        Then whether a keepalive is out, and whether nothing is expected that has not come.
        """

    def listen(self) -> None:
        """Have changes of readiness told, until `leave`; look at the word afterwards."""

    def leave(self) -> None: ...
    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def error(self) -> int: ...
    @property
    def is_connected(self) -> bool: ...
    @property
    def is_urds_peer(self) -> bool: ...
    @property
    def is_drained(self) -> bool: ...
    def counts(self) -> tuple[int, int, int, bool]:
        """Readable, expected and missing, unsent bytes; whether a mapped write would take some."""

    def stats(self) -> tuple[int, ...]:
        """Return the fields of `StreamStats`."""

    def place(self, transfer: object, look_ns: int) -> None:
        """Have `transfer` do what the calls of a socket leave.

        Before they sleep they look for news that long, without the interpreter, unless the peer
        ran last on the same processor.
        """

    def set_wait_ns(self, wait_ns: int) -> None:
        """Say how long they may wait, -1 for ever."""

    def set_expecting(self, is_expecting: bool) -> None: ...
    def end_waits(self) -> None:
        """End the waits of placed methods: the socket is closed. Any thread."""

    def set_watched(self, is_watched: bool) -> None:
        """Have changes of readiness told, and `transfer.tell` called after each call."""

    def send(self, data: object, flags: int = 0, /) -> int: ...
    def sendall(self, data: object, flags: int = 0, /) -> None: ...
    def write_mapped(self, data: object, offset: int, flags: int = 0) -> int: ...
    def recv(self, bytes_max: int, flags: int = 0, /) -> bytes: ...
    def recv_into(self, buffer: object, nbytes: int = 0, flags: int = 0) -> int: ...
