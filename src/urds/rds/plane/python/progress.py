"""What threads do without the lock: wait, serve what is ready, do what is due, wake each other.

*Waiting.* A thread that waits leads or follows (`waiting`). The leader polls the set for all, and
does the timed work between two polls; else the thread that calls `progress` does, or the progress
thread (`background`).

*Interrupts.* A signal handler may raise wherever the interpreter checks for signals: after a call
has returned, where a function begins, where a loop jumps back; also in the cleanup after a first
exception. Source: CPython 3.11 to 3.13, Python/ceval.c (CHECK_EVAL_BREAKER). Three rules follow.

An atomic change is stores, and then one call that is made of C alone: no handler runs in between.
So a message enters its queue in the step that counts it and gives it its number.

An interrupted thread cleans up nothing. It notes the work it has left in `Interrupts`, by a store,
and wakes the progress thread, by one call: an `except` clause that begins so cannot be cut. The
work stays marked as in progress, so no other thread continues it.

The progress thread runs no handlers. It ends the interrupted work (`recover`): a stream that may
have lost bytes in either direction, which its peer retransmits; a wait. Then it checks everything
else, since a notification may be missing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from os import eventfd_write
from typing import TYPE_CHECKING, Any, TypeVar

from urds.common.errors import ErrorReason, os_error
from urds.common.readiness import changes_one_here
from urds.rds.plane.contract import LingerEnded, LingerOver, LocalMapChanged
from urds.rds.plane.python.poll_set import PollSet
from urds.rds.plane.python.waiting import Doing, Waiter, Waiters

if TYPE_CHECKING:
    from urds.rds.plane.python.state import Box, State

_T = TypeVar("_T")


class Progress:
    """Methods for any thread, with no lock held unless they say otherwise."""

    def __init__(self, state: State, poll_set: PollSet) -> None:
        self._state = state
        self._interrupts = state.interrupts
        self._wait_queue = state.wait_queue
        self.poll_set = poll_set
        self._recovering = threading.Lock()
        self._postponed: deque[Callable[[], None]] = deque()  # no lock, so atomic calls

    # -- waiting

    def wait(
        self,
        attempt: Callable[[], _T],
        waiters: Waiters,
        wait_ns: int | None,
        mailbox: Box,
    ) -> _T | None:
        """Attempt under the lock until it returns an item or `wait_ns` is over; read meanwhile.

        With a virtual clock it is attempted once.
        """
        if self._state.virtual:
            with self._state.lock:
                return attempt()
        if wait_ns == 0:
            self.progress()  # a call that never waits still checks for arrivals
            with self._state.lock:
                return attempt()
        state, wait_queue = self._state, self._wait_queue
        waiter = wait_queue.waiter()
        deadline_ns = None if wait_ns is None else state.clock_ns() + wait_ns
        try:
            waiter.in_use = True
            while True:
                if state.batches:
                    self.flush_batches()
                with state.lock:
                    result = attempt()
                    if result is not None:
                        self._leave(waiter, waiters, used=True)
                        break
                    now_ns = state.clock_ns()
                    if deadline_ns is not None and now_ns >= deadline_ns:
                        self._leave(waiter, waiters, used=False)
                        break
                    waiters.add(waiter)
                    leads = wait_queue.begin_wait(waiter)
                    wake_ns = state.next_due_ns() if leads and state.has_dues() else None
                if wait_queue.due:  # an attempt may have emitted an event for the control plane
                    self.deliver()
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
            if wait_queue.due:
                self.deliver()
            waiter.in_use = False
        except BaseException:
            wait_queue.own.waiter = None  # ended by the progress thread; the next wait has another
            self._interrupts.waits[waiter] = waiters
            self._interrupts.seen = True
            eventfd_write(self._interrupts.wake_descriptor, 1)
            self._end_wait(waiter, waiters)  # the progress thread may be gone
            raise
        return result

    def _end_wait(self, waiter: Waiter, waiters: Waiters) -> None:
        with self._state.lock:
            self._leave(waiter, waiters, used=False)
        self.deliver()

    def _leave(self, waiter: Waiter, waiters: Waiters, *, used: bool) -> None:
        """End a wait, for any reason; see `waiting`. Lock held."""
        state = self._state
        unled = self._wait_queue.end_wait(waiter, waiters, used=used)
        state.driven = True
        if unled and state.thread.asleep:
            if state.dirty or state.ack_deadlines or state.looks:
                state.thread.want()
            else:
                state.thread.leader_left()

    def flush_batches(self) -> None:
        """Send open batches: a thread about to sleep has nothing to add."""
        state = self._state
        state.batches = False
        if not state.dirty:
            return
        with state.lock:
            paths = tuple(path for path in state.dirty if path.core.wants_to_write())
        for path in paths:
            path.writer.flush()

    # -- wake-ups

    def deliver(self) -> None:
        """Wake every notified thread."""
        if not self._wait_queue.due:
            return
        thread = self._state.thread
        try:
            self._wait_queue.deliver()
            if thread.wake_due:
                thread.wake_due = False  # one step with the write
                eventfd_write(self._interrupts.wake_descriptor, 1)
        except BaseException:
            self._interrupts.seen = True
            eventfd_write(self._interrupts.wake_descriptor, 1)
            raise

    def ring(self) -> None:
        """End any sleep of the progress thread, to decide again which thread reads."""
        eventfd_write(self._interrupts.wake_descriptor, 1)

    def finish_pass(self) -> None:
        """End a pass: check the mailboxes it touched, send maps, show states, wake."""
        try:
            if self._state.touched:
                self._check_touched()
        except BaseException:
            self._interrupts.seen = True
            eventfd_write(self._interrupts.wake_descriptor, 1)
            raise
        if self._wait_queue.due:
            self.deliver()

    def _check_touched(self) -> None:
        state = self._state
        with state.lock:
            touched, state.touched = state.touched, set()
            now_ns = state.clock_ns()
            changed = tuple(one for one in touched if one.receives.check(now_ns))
            paths = [path for mailbox in changed for path in state.hosts[mailbox.local].paths]
            for mailbox in touched:
                mailbox.receives.resume_paths()
            # A changed local map concerns senders of this process: show their state as well.
            touched, state.touched = touched | state.touched, set()
        for path in paths:
            path.writer.flush()
        while state.resuming:
            paused = next(iter(state.resuming))
            paused.resume()
            state.resuming.discard(paused)  # last: a second resume does no harm
        for mailbox in touched:
            mailbox.sync()

    # -- arrivals

    def progress(self) -> int:
        """Make one pass without blocking; return how many descriptors were served."""
        state = self._state
        state.driven = True
        try:
            if state.batches:
                self.flush_batches()
            served = self.serve_ready(0.0)
            self.serve_due()
        except BaseException:
            self._interrupts.seen = True
            eventfd_write(self._interrupts.wake_descriptor, 1)
            raise
        return served

    def serve_ready(self, timeout_s: float | None, *, leading: bool = False) -> int:
        """Poll the set once and serve what is ready; return how many descriptors were."""
        ready = self.poll_set.poll(timeout_s)
        if leading:
            with self._state.lock:
                leader = self._wait_queue.leader
                if leader is not None and leader.doing is Doing.IN_POLL:
                    leader.doing = Doing.RUNNING
        for descriptor, mask in ready:
            path = self.poll_set.paths.get(descriptor)
            if path is not None:
                path.serve(mask, others=len(ready) > 1)
            elif descriptor == self._wait_queue.kick:
                self._wait_queue.read_kick(leading=leading)
            else:
                with self._state.lock:
                    if self.poll_set.take_watched(descriptor, self._state.events):
                        self._state.thread.want(now=True)
        self.finish_pass()
        return len(ready)

    # -- timed work

    def serve_due(self) -> None:
        """Do timed work: batches, acknowledgements, second checks, expired lingers."""
        state = self._state
        if not state.has_dues():  # a hint without the lock; a check under it follows
            return
        with state.lock:
            now_ns = state.clock_ns()
            paths = state.take_due_paths(now_ns)
            state.note_absent(now_ns)
            looks, state.looks = state.looks, set()
            state.touched |= looks
            for mailbox, at_ns in tuple(state.lingering.items()):
                if at_ns > now_ns:
                    continue
                del state.lingering[mailbox]
                for path in mailbox.sends.paths():
                    self._end_linger(path, mailbox.sends)
                for path in mailbox.sends.external_paths():
                    if path.holds(mailbox.sends):
                        state.emit(LingerEnded(path, mailbox))
        for path in paths:
            path.writer.serve_due(now_ns)
        self.finish_pass()

    def _end_linger(self, path: Any, sends: Any) -> None:
        """Cancel a closed mailbox's messages on a path after its linger time. Lock held."""
        unsent, unacknowledged = path.counts(sends)
        count = path.cancel(sends, None)
        self._state.counters.send_linger_over += count
        if count:
            self._state.emit(LingerOver(path, unsent, unacknowledged))

    # -- signal handlers

    def refuse_reentry(self) -> None:
        """Reject a call inside one that holds the lock. Raises OSError (EDEADLK)."""
        if self._state.holds_lock():
            raise os_error(ErrorReason.REENTERED)

    def is_inside(self) -> bool:
        """See `contract.Plane.is_inside`."""
        return self._state.holds_lock() or changes_one_here()

    def later(self, call: Callable[[], None]) -> None:
        """Have the progress thread make a call soon, with no lock held."""
        self._postponed.append(call)
        if not self._state.closed:
            self.ring()

    def catch_up(self) -> None:
        """Make the postponed calls and recover interrupted work; for the progress thread."""
        while self._postponed:
            self._postponed.popleft()()
        self.recover()

    def recover(self) -> None:
        """End and check what interrupted calls left, if there is any."""
        state, interrupts = self._state, self._interrupts
        if not interrupts.seen:
            return
        with self._recovering:
            interrupts.seen = False
            while interrupts.writes:
                writer, number = interrupts.writes.popitem()
                writer.abort(number)
            while interrupts.reads:
                reader, stream = interrupts.reads.popitem()
                reader.abort(stream)
            while interrupts.waits:
                waiter, waiters = interrupts.waits.popitem()
                with state.lock:
                    self._leave(waiter, waiters, used=False)
            with state.lock:
                for host in state.hosts.values():
                    state.touched.update(host.mailboxes.values())
                    if host.externals:
                        state.emit(LocalMapChanged(host.address))
                self.poll_set.watch_again()
                paths = [path for host in state.hosts.values() for path in host.paths]
                for path in paths:
                    path.finish_freed()
                    path.core.acknowledge()  # its time may be forgotten
                    if path.core.sender.holds():
                        path.want()
        for path in paths:
            self.poll_set.update(path)
            if path.core.wants_to_write():
                path.writer.flush()
        self.finish_pass()
        self._wait_queue.due = True  # an interrupt may have kept it from being noted
        self.deliver()

    def abandon_in_child(self) -> None:
        """Forget after a fork the work of the parent's threads."""
        self._recovering = threading.Lock()
        self._interrupts.forget()
        self.poll_set.close()
