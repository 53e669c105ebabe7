"""Which devices the rsockets of this process use, and waiting for one or several of them.

`URDS_RSOCKET_DEVICES` names them in the order in which they are tried (`shm0,tcp0`: shared memory
within the host, iWARP between hosts); with `URDS_VERBS_DEVICE` it is that one alone. They are
opened when the first socket needs them, and closed with the process, after what was sent has left.
"""

import atexit
import errno
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from urds.common.forks import renewed
from urds.rsocket import settings
from urds.rsocket.link.device_context import DeviceContext, attended
from urds.verbs.device import DEVICE_VARIABLE, find_device
from urds.verbs.providers.base import Adapter

DEVICES_VARIABLE: Final = "URDS_RSOCKET_DEVICES"
DEVICES_DEFAULT: Final = "shm0,tcp0"
LOOK_US: Final = 10
EXIT_LINGER_S: Final = 5.0  # how long the end of the process waits for what was sent
_NS: Final = 1_000_000_000


class _ProcessDevices:
    """What the rsockets of this process have opened; a forked child begins anew."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Have opened nothing."""
        self.lock = renewed(threading.Lock())
        self.opened: list[DeviceContext] = []
        self.used: list[DeviceContext] | None = None  # those of `use`


_process = _ProcessDevices()


def names() -> list[str]:
    """Return the names of the devices in the order in which they are tried."""
    only = os.environ.get(DEVICE_VARIABLE)
    listed = os.environ.get(DEVICES_VARIABLE) or only or DEVICES_DEFAULT
    return [name.strip() for name in listed.split(",") if name.strip()]


def contexts() -> list[DeviceContext]:
    """Return this process's devices, opened now if need be. Raises OSError: ENODEV."""
    if _process.used is not None:
        return _process.used
    with _process.lock:
        wanted = names()
        if not wanted:
            raise OSError(errno.ENODEV, f"{DEVICES_VARIABLE} names no device")
        known = {context.name: context for context in _process.opened}
        for name in wanted:
            if name not in known:
                known[name] = DeviceContext(find_device(name).open_adapter())
                _process.opened.append(known[name])
        return [known[name] for name in wanted]


@contextmanager
def use(*adapters: Adapter) -> Iterator[list[DeviceContext]]:
    """Let sockets made meanwhile use these adapters: simulated ones, or a second context.

    The caller closes the adapters. Not for several threads at once.
    """
    before, used = _process.used, [DeviceContext(adapter) for adapter in adapters]
    _process.used = used
    try:
        yield used
    finally:
        _process.used = before


def wait(
    devices: Sequence[DeviceContext], is_ready: Callable[[], bool], timeout_s: float | None
) -> bool:
    """Wait until `is_ready()` or the time is over; return what it said last.

    The caller's own thread makes one device progress. Several progress by themselves meanwhile,
    and each change on one of them lets the caller ask again. Call it without locks; `is_ready`
    only reads, for it may be called with the lock of one device held, or with none.
    """
    if is_ready():
        return True
    if len(devices) == 1:
        adapter = devices[0].adapter
        if timeout_s != 0 and _busy_poll(adapter, is_ready):
            return True
        timeout_ns = None if timeout_s is None else max(0, int(timeout_s * _NS))
        return adapter.wait(is_ready, timeout_ns)
    return _wait_for_several(devices, is_ready, timeout_s)


def _busy_poll(adapter: Adapter, is_ready: Callable[[], bool]) -> bool:
    """Make the device progress without sleeping for as long as `polling_time` says.

    The first look is the wait's own, and takes about as long as the default.
    """
    polling_us = settings.current().polling_time - LOOK_US
    if polling_us <= 0:
        return False
    end_ns = time.monotonic_ns() + polling_us * 1000
    while time.monotonic_ns() < end_ns:
        adapter.progress()
        if is_ready():
            return True
    return False


def _wait_for_several(
    devices: Sequence[DeviceContext], is_ready: Callable[[], bool], timeout_s: float | None
) -> bool:
    for device in devices:
        device.adapter.progress()
    changed = threading.Event()
    for device in devices:
        with device.adapter.lock:
            device.watchers.add(changed.set)
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        with attended(devices):
            return wait_for_changes(changed, is_ready, end_s)
    finally:
        for device in devices:
            with device.adapter.lock:
                device.watchers.discard(changed.set)


def wait_for_changes(
    changed: threading.Event,
    is_ready: Callable[[], bool],
    end_s: float | None,
    pause_s: float | None = None,
) -> bool:
    """Ask at each change, and every `pause_s`, until `is_ready()` or `end_s`; return its answer."""
    while not is_ready():
        left_s = pause_s
        if end_s is not None:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return False
            left_s = left_s if pause_s is None else min(left_s, pause_s)
        changed.wait(left_s)
        changed.clear()
    return True


def _close_all() -> None:
    """Let what was sent leave, for a while, then close the devices."""
    end_s = time.monotonic() + EXIT_LINGER_S
    for device in _process.opened:
        with device.adapter.lock:
            for link in list(device.links.values()):
                link.close()
        wait([device], partial(_is_empty, device.leaving), max(0.0, end_s - time.monotonic()))
        device.adapter.close()
    _process.opened.clear()


def _is_empty(leaving: Collection[object]) -> bool:
    return not leaving


def _forget_in_child() -> None:
    """Leave everything to the parent: a child opens devices of its own."""
    for device in _process.opened:
        device.is_abandoned = True
    _process.begin()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_in_child)
