"""Who a process is, and the moment when a process of the same host ends.

RDS says nothing when a peer is gone. The kernel does: a descriptor of a process (pidfd) becomes
readable when it ends, however it ends, and not while it is stopped or computes. It works between
processes that see each other's process ids: `Hello.host` says whether two do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Final

from urds.dask.wire import Hello

_START_TIME_FIELD: Final = 22  # of /proc/PID/stat. Source: proc_pid_stat(5)
_STAT_BYTES_MAX: Final = 4096  # of that file; it has some 300
_AFTER_NAME: Final = 3  # the first field after the name, which may hold blanks and parentheses
UNKNOWN_HOST: Final = bytes(16)


def own_hello(window_bytes: int) -> Hello:
    """Return what this process says of itself; all zero where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        started = _start_time(os.getpid())
    except (OSError, ValueError, IndexError):
        return Hello(window_bytes, UNKNOWN_HOST, 0, 0)
    host = blake2b(boot + str(namespace).encode(), digest_size=16).digest()
    return Hello(window_bytes, host, os.getpid(), started)


def can_watch(own: Hello, peer: Hello) -> bool:
    """Tell whether two processes see each other's process ids."""
    return own.host == peer.host != UNKNOWN_HOST


def _start_time(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:  # noqa: PTH123 - read at each comm
        text = stat.read(_STAT_BYTES_MAX)
    return int(text.rpartition(b")")[2].split()[_START_TIME_FIELD - _AFTER_NAME])


class Watches:
    """The processes that one event loop watches; one descriptor for each, whatever asks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callbacks: dict[int, set[Callable[[], None]]] = {}
        self._descriptors: dict[int, int] = {}

    def add(self, peer: Hello, callback: Callable[[], None]) -> bool:
        """Call back once when a process ends, soon if it has ended; False if it cannot be watched.

        It cannot where the kernel has no pidfd, or without a descriptor left.
        """
        if peer.pid not in self._descriptors:
            try:
                descriptor = os.pidfd_open(peer.pid)
            except ProcessLookupError:
                self._loop.call_soon(callback)
                return True
            except OSError:
                return False
            self._descriptors[peer.pid] = descriptor
            self._loop.add_reader(descriptor, self._ended, peer.pid)
        try:
            is_another = _start_time(peer.pid) != peer.started
        except (OSError, ValueError, IndexError):
            is_another = True
        if is_another:  # its number is another process's by now
            self._loop.call_soon(callback)
            self._close_unused(peer.pid)
        else:
            self._callbacks.setdefault(peer.pid, set()).add(callback)
        return True

    def remove(self, peer: Hello, callback: Callable[[], None]) -> None:
        """Take a callback back. Idempotent."""
        self._callbacks.get(peer.pid, set()).discard(callback)
        self._close_unused(peer.pid)

    def close(self) -> None:
        """Watch no process any more."""
        self._callbacks.clear()
        for pid in tuple(self._descriptors):
            self._close_unused(pid)

    def _ended(self, pid: int) -> None:
        callbacks = self._callbacks.pop(pid, set())
        self._close_unused(pid)
        for callback in callbacks:
            callback()

    def _close_unused(self, pid: int) -> None:
        if self._callbacks.get(pid):
            return
        self._callbacks.pop(pid, None)
        descriptor = self._descriptors.pop(pid, None)
        if descriptor is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(descriptor)
            os.close(descriptor)
