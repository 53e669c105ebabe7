"""The send side of a mailbox: account, routes, queueing, errors, waiters for room.

Errors come in the order in which Linux raises them: the peer's congestion before the own account. A
destination without room among several counts as congested (`accounts`). Source: linux v6.12
net/rds/send.c (rds_sendmsg).

All methods: lock held, unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from urds.common.errors import ErrorReason, message_too_long, os_error, peer_takes_less
from urds.common.records import record
from urds.common.types import IPAddress
from urds.rds.addresses import is_name, parse_target
from urds.rds.plane.contract import (
    ALL_GROUPS,
    Buffer,
    MailboxSettings,
    Operation,
    SocketAddress,
)
from urds.rds.plane.python.accounts import Destination, SendAccounts
from urds.rds.plane.python.loop_path import LoopPath
from urds.rds.plane.python.sender import LONG_WRITE_BYTES, Sender
from urds.rds.plane.python.stream_path import StreamPath
from urds.rds.plane.python.stream_writer import StreamWriter
from urds.rds.plane.python.waiting import Waiter, Waiters, WaitQueue
from urds.rds.wire.congestion_map import CongestionMap

if TYPE_CHECKING:
    from urds.rds.plane.python.receive_side import ReceiveSide
    from urds.rds.plane.python.state import Box, Host, PathMember, State

_GROUPS = 64
_TARGETS_MAX = 4096
AS_CONGESTED = (ErrorReason.PEER_CONGESTED, ErrorReason.SHARE_FULL)


@record
class Route:
    """How to reach a peer, until the route changes."""

    peer: IPAddress
    path: Any  # `StreamPath`, `LoopPath`, or an `ExternalPath`, which has the message sent
    congested: CongestionMap  # the peer's ports
    destination: Destination
    sender: Sender | None  # of a `StreamPath`, as the next
    writer: StreamWriter | None


@record
class Target:
    """What a socket address means."""

    peer: IPAddress
    port: int
    route: Route | None = None  # of messages sent there before, None without one
    changes: int = -1  # of routes until then: with others the route counts no more


class SendSide:
    """What a mailbox has queued; the `Owner` of its messages."""

    def __init__(self, state: State, mailbox: Box, host: Host, receives: ReceiveSide) -> None:
        self._state = state
        self.mailbox: Any = mailbox
        self._host = host
        self._receives = receives
        self.local, self.port = host.address, receives.port
        self.send_queued_bytes = 0
        self.given_up = 0
        self.accounts = SendAccounts()
        self.room_waiters = Waiters()
        self.operation_waiters = Waiters()
        self._routes: dict[IPAddress, Route] = {}
        # Of literal addresses; read without the lock.
        self.targets: dict[SocketAddress | None, Target] = {}
        self._changes = 0
        self._failed: set[IPAddress] = set()
        self._wait_groups = 0  # groups that returned ENOBUFS while the monitor was on
        self._saw_congestion = False  # an ENOBUFS since the last map: poll must wake

    def configure(self, settings: MailboxSettings) -> None:
        """Put settings in force."""
        self._settings = settings
        self.accounts.resize(settings.send_bytes_max, is_single=settings.single_account)
        self.payload_bytes_max = min(settings.send_bytes_max, self._state.limits.message_bytes_max)
        self.burst_bytes = min(LONG_WRITE_BYTES, self.accounts.quarter_bytes)  # of long messages
        if not settings.monitor:
            self._wait_groups = 0

    # -- routes

    def new_target(self, address: SocketAddress | None) -> Target:
        """Return what an address means that `targets` does not have.

        No lock held. Raises OSError (EDESTADDRREQ) without one, and what `parse_target` does.
        """
        if address is None:
            raise os_error(ErrorReason.NO_DESTINATION_GIVEN)
        return Target(*parse_target(address, self.local))

    def remember(self, address: SocketAddress | None, target: Target, route: Route) -> None:
        """Remember an address to which a message was queued; a name is resolved each time.

        No lock held.
        """
        if address is None or address in self.targets or is_name(address):
            return
        with self._state.lock:
            if len(self.targets) >= _TARGETS_MAX:
                self.targets = {}
            if self._routes.get(target.peer) is route:
                self.targets[address] = Target(target.peer, target.port, route, self._changes)

    def _forget_targets(self) -> None:
        self.targets = {}
        self._changes += 1

    def has_route(self) -> bool:
        """Return whether any route exists. Without the lock a hint."""
        return bool(self._routes)

    def route_to(self, peer: IPAddress) -> Route | None:
        """Return the route to a peer, if there is one."""
        return self._routes.get(peer)

    def set_route(self, peer: IPAddress, path: Any) -> None:
        """Set the path to a peer; None removes it."""
        self._forget_targets()
        if path is None:
            if self._routes.pop(peer, None) is not None:
                self.accounts.forget(peer)
        elif isinstance(path, LoopPath):
            congested = self._state.host(peer).congested
            self._routes[peer] = Route(peer, path, congested, self.accounts.here, None, None)
        else:
            congested, destination = self._host.congested_at(peer), self.destination_at(path)
            sender = path.core.sender if isinstance(path, StreamPath) else None
            writer = path.writer if isinstance(path, StreamPath) else None
            self._routes[peer] = Route(peer, path, congested, destination, sender, writer)

    def forget_route(self, path: PathMember) -> None:
        """Remove every route over a path: the next send resolves again."""
        self._forget_targets()
        for peer in [peer for peer, route in self._routes.items() if route.path is path]:
            del self._routes[peer]

    def forget_routes(self) -> None:
        """Remove every route: the next send resolves again."""
        self._forget_targets()
        self._routes.clear()

    def paths(self) -> list[Any]:
        """Return the paths of this address."""
        return self._host.all_paths()

    def sends_by_loop_to(self, address: IPAddress) -> bool:
        """Return whether this socket has sent to an address of this process."""
        route = self._routes.get(address)
        return route is not None and isinstance(route.path, LoopPath)

    def destination_at(self, path: PathMember) -> Destination:
        """Return the account of a path's peer."""
        return self.accounts.destination(path.peer, absent=path.absent)

    def _has_one_way(self) -> bool:
        """Return whether all sends share a path or account: at its limit then every send waits.

        Otherwise only sends to its destination wait.
        """
        return len(self._routes) == 1 or self._settings.single_account

    # -- queueing

    def check_length(self, payload_bytes: int) -> None:
        """Raise OSError (EMSGSIZE) for a message that no path of this socket may accept."""
        if payload_bytes > self.payload_bytes_max:
            raise message_too_long(
                payload_bytes,
                message_bytes_max=self._state.limits.message_bytes_max,
                send_bytes_max=self.accounts.bytes_max,
            )

    def queue(
        self,
        target: Target,
        payload: Buffer,
        extension: bytes,
        operations: Sequence[Operation],
    ) -> Route | ErrorReason:
        """Queue a message, or return the reason: PEER_UNREACHABLE without a route.

        Nothing is queued where a message transport has the route. Raises errors that no wait can
        end.
        """
        peer, port, payload_bytes = target.peer, target.port, len(payload)
        if payload_bytes > self.payload_bytes_max:
            self.check_length(payload_bytes)
        if self.mailbox.closed:
            raise os_error(self._state.closed_reason)
        is_known = target.changes == self._changes
        route = target.route if is_known else self._routes.get(peer)
        if route is None:
            return ErrorReason.PEER_UNREACHABLE
        path, destination, sender = route.path, route.destination, route.sender
        if sender is None and not isinstance(path, LoopPath):
            return route
        if self._failed:
            self.raise_failure(peer)
        if operations:
            detail = f"no operations on the way to {peer}"
            raise os_error(ErrorReason.NOT_SUPPORTED, detail, peer=peer)
        if route.congested.data and route.congested.test(port):
            return self.note_congested(route, port)
        accounts, queued_bytes = self.accounts, self.send_queued_bytes
        is_open = queued_bytes < destination.open_bytes
        if not is_open and not accounts.has_room(destination, payload_bytes, queued_bytes):
            return self.refuse(destination, payload_bytes, port)
        if sender is None:
            self._receives.map_news = False
            path.deliver(self._receives, port, payload, extension)
            return route
        is_light = is_open and payload_bytes < accounts.light_bytes and not destination.queued_bytes
        is_alone = is_light and is_known and path.writer.sends_alone()
        if (path.full and not is_alone) or payload_bytes > path.message_bytes_max:
            return self.note_full(route, payload_bytes, port)
        if not is_open:
            accounts.admit(destination, payload_bytes, queued_bytes)
        if not is_known:  # else nothing is looked at again
            self._receives.map_news = False
        sender.queue(self, self.port, port, payload, extension)
        sender.lone = is_alone
        destination.queued_bytes += payload_bytes
        if self.send_queued_bytes >= accounts.half_bytes and accounts.note_queued(
            destination, self.send_queued_bytes
        ):
            sender.ack_wanted = True
        return route

    # -- over message transports

    def external_paths(self) -> list[Any]:
        """Return the paths of message transports of this address."""
        return list(self._host.externals)

    def raise_failure(self, peer: IPAddress) -> None:
        """Raise OSError, once, if messages to a peer were dropped."""
        if peer in self._failed:
            self._failed.remove(peer)
            detail = f"{peer}: messages queued for it were dropped"
            raise os_error(ErrorReason.PEER_UNREACHABLE, detail, peer=peer)

    def note_congested(self, route: Route, port: int) -> ErrorReason:
        """Return the reason for a peer whose map marks the port; note it for the monitor."""
        self._receives.map_news = False
        if isinstance(route.path, StreamPath):
            route.path.want()  # without a connection no map would ever clear it
        self._saw_congestion = True
        if self._settings.monitor:
            self._wait_groups |= 1 << port % _GROUPS
        return ErrorReason.PEER_CONGESTED

    def refuse(
        self, destination: Destination, payload_bytes: int, port: int, *, counts: bool = True
    ) -> ErrorReason:
        """Return the reason for a destination without room; note it unless it is the only one."""
        self._receives.map_news = False
        self._state.counters.send_queue_full += counts
        if self.accounts.is_alone(destination, self.send_queued_bytes):
            return ErrorReason.QUEUE_FULL
        self.accounts.refuse(destination, payload_bytes, 1 << port % _GROUPS)
        return ErrorReason.SHARE_FULL

    def note_full(self, route: Route, payload_bytes: int, port: int) -> ErrorReason:
        """Return the error reason of a path at a limit; raise if the message is too long for it."""
        path, self._receives.map_news = route.path, False
        assert not isinstance(path, LoopPath), "a loop has no limit"
        if payload_bytes > path.message_bytes_max:
            if not isinstance(path, StreamPath) or not path.want_agreement():
                raise peer_takes_less(payload_bytes, route.peer, path.message_bytes_max)
            path.room_wanted.add(self)
            return ErrorReason.PATH_FULL
        path.room_wanted.add(self)
        if self._has_one_way():
            return ErrorReason.PATH_FULL
        route.destination.path_full = True
        self.accounts.refuse(route.destination, payload_bytes, 1 << port % _GROUPS)
        return ErrorReason.SHARE_FULL

    def look_for_room(self, route: Route) -> None:
        """Look for acknowledgements: a quarter is queued, and an eighth since. No lock held."""
        route.path.look_for_acknowledgements()
        more_bytes = route.destination.queued_bytes + self.accounts.bytes_max // 8
        route.destination.look_at_bytes = max(self.accounts.quarter_bytes, more_bytes)

    # -- room

    def note_freed(self, path: PathMember, freed_bytes: int) -> None:
        """Take messages that left a path off the account of their destination; notify senders."""
        destination = self.accounts.known(path.peer)
        if destination is not None:  # else its route is forgotten, and the messages were empty
            self.accounts.give_back(destination, freed_bytes, self.send_queued_bytes)
        if not self.send_queued_bytes:
            self._state.counters.send_queue_empty += 1
        self.tell_room()

    def tell_room(self) -> None:
        """Notify senders that there may be room."""
        if self.room_waiters.queue:
            self.room_waiters.tell_all(self._state.wait_queue)
        if self.accounts.look_due:
            self._tell_roomy(self.accounts.take_roomy(self.send_queued_bytes))
        if self.mailbox.descriptor is not None:
            self._state.touched.add(self.mailbox)

    def note_path_room(self, path: PathMember) -> None:
        """Notify senders that a path is below its limit again."""
        destination = self.accounts.known(path.peer)
        if destination is not None and destination.path_full:
            destination.path_full = False
            self._tell_roomy(self.accounts.take_unblocked(destination))
        elif destination is not None:
            destination.tell(self._state.wait_queue)
        self.tell_room()

    def _tell_roomy(self, roomy: Sequence[Destination]) -> None:
        """Notify senders to some destinations of room, as at the end of congestion.

        A sender that waits for one of them continues; for the others it acts as a new map.
        """
        groups = 0
        for destination in roomy:
            groups |= destination.refused_groups
            destination.refused_groups = 0
            destination.tell(self._state.wait_queue)
        if not self._settings.monitor:
            self._receives.map_news |= bool(groups)
        elif groups & self._settings.monitor_mask:
            self._receives.note_groups(groups & self._settings.monitor_mask)

    def room_waiters_of(self, peer: IPAddress) -> Waiters:
        """Return the waiters for room at a peer: its own if it was rejected."""
        if self.sends_by_loop_to(peer):
            destination: Destination | None = self.accounts.here
        else:
            destination = self.accounts.known(peer)
        if destination is None or destination.refused_bytes is None:
            return self.room_waiters
        return destination.waiters_made()

    def is_half_full(self) -> bool:
        """Return whether another message may change what the descriptor shows of room."""
        return self.send_queued_bytes >= self.accounts.half_bytes

    def is_writable(self) -> bool:
        """Return what the descriptor shows. Without the lock a hint."""
        full_paths = self._state.full_paths
        if not self.accounts.is_writable(self.send_queued_bytes):
            return False
        if not full_paths or not self._has_one_way():
            return True
        return full_paths.isdisjoint([route.path for route in list(self._routes.values())])

    # -- peers

    def note_map(self, cleared_groups: int, *, exact: bool = False) -> None:
        """Handle a peer's new map: monitor, senders, descriptor.

        Linux's own monitor takes every update for a change of all groups over TCP, and over RDMA
        (`exact`) for one of the cleared ones; an installed mask is told exactly. Source: linux
        v6.12 net/rds/cong.c, net/rds/ib_recv.c; rds(7).
        """
        if self._settings.monitor:
            groups = self._settings.monitor_mask & cleared_groups
            if self._settings.monitor_mask == ALL_GROUPS:
                changed = cleared_groups if exact else ALL_GROUPS
                groups = self._wait_groups & changed
                self._wait_groups &= ~changed
            self._receives.note_groups(groups)
        elif self._saw_congestion:
            self._receives.map_news = True
        self._saw_congestion = False
        for destination in self.accounts.refused():  # senders that met the map may be listed there
            destination.tell(self._state.wait_queue)
        self.tell_room()

    def fail(self, peer: IPAddress) -> None:
        """Note dropped messages to the peer: the next send to it raises, once."""
        self._failed.add(peer)
        self._forget_targets()

    def note_absent(self, peer: IPAddress) -> None:
        """Note that messages have long waited for a connection to a peer."""
        destination = self.accounts.known(peer)
        if destination is None:
            return
        for longest in self.accounts.note_absent(destination):
            assert longest.peer is not None, "what goes to this process is never queued"
            for path in self.paths():
                if path.peer == longest.peer:
                    self.given_up += path.give_up(self)
            self.fail(longest.peer)
        self.tell_room()

    def note_present(self, peer: IPAddress) -> None:
        """Note that a peer is connected again, if it was absent."""
        destination = self.accounts.known(peer)
        if destination is not None and destination.absent:
            self.accounts.note_present(destination)
            self.tell_room()

    def note_operation(self, operation: Operation) -> None:
        """Note that an operation of a message has ended, with a status."""
        self.operation_waiters.tell_all(self._state.wait_queue)
        self._receives.note_operation(operation)

    # -- taking messages out, and the end

    def cancel(self, peer: IPAddress | None, port: int | None) -> int:
        """Remove unacknowledged messages to that address and port, or all; return how many."""
        paths = [path for path in self.paths() if peer is None or path.peer == peer]
        count: int = sum(path.cancel(self, port) for path in paths)
        self.tell_room()
        return count

    def unacknowledged(self) -> int:
        """Return how many sent messages are not acknowledged."""
        return sum(sum(path.counts(self)) for path in self.paths())

    def holds_messages(self) -> bool:
        """Return whether a message, even an empty one, may not be with its peer yet."""
        return any(path.holds(self) for path in self.paths())

    def shut(self) -> None:
        """Wake all senders: the mailbox is closed."""
        self._forget_targets()
        wait_queue = self._state.wait_queue
        self.room_waiters.tell_all(wait_queue)
        for destination in self.accounts.take_refused():
            destination.tell(wait_queue)
        self.operation_waiters.tell_all(wait_queue)

    def abandon_in_child(self) -> None:
        """Forget waiters after a fork: they are not in the child."""
        self._forget_targets()
        self.room_waiters, self.operation_waiters = Waiters(), Waiters()
        self.accounts = SendAccounts()


