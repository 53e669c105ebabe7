"""The log of urds: queued where a line is due, emitted by a thread that holds no lock of urds.

A logging handler is code of the program, and a line is due with the control lock held more often
than not; so only this module calls `logging` (see `deferred`). Each part of urds has a logger
below `urds`: `urds.control`, `urds.rdma` and so on.

Each text has its own limit, because a peer can cause most of them. Where a peer causes one line
again and again, as by connections that are refused, `warning_once` admits it once a minute.

A line below WARNING that its logger would drop is dropped before it is queued: the thread costs as
much as a fourth of a connection, and the import of `logging` more than all of one. A program that
never imports it sees warnings and nothing below, as `logging` itself has it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Final

from urds.common.deferred import DeferredCalls
from urds.common.records import record

_LINES_MAX: Final = 10
_WINDOW_NS: Final = 5_000_000_000  # ten lines in five seconds. Source: linux v6.12 net/core/utils.c
_EQUAL_WINDOW_NS: Final = 60_000_000_000
_EQUAL_MAX: Final = 1024  # lines whose repeats are counted; beyond it the oldest is forgotten
_QUEUED_MAX: Final = 256  # lines that wait for a handler that blocks; further ones are counted only
# Of the module `logging`, which is imported with the first line.
_DEBUG, _INFO, _WARNING, _ERROR, _CRITICAL = range(10, 60, 10)


def messages(count: int) -> str:
    """Return a number of messages in words."""
    return f"{count} message" if count == 1 else f"{count} messages"


class LogLimit:
    """Admit a few lines per window; counters go on counting what is not logged."""

    def __init__(self, lines_max: int = _LINES_MAX, window_ns: int = _WINDOW_NS) -> None:
        self._lines_max, self._window_ns = lines_max, window_ns
        self._began_ns = -window_ns
        self._lines = 0
        self.left_out = 0  # since the last line that was admitted

    def admits(self, now_ns: int) -> bool:
        """Tell whether a line may be logged now."""
        if now_ns - self._began_ns >= self._window_ns:
            self._began_ns, self._lines = now_ns, 0
        self._lines += 1
        if self._lines > self._lines_max:
            self.left_out += 1
            return False
        return True

    def note(self) -> str:
        """Return what to add to an admitted line: how many were left out before it."""
        left_out, self.left_out = self.left_out, 0
        return f" ({left_out} more like this not shown)" if left_out else ""


@record
class _Line:
    name: str  # of the logger
    level: int
    text: str
    arguments: tuple[object, ...]
    problem: BaseException | None

    def emit(self) -> None:
        try:
            from logging import getLogger
        except (OSError, ImportError):  # no descriptor to load it: as it does without a handler
            if sys.stderr is not None:
                text = self.text % self.arguments if self.arguments else self.text
                reason = "" if self.problem is None else f": {self.problem!r}"
                sys.stderr.write(f"{text}{reason}\n")
            return
        getLogger(self.name).log(self.level, self.text, *self.arguments, exc_info=self.problem)


class _Lines:
    """The queue that the logs of all parts share, and its limits."""

    def __init__(self) -> None:
        self.calls = DeferredCalls("urds-log", calls_max=_QUEUED_MAX)
        self._limits: dict[str, LogLimit] = {}  # by text: as many as there are calls in the source
        self._equal_limits: dict[tuple[object, ...], LogLimit] = {}

    def limits_of(self, text: str, arguments: tuple[object, ...] | None) -> list[LogLimit]:
        """Return the limits of a line; with arguments also the one of equal lines."""
        limits = [self._limits.setdefault(text, LogLimit(_LINES_MAX, _WINDOW_NS))]
        if arguments is not None:
            key = (text, *arguments)
            limit = self._equal_limits.pop(key, None) or LogLimit(1, _EQUAL_WINDOW_NS)
            self._equal_limits[key] = limit
            if len(self._equal_limits) > _EQUAL_MAX:
                del self._equal_limits[next(iter(self._equal_limits))]
            limits.insert(0, limit)
        return limits


def _is_shown(name: str, level: int) -> bool:
    """Tell whether a logger would admit a line, as `Logger.getEffectiveLevel` does.

    Not by `getLogger`: it takes the lock of `logging`, whose holder may wait for one of urds.
    """
    root = getattr(sys.modules.get("logging"), "root", None)
    if root is None or root.manager.disable >= level:
        return False
    loggers: Mapping[str, object] = root.manager.loggerDict
    while name:
        own: int = getattr(loggers.get(name), "level", 0)  # a place holder has none
        if own:
            return own <= level
        name = name.rpartition(".")[0]
    admitted: int = root.level
    return admitted <= level


class LogQueue:
    """The log lines of one driver, or of a part of it. Any thread may call, with any lock held."""

    def __init__(self, name: str = "urds", lines: _Lines | None = None) -> None:
        self._name = name
        self._lines = lines or _Lines()

    def part(self, name: str) -> LogQueue:
        """Return the log of a part: its lines are those of the logger `urds.NAME`."""
        return LogQueue(f"{self._name}.{name}", self._lines)

    def put(
        self,
        level: int,
        text: str,
        *arguments: object,
        problem: BaseException | None = None,
        equal_once: bool = False,
    ) -> bool:
        """Queue a line, unless there were ten of its text in five seconds; return whether it is.

        A line below WARNING also unless the program has imported `logging` and its logger's level
        admits it: it would not be shown.
        With `equal_once` also unless the same one, arguments included, came within a minute.
        `problem` is logged with its traceback. A line beyond 256 that wait is counted like one
        beyond the limit: the next of its text counts the missing ones.
        """
        if level < _WARNING and not _is_shown(self._name, level):
            return False
        lines = self._lines
        with lines.calls.lock:
            limits = lines.limits_of(text, arguments if equal_once else None)
            now_ns = time.monotonic_ns()
            if not all(limit.admits(now_ns) for limit in limits):
                return False
            limit = limits[0]
            left_out = limit.left_out
            line = _Line(self._name, level, text + limit.note(), arguments, problem)
            if not lines.calls.put(line.emit):
                limit.left_out = left_out + 1
                return False
            return True

    def debug(self, text: str, *arguments: object) -> None:
        """Queue a line of level DEBUG."""
        self.put(_DEBUG, text, *arguments)

    def info(self, text: str, *arguments: object) -> None:
        """Queue a line of level INFO."""
        self.put(_INFO, text, *arguments)

    def warning(self, text: str, *arguments: object) -> None:
        """Queue a line of level WARNING."""
        self.put(_WARNING, text, *arguments)

    def warning_once(self, text: str, *arguments: object) -> bool:
        """Queue a line of level WARNING, unless the same one came within a minute; tell whether."""
        return self.put(_WARNING, text, *arguments, equal_once=True)

    def error(self, text: str, *arguments: object, problem: BaseException | None) -> None:
        """Queue a line of level ERROR."""
        self.put(_ERROR, text, *arguments, problem=problem)

    def critical(self, text: str, *arguments: object, problem: BaseException | None) -> None:
        """Queue a line of level CRITICAL."""
        self.put(_CRITICAL, text, *arguments, problem=problem)

    def flush(self) -> None:
        """Wait until every line is emitted, for at most a second; hold no lock."""
        self._lines.calls.flush()

    def abandon_in_child(self) -> None:
        """Leave the lines to the parent; called in the child of a fork."""
        self._lines.calls.abandon_in_child()
