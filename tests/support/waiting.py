"""How long tests wait: no test is red because the machine has other work."""

import time
from collections.abc import Callable

BUSY_S = 20.0  # the most that other work may add to what takes no time; waits that fail are longer
ENDLESS_S = 60.0  # a wait whose end within BUSY_S shows that something else than its time ended it


def settled(is_done: Callable[[], bool]) -> bool:
    """Return whether something becomes true within BUSY_S that another thread is about to do."""
    end_s = time.monotonic() + BUSY_S
    while not is_done():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.001)
    return True


def wait_until(is_so: Callable[[], bool], wait_s: float = BUSY_S) -> None:
    """Wait for what other threads or processes do. Raises AssertionError after `wait_s`."""
    end_s = time.monotonic() + wait_s
    while not is_so():
        assert time.monotonic() < end_s, f"not within {wait_s:g} s"
        time.sleep(0.001)


def ends_with(held: Callable[[], tuple[int, ...]], before: tuple[int, ...]) -> bool:
    """Return whether no count of what is held stays above the one before."""
    return settled(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))
