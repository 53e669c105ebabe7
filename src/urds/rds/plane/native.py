"""The compiled data plane of a process, behind the contract of `rds.plane.contract`.

The classes of `urds_native` use plain values, the thin classes here the contract's records: an
address is packed bytes and a scope, 0 without one; an event and a row of a table arrive as tuples
of plain values, as declared in `native/urds_native.pyi`. The calls of every message,
`Mailbox.sendto` and `Mailbox.recvfrom`, are inherited unchanged.
"""

# The contract has records and keywords where the module has plain values.
# mypy: disable-error-code="override"

from __future__ import annotations

import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self, cast

import urds_native

from urds.common.records import names
from urds.common.types import IPAddress
from urds.rds.addresses import known_peer
from urds.rds.plane import contract
from urds.rds.plane.loop_path import LoopPath

if TYPE_CHECKING:
    from urds.rds.plane.message_transport import MessageTransport

_ADDRESSES_MAX = 4096  # events and tables repeat few addresses often
_INTERNET = frozenset({socket.AF_INET, socket.AF_INET6})
_NO_DESCRIPTOR = -1
# The fields of a record, in the order of its declaration.
_plain_limits = attrgetter(*names(contract.Limits))
_plain_received = attrgetter(*names(contract.Received))
_plain_settings = attrgetter(*names(contract.MailboxSettings))


def plain(address: IPAddress) -> tuple[bytes, int]:
    """Return the packed bytes and the scope of an address."""
    scope = address.scope_id if isinstance(address, IPv6Address) else None
    return address.packed, int(scope) if scope and scope.isdigit() else 0


@lru_cache(maxsize=_ADDRESSES_MAX)
def address_of(data: bytes, scope: int) -> IPAddress:
    """Return the address; mostly the same object for the same bytes."""
    if len(data) == 4:
        return IPv4Address(data)
    address = IPv6Address(data)
    return IPv6Address(f"{address}%{scope}") if scope else address


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
        path = super().__new__(cls, plane, *plain(local), *plain(peer), index, sequence_first)
        path.local, path.peer, path.index = local, peer, index
        return path

    def attach(self, stream: contract.Stream, *, hold: contract.Hold) -> None:
        """Attach a connected stream; a TCP socket is read and written without Python."""
        super().attach(stream, _descriptor_of(stream), hold.name)

    def detach(self) -> contract.Stream | None:
        """Return the stream."""
        return cast("contract.Stream | None", super().detach())

    def release(self, *, received_by_peer: int | None) -> None:
        """End `Hold.RELEASE`."""
        super().release(received_by_peer)

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

    def __new__(
        cls, plane: Plane, *, local: IPAddress, port: int, settings: contract.MailboxSettings
    ) -> Self:
        """Bind; the caller has checked that the port is free."""
        mailbox = super().__new__(cls, plane, *plain(local), port, _plain_settings(settings))
        mailbox.local, mailbox.port, mailbox.settings = local, port, settings
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
        """Queue one message gathered from `buffers`; operations raise: no path supports any."""
        return super().send(buffers, address, wait_ns, extension, bool(operations), copy)

    def receive(
        self, *, wait_ns: int | None, peek: bool = False, notices_max: int = 1
    ) -> contract.Message | contract.Notice | None:
        """Take (or peek at) the next item; None when nothing came in `wait_ns`."""
        taken = super().receive(wait_ns, peek, notices_max)
        if taken is None:
            return None
        if isinstance(taken, int):
            return contract.CongestionNotice(taken)
        return contract.Message._make(taken)

    def wait_operation(self, operation: contract.Operation, wait_ns: int | None) -> bool:
        """Return whether an operation has ended; no operation is ever under way here."""
        return operation.status is not None

    def route(self, peer: IPAddress, path: contract.Path | MessageTransport | None) -> None:
        """Set the path to `peer`; None removes it."""
        if isinstance(path, LoopPath):  # the module has none: its mailbox looks for the target
            self.route_loop(*plain(peer))
            return
        assert path is None or isinstance(path, Path), "a path of this plane"
        super().route(*plain(peer), path)

    def subscribe(
        self,
        callback: Callable[[], None],
        *,
        room: bool,
        address: contract.SocketAddress | None = None,
    ) -> Callable[[], None]:
        """Have `callback` called once, from any thread; return the cancel function."""
        peer = None if address is None else known_peer(address, self.local)
        data, scope = (None, 0) if peer is None else plain(peer)
        return super().subscribe(callback, room, data, scope)

    def configure(self, settings: contract.MailboxSettings) -> None:
        """Replace the settings."""
        super().configure(_plain_settings(settings))
        self.settings = settings

    def cancel(self, peer: IPAddress | None, port: int | None) -> int:
        """Remove unacknowledged messages to that address and port, or all; return how many."""
        data, scope = (None, 0) if peer is None else plain(peer)
        return super().cancel(data, scope, port)


class Plane(urds_native.Plane):
    """See `contract.Plane`; calls not defined here are the module's own."""

    limits: contract.Limits
    generation: int | None
    resolve: Callable[[Mailbox, IPAddress], None]
    batches: bool  # the module's own, which only it can set

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
        itself = weakref.ref(plane)
        return plane

    def mailbox(
        self, *, local: IPAddress, port: int, settings: contract.MailboxSettings
    ) -> Mailbox:
        """Bind; the caller has checked that the port is free."""
        return Mailbox(self, local=local, port=port, settings=settings)

    def path(self, *, local: IPAddress, peer: IPAddress, index: int, sequence_first: int) -> Path:
        """Create a path without a stream."""
        return Path(self, local=local, peer=peer, index=index, sequence_first=sequence_first)

    def loop(self, *, local: IPAddress, peer: IPAddress) -> LoopPath:
        """Create a path between two addresses of this process."""
        return LoopPath(local=local, peer=peer)

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

    def watch(self, descriptor: int, interest: contract.Interest) -> None:
        """Report `Ready` once."""
        super().watch(descriptor, int(interest))

    def help(self, deadline_ns: int | None) -> list[contract.Event]:
        """Do the work that no application thread does; return events, or [] at the deadline."""
        return [_event_of(report) for report in super().help(deadline_ns)]

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
        ends = [(*plain(address), port) for address, port in (local, peer)]
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


def _event_of(report: tuple[Any, ...]) -> contract.Event:
    """Return the record of a report: its name, then plain values."""
    return _MAKERS[report[0]](*report[1:])


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
    data, peer_scope, peer_port = peer
    source, target = address_of(local, scope), address_of(data, peer_scope)
    return contract.MessageRow(sequence, payload_bytes, source, port, target, peer_port)
