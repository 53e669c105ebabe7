"""A descriptor whose readiness is that of a socket, for select, poll, epoll and event loops.

An AF_UNIX stream pair, the user's end with the smallest send buffer. Readable: one byte from the
far end. Not writable: the user's end is filled until it would block; writable again: the far end
takes it out. So all four combinations can be shown, level-triggered. An AF_UNIX descriptor shows
POLLWRBAND together with POLLOUT (docs/differences.md).
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from urds.common.reentry import new_lock

_FILL = bytes(512)


class _Here(threading.local):
    """How many descriptors the calling thread is changing, one inside another."""

    depth = 0


_here = _Here()


def changes_one_here() -> bool:
    """Tell whether the calling thread is inside a change of a descriptor.

    The caller is then a handler or finaliser. It must not wait for a lock whose holder may wait for
    that descriptor.
    """
    return _here.depth > 0


class ReadinessDescriptor:
    """The pair; `sync` makes it show the present `wanted`."""

    def __init__(self, wanted: Callable[[], tuple[bool, bool]]) -> None:
        self._wanted = wanted
        self._user, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._user.setblocking(False)
        self._far.setblocking(False)
        self._user.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        self._shown: tuple[bool, bool] | None = (False, True)  # None: not known
        self._lock, self._is_inside = new_lock()
        self._is_stale = False
        self.sync()

    def fileno(self) -> int:
        """Return the user's end."""
        return self._user.fileno()

    def sync(self) -> None:
        """Show the state as it is now.

        Called after every change and without the owner's lock; the last call reads the last state,
        and the next comparison sees a change in between. A handler that finds its own thread in
        here leaves the change to that call.
        """
        self._is_stale = True
        while self._is_stale and not self._is_inside():
            try:
                self._show()
            except BaseException:  # an interrupt must not leave a poller asleep
                self._show()
                raise

    def _show(self) -> None:
        depth = _here.depth
        try:
            _here.depth = depth + 1
            with self._lock, suppress(OSError):  # closed by another thread in between
                self._is_stale = False
                while (wanted := self._wanted()) != self._shown:
                    self._change(*wanted)
        finally:
            _here.depth = depth

    def _change(self, readable: bool, writable: bool) -> None:
        # Not known until all is done: an interrupt may come in between.
        shown, self._shown = self._shown, None
        if shown is None:
            shown = self._begin_anew()
        if readable != shown[0]:
            if readable:
                self._far.send(b"\0", socket.MSG_NOSIGNAL)
            else:
                self._user.recv(1)
        if writable != shown[1]:
            self._empty() if writable else self._fill()
        self._shown = readable, writable

    def _begin_anew(self) -> tuple[bool, bool]:
        """Take out whatever is in both directions; return what that shows."""
        with suppress(BlockingIOError):
            while self._user.recv(64):
                pass
        self._empty()
        return (False, True)

    def _fill(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self._user.send(_FILL, socket.MSG_NOSIGNAL)

    def _empty(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self._far.recv(65536)

    def abandon_in_child(self) -> None:
        """Close this process's copies after a fork; the holder of the lock is not here."""
        self._lock, self._is_inside = new_lock()
        self.close()

    def give_up(self) -> None:
        """Leave the user's end to a caller that has made it its own; `close` the rest."""
        with self._lock:
            self._user.detach()

    def close(self) -> None:
        """Close both ends; a poller of the user's end sees it as any closed descriptor."""
        depth = _here.depth
        try:
            _here.depth = depth + 1
            with self._lock:
                self._user.close()
                self._far.close()
        finally:
            _here.depth = depth


class EventDescriptor:
    """A descriptor that is readable while an event waits; level-triggered.

    An eventfd, or a pipe elsewhere, made by the first `fileno`. Its owner's lock guards it.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._read_fd = self._write_fd = -1

    def fileno(self) -> int:
        """Return the descriptor, the same each time. Raises OSError: EMFILE."""
        if self._read_fd < 0:
            self._open()
        return self._read_fd

    def set(self, is_set: bool) -> None:
        """Make it readable or not."""
        if is_set is self._is_set:
            return
        self._is_set = is_set
        if self._read_fd >= 0:
            self._show()

    def close(self) -> None:
        """Close the descriptor, if there is one."""
        for fd in {self._read_fd, self._write_fd} - {-1}:
            os.close(fd)
        self._read_fd = self._write_fd = -1

    def _open(self) -> None:
        if hasattr(os, "eventfd"):  # Linux
            self._read_fd = self._write_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self._read_fd, self._write_fd = os.pipe()
            os.set_blocking(self._read_fd, False)
        if self._is_set:
            self._show()

    def _show(self) -> None:
        if self._is_set:
            os.write(self._write_fd, (1).to_bytes(8, "little"))
        else:
            with suppress(BlockingIOError):
                os.read(self._read_fd, 8)


class Placeholder:
    """The descriptor of a socket that is not bound yet: writable, never readable, as on Linux.

    One end of an AF_UNIX pair under a number that stays. A bound socket's descriptor is its
    mailbox's. When a socket is bound after its number was asked for, the mailbox's descriptor is
    put under that number, so that select and poll go on with it. A registration with epoll is lost
    then, because epoll keeps the open file and not the number: register after bind
    (docs/differences.md).
    """

    def __init__(self) -> None:
        self._user, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._far: socket.socket | None = far

    def fileno(self) -> int:
        """Return the number; -1 once closed."""
        return self._user.fileno()

    def become(self, descriptor: int) -> None:
        """Show another descriptor's readiness from now on, under the same number."""
        os.dup2(descriptor, self._user.fileno(), inheritable=False)
        if self._far is not None:
            self._far.close()
            self._far = None

    def close(self) -> None:
        """Release both ends; idempotent."""
        self._user.close()
        if self._far is not None:
            self._far.close()
