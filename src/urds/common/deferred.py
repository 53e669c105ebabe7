"""Calls of the program's own code that wait until no lock of urds is held.

A logging handler or a callback is code of the program. It may block (a full pipe, a slow disk),
wait for a lock whose holder waits for one of urds, or bind and send on sockets of this package.
Where a call is due, a lock is held more often than not. So it is queued, and a thread of the queue
makes it. The thread starts with a call that finds none and ends when the queue is empty.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

_FLUSH_S: Final = 1.0


class DeferredCalls:
    """A bounded queue of calls, made in order. Any thread may use it, with any lock held."""

    def __init__(self, thread_name: str, *, calls_max: int) -> None:
        self._thread_name = thread_name
        self._calls_max = calls_max
        self._calls: deque[Callable[[], object]] = deque()
        self._idle = threading.Condition()
        self._caller: int | None = None  # the thread that makes the calls; 0 while it starts

    @property
    def lock(self) -> AbstractContextManager[bool]:
        """The queue's own lock: what decides on a call may hold it over `put` as well."""
        return self._idle

    def put(self, call: Callable[[], object]) -> bool:
        """Queue a call; false, and nothing is queued, if there are too many."""
        with self._idle:
            if len(self._calls) >= self._calls_max:
                return False
            self._calls.append(call)
            if self._caller is None:
                self._caller = 0
                self._start()
            return True

    def flush(self) -> None:
        """Wait until every call is made, for at most a second; hold no lock.

        Where no thread could be started, as at the interpreter's exit, the calls are made here.
        """
        with self._idle:
            if self._caller == threading.get_ident():
                return  # one of the calls makes this one
            if not self._idle.wait_for(lambda: self._caller is None, _FLUSH_S):
                return
            self._caller = threading.get_ident()
        self._make_all()

    def abandon_in_child(self) -> None:
        """Leave the calls to the parent; called in the child of a fork."""
        self._idle = threading.Condition()
        self._calls.clear()
        self._caller = None

    def _start(self) -> None:
        try:
            threading.Thread(target=self._make_all, name=self._thread_name, daemon=True).start()
        except RuntimeError:  # no thread can start: the next call, or `flush`, tries again
            self._caller = None

    def _make_all(self) -> None:
        """Call until nothing is queued. What a call raises ends the thread, not the queue."""
        try:
            while (call := self._take()) is not None:
                call()
        except BaseException:
            with self._idle:
                self._caller = None
                self._idle.notify_all()
            raise

    def _take(self) -> Callable[[], object] | None:
        with self._idle:
            if self._calls:
                self._caller = threading.get_ident()
                return self._calls.popleft()
            self._caller = None
            self._idle.notify_all()
            return None
