"""All of a process's data plane: hosts, paths, who reads, what is due, what goes to control.

One short lock guards every piece of state, because under the interpreter lock finer ones would
cost a tenth of a message each and buy nothing (docs/adr/0002). It is never held across a system
call that may block, and wake-ups and descriptor changes happen after it is released (`deliver`,
`settle`). Methods marked "Lock held" belong to the modules of this package.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from os import eventfd_write
from typing import TYPE_CHECKING, TypeVar

from urds.dataplane.base import (
    Address,
    Event,
    Interest,
    Limits,
    MailboxSettings,
    Path,
    Received,
    Snapshot,
)
from urds.dataplane.reference import alone, carrying, closing, congestion, dues, remembering
from urds.dataplane.reference.accounts import ABSENT_NS
from urds.dataplane.reference.counters import Counters
from urds.dataplane.reference.helper import Helper
from urds.dataplane.reference.host import Host
from urds.dataplane.reference.inbox import Inbox, Pausable
from urds.dataplane.reference.interrupts import Interrupts
from urds.dataplane.reference.loop_path import LoopPath
from urds.dataplane.reference.mailbox import Mailbox
from urds.dataplane.reference.poll_set import PollSet
from urds.dataplane.reference.snapshots import take_snapshot
from urds.dataplane.reference.stream_path import StreamPath
from urds.dataplane.reference.waiting import Doing, Waiter, Waiters, WaitingDesk
from urds.dataplane.reference.warm_memory import WarmMemory
from urds.errors import Refusal, os_error
from urds.readiness import changes_one_here
from urds.reentry import new_lock

if TYPE_CHECKING:
    from urds.dataplane.carriage import CarriedPath

_T = TypeVar("_T")


class Plane:
    """See `dataplane.base.Plane`."""

    def __init__(
        self,
        *,
        limits: Limits,
        resolve: Callable[[Mailbox, Address], None],
        clock_ns: Callable[[], int] | None = None,
        generation: int | None = None,
    ) -> None:
        self.limits = limits
        self.generation = generation
        self.flush_bytes = limits.flush_bytes
        self.resolve = resolve
        self.virtual = clock_ns is not None  # a clock of the caller's: nothing ever waits
        self.clock_ns = clock_ns or time.monotonic_ns
        self.wall_ns = time.time_ns
        self.lock, self.holds_lock = new_lock()
        self.counters = Counters()
        self.hosts: dict[Address, Host] = {}
        self.warm_memory = WarmMemory()
        with ExitStack() as undo:  # the system may have no descriptor left
            self.poll_set = PollSet(self)
            undo.callback(self.poll_set.close)
            self.desk = WaitingDesk(self.lock)
            undo.callback(self.desk.close)
            self.poll_set.add_kick(self.desk.kick)
            self.helper = Helper(self)
            undo.pop_all()
        self._postponed: deque[Callable[[], None]] = deque()  # no lock, so atomic calls
        self.interrupts = Interrupts(self)
        self.loops: deque[None] = deque()  # one entry per event loop; no lock, so atomic calls
        self.tails = False
        self.driven = False
        self.closed = False
        self.closed_refusal = Refusal.CLOSED  # why a closed mailbox refuses
        self.events: list[Event] = []
        self._dirty: dict[StreamPath, None] = {}
        # When to acknowledge what a path owes; all wait equally long, so the first is due first.
        self.owing: dict[StreamPath, int] = {}
        self.full_paths: set[object] = set()  # at their bound of messages
        self.touched: set[Mailbox] = set()  # judged and shown at the end of the pass
        self.resuming: set[Pausable] = set()  # let go by a mailbox, and not told yet
        self.maps_due: set[CarriedPath] = set()  # our map changed: pushed at the end of the pass
        self.looks: set[Mailbox] = set()
        self.lingering: dict[Mailbox, int] = {}  # closed, with messages on their way
        self.carried_dues: dict[CarriedPath, int] = {}  # when to serve a path of another transport
        # When the peer of a path counts as absent; all wait equally long here, too.
        self.missing: dict[StreamPath | CarriedPath, int] = {}

    # -- making things

    def mailbox(self, *, local: Address, port: int, settings: MailboxSettings) -> Mailbox:
        """Bind a mailbox; the caller has checked that the port is free."""
        mailbox: Mailbox | None = None
        host = self.host(local)
        try:
            with self.lock:
                mailbox = Mailbox(self, host, port=port, settings=settings)
                host.inboxes[port] = mailbox
        except BaseException:  # of a signal handler: nobody hears of this mailbox
            if mailbox is not None:
                self.close_mailbox(mailbox, 0)
            raise
        return mailbox

    def path(self, *, local: Address, peer: Address, index: int, sequence_first: int) -> StreamPath:
        """Make a path without a stream."""
        with self.lock:
            host = self._host(local)
            path = StreamPath(self, host, peer=peer, index=index, sequence_first=sequence_first)
            host.paths.append(path)
        return path

    def received(self, path: Path) -> Received:
        """Return what a path knows of its peer's numbers."""
        assert isinstance(path, StreamPath)
        with self.lock:
            return remembering.received_by(path.core.incoming)

    def expect(self, path: Path, received: Received) -> None:
        """Have a path go on where an earlier one to the same peer ended."""
        assert isinstance(path, StreamPath)
        with self.lock:
            remembering.expect(path.core.incoming, received)

    def loop(self, *, local: Address, peer: Address) -> LoopPath:
        """Make a path between two addresses of this process."""
        return LoopPath(self, local=local, peer=peer)

    def host(self, address: Address) -> Host:
        """Return the tables of a local address."""
        with self.lock:
            return self._host(address)

    def _host(self, address: Address) -> Host:
        host = self.hosts.get(address)
        if host is None:
            host = self.hosts[address] = Host(address)
        return host

    def remove_path(self, path: StreamPath) -> None:
        """Forget a path. Lock held."""
        path.core.outgoing.drop_all()
        self._dirty.pop(path, None)
        self.missing.pop(path, None)
        if path in path.host.paths:
            path.host.paths.remove(path)
        path.host.forget_peer_map(path.peer)

    # -- paths that another transport carries

    def add_carried(self, path: CarriedPath) -> None:
        """Know a path: it is told of changed maps, cancelled, drained and ended with the rest."""
        with self.lock:
            self._host(path.local).add_carried(path)

    def remove_carried(self, path: CarriedPath) -> None:
        """Forget a path and every route over it; its queue is its own affair."""
        with self.lock:
            carrying.remove(self, path)
        self.settle()

    def deliver_carried(
        self,
        path: CarriedPath,
        source_port: int,
        target_port: int,
        payload: bytes,
        extension: bytes,
    ) -> bool:
        """Take a message in; return whether more may come. Lock held; `settle` when it is free.

        Also with false the message is taken: then its mailbox is over its hard bound, and the path
        takes in no more until it is told to `resume`.
        """
        return carrying.deliver(self, path, source_port, target_port, payload, extension)

    # -- waiting

    def wait(
        self,
        attempt: Callable[[], _T | None],
        waiters: Waiters,
        wait_ns: int | None,
        *,
        flush: Mailbox,
    ) -> _T | None:
        """Attempt under the lock until it gives something or `wait_ns` is over; read meanwhile."""
        with self.lock:
            result = attempt()
        if result is not None or self.virtual:
            return result
        if wait_ns == 0:
            self.pump()  # a call that never waits still looks at what has arrived
            with self.lock:
                return attempt()
        return self.wait_reading(attempt, waiters, wait_ns, flush)

    def wait_reading(
        self,
        attempt: Callable[[], _T | None],
        waiters: Waiters,
        wait_ns: int | None,
        mailbox: Mailbox,
    ) -> _T | None:
        """Wait as `wait` does, after an attempt that gave nothing; `wait_ns` is not 0."""
        desk = self.desk
        waiter = desk.waiter()
        if desk.leader is waiter:  # in the wait of one that is alone
            raise os_error(Refusal.REENTERED)
        deadline_ns = None if wait_ns is None else self.clock_ns() + wait_ns
        result: _T | None = None
        try:
            waiter.in_use = True
            while True:
                if self.tails:
                    self.flush_tails()
                with self.lock:
                    result = attempt()
                    if result is not None:
                        break
                    now_ns = self.clock_ns()
                    if deadline_ns is not None and now_ns >= deadline_ns:
                        break
                    waiters.add(waiter)
                    leads = desk.sit_down(waiter)
                    wake_ns = self.next_due_ns(now_ns) if leads and self.has_dues() else None
                self.deliver()  # an attempt may have asked the control plane for something
                if deadline_ns is not None and (wake_ns is None or deadline_ns < wake_ns):
                    wake_ns = deadline_ns
                timeout_s = None if wake_ns is None else max(0, wake_ns - now_ns) / 1e9
                if leads:
                    served = self.serve_ready(timeout_s, leading=True)
                    if not served or (wake_ns is not None and wake_ns <= now_ns):
                        self.serve_due()
                else:
                    desk.sleep(waiter, timeout_s)
                if mailbox.descriptor is not None:
                    mailbox.sync()
            self._leave(waiter, waiters, used=result is not None)
            waiter.in_use = False
        except BaseException:
            desk.own.waiter = None  # the helper has this one leave; the next wait has another
            self.interrupts.waits[waiter] = waiters
            self.interrupts.seen = True
            eventfd_write(self.helper.wake_descriptor, 1)
            self._leave(waiter, waiters, used=False)  # there may be no helper any more
            raise
        return result

    def _leave(self, waiter: Waiter, waiters: Waiters, *, used: bool) -> None:
        with self.lock:
            self.leave(waiter, waiters, used=used)
        self.deliver()

    def leave(self, waiter: Waiter, waiters: Waiters, *, used: bool) -> None:
        """End a wait, whatever for; see `waiting`. Lock held."""
        unled = self.desk.stand_up(waiter, waiters, used=used)
        self.driven = True
        if unled and self.helper.asleep:
            if self._dirty or self.owing or self.looks or self.carried_dues:
                self.helper.want()
            else:
                self.helper.leader_left()

    def flush_tails(self) -> None:
        """Send what was left to coalesce: whoever is about to sleep has nothing to add."""
        dues.flush_tails(self)

    def deliver(self) -> None:
        """Wake whoever was told something; called without the lock."""
        try:
            if self.desk.due:
                self.desk.deliver()
            if self.helper.wake_due:
                self.helper.deliver()
        except BaseException:
            self.interrupts.seen = True
            eventfd_write(self.helper.wake_descriptor, 1)
            raise

    def forget_stream(self, path: StreamPath) -> None:
        """Stop watching a path's stream; nothing of it is due any more. Lock held."""
        self._dirty.pop(path, None)
        self.owing.pop(path, None)
        self.poll_set.remove(path)

    # -- what arrives

    def serve_ready(self, timeout_s: float | None, *, leading: bool = False) -> int:
        """Poll the set once and serve what is ready; return how many descriptors were."""
        ready = self.poll_set.poll(timeout_s)
        desk = self.desk
        if leading:
            with self.lock:
                leader = desk.leader
                if leader is not None and leader.doing is Doing.IN_POLL:
                    leader.doing = Doing.RUNNING
        return self._serve(ready, leading=leading)

    def _serve(self, ready: list[tuple[int, int]], *, leading: bool = False) -> int:
        """Serve what is ready; return how many descriptors were."""
        desk = self.desk
        for descriptor, mask in ready:
            if descriptor == desk.kick:
                desk.read_kick(leading=leading)
                continue
            path = self.poll_set.paths.get(descriptor)
            if path is None:
                with self.lock:
                    if self.poll_set.take_watched(descriptor, self.events):
                        self.helper.want(now=True)
                continue
            if path.paused and mask & (select.EPOLLHUP | select.EPOLLERR):
                path.resume()  # these cannot be masked out: what is left is little, take it
            if mask & ~select.EPOLLOUT:
                self.counters.tcp_data_ready_calls += 1
                path.read(others=len(ready) > 1)
            if mask & select.EPOLLOUT:
                path.unblock()
        if self.touched:
            self.settle()
        else:
            self.deliver()
        return len(ready)

    def note_arrival(self, inbox: Inbox, messages: int) -> None:
        """Tell receivers; the mailbox is judged at the end of the pass. Lock held."""
        assert isinstance(inbox, Mailbox)
        inbox.receive_waiters.tell(messages, self.desk)
        if inbox.special or inbox.receive_queued_bytes > inbox.buffer_bytes:
            self.touched.add(inbox)

    def note_room(self, mailbox: Mailbox) -> None:
        """Tell senders that messages left, so that there may be room. Lock held."""
        self.tell_room(mailbox)
        if not mailbox.send_queued_bytes:
            self.counters.send_queue_empty += 1

    def tell_room(self, mailbox: Mailbox) -> None:
        """Tell senders that there may be room. Lock held."""
        mailbox.room_waiters.tell_all(self.desk)
        if mailbox.accounts.look_due:
            mailbox.tell_roomy(mailbox.accounts.take_roomy(mailbox.send_queued_bytes))
        if mailbox.descriptor is not None:
            self.touched.add(mailbox)

    def note_freed(
        self, path: StreamPath | CarriedPath, mailbox: Mailbox, freed_bytes: int
    ) -> None:
        """Give messages that left a path back to the account that they were in. Lock held."""
        mailbox.give_back(path, freed_bytes)
        self.note_room(mailbox)

    def note_path_room(self, path: StreamPath | CarriedPath) -> None:
        """Tell those who wait for a path that it is no longer at its bound. Lock held."""
        for mailbox in path.room_wanted:
            destination = path.destinations.get(mailbox)
            if destination is not None and destination.path_full:
                destination.path_full = False
                mailbox.tell_roomy(mailbox.accounts.take_unblocked(destination))
            elif destination is not None:
                destination.tell(self.desk)
            self.note_room(mailbox)
        path.room_wanted.clear()

    # -- absent peers

    def note_wanted(self, path: StreamPath | CarriedPath) -> None:
        """Note that messages wait for a connection from now on, if none do already. Lock held."""
        if path not in self.missing and not path.absent:
            self.missing[path] = self.clock_ns() + ABSENT_NS
            self.helper.want()

    def note_attached(self, path: StreamPath | CarriedPath) -> None:
        """Note that a path has a connection again. Lock held."""
        self.missing.pop(path, None)
        path.absent = False
        for mailbox in list(self.hosts[path.local].inboxes.values()):
            destination = mailbox.accounts.known(path.peer)
            if destination is not None and destination.absent:
                mailbox.note_present(destination)

    def note_full(self, path: StreamPath | CarriedPath) -> None:
        """Have descriptors show that a path came to its bound of messages or left it. Lock held."""
        (self.full_paths.add if path.full else self.full_paths.discard)(path)
        for mailbox in self.hosts[path.local].inboxes.values():
            if mailbox.descriptor is not None:
                self.touched.add(mailbox)

    def note_taken(self, mailbox: Mailbox) -> None:
        """Note that a mailbox which has more to do then gave a message. Lock held."""
        self.touched.add(mailbox)

    def note_peer_map(
        self, host: Host, peer: Address, octets: bytes, *, exact: bool = False
    ) -> None:
        """Put a peer's map in force and tell the sockets of the address. Lock held.

        With `exact` monitors hear of the groups that it cleared only, as over RDMA.
        """
        congestion.note_peer_map(self, host, peer, octets, exact=exact)

    def is_over_hard_bound(self, inbox: Inbox) -> bool:
        """Tell whether a mailbox is so full that its peers' streams must wait."""
        limits = self.limits
        bound = limits.receive_hard_factor * inbox.buffer_bytes + limits.receive_hard_bytes
        return inbox.hard_bytes() > bound

    # -- congestion of our own, and descriptors

    def settle(self) -> None:
        """End a pass: judge the mailboxes it touched, send maps, show states, wake."""
        try:
            if self.touched:
                congestion.settle(self)
        except BaseException:
            self.interrupts.seen = True
            eventfd_write(self.helper.wake_descriptor, 1)
            raise
        self.deliver()

    # -- what is due

    def mark_dirty(self, path: StreamPath) -> None:
        """Note that time makes something of a path due. Lock held."""
        self._dirty[path] = None
        leader = self.desk.leader
        if leader is None or leader.doing is Doing.IN_POLL:
            self.helper.want()

    def note_due(self, path: CarriedPath, at_ns: int) -> None:
        """Have a path of another transport served at a time. Lock held."""
        self.carried_dues[path] = at_ns
        leader = self.desk.leader
        if leader is None or leader.doing is Doing.IN_POLL:
            self.helper.want()

    def has_dues(self) -> bool:
        """Tell whether time may make something due. Lock held."""
        return bool(self.owing or self.missing or self.has_rare_dues())

    def has_rare_dues(self) -> bool:
        """Tell the same of all but acknowledgements and absent peers. Lock held."""
        return bool(self._dirty or self.looks or self.lingering or self.carried_dues)

    def next_due_ns(self, now_ns: int) -> int | None:
        """Return the earliest time at which `serve_due` has work. Lock held."""
        return dues.next_ns(self)

    def serve_due(self) -> None:
        """Do what time made due: tails, acknowledgements, second looks, ended lingers."""
        if self.has_dues():  # a hint without the lock; a look under it follows
            dues.serve(self)

    # -- the control plane's calls

    def emit(self, event: Event) -> None:
        """Keep an event for `help`. Lock held."""
        self.events.append(event)
        self.helper.want(now=True)

    def take_events(self) -> list[Event]:
        """Return and forget the events. Lock held."""
        events, self.events = self.events, []
        return events

    def help(self, deadline_ns: int | None) -> list[Event]:
        """See `base.Plane.help`; one thread only."""
        if deadline_ns is not None and deadline_ns <= self.clock_ns():
            self.catch_up()
            self.interrupts.settle()
            self.pump()
            with self.lock:
                return self.take_events()
        return self.helper.run(deadline_ns)

    def wake(self) -> None:
        """Make `help` return early."""
        with self.lock:
            self.interrupt()
        self.helper.deliver()

    def interrupt(self) -> None:
        """Make `help` return early, once `deliver` is called. Lock held."""
        self.helper.want(now=True)
        self.helper.interrupted = True

    def adopt(self) -> None:
        """Leave reading to an event loop that pumps."""
        self.loops.append(None)

    def abandon(self) -> None:
        """Take the promise of `adopt` back."""
        self.loops.pop()
        if not self.closed:
            self.helper.ring()

    def refuse_reentry(self) -> None:
        """Refuse a call inside one that holds the lock. Raises OSError (EDEADLK)."""
        if self.holds_lock():
            raise os_error(Refusal.REENTERED)

    def is_inside(self) -> bool:
        """See `base.Plane.is_inside`."""
        return self.holds_lock() or changes_one_here()

    def later(self, call: Callable[[], None]) -> None:
        """Have the helper make a call soon, with no lock held; from any thread, any lock held."""
        self._postponed.append(call)
        if not self.closed:
            self.helper.ring()

    def catch_up(self) -> None:
        """Make the calls that were put off. No lock held."""
        while self._postponed:
            self._postponed.popleft()()

    def pump(self) -> int:
        """Make one pass without blocking."""
        self.driven = True
        try:
            if self.tails:
                self.flush_tails()
            ready = self.poll_set.poll(0.0)
            if len(ready) == 1 and alone.serve(self, *ready[0]):
                return 1  # what time makes due comes in another pass, or the helper does it
            served = self._serve(ready)
            self.serve_due()
        except BaseException:
            self.interrupts.seen = True
            eventfd_write(self.helper.wake_descriptor, 1)
            raise
        return served

    def fileno(self) -> int:
        """Return the plane's poll set."""
        return self.poll_set.fileno()

    def watch(self, descriptor: int, interest: Interest) -> None:
        """Report `Ready` once."""
        self.poll_set.watch(descriptor, interest)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching."""
        self.poll_set.unwatch(descriptor)

    def snapshot(self) -> Snapshot:
        """Return counters and tables."""
        self.refuse_reentry()
        with self.lock:
            return take_snapshot(self)

    # -- endings

    def close_mailbox(self, mailbox: Mailbox, linger_ns: int | None) -> None:
        """Unbind; linger in the foreground if asked, else in the background."""
        closing.close_mailbox(self, mailbox, linger_ns)

    def drain(self, drain_ns: int) -> int:
        """Send what is queued and wait for its acknowledgement; return the messages left."""
        return closing.drain(self, drain_ns)

    def end_streams(self) -> None:
        """End the streams in order; nobody is woken."""
        closing.end_streams(self)

    def close(self, drain_ns: int) -> int:
        """Drain, end the streams in order, wake everybody."""
        return closing.close(self, drain_ns)

    def fail(self) -> None:
        """Refuse everything with EIO, wake everybody: the control plane failed."""
        closing.fail(self)

    def release(self) -> None:
        """Close the plane's own descriptors; kept if somebody did not leave his call."""
        if self.desk.is_empty():
            self.helper.close()
            self.poll_set.close()
            self.desk.close()

    def abandon_in_child(self) -> None:
        """After a fork, in the child: refuse everything, touch nothing that is the parent's."""
        closing.abandon_in_child(self)


def after_fork_in_child(plane: Plane) -> None:
    """Mark a plane dead in the child of a fork; for `os.register_at_fork`."""
    plane.abandon_in_child()
