"""Leader/follower waiting of threads on one poll set.

A thread that waits for its mailbox either becomes the *leader*, sleeps in `epoll` on the plane's
set and serves every ready descriptor, or it is a *follower* and parks on a lock of its own. The
rules, each with a scenario in tests/rds/sockets/test_wakeups.py that hangs without it:

    list before sleeping   a waiter lists itself in the same critical section that found nothing
    look after notice      a notifier sets NOTIFIED first; a waiter so marked does not sleep
    kick the leader        a leader sleeps in epoll, so it is woken by the kick descriptor
    only the leader reads the kick
    name a successor       a thread that leaves with no leader and with followers wakes one, which
                           becomes the leader; it may be leaving itself, so this holds for all
    pass it on             a notified waiter that leaves without using it notifies the next one

All state is guarded by the plane's lock, and all methods: lock held, unless they say otherwise.
Descriptors are written after it is released.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import TypeVar

from urds.common.errors import ErrorReason, os_error

_T = TypeVar("_T")


class Doing(Enum):
    """The state of a waiter; every change is made under the plane's lock."""

    RUNNING = auto()
    IN_POLL = auto()
    PARKED = auto()
    NOTIFIED = auto()


class Waiter:
    """One per waiting thread, or a callback in place of one."""

    __slots__ = ("callback", "doing", "in_use", "park_lock")

    def __init__(self, callback: Callable[[], None] | None = None) -> None:
        self.doing = Doing.RUNNING
        self.callback = callback
        self.in_use = False  # in a wait; a handler that interrupts it must not wait as well
        if callback is None:
            self.park_lock = threading.Lock()
            self.park_lock.acquire()


