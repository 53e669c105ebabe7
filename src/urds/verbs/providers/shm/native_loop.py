"""The progress loop of a device whose threads wait in the compiled engine.

A thread that waits sleeps there, in the set of this loop (`ShmEngine.wait`, ADR 51): it reads
doorbells and channels without the interpreter, and calls the loop for everything else: descriptors
that Python handles, calls, timers. The leader is chosen there as well, in one place; the loop asks
before the progress thread leads. There are no waiting threads here: `Outside` stands for them.

Where a plane of RDS serves the engine, its threads hear the set (ADR 44). Then the progress thread,
which leads, does not: it hears a descriptor on which they say that there is something for Python.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from urds.common.progress import (
    EVENTS_MAX,
    LOOK_NS,
    Call,
    Events,
    ProgressLoop,
    Ready,
    Waiters,
    progress_thread,
)
from urds.common.timers import Timer


class Outside(Waiters):
    """The threads that wait in the engine, as the loop knows them."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self.engine = engine
        self.asking: dict[int, Ready] = {}  # by number of the wait, of those that ask Python

    def __bool__(self) -> bool:
        """Return whether any thread waits; the loop hears when the last one has left."""
        return bool(self.engine.want())

    def wake_ready(self) -> bool:
        """Wake ready threads that ask Python, each by itself."""
        for number, is_ready in self.asking.items():
            if is_ready():
                self.engine.tell(number)
        return False

    def wake_successor(self) -> None:
        """Do nothing: they name successors."""

    def wake_all(self) -> None:
        """End all waits."""
        self.engine.end_waits()

    def clear(self) -> None:
        """Forget them in the child of a fork."""
        self.asking.clear()


