"""Timers of all rsockets of a process: what is due at a time without a call.

A socket needs time for two things only: to ask a silent peer whether it lives, and to give up
what a closed socket still wanted to send. One thread, made by the first timer, serves both.
"""

import heapq
import os
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Final

from urds.common.forks import renewed

_NS: Final = 1_000_000_000


class Timer:
    """One call that is due; once cancelled it keeps nothing alive."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Forget the call. It may be running."""
        self.call = None


class TimerThread:
    """Calls that are due; each runs without a lock, in the thread of the timers."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Be as new: at first, and in the child of a fork, where the thread is not."""
        self._changed = renewed(threading.Condition())
        self._due: list[tuple[int, int, Timer]] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None

    def call_at(self, deadline_ns: int, call: Callable[[], None]) -> Timer:
        """Run `call` at a time of the monotonic clock, or shortly after. Safe from any thread."""
        timer = Timer(call)
        with self._changed:
            heapq.heappush(self._due, (deadline_ns, next(self._numbers), timer))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="urds-timers", daemon=True)
                self._thread.start()
            self._changed.notify()
        return timer

    def _run(self) -> None:
        while True:
            with self._changed:
                now_ns = time.monotonic_ns()
                if not self._due or self._due[0][0] > now_ns:
                    left_s = (self._due[0][0] - now_ns) / _NS if self._due else None
                    self._changed.wait(left_s)
                    continue
                call = heapq.heappop(self._due)[2].call
            if call is not None:
                call()
            del call  # else it would live until the next one is due


timers = TimerThread()


os.register_at_fork(after_in_child=timers.begin)
