"""Progress of the shm provider: waiting threads make it, or else a thread in the background.

Handing a message from thread to thread costs more than everything else about it, so a thread that
waits for a completion reads the rings itself. One thread at a time, the *leader*, sleeps in epoll;
other waiters sleep each on a condition of its own. A waiter that becomes ready is woken by itself,
and a leader that leaves wakes one to lead. The background thread leads when there is no waiter and
there was no progress lately; a waiter takes the lead from it.

Without a leader no doorbell is armed: peers write, and the next progress finds it. With one the
doorbells belong to the leader alone: if another thread cleared one before the leader wakes, the
ring would be lost, and its writer does not ring again.

A thread that waits on the adapter's fd in its own epoll set makes no progress. While there is one
(`add_external_waiter`) the background thread leads whenever no thread waits here, and waiters leave
it the lead: to take it over and hand it back costs more than one message.
"""

import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

from urds.verbs.providers.device_waiters import DeviceWaiter, DeviceWaiters

NAP_NS: Final = 100_000_000  # the longest sleep of a leader: the net below a lost doorbell
PARK_NS: Final = 5_000_000  # so long after the last progress the background thread leads
_NS: Final = 1_000_000_000


class ProgressTarget(Protocol):
    """What makes progress. All calls with the lock held."""

    def progress_once(self, descriptors: Iterable[int]) -> None:
        """Handle ready descriptors, read all rings, run what is due."""

    def arm_doorbell(self) -> bool:
        """Ask for doorbells; false if there is something to do instead."""

    def disarm_doorbell(self) -> None:
        """Ask for no doorbells."""

    def deadline_ns(self) -> int | None:
        """Return when something is due."""


class ProgressThread:
    """The progress thread of one adapter, and the waiters that do its work."""

    def __init__(
        self, driven: ProgressTarget, lock: threading.RLock, epoll: select.epoll, *, name: str
    ) -> None:
        """Start the thread; `lock` guards all calls but `wait`, which is made without it."""
        self._target = driven
        self._lock = lock
        self._epoll = epoll
        self._condition = threading.Condition(lock)
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        epoll.register(self._doorbell, select.EPOLLIN)
        self._waiters = DeviceWaiters()
        self.leader: DeviceWaiter | None = None  # sleeps in epoll; the doorbells belong to it
        self._background = DeviceWaiter(lambda: self._is_closed or bool(self._waiters))
        self.progressed_ns = 0
        self._external_count = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add_external_waiter(self) -> None:
        """Count an external waiter; the background thread leads unless a thread waits here."""
        self._external_count += 1
        if self.leader is None and not self._waiters:
            self._condition.notify_all()

    def remove_external_waiter(self) -> None:
        """Remove one external waiter."""
        self._external_count -= 1

    def wait(self, is_ready: Callable[[], bool], timeout_ns: int | None) -> bool:
        """Make progress until `is_ready()` or time is over; return its last result."""
        end_ns = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
        waiter = DeviceWaiter(is_ready)
        with self._lock:
            self._waiters.append(waiter)
            try:
                return self._wait(waiter, end_ns)
            finally:
                self._waiters.remove(waiter)
                # Another waiter leads now, or the thread. While waits follow each other closely
                # the thread checks by itself, and is not woken.
                now_ns = time.monotonic_ns()
                is_left = now_ns - self.progressed_ns > PARK_NS
                self.progressed_ns = now_ns
                if self._waiters and self.leader is None:
                    self._waiters.wake_successor()
                elif self._external_count or is_left:
                    self._condition.notify_all()

    def wake_ready(self) -> None:
        """Wake sleeping threads that are ready."""
        leader = self.leader
        if leader is not None and leader.is_ready():
            self.wake()
        self._waiters.wake_ready()

    def wake(self) -> None:
        """Wake the leader: something is to be done now."""
        if self.leader is not None:
            os.eventfd_write(self._doorbell, 1)

    def close(self) -> None:
        """End the thread and all waits; on return no thread sleeps in epoll.

        Call it once, without the lock. The thread itself may call it from a callback; then it
        ends when that returns.
        """
        with self._lock:
            self._is_closed = True
            self.wake()
            while self.leader is not None:
                self._condition.wait(_seconds(PARK_NS))
            self._waiters.wake_all()
            self._condition.notify_all()
            self._epoll.unregister(self._doorbell)
            os.close(self._doorbell)
            self._doorbell = -1
        if self._thread is not threading.current_thread():
            self._thread.join()

    def abandon_in_child(self) -> None:
        """Stop in the child of a fork, where the thread is not; the lock is free."""
        self._is_closed = True
        self._waiters.clear()
        self.leader = None
        self._condition = threading.Condition(self._lock)
        os.close(self._doorbell)

    # -- inside

    def _wait(self, waiter: DeviceWaiter, end_ns: int | None) -> bool:
        self._target.progress_once(())
        while True:
            if waiter.is_ready():
                return True
            now_ns = time.monotonic_ns()
            if self._is_closed or (end_ns is not None and now_ns >= end_ns):
                return False
            wait_ns = NAP_NS if end_ns is None else min(NAP_NS, end_ns - now_ns)
            if self.leader is None:
                self._lead(waiter, wait_ns)
                continue
            if self.leader is self._background and not self._external_count:
                self.wake()
            waiter.sleep(self._lock, _seconds(wait_ns))

    def _lead(self, waiter: DeviceWaiter, wait_ns: int) -> None:
        """Sleep until something arrives or is due, without the lock; then process it."""
        ready: list[tuple[int, int]] = []
        if self._target.arm_doorbell():
            self.leader = waiter  # before the last check: wakes ring from now on
            deadline_ns = self._target.deadline_ns()
            if deadline_ns is not None:
                wait_ns = max(0, min(wait_ns, deadline_ns - time.monotonic_ns()))
            self._lock.release()
            try:
                ready = self._epoll.poll(_seconds(wait_ns))
            finally:
                self._lock.acquire()
                self.leader = None
            self._target.disarm_doorbell()
        if self._is_closed:
            self._waiters.wake_all()
            self._condition.notify_all()
            return
        descriptors = [descriptor for descriptor, _ in ready]
        if self._doorbell in descriptors:
            descriptors.remove(self._doorbell)
            with suppress(BlockingIOError):
                os.eventfd_read(self._doorbell)
        self._target.progress_once(descriptors)
        if waiter is self._background:
            self._waiters.wake_successor()

    def _run(self) -> None:
        with self._lock:
            while not self._is_closed:
                parked_ns = self.progressed_ns + PARK_NS - time.monotonic_ns()
                if self._waiters:
                    is_lively = parked_ns > -PARK_NS
                    self._condition.wait(_seconds(PARK_NS if is_lively else NAP_NS))
                elif parked_ns > 0 and not self._external_count:
                    self._condition.wait(_seconds(parked_ns))
                else:
                    self._lead(self._background, NAP_NS)


def _seconds(duration_ns: int) -> float:
    return duration_ns / _NS
