"""Waiting: one epoll set, timers, and who turns the crank.

Whoever waits for a completion turns it himself: waking another thread costs more than the message
(design.md, "Run to completion"). The progress thread does it when nobody has for a
millisecond, so that a process which computes still answers its peers; at once while somebody
sleeps outside (`attend`), on a descriptor in a set of his own. Everything but `wait`, `progress`,
`call_soon` and `close` is called with the lock held; handlers run with it held.
"""

import heapq
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from weakref import WeakSet

from urds.verbs.providers.waiters import Waiter, Waiters

Handler = Callable[[int], None]
Ready = Callable[[], bool]

EVENTS_MAX: Final = 64  # of one turn; the others come with the next
PARKED_S: Final = 0.001  # how long the thread leaves the crank to a driver who went away
JOIN_S: Final = 2.0
_NS: Final = 1_000_000_000


class Timer:
    """A call that is due at `deadline_ns`; `cancel` makes it do nothing."""

    __slots__ = ("callback", "deadline_ns")

    def __init__(self, deadline_ns: int, callback: Callable[[], None]) -> None:
        self.deadline_ns = deadline_ns
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Forget the call."""
        self.callback = None

    def __lt__(self, other: "Timer") -> bool:
        return self.deadline_ns < other.deadline_ns


class Reactor:
    """The epoll set of one adapter and the thread that serves it when nobody else does."""

    def __init__(self, lock: threading.RLock, *, name: str) -> None:
        self._lock = lock
        self._polled = threading.Condition(lock)  # for `close`: a thread has left its poll
        self._parked = threading.Condition(lock)
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._timers: list[Timer] = []
        self._soon: deque[Callable[[], None]] = deque()
        self._deferred: list[Callable[[], None]] = []
        self._waiting = Waiters()
        self._is_driven = False  # a thread of the application is in `_turn`
        self._is_processing = False
        self._turn_count = 0
        self._polling_count = 0  # threads inside a poll that waits
        self._driven_ns = 0
        self._outside_count = 0
        self._closed = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._bell, select.EPOLLIN, self._handle_bell)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _alive.add(self)

    @property
    def is_closed(self) -> bool:
        """Return whether nothing is driven any more, or not by this process."""
        return self._closed

    # -- descriptors, timers, calls

    def watch(self, descriptor: int, events: int, handler: Handler) -> None:
        """Call `handler(events)` whenever the descriptor is ready."""
        self._epoll.register(descriptor, events)
        self._handlers[descriptor] = handler

    def change(self, descriptor: int, events: int) -> None:
        """Watch for other events."""
        self._epoll.modify(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching; before the descriptor is closed. Unknown ones are none."""
        if self._handlers.pop(descriptor, None) is not None:
            with suppress(OSError):
                self._epoll.unregister(descriptor)

    def call_at(self, deadline_ns: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` at a time of the monotonic clock, or shortly after (1 ms)."""
        timer = Timer(deadline_ns, callback)
        heapq.heappush(self._timers, timer)
        if self._polling_count and self._timers[0] is timer:
            self._ring()
        return timer

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` with the next turn: never from inside the caller."""
        self._soon.append(callback)
        if self._polling_count:
            self._ring()

    def defer(self, callback: Callable[[], None]) -> None:
        """Call `callback` before the next poll: late enough for an answer of the application.

        An application that computes instead of asking again has the thread do it.
        """
        self._deferred.append(callback)

    def tell(self) -> None:
        """Wake those who wait for what another thread has just made true."""
        if not self._is_processing and self._waiting.wake_ready() and self._polling_count:
            self._ring()

    def attend(self) -> None:
        """Count one who sleeps outside; the thread takes the crank unless somebody has it."""
        self._outside_count += 1
        self._parked.notify()

    def unattend(self) -> None:
        """Count one less."""
        self._outside_count -= 1

    # -- turning the crank

    def progress(self) -> None:
        """Take in what is there, without waiting. Inside a handler it does nothing."""
        with self._lock:
            if not self._is_processing and not self._closed:
                self._turn(0)
                self._leave()

    def wait(self, is_ready: Ready, timeout_ns: int | None) -> bool:
        """Wait until `is_ready()`; return what it said last. Inside a handler it only asks."""
        with self._lock:
            if is_ready() or self._is_processing:
                return is_ready()
            deadline_ns = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
            waiter = Waiter(is_ready)
            self._waiting.append(waiter)
            try:
                while not self._closed:
                    self._wait_once(waiter, deadline_ns)
                    if is_ready():
                        return True
                    if deadline_ns is not None and time.monotonic_ns() >= deadline_ns:
                        return False
                return is_ready()
            finally:
                self._waiting.remove(waiter)
                if not self._is_driven:
                    self._waiting.hand_on()

    def _wait_once(self, waiter: Waiter, deadline_ns: int | None) -> None:
        if self._is_driven:
            left_ns = None if deadline_ns is None else deadline_ns - time.monotonic_ns()
            waiter.sleep(self._lock, None if left_ns is None else max(0, left_ns) / _NS)
            return
        self._is_driven = True
        try:
            self._turn(deadline_ns)
        finally:
            self._is_driven = False
            self._leave()

    def _leave(self) -> None:
        """Leave the crank to the thread, which looks for what was put off when it is parked."""
        self._driven_ns = time.monotonic_ns()
        if self._deferred and self._polling_count:
            self._ring()
        if self._outside_count:
            self._parked.notify()

    def _turn(self, deadline_ns: int | None) -> None:
        """Poll once, at most until `deadline_ns` (0: not at all), and do what is due."""
        # What was put off may be what somebody waits for: then nobody may sleep on it.
        events = self._poll(0 if self._do_deferred() else deadline_ns)
        if self._is_processing or self._closed:
            return
        self._is_processing = True
        self._turn_count += 1
        try:
            self._run_soon()  # first: an owner hears that he is connected before data arrive
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
        """Do what was put off; return whether there was anything."""
        if self._is_processing or not self._deferred:
            return False
        while self._deferred:
            self._deferred.pop()()
        return True

    def _poll(self, deadline_ns: int | None) -> list[tuple[int, int]]:
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if self._timers and (deadline_ns is None or self._timers[0].deadline_ns < deadline_ns):
            deadline_ns = self._timers[0].deadline_ns
        self._polling_count += 1  # before the last look: who calls without the lock rings now
        if self._soon:
            deadline_ns = 0
        if deadline_ns is None:
            wait_s = -1.0
        else:
            wait_s = max(0, deadline_ns - time.monotonic_ns()) / _NS if deadline_ns else 0
        if wait_s == 0:
            self._polling_count -= 1
            return self._epoll.poll(0, EVENTS_MAX)
        turn_count = self._turn_count
        self._lock.release()
        try:
            events = self._epoll.poll(wait_s, EVENTS_MAX)
        except (OSError, ValueError):
            if not self._closed:
                raise
            events = []
        finally:
            self._lock.acquire()
            self._polling_count -= 1
            if self._closed:
                self._polled.notify_all()
        # If another thread was faster, what it left is still ready and comes with the next poll.
        return events if turn_count == self._turn_count else []

    def _run_soon(self) -> None:
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def _run_timers(self) -> None:
        now_ns = time.monotonic_ns()
        while self._timers and self._timers[0].deadline_ns <= now_ns:
            callback = heapq.heappop(self._timers).callback
            if callback is not None:
                callback()

    def _ring(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_write(self._bell, 1)

    def _handle_bell(self, _events: int) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    # -- the thread

    def _run(self) -> None:
        with self._lock:
            while not self._closed:
                if self._is_driven or not self._is_mine():
                    self._parked.wait(PARKED_S)
                    continue
                self._turn(None)
                # No application answers from here, and a driver may sleep on what was put off.
                if self._do_deferred():
                    self.tell()

    def _is_mine(self) -> bool:
        """Tell whether the thread may turn the crank that nobody has now."""
        if self._outside_count or self._deferred:
            return True
        return time.monotonic_ns() - self._driven_ns >= PARKED_S * _NS

    def abandon_in_child(self) -> None:
        """Leave everything to the parent; called in the child of a fork, where no thread is.

        Each watched descriptor becomes one of nothing: what the child kept open would keep the
        parent's ports taken and its peers waiting after the parent's death. The numbers stay
        taken, since the objects that hold them are still there. The set of the epoll is shared
        with the parent, and so not touched.
        """
        self._lock._at_fork_reinit()  # type: ignore[attr-defined]  # as threading does with its own
        self._closed = True
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in self._handlers:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        self._handlers.clear()
        self._timers.clear()
        self._soon.clear()
        self._waiting.clear()
        self._epoll.close()

    def close(self) -> None:
        """End the thread; nothing is called any more. Call it without the lock."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._waiting.wake_all()
            self._parked.notify_all()
            self._ring()
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)
        with self._lock:
            # Who is not back from the poll yet would sleep on a descriptor that is gone.
            self._polled.wait_for(lambda: not self._polling_count, JOIN_S)
            self._handlers.clear()
            self._timers.clear()
            self._soon.clear()
            self._epoll.close()
            os.close(self._bell)


_alive: WeakSet[Reactor] = WeakSet()


def _abandon_all() -> None:
    for reactor in list(_alive):
        if not reactor.is_closed:
            reactor.abandon_in_child()
    _alive.clear()


os.register_at_fork(after_in_child=_abandon_all)