class NativeLoop(ProgressLoop):
    """A loop in whose set threads sleep that wait in the engine."""

    _engine: Any = None
    _wait_count = 0
    _left = -1  # descriptor on which threads of a plane tell that they leave something to Python

    def use(self, engine: Any, on_sleep: Call, look: Callable[[Any], None]) -> None:
        """Use the engine of the device; with the lock held, before any thread waits.

        `on_sleep` is called where a thread that is about to sleep has something for the device,
        `look` to give the sink of a queue what completed there.
        """
        self._engine = engine
        self.on_sleep, self.look = on_sleep, look
        self._waiters = self._outside = Outside(engine)

    @property
    def descriptors(self) -> dict[str, int]:
        """Return the set, and the doorbell in it, which stay the loop's."""
        return {"set": self._epoll.fileno(), "doorbell": self._doorbell}

    def serve_by_plane(self) -> int:
        """Leave the set to the threads of a plane, which write to the descriptor that is returned.

        Lock held. It is for good, and the descriptor stays the loop's.
        """
        if self._left < 0:
            self._left = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            progress_thread.watch(self._left, self._run_left)
            if self.leader is self._thread_leads:
                progress_thread.change(self._epoll.fileno(), 0)
        return self._left

    def _run_left(self) -> None:
        with self._lock:
            if self.is_closed:
                return
            with suppress(BlockingIOError):
                os.eventfd_read(self._left)
            if self.leader is not self._thread_leads:
                self._ring()
                return
        self._run_in_thread()

    def leave_plane(self) -> None:
        """Have no plane serve the engine any more, which would tell the thread at each look."""
        self._engine.leave_plane()

    def close(self) -> None:
        """See `ProgressLoop.close`."""
        self.leave_plane()
        super().close()

    # -- waiting

    def wait(self, is_ready: Ready, timeout_ns: int | None, fed: Any = None) -> bool:
        """See `ProgressLoop.wait`; `is_ready` is asked at the end of each pass and `tell`.

        With `fed`, a queue with a sink, the thread also wakes for what completes there, gives it to
        the sink and asks. It is for waits that end by the sink or by `tell`: memory that a peer
        writes without a completion is not looked at.
        """
        with self._lock:
            if is_ready():
                self._progressed_ns = time.monotonic_ns()
                return True
            if self._is_processing or self.is_closed:
                return False
            self._wait_count += 1
            number = self._wait_count
        try:
            self._wait_told(number, is_ready, timeout_ns, fed)
            self._end_wait(number)
        except BaseException:
            self._end_wait(number)  # also where the first was cut short
            self.resume()
            raise
        with self._lock:
            return is_ready()

    def _wait_told(self, number: int, is_ready: Ready, timeout_ns: int | None, fed: Any) -> None:
        engine = self._engine
        engine.begin_wait(number, fed is None)
        with self._lock:
            self._outside.asking[number] = is_ready
            if is_ready():  # what was told before it asks
                return
        end_ns = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
        while engine.wait(number, end_ns, fed):
            if fed is not None:
                self.look(fed)
            with self._lock:
                if is_ready():
                    return

    def _end_wait(self, number: int) -> None:
        with self._lock:
            self._outside.asking.pop(number, None)
            self._engine.end_wait(number)

    def run_due(self) -> None:
        """Do what a thread that waits leaves to Python; called without locks."""
        with self._lock:
            if self.is_closed or self._is_processing:
                return
            self.on_sleep()
            self._do_deferred()
            self._pass(self._poll_now())
            self._leave()

    def yield_lead(self) -> None:
        """Take the lead from the progress thread for a thread that waits."""
        with self._lock:
            if self.is_closed:
                return
            if self.leader is self._thread_leads:
                self._take_lead()
            else:  # another thread has it, whose doorbells stay armed, or a handler cut this short
                self._engine.take_from_thread()
            if self._external_count:
                self._engine.want(True)  # it leads again behind the last one
            else:
                self._plan_later(time.monotonic_ns())

    def handle_left(self) -> None:
        """Go on where no thread waits any more."""
        with self._lock:
            if self.is_closed:
                self._has_left.notify_all()
            else:
                self._leave()

    def resume(self) -> None:
        """Go on behind an exception that has cut a wait short: what was due then still is."""
        with self._lock:
            if not self.is_closed:
                self._soon.append(self._on_cut)
                self._tell_pass(True)
        self.handle_left()

    # -- what the engine is told

    def call_at(self, deadline_ns: int, call: Call) -> Timer:
        """See `ProgressLoop.call_at`."""
        timer = super().call_at(deadline_ns, call)
        self._engine.note_timer(deadline_ns)
        return timer

    def defer(self, call: Call) -> None:
        """See `ProgressLoop.defer`."""
        super().defer(call)
        self._engine.note_due()

    def add_external_waiter(self) -> None:
        """See `ProgressLoop.add_external_waiter`."""
        super().add_external_waiter()
        self._engine.want()

    def _ring(self) -> None:
        super()._ring()
        if self._engine is not None and not self.is_closed:
            self._engine.note_due()

    def _pass(self, events: Events) -> None:
        try:
            super()._pass(events)
        finally:
            if not self.is_closed:
                self._tell_pass(bool(events))

    def _tell_pass(self, has_heard: bool) -> None:
        engine = self._engine
        self._outside.wake_ready()  # also to a thread that has looked, and does not wait yet
        engine.plan_loop(self._timers.next_ns())
        if self._soon or self._deferred:
            engine.note_due()
        if has_heard:
            engine.rearm()

    def _forget_all(self) -> None:
        super()._forget_all()
        self._engine.forget_doorbell()
        if self._left >= 0:
            progress_thread.unwatch(self._left)
            os.close(self._left)
            self._left = -1

    # -- who leads

    def _lead_in_thread(self) -> None:
        if self._engine.lead_in_thread():
            super()._lead_in_thread()
            if self._left >= 0:
                progress_thread.change(self._epoll.fileno(), 0)

    def _take_lead(self) -> None:
        super()._take_lead()
        self._engine.take_from_thread()

    def _is_vacant(self) -> bool:
        return super()._is_vacant() and not self._engine.has_waiters

    def _events_now(self) -> Events:
        now_ns = time.monotonic_ns()
        if now_ns - self._looked_ns < LOOK_NS:
            return ()
        self._looked_ns = now_ns
        return self._poll_now()

    def _poll_now(self) -> Events:
        if self.leader is not None:
            return ()
        return self._epoll.poll(0, EVENTS_MAX)
