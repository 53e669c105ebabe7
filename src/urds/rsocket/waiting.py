"""Waiting for rsockets: watchers, readiness as poll shows it, doorbells, and timeouts of calls.

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
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeGuard

from urds.common.forks import renewed
from urds.common.readiness import EventDescriptor
from urds.rsocket.errors import os_error
from urds.rsocket.link.device_context import DeviceContext, Readiness

Watcher = Callable[[], None]
# Waits until its first argument says so, the seconds are over or never; returns what it said last.
Wait = Callable[[Callable[[], bool], float | None], bool]

IN: Final = select.POLLIN | select.POLLRDNORM
OUT: Final = select.POLLOUT | select.POLLWRNORM
ALWAYS: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL  # reported unasked too


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

    @property
    def is_zero(self) -> bool:
        """Return whether a call may not wait at all."""
        return self._wait_s == 0

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
            raise os_error(errno.EAGAIN) if self.is_zero else TimeoutError("timed out")


class Watchers:
    """The callbacks of one socket. They may run under the lock of a device, and must not wait.

    Any thread adds and removes; `tell` takes no lock, for the callbacks are replaced, not changed.
    """

    __slots__ = ("_callbacks", "_lock")

    def __init__(self) -> None:
        self._callbacks: tuple[Watcher, ...] = ()
        self._lock = renewed(threading.Lock())

    def add(self, callback: Watcher) -> None:
        """Call it at each change from now on, as often as it was added."""
        with self._lock:
            self._callbacks = (*self._callbacks, callback)

    def remove(self, callback: Watcher) -> None:
        """Remove one registration of a callback, if it has one. A call may be under way."""
        with self._lock:
            left = list(self._callbacks)
            if callback in left:
                left.remove(callback)
                self._callbacks = tuple(left)

    def tell(self) -> None:
        """Call all: the readiness may have changed, in either direction, or the end came."""
        for callback in self._callbacks:
            callback()

    def __bool__(self) -> bool:
        return bool(self._callbacks)


class Pollable(Protocol):
    """What rpoll, Repoll and asyncio need to know of a socket."""

    @property
    def watchers(self) -> Watchers:
        """The callbacks of its changes."""

    @property
    def contexts(self) -> Sequence[DeviceContext]:
        """Return the devices that can change its readiness; none of an idle socket."""

    @property
    def closed(self) -> bool:
        """Whether it is closed."""

    def readiness(self) -> Readiness:
        """Return what it can do now; any thread. Raises OSError: EBADF, it is closed."""

    def fileno(self) -> int:
        """Return its descriptor."""


def is_pollable(file: object) -> TypeGuard[Pollable]:
    """Tell an rsocket from other objects that have a descriptor."""
    return isinstance(getattr(file, "watchers", None), Watchers)


def revents(pollable: Pollable, events: int) -> int:
    """Return what poll would report of a socket for `events`. POLLNVAL: closed.

    Source: docs/reference/rsocket.md 13, table of conditions. As with kernel sockets POLLRDNORM and
    POLLWRNORM go with POLLIN and POLLOUT.
    """
    if pollable.closed:
        return select.POLLNVAL
    try:
        now = pollable.readiness()
    except OSError:  # closed in between
        return select.POLLNVAL
    found = 0
    if now.readable:
        found |= IN
    if now.writable:
        found |= OUT
    if now.hung_up:
        found |= select.POLLHUP
    if now.failed:
        found |= select.POLLERR
    return found & (events | ALWAYS)


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
        self._set(True)

    def quiet(self) -> None:
        """Make it unreadable. Look at what it rang for afterwards, not before."""
        self._set(False)

    def close(self) -> None:
        """Close the descriptor; safe twice. A later ring, of a thread that was slow, is silent."""
        with self._lock:
            self._descriptor.close()

    def _set(self, is_set: bool) -> None:
        with self._lock:
            self._descriptor.set(is_set)


@contextmanager
def attended(contexts: Iterable[DeviceContext]) -> Iterator[None]:
    """Have these devices progress by threads of their own while the caller sleeps elsewhere."""
    begun: list[DeviceContext] = []
    try:
        for context in contexts:
            with context.adapter.lock:
                context.adapter.add_external_waiter()
            begun.append(context)
        yield
    finally:
        for context in begun:
            with context.adapter.lock:
                context.adapter.remove_external_waiter()
