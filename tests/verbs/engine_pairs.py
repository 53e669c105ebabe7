"""Two ends of one process over `shm0`, on each engine, and threads that wait for them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.verbs.pair import End, connect
from tests.verbs.test_wakeups import NATIVE, has_native, native_adapter
from urds.verbs import Context
from urds.verbs.providers.shm.adapter import ShmAdapter

ENGINES = ("shm", NATIVE)
BOUND_S = 20.0
Pair = tuple[End, End]


@contextmanager
def connected(engine: str, directory: Path) -> Iterator[Pair]:
    """Connect two ends on one of `ENGINES`; skips without the compiled one."""
    if engine == NATIVE and not has_native():
        pytest.skip("no compiled engine")
    make: Callable[[], ShmAdapter] = (
        (lambda: native_adapter(directory / "meet"))
        if engine == NATIVE
        else (lambda: ShmAdapter(directory=directory / "meet"))
    )
    left, right = (End(Context(adapter=make())) for _ in range(2))
    connect(left, right, ("127.0.0.1", 0))
    yield left, right
    left.context.close()
    right.context.close()


def begin(work: Callable[[], None]) -> threading.Thread:
    """Start a thread that the end of the process does not wait for."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def run_all(threads: list[threading.Thread]) -> None:
    """Wait for threads, which end by themselves."""
    for thread in threads:
        thread.join(BOUND_S)
    assert not any(thread.is_alive() for thread in threads)
