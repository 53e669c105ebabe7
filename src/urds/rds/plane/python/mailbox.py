"""A bound socket: queue and take messages, wait, cancel, close.

`sendto` and `recvfrom` have the signature of `socket.socket` and are placed into a bound `Socket`
unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import index
from os import eventfd_write
from typing import TYPE_CHECKING, cast

from urds.common.errors import ErrorReason, os_error
from urds.common.readiness import ReadinessDescriptor, changes_one_here
from urds.common.types import IPAddress
from urds.rds.addresses import is_name, known_peer
from urds.rds.constants import (
    MSG_DONTWAIT,
    MSG_ERRQUEUE,
    MSG_NOSIGNAL,
    MSG_OOB,
    MSG_PEEK,
    MSG_ZEROCOPY,
)
from urds.rds.plane.contract import (
    ALL_GROUPS,
    Buffer,
    CongestionNotice,
    MailboxSettings,
    Message,
    Notice,
    Operation,
    OperationNotice,
    OperationNotices,
    Path,
    SocketAddress,
)
from urds.rds.plane.python import queueing, receive_side
from urds.rds.plane.python.accounts import Destination, SendAccounts
from urds.rds.plane.python.host import Host, LoopPath
from urds.rds.plane.python.inbox import Inbox, Item
from urds.rds.plane.python.path import LONG_WRITE_BYTES
from urds.rds.plane.python.stream_path import StreamPath
from urds.rds.plane.python.waiting import Waiter, Waiters

if TYPE_CHECKING:
    from urds.rds.plane.message_transport import MessageTransport
    from urds.rds.plane.python.plane import Plane

_DONTWAIT = int(MSG_DONTWAIT)
_PEEK = int(MSG_PEEK)
_SENT = _DONTWAIT | int(MSG_NOSIGNAL)  # docs/differences.md
_ZEROCOPY = int(MSG_ZEROCOPY)
_OUT_OF_BAND = int(MSG_OOB)
_NEVER_QUEUED = int(MSG_OOB | MSG_ERRQUEUE)
_GROUPS = 64
_TARGETS_MAX = 4096


class Mailbox(Inbox):
    """See `contract.Mailbox`."""

    def __init__(self, plane: Plane, host: Host, *, port: int, settings: MailboxSettings) -> None:
        super().__init__(port=port, buffer_bytes=settings.receive_bytes_max)
        self.local = host.address
        self._plane = plane
        self._lock, self._holds_lock = plane.lock, plane.holds_lock
        self._host = host
        self.closed = False
        self.send_queued_bytes = 0
        self.accounts = SendAccounts()
        self.given_up = 0
        self.receive_waiters = Waiters()
        self.room_waiters = Waiters()
        # Literal addresses of sent messages, until a route changes.
        self.targets: dict[SocketAddress, tuple[IPAddress, int]] = {}
        self._routes: dict[IPAddress, StreamPath | LoopPath | MessageTransport] = {}
        self._failed: set[IPAddress] = set()
        self.notices: deque[OperationNotice] = deque()
        self.operation_waiters = Waiters()
        self._notice_groups = 0
        self._wait_groups = 0  # groups that returned ENOBUFS while the monitor was on
        self._saw_congestion = False  # an ENOBUFS since the last map update: poll must wake
        self._map_news = False
        self.descriptor: ReadinessDescriptor | None = None
        self._configured = settings  # possibly not yet applied
        self._apply(settings)

    def _apply(self, settings: MailboxSettings) -> None:
        self.settings = settings
        self.buffer_bytes = settings.receive_bytes_max
        self.clear_below_bytes = max(1, self.buffer_bytes // 2) if self.congested else 0
        self._send_bytes_max = settings.send_bytes_max
        self.accounts.resize(settings.send_bytes_max, is_single=settings.single_account)
        self.burst_bytes = min(LONG_WRITE_BYTES, self.accounts.quarter_bytes)  # of long messages
        self.payload_bytes_max = min(settings.send_bytes_max, self._plane.limits.message_bytes_max)
        self.detailed = settings.timestamps or bool(settings.traces)
        if not settings.monitor:
            self._notice_groups = self._wait_groups = 0

    # -- sending

    @property
    def has_route(self) -> bool:
        """Whether a route to any peer exists."""
        return bool(self._routes)

    def sendto(
        self,
        data: Buffer,
        flags_or_address: int | SocketAddress,
        address: SocketAddress | None = None,
        /,
    ) -> int:
        """Queue one message; return its length."""
        if self._holds_lock():
            raise os_error(ErrorReason.REENTERED)
        wait_ns = self.settings.send_wait_ns
        if address is None:
            address = flags_or_address  # type: ignore[assignment]  # two-argument form
        elif flags_or_address:
            wait_ns = self._wait_of_flags(flags_or_address, wait_ns)
        return queueing.queue(self, queueing.frozen(data), address, b"", wait_ns)

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
        """Queue one message gathered from `buffers`; several are always copied."""
        self._plane.refuse_reentry()
        several = len(buffers) != 1
        payload = b"".join(buffers) if several else queueing.frozen(buffers[0], copy=copy)
        return queueing.queue(self, payload, address, extension, wait_ns, operations)

    def _wait_of_flags(self, flags: object, wait_ns: int | None) -> int | None:
        """Return the wait that MSG_DONTWAIT asks for; MSG_NOSIGNAL changes nothing here.

        Every other flag raises, MSG_ZEROCOPY because its cookie is not supported.
        """
        if not isinstance(flags, int):
            raise TypeError(f"flags must be an integer, not {type(flags).__name__}")
        if flags & ~(_SENT | _ZEROCOPY):
            raise os_error(ErrorReason.FLAGS_NOT_SUPPORTED, f"flags {flags:#x}")
        if flags & _ZEROCOPY:
            raise os_error(ErrorReason.BAD_CMSG, "MSG_ZEROCOPY needs one ZCOPY_COOKIE")
        return 0 if flags & _DONTWAIT else wait_ns

    def _look_for_room(self, path: StreamPath, destination: Destination) -> None:
        """Look for acknowledgements: an account is a quarter full, and an eighth came since."""
        path.look_for_acknowledgements()
        more_bytes = destination.queued_bytes + self._send_bytes_max // 8
        destination.look_at_bytes = max(self.accounts.quarter_bytes, more_bytes)

    def remember_target(self, address: SocketAddress, peer: IPAddress, port: int) -> None:
        """Remember what a literal address means; a name is resolved each time."""
        if is_name(address):
            return
        if len(self.targets) >= _TARGETS_MAX:
            self.targets = {}
        self.targets[address] = peer, port

    def destination_at(self, path: StreamPath | MessageTransport) -> Destination:
        """Return the account of a path's peer, cached by the path from now on. Lock held."""
        destination = path.destinations.get(self)
        if destination is None:
            destination = self.accounts.destination(path.peer, absent=path.absent)
            path.destinations[self] = destination
        return destination

    def will_ask(self, path: MessageTransport, payload_bytes: int) -> bool:
        """Return whether the next message on a path requests an acknowledgement. Lock held."""
        destination = self.destination_at(path)
        return self.accounts.asks(destination, payload_bytes, self.send_queued_bytes)

    def give_back(self, path: StreamPath | MessageTransport, freed_bytes: int) -> None:
        """Take messages that left a path off the account of their destination. Lock held."""
        destination = path.destinations.get(self)
        if destination is not None:  # else the mailbox is closed
            self.accounts.give_back(destination, freed_bytes, self.send_queued_bytes)

    def refuse(self, destination: Destination, payload_bytes: int, port: int) -> None:
        """Note that a destination has no room; its senders are notified when it has. Lock held."""
        self._map_news = False
        self.accounts.refuse(destination, payload_bytes, 1 << port % _GROUPS)

    def tell_roomy(self, roomy: Sequence[Destination]) -> None:
        """Notify senders to some destinations of room, as at the end of congestion. Lock held.

        A sender that waits for one of them continues; for the others it acts as a new map.
        """
        groups = 0
        for destination in roomy:
            groups |= destination.refused_groups
            destination.refused_groups = 0
            destination.tell(self._plane.wait_queue)
        if not self.settings.monitor:
            self._map_news |= bool(groups)
        elif groups & self.settings.monitor_mask:
            self._notice_groups |= groups & self.settings.monitor_mask
            self._plane.note_arrival(self, 1)

    def note_absent(self, destination: Destination) -> None:
        """Note that messages have long waited for a connection to a peer. Lock held."""
        for longest in self.accounts.note_absent(destination):
            peer = longest.peer
            assert peer is not None, "what goes to this process is never queued"
            for path in self.paths():
                if path.peer == peer:
                    self.given_up += path.give_up(self)
            self.fail(peer)
        self._plane.tell_room(self)

    def note_present(self, destination: Destination) -> None:
        """Note that an absent peer is connected again. Lock held."""
        self.accounts.note_present(destination)
        self._plane.tell_room(self)

    # -- receiving

    def recvfrom(self, bufsize: int, flags: int = 0, /) -> tuple[bytes, SocketAddress]:
        """Take one message; what exceeds `bufsize` bytes is discarded."""
        if self._holds_lock():
            raise os_error(ErrorReason.REENTERED)
        if type(bufsize) is not int:
            bufsize = index(bufsize)
        if bufsize < 0:
            raise ValueError("negative buffersize in recvfrom")
        if flags & _NEVER_QUEUED:
            if flags & _OUT_OF_BAND:  # kernel parity: as if an empty one had come
                return b"", None  # type: ignore[return-value]  # as below
            raise os_error(ErrorReason.NOTHING_TO_RECEIVE, "MSG_ERRQUEUE")
        wait_ns = 0 if flags & _DONTWAIT else self.settings.receive_wait_ns
        item = self._receive(wait_ns, peek=bool(flags & _PEEK), notices_max=1)
        if item is None:
            raise os_error(
                ErrorReason.NOTHING_TO_RECEIVE if wait_ns == 0 else ErrorReason.TIMED_OUT
            )
        if isinstance(item, OperationNotices | CongestionNotice):
            return b"", None  # type: ignore[return-value]  # as socket.recvfrom without a name
        return item[0][:bufsize], item[1]

    def receive(
        self, *, wait_ns: int | None, peek: bool = False, notices_max: int = 1
    ) -> Message | Notice | None:
        """Take (or peek at) the next item; None when nothing came in `wait_ns`."""
        item = self._receive(wait_ns, peek=peek, notices_max=notices_max)
        if item is None or isinstance(item, OperationNotices | CongestionNotice):
            return item
        if len(item) != 5:
            return Message(item[0], item[1], b"", 0, ())
        payload, source, extension, wall_ns, arrived_ns = item
        trace = tuple(
            (position, self._plane.clock_ns() - arrived_ns if position == _LAST_POSITION else 0)
            for position in self.settings.traces
        )
        return Message(
            payload, source, extension, wall_ns if self.settings.timestamps else 0, trace
        )

    def _receive(
        self, wait_ns: int | None, *, peek: bool, notices_max: int
    ) -> Item | Notice | None:
        """Wait for an item of the queue or a notice; None when nothing came."""
        plane = self._plane
        plane.refuse_reentry()

        def attempt() -> Item | Notice | None:
            if self.closed:
                raise os_error(plane.closed_reason)
            return self._take(peek, notices_max)

        try:
            item = cast(
                "Item | Notice | None",
                plane.wait(attempt, self.receive_waiters, wait_ns, flush=self),
            )
            plane.driven = True
            if item is None:
                self._map_news = False
            elif peek:
                with self._lock:  # a notified message is left: another may want it
                    self.receive_waiters.tell(1, plane.wait_queue)
                plane.deliver()
            plane.finish_pass()
            if self.descriptor is not None:
                self.sync()  # a notice or news taken no longer makes it readable
        except BaseException as error:
            if "reason" not in error.__dict__:  # an interrupt: find the work it left
                plane.interrupts.seen = True
                eventfd_write(plane.progress_thread.wake_descriptor, 1)
            raise
        return item

    def _take(self, peek: bool, notices_max: int) -> Item | Notice | None:
        """Take notices or a message. Lock held."""
        if self.notices:
            return receive_side.take_notices(self, notices_max)
        if self._notice_groups:
            notice = CongestionNotice(self._notice_groups)
            self._notice_groups = 0
            return notice
        if not self.queue:
            return None
        if peek:
            self._plane.counters.recv_delivered += 1  # Linux counts peeks as well
            return self.queue[0]
        item = self.pop()
        if self.pausing or self.receive_queued_bytes < self.clear_below_bytes:
            self._plane.touched.add(self)
        return item

    # -- operations

    def note_operation(self, operation: Operation) -> None:
        """Note that an operation of this mailbox has ended, with a status. Lock held."""
        receive_side.note_operation(self, operation)

    def wait_operation(self, operation: Operation, wait_ns: int | None) -> bool:
        """Wait until an operation has ended; return whether it has."""
        self._plane.refuse_reentry()
        return receive_side.wait_operation(self, operation, wait_ns)

    # -- congestion at the peer

    def note_map(self, cleared_groups: int, *, exact: bool = False) -> None:
        """Handle a peer's new map: monitor, senders, descriptor. Lock held.

        Linux's own monitor takes every update for a change of all groups over TCP, and over RDMA
        (`exact`) for one of the cleared ones; an installed mask is told exactly. Source: linux
        v6.12 net/rds/cong.c, net/rds/ib_recv.c; rds(7).
        """
        if self.settings.monitor:
            if self.settings.monitor_mask == ALL_GROUPS:
                changed = cleared_groups if exact else ALL_GROUPS
                self._notice_groups |= self._wait_groups & changed
                self._wait_groups &= ~changed
            else:
                self._notice_groups |= self.settings.monitor_mask & cleared_groups
            if self._notice_groups:
                self._plane.note_arrival(self, 1)
        elif self._saw_congestion:
            self._map_news = True
        self._saw_congestion = False
        for destination in self.accounts.refused():  # senders that met the map may be listed there
            destination.tell(self._plane.wait_queue)
        self._plane.note_room(self)

    def fail(self, peer: IPAddress) -> None:
        """Note dropped messages to the peer: the next send to it raises, once. Lock held."""
        self._failed.add(peer)
        self.targets = {}

    # -- other calls of the contract

    def route(self, peer: IPAddress, path: Path | MessageTransport | None) -> None:
        """Set the path to `peer`; None removes it."""
        with self._lock:
            self.targets = {}
            if path is None:
                before = self._routes.pop(peer, None)
                if before is not None and self.accounts.forget(peer):
                    for one in (before, *self.paths()):
                        if one.peer == peer and not isinstance(one, LoopPath):
                            one.destinations.pop(self, None)
            else:
                self._routes[peer] = cast("StreamPath | LoopPath | MessageTransport", path)

    def forget_route(self, path: MessageTransport) -> None:
        """Remove every route over a path: the next send resolves again. Lock held."""
        for peer in [peer for peer, one in self._routes.items() if one is path]:
            del self._routes[peer]

    def subscribe(
        self,
        callback: Callable[[], None],
        *,
        room: bool,
        address: SocketAddress | None = None,
    ) -> Callable[[], None]:
        """Have `callback` called once: for a message at once if there is one."""
        self._plane.refuse_reentry()
        waiter = Waiter(callback)
        peer = None if address is None else known_peer(address, self.local)
        with self._lock:
            waiters = self.receive_waiters
            if room:
                waiters = self.room_waiters if peer is None else self.room_waiters_of(peer)
            if not room and (self.queue or self._has_notice() or self.closed):
                self._plane.wait_queue.notify(waiter)
            else:
                waiters.add(waiter)
        self._plane.deliver()

        def cancel() -> None:
            with self._lock:
                if not waiters.remove(waiter):
                    waiters.tell(1, self._plane.wait_queue)  # notified, and leaves without using it
            self._plane.deliver()

        return cancel

    def room_waiters_of(self, peer: IPAddress) -> Waiters:
        """Return the waiters for room at a peer: its own if it was rejected. Lock held."""
        if isinstance(self._routes.get(peer), LoopPath):
            destination: Destination | None = self.accounts.here
        else:
            destination = self.accounts.known(peer)
        if destination is None or destination.refused_bytes is None:
            return self.room_waiters
        return destination.waiters_made()

    def configure(self, settings: MailboxSettings) -> None:
        """Replace the settings; waiters check again. Inside another call, soon."""
        self._configured = settings
        if self._plane.is_inside():
            self._plane.later(self._take_settings)
        else:
            self._take_settings()

    def _take_settings(self) -> None:
        """Apply the last configured settings. No lock held."""
        with self._lock:
            settings = self._configured
            if settings.tos != self.settings.tos:  # it may lead over other connections
                self._routes.clear()
                self.targets = {}
            self._apply(settings)
            self._plane.tell_room(self)
            self.receive_waiters.tell_all(self._plane.wait_queue)
            self._plane.touched.add(self)
        self._plane.finish_pass()

    def cancel(self, peer: IPAddress | None, port: int | None) -> int:
        """Remove unacknowledged messages to that address and port, or all; return how many."""
        self._plane.refuse_reentry()
        count = 0
        with self._lock:
            for path in self.paths():
                if peer is None or path.peer == peer:
                    count += path.cancel(self, port)
            self._plane.note_room(self)
        self._plane.finish_pass()
        return count

    def unacknowledged(self) -> int:
        """Return how many sent messages of this socket are not acknowledged."""
        with self._lock:
            return sum(sum(path.counts(self)) for path in self.paths())

    def fileno(self) -> int:
        """Return the readiness descriptor, created on the first call.

        Inside another call as well: then what that call changes is shown soon.
        """
        if self.closed:
            raise os_error(self._plane.closed_reason)
        descriptor = self.descriptor
        if descriptor is None:
            made = ReadinessDescriptor(self._wanted_readiness)
            if self.descriptor is None:  # else a handler or another thread was faster
                self.descriptor = made
            descriptor = self.descriptor
            if descriptor is not made:
                made.close()
            if self.closed:  # closed meanwhile; the close may have missed this one
                descriptor.close()
                raise os_error(self._plane.closed_reason)
            if self._plane.is_inside():
                self._plane.later(self._begin_to_show)
            else:
                self._begin_to_show()
        return descriptor.fileno()

    def _begin_to_show(self) -> None:
        """Show every change from now on, and changes made meanwhile. No lock held."""
        with self._lock:
            self._plane.progress_thread.want()
        self._plane.progress_thread.deliver()
        self.sync()

    def _wanted_readiness(self) -> tuple[bool, bool]:
        readable = bool(self.queue) or self._has_notice() or self._map_news or self.closed
        writable = self.accounts.is_writable(self.send_queued_bytes)
        if writable and self._plane.full_paths and self.has_one_way():
            writable = self._plane.full_paths.isdisjoint(list(self._routes.values()))
        return readable, writable

    def has_one_way(self) -> bool:
        """Return whether all sends share a path or account: at its limit then every send waits.

        Otherwise only sends to its destination wait.
        """
        return len(self._routes) == 1 or self.settings.single_account

    def sync(self) -> None:
        """Show the state on the descriptor, if there is one. No lock held."""
        if self.descriptor is None:
            return
        if changes_one_here():  # in a handler; another thread may be changing this one
            self._plane.later(self.sync)
        else:
            self.descriptor.sync()

    def _has_notice(self) -> bool:
        return self._notice_groups != 0 or bool(self.notices)

    def paths(self) -> list[StreamPath | MessageTransport]:
        """Return the paths of this address. Lock held."""
        return self._host.all_paths()

    def sends_by_loop_to(self, address: IPAddress) -> bool:
        """Return whether this socket has sent to an address of this process. Lock held."""
        return isinstance(self._routes.get(address), LoopPath)

    def shut(self, plane: Plane) -> None:
        """Leave the port, drop the queue, wake all threads. Lock held."""
        self._host.inboxes.pop(self.port, None)
        self.targets = {}
        for path in self.paths():
            path.destinations.pop(self, None)
        plane.counters.recv_drop_closed += self.message_count()
        self.queue.clear()
        self.notices.clear()
        self.receive_queued_bytes = 0
        self.over_since_ns = None  # a second check would never end
        if self.congested:
            self.congested = False
            receive_side.show(plane, self, on=False)
        self.receive_waiters.tell_all(plane.wait_queue)
        self.room_waiters.tell_all(plane.wait_queue)
        for destination in self.accounts.take_refused():
            destination.tell(plane.wait_queue)
        self.operation_waiters.tell_all(plane.wait_queue)

    def abandon_in_child(self) -> None:
        """Fail every call from now on; called in the child of a fork."""
        self._lock, self._holds_lock = self._plane.lock, self._plane.holds_lock
        self.closed = True
        # The parent's waiters and queues are not in the child.
        self.receive_waiters, self.room_waiters = Waiters(), Waiters()
        self.accounts = SendAccounts()
        self.operation_waiters = Waiters()
        if self.descriptor is not None:
            self.descriptor.abandon_in_child()

    def close(self, linger_ns: int | None = None) -> None:
        """Unbind; queued messages have `linger_ns`, by default a second in the background."""
        self._plane.close_mailbox(self, linger_ns)


# They are a bound socket's own methods: a TypeError about arguments names that class.
for _call in (Mailbox.sendto, Mailbox.recvfrom):
    _call.__qualname__ = f"Socket.{_call.__name__}"

_LAST_POSITION = 2  # from queueing to the application; the earlier stages coincide here
