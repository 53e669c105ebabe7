"""Who waits for a datagram socket, which is fed from two sides: by its devices and by UDP.

Over real devices whoever waits drives them, as with a stream, and what came by UDP is told to them
as if it had come over them. A simulated device has no time of its own: who waits runs its clock,
and looks for what the real UDP socket brought in between. Without a device there is only UDP.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from urds.rsocket import devices
from urds.rsocket.opening import Opening

_VIRTUAL_NS: Final = 1_000_000_000  # that a simulated device runs ahead of the real UDP socket
_PAUSE_S: Final = 0.002  # between two looks at a simulated device


class DatagramWaiters:
    """Those who wait for one socket. Any thread."""

    def __init__(self, openings: Sequence[Opening]) -> None:
        self._openings = openings
        self._simulated = [each.adapter for each in openings if not each.adapter.has_own_time]
        self._waiting: set[Callable[[], None]] = set()  # not at a device

    def wait(self, is_over: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until `is_over()` or the end of time; return what it said last. No lock is held."""
        if self._openings and not self._simulated:
            return devices.wait(self._openings, is_over, timeout_s)
        changed = threading.Event()
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._waiting.add(changed.set)
        try:
            while not self._is_over(is_over):
                left_s = None if end_s is None else end_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                if self._simulated:
                    left_s = _PAUSE_S if left_s is None else min(left_s, _PAUSE_S)
                changed.wait(left_s)
                changed.clear()
            return True
        finally:
            self._waiting.discard(changed.set)

    def wake(self) -> None:
        """Have those ask again who do not wait at a device. The lock of one may be held."""
        for wake in list(self._waiting):
            wake()

    def tell_devices(self) -> None:
        """Have those ask again who wait at a device, or for one of several. No lock is held."""
        for opening in self._openings:
            with opening.adapter.lock:
                for watcher in list(opening.watchers):
                    watcher()
                opening.adapter.notify()

    def _is_over(self, is_over: Callable[[], bool]) -> bool:
        for adapter in self._simulated:
            adapter.wait(is_over, _VIRTUAL_NS)
        return is_over()
