"""The progress thread: it does the work that no application thread does.

One daemon thread runs `Plane.help`. It flushes batches, sends late acknowledgements and asks the
kernel what a Linux peer's TCP has; and it reads when no other thread does. It sleeps on a set of
its own: a wake descriptor and, nested, the plane's set armed for one event.

It arms only while no leader exists and no thread has made progress for a tick (`driven`): left a
wait, called `progress`, or taken a message. While a consumer empties a full queue, the progress
thread must not read too, or the queue grows without bound. It sleeps longer than a tick only with
nothing due and either armed or a leader present for 16 ticks. That decision and every change that
matters to it are made under the plane's lock, so none can slip between.
"""

from __future__ import annotations

import os
import select
from contextlib import ExitStack
from typing import TYPE_CHECKING

from urds.rds.plane.contract import Event
from urds.rds.plane.python.poll_set import POLL_S_MAX

if TYPE_CHECKING:
    from urds.rds.plane.python.plane import Plane

TICK_NS = 1_000_000
_TICK_MAX_NS = 4_000_000  # while a thread makes progress; a tick costs it the interpreter lock
_LEADER_TICKS = 16
_SILENCE_NS = 50_000_000  # of an event loop, before the progress thread reads in its place


class ProgressThread:
    """State of the progress thread; only that thread calls `run` and what `run` calls."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self.wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        with ExitStack() as undo:
            undo.callback(os.close, self.wake_descriptor)
            self._set = select.epoll()
            undo.callback(self._set.close)
            self._set.register(self.wake_descriptor, select.EPOLLIN)
            self._set.register(plane.poll_set.fileno(), 0)
            undo.pop_all()
        self._armed = False
        self._leader_ticks = 0
        self._tick_ns = TICK_NS
        self._loop_was_silent = False
        self.asleep = False  # in a sleep of more than a tick; plane's lock
        self.in_any_sleep = False  # in any sleep; plane's lock
        self.interrupted = False  # `Plane.wake`: end `run` even without an event
        self.wake_due = False

    def want(self, *, now: bool = False) -> None:
        """End a long sleep, since there is work; with `now` any sleep. Plane's lock held."""
        if self.asleep or (now and self.in_any_sleep):
            self.asleep = self.in_any_sleep = False
            self.wake_due = True

    def leader_left(self) -> None:
        """End an unarmed long sleep: without a leader the streams would stay unread. Lock held."""
        if self.asleep and not self._armed:
            self.want()

    def ring(self) -> None:
        """End any sleep, to decide again which thread reads; takes no lock."""
        os.eventfd_write(self.wake_descriptor, 1)

    def deliver(self) -> None:
        """Write the wake that `want` found due; called without the lock."""
        if self.wake_due:
            self.wake_due = False  # one step with the write
            os.eventfd_write(self.wake_descriptor, 1)

    def run(self, deadline_ns: int | None) -> list[Event]:
        """Work and sleep until there are events or the deadline passes."""
        plane = self._plane
        while True:
            plane.catch_up()
            plane.interrupts.finish_pass()
            plane.serve_due()
            with plane.lock:
                events = plane.take_events()
                now_ns = plane.clock_ns()
                late = deadline_ns is not None and now_ns >= deadline_ns
                if events or late or plane.closed or self.interrupted:
                    self.interrupted = False
                    return events
                timeout_ns = self._decide(now_ns)
                if deadline_ns is not None:
                    remaining_ns = deadline_ns - now_ns
                    timeout_ns = (
                        remaining_ns if timeout_ns is None else min(timeout_ns, remaining_ns)
                    )
                self.in_any_sleep = True
            if self._sleep(timeout_ns):
                plane.counters.progress_thread_passes += 1
                plane.serve_ready(0.0)

    def _decide(self, now_ns: int) -> int | None:
        """Arm if no thread reads; return how long to sleep, None until woken. Plane's lock held."""
        plane = self._plane
        driven, plane.driven = plane.driven, False
        led = plane.wait_queue.leader is not None
        self._tick_ns = min(2 * self._tick_ns, _TICK_MAX_NS) if driven or led else TICK_NS
        self._leader_ticks = self._leader_ticks + 1 if led else 0
        # An event loop that has not called `progress` for a while may be blocked by its own code.
        looping = bool(plane.loops)
        absent = not looping or self._loop_was_silent
        self._loop_was_silent = looping and not driven
        if not led and not driven and absent and not self._armed:
            self._set.modify(plane.poll_set.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
            self._armed = True
        due_ns = plane.next_due_ns(now_ns)
        # Never sooner than a tick: in a burst a batch is always nearly due, and gone by then.
        left_ns = None if due_ns is None else max(TICK_NS, due_ns - now_ns)
        if self._loop_was_silent and not self._armed:
            left_ns = _SILENCE_NS if left_ns is None else min(_SILENCE_NS, left_ns)
        # An active event loop calls again soon: a tick costs it less than a wake-up per message.
        elif not self._armed and self._leader_ticks < _LEADER_TICKS:
            return self._tick_ns if left_ns is None else min(self._tick_ns, left_ns)
        # Work due later than a tick must not hide work that comes before it.
        self.asleep = left_ns is None or left_ns > TICK_NS
        return left_ns

    def _sleep(self, timeout_ns: int | None) -> bool:
        """Sleep; return whether the plane's set is ready and there is no leader."""
        timeout_s = -1 if timeout_ns is None else min(timeout_ns / 1e9, POLL_S_MAX)
        ready = self._set.poll(timeout_s)
        plane = self._plane
        with plane.lock:
            self.asleep = self.in_any_sleep = False
            read = False
            for descriptor, _ in ready:
                if descriptor == self.wake_descriptor:
                    os.eventfd_read(self.wake_descriptor)
                else:
                    self._armed = False  # the one event is spent
                    read = plane.wait_queue.leader is None
        return read

    def abandon_in_child(self) -> None:
        """Forget sleepers after a fork: the doorbell is closed, its number may be reused."""
        self.asleep = self.in_any_sleep = self.wake_due = False
        self.close()

    def close(self) -> None:
        """Close the descriptors."""
        self._set.close()
        os.close(self.wake_descriptor)
