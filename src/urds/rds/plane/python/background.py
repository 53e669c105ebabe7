"""The progress thread: what it does, and how long it sleeps.

One daemon thread runs `Plane.help`. It flushes batches, sends late acknowledgements and asks the
kernel what a Linux peer's TCP has; and it reads when no other thread does. It sleeps on a set of
its own: a wake descriptor and, nested, the plane's set armed for one event.

It arms only while no leader exists and no thread has made progress for a tick (`State.driven`):
left a wait, called `progress`, or taken a message. While a consumer empties a full queue, the
progress thread must not read too, or the queue grows without bound. It sleeps longer than a tick
only with nothing due and either armed or a leader present for 16 ticks. That decision and every
change that matters to it are made under the state's lock, so none can slip between.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from urds.rds.plane.contract import Event
from urds.rds.plane.python.poll_set import POLL_S_MAX

if TYPE_CHECKING:
    from urds.rds.plane.python.progress import Progress
    from urds.rds.plane.python.state import State

_TICK_NS = 1_000_000
_TICK_MAX_NS = 4_000_000  # while a thread makes progress; a tick costs it the interpreter lock
_LEADER_TICKS = 16
_SILENCE_NS = 50_000_000  # of an event loop, before the progress thread reads in its place


class ProgressThread:
    """Only the progress thread calls `run` and what `run` calls."""

    def __init__(self, state: State, progress: Progress) -> None:
        self._state = state
        self._progress = progress
        self._wake_descriptor = state.interrupts.wake_descriptor
        self._set = select.epoll()
        try:
            self._set.register(self._wake_descriptor, select.EPOLLIN)
            self._set.register(progress.poll_set.fileno(), 0)
        except BaseException:  # the system may be out of watches
            self._set.close()
            raise
        self._leader_ticks = 0
        self._tick_ns = _TICK_NS
        self._loop_was_silent = False

    def run(self, deadline_ns: int | None) -> list[Event]:
        """Work and sleep until there are events or the deadline passes."""
        state, progress, thread = self._state, self._progress, self._state.thread
        while True:
            progress.catch_up()
            progress.serve_due()
            with state.lock:
                events = state.take_events()
                now_ns = state.clock_ns()
                late = deadline_ns is not None and now_ns >= deadline_ns
                if events or late or state.closed or thread.interrupted:
                    thread.interrupted = False
                    return events
                timeout_ns = self._decide(now_ns)
                if deadline_ns is not None:
                    left_ns = deadline_ns - now_ns
                    timeout_ns = left_ns if timeout_ns is None else min(timeout_ns, left_ns)
                thread.in_any_sleep = True
            if self._sleep(timeout_ns):
                state.counters.progress_thread_passes += 1
                progress.serve_ready(0.0)

    def _decide(self, now_ns: int) -> int | None:
        """Arm if no thread reads; return how long to sleep, None until woken. Lock held."""
        state, thread = self._state, self._state.thread
        driven, state.driven = state.driven, False
        led = state.wait_queue.leader is not None
        self._tick_ns = min(2 * self._tick_ns, _TICK_MAX_NS) if driven or led else _TICK_NS
        self._leader_ticks = self._leader_ticks + 1 if led else 0
        # An event loop that has not called `progress` for a while may be blocked by its own code.
        looping = bool(state.loops)
        absent = not looping or self._loop_was_silent
        self._loop_was_silent = looping and not driven
        if not led and not driven and absent and not thread.armed:
            self._set.modify(self._progress.poll_set.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
            thread.armed = True
        due_ns = state.next_due_ns()
        # Never sooner than a tick: in a burst a batch is always nearly due, and gone by then.
        left_ns = None if due_ns is None else max(_TICK_NS, due_ns - now_ns)
        if self._loop_was_silent and not thread.armed:
            left_ns = _SILENCE_NS if left_ns is None else min(_SILENCE_NS, left_ns)
        # An active event loop calls again soon: a tick costs it less than a wake-up per message.
        elif not thread.armed and self._leader_ticks < _LEADER_TICKS:
            return self._tick_ns if left_ns is None else min(self._tick_ns, left_ns)
        # Work due later than a tick must not hide work that comes before it.
        thread.asleep = left_ns is None or left_ns > _TICK_NS
        return left_ns

    def _sleep(self, timeout_ns: int | None) -> bool:
        """Sleep; return whether the plane's set is ready and there is no leader."""
        timeout_s = -1 if timeout_ns is None else min(timeout_ns / 1e9, POLL_S_MAX)
        ready = self._set.poll(timeout_s)
        state, thread = self._state, self._state.thread
        with state.lock:
            thread.asleep = thread.in_any_sleep = False
            read = False
            for descriptor, _ in ready:
                if descriptor == self._wake_descriptor:
                    os.eventfd_read(self._wake_descriptor)
                else:
                    thread.armed = False  # the one event is spent
                    read = state.wait_queue.leader is None
        return read

    def abandon_in_child(self) -> None:
        """Forget sleepers after a fork: the doorbell is closed, its number may be reused."""
        thread = self._state.thread
        thread.asleep = thread.in_any_sleep = thread.wake_due = False
        self.close()

    def close(self) -> None:
        """Close the descriptors."""
        self._set.close()
        os.close(self._wake_descriptor)
