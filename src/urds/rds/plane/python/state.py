"""All of a plane's state that its one lock guards, and the changes that concern several objects.

One short lock guards everything, because under the interpreter lock finer ones would cost a tenth
of a message each and gain nothing (docs/adr/0002). It is never held across a system call that may
block. A method of `State`, and of the objects that it owns (`SendSide`, `ReceiveSide`, `PathCore`,
`WaitQueue`), is called with the lock held unless it says otherwise. What is done without it,
wake-ups, writes, the state of descriptors, is noted here and done by `progress.Progress` once the
lock is free.

*Timed work.* Batches and acknowledgements of paths with streams,
second checks of mailboxes over their buffer, expired lingers, peers that count as absent.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from urds.common.errors import ErrorReason
from urds.common.reentry import new_lock
from urds.common.types import IPAddress
from urds.rds.addresses import socket_address
from urds.rds.plane.contract import Event, Limits, LocalMapChanged, MailboxSettings
from urds.rds.plane.python.accounts import ABSENT_NS
from urds.rds.plane.python.counters import Counters
from urds.rds.plane.python.inbox import Inbox, Pausable, Sources
from urds.rds.plane.python.waiting import Doing, WaitQueue
from urds.rds.wire.congestion_map import CongestionMap

if TYPE_CHECKING:
    from urds.common.readiness import ReadinessDescriptor

_GROUPS = 64


class Box(Protocol):
    """What the state knows of a mailbox."""

    local: IPAddress
    port: int
    descriptor: ReadinessDescriptor | None
    closed: bool
    settings: MailboxSettings

    @property
    def sends(self) -> Any:
        """The `SendSide`."""

    @property
    def receives(self) -> Any:
        """The `ReceiveSide`."""

    def shut(self) -> None:
        """Drop the queue, wake all threads."""

    def abandon_in_child(self) -> None:
        """Fail every call: called in the child of a fork."""

    def sync(self) -> None:
        """Show the state on the descriptor. No lock held."""


class PathMember(Protocol):
    """What the state knows of a path, with a stream or of a message transport."""

    local: IPAddress
    peer: IPAddress
    full: bool
    absent: bool
    room_wanted: set[Any]


class Host:
    """Tables of one local address."""

    def __init__(self, address: IPAddress) -> None:
        self.address = address
        self.mailboxes: dict[int, Box] = {}
        self.inboxes: dict[int, Inbox] = {}  # the receive sides of the same
        self.paths: list[Any] = []  # each a `StreamPath`
        # Each an `ExternalPath`, with the addresses of its peer's sockets.
        self.externals: dict[Any, Sources] = {}
        # The local map as senders of this process see it; `map_bytes` is what goes to peers.
        self.congested = CongestionMap()
        self._peer_maps: dict[IPAddress, CongestionMap] = {}

    def add_external(self, path: Any) -> None:
        """Add a path over a message transport."""
        self.externals[path] = Sources(lambda port: socket_address(path.peer, port))

    def is_connected(self, peer: IPAddress) -> bool:
        """Return whether any path to a peer has a connection."""
        by_stream = any(one.peer == peer and one.stream is not None for one in self.paths)
        return by_stream or any(one.peer == peer and one.connected for one in self.externals)

    def add_mailbox(self, port: int, mailbox: Box) -> None:
        """Bind a mailbox; until the second step no message finds it."""
        self.mailboxes[port] = mailbox
        self.inboxes[port] = mailbox.receives

    def remove_mailbox(self, port: int) -> None:
        """Unbind a mailbox."""
        self.inboxes.pop(port, None)
        self.mailboxes.pop(port, None)

    def all_paths(self) -> list[Any]:
        """Return the paths of both kinds."""
        return [*self.paths, *self.externals]

    def map_bytes(self) -> bytes:
        """Return the 8192 bytes of the present local map."""
        return self.congested.emit()

    def congested_at(self, peer: IPAddress) -> CongestionMap:
        """Return the peer's map; the same object while it has a path, changed in place."""
        peer_map = self._peer_maps.get(peer)
        if peer_map is None:
            peer_map = self._peer_maps[peer] = CongestionMap()
        return peer_map

    def replace_peer_map(self, peer: IPAddress, data: bytes) -> int:
        """Put the peer's new map in force; return the groups with a port that it cleared."""
        return self.congested_at(peer).replace(data)

    def forget_peer_map(self, peer: IPAddress) -> None:
        """Drop the map of a peer without paths; no socket is routed to it any more."""
        if all(path.peer != peer for path in self.all_paths()):
            self._peer_maps.pop(peer, None)


