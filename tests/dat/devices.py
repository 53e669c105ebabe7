"""Devices of the tests of DAT, by what opens them.

Over shared memory that is either engine, or one on each side; the others are those of the registry.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

import pytest

from urds import dat
from urds.verbs.providers.shm import ShmAdapter

DEVICES = ("shm-python", "shm-native", "shm-mixed", "tcp0", "udp0")


@contextmanager
def opening(name: str) -> Iterator[str]:
    """Have a device of `DEVICES` be opened by its name meanwhile."""
    openers: list[type[ShmAdapter]] = []
    if name in ("shm-python", "shm-mixed"):
        openers.append(ShmAdapter)
    if name in ("shm-native", "shm-mixed"):
        pytest.importorskip("urds_native", reason="the compiled engine is not built")
        from urds.verbs.providers.shm.native_adapter import NativeShmAdapter

        openers.append(NativeShmAdapter)
    if not openers:
        yield name
        return
    turns = cycle(openers)
    info = dat.register(name, lambda: next(turns)("shm0"), address="127.0.0.1")
    yield name
    dat.unregister(info)
