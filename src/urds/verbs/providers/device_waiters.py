"""Threads that wait behind the one that makes progress, each woken by itself.

A condition for all of them would wake a hundred threads for one that is ready: each takes the
interpreter and the lock in turn, only to sleep again. All calls with the lock held.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet


@dataclass(slots=True, eq=False)
class DeviceWaiter:
    """One thread that waits until `is_ready()`."""

    is_ready: Callable[[], bool]
    condition: threading.Condition | None = None  # made when it first sleeps
    is_asleep: bool = False

    def sleep(self, lock: threading.RLock, wait_s: float | None) -> None:
        """Sleep until woken, or for a time; the lock is free meanwhile."""
        if self.condition is None:
            self.condition = threading.Condition(lock)
        self.is_asleep = True
        self.condition.wait(wait_s)
        self.is_asleep = False

    def wake(self) -> None:
        """Wake it to check again."""
        if self.is_asleep and self.condition is not None:
            self.is_asleep = False
            self.condition.notify()


class DeviceWaiters(list[DeviceWaiter]):
    """All threads that wait for one device, in the order in which they came."""

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


class LiveDevice(Protocol):
    """What owns a thread and descriptors, which a fork copies or loses."""

    is_closed: bool

    def abandon_in_child(self) -> None:
        """Close this copy in the child of a fork; the peers are not told."""


class LiveDevices(WeakSet[LiveDevice]):
    """Open devices of one kind: the child of a fork abandons its copies."""

    def __init__(self) -> None:
        super().__init__()
        os.register_at_fork(after_in_child=self._abandon)

    def _abandon(self) -> None:
        for device in list(self):
            if not device.is_closed:
                device.abandon_in_child()
        self.clear()