class ThreadState:
    """Whether the progress thread sleeps, and whether it is to be woken."""

    def __init__(self, wait_queue: WaitQueue) -> None:
        self._wait_queue = wait_queue
        self.asleep = False  # in a sleep of more than a tick
        self.in_any_sleep = False
        self.armed = False  # the poll set wakes it
        self.interrupted = False  # `Plane.wake`: end `help` even without an event
        self.wake_due = False

    def want(self, *, now: bool = False) -> None:
        """End a long sleep, since there is work; with `now` any sleep."""
        if self.asleep or (now and self.in_any_sleep):
            self.asleep = self.in_any_sleep = False
            self.wake_due = self._wait_queue.due = True

    def interrupt(self) -> None:
        """Make `help` return early, once the wake-ups are delivered."""
        self.want(now=True)
        self.interrupted = True

    def leader_left(self) -> None:
        """End an unarmed long sleep: without a leader the streams would stay unread."""
        if self.asleep and not self.armed:
            self.want()


class Interrupts:
    """Work left by calls that a signal handler's exception cut; stored to without a lock.

    `Progress.recover` does it. `seen` is set last, before the progress thread is woken.
    """

    __slots__ = ("reads", "seen", "waits", "wake_descriptor", "writes")

    def __init__(self) -> None:
        self.wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.forget()

    def forget(self) -> None:
        """Forget all of it: after a fork it is the parent's."""
        self.seen = False
        self.reads: dict[Any, Any] = {}  # a `StreamReader`, and its stream
        self.writes: dict[Any, int] = {}  # a `StreamWriter`, and the number of its write
        self.waits: dict[Any, Any] = {}  # a `Waiter`, and the `Waiters` that it is in


