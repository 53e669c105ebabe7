"""The compiled data plane of a process, behind the contract of `rds.plane.contract`.

The classes of `urds_native` use plain values, the thin classes here the contract's records: an
address is packed bytes and a scope, 0 without one; an event and a row of a table arrive as tuples
of plain values, as declared in `native/urds_native.pyi`. The calls of every message,
`Mailbox.sendto`, `recvfrom` and `recv_into`, are inherited unchanged.
"""

# The contract has records and keywords where the module has plain values.
# mypy: disable-error-code="override"

from __future__ import annotations

import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, index
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Self, cast

import urds_native

from urds.common.receive_buffers import writable
from urds.common.records import names
from urds.common.types import IPAddress
from urds.rds.addresses import address_of, known_peer, packed_of, parse_target
from urds.rds.constants import RdmaStatus
from urds.rds.plane import contract, message_transport
from urds.rds.plane.loop_path import LoopPath
from urds.rds.plane.message_transport import Charge, gathered
from urds.rds.types import Hold

if TYPE_CHECKING:
    from urds.rds.plane.message_transport import MessageTransport

_INTERNET = frozenset({socket.AF_INET, socket.AF_INET6})
_NO_DESCRIPTOR = -1
_FLAGS = (1 << 32) - 1  # those that there are
# The fields of a record, in the order of its declaration.
_plain_limits = attrgetter(*names(contract.Limits))
_plain_received = attrgetter(*names(contract.Received))
plain_settings = attrgetter(*names(contract.MailboxSettings))


class Path(urds_native.Path):
    """See `contract.Path`; calls not defined here are the module's own."""

    local: IPAddress
    peer: IPAddress
    index: int
    attachment: int  # the module's own, which only it can set

    def __new__(
        cls, plane: Plane, *, local: IPAddress, peer: IPAddress, index: int, sequence_first: int
    ) -> Self:
        """Create a path without a stream."""
        path = super().__new__(
            cls, plane, *packed_of(local), *packed_of(peer), index, sequence_first
        )
        path.local, path.peer, path.index = local, peer, index
        return path

    def attach(self, stream: contract.Stream, *, hold: Hold, probe: bytes | None = None) -> None:
        """Attach a connected stream; a TCP socket is read and written without Python."""
        super().attach(stream, _descriptor_of(stream), hold.name, probe)

    def detach(self) -> contract.Stream | None:
        """Return the stream."""
        return cast("contract.Stream | None", super().detach())

    def end_hold(self, *, received_by_peer: int | None) -> None:
        """End `Hold.HELLO`."""
        super().end_hold(received_by_peer)

    def agree(self, agreement: contract.Agreement) -> None:
        """Set what the handshake agreed with the peer."""
        ack_mode = agreement.ack_mode.name
        super().agree((ack_mode, agreement.checksum, agreement.message_bytes_max))

    def activity(self) -> contract.PathActivity:
        """Return how far the path is."""
        return contract.PathActivity(*super().activity())

    def hold_behind(self, other: contract.Path | None) -> None:
        """Hold new messages until `other` has delivered its present queue."""
        assert other is None or isinstance(other, Path), "a path of this plane"
        super().hold_behind(other)

    def control(
        self, *, source_port: int, target_port: int, extension: bytes, hello: bool = False
    ) -> None:
        """Queue a ping, pong or probe."""
        super().control(source_port, target_port, extension, hello)


class Gathered:
    """See `message_transport.Gathered`."""

    def __init__(self, messages: urds_native.GatheredMessages, plane: Plane) -> None:
        self._messages = self.compiled = messages
        self._owners = {number: plane.mailboxes[number] for number, _, _ in messages.accounts()}
        self.frame_bytes, self.payload_bytes = messages.frame_bytes, messages.payload_bytes
        self.emit = messages.emit

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._messages)

    def accounts(self) -> list[tuple[contract.Mailbox, int, int]]:
        """Return mailboxes, each with its messages and their bytes."""
        accounts = self._messages.accounts()
        return [(self._owners[number], count, size) for number, count, size in accounts]

    def messages(self) -> list[tuple[contract.Mailbox, int, int, bytes, bool]]:
        """Return each with its mailbox."""
        return [
            (self._owners[number], source_port, target_port, payload, asks)
            for number, source_port, target_port, payload, asks in self._messages.messages()
        ]


