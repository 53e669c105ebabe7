"""Waiting for rsockets: watchers, doorbells, and timeouts of calls.

librdmacm lets one thread take the event for which another one sleeps, and so wakes all pollers at
each change and has each of them get up twice a second (docs/reference/rsocket.md 13, 16). Here no
event is taken: every poller has a callback of its own at each socket it waits for, and every
change calls all of them. None misses a change if it keeps the one rule:

    watch first, then look, then sleep.

A change before the look is seen by the look, a change after it calls. Hence no periodic wake-up.

The clock is read by calls that wait alone. A signal handler's exception passes through a wait;
another thread that closes the socket ends it.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable

from urds.common.forks import renewed
from urds.common.readiness import EventDescriptor
from urds.rsocket.errors import os_error

Watcher = Callable[[], None]
# Waits until its first argument says so, the seconds are over or never; returns what it said last.
Wait = Callable[[Callable[[], bool], float | None], bool]


class CallTimeout:
    """How long one call may wait in all, in seconds: 0 never, None for ever."""

    __slots__ = ("_end_s", "_wait_s")

    def __init__(self, wait_s: float | None) -> None:
        self._wait_s = wait_s
        self._end_s: float | None = None  # known from the first wait on

    @property
    def is_infinite(self) -> bool:
        """Return whether a wait ends only when there is what it waits for."""
        return self._wait_s is None

    def shorter(self, wait_s: float) -> float:
        """Return `wait_s`, or the whole timeout if that is less."""
        return wait_s if self._wait_s is None else min(self._wait_s, wait_s)

    def until(self, wait: Wait, is_ready: Callable[[], bool]) -> None:
        """Wait for `is_ready`, looking at least once. Call it without locks.

        Raises BlockingIOError if the call may not wait, TimeoutError at the end.
        """
        wait_s = self._wait_s
        if wait_s:
            now_s = time.monotonic()
            if self._end_s is None:
                self._end_s = now_s + wait_s
            wait_s = max(0.0, self._end_s - now_s)
        if not wait(is_ready, wait_s):
            raise os_error(errno.EAGAIN) if self._wait_s == 0 else TimeoutError("timed out")


class Watchers:
    """The callbacks of one socket. They may run under the lock of a device, and must not wait.

    Any thread adds and removes; `tell` takes no lock, for the callbacks are replaced, not changed.
    """

    __slots__ = ("_callbacks", "_follower", "_lock")

    def __init__(self) -> None:
        self._callbacks: tuple[Watcher, ...] = ()
        self._follower: Callable[[bool], None] | None = None
        self._lock = renewed(threading.Lock())

    def add(self, callback: Watcher) -> None:
        """Call it at each change from now on, as often as it was added."""
        with self._lock:
            self._callbacks = (*self._callbacks, callback)
            self._note()

    def remove(self, callback: Watcher) -> None:
        """Remove one registration of a callback, if it has one. A call may be under way."""
        with self._lock:
            left = list(self._callbacks)
            if callback in left:
                left.remove(callback)
                self._callbacks = tuple(left)
                self._note()

    def follow(self, follower: Callable[[bool], None] | None) -> None:
        """Tell `follower` whether there are any, now and at each change."""
        with self._lock:
            self._follower = follower
            self._note()

    def _note(self) -> None:
        if self._follower is not None:
            self._follower(bool(self._callbacks))

    def tell(self) -> None:
        """Call all: the readiness may have changed, in either direction, or the end came."""
        for callback in self._callbacks:
            callback()

    def __bool__(self) -> bool:
        return bool(self._callbacks)


class Doorbell:
    """A descriptor that is readable from `ring` to `quiet`: it ends sleeps in the kernel."""

    def __init__(self) -> None:
        """Make one. Raises OSError: EMFILE."""
        self._descriptor = EventDescriptor()
        self._lock = renewed(threading.Lock())
        self._number = self._descriptor.fileno()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._number

    def ring(self) -> None:
        """Make it readable; one system call, and only the first time."""
        with self._lock:
            self._descriptor.set(True)

    def quiet(self) -> None:
        """Make it unreadable. Look at what it rang for afterwards, not before."""
        with self._lock:
            self._descriptor.set(False)

    def close(self) -> None:
        """Close the descriptor; safe twice. A later ring, of a thread that was slow, is silent."""
        with self._lock:
            self._descriptor.close()
