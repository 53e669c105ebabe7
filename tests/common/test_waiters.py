"""Threads that wait behind a driver: those that are ready are woken, and no others."""

import threading
from collections.abc import Callable

from urds.common.progress import Waiter, Waiters

WAIT_S = 10.0


class Sleepers:
    """Threads that sleep as waiters, and what woke up."""

    def __init__(self, count: int) -> None:
        self.lock = threading.RLock()
        self.waiters = Waiters()
        self.ready: set[int] = set()
        self.woken: list[int] = []
        self.threads = [threading.Thread(target=self._sleep, args=(one,)) for one in range(count)]
        for thread in self.threads:
            thread.start()
        self.wait(lambda: len(self.waiters) == count)

    def _sleep(self, number: int) -> None:
        with self.lock:
            waiter = Waiter(lambda: number in self.ready)
            self.waiters.append(waiter)
            waiter.sleep(self.lock, WAIT_S)
            self.woken.append(number)
            self.waiters.remove(waiter)

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Wait for a state of the threads; a waiter that is counted is asleep or on its way."""
        for _ in range(100_000):
            with self.lock:
                if is_ready():
                    return
        raise AssertionError(f"{self.woken} woke up")

    def finish(self) -> None:
        """Let all end."""
        with self.lock:
            self.waiters.wake_all()
        for thread in self.threads:
            thread.join(WAIT_S)


def test_only_who_is_ready_wakes_up() -> None:
    sleepers = Sleepers(5)
    with sleepers.lock:
        sleepers.ready.add(3)
        assert sleepers.waiters.wake_ready() is False
    sleepers.wait(lambda: bool(sleepers.woken))
    with sleepers.lock:
        assert sleepers.woken == [3]
        assert [waiter.is_asleep for waiter in sleepers.waiters] == [True] * 4
    sleepers.finish()
    assert sorted(sleepers.woken) == [0, 1, 2, 3, 4]


def test_one_takes_over_and_the_others_sleep_on() -> None:
    sleepers = Sleepers(3)
    with sleepers.lock:
        sleepers.waiters.wake_successor()
        sleepers.waiters.wake_successor()  # one is awake already
        assert sum(waiter.is_asleep for waiter in sleepers.waiters) == 2
    sleepers.finish()


def test_who_is_ready_and_awake_is_told_of() -> None:
    waiters = Waiters([Waiter(lambda: True), Waiter(lambda: False)])
    assert waiters.wake_ready() is True
    assert Waiters([Waiter(lambda: False)]).wake_ready() is False
