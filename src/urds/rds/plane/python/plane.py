"""The data plane of a process: hosts, paths, waiting, timed work, events for the control plane.

One short lock guards all state, because under the interpreter lock finer ones would cost a tenth of
a message each and gain nothing (docs/adr/0002). It is never held across a system call that may
block, and wake-ups and descriptor changes happen after it is released (`deliver`, `finish_pass`).
Methods marked "Lock held" belong to the modules of this package.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from os import eventfd_write
from typing import TYPE_CHECKING, TypeVar

from urds.common.errors import ErrorReason, os_error
from urds.common.readiness import changes_one_here
from urds.common.reentry import new_lock
from urds.common.types import IPAddress
from urds.rds.plane.contract import (
    Event,
    Interest,
    Limits,
    MailboxSettings,
    Path,
    Received,
    Snapshot,
)
from urds.rds.plane.python import background, closing, receive_side
from urds.rds.plane.python.accounts import ABSENT_NS
from urds.rds.plane.python.background import PollSet, ProgressThread
from urds.rds.plane.python.counters import Counters
from urds.rds.plane.python.host import Host, LoopPath, take_snapshot
from urds.rds.plane.python.inbox import Inbox, Pausable
from urds.rds.plane.python.interrupts import Interrupts
from urds.rds.plane.python.mailbox import Mailbox
from urds.rds.plane.python.stream_path import StreamPath
from urds.rds.plane.python.waiting import Doing, Waiter, Waiters, WaitQueue

if TYPE_CHECKING:
    from urds.rds.plane.message_transport import MessageTransport

_T = TypeVar("_T")


class Plane:
    """See `contract.Plane`."""

    def __init__(
        self,
        *,
        limits: Limits,
        resolve: Callable[[Mailbox, IPAddress], None],
        clock_ns: Callable[[], int] | None = None,
        generation: int | None = None,
    ) -> None:
        self.limits = limits
        self.generation = generation
        self.flush_bytes = limits.flush_bytes
        self.resolve = resolve
        self.virtual = clock_ns is not None  # a clock of the caller's: no call ever waits
        self.clock_ns = clock_ns or time.monotonic_ns
        self.wall_ns = time.time_ns
        self.lock, self.holds_lock = new_lock()
        self.counters = Counters()
        self.hosts: dict[IPAddress, Host] = {}
        with ExitStack() as undo:  # the system may be out of descriptors
            self.poll_set = PollSet(self)
            undo.callback(self.poll_set.close)
            self.wait_queue = WaitQueue(self.lock)
            undo.callback(self.wait_queue.close)
            self.poll_set.add_kick(self.wait_queue.kick)
            self.progress_thread = ProgressThread(self)
            undo.pop_all()
        self._postponed: deque[Callable[[], None]] = deque()  # no lock, so atomic calls
        self.interrupts = Interrupts(self)
        self.loops: deque[None] = deque()  # one entry per event loop; no lock, so atomic calls
        self.batches = False
        self.driven = False
        self.closed = False
        self.closed_reason = ErrorReason.CLOSED  # why calls of a closed mailbox fail
        self.events: list[Event] = []
        self._dirty: dict[StreamPath, None] = {}
        # When to acknowledge a path's messages; all wait equally long, so the first is due first.
        self.ack_deadlines: dict[StreamPath, int] = {}
        self.full_paths: set[object] = set()  # at their limit of messages
        self.touched: set[Mailbox] = set()  # checked and shown at the end of the pass
        self.resuming: set[Pausable] = set()  # released by a mailbox, and not resumed yet
        # The local map changed: pushed at the end of the pass.
        self.maps_due: set[MessageTransport] = set()
        self.looks: set[Mailbox] = set()
        self.lingering: dict[Mailbox, int] = {}  # closed, with messages in flight
        self.message_transport_dues: dict[MessageTransport, int] = {}  # when to serve one
        # When the peer of a path counts as absent; all wait equally long here, too.
        self.missing: dict[StreamPath | MessageTransport, int] = {}

    # -- creating objects

    def mailbox(self, *, local: IPAddress, port: int, settings: MailboxSettings) -> Mailbox:
        """Bind a mailbox; the caller has checked that the port is free."""
        mailbox: Mailbox | None = None
        host = self.host(local)
        try:
            with self.lock:
                mailbox = Mailbox(self, host, port=port, settings=settings)
                host.inboxes[port] = mailbox
        except BaseException:  # of a signal handler: no caller gets this mailbox
            if mailbox is not None:
                self.close_mailbox(mailbox, 0)
            raise
        return mailbox

    def path(
        self, *, local: IPAddress, peer: IPAddress, index: int, sequence_first: int
    ) -> StreamPath:
        """Create a path without a stream."""
        with self.lock:
            host = self._host(local)
            path = StreamPath(self, host, peer=peer, index=index, sequence_first=sequence_first)
            host.paths.append(path)
        return path

    def received(self, path: Path) -> Received:
        """Return the peer's numbers on a path."""
        assert isinstance(path, StreamPath)
        with self.lock:
            return path.core.incoming.received()

    def expect(self, path: Path, received: Received) -> None:
        """Have a path continue from an earlier one to the same peer."""
        assert isinstance(path, StreamPath)
        with self.lock:
            path.core.incoming.expect(received)

    def loop(self, *, local: IPAddress, peer: IPAddress) -> LoopPath:
        """Create a path between two addresses of this process."""
        return LoopPath(self, local=local, peer=peer)

    def host(self, address: IPAddress) -> Host:
        """Return the state of a local address."""
        with self.lock:
            return self._host(address)

    def _host(self, address: IPAddress) -> Host:
        host = self.hosts.get(address)
        if host is None:
            host = self.hosts[address] = Host(address)
        return host

    def remove_path(self, path: StreamPath) -> None:
        """Remove a path. Lock held."""
        path.core.outgoing.drop_all()
        self._dirty.pop(path, None)
        self.missing.pop(path, None)
        if path in path.host.paths:
            path.host.paths.remove(path)
        path.host.forget_peer_map(path.peer)

    # -- message transports

    def add_message_transport(self, path: MessageTransport) -> None:
        """Add a path: the plane reports map changes to it, cancels, drains and ends it."""
        with self.lock:
            self._host(path.local).add_message_transport(path)

    def remove_message_transport(self, path: MessageTransport) -> None:
        """Remove a path and every route over it; the transport keeps its queue."""
        with self.lock:
            host = self.hosts[path.local]
            host.transports.pop(path, None)
            for mailbox in host.inboxes.values():
                mailbox.forget_route(path)
            self.note_path_room(path)  # its waiting senders check again
            self.missing.pop(path, None)
            self.full_paths.discard(path)
            self.maps_due.discard(path)
            self.message_transport_dues.pop(path, None)
            host.forget_peer_map(path.peer)
        self.finish_pass()

    def deliver_from_transport(
        self,
        path: MessageTransport,
        source_port: int,
        target_port: int,
        payload: bytes,
        extension: bytes,
    ) -> bool:
        """Receive a message; return whether more may come. Lock held; then `finish_pass`.

        The message is taken also with false: then its mailbox is over its hard bound, and the path
        receives no more until `resume` is called.
        """
        host = self.hosts[path.local]
        inbox = host.inboxes.get(target_port)
        if inbox is None:
            self.counters.recv_drop_no_sock += 1
            return True
        sources = host.transports.get(path)
        if sources is None:
            sources = host.add_message_transport(path)
        receive_side.put_message(self, inbox, payload, sources[source_port], extension)
        if not inbox.may_be_too_full() or not self.is_over_hard_bound(inbox):
            return True
        if path not in inbox.pausing:
            receive_side.pause(self, path, inbox)
        return False

    # -- waiting

    def wait(
        self,
        attempt: Callable[[], _T | None],
        waiters: Waiters,
        wait_ns: int | None,
        *,
        flush: Mailbox,
    ) -> _T | None:
        """Attempt under the lock until it returns an item or `wait_ns` is over; read meanwhile."""
        with self.lock:
            result = attempt()
        if result is not None or self.virtual:
            return result
        if wait_ns == 0:
            self.progress()  # a call that never waits still checks for arrivals
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
        """Wait as `wait` does, after an attempt without result; `wait_ns` is not 0."""
        wait_queue = self.wait_queue
        waiter = wait_queue.waiter()
        deadline_ns = None if wait_ns is None else self.clock_ns() + wait_ns
        result: _T | None = None
        try:
            waiter.in_use = True
            while True:
                if self.batches:
                    self.flush_batches()
                with self.lock:
                    result = attempt()
                    if result is not None:
                        break
                    now_ns = self.clock_ns()
                    if deadline_ns is not None and now_ns >= deadline_ns:
                        break
                    waiters.add(waiter)
                    leads = wait_queue.sit_down(waiter)
                    wake_ns = self.next_due_ns(now_ns) if leads and self.has_dues() else None
                self.deliver()  # an attempt may have emitted an event for the control plane
                if deadline_ns is not None and (wake_ns is None or deadline_ns < wake_ns):
                    wake_ns = deadline_ns
                timeout_s = None if wake_ns is None else max(0, wake_ns - now_ns) / 1e9
                if leads:
                    served = self.serve_ready(timeout_s, leading=True)
                    if not served or (wake_ns is not None and wake_ns <= now_ns):
                        self.serve_due()
                else:
                    wait_queue.sleep(waiter, timeout_s)
                if mailbox.descriptor is not None:
                    mailbox.sync()
            self._leave(waiter, waiters, used=result is not None)
            waiter.in_use = False
        except BaseException:
            wait_queue.own.waiter = None  # ended by the progress thread; the next wait has another
            self.interrupts.waits[waiter] = waiters
            self.interrupts.seen = True
            eventfd_write(self.progress_thread.wake_descriptor, 1)
            self._leave(waiter, waiters, used=False)  # the progress thread may be gone
            raise
        return result

    def _leave(self, waiter: Waiter, waiters: Waiters, *, used: bool) -> None:
        with self.lock:
            self.leave(waiter, waiters, used=used)
        self.deliver()

    def leave(self, waiter: Waiter, waiters: Waiters, *, used: bool) -> None:
        """End a wait, for any reason; see `waiting`. Lock held."""
        unled = self.wait_queue.stand_up(waiter, waiters, used=used)
        self.driven = True
        if unled and self.progress_thread.asleep:
            if self._dirty or self.ack_deadlines or self.looks or self.message_transport_dues:
                self.progress_thread.want()
            else:
                self.progress_thread.leader_left()

    def flush_batches(self) -> None:
        """Send open batches: a thread about to sleep has nothing to add. No lock held."""
        self.batches = False
        if not self._dirty:
            return
        with self.lock:
            paths = tuple(path for path in self._dirty if path.core.wants_to_write())
        for path in paths:
            path.flush()

    def deliver(self) -> None:
        """Wake every notified thread; called without the lock."""
        try:
            if self.wait_queue.due:
                self.wait_queue.deliver()
            if self.progress_thread.wake_due:
                self.progress_thread.deliver()
        except BaseException:
            self.interrupts.seen = True
            eventfd_write(self.progress_thread.wake_descriptor, 1)
            raise

    def forget_stream(self, path: StreamPath) -> None:
        """Stop watching a path's stream; no timed work of it remains. Lock held."""
        self._dirty.pop(path, None)
        self.ack_deadlines.pop(path, None)
        self.poll_set.remove(path)

    # -- arrivals

    def serve_ready(self, timeout_s: float | None, *, leading: bool = False) -> int:
        """Poll the set once and serve what is ready; return how many descriptors were."""
        ready = self.poll_set.poll(timeout_s)
        wait_queue = self.wait_queue
        if leading:
            with self.lock:
                leader = wait_queue.leader
                if leader is not None and leader.doing is Doing.IN_POLL:
                    leader.doing = Doing.RUNNING
        return self._serve(ready, leading=leading)

    def _serve(self, ready: list[tuple[int, int]], *, leading: bool = False) -> int:
        """Serve ready descriptors; return how many were."""
        wait_queue = self.wait_queue
        for descriptor, mask in ready:
            if descriptor == wait_queue.kick:
                wait_queue.read_kick(leading=leading)
                continue
            path = self.poll_set.paths.get(descriptor)
            if path is None:
                with self.lock:
                    if self.poll_set.take_watched(descriptor, self.events):
                        self.progress_thread.want(now=True)
                continue
            if path.paused and mask & (select.EPOLLHUP | select.EPOLLERR):
                path.resume()  # these cannot be masked out: read the little that is left
            if mask & ~select.EPOLLOUT:
                self.counters.tcp_data_ready_calls += 1
                path.read(others=len(ready) > 1)
            if mask & select.EPOLLOUT:
                path.unblock()
        if self.touched:
            self.finish_pass()
        else:
            self.deliver()
        return len(ready)

    def note_arrival(self, inbox: Inbox, messages: int) -> None:
        """Notify receivers; the mailbox is checked at the end of the pass. Lock held."""
        assert isinstance(inbox, Mailbox)
        inbox.receive_waiters.tell(messages, self.wait_queue)
        if inbox.descriptor is not None or inbox.receive_queued_bytes > inbox.buffer_bytes:
            self.touched.add(inbox)

    def note_room(self, mailbox: Mailbox) -> None:
        """Notify senders that messages left, so that there may be room. Lock held."""
        self.tell_room(mailbox)
        if not mailbox.send_queued_bytes:
            self.counters.send_queue_empty += 1

    def tell_room(self, mailbox: Mailbox) -> None:
        """Notify senders that there may be room. Lock held."""
        mailbox.room_waiters.tell_all(self.wait_queue)
        if mailbox.accounts.look_due:
            mailbox.tell_roomy(mailbox.accounts.take_roomy(mailbox.send_queued_bytes))
        if mailbox.descriptor is not None:
            self.touched.add(mailbox)

    def note_freed(
        self, path: StreamPath | MessageTransport, mailbox: Mailbox, freed_bytes: int
    ) -> None:
        """Take messages that left a path off their send account. Lock held."""
        mailbox.give_back(path, freed_bytes)
        self.note_room(mailbox)

    def note_path_room(self, path: StreamPath | MessageTransport) -> None:
        """Notify waiters for a path that it is below its limit again. Lock held."""
        for mailbox in path.room_wanted:
            destination = path.destinations.get(mailbox)
            if destination is not None and destination.path_full:
                destination.path_full = False
                mailbox.tell_roomy(mailbox.accounts.take_unblocked(destination))
            elif destination is not None:
                destination.tell(self.wait_queue)
            self.note_room(mailbox)
        path.room_wanted.clear()

    # -- absent peers

    def note_wanted(self, path: StreamPath | MessageTransport) -> None:
        """Note that messages wait for a connection from now on. Lock held; may be repeated."""
        if path not in self.missing and not path.absent:
            self.missing[path] = self.clock_ns() + ABSENT_NS
            self.progress_thread.want()

    def note_attached(self, path: StreamPath | MessageTransport) -> None:
        """Note that a path has a connection again. Lock held."""
        self.missing.pop(path, None)
        path.absent = False
        for mailbox in list(self.hosts[path.local].inboxes.values()):
            destination = mailbox.accounts.known(path.peer)
            if destination is not None and destination.absent:
                mailbox.note_present(destination)

    def note_full(self, path: StreamPath | MessageTransport) -> None:
        """Have descriptors show that a path reached or left its limit of messages. Lock held."""
        (self.full_paths.add if path.full else self.full_paths.discard)(path)
        for mailbox in self.hosts[path.local].inboxes.values():
            if mailbox.descriptor is not None:
                self.touched.add(mailbox)

    def note_peer_map(
        self, host: Host, peer: IPAddress, data: bytes, *, exact: bool = False
    ) -> None:
        """Put a peer's map in force and notify the sockets of the address. Lock held.

        With `exact` monitors get only the groups that it cleared, as over RDMA.
        """
        self.counters.cong_update_received += 1
        groups = host.replace_peer_map(peer, data)
        for mailbox in host.inboxes.values():
            mailbox.note_map(groups, exact=exact)
            self.touched.add(mailbox)

    def is_over_hard_bound(self, inbox: Inbox) -> bool:
        """Return whether a mailbox is so full that its peers' streams must wait."""
        limits = self.limits
        bound = limits.receive_hard_factor * inbox.buffer_bytes + limits.receive_hard_bytes
        return inbox.hard_bytes() > bound

    # -- local congestion, and descriptors

    def finish_pass(self) -> None:
        """End a pass: check the mailboxes it touched, send maps, show states, wake."""
        try:
            if self.touched:
                receive_side.finish_pass(self)
        except BaseException:
            self.interrupts.seen = True
            eventfd_write(self.progress_thread.wake_descriptor, 1)
            raise
        self.deliver()

    # -- timed work

    def mark_dirty(self, path: StreamPath) -> None:
        """Note that a path has timed work. Lock held."""
        self._dirty[path] = None
        leader = self.wait_queue.leader
        if leader is None or leader.doing is Doing.IN_POLL:
            self.progress_thread.want()

    def note_due(self, path: MessageTransport, at_ns: int) -> None:
        """Have a message transport served at a time. Lock held."""
        self.message_transport_dues[path] = at_ns
        leader = self.wait_queue.leader
        if leader is None or leader.doing is Doing.IN_POLL:
            self.progress_thread.want()

    def has_dues(self) -> bool:
        """Return whether timed work may be due. Lock held."""
        return bool(
            self.ack_deadlines
            or self._dirty
            or self.missing
            or self.looks
            or self.lingering
            or self.message_transport_dues
        )

    def next_due_ns(self, now_ns: int) -> int | None:
        """Return the earliest time at which `serve_due` has work. Lock held."""
        return background.next_ns(self)

    def serve_due(self) -> None:
        """Do timed work: batches, acknowledgements, second checks, expired lingers."""
        if self.has_dues():  # a hint without the lock; a check under it follows
            background.serve(self)

    # -- the control plane's calls

    def emit(self, event: Event) -> None:
        """Keep an event for `help`. Lock held."""
        self.events.append(event)
        self.progress_thread.want(now=True)

    def take_events(self) -> list[Event]:
        """Return and forget the events. Lock held."""
        events, self.events = self.events, []
        return events

    def help(self, deadline_ns: int | None) -> list[Event]:
        """See `contract.Plane.help`; one thread only."""
        if deadline_ns is not None and deadline_ns <= self.clock_ns():
            self.catch_up()
            self.interrupts.finish_pass()
            self.progress()
            with self.lock:
                return self.take_events()
        return self.progress_thread.run(deadline_ns)

    def wake(self) -> None:
        """Make `help` return early."""
        with self.lock:
            self.interrupt()
        self.progress_thread.deliver()

    def interrupt(self) -> None:
        """Make `help` return early, once `deliver` is called. Lock held."""
        self.progress_thread.want(now=True)
        self.progress_thread.interrupted = True

    def adopt(self) -> None:
        """Leave reading to an event loop that calls `progress`."""
        self.loops.append(None)

    def abandon(self) -> None:
        """End one `adopt`."""
        self.loops.pop()
        if not self.closed:
            self.progress_thread.ring()

    def refuse_reentry(self) -> None:
        """Reject a call inside one that holds the lock. Raises OSError (EDEADLK)."""
        if self.holds_lock():
            raise os_error(ErrorReason.REENTERED)

    def is_inside(self) -> bool:
        """See `contract.Plane.is_inside`."""
        return self.holds_lock() or changes_one_here()

    def later(self, call: Callable[[], None]) -> None:
        """Have the progress thread make a call soon, with no lock held; from any thread."""
        self._postponed.append(call)
        if not self.closed:
            self.progress_thread.ring()

    def catch_up(self) -> None:
        """Make the postponed calls. No lock held."""
        while self._postponed:
            self._postponed.popleft()()

    def progress(self) -> int:
        """Make one pass without blocking."""
        self.driven = True
        try:
            if self.batches:
                self.flush_batches()
            served = self._serve(self.poll_set.poll(0.0))
            self.serve_due()
        except BaseException:
            self.interrupts.seen = True
            eventfd_write(self.progress_thread.wake_descriptor, 1)
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

    # -- shutdown

    def close_mailbox(self, mailbox: Mailbox, linger_ns: int | None) -> None:
        """Unbind; linger in the foreground if asked, else in the background."""
        closing.close_mailbox(self, mailbox, linger_ns)

    def drain(self, drain_ns: int) -> int:
        """Send queued messages and wait for their acknowledgement; return the messages left."""
        return closing.drain(self, drain_ns)

    def end_streams(self) -> None:
        """End the streams in order; wake no thread."""
        closing.end_streams(self)

    def close(self, drain_ns: int) -> int:
        """Drain, end the streams in order, wake all threads."""
        return closing.close(self, drain_ns)

    def fail(self) -> None:
        """Fail every call with EIO, wake all threads: the control plane failed."""
        closing.fail(self)

    def release(self) -> None:
        """Close the plane's own descriptors; kept while a call is still inside."""
        if self.wait_queue.is_empty():
            self.progress_thread.close()
            self.poll_set.close()
            self.wait_queue.close()

    def abandon_in_child(self) -> None:
        """After a fork, in the child: fail every call, change nothing of the parent's."""
        closing.abandon_in_child(self)