class ExternalPath(urds_native.ExternalPath):
    """See `message_transport.ExternalPath`; calls not defined here are the module's own."""

    local: IPAddress
    peer: IPAddress
    transport: MessageTransport
    closed: set[Mailbox]  # kept for messages of theirs that gather or that compiled code has taken
    _plane: Plane

    def __new__(
        cls,
        plane: Plane,
        *,
        local: IPAddress,
        peer: IPAddress,
        tos: int,
        message_bytes_max: int,
        transport: MessageTransport,
    ) -> Self:
        """Create the plane's part of a path."""
        path = super().__new__(
            cls, plane, *packed_of(local), *packed_of(peer), tos, message_bytes_max
        )
        path.local, path.peer, path.transport, path._plane = local, peer, transport, plane
        path.closed = set()
        return path

    def charge(
        self, mailbox: contract.Mailbox, port: int, payload_bytes: int, *, may_wait: bool
    ) -> Charge:
        """Charge a message of a mailbox."""
        assert isinstance(mailbox, Mailbox), "a mailbox of this plane"
        return _CHARGES[super().charge(mailbox, port, payload_bytes, may_wait)]

    def wait_for_charge(
        self,
        mailbox: contract.Mailbox,
        port: int,
        payload_bytes: int,
        *,
        is_first: bool,
        wait_ns: int | None,
    ) -> bool:
        """Wait until a charge may succeed; return false when the time is over."""
        assert isinstance(mailbox, Mailbox), "a mailbox of this plane"
        return super().wait_for_charge(mailbox, port, payload_bytes, is_first, wait_ns)

    def refund(self, mailbox: contract.Mailbox, *, messages: int, payload_bytes: int) -> None:
        """End the charge of messages that left the path."""
        assert isinstance(mailbox, Mailbox), "a mailbox of this plane"
        super().refund(mailbox, messages, payload_bytes)

    def held(self, mailbox: contract.Mailbox) -> tuple[int, int]:
        """Return how many messages of a mailbox are charged, and their bytes."""
        assert isinstance(mailbox, Mailbox), "a mailbox of this plane"
        return super().held(mailbox)

    def take_gathered(self) -> message_transport.Gathered | None:
        """Take what has gathered, if anything has."""
        messages = super().take_gathered()
        gathered = None if messages is None else Gathered(messages, self._plane)
        if self.closed:
            self.closed = {one for one in self.closed if self.held(one)[0]}
        return gathered

    def gathered_of(self, messages: urds_native.GatheredMessages) -> message_transport.Gathered:
        """Return messages that compiled code has taken of what gathered."""
        return Gathered(messages, self._plane)

    def fail(self, mailbox: contract.Mailbox) -> None:
        """Note that messages to the peer were dropped."""
        assert isinstance(mailbox, Mailbox), "a mailbox of this plane"
        super().fail(mailbox)

    def close(self) -> None:
        """Remove the path and every route over it."""
        super().close()
        self._plane.external_paths.pop(self.number, None)


_CHARGES: Mapping[str, Charge] = {charge.name: charge for charge in Charge}


def _descriptor_of(stream: contract.Stream) -> int:
    """Return the descriptor of a TCP socket, which needs no call of Python; else -1."""
    if isinstance(stream, socket.socket) and stream.family in _INTERNET:
        return stream.fileno()
    return _NO_DESCRIPTOR


