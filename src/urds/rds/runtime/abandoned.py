"""Mailboxes to be closed soon: their sockets were forgotten, or closed inside another call.

A finaliser or a signal handler may run in any thread, inside any call. So it only leaves the
mailbox here and rings the doorbell of the control thread, which closes it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from urds.rds.plane.contract import Interest, Mailbox
from urds.rds.runtime.watches import Watches


class Abandoned:
    """The mailboxes of a driver that are to be closed."""

    def __init__(
        self,
        watches: Watches,
        unbind: Callable[[Mailbox], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        """Begin, and watch the doorbell. Raises OSError: EMFILE, ENOSPC."""
        self._watches = watches
        self._unbind = unbind
        self._is_stopping = is_stopping
        # Any thread may append inside any call, so an append takes no lock.
        self._mailboxes: deque[tuple[Mailbox, int | None]] = deque()
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            watches.serve_now(self._doorbell, self._answer, Interest.READ)
        except BaseException:
            os.close(self._doorbell)
            raise

    def add(self, mailbox: Mailbox, linger_ns: int | None = None) -> None:
        """Have a mailbox closed soon, or by the next bind; takes no lock."""
        self._mailboxes.append((mailbox, linger_ns))
        if not self._is_stopping():  # else the plane closes it with everything
            os.eventfd_write(self._doorbell, 1)

    def close_all(self) -> None:
        """Close what was abandoned and free its ports. Control lock held."""
        while self._mailboxes:
            mailbox, linger_ns = self._mailboxes[0]  # stays there should an interrupt end this
            mailbox.close(None if linger_ns else linger_ns)  # no caller waits here
            self._unbind(mailbox)
            self._mailboxes.popleft()

    def release(self) -> None:
        """Close the doorbell."""
        os.close(self._doorbell)

    def _answer(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._doorbell)
        self.close_all()
        self._watches.serve(self._doorbell, self._answer, Interest.READ)
