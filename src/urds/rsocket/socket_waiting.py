"""How long one call may wait, and the waiting itself.

The clock is read by who waits and by nobody else. A signal handler's exception passes through a
wait; another thread that closes the socket ends it.
"""

import errno
import time
from collections.abc import Callable

from urds.rsocket.refusals import refusal

# Waits until its first argument says so, the seconds are over or never; returns what it said last.
Wait = Callable[[Callable[[], bool], float | None], bool]


class Patience:
    """What one call may wait in all, in seconds: 0 never, None for ever."""

    __slots__ = ("_end_s", "_wait_s")

    def __init__(self, wait_s: float | None) -> None:
        self._wait_s = wait_s
        self._end_s: float | None = None  # known from the first wait on

    @property
    def is_endless(self) -> bool:
        """Return whether a wait ends only when there is what it waits for."""
        return self._wait_s is None

    @property
    def is_none(self) -> bool:
        """Return whether a call may not wait at all."""
        return self._wait_s == 0

    def shorter(self, wait_s: float) -> float:
        """Return `wait_s`, or the whole patience if that is less."""
        return wait_s if self._wait_s is None else min(self._wait_s, wait_s)

    def until(self, wait: Wait, is_ready: Callable[[], bool]) -> None:
        """Wait for `is_ready`, looking at least once. Call it without locks.

        Raises BlockingIOError if there is no patience at all, TimeoutError at its end.
        """
        wait_s = self._wait_s
        if wait_s:
            now_s = time.monotonic()
            if self._end_s is None:
                self._end_s = now_s + wait_s
            wait_s = max(0.0, self._end_s - now_s)
        if not wait(is_ready, wait_s):
            raise refusal(errno.EAGAIN) if self.is_none else TimeoutError("timed out")