class Mailbox(urds_native.Mailbox):
    """See `contract.Mailbox`; calls not defined here are the module's own."""

    local: IPAddress
    port: int
    settings: contract.MailboxSettings
    plane: Plane
    _external_routes: dict[IPAddress, ExternalPath]
    _is_closed: bool

    def __new__(
        cls,
        plane: Plane,
        *,
        local: IPAddress,
        port: int,
        settings: contract.MailboxSettings,
        made: list[int],
    ) -> Self:
        """Bind; the caller has checked that the port is free. `made` is given its number."""
        data, scope = packed_of(local)
        mailbox = super().__new__(cls, plane, data, scope, port, plain_settings(settings), made)
        mailbox.local, mailbox.port, mailbox.settings = local, port, settings
        mailbox.plane = plane
        mailbox._external_routes = {}
        mailbox._is_closed = False
        plane.mailboxes[mailbox.number] = mailbox
        return mailbox

    def send(
        self,
        buffers: Sequence[contract.Buffer],
        address: contract.SocketAddress,
        *,
        wait_ns: int | None,
        extension: bytes = b"",
        operations: Sequence[contract.Operation] = (),
        copy: bool = True,
    ) -> int:
        """Queue one message gathered from `buffers`; only message transports have operations."""
        sent = super().send(buffers, address, wait_ns, extension, bool(operations), copy)
        if sent is not None:
            return sent
        return self.send_outside(buffers, address, wait_ns, extension, operations, copy=copy)

    def send_outside(
        self,
        buffers: Sequence[contract.Buffer],
        address: contract.SocketAddress,
        wait_ns: int | None,
        extension: bytes = b"",
        operations: Sequence[contract.Operation] = (),
        *,
        copy: bool = True,
    ) -> int:
        """Have the message transport that has the route send a message; the module calls it."""
        payload = gathered(buffers, copy=copy)
        target = parse_target(address, self.local)
        return message_transport.send(self, payload, target, wait_ns, extension, operations)

    def recv_into_given(
        self, buffer: Any, nbytes: int = 0, flags: int = 0
    ) -> tuple[memoryview, int, int]:
        """Return the bytes to fill and flags, as `Socket.recv_into`; the module calls it."""
        return writable(buffer, nbytes, "recv_into"), 0, index(flags) & _FLAGS

    def resolve(self, peer: IPAddress) -> None:
        """Have the control plane make a route to a peer."""
        self.plane.resolve(self, peer)

    def external_route(self, peer: IPAddress) -> ExternalPath | None:
        """Return the route to a peer if a message transport has it."""
        return self._external_routes.get(peer)

    def receive(
        self, *, wait_ns: int | None, peek: bool = False, notices_max: int = 1
    ) -> contract.Message | contract.Notice | None:
        """Take (or peek at) the next item; None when nothing came in `wait_ns`."""
        taken = super().receive(wait_ns, peek, notices_max)
        if taken is None:
            return None
        if isinstance(taken, int):
            return contract.CongestionNotice(taken)
        if isinstance(taken, list):
            notices = (contract.OperationNotice(token, RdmaStatus(end)) for token, end in taken)
            return contract.OperationNotices(notices)
        return contract.Message._make(taken)

    def wait_operation(self, operation: contract.Operation, wait_ns: int | None) -> bool:
        """Wait until an operation has ended; return whether it has. Raises EBADF once closed."""
        until_ns = None if wait_ns is None else monotonic_ns() + wait_ns
        while operation.status is None:
            seen = super().operations_ended()
            if operation.status is not None:
                break
            left_ns = None if until_ns is None else max(0, until_ns - monotonic_ns())
            if not super().wait_operation(seen, left_ns):
                break
        return operation.status is not None

    def note_operation(self, operation: contract.Operation) -> None:
        """Note that an operation of this mailbox has ended."""
        assert operation.status is not None, "an operation ends with a status"
        super().note_operation(operation.wants_notice, operation.token, int(operation.status))

    def route(
        self, peer: IPAddress, path: contract.Path | message_transport.ExternalPath | None
    ) -> None:
        """Set the path to `peer`; None removes it."""
        if isinstance(path, ExternalPath):
            self._external_routes[peer] = path
            self.route_external(*packed_of(peer), path)
            return
        self._external_routes.pop(peer, None)
        if isinstance(path, LoopPath):  # the module has none: its mailbox looks for the target
            self.route_loop(*packed_of(peer))
            return
        assert path is None or isinstance(path, Path), "a path of this plane"
        super().route(*packed_of(peer), path)

    def subscribe(
        self,
        callback: Callable[[], None],
        *,
        room: bool,
        address: contract.SocketAddress | None = None,
    ) -> Callable[[], None]:
        """Have `callback` called once, from any thread; return the cancel function."""
        peer = None if address is None else known_peer(address, self.local)
        data, scope = (None, 0) if peer is None else packed_of(peer)
        return super().subscribe(callback, room, data, scope)

    def configure(self, settings: contract.MailboxSettings) -> None:
        """Replace the settings."""
        if settings.tos != self.settings.tos:  # routes may use other connections now
            self._external_routes.clear()
        super().configure(plain_settings(settings))
        self.settings = settings

    def cancel(self, peer: IPAddress | None, port: int | None) -> int:
        """Remove unacknowledged messages to that address and port, or all; return how many."""
        data, scope = (None, 0) if peer is None else packed_of(peer)
        count = super().cancel(data, scope, port)
        for path in self.plane.external_paths_of(self.local):
            if peer is None or path.peer == peer:
                count += path.transport.cancel(self, port)
        return count

    def close(self, linger_ns: int | None = None) -> None:
        """Unbind; what message transports still have after `linger_ns` is cancelled."""
        for path in () if self._is_closed else self.plane.external_paths_of(self.local):
            if path.held(self)[0]:
                path.closed = {one for one in path.closed if path.held(one)[0]} | {self}
        super().close(linger_ns)
        if self._is_closed:
            return
        self._is_closed = True
        if linger_ns is not None:
            for path in self.plane.external_paths_of(self.local):
                path.transport.cancel(self, None)