class RoomWaiters(Waiters):
    """The list of a waiting send: its destination's if that has no room, else the mailbox's."""

    __slots__ = ("_chosen", "_listed", "_sends")

    def __init__(self, sends: SendSide) -> None:
        super().__init__()
        self._sends = sends
        self._chosen = self._listed = sends.room_waiters

    def choose(self, peer: IPAddress | None) -> None:
        """Wait for room for a peer, with None for every other notification."""
        sends = self._sends
        self._chosen = sends.room_waiters if peer is None else sends.room_waiters_of(peer)

    def add(self, waiter: Waiter) -> None:
        """List a waiter once, in the list of its present wait."""
        if self._listed is not self._chosen:
            self._listed.remove(waiter)
            self._listed = self._chosen
        self._listed.add(waiter)

    def remove(self, waiter: Waiter) -> bool:
        """Remove a waiter; return false if it was notified and is off already."""
        return self._listed.remove(waiter)

    def tell(self, count: int, wait_queue: WaitQueue) -> None:
        """Notify the next waiter in the same list."""
        self._listed.tell(count, wait_queue)


def no_room(sends: SendSide, reason: ErrorReason, target: Target) -> OSError:
    """Return the error of a send that waits no longer for room here or at the peer."""
    peer, port, size = target.peer, target.port, sends.accounts.bytes_max
    if reason is ErrorReason.TIMED_OUT:
        return os_error(reason, f"no room to send to {peer} port {port}", peer=peer)
    if reason is ErrorReason.PEER_CONGESTED:
        return os_error(reason, f"{peer} port {port} is full", peer=peer)
    if reason is ErrorReason.SHARE_FULL:
        known = sends.accounts.known(peer)
        held_bytes = known.queued_bytes if known else 0
        detail = f"{held_bytes} bytes are queued to {peer}, one of several that share {size}"
    else:
        detail = f"{sends.send_queued_bytes} of {size} bytes are queued"
    limit = None if reason is ErrorReason.PATH_FULL else size
    return os_error(reason, detail, limit=limit, peer=peer)
