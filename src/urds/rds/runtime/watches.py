"""Descriptors of the control plane, each with its handler, which the control thread calls once.

The plane watches them beside its streams and reports `Ready`, which ends the watch. Control lock
held.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns as now_ns
from typing import Final

from urds.rds.plane.contract import Interest, Plane

_PAUSE_NS: Final = 100_000_000  # when the system has no watch left


class Watches:
    """The watched descriptors of a driver."""

    def __init__(self, plane: Plane) -> None:
        self.handlers: dict[int, Callable[[], None]] = {}
        self._plane = plane
        self._unwatched: dict[int, Interest] = {}  # for want of a watch; tried again
        self._again_at_ns: int | None = None

    def serve(self, descriptor: int, handler: Callable[[], None], interest: Interest) -> None:
        """Call `handler` in the control thread once, when the descriptor is ready.

        Where the system has no watch left (ENOSPC, ENOMEM), it is tried again after a pause.
        """
        try:
            self.serve_now(descriptor, handler, interest)
        except OSError:
            self.handlers[descriptor] = handler
            self._unwatched[descriptor] = interest
            self._again_at_ns = now_ns() + _PAUSE_NS

    def serve_now(self, descriptor: int, handler: Callable[[], None], interest: Interest) -> None:
        """Serve as `serve` does, or leave nothing behind. Raises OSError."""
        self.handlers[descriptor] = handler
        try:
            self._plane.watch(descriptor, interest)
        except BaseException:
            del self.handlers[descriptor]
            raise

    def stop(self, descriptor: int) -> None:
        """Forget a descriptor before it is closed; no error for an unknown one."""
        self._unwatched.pop(descriptor, None)
        if self.handlers.pop(descriptor, None) is not None:
            self._plane.unwatch(descriptor)

    def handle_ready(self, descriptor: int) -> None:
        """Call the handler of a descriptor, unless it was forgotten meanwhile."""
        handler = self.handlers.pop(descriptor, None)
        if handler is not None:
            handler()

    def handle_timeout(self, at_ns: int) -> None:
        """Watch what could not be watched before, if it is time."""
        if self._again_at_ns is None or at_ns < self._again_at_ns:
            return
        unwatched, self._unwatched, self._again_at_ns = self._unwatched, {}, None
        for descriptor, interest in unwatched.items():
            self.serve(descriptor, self.handlers[descriptor], interest)

    def next_ns(self) -> int | None:
        """Return when `handle_timeout` has something to do, None if nothing waits for it."""
        return self._again_at_ns