# A TypeError about arguments names the call of a socket.
Mailbox.recv_into_given.__qualname__ = "Socket.recv_into"


class Plane(urds_native.Plane):
    """See `contract.Plane`; calls not defined here are the module's own."""

    limits: contract.Limits
    generation: int | None
    resolve: Callable[[Mailbox, IPAddress], None]
    batches: bool  # the module's own, which only it can set
    mailboxes: weakref.WeakValueDictionary[int, Mailbox]  # by their numbers in events
    external_paths: dict[int, ExternalPath]  # the same

    def __new__(
        cls,
        *,
        limits: contract.Limits,
        resolve: Callable[[Mailbox, IPAddress], None],
        clock_ns: Callable[[], int] | None = None,
        generation: int | None = None,
    ) -> Self:
        """Create a plane; `clock_ns` is for tests: with it no call ever waits."""
        # The module must not own an object that owns the plane: no collector looks into it.
        itself: weakref.ref[Self]

        def find(mailbox: Mailbox, data: bytes, scope: int) -> None:
            plane = itself()
            if plane is not None:
                plane.resolve(mailbox, address_of(data, scope))

        plane = super().__new__(cls, _plain_limits(limits), find, clock_ns, generation)
        plane.limits, plane.resolve, plane.generation = limits, resolve, generation
        plane.mailboxes = weakref.WeakValueDictionary()
        plane.external_paths = {}
        itself = weakref.ref(plane)
        return plane

    def mailbox(
        self, *, local: IPAddress, port: int, settings: contract.MailboxSettings
    ) -> Mailbox:
        """Bind; the caller has checked that the port is free."""
        made: list[int] = []
        try:
            return Mailbox(self, local=local, port=port, settings=settings, made=made)
        except BaseException:  # of a signal handler: no caller gets this mailbox
            for number in made:
                self.discard_mailbox(number)
            raise

    def path(self, *, local: IPAddress, peer: IPAddress, index: int, sequence_first: int) -> Path:
        """Create a path without a stream."""
        return Path(self, local=local, peer=peer, index=index, sequence_first=sequence_first)

    def loop(self, *, local: IPAddress, peer: IPAddress) -> LoopPath:
        """Create a path between two addresses of this process."""
        return LoopPath(local=local, peer=peer)

    def external_path(
        self,
        *,
        local: IPAddress,
        peer: IPAddress,
        tos: int,
        message_bytes_max: int,
        transport: MessageTransport,
    ) -> ExternalPath:
        """Create the plane's part of a path that a message transport has."""
        path = ExternalPath(
            self,
            local=local,
            peer=peer,
            tos=tos,
            message_bytes_max=message_bytes_max,
            transport=transport,
        )
        self.external_paths[path.number] = path
        return path

    def external_paths_of(self, local: IPAddress) -> list[ExternalPath]:
        """Return the paths of message transports of a local address."""
        if not self.external_paths:
            return []
        return [path for path in tuple(self.external_paths.values()) if path.local == local]

    def received(self, path: contract.Path) -> contract.Received:
        """Return the peer's numbers on a path."""
        assert isinstance(path, Path), "a path of this plane"
        expected, floor, probe, generation, map_generation, watch_restarts = super().received(path)
        return contract.Received(
            sequence_expected=expected,
            floor=floor,
            probe_sequence=probe,
            generation=generation,
            map_generation=map_generation,
            watch_restarts=watch_restarts,
        )

    def expect(self, path: contract.Path, received: contract.Received) -> None:
        """Have a path continue from an earlier one to the same peer."""
        assert isinstance(path, Path), "a path of this plane"
        super().expect(path, _plain_received(received))

    def move_queue(
        self, path: contract.Path, other: contract.Path, mailboxes: Sequence[contract.Mailbox]
    ) -> None:
        """Route mailboxes over another path to a peer, and move what was never sent there."""
        assert isinstance(path, Path) and isinstance(other, Path), "paths of this plane"
        super().move_queue(path, other, cast("Sequence[Mailbox]", mailboxes))

    def watch(self, descriptor: int, interest: contract.Interest) -> None:
        """Report `Ready` once."""
        super().watch(descriptor, int(interest))

    def help(self, deadline_ns: int | None) -> list[contract.Event]:
        """Do the work that no application thread does; return events, or [] at the deadline."""
        events = (self._event_of(report) for report in super().help(deadline_ns))
        return [event for event in events if event is not None]

    def _event_of(self, report: tuple[Any, ...]) -> contract.Event | None:
        """Return the record of a report: its name, then plain values; None if it is late."""
        name, *values = report
        if name == "LocalMapChanged":
            return contract.LocalMapChanged(address_of(*values))
        if name in _OF_CLIENTS:
            return self._event_of_client(name, *values)
        if name not in _OF_EXTERNAL_PATHS:
            return _MAKERS[name](*values)
        path = self.external_paths.get(values[0])
        if path is None:
            return None
        if name == "Resumed":
            return contract.Resumed(path)
        mailbox = self.mailboxes.get(values[1])  # its messages keep it
        if mailbox is None:
            return None
        return _OF_EXTERNAL_PATHS[name](path, mailbox)

    def _event_of_client(self, name: str, number: int, *values: Any) -> contract.Event | None:
        """Return the record of a report on a mailbox of another process; None if it is late."""
        mailbox = self.mailboxes.get(number)
        if mailbox is None:
            return None
        if name == "RouteWanted":
            return contract.RouteWanted(mailbox, address_of(*values))
        return _OF_CLIENTS[name](mailbox, *values)

    def is_inside(self) -> bool:
        """Return False: no Python instruction runs while the module holds its lock."""
        return False

    def snapshot(self) -> contract.Snapshot:
        """Return counters and tables."""
        return _snapshot_of(*super().snapshot())


