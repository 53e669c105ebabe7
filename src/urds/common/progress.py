"""Progress: which thread runs what waits for descriptors and time, such as the work of a device.

Handing a message from thread to thread costs more than everything else about it. So a thread that
waits for a device makes its progress itself: it sleeps in the device's epoll set and processes
what it finds there. A `ProgressLoop` is that set with its handlers, timers and waiting threads.

**Leader and followers.** One at a time, the *leader*, sleeps in the set; other waiters sleep each
on a lock of its own. A waiter that becomes ready is woken by itself, and a leader that leaves
wakes one to lead.

**The progress thread**, one for all loops of a process, leads where no thread waits and there was
no progress for `PARK_NS`, so that a process which computes still answers its peers. It sleeps in
one set, into which it takes the set of every loop that it leads; a thread that comes to wait takes
its set out again, which wakes no thread. While waits follow each other closely the thread only
looks every `PARK_NS` whether they still do. A thread that sleeps on a loop in an epoll set of its
own makes no progress: while there is one (`add_external_waiter`) the progress thread leads whenever
no thread waits here.

**Memory.** What arrives in memory shows on no descriptor unless its writer is asked to ring a
doorbell. Doorbells are asked for by a leader that is about to sleep, and belong to it alone: if
another thread cleared one before the leader wakes, the ring would be lost, and its writer does not
ring again.

**Signal handlers that raise.** The exception of a handler, KeyboardInterrupt among them, comes
behind any call of the main thread: in the middle of a wait, or of what ends the wait. So what says
that something is planned is written behind the plan, not before, and the end of a wait is begun
again if it was cut short: a handler that raises once in a wait leaves the loop whole. A call that
the loop has taken from a list at that moment may be lost.

Datagram rsockets and the timers of streams use the thread itself: what it calls for them holds no
lock. The locks of two loops are never held together here; that of a loop comes before the thread's.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from urds.common.forks import renewed
from urds.common.timers import TimedCalls, Timer

PARK_NS: Final = 5_000_000  # so long after the last progress the progress thread leads
NAP_NS: Final = 100_000_000  # the longest sleep beside memory: the net below a lost doorbell
LOOK_NS: Final = 1_000_000  # how often a thread that polls beside memory asks the kernel too
EVENTS_MAX: Final = 64  # of one pass; the others come with the next
PASSES_MAX: Final = 64  # of the progress thread with one lock, while something is late
JOIN_S: Final = 2.0
_SLEEP_S_MAX: Final = 3600.0  # the kernel's limit is lower than that of TCP_KEEPIDLE
_NS: Final = 1_000_000_000
_READABLE: Final = 1  # EPOLLIN, where this module is imported without epoll too

Call = Callable[[], None]
Handler = Callable[[int], None]  # takes the events of a descriptor
Ready = Callable[[], bool]
Events = Sequence[tuple[int, int]]

P = ParamSpec("P")
Result = TypeVar("Result")


def unlocked(
    lock: threading.RLock, call: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs
) -> Result:
    """Return what a call returns, made without the lock, which is held before and afterwards.

    As `threading.Condition` does it: `acquire` may end with the exception of a signal handler both
    with the lock and without.
    """
    # Held once: what is restored if a handler raises before the lock's own state is stored here.
    state = (1, threading.get_ident())
    try:
        state = lock._release_save()  # type: ignore[attr-defined]  # as threading does
        return call(*args, **kwargs)
    finally:
        lock._acquire_restore(state)  # type: ignore[attr-defined]  # as threading does


class ProgressThread:
    """The progress thread of a process: descriptors, times and calls of other threads.

    Any thread may make its calls, a finaliser too. The first need starts the thread, which ends
    when it has nothing left to wait for. What it runs holds no lock; an exception is reported as
    that of a thread, and the next call is made.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = renewed(threading.RLock())
        self._epoll: select.epoll | None = None  # with the thread
        self._doorbell = -1
        self._is_awake = False  # it looks at everything once more before it sleeps
        self._wakes_ns: int | None = None  # when it does by itself
        self._handlers: dict[int, Call] = {}
        self._calls: deque[Call] = deque()
        self._timers = TimedCalls()

    def watch(self, descriptor: int, handler: Call, events: int = _READABLE) -> None:
        """Call `handler` whenever the descriptor is ready."""
        with self._lock:
            epoll = self._started()
            self._handlers[descriptor] = handler
            epoll.register(descriptor, events)

    def change(self, descriptor: int, events: int) -> None:
        """Watch for other events, or for none."""
        with self._lock:
            self._started().modify(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching, before the descriptor is closed; a last call may be under way."""
        with self._lock:
            if self._handlers.pop(descriptor, None) is not None:
                self._started().unregister(descriptor)
                if not self._handlers:
                    self._ring()  # there may be nothing to wait for any more

    def call_soon(self, call: Call) -> None:
        """Run `call` soon."""
        with self._lock:
            self._calls.append(call)
            self._ring()

    def call_at(self, deadline_ns: int, call: Call) -> Timer:
        """Run `call` at a time of the monotonic clock, or shortly after."""
        with self._lock:
            timer = self._timers.add(deadline_ns, call)
            if self._wakes_ns is None or deadline_ns < self._wakes_ns:
                self._ring()
        return timer

    def abandon_in_child(self) -> None:
        """Close what the child of a fork has of it; the thread is the parent's."""
        if self._epoll is not None:
            self._epoll.close()
            os.close(self._doorbell)
        self._begin()

    # -- inside

    def _started(self) -> select.epoll:
        """Return what the thread sleeps in, and make both if need be. Lock held.

        Raises RuntimeError where no thread can be had; the next need asks again.
        """
        if self._epoll is None:
            epoll, doorbell = select.epoll(), os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            epoll.register(doorbell, select.EPOLLIN)
            thread = threading.Thread(
                target=self._run, args=(epoll, doorbell), name="urds-progress", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                _close(epoll, doorbell)
                raise
            # Stored last: a signal handler that raises before leaves a thread without a task, which
            # ends, as does the second one where a finaliser has begun another meanwhile.
            if self._epoll is None:
                self._epoll, self._doorbell = epoll, doorbell
        return self._epoll

    def _ring(self) -> None:
        self._started()
        # Each system call gives up the interpreter, which a computing thread keeps for a while.
        if not self._is_awake:
            os.eventfd_write(self._doorbell, 1)

    def _run(self, epoll: select.epoll, doorbell: int) -> None:
        while (sleep_s := self._sleep_s(epoll, doorbell)) is not None:
            events = epoll.poll(sleep_s)
            self._is_awake = True
            for descriptor, _ in events:
                if descriptor == doorbell:
                    with suppress(BlockingIOError):
                        os.eventfd_read(doorbell)
                elif (handler := self._handlers.get(descriptor)) is not None:
                    _make(handler)
            for _ in range(len(self._calls)):
                _make(self._calls.popleft())
            now_ns = time.monotonic_ns()
            while (call := self._take_due(now_ns)) is not None:
                _make(call)

    def _sleep_s(self, epoll: select.epoll, doorbell: int) -> float | None:
        """Return how long to sleep, -1 for ever. None: there is nothing left, and all is closed."""
        with self._lock:
            if self._epoll is epoll:
                self._is_awake = False  # before the look: what comes after it rings
                if self._calls:
                    return 0.0
                self._wakes_ns = next_ns = self._timers.next_ns()
                if next_ns is not None:
                    left_s = (next_ns - time.monotonic_ns()) / _NS
                    return min(max(left_s, 0.0), _SLEEP_S_MAX)
                if self._handlers:
                    return -1.0
                self._epoll, self._doorbell = None, -1
            _close(epoll, doorbell)
            return None

    def _take_due(self, now_ns: int) -> Call | None:
        with self._lock:
            return self._timers.take_due(now_ns)


def _close(epoll: select.epoll, doorbell: int) -> None:
    epoll.close()
    os.close(doorbell)


def _make(call: Call) -> None:
    """Make a call; an exception of it is the thread's, but does not end it."""
    try:
        call()
    except Exception:  # noqa: BLE001 - the other devices of the process need the thread
        arguments = (*sys.exc_info(), threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(arguments))


progress_thread: Final = ProgressThread()


class Waiter:
    """One thread that waits until `is_ready()`."""

    __slots__ = ("_sleep_lock", "is_asleep", "is_ready")

    def __init__(self, is_ready: Ready) -> None:
        self.is_ready = is_ready
        self.is_asleep = False
        # Made for each sleep, and taken: its release wakes the thread.
        self._sleep_lock: threading.Lock | None = None

    def sleep(self, lock: threading.RLock, wait_s: float | None) -> None:
        """Sleep until woken, or for a time; the lock is free meanwhile."""
        sleep_lock = self._sleep_lock = threading.Lock()
        sleep_lock.acquire()
        self.is_asleep = True
        try:
            unlocked(
                lock,
                sleep_lock.acquire,
                timeout=_SLEEP_S_MAX if wait_s is None else min(wait_s, _SLEEP_S_MAX),
            )
        finally:
            self.is_asleep = False

    def wake(self) -> None:
        """Wake it to check again."""
        if self.is_asleep and self._sleep_lock is not None:
            self.is_asleep = False
            self._sleep_lock.release()


class Waiters(list[Waiter]):
    """The threads that wait for one loop, in the order in which they came.

    Each is woken by itself. A condition for all of them would wake a hundred threads for one that
    is ready: each takes the interpreter and the lock in turn, only to sleep again.
    """

    def wake_ready(self) -> bool:
        """Wake ready threads that sleep; return whether other ready ones do not sleep here."""
        is_left = False
        for waiter in self:
            if waiter.is_ready():
                is_left = is_left or not waiter.is_asleep
                waiter.wake()
        return is_left

    def wake_successor(self) -> None:
        """Wake one thread to lead, unless one is awake: that one will notice by itself."""
        if self and all(waiter.is_asleep for waiter in self):
            self[0].wake()

    def wake_all(self) -> None:
        """Wake every thread to check again."""
        for waiter in self:
            waiter.wake()


class ProgressMemory(Protocol):
    """Memory into which peers write, seen by no descriptor. Lock held."""

    def poll_memory(self) -> None:
        """Process what is there."""

    def arm_doorbell(self) -> bool:
        """Ask the writers to ring a doorbell; false if there is something to process instead."""

    def disarm_doorbell(self) -> None:
        """Ask them not to."""

    def progressed_ns(self) -> int:
        """Return when a call past the loop processed something last; 0 if there is no such call."""


class ProgressLoop:
    """The epoll set of one device, its timers, its calls, and the threads that wait for it.

    Everything but `wait`, `progress`, `call_soon` and `close` is called with the lock held;
    handlers and calls run with it held.
    """

    # Of this loop: the other loops of a process keep theirs where one is given another time.
    park_ns = PARK_NS
    nap_ns = NAP_NS

    def __init__(
        self,
        lock: threading.RLock,
        *,
        memory: ProgressMemory | None = None,
        on_abandon: Call = lambda: None,
        on_cut: Call = lambda: None,
    ) -> None:
        """Begin.

        `on_abandon` is called in the child of a fork, after the loop was closed there; `on_cut` in
        the pass that follows an exception of a wait or a pass.
        """
        self.is_closed = False  # or the parent process's
        self.leader: Waiter | None = None  # sleeps in the set, or has it in the thread's
        self._lock = lock
        self._memory = memory
        self._on_abandon = on_abandon
        self._on_cut = on_cut
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._timers = TimedCalls()
        self._soon: deque[Call] = deque()
        self._deferred: list[Call] = []
        self._waiters = Waiters()
        self._thread_leads = Waiter(lambda: False)  # the leader that stands for the thread
        self._has_left = threading.Condition(lock)  # a leader has; for `close`
        self._is_processing = False
        self._pass_count = 0
        self._progressed_ns = self._looked_ns = 0
        self._wakes_ns: int | None = None  # when the leader does by itself
        self._external_count = 0
        self._check: Timer | None = None  # of the thread: whether to lead
        self._due: Timer | None = None  # of the thread, while it leads
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._doorbell, select.EPOLLIN, self._handle_doorbell)
        progress_thread.watch(self._epoll.fileno(), self._run_in_thread, 0)
        progress_thread.call_soon(self._check_in_thread)
        _open_loops.add(self)

    # -- descriptors, timers, calls

    def watch(self, descriptor: int, events: int, handler: Handler) -> None:
        """Call `handler(events)` whenever the descriptor is ready."""
        self._epoll.register(descriptor, events)
        self._handlers[descriptor] = handler

    def change(self, descriptor: int, events: int) -> None:
        """Watch for other events."""
        self._epoll.modify(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching; before the descriptor is closed. No error for an unknown one."""
        if self._handlers.pop(descriptor, None) is not None:
            with suppress(OSError, ValueError):
                self._epoll.unregister(descriptor)

    def call_at(self, deadline_ns: int, call: Call) -> Timer:
        """Run `call` at a time of the monotonic clock, or shortly after (`PARK_NS`)."""
        timer = self._timers.add(deadline_ns, call)
        if self.leader is self._thread_leads:
            self._plan_thread()
        elif self.leader is not None and (self._wakes_ns is None or deadline_ns < self._wakes_ns):
            self._ring()
        return timer

    def replan(self, timer: Timer | None, deadline_ns: int | None, call: Call) -> Timer | None:
        """Return `timer`, or a new one in its place if `deadline_ns` comes before it."""
        if timer is not None and not self._timers.is_set(timer):
            timer = None  # taken from the heap, and perhaps not called: a handler raised
        if deadline_ns is None or (timer is not None and timer.deadline_ns <= deadline_ns):
            return timer
        if timer is not None:
            timer.cancel()
        return self.call_at(deadline_ns, call)

    def call_soon(self, call: Call) -> None:
        """Run `call` in the next pass: never from inside the caller."""
        self._soon.append(call)
        if not self._is_processing:  # else the pass looks once more when it is over
            self._ring()

    def defer(self, call: Call) -> None:
        """Run `call` before the next sleep: late enough for an answer of the application.

        If the application computes instead of waiting, the progress thread calls it.
        """
        self._deferred.append(call)

    def tell(self) -> None:
        """Wake threads whose wait is over."""
        if not self._is_processing and self._waiters.wake_ready():
            self._ring()

    def add_external_waiter(self) -> None:
        """Count an external waiter; the progress thread leads unless a thread waits here."""
        self._external_count += 1
        if not (self._is_processing or self._waiters or self.is_closed) and self.leader is None:
            self._lead_in_thread()

    def remove_external_waiter(self) -> None:
        """Remove one external waiter."""
        self._external_count -= 1

    # -- progress

    def progress(self) -> bool:
        """Process what is there, without waiting; return whether a descriptor was ready.

        Inside a handler it does nothing.
        """
        with self._lock:
            if self._is_processing or self.is_closed:
                return False
            try:
                if self.leader is self._thread_leads and not self._external_count:
                    self._take_lead()
                self._do_deferred()
                events = self._events_now()
                self._pass(events)
                self._leave()
            except BaseException:
                self._soon.append(self._on_cut)
                self._leave()  # also where the first was cut short
                raise
            return bool(events)

    def wait(self, is_ready: Ready, timeout_ns: int | None) -> bool:
        """Wait until `is_ready()`; return its last result. Inside a handler it only checks."""
        with self._lock:
            if is_ready():
                self._progressed_ns = time.monotonic_ns()  # by a thread that waits here at times
                return True
            if self._is_processing or self.is_closed:
                return False
            end_ns = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
            waiter = Waiter(is_ready)
            try:
                self._waiters.append(waiter)
                is_over = self._wait_until(waiter, end_ns)
                self._depart(waiter)
            except BaseException:
                self._soon.append(self._on_cut)
                self._depart(waiter)  # also where the first was cut short
                raise
            return is_over

    def close(self) -> None:
        """End all waits; nothing is called any more. Call it without the lock, or in a handler."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            self._waiters.wake_all()
            if self.leader is self._thread_leads:
                self.leader = None
            self._ring()
            # A thread that is still in the set would sleep on a closed descriptor.
            self._has_left.wait_for(self._is_vacant, JOIN_S)
            # Before the last look of the thread: else it would stay until they are due.
            for timer in (self._check, self._due):
                if timer is not None:
                    timer.cancel()
            progress_thread.unwatch(self._epoll.fileno())
            self._forget_all()
            self._epoll.close()
            os.close(self._doorbell)
            self._doorbell = -1

    def abandon_in_child(self) -> None:
        """Close this copy in the child of a fork, where no thread is.

        Each watched descriptor becomes one of /dev/null: what the child kept open would keep the
        parent's ports taken and its peers waiting after the parent's death. The numbers stay
        taken, since the objects that hold them are still there. The set of the epoll is shared
        with the parent, and so not touched.
        """
        self._lock._at_fork_reinit()  # type: ignore[attr-defined]  # as threading does with its own
        self.is_closed = True
        self.leader = None
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in self._handlers:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        self._forget_all()
        self._waiters.clear()
        self._epoll.close()
        self._on_abandon()

    # -- waiting

    def _is_vacant(self) -> bool:
        return self.leader is None

    def _wait_until(self, waiter: Waiter, end_ns: int | None) -> bool:
        if self._memory is not None:
            self._pass(())
            if waiter.is_ready():
                return True
        while not self.is_closed:
            self._wait_once(waiter, end_ns)
            if waiter.is_ready():
                return True
            if end_ns is not None and time.monotonic_ns() >= end_ns:
                break
        return False

    def _depart(self, waiter: Waiter) -> None:
        """End a wait; again, where that was cut short."""
        self._end_lead(waiter)
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        self._leave()

    def _wait_once(self, waiter: Waiter, end_ns: int | None) -> None:
        if self.leader is self._thread_leads:
            self._take_lead()
        if self.leader is None:
            self._lead(waiter, end_ns)
        else:
            left_ns = None if end_ns is None else end_ns - time.monotonic_ns()
            waiter.sleep(self._lock, None if left_ns is None else max(0, left_ns) / _NS)

    def _lead(self, waiter: Waiter, end_ns: int | None) -> None:
        """Sleep until something arrives or is due, without the lock; then process it."""
        memory = self._memory
        events: Events = ()
        # Deferred calls may satisfy a waiter: then no thread may sleep.
        is_over = self._do_deferred()
        if memory is None or memory.arm_doorbell():
            self.leader = waiter  # before the last look: calls without the lock ring from now on
            sleep_s = 0.0 if is_over or self._soon else self._sleep_s(end_ns)
            pass_count = self._pass_count
            events = unlocked(self._lock, self._epoll.poll, sleep_s, EVENTS_MAX)
            self._end_lead(waiter)
            # If another thread was faster, what it left is still ready and comes with the next.
            if pass_count != self._pass_count:
                events = ()
        if not self.is_closed:
            self._pass(events)

    def _end_lead(self, waiter: Waiter) -> None:
        if self.leader is waiter:
            if self._memory is not None:
                self._memory.disarm_doorbell()
            self.leader = None
            if self.is_closed:
                self._has_left.notify_all()

    def _sleep_s(self, end_ns: int | None) -> float:
        """Return how long a leader may sleep that waits until `end_ns`, -1 for ever."""
        next_ns = self._timers.next_ns()
        if next_ns is None or (end_ns is not None and end_ns < next_ns):
            next_ns = end_ns
        self._wakes_ns = next_ns
        if next_ns is None:
            return -1.0 if self._memory is None else self.nap_ns / _NS
        left_ns = max(0, next_ns - time.monotonic_ns())
        return (left_ns if self._memory is None else min(left_ns, self.nap_ns)) / _NS

    def _events_now(self) -> Events:
        if self._memory is not None:
            now_ns = time.monotonic_ns()
            if self.leader is not None or now_ns - self._looked_ns < LOOK_NS:
                return ()
            self._looked_ns = now_ns
        return self._epoll.poll(0, EVENTS_MAX)

    def _pass(self, events: Events) -> None:
        """Process events, memory, and what is due. Not inside another pass."""
        if self._is_processing:
            return
        self._is_processing = True
        self._pass_count += 1
        try:
            self._run_soon()  # first: ESTABLISHED precedes data
            handlers = self._handlers
            for descriptor, mask in events:
                handler = handlers.get(descriptor)
                if handler is not None:
                    handler(mask)
            if self._memory is not None and not self.is_closed:
                self._memory.poll_memory()
            if self._timers:
                now_ns = time.monotonic_ns()
                while (call := self._timers.take_due(now_ns)) is not None:
                    call()
            self._run_soon()
        finally:
            self._is_processing = False
        if self._waiters:
            self.tell()

    def _run_soon(self) -> None:
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def _do_deferred(self) -> bool:
        """Run deferred calls; return whether there were any."""
        if self._is_processing or not self._deferred:
            return False
        while self._deferred:
            self._deferred.pop()()
        return True

    def _leave(self) -> None:
        """Leave the lead: to a waiter, or to the thread, at once or when it checks again."""
        self._progressed_ns = now_ns = time.monotonic_ns()
        if self.leader is not None:
            if self._deferred or self._soon:
                self._ring()  # what was put off comes before its sleep
        elif self.is_closed:
            pass
        elif self._waiters:
            self._waiters.wake_successor()
        elif self._external_count:
            self._lead_in_thread()
        else:
            self._plan_later(now_ns)

    def _ring(self) -> None:
        """Wake the leader, if there is one: it has something to do now."""
        leader = self.leader
        if leader is self._thread_leads:
            progress_thread.call_soon(self._run_in_thread)
        elif leader is not None:
            with suppress(OSError):
                os.eventfd_write(self._doorbell, 1)

    def _handle_doorbell(self, _events: int) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._doorbell)

    def _forget_all(self) -> None:
        self._handlers.clear()
        self._timers = TimedCalls()
        self._soon.clear()
        self._deferred.clear()

    # -- the lead of the progress thread

    def _lead_in_thread(self) -> None:
        """Have the thread lead from now on; no thread does."""
        progress_thread.change(self._epoll.fileno(), select.EPOLLIN)
        self._sleep_in_thread()
        self.leader = self._thread_leads

    def _take_lead(self) -> None:
        """Take the lead from the thread, without waking it."""
        self.leader = None  # first: a thread that led and heard nothing would be deaf for good
        progress_thread.change(self._epoll.fileno(), 0)
        if self._memory is not None:
            self._memory.disarm_doorbell()

    def _run_in_thread(self) -> None:
        """Make a pass, unless the thread does not lead any more."""
        with self._lock:
            if self._due is not None and self._due.deadline_ns <= time.monotonic_ns():
                self._due.cancel()
                self._due = None
            if self.is_closed:
                return
            if self.leader is not self._thread_leads:
                # It may hear the set still, or already, where a handler raised in a change of lead.
                progress_thread.change(self._epoll.fileno(), 0)
                return
            if self._memory is not None:
                self._memory.disarm_doorbell()
            try:
                # What is late does not wait for others to give up the lock: behind a busy sender
                # the acknowledgements would come after the time to send again.
                for _ in range(PASSES_MAX):
                    self._pass(self._epoll.poll(0, EVENTS_MAX))
                    # No application answers from here; a waiter may sleep on what was put off.
                    if self._do_deferred():
                        self.tell()
                    if not self._is_late():
                        break
            finally:
                self._stay_in_thread()

    def _is_late(self) -> bool:
        if self._soon and not self.is_closed:
            return True
        next_ns = self._timers.next_ns()
        return next_ns is not None and next_ns <= time.monotonic_ns()

    def _stay_in_thread(self) -> None:
        """Go on leading in the thread, unless a thread waited here lately."""
        if self.is_closed:
            return
        if self._external_count or time.monotonic_ns() - self._last_ns() >= self.park_ns:
            self._sleep_in_thread()
        else:
            self._take_lead()
            self._plan_check(self._last_ns() + self.park_ns)

    def _last_ns(self) -> int:
        """Return when a thread of the application made progress last."""
        memory = self._memory
        if memory is None:
            return self._progressed_ns
        return max(self._progressed_ns, memory.progressed_ns())

    def _sleep_in_thread(self) -> None:
        """Let the thread sleep, or have it come again at once."""
        is_armed = self._memory is None or self._memory.arm_doorbell()
        if not is_armed or self._soon or self._deferred:
            progress_thread.call_soon(self._run_in_thread)
        self._plan_thread()

    def _plan_thread(self) -> None:
        """Have the thread wake for what is due next."""
        next_ns = self._timers.next_ns()
        if self._memory is not None:
            nap_end_ns = time.monotonic_ns() + self.nap_ns
            next_ns = nap_end_ns if next_ns is None else min(next_ns, nap_end_ns)
        if next_ns is None or (self._due is not None and self._due.deadline_ns <= next_ns):
            return
        if self._due is not None:
            due, self._due = self._due, None
            due.cancel()
        self._due = progress_thread.call_at(next_ns, self._run_in_thread)

    def _check_in_thread(self) -> None:
        """Lead if no thread does, and none has made progress for a while; or check again."""
        with self._lock:
            self._check = None
            if self.is_closed or self.leader is self._thread_leads:
                return
            now_ns = time.monotonic_ns()
            left_ns = self._last_ns() + self.park_ns - now_ns
            if self.leader is not None or self._waiters:
                if left_ns <= -self.park_ns:
                    return  # a long wait: the thread that leaves it has this one check again
                left_ns = self.park_ns
            elif left_ns <= 0 or self._deferred:
                self._lead_in_thread()
                return
            self._plan_check(now_ns + left_ns)

    def _plan_later(self, now_ns: int) -> None:
        self._plan_check(now_ns + self.park_ns)

    def _plan_check(self, at_ns: int) -> None:
        if self._check is None:
            self._check = progress_thread.call_at(at_ns, self._check_in_thread)


_open_loops: Final[WeakSet[ProgressLoop]] = WeakSet()


def _abandon_in_child() -> None:
    progress_thread.abandon_in_child()
    for loop in list(_open_loops):
        if not loop.is_closed:
            loop.abandon_in_child()
    _open_loops.clear()


os.register_at_fork(after_in_child=_abandon_in_child)
