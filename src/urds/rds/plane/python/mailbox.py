"""A bound socket: the calls of `contract.Mailbox` over its two sides.

`sendto` and `recvfrom` have the signature of `socket.socket` and are placed into a bound `Socket`
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from os import eventfd_write
from typing import TYPE_CHECKING, cast

from urds.common.errors import ErrorReason, os_error
from urds.common.readiness import ReadinessDescriptor, changes_one_here
from urds.common.types import IPAddress
from urds.rds.addresses import known_peer
from urds.rds.constants import (
    MSG_DONTWAIT,
    MSG_ERRQUEUE,
    MSG_NOSIGNAL,
    MSG_OOB,
    MSG_PEEK,
    MSG_ZEROCOPY,
)
from urds.rds.plane import message_transport
from urds.rds.plane.bursts import receive_each, send_each
from urds.rds.plane.contract import (
    Buffer,
    CongestionNotice,
    MailboxSettings,
    Message,
    Notice,
    Operation,
    OperationNotices,
    Path,
    SocketAddress,
)
from urds.rds.plane.message_transport import frozen, gathered
from urds.rds.plane.python.inbox import Item
from urds.rds.plane.python.loop_path import LoopPath
from urds.rds.plane.python.receive_side import ReceiveSide
from urds.rds.plane.python.send_side import (
    AS_CONGESTED,
    RoomWaiters,
    Route,
    SendSide,
    Target,
    no_room,
)
from urds.rds.plane.python.stream_path import StreamPath
from urds.rds.plane.python.waiting import Waiter, Waiters

if TYPE_CHECKING:
    from urds.rds.plane.python.progress import Progress
    from urds.rds.plane.python.state import Host, State

Resolve = Callable[["Mailbox", IPAddress], None]
Close = Callable[["Mailbox", "int | None"], None]
_DONTWAIT = int(MSG_DONTWAIT)
_PEEK = int(MSG_PEEK)
_SENT = _DONTWAIT | int(MSG_NOSIGNAL)  # docs/differences.md
_ZEROCOPY = int(MSG_ZEROCOPY)
_OUT_OF_BAND = int(MSG_OOB)
_NEVER_QUEUED = int(MSG_OOB | MSG_ERRQUEUE)
_NOTICES = OperationNotices, CongestionNotice
_RESOLVES_MAX = 3  # a peer may be evicted between its route and the message
_LAST_POSITION = 2  # from queueing to the application; the earlier stages coincide here


class Mailbox:
    """See `contract.Mailbox`. No lock is held where its methods are called."""

    def __init__(
        self,
        state: State,
        progress: Progress,
        host: Host,
        *,
        port: int,
        settings: MailboxSettings,
        resolve: Resolve,
        close: Close,
    ) -> None:
        self.local, self.port = host.address, port
        self._state = state
        self._progress = progress
        self._resolve = resolve
        self._close = close
        self.closed = False
        self.descriptor: ReadinessDescriptor | None = None
        self.receives = ReceiveSide(state, self, host, port)
        self.sends = SendSide(state, self, host, self.receives)
        self._configured = settings  # possibly not yet applied
        self._apply(settings)

    def _apply(self, settings: MailboxSettings) -> None:
        self.settings = settings
        self.receives.configure(settings)
        self.sends.configure(settings)

    # -- sending

    @property
    def has_route(self) -> bool:
        """Whether a route to any peer exists."""
        return self.sends.has_route()

    def sendto(
        self,
        data: Buffer,
        flags_or_address: int | SocketAddress,
        address: SocketAddress | None = None,
        /,
    ) -> int:
        """Queue one message; return its length."""
        wait_ns = self.settings.send_wait_ns
        if address is None:
            address = flags_or_address  # type: ignore[assignment]  # two-argument form
        elif flags_or_address:
            wait_ns = _wait_of_flags(flags_or_address, wait_ns)
        payload = data if type(data) is bytes else frozen(data)
        return self._send(payload, address, b"", wait_ns, ())

    def send_many(
        self,
        messages: Sequence[tuple[Buffer, SocketAddress | None]],
        peer: SocketAddress | None,
        /,
    ) -> int:
        """Queue messages; return how many."""
        return send_each(self.sendto, messages, peer)

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
        payload = gathered(buffers, copy=copy)
        return self._send(payload, address, extension, wait_ns, operations, looks_again=True)

    def _send(
        self,
        payload: Buffer,
        address: SocketAddress | None,
        extension: bytes,
        wait_ns: int | None,
        operations: Sequence[Operation],
        *,
        looks_again: bool = False,
    ) -> int:
        """Queue a message: resolve, reject, or wait; then write what leaves now.

        With `looks_again`, or after a map that the descriptor shows, everything is looked at, also
        for a known destination. In a batch to one there is nothing to decide.
        """
        sends, state = self.sends, self._state
        if state.holds_lock():
            self._progress.refuse_reentry()
        try:
            target = sends.targets.get(address) or sends.new_target(address)
        except (TypeError, ValueError):  # cannot be a key, so is no address: that is what to say
            target = sends.new_target(address)
        if looks_again or self.receives.map_news:
            target = Target(target.peer, target.port)
        try:
            with state.lock:
                route = sends.queue(target, payload, extension, operations)
            if not isinstance(route, Route):
                route = self._send_waiting(route, target, payload, extension, wait_ns, operations)
            is_known = target.route is route
            if not is_known:
                sends.remember(address, target, route)
            sender, writer = route.sender, route.writer
            if sender is None or writer is None:
                self._finish_without_stream(route, target, payload, extension, wait_ns, operations)
            elif not is_known or sender.pending_bytes >= writer.batch_bytes:
                writer.flush(sends.burst_bytes)
                if route.path.full:
                    self._progress.finish_pass()
                if route.destination.queued_bytes >= route.destination.look_at_bytes:
                    sends.look_for_room(route)
            if self.descriptor is not None and (
                # A full path tells the sockets of its own address alone.
                not is_known or sender is None or route.path.full or sends.is_half_full()
            ):
                self.sync()
        except BaseException as error:
            if "reason" not in error.__dict__:  # an interrupt: find the work it left
                state.interrupts.seen = True
                eventfd_write(state.interrupts.wake_descriptor, 1)
            else:
                self.sync()  # a send that is refused has looked as well
            raise
        return len(payload)

    def _finish_without_stream(
        self,
        route: Route,
        target: Target,
        payload: Buffer,
        extension: bytes,
        wait_ns: int | None,
        operations: Sequence[Operation],
    ) -> None:
        """Have the message transport that has the route send a message; end the pass."""
        if not isinstance(route.path, LoopPath):
            place = target.peer, target.port
            message_transport.send(self, payload, place, wait_ns, extension, operations)
        self._progress.finish_pass()

    def resolve(self, peer: IPAddress) -> None:
        """Have the control plane make a route to a peer."""
        self._resolve(self, peer)

    def external_route(self, peer: IPAddress) -> message_transport.ExternalPath | None:
        """Return the route to a peer if a message transport has it."""
        route = self.sends.route_to(peer)  # a hint, without the lock
        if route is None or isinstance(route.path, StreamPath | LoopPath):
            return None
        return cast("message_transport.ExternalPath", route.path)

    def note_operation(self, operation: Operation) -> None:
        """Note that an operation of this mailbox has ended, with a status."""
        with self._state.lock:
            self.sends.note_operation(operation)
        self._progress.deliver()

    def _send_waiting(
        self,
        reason: ErrorReason,
        target: Target,
        payload: Buffer,
        extension: bytes,
        wait_ns: int | None,
        operations: Sequence[Operation],
    ) -> Route:
        """Queue a message that was rejected for `reason`: resolve its peer, or wait for room."""
        sends, state, peer = self.sends, self._state, target.peer
        waiters, blocked = RoomWaiters(sends), False

        def attempt() -> Route | ErrorReason | None:
            queued = sends.queue(target, payload, extension, operations)
            return note(queued) if isinstance(queued, ErrorReason) else queued

        def note(reason: ErrorReason) -> ErrorReason | None:
            """Wait on, with None, or raise; a missing route is resolved. Lock held."""
            nonlocal blocked
            if reason is ErrorReason.PEER_UNREACHABLE:
                return reason
            is_congested = reason in AS_CONGESTED
            if wait_ns == 0 or state.virtual:
                state.counters.cong_send_error += is_congested
                raise no_room(sends, reason, target)
            if is_congested and not blocked:
                blocked = True
                state.counters.cong_send_blocked += 1
            waiters.choose(peer if reason is ErrorReason.SHARE_FULL else None)
            return None

        for _ in range(_RESOLVES_MAX):
            if reason is ErrorReason.PEER_UNREACHABLE and not self.closed:
                self._resolve(self, peer)  # on the first send it makes a route
            with state.lock:
                queued = attempt() if reason is ErrorReason.PEER_UNREACHABLE else note(reason)
            if queued is None:
                queued = self._progress.wait(attempt, waiters, wait_ns, self)
            if queued is None:
                raise no_room(sends, ErrorReason.TIMED_OUT, target)
            if not isinstance(queued, ErrorReason):
                return queued
            reason = queued
        raise os_error(ErrorReason.PEER_UNREACHABLE, f"no route to {peer}", peer=peer)

    # -- receiving

    def recvfrom(self, bufsize: int, flags: int = 0, /) -> tuple[bytes, SocketAddress]:
        """Take one message; what exceeds `bufsize` bytes is discarded."""
        if type(bufsize) is not int:
            bufsize = index(bufsize)
        if bufsize < 0:
            raise ValueError("negative buffersize in recvfrom")
        wait_ns, peek = self.settings.receive_wait_ns, False
        if flags:
            peek = bool(flags & _PEEK)
            if flags & _OUT_OF_BAND:  # kernel parity: as if an empty one had come
                return b"", None  # type: ignore[return-value]  # as below
            if flags & _NEVER_QUEUED:
                raise os_error(ErrorReason.NOTHING_TO_RECEIVE, "MSG_ERRQUEUE")
            wait_ns = 0 if flags & _DONTWAIT else wait_ns
        item = self._receive(wait_ns, 1, peek=peek)
        if item is None:
            raise os_error(
                ErrorReason.NOTHING_TO_RECEIVE if wait_ns == 0 else ErrorReason.TIMED_OUT
            )
        if isinstance(item, _NOTICES):
            return b"", None  # type: ignore[return-value]  # as socket.recvfrom without a name
        return item[0][:bufsize], item[1]

    def recv_many(self, count_max: int, bufsize: int, /) -> list[tuple[bytes, SocketAddress]]:
        """Wait for a message, and take what is queued then."""
        receives = self.receives
        return receive_each(
            self.recvfrom,
            lambda: bool(receives.queue) and not receives.has_notice(),
            count_max,
            bufsize,
        )

    def receive(
        self, *, wait_ns: int | None, peek: bool = False, notices_max: int = 1
    ) -> Message | Notice | None:
        """Take (or peek at) the next item; None when nothing came in `wait_ns`."""
        item = self._receive(wait_ns, notices_max, peek=peek)
        if item is None or isinstance(item, _NOTICES):
            return item
        if len(item) != 5:
            return Message(item[0], item[1], b"", 0, ())
        payload, source, extension, wall_ns, arrived_ns = item
        trace = tuple(
            (position, self._state.clock_ns() - arrived_ns if position == _LAST_POSITION else 0)
            for position in self.settings.traces
        )
        return Message(
            payload, source, extension, wall_ns if self.settings.timestamps else 0, trace
        )

    def _receive(
        self, wait_ns: int | None, notices_max: int, *, peek: bool
    ) -> Item | Notice | None:
        """Take an item of the queue or a notice; None when nothing came."""
        state, progress, receives = self._state, self._progress, self.receives
        if state.holds_lock():
            progress.refuse_reentry()
        try:
            item: Item | Notice | None = None
            if receives.queue or self.closed:  # a hint; the wait finds notices, too
                with state.lock:
                    item = receives.take(notices_max, peek=peek)
            if item is None:
                attempt = partial(receives.take, notices_max, peek=peek)
                item = progress.wait(attempt, receives.waiters, wait_ns, self)
            state.driven = True
            if item is None:
                receives.map_news = False
            elif peek:
                with state.lock:  # a notified message is left: another may want it
                    receives.waiters.tell(1, state.wait_queue)
            if state.touched or state.wait_queue.due:
                progress.finish_pass()
            if self.descriptor is not None:
                self.sync()  # a notice or news taken no longer makes it readable
        except BaseException as error:
            if "reason" not in error.__dict__:  # an interrupt: find the work it left
                state.interrupts.seen = True
                eventfd_write(state.interrupts.wake_descriptor, 1)
            raise
        return item

    def wait_operation(self, operation: Operation, wait_ns: int | None) -> bool:
        """Wait until an operation has ended; return whether it has."""
        self._progress.refuse_reentry()

        def attempt() -> bool | None:
            if operation.status is not None:
                return True
            if self.closed:
                raise os_error(self._state.closed_reason)
            return None

        with self._state.lock:
            ended = attempt()
        if ended is None:
            ended = self._progress.wait(attempt, self.sends.operation_waiters, wait_ns, self)
        self._state.driven = True
        self._progress.finish_pass()
        return ended is True

    # -- other calls of the contract

    def route(self, peer: IPAddress, path: Path | message_transport.ExternalPath | None) -> None:
        """Set the path to `peer`; None removes it."""
        with self._state.lock:
            self.sends.set_route(peer, path)

    def subscribe(
        self,
        callback: Callable[[], None],
        *,
        room: bool,
        address: SocketAddress | None = None,
    ) -> Callable[[], None]:
        """Have `callback` called once: for a message at once if there is one."""
        self._progress.refuse_reentry()
        wait_queue, waiter = self._state.wait_queue, Waiter(callback)
        peer = None if address is None else known_peer(address, self.local)
        with self._state.lock:
            receives, waiters = self.receives, self.receives.waiters
            if room:
                waiters = self.sends.room_waiters
                if peer is not None:
                    waiters = self.sends.room_waiters_of(peer)
            if not room and (receives.queue or receives.has_notice() or self.closed):
                wait_queue.notify(waiter)
            else:
                waiters.add(waiter)
        self._progress.deliver()

        def cancel() -> None:
            with self._state.lock:
                if not waiters.remove(waiter):
                    waiters.tell(1, wait_queue)  # notified, and leaves without using it
            self._progress.deliver()

        return cancel

    def configure(self, settings: MailboxSettings) -> None:
        """Replace the settings; waiters check again. Inside another call, soon."""
        self._configured = settings
        if self._progress.is_inside():
            self._progress.later(self._take_settings)
        else:
            self._take_settings()

    def _take_settings(self) -> None:
        """Apply the last configured settings."""
        with self._state.lock:
            settings = self._configured
            if settings.tos != self.settings.tos:  # it may lead over other connections
                self.sends.forget_routes()
            self._apply(settings)
            self.sends.tell_room()
            self.receives.waiters.tell_all(self._state.wait_queue)
            self._state.touched.add(self)
        self._progress.finish_pass()

    def cancel(self, peer: IPAddress | None, port: int | None) -> int:
        """Remove unacknowledged messages to that address and port, or all; return how many."""
        self._progress.refuse_reentry()
        with self._state.lock:
            count = self.sends.cancel(peer, port)
            externals = self.sends.external_paths()
        for path in externals:
            if peer is None or path.peer == peer:
                count += path.transport.cancel(self, port)
        self._progress.finish_pass()
        return count

    def request_acks(self) -> None:
        """Request acknowledgements of what is queued, without waiting for them."""
        self._progress.refuse_reentry()
        with self._state.lock:
            paths = self._holders()
            for path in paths:
                path.core.request_ack()
        for path in paths:
            path.writer.flush()

    def _holders(self) -> list[StreamPath]:
        """Return the paths with a message, even an empty one, that its peer may lack. Lock held."""
        paths = (path for path in self.sends.paths() if isinstance(path, StreamPath))
        return [path for path in paths if path.holds(self.sends)]

    def unacknowledged(self) -> int:
        """Return how many sent messages of this socket are not acknowledged."""
        with self._state.lock:
            return self.sends.unacknowledged()

    # -- the descriptor

    def fileno(self) -> int:
        """Return the readiness descriptor, created on the first call.

        Inside another call as well: then what that call changes is shown soon.
        """
        if self.closed:
            raise os_error(self._state.closed_reason)
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
                raise os_error(self._state.closed_reason)
            if self._progress.is_inside():
                self._progress.later(self._begin_to_show)
            else:
                self._begin_to_show()
        return descriptor.fileno()

    def _begin_to_show(self) -> None:
        """Show changes made meanwhile."""
        with self._state.lock:
            self._state.thread.want()
        self._progress.deliver()
        self.sync()

    def _wanted_readiness(self) -> tuple[bool, bool]:
        return self.receives.is_readable(), self.sends.is_writable()

    def sync(self) -> None:
        """Show the state on the descriptor, if there is one."""
        if self.descriptor is None:
            return
        if changes_one_here():  # in a handler; another thread may be changing this one
            self._progress.later(self.sync)
        else:
            self.descriptor.sync()

    # -- the end

    def shut(self) -> None:
        """Drop the queue, wake all threads. Lock held."""
        self.closed = True
        self.sends.shut()
        self.receives.shut()
        self._state.touched.add(self)  # a thread that polls its descriptor must wake as well

    def abandon_in_child(self) -> None:
        """Fail every call from now on; called in the child of a fork."""
        self.closed = True
        self.receives.waiters = Waiters()  # the parent's waiters and queues are not in the child
        self.sends.abandon_in_child()
        if self.descriptor is not None:
            self.descriptor.abandon_in_child()

    def close(self, linger_ns: int | None = None) -> None:
        """Unbind; queued messages have `linger_ns`, by default a second in the background."""
        self._close(self, linger_ns)


# They are a bound socket's own methods: a TypeError about arguments names that class.
for _call in (Mailbox.sendto, Mailbox.recvfrom):
    _call.__qualname__ = f"Socket.{_call.__name__}"


def _wait_of_flags(flags: object, wait_ns: int | None) -> int | None:
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
