"""Event loop of the tcp provider: epoll, timers, and which thread runs them.

A thread that waits for a completion runs the loop itself: waking another thread costs more than
the message (docs/architecture.md, "Threads"). The progress thread runs it after a millisecond
without, so that a process which computes still answers its peers; at once while a thread waits on
a descriptor in its own poll set (`add_external_waiter`). Everything but `wait`, `progress`,
`call_soon` and `close` is called with the lock held; handlers run with it held.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from urds.common.timers import TimedCalls, Timer
from urds.verbs.providers.base import Adapter
from urds.verbs.providers.device_waiters import DeviceWaiter, DeviceWaiters, LiveDevices

Handler = Callable[[int], None]
Ready = Callable[[], bool]

EVENTS_MAX: Final = 64  # of one pass; the others come with the next
PARKED_S: Final = 0.001  # how long the thread leaves the lead to the last one
JOIN_S: Final = 2.0
_NS: Final = 1_000_000_000


class Reactor:
    """The epoll set of one adapter and its progress thread."""

    def __init__(self, lock: threading.RLock, *, name: str) -> None:
        self._lock = lock
        self._polled = threading.Condition(lock)  # for `close`: a thread has left its poll
        self._parked = threading.Condition(lock)
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._timers = TimedCalls()
        self._soon: deque[Callable[[], None]] = deque()
        self._deferred: list[Callable[[], None]] = []
        self._waiting = DeviceWaiters()
        self._is_led = False  # a thread of the application leads
        self._is_processing = False
        self._pass_count = 0
        self._polling_count = 0  # threads inside a poll that waits
        self._progressed_ns = 0
        self._external_count = 0
        self.is_closed = False  # or the parent process's
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._doorbell, select.EPOLLIN, self._handle_doorbell)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _alive.add(self)

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
            with suppress(OSError):
                self._epoll.unregister(descriptor)

    def call_at(self, deadline_ns: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` at a time of the monotonic clock, or shortly after (1 ms)."""
        timer = self._timers.add(deadline_ns, callback)
        if self._polling_count and self._timers.next_ns() == deadline_ns:
            self._ring_doorbell()
        return timer

    def replan(
        self, timer: Timer | None, deadline_ns: int | None, callback: Callable[[], None]
    ) -> Timer | None:
        """Return `timer`, or a new one in its place if `deadline_ns` comes before it."""
        if deadline_ns is None or (timer is not None and timer.deadline_ns <= deadline_ns):
            return timer
        if timer is not None:
            timer.cancel()
        return self.call_at(deadline_ns, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the next pass: never from inside the caller."""
        self._soon.append(callback)
        if self._polling_count:
            self._ring_doorbell()

    def defer(self, callback: Callable[[], None]) -> None:
        """Call `callback` before the next poll: late enough for an answer of the application.

        If the application computes instead of polling, the progress thread calls it.
        """
        self._deferred.append(callback)

    def tell(self) -> None:
        """Wake threads whose wait is over."""
        if not self._is_processing and self._waiting.wake_ready() and self._polling_count:
            self._ring_doorbell()

    def add_external_waiter(self) -> None:
        """Count an external waiter; the progress thread leads unless another thread does."""
        self._external_count += 1
        self._parked.notify()

    def remove_external_waiter(self) -> None:
        """Remove one external waiter."""
        self._external_count -= 1

    # -- progress

    def progress(self) -> None:
        """Process what is there, without waiting. Inside a handler it does nothing."""
        with self._lock:
            if not self._is_processing and not self.is_closed:
                self._progress_once(0)
                self._leave()

    def wait(self, is_ready: Ready, timeout_ns: int | None) -> bool:
        """Wait until `is_ready()`; return its last result. Inside a handler it only checks."""
        with self._lock:
            if is_ready() or self._is_processing:
                return is_ready()
            deadline_ns = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
            waiter = DeviceWaiter(is_ready)
            self._waiting.append(waiter)
            try:
                while not self.is_closed:
                    self._wait_once(waiter, deadline_ns)
                    if is_ready():
                        return True
                    if deadline_ns is not None and time.monotonic_ns() >= deadline_ns:
                        return False
                return is_ready()
            finally:
                self._waiting.remove(waiter)
                if not self._is_led:
                    self._waiting.wake_successor()

    def _wait_once(self, waiter: DeviceWaiter, deadline_ns: int | None) -> None:
        if self._is_led:
            left_ns = None if deadline_ns is None else deadline_ns - time.monotonic_ns()
            waiter.sleep(self._lock, None if left_ns is None else max(0, left_ns) / _NS)
            return
        self._is_led = True
        try:
            self._progress_once(deadline_ns)
        finally:
            self._is_led = False
            self._leave()

    def _leave(self) -> None:
        """Leave the lead to the progress thread, which checks deferred calls when it is parked."""
        self._progressed_ns = time.monotonic_ns()
        if self._deferred and self._polling_count:
            self._ring_doorbell()
        if self._external_count:
            self._parked.notify()

    def _progress_once(self, deadline_ns: int | None) -> None:
        """Poll once, at most until `deadline_ns` (0: not at all), and do what is due."""
        # Deferred calls may satisfy a waiter: then no thread may sleep.
        events = self._poll(0 if self._do_deferred() else deadline_ns)
        if self._is_processing or self.is_closed:
            return
        self._is_processing = True
        self._pass_count += 1
        try:
            self._run_soon()  # first: ESTABLISHED precedes data
            for descriptor, mask in events:
                handler = self._handlers.get(descriptor)
                if handler is not None:
                    handler(mask)
            self._run_timers()
            self._run_soon()
        finally:
            self._is_processing = False
        # The kernel wakes one of several pollers for an event, which may be the wrong one.
        if self._polling_count or len(self._waiting) > 1:
            self.tell()

    def _do_deferred(self) -> bool:
        """Run deferred calls; return whether there were any."""
        if self._is_processing or not self._deferred:
            return False
        while self._deferred:
            self._deferred.pop()()
        return True

    def _poll(self, deadline_ns: int | None) -> list[tuple[int, int]]:
        next_ns = self._timers.next_ns()
        if next_ns is not None and (deadline_ns is None or next_ns < deadline_ns):
            deadline_ns = next_ns
        self._polling_count += 1  # before the last check: calls without the lock ring now
        if self._soon:
            deadline_ns = 0
        if deadline_ns is None:
            wait_s = -1.0
        else:
            wait_s = max(0, deadline_ns - time.monotonic_ns()) / _NS if deadline_ns else 0
        if wait_s == 0:
            self._polling_count -= 1
            return self._epoll.poll(0, EVENTS_MAX)
        pass_count = self._pass_count
        self._lock.release()
        try:
            events = self._epoll.poll(wait_s, EVENTS_MAX)
        except (OSError, ValueError):
            if not self.is_closed:
                raise
            events = []
        finally:
            self._lock.acquire()
            self._polling_count -= 1
            if self.is_closed:
                self._polled.notify_all()
        # If another thread was faster, what it left is still ready and comes with the next poll.
        return events if pass_count == self._pass_count else []

    def _run_soon(self) -> None:
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def _run_timers(self) -> None:
        if not self._timers:
            return
        now_ns = time.monotonic_ns()
        while (call := self._timers.take_due(now_ns)) is not None:
            call()

    def _ring_doorbell(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_write(self._doorbell, 1)

    def _handle_doorbell(self, _events: int) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._doorbell)

    # -- the thread

    def _run(self) -> None:
        with self._lock:
            while not self.is_closed:
                if self._is_led or not self._is_mine():
                    self._parked.wait(PARKED_S)
                    continue
                self._progress_once(None)
                # No application answers from here, and a driver may sleep on what was put off.
                if self._do_deferred():
                    self.tell()

    def _is_mine(self) -> bool:
        """Return whether the progress thread may lead, there being no other leader."""
        if self._external_count or self._deferred:
            return True
        return time.monotonic_ns() - self._progressed_ns >= PARKED_S * _NS

    def abandon_in_child(self) -> None:
        """Close this copy in the child of a fork, where no thread is.

        Each watched descriptor becomes one of /dev/null: what the child kept open would keep the
        parent's ports taken and its peers waiting after the parent's death. The numbers stay
        taken, since the objects that hold them are still there. The set of the epoll is shared
        with the parent, and so not touched.
        """
        self._lock._at_fork_reinit()  # type: ignore[attr-defined]  # as threading does with its own
        self.is_closed = True
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in self._handlers:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        self._handlers.clear()
        self._timers = TimedCalls()
        self._soon.clear()
        self._waiting.clear()
        self._epoll.close()

    def close(self) -> None:
        """End the thread; nothing is called any more. Call it without the lock."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            self._waiting.wake_all()
            self._parked.notify_all()
            self._ring_doorbell()
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)
        with self._lock:
            # A thread that is still in the poll would sleep on a closed descriptor.
            self._polled.wait_for(lambda: not self._polling_count, JOIN_S)
            self._handlers.clear()
            self._timers = TimedCalls()
            self._soon.clear()
            self._epoll.close()
            os.close(self._doorbell)


class ReactorAdapter(Adapter):
    """The clock and the waiting of an adapter that stands on a reactor."""

    reactor: Reactor

    def now_ns(self) -> int:
        """Return the monotonic clock."""
        return time.monotonic_ns()

    def progress(self) -> None:
        """Process what has arrived and run what is due, without waiting."""
        self.reactor.progress()

    def wait(self, is_ready: Ready, timeout_ns: int | None) -> bool:
        """Wait until `is_ready()`, and make progress meanwhile unless another thread does."""
        return self.reactor.wait(is_ready, timeout_ns)

    def add_external_waiter(self) -> None:
        """See `Adapter.add_external_waiter`."""
        self.reactor.add_external_waiter()

    def remove_external_waiter(self) -> None:
        """See `Adapter.remove_external_waiter`."""
        self.reactor.remove_external_waiter()

    def notify(self) -> None:
        """Wake waiting threads to check again."""
        self.reactor.tell()


_alive = LiveDevices()
