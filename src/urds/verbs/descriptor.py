"""A descriptor that is readable while something waits: for select, poll, epoll, event loops.

It is made when it is first asked for, so that who never polls pays nothing. Level-triggered;
nobody but its owner reads or writes it.
"""

import os
from contextlib import suppress


class Descriptor:
    """A switch with a file descriptor. Its owner's lock guards it."""

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
