"""Locks in the child of a fork: free, unless the thread that forked has them."""

import os
import threading
from collections.abc import Callable

import pytest

from urds.common.forks import renewed

_Make = Callable[[], threading.Lock]


def in_child(question: Callable[[], bool]) -> bool:
    """Fork, and return what `question` says there."""
    child = os.fork()
    if not child:
        os._exit(0 if question() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock, threading.Condition])
def test_a_lock_that_another_thread_holds_is_free_in_the_child(make: _Make) -> None:
    lock, plain = renewed(make()), make()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock, plain:
            held.set()
            done.wait(5)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(5)
        assert in_child(lambda: lock.acquire(blocking=False))
        assert not in_child(lambda: plain.acquire(blocking=False))
        assert not lock.acquire(blocking=False)
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("make", [threading.RLock, threading.Condition])
def test_what_the_forking_thread_holds_stays_its_own(make: _Make) -> None:
    lock = renewed(make())
    with lock:
        assert in_child(lambda: lock.release() is None)