Place = tuple[IPAddress, int]  # an RDS address and a port, as TCP would have them


class ShmStream(urds_native.ShmStream):
    """A `contract.Stream` that the compiled plane reads and writes without Python."""

    def __new__(
        cls, line: int, memory: int, ring_bytes: int, *, dials: bool, local: Place, peer: Place
    ) -> Self:
        """Make the local end on a control socket and sealed memory; the caller keeps both.

        Raises OSError if the memory is not as agreed, or there is no room for it.
        """
        ends = [(*packed_of(address), port) for address, port in (local, peer)]
        return super().__new__(cls, line, memory, ring_bytes, dials, *ends)

    def recv_into(self, memory: memoryview, /) -> int:
        """Read once into memory; return the bytes, 0 at the end."""
        data = self.recv(len(memory))
        memory[: len(data)] = data
        return len(data)

    def unanswered_retransmits(self) -> int:
        """Return 0: the kernel reports a dead peer at once.

        The periodic check for dead streams calls this; the call also releases idle ring pages.
        """
        self.rest_memory()
        return 0

    def abort_on_close(self) -> None:
        """Do nothing: neither end of a shm stream waits for anything."""

    def reset(self) -> None:
        """Close."""
        self.close()


def _down(path: Path, reason: str, errno: int, frames: int, attachment: int) -> contract.Down:
    return contract.Down(path, contract.DownReason[reason], errno, frames, attachment)


