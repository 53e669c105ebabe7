"""Who takes in what arrives: a thread that waits anyhow, or else one in the background.

Handing a message from thread to thread costs more than everything else about it, so whoever waits
for a completion looks at the rings himself. One thread at a time, the *leader*, sleeps in epoll;
other waiters sleep each on a bell of its own. Whoever makes one of them ready wakes that one, and
a leader who is done wakes one to lead. The background thread leads when nobody waits and nobody
has driven lately; a waiter sends it away.

While nobody leads, peers ring for nobody: they write, and the next who drives finds it. While
somebody leads, bells are his alone: a bell that another thread hears before he wakes has rung for
nobody, and its writer does not ring again.

Who sleeps *outside*, on a descriptor in a set of his own, drives nothing and cannot be counted on
to come back. While there is one (`attend`) the background thread leads whenever nobody waits
here, and waiters leave it the lead: to send it away and call it back costs more than one message.
"""

import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

from urds.verbs.providers.waiters import Waiter, Waiters

NAP_NS: Final = 100_000_000  # the longest sleep of a leader: the net below a lost bell
PARK_NS: Final = 5_000_000  # so long after the last driver the background thread takes over
_NS: Final = 1_000_000_000


class Driven(Protocol):
    """What the pump drives. All calls with the lock held."""

    def turn(self, descriptors: Iterable[int]) -> None:
        """Serve ready descriptors, read all rings, run what is due."""

    def fall_asleep(self) -> bool:
        """Ask to be rung for; false if there is something to do instead."""

    def awake(self) -> None:
        """Ask not to be rung for."""

    def deadline(self) -> int | None:
        """Return when something is due."""


class Pump:
    """The threads of one adapter."""

    def __init__(
        self, driven: Driven, lock: threading.RLock, epoll: select.epoll, *, name: str
    ) -> None:
        """Begin to drive; `lock` guards everything here but `wait`, which is called without it."""
        self._driven = driven
        self._lock = lock
        self._epoll = epoll
        self._condition = threading.Condition(lock)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        epoll.register(self._bell, select.EPOLLIN)
        self._waiters = Waiters()
        self._leader: Waiter | None = None  # who sleeps in epoll
        self._background = Waiter(lambda: self._is_closed or bool(self._waiters))
        self._driven_ns = 0
        self._outside_count = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def note_driving(self, now_ns: int) -> None:
        """Keep the background thread away for a while: the application drives."""
        self._driven_ns = now_ns

    @property
    def is_led(self) -> bool:
        """Tell whether a thread sleeps in epoll, whose the bells are."""
        return self._leader is not None

    def attend(self) -> None:
        """Count one who sleeps outside; the background thread takes over unless somebody waits."""
        self._outside_count += 1
        if self._leader is None and not self._waiters:
            self._condition.notify_all()

    def unattend(self) -> None:
        """Count one less."""
        self._outside_count -= 1

    def wait(self, is_ready: Callable[[], bool], timeout_ns: int | None) -> bool:
        """Drive until `is_ready()` or time is over; return what it said last."""
        end_ns = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
        waiter = Waiter(is_ready)
        with self._lock:
            self._waiters.append(waiter)
            try:
                return self._wait(waiter, end_ns)
            finally:
                self._waiters.remove(waiter)
                # Somebody leads now: another waiter, or the thread. While waits follow each
                # other closely the thread looks after them by itself, and is not woken.
                now_ns = time.monotonic_ns()
                is_left = now_ns - self._driven_ns > PARK_NS
                self._driven_ns = now_ns
                if self._waiters and self._leader is None:
                    self._waiters.hand_on()
                elif self._outside_count or is_left:
                    self._condition.notify_all()

    def wake_ready(self) -> None:
        """Wake those who sleep although they are ready."""
        leader = self._leader
        if leader is not None and leader.is_ready():
            self._wake_leader()
        self._waiters.wake_ready()

    def wake(self) -> None:
        """Wake whoever leads, for something is to be done now."""
        self._wake_leader()

    def close(self) -> None:
        """End everything: waiters return, the thread ends, nobody sleeps in epoll any more.

        Call it once, without the lock. The thread itself may call it from a callback; then it
        ends when that returns.
        """
        with self._lock:
            self._is_closed = True
            self._wake_leader()
            while self._leader is not None:
                self._condition.wait(_seconds(PARK_NS))
            self._waiters.wake_all()
            self._condition.notify_all()
            self._epoll.unregister(self._bell)
            os.close(self._bell)
            self._bell = -1
        if self._thread is not threading.current_thread():
            self._thread.join()

    def abandon_in_child(self) -> None:
        """Stop in the child of a fork, where the thread is not; the lock is free."""
        self._is_closed = True
        self._waiters.clear()
        self._leader = None
        self._condition = threading.Condition(self._lock)
        os.close(self._bell)

    # -- inside

    def _wait(self, waiter: Waiter, end_ns: int | None) -> bool:
        self._driven.turn(())
        while True:
            if waiter.is_ready():
                return True
            now_ns = time.monotonic_ns()
            if self._is_closed or (end_ns is not None and now_ns >= end_ns):
                return False
            rest_ns = NAP_NS if end_ns is None else min(NAP_NS, end_ns - now_ns)
            if self._leader is None:
                self._lead(waiter, rest_ns)
                continue
            if self._leader is self._background and not self._outside_count:
                self._wake_leader()
            waiter.sleep(self._lock, _seconds(rest_ns))

    def _lead(self, waiter: Waiter, rest_ns: int) -> None:
        """Sleep until something arrives or is due, without the lock; then take it in."""
        ready: list[tuple[int, int]] = []
        if self._driven.fall_asleep():
            self._leader = waiter  # before the last look: who wakes without the lock rings now
            deadline_ns = self._driven.deadline()
            if deadline_ns is not None:
                rest_ns = max(0, min(rest_ns, deadline_ns - time.monotonic_ns()))
            self._lock.release()
            try:
                ready = self._epoll.poll(_seconds(rest_ns))
            finally:
                self._lock.acquire()
                self._leader = None
            self._driven.awake()
        if self._is_closed:
            self._waiters.wake_all()
            self._condition.notify_all()
            return
        descriptors = [descriptor for descriptor, _ in ready]
        if self._bell in descriptors:
            descriptors.remove(self._bell)
            with suppress(BlockingIOError):
                os.eventfd_read(self._bell)
        self._driven.turn(descriptors)
        if waiter is self._background:
            self._waiters.hand_on()

    def _run(self) -> None:
        with self._lock:
            while not self._is_closed:
                parked_ns = self._driven_ns + PARK_NS - time.monotonic_ns()
                if self._waiters:
                    is_lively = parked_ns > -PARK_NS
                    self._condition.wait(_seconds(PARK_NS if is_lively else NAP_NS))
                elif parked_ns > 0 and not self._outside_count:
                    self._condition.wait(_seconds(parked_ns))
                else:
                    self._lead(self._background, NAP_NS)

    def _wake_leader(self) -> None:
        if self._leader is not None:
            os.eventfd_write(self._bell, 1)


def _seconds(duration_ns: int) -> float:
    return duration_ns / _NS
