"""The descriptor of a socket that is not bound yet: writable, never readable, as on Linux.

A bound socket's descriptor is its mailbox's. When a socket is bound after its number was asked for,
the mailbox's descriptor is put under that number, so that select and poll go on with it. A
registration with epoll is lost then, because epoll keeps the open file and not the number: register
after bind (docs/differences.md).
"""

from __future__ import annotations

import os
import socket


class Placeholder:
    """One end of an AF_UNIX pair under a number that stays."""

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