class State:
    """Everything of a plane; what one object alone changes lies in that object."""

    def __init__(
        self, limits: Limits, clock_ns: Callable[[], int] | None, generation: int | None
    ) -> None:
        self.limits = limits
        self.generation = generation
        self.virtual = clock_ns is not None  # a clock of the caller's: no call ever waits
        self.clock_ns = clock_ns or time.monotonic_ns
        self.wall_ns = time.time_ns
        self.lock, self.holds_lock = new_lock()
        self.counters = Counters()
        self.hosts: dict[IPAddress, Host] = {}
        self.wait_queue = WaitQueue(self.lock)
        self.thread = ThreadState(self.wait_queue)
        try:
            self.interrupts = Interrupts()
        except BaseException:  # the system may be out of descriptors
            self.wait_queue.close()
            raise
        self.loops: deque[None] = deque()  # one entry per event loop; no lock, so atomic calls
        self.batches = False
        self.driven = False  # a thread reads or takes, so the progress thread need not
        self.closed = False
        self.closed_reason = ErrorReason.CLOSED  # why calls of a closed mailbox fail
        self.events: list[Event] = []
        self.dirty: dict[Any, None] = {}  # `StreamPath`s with timed work
        # When to acknowledge a path's messages; all wait equally long, so the first is due first.
        self.ack_deadlines: dict[Any, int] = {}
        self.full_paths: set[PathMember] = set()  # at their limit of messages
        self.touched: set[Any] = set()  # mailboxes, checked and shown at the end of the pass
        self.resuming: set[Pausable] = set()  # released by a mailbox, and not resumed yet
        self.looks: set[Any] = set()  # mailboxes over their buffer, to be checked again
        self.lingering: dict[Any, int] = {}  # closed mailboxes with messages in flight
        # When the peer of a path counts as absent; all wait equally long here, too.
        self.missing: dict[PathMember, int] = {}

    def host(self, address: IPAddress) -> Host:
        """Return the tables of a local address, made on the first call."""
        host = self.hosts.get(address)
        if host is None:
            host = self.hosts[address] = Host(address)
        return host

    def emit(self, event: Event) -> None:
        """Keep an event for `help`."""
        self.events.append(event)
        self.thread.want(now=True)

    def take_events(self) -> list[Event]:
        """Return and forget the events."""
        events, self.events = self.events, []
        return events

    def forget_path(self, path: PathMember) -> None:
        """Forget a path that is removed."""
        self.dirty.pop(path, None)
        self.ack_deadlines.pop(path, None)
        self.missing.pop(path, None)
        self.full_paths.discard(path)
        self.hosts[path.local].forget_peer_map(path.peer)

    def remove_external(self, path: Any) -> None:
        """Remove an `ExternalPath` and every route over it."""
        host = self.hosts[path.local]
        host.externals.pop(path, None)
        for mailbox in host.mailboxes.values():
            mailbox.sends.forget_route(path)
        self.note_path_room(path)  # its waiting senders check again
        self.forget_path(path)

    # -- paths

    def note_path_room(self, path: PathMember) -> None:
        """Notify waiters for a path that it is below its limit again."""
        for sender in path.room_wanted:
            sender.note_path_room(path)
        path.room_wanted.clear()

    def note_wanted(self, path: PathMember) -> None:
        """Note that messages wait for a connection from now on; may be repeated."""
        if path not in self.missing and not path.absent:
            self.missing[path] = self.clock_ns() + ABSENT_NS
            self.thread.want()

    def note_attached(self, path: PathMember) -> None:
        """Note that a path has a connection again."""
        self.missing.pop(path, None)
        path.absent = False
        for mailbox in list(self.hosts[path.local].mailboxes.values()):
            mailbox.sends.note_present(path.peer)

    def note_absent(self, now_ns: int) -> None:
        """Mark peers absent for which messages have waited long."""
        while self.missing:
            path, at_ns = next(iter(self.missing.items()))
            if at_ns > now_ns:
                break
            del self.missing[path]
            path.absent = True
            host = self.hosts[path.local]
            if host.is_connected(path.peer):
                continue  # another connection reaches it
            for mailbox in list(host.mailboxes.values()):
                mailbox.sends.note_absent(path.peer)

    def note_full(self, path: PathMember) -> None:
        """Have descriptors show that a path reached or left its limit of messages."""
        (self.full_paths.add if path.full else self.full_paths.discard)(path)
        for mailbox in self.hosts[path.local].mailboxes.values():
            if mailbox.descriptor is not None:
                self.touched.add(mailbox)

    # -- congestion

    def note_peer_map(
        self, host: Host, peer: IPAddress, data: bytes, *, exact: bool = False
    ) -> None:
        """Put a peer's map in force and notify the sockets of the address.

        With `exact` monitors get only the groups that it cleared, as over RDMA.
        """
        self.counters.cong_update_received += 1
        groups = host.replace_peer_map(peer, data)
        for mailbox in host.mailboxes.values():
            mailbox.sends.note_map(groups, exact=exact)
            self.touched.add(mailbox)

    def show_congestion(self, local: IPAddress, port: int, *, on: bool) -> None:
        """Set or clear a port's bit in the local map; the end of the pass sends it."""
        host = self.hosts[local]
        for path in host.paths:
            path.core.map_due = path.core.attached
            path.flush_soon()
        if host.externals:
            self.emit(LocalMapChanged(local))
        groups = 0 if on else 1 << port % _GROUPS
        for other in self.hosts.values():
            for mailbox in other.mailboxes.values():
                if mailbox.sends.sends_by_loop_to(local):
                    mailbox.sends.note_map(groups)
                    self.touched.add(mailbox)
        # Last (`progress`): until then the map differs from the mailbox, and is checked again.
        (host.congested.set if on else host.congested.clear)(port)

    # -- timed work

    def mark_dirty(self, path: Any) -> None:
        """Note that a path has timed work."""
        self.dirty[path] = None
        self._want_thread()

    def note_ack_pending(self, path: Any, at_ns: int) -> None:
        """Have a path acknowledge at a time, unless a message carries it before."""
        # An earlier time belongs to acknowledgements in a write under way.
        if self.ack_deadlines.get(path) != at_ns:
            self.ack_deadlines.pop(path, None)
            self.ack_deadlines[path] = at_ns
            self._want_thread()

    def _want_thread(self) -> None:
        """Wake the progress thread, unless a leader looks before it sleeps."""
        leader = self.wait_queue.leader
        if leader is None or leader.doing is Doing.IN_POLL:
            self.thread.want()

    def has_dues(self) -> bool:
        """Return whether timed work may be due; without the lock a hint."""
        return bool(
            self.ack_deadlines or self.dirty or self.missing or self.looks or self.lingering
        )

    def next_due_ns(self) -> int | None:
        """Return the earliest time at which `Progress.serve_due` has work."""
        earliest: int | None = None
        for path in list(self.dirty):
            due_ns = path.due_ns()
            if due_ns is None:
                del self.dirty[path]
            elif earliest is None or due_ns < earliest:
                earliest = due_ns
        for at_ns in (
            *islice(self.ack_deadlines.values(), 1),
            *islice(self.missing.values(), 1),
            *(mailbox.receives.look_again_ns() for mailbox in self.looks),
            *self.lingering.values(),
        ):
            if at_ns is not None and (earliest is None or at_ns < earliest):
                earliest = at_ns
        return earliest

    def take_due_paths(self, now_ns: int) -> list[Any]:
        """Return the paths with a due batch, acknowledgement or query of TCP."""
        due = [path for path in self.dirty if (at := path.due_ns()) is not None and at <= now_ns]
        acknowledging = []
        for path, at_ns in self.ack_deadlines.items():
            if at_ns > now_ns:
                break
            acknowledging.append(path)
        for path in acknowledging:
            del self.ack_deadlines[path]
        return due + acknowledging
