"""What every rsocket is below its calls: readiness and its descriptor, the end, a fork.

`_lock` guards what changes rarely and is never held by a call that waits; order: `_lock`, then the
lock of a device, then the descriptor's own. Who closes a socket ends the calls of others that
wait on it, with EBADF.
"""

from __future__ import annotations

import os
import socket as system
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakMethod, WeakSet

from urds.forks import renewed
from urds.readiness import ReadinessDescriptor
from urds.rsocket.link import Readiness
from urds.rsocket.refusals import closed
from urds.rsocket.watching import Watchers

if TYPE_CHECKING:
    from urds.rsocket.datagram_link import DatagramLink
    from urds.rsocket.link import Link
    from urds.rsocket.listening import Listening
    from urds.rsocket.opening import Opening

_IDLE: Final = Readiness(False, False, True, False)

_open: Final[WeakSet[SocketBase]] = WeakSet()


class SocketBase(system.socket):
    """Readiness and the end; see `sockets.Socket`."""

    __slots__ = ("_attended", "_descriptor", "_is_over", "_lock", "watchers")

    def __init__(self) -> None:
        # The parent's __init__ would ask the kernel for a socket: it has none, so that whoever
        # reaches past our methods gets EBADF.
        self._io_refs = 0
        self._lock = renewed(threading.RLock())
        self.watchers = Watchers()
        self._descriptor: ReadinessDescriptor | None = None
        self._attended: list[Opening] = []
        self._closed = self._is_over = False
        _open.add(self)

    # -- what stands behind, which the classes above know

    def _behind(self) -> Link | Listening | DatagramLink | None:
        """Return what is ready or not: a link, a listener, None while there is neither."""
        raise NotImplementedError

    def _let_go(self) -> None:
        """Close what stands behind; waits as long as SO_LINGER asks for."""
        raise NotImplementedError

    def _let_go_soon(self) -> None:
        """Close what stands behind as a finaliser may: without a lock, and later."""
        raise NotImplementedError

    # -- readiness

    @property
    def closed(self) -> bool:
        """Whether the socket is closed, and no file of `makefile` keeps it."""
        return self._is_over

    @property
    def openings(self) -> Sequence[Opening]:
        """The devices that can change its readiness; none while nothing stands behind."""
        behind = self._behind()
        return () if behind is None else behind.openings

    def readiness(self) -> Readiness:
        """Return what can be done now without waiting. Raises OSError: EBADF."""
        self._check_open()
        behind = self._behind()
        return _IDLE if behind is None else behind.readiness()

    def fileno(self) -> int:
        """Return a descriptor for select, poll and epoll; -1 once closed.

        It is readable and writable when the socket is; no octets of it go through. From the
        first call on, the devices are driven by threads of their own.
        """
        with self._lock:
            if self._is_over:
                return -1
            if self._descriptor is None:
                self._descriptor = ReadinessDescriptor(_weakly(self._shown))
                self.watchers.add(self._descriptor.sync)
                self._descriptor.sync()  # what came before the watcher was told to nobody
                self._attend()
            return self._descriptor.fileno()

    def _shown(self) -> tuple[bool, bool]:
        """Return what the descriptor shows. Takes no lock: `sync` holds one of its own."""
        behind = self._behind()
        if behind is None:
            return False, not self._is_over
        now = behind.readiness()
        return now.readable, now.writable

    def _attend(self) -> None:
        """Have the devices driven if somebody may sleep on the descriptor. `_lock` held."""
        if self._descriptor is None:
            return
        for opening in self.openings:
            if opening not in self._attended:
                with opening.adapter.lock:
                    opening.adapter.attend()
                self._attended.append(opening)

    def _tell(self) -> None:
        """Let those who watch look again: this call may have changed the readiness."""
        if self.watchers:
            self.watchers.tell()

    def _wake(self) -> None:
        """Let those look again who wait in a call of this socket, and those who watch it."""
        self._tell()
        for opening in self.openings:
            with opening.adapter.lock:
                opening.tell()

    # -- the end

    def close(self) -> None:
        """Close; idempotent. What was accepted leaves in the background, for 30 s at most.

        With SO_LINGER the call waits that long for it; with 0 seconds of it nothing leaves and
        the peer sees the connection break. A file of `makefile` keeps the socket until it closes.
        """
        self._closed = True
        if self._io_refs <= 0:
            self._close()

    def _decref_socketios(self) -> None:
        if self._io_refs > 0:
            self._io_refs -= 1
        if self._closed:
            self.close()

    def _close(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        _open.discard(self)
        try:
            self._let_go()
        finally:  # a signal handler may end a linger with an exception
            self._wake()
            self._let_go_of_descriptor()

    def _let_go_of_descriptor(self) -> None:
        with self._lock:
            for opening in self._attended:
                with opening.adapter.lock:
                    opening.adapter.unattend()
            self._attended.clear()
            if self._descriptor is not None:
                self.watchers.remove(self._descriptor.sync)
                self._descriptor.close()

    def _abandon_in_child(self) -> None:
        """Be closed in the child of a fork: links and devices are the parent's."""
        self._closed = self._is_over = True
        self._attended = []
        if self._descriptor is not None:
            self._descriptor.abandon_in_child()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A finaliser may run inside any call of any thread: it waits for no device.
        if getattr(self, "_is_over", True) or sys.is_finalizing():
            return
        warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
        self._is_over = True
        self._let_go_soon()
        if self._descriptor is not None:
            self._descriptor.close()

    def _check_open(self) -> None:
        if self._is_over:
            raise closed()


def _weakly(shown: Callable[[], tuple[bool, bool]]) -> Callable[[], tuple[bool, bool]]:
    """Return a call of a socket's method that does not keep the socket alive."""
    reference = WeakMethod(shown)

    def call() -> tuple[bool, bool]:
        method = reference()
        return (False, False) if method is None else method()

    return call


def _abandon_all() -> None:
    for one in list(_open):
        one._abandon_in_child()
    _open.clear()


os.register_at_fork(after_in_child=_abandon_all)
