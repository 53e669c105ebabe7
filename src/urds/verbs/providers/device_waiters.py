"""Threads that wait behind the one that drives a device, each woken by itself.

A condition for all of them would wake a hundred threads for one that is ready: each takes the
interpreter and the lock in turn, to find that it was not meant. All calls with the lock held.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Waiter:
    """One thread that waits until `is_ready()`."""

    is_ready: Callable[[], bool]
    bell: threading.Condition | None = None  # made when it first sleeps
    is_asleep: bool = False

    def sleep(self, lock: threading.RLock, wait_s: float | None) -> None:
        """Sleep until woken, or for a time; the lock is free meanwhile."""
        if self.bell is None:
            self.bell = threading.Condition(lock)
        self.is_asleep = True
        self.bell.wait(wait_s)
        self.is_asleep = False

    def wake(self) -> None:
        """Let it ask again."""
        if self.is_asleep and self.bell is not None:
            self.is_asleep = False
            self.bell.notify()


class Waiters(list[Waiter]):
    """All who wait for one device, in the order in which they came."""

    def wake_ready(self) -> bool:
        """Wake those who sleep although they are ready; tell whether others are, who do not."""
        is_left = False
        for waiter in self:
            if waiter.is_ready():
                is_left = is_left or not waiter.is_asleep
                waiter.wake()
        return is_left

    def hand_on(self) -> None:
        """Have one take over who sleeps; one that is awake finds out itself that nobody drives."""
        if self and all(waiter.is_asleep for waiter in self):
            self[0].wake()

    def wake_all(self) -> None:
        """Let every one ask again."""
        for waiter in self:
            waiter.wake()
