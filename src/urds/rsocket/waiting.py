"""Who wants to hear of a socket: the ground under rpoll, Repoll and the asyncio streams.

The original lets one thread eat the event for which another one sleeps, and so wakes all pollers
at each change and has each of them get up twice a second, just in case (rsocket.md 13 and 16).
Here an event is nothing that can be eaten: every poller has a callback of its own at each socket
it waits for, and every change calls all of them. Nobody misses one if he obeys the one rule:

    watch first, then look, then sleep.

A change before the look is seen by the look, a change after it calls. Hence no safety net.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeGuard

from urds.forks import renewed
from urds.verbs.descriptor import Descriptor

if TYPE_CHECKING:
    from urds.rsocket.opening import Opening

Watcher = Callable[[], None]

IN: Final = select.POLLIN | select.POLLRDNORM
OUT: Final = select.POLLOUT | select.POLLWRNORM
ALWAYS: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL  # told to who did not ask too


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
        """Call it once less per change; unknown: nothing. A last call may be under way."""
        with self._lock:
            left = list(self._callbacks)
            if callback in left:
                left.remove(callback)
                self._callbacks = tuple(left)

    def tell(self) -> None:
        """Call everybody: the readiness may have changed, in either direction, or the end came."""
        for callback in self._callbacks:
            callback()

    def __bool__(self) -> bool:
        return bool(self._callbacks)


class State(Protocol):
    """What a socket can do now without waiting."""

    @property
    def readable(self) -> bool:
        """Something to receive or to accept, or the end."""

    @property
    def writable(self) -> bool:
        """Room to send, or the certainty that sending fails."""

    @property
    def hung_up(self) -> bool:
        """Neither direction is open any more."""

    @property
    def failed(self) -> bool:
        """An error waits for SO_ERROR."""


class Pollable(Protocol):
    """What rpoll, Repoll and asyncio need to know of a socket."""

    @property
    def watchers(self) -> Watchers:
        """Those who want to hear of it."""

    @property
    def openings(self) -> Sequence[Opening]:
        """Return the devices that can change its readiness; none of an idle socket."""

    @property
    def closed(self) -> bool:
        """Whether it is closed."""

    def readiness(self) -> State:
        """Return what it can do now; any thread. Raises OSError: EBADF, it is closed."""

    def fileno(self) -> int:
        """Return its descriptor."""


def is_pollable(file: object) -> TypeGuard[Pollable]:
    """Tell an rsocket from other objects that have a descriptor."""
    return isinstance(getattr(file, "watchers", None), Watchers)


def revents(pollable: Pollable, events: int) -> int:
    """Return what poll would say of a socket to who asked for `events`. POLLNVAL: closed.

    Source: rsocket.md 13, table of conditions. As with kernel sockets POLLRDNORM and POLLWRNORM
    go with POLLIN and POLLOUT.
    """
    if pollable.closed:
        return select.POLLNVAL
    try:
        state = pollable.readiness()
    except OSError:  # closed in between
        return select.POLLNVAL
    found = 0
    if state.readable:
        found |= IN
    if state.writable:
        found |= OUT
    if state.hung_up:
        found |= select.POLLHUP
    if state.failed:
        found |= select.POLLERR
    return found & (events | ALWAYS)


class Bell:
    """A descriptor that is readable from `ring` to `quiet`: wakes who sleeps in the kernel."""

    def __init__(self) -> None:
        """Make one. Raises OSError: EMFILE."""
        self._descriptor = Descriptor()
        self._lock = renewed(threading.Lock())
        self._number = self._descriptor.fileno()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._number

    def ring(self) -> None:
        """Make it readable; one system call, and only the first time."""
        self._set(True)

    def quiet(self) -> None:
        """Make it unreadable. Who does so looks at what it rang for afterwards, not before."""
        self._set(False)

    def close(self) -> None:
        """Close the descriptor; safe twice. A later ring, of a thread that was slow, is silent."""
        with self._lock:
            self._descriptor.close()

    def _set(self, is_set: bool) -> None:
        with self._lock:
            self._descriptor.set(is_set)


@contextmanager
def attended(openings: Iterable[Opening]) -> Iterator[None]:
    """Have these devices driven by threads of their own while the caller sleeps elsewhere."""
    begun: list[Opening] = []
    try:
        for opening in openings:
            with opening.adapter.lock:
                opening.adapter.attend()
            begun.append(opening)
        yield
    finally:
        for opening in begun:
            with opening.adapter.lock:
                opening.adapter.unattend()
