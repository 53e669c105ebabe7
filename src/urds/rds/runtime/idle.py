"""How long a driver has had no socket: after `idle_s` its thread ends."""

from __future__ import annotations

from time import monotonic_ns as now_ns
from typing import Final

_PAUSE_NS: Final = 100_000_000  # at least, until the thread is asked to end again


class IdleTime:
    """When there was a socket last, and when to check again. Control lock held."""

    def __init__(self, idle_ns: int, *, is_endless: bool) -> None:
        """Begin without a socket; an endless one never has anything to check."""
        self.since_ns = now_ns()
        self._idle_ns = idle_ns
        self._is_endless = is_endless
        # None while there was a socket at the last check.
        self._check_at_ns = None if is_endless else self.since_ns + idle_ns

    def begin(self) -> bool:
        """Note that the last socket is going; return whether a check is planned by that."""
        self.since_ns = now_ns()
        if self._is_endless or self._check_at_ns is not None:
            return False
        self._check_at_ns = self.since_ns + self._idle_ns
        return True

    def is_over(self, at_ns: int, *, is_used: bool) -> bool:
        """Tell whether there was no socket for the whole time; plan the next check."""
        if self._check_at_ns is None or at_ns < self._check_at_ns:
            return False
        due_ns = self.since_ns + self._idle_ns
        if is_used:
            self._check_at_ns = None
        elif due_ns > at_ns:
            self._check_at_ns = due_ns
        else:
            self._check_at_ns = at_ns + max(self._idle_ns, _PAUSE_NS)  # should it not end now
            return True
        return False

    def next_ns(self) -> int | None:
        """Return when `is_over` has something to tell, None for never."""
        return self._check_at_ns
