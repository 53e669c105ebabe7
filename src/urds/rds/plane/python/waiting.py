"""Who sleeps, who reads for everybody, and who is told.

A thread that waits for its mailbox either becomes the *leader*, sleeps in `epoll` on the plane's
set and serves whatever comes, or it is a *follower* and sleeps on a gate of its own. The rules,
each with a scenario in tests/sockets/test_wakeups.py that hangs without it:

    list before sleeping   a waiter lists itself in the same critical section that found nothing
    look after notice      to notify is to set NOTIFIED first; a waiter so marked does not sleep
    kick the leader        a leader sleeps in epoll, so it is woken by the kick descriptor
    only the leader reads the kick
    name a successor       who leaves an empty chair with followers present names one and wakes it;
                           the named one may be leaving himself, so this holds for everybody
    pass it on             who was notified and leaves without using it tells the next one

All state is guarded by the plane's lock; descriptors are written after it is released.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import TypeVar

from urds.errors import Refusal, os_error

_T = TypeVar("_T")


class Doing(Enum):
    """What a waiter is doing; every change is made under the plane's lock."""

    RUNNING = auto()
    IN_POLL = auto()
    AT_GATE = auto()
    NOTIFIED = auto()


class Waiter:
    """One per waiting thread, or a callback that stands in for one."""

    __slots__ = ("callback", "doing", "gate", "in_use")

    def __init__(self, callback: Callable[[], None] | None = None) -> None:
        self.doing = Doing.RUNNING
        self.callback = callback
        self.in_use = False  # in a wait; a handler that interrupts it must not wait as well
        if callback is None:
            self.gate = threading.Lock()
            self.gate.acquire()


class Waiters:
    """The waiters of one mailbox for one thing, first come first told."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        # A list: there are few, and an empty deque takes 0.6 KiB, thrice for each socket.
        self._queue: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, waiter: Waiter) -> None:
        """List a waiter once."""
        if waiter not in self._queue:
            self._queue.append(waiter)

    def remove(self, waiter: Waiter) -> bool:
        """Take a waiter off; return false if it was told and is off already."""
        queue = self._queue
        if queue and queue[0] is waiter:  # as a rule it is the only one
            queue.pop(0)
            return True
        listed = waiter in queue
        if listed:
            queue.remove(waiter)
        return listed

    def tell(self, count: int, desk: WaitingDesk) -> None:
        """Notify at most `count` waiters; the reading thread counts: it looks before it sleeps."""
        leader = desk.leader
        if leader is not None and leader.doing is Doing.RUNNING and leader in self._queue:
            self._queue.remove(leader)
            leader.doing = Doing.NOTIFIED  # should an interrupt end its wait, it passes this on
            count -= 1
        while count > 0 and self._queue:
            desk.notify(self._queue[0])  # first: an interrupt may tell one twice, but forget none
            self._queue.pop(0)
            count -= 1

    def tell_all(self, desk: WaitingDesk) -> None:
        """Notify everybody: what they wait for changed for all."""
        while self._queue:
            desk.notify(self._queue[0])
            self._queue.pop(0)


class WaitingDesk:
    """Leader, followers and the wake-ups that are due once the lock is free."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self.leader: Waiter | None = None
        self.followers: deque[Waiter] = deque()
        self.kick = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.due = False  # `deliver` has somebody to wake
        self._kick_due = False
        self._callbacks: list[Callable[[], None]] = []
        self._gates: list[threading.Lock] = []
        self.own = threading.local()  # `waiter`, of the calling thread

    def waiter(self) -> Waiter:
        """Return the calling thread's waiter, reused from wait to wait.

        Raises OSError (EDEADLK) inside a wait: the thread would wait for itself to read.
        """
        waiter: Waiter | None = getattr(self.own, "waiter", None)
        if waiter is None:
            waiter = self.own.waiter = Waiter()
        elif waiter.in_use:
            raise os_error(Refusal.REENTERED)
        return waiter

    def waits_here(self) -> bool:
        """Tell whether the calling thread is in a wait, which a handler interrupted."""
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
        elif before is Doing.AT_GATE:
            self._gates.append(waiter.gate)

    def deliver(self) -> None:
        """Wake whom `notify` marked; called without the lock by everybody who may have notified."""
        gates: list[threading.Lock] = []
        callbacks: list[Callable[[], None]] = []
        kick = False
        try:
            with self.lock:
                self.due = False
                gates, self._gates = self._gates, gates
                kick, self._kick_due = self._kick_due, False
                callbacks, self._callbacks = self._callbacks, callbacks
            self._wake(gates, kick=kick)
            for callback in callbacks:
                callback()
        except BaseException:  # after an interrupt all are due again: to be told twice is no harm
            self._gates += gates
            self._callbacks += callbacks
            self._kick_due = self._kick_due or kick
            self.due = True
            raise

    def _wake(self, gates: list[threading.Lock], *, kick: bool) -> None:
        """Open the gates and kick the leader; twice does no harm."""
        for gate in gates:
            # Open already if its owner left in between; it closes it before it sleeps again.
            with suppress(RuntimeError):
                gate.release()
        if kick:
            os.eventfd_write(self.kick, 1)

    def read_kick(self, *, leading: bool) -> None:
        """Take the kick if we lead, or if nobody does. No lock held.

        Under the lock, because a leader that sits down between the look and the read would lose
        the kick that is meant for him.
        """
        with self.lock, suppress(BlockingIOError):
            if leading or self.leader is None:
                os.eventfd_read(self.kick)

    def sit_down(self, waiter: Waiter) -> bool:
        """Become the leader if there is none; return whether the waiter leads. Lock held."""
        if self.leader is None or self.leader is waiter:
            self.leader = waiter
            waiter.doing = Doing.IN_POLL
            if waiter in self.followers:
                self.followers.remove(waiter)
            return True
        if waiter not in self.followers:
            self.followers.append(waiter)
        waiter.gate.acquire(blocking=False)
        waiter.doing = Doing.AT_GATE
        return False

    def sleep(self, waiter: Waiter, timeout_s: float | None) -> None:
        """Sleep at the gate until notified; a signal handler runs in between. No lock held."""
        waiter.gate.acquire(timeout=-1 if timeout_s is None else timeout_s)

    def stand_up(self, waiter: Waiter, waiters: Waiters, *, used: bool) -> bool:
        """Leave for whatever reason; return true if nobody leads now. Lock held."""
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
        """Wake a follower so that it finds the chair empty and takes it. Lock held."""
        if self.leader is None and self.followers:
            self.notify(self.followers.popleft())

    def is_empty(self) -> bool:
        """Tell whether nobody waits. Lock held."""
        return self.leader is None and not self.followers

    def abandon_in_child(self, lock: threading.RLock) -> None:
        """Forget everybody after a fork: they are not here."""
        self.lock = lock
        self.leader, self.due = None, False
        self.followers.clear()
        self._gates, self._callbacks, self._kick_due = [], [], False
        self.close()

    def close(self) -> None:
        """Release the kick descriptor."""
        os.close(self.kick)
