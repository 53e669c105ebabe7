"""The log of urds: queued where a line is due, emitted by a thread that holds no lock of urds.

A logging handler is code of the program. It may block (a full pipe, a slow disk), wait for a lock
whose holder waits for one of urds, or bind and send on sockets of this package. Where a line is
due, the control lock is held more often than not; so only this module calls `logging`.

The thread starts with a line that finds none and ends when the queue is empty. Each text has its
own limit, because a peer can cause most of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

_LINES_MAX: Final = 10
_WINDOW_NS: Final = 5_000_000_000  # ten lines in five seconds. Source: linux v6.12 net/core/utils.c
_QUEUED_MAX: Final = 256  # lines that wait for a handler that blocks; further ones are counted only
_FLUSH_S: Final = 1.0
_log = logging.getLogger("urds")


def messages(count: int) -> str:
    """Return a number of messages in words."""
    return f"{count} message" if count == 1 else f"{count} messages"


class LogLimit:
    """Admit a few lines per window; counters go on counting what is not logged."""

    def __init__(self) -> None:
        self._began_ns = -_WINDOW_NS
        self._lines = 0
        self.left_out = 0  # since the last line that was admitted

    def admits(self, now_ns: int) -> bool:
        """Tell whether a line may be logged now."""
        if now_ns - self._began_ns >= _WINDOW_NS:
            self._began_ns, self._lines = now_ns, 0
        self._lines += 1
        if self._lines > _LINES_MAX:
            self.left_out += 1
            return False
        return True

    def note(self) -> str:
        """Return what to add to an admitted line: how many were left out before it."""
        left_out, self.left_out = self.left_out, 0
        return f" ({left_out} more like this not shown)" if left_out else ""


@dataclass(frozen=True, slots=True)
class _Line:
    level: int
    text: str
    arguments: tuple[object, ...]
    problem: BaseException | None


class LogQueue:
    """The log lines of one driver. Any thread may call, with any lock held."""

    def __init__(self) -> None:
        self._lines: deque[_Line] = deque()
        self._limits: dict[str, LogLimit] = {}  # by text: as many as there are calls in the source
        self._idle = threading.Condition()
        self._emitter: int | None = None  # the thread that emits; 0 while it starts

    def put(
        self, level: int, text: str, *arguments: object, problem: BaseException | None = None
    ) -> None:
        """Queue a line for the logger `urds`, unless there were ten of its text in five seconds.

        `problem` is logged with its traceback. A line beyond 256 that wait is counted like one
        beyond the limit: the next of its text counts the missing ones.
        """
        with self._idle:
            limit = self._limits.setdefault(text, LogLimit())
            if not limit.admits(time.monotonic_ns()):
                return
            if len(self._lines) >= _QUEUED_MAX:
                limit.left_out += 1
                return
            self._lines.append(_Line(level, text + limit.note(), arguments, problem))
            if self._emitter is None:
                self._emitter = 0
                self._start()

    def debug(self, text: str, *arguments: object) -> None:
        """Queue a line of level DEBUG."""
        self.put(logging.DEBUG, text, *arguments)

    def info(self, text: str, *arguments: object) -> None:
        """Queue a line of level INFO."""
        self.put(logging.INFO, text, *arguments)

    def warning(self, text: str, *arguments: object) -> None:
        """Queue a line of level WARNING."""
        self.put(logging.WARNING, text, *arguments)

    def error(self, text: str, *arguments: object, problem: BaseException | None) -> None:
        """Queue a line of level ERROR."""
        self.put(logging.ERROR, text, *arguments, problem=problem)

    def critical(self, text: str, *arguments: object, problem: BaseException | None) -> None:
        """Queue a line of level CRITICAL."""
        self.put(logging.CRITICAL, text, *arguments, problem=problem)

    def flush(self) -> None:
        """Wait until every line is emitted, for at most a second; hold no lock.

        Where no thread could be started, as at the interpreter's exit, the lines are emitted here.
        """
        with self._idle:
            if self._emitter == threading.get_ident():
                return  # a handler calls this
            if not self._idle.wait_for(lambda: self._emitter is None, _FLUSH_S):
                return
            self._emitter = threading.get_ident()
        self._emit_all()

    def abandon_in_child(self) -> None:
        """Leave the lines to the parent; called in the child of a fork."""
        self._idle = threading.Condition()
        self._lines.clear()
        self._emitter = None

    def _start(self) -> None:
        try:
            threading.Thread(target=self._emit_all, name="urds-log", daemon=True).start()
        except RuntimeError:  # no thread can start: the next line, or `flush`, tries again
            self._emitter = None

    def _emit_all(self) -> None:
        """Emit until nothing is queued. What a handler raises ends the thread, not the lines."""
        try:
            while (line := self._take()) is not None:
                _log.log(line.level, line.text, *line.arguments, exc_info=line.problem)
        except BaseException:
            with self._idle:
                self._emitter = None
                self._idle.notify_all()
            raise

    def _take(self) -> _Line | None:
        with self._idle:
            if self._lines:
                self._emitter = threading.get_ident()
                return self._lines.popleft()
            self._emitter = None
            self._idle.notify_all()
            return None