class Waiters:
    """The waiters of one mailbox for one thing, notified first come, first served."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        # A list: there are few, and an empty deque takes 0.6 KiB, thrice for each socket.
        self.queue: list[Waiter] = []

    def __len__(self) -> int:
        return len(self.queue)

    def add(self, waiter: Waiter) -> None:
        """List a waiter once."""
        if waiter not in self.queue:
            self.queue.append(waiter)

    def remove(self, waiter: Waiter) -> bool:
        """Remove a waiter; return false if it was notified and is off already."""
        queue = self.queue
        if queue and queue[0] is waiter:  # normally it is the only one
            queue.pop(0)
            return True
        listed = waiter in queue
        if listed:
            queue.remove(waiter)
        return listed

    def tell(self, count: int, wait_queue: WaitQueue) -> None:
        """Notify at most `count` waiters; the reading thread counts: it checks before it sleeps."""
        leader = wait_queue.leader
        if leader is not None and leader.doing is Doing.RUNNING and leader in self.queue:
            self.queue.remove(leader)
            leader.doing = Doing.NOTIFIED  # if an interrupt ends its wait, it passes this on
            count -= 1
        while count > 0 and self.queue:
            wait_queue.notify(self.queue[0])  # first, or an interrupt forgets it
            self.queue.pop(0)
            count -= 1

    def tell_all(self, wait_queue: WaitQueue) -> None:
        """Notify every waiter: the change concerns all."""
        while self.queue:
            wait_queue.notify(self.queue[0])
            self.queue.pop(0)


class WaitQueue:
    """Leader, followers and the wake-ups that are due once the lock is free."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self.leader: Waiter | None = None
        self.followers: deque[Waiter] = deque()
        self.kick = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.due = False  # `Progress.deliver` has a thread to wake; without the lock a hint
        self._kick_due = False
        self._callbacks: list[Callable[[], None]] = []
        self._park_locks: list[threading.Lock] = []
        self.own = threading.local()  # `waiter`, of the calling thread

    def waiter(self) -> Waiter:
        """Return the calling thread's waiter, reused from wait to wait. No lock needed.

        Raises OSError (EDEADLK) inside a wait: the thread would wait for itself to read.
        """
        waiter: Waiter | None = getattr(self.own, "waiter", None)
        if waiter is None:
            waiter = self.own.waiter = Waiter()
        elif waiter.in_use:
            raise os_error(ErrorReason.REENTERED)
        return waiter

    def waits_here(self) -> bool:
        """Return whether the calling thread is in a wait, which a handler interrupted.

        No lock needed.
        """
        waiter: Waiter | None = getattr(self.own, "waiter", None)
        return waiter is not None and (waiter.in_use or self.leader is waiter)

    def notify(self, waiter: Waiter) -> None:
        """Mark a waiter and note how to wake it; call `deliver` after the lock is released."""
        self.due = True
        if waiter.callback is not None:
            self._callbacks.append(waiter.callback)
            return
        before, waiter.doing = waiter.doing, Doing.NOTIFIED
        if before is Doing.IN_POLL:
            self._kick_due = True
        elif before is Doing.PARKED:
            self._park_locks.append(waiter.park_lock)

    def deliver(self) -> None:
        """Wake the waiters that `notify` marked; every notifier calls it, without the lock."""
        park_locks: list[threading.Lock] = []
        callbacks: list[Callable[[], None]] = []
        kick = False
        try:
            with self.lock:
                self.due = False
                park_locks, self._park_locks = self._park_locks, park_locks
                kick, self._kick_due = self._kick_due, False
                callbacks, self._callbacks = self._callbacks, callbacks
            self._wake(park_locks, kick=kick)
            for callback in callbacks:
                callback()
        except BaseException:  # after an interrupt all are due again: a second wake-up does no harm
            self._park_locks += park_locks
            self._callbacks += callbacks
            self._kick_due = self._kick_due or kick
            self.due = True
            raise

    def _wake(self, park_locks: list[threading.Lock], *, kick: bool) -> None:
        """Unpark followers and kick the leader; twice does no harm."""
        for park_lock in park_locks:
            # Unlocked already if its owner left in between; it locks it before it sleeps again.
            with suppress(RuntimeError):
                park_lock.release()
        if kick:
            os.eventfd_write(self.kick, 1)

    def read_kick(self, *, leading: bool) -> None:
        """Read the kick as the leader, or if there is no leader. No lock held.

        Under the lock, because a leader that begins its wait between the check and the read would
        lose the kick meant for it.
        """
        with self.lock, suppress(BlockingIOError):
            if leading or self.leader is None:
                os.eventfd_read(self.kick)

    def begin_wait(self, waiter: Waiter) -> bool:
        """Become the leader if there is none; return whether the waiter leads."""
        if self.leader is None or self.leader is waiter:
            self.leader = waiter
            waiter.doing = Doing.IN_POLL
            if waiter in self.followers:
                self.followers.remove(waiter)
            return True
        if waiter not in self.followers:
            self.followers.append(waiter)
        waiter.park_lock.acquire(blocking=False)
        waiter.doing = Doing.PARKED
        return False

    def sleep(self, waiter: Waiter, timeout_s: float | None) -> None:
        """Park until notified; a signal handler runs in between. No lock held."""
        waiter.park_lock.acquire(timeout=-1 if timeout_s is None else timeout_s)

    def end_wait(self, waiter: Waiter, waiters: Waiters, *, used: bool) -> bool:
        """Leave for any reason; return true if there is no leader now."""
        waiters.remove(waiter)
        if waiter.doing is Doing.NOTIFIED and not used:
            waiters.tell(1, self)
        waiter.doing = Doing.RUNNING
        if self.leader is waiter:  # and so no follower
            self.leader = None
        elif waiter in self.followers:
            self.followers.remove(waiter)
        if self.followers:
            self.name_leader()
        return self.leader is None

    def name_leader(self) -> None:
        """Wake a follower, which then takes the empty leader slot."""
        if self.leader is None and self.followers:
            self.notify(self.followers.popleft())

    def is_empty(self) -> bool:
        """Return whether there are no waiters."""
        return self.leader is None and not self.followers

    def abandon_in_child(self, lock: threading.RLock) -> None:
        """Forget all waiters after a fork: they are not in the child."""
        self.lock = lock
        self.leader, self.due = None, False
        self.followers.clear()
        self._park_locks, self._callbacks, self._kick_due = [], [], False
        self.close()

    def close(self) -> None:
        """Release the kick descriptor."""
        os.close(self.kick)