def _ready(descriptor: int, interest: int) -> contract.Ready:
    return contract.Ready(descriptor, contract.Interest(interest))


_MAKERS: Mapping[str, Callable[..., contract.Event]] = {
    "ConnectWanted": contract.ConnectWanted,
    "FirstFrame": contract.FirstFrame,
    "Down": _down,
    "Control": contract.Control,
    "PeerRestarted": contract.PeerRestarted,
    "LingerOver": contract.LingerOver,
    "Ready": _ready,
}
_OF_EXTERNAL_PATHS: Mapping[str, Callable[..., contract.Event]] = {
    "Resumed": contract.Resumed,
    "GiveUp": contract.GiveUp,
    "LingerEnded": contract.LingerEnded,
}
_OF_CLIENTS: Mapping[str, Callable[..., contract.Event]] = {
    "Left": contract.Left,
    "ClientError": contract.ClientError,
    "RouteWanted": contract.RouteWanted,
}
_NO_TOS = 0  # TCP reports every type of service as 0


def _snapshot_of(
    counters: dict[str, int],
    mailboxes: Sequence[tuple[Any, ...]],
    paths: Sequence[tuple[Any, ...]],
    *messages: Sequence[tuple[Any, ...]],
) -> contract.Snapshot:
    """Return the record of the plane's copy; messages in three tables, as in `Snapshot`."""
    unsent, unacknowledged, received = ([_message_row(*row) for row in table] for table in messages)
    return contract.Snapshot(
        counters=counters,
        mailboxes=[contract.MailboxRow(address_of(*row[:2]), *row[2:]) for row in mailboxes],
        paths=[_path_row(*row) for row in paths],
        send_queue=unsent,
        retransmit_queue=unacknowledged,
        receive_queue=received,
    )


def _path_row(
    local: bytes, local_scope: int, peer: bytes, peer_scope: int, index: int, *values: Any
) -> contract.PathRow:
    *states, carrier, streams = values
    return contract.PathRow(
        address_of(local, local_scope),
        address_of(peer, peer_scope),
        index,
        contract.Carrier(carrier),
        _NO_TOS,
        *states[:7],  # up to the unacknowledged messages
        *(streams or (None, None)),
        *states[7:],
    )


def _message_row(
    sequence: int, payload_bytes: int, local: bytes, scope: int, port: int, *peer: Any
) -> contract.MessageRow:
    data, peer_scope, peer_port, tos = peer
    source, target = address_of(local, scope), address_of(data, peer_scope)
    return contract.MessageRow(sequence, payload_bytes, source, port, target, peer_port, tos)
