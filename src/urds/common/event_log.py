"""Events as lines: logfmt for people, JSON for machines; one line each, to standard error.

For a program of its own, such as a node: libraries log through `logs`. An event has an id, a level
and fields; docs/events.md lists them. A line goes out in a thread that exists while there are some,
so a reader that is slow never holds up the program; what does not fit its queue is counted.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from urds.common.deferred import DeferredCalls
from urds.common.logs import LogLimit

FORMATS: Final = ("logfmt", "json")
_PER_MINUTE: Final = 10  # of one event about one thing
_MINUTE_NS: Final = 60_000_000_000
_LIMITS_MAX: Final = 4096
_QUEUED_MAX: Final = 1024
_PLAIN: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,:/+@%[]"
)


class Level(Enum):
    """The level of an event, and its number in journald's lines (sd-daemon(3))."""

    DEBUG = 7
    INFO = 6
    WARNING = 4
    ERROR = 3

    @property
    def word(self) -> str:
        """Return it as a word."""
        return self.name.lower()


class EventLog:
    """Lines of events. Any thread may call, with any lock held."""

    def __init__(
        self,
        form: str = FORMATS[0],
        *,
        write: Callable[[str], None] | None = None,
        level: Level = Level.INFO,
        deferred: bool = True,
        journal: bool = False,
    ) -> None:
        """Begin; with `journal` each line begins with its level, as journald reads it."""
        self._form, self._level, self._journal = form, level, journal
        self._write = write or _write_line
        self._calls = DeferredCalls("urds-log", calls_max=_QUEUED_MAX) if deferred else None
        self._limits: dict[tuple[str, str], LogLimit] = {}
        self._lost = 0

    def put(self, event: str, level: Level, fields: Mapping[str, object], about: str = "") -> bool:
        """Write a line, unless ten of this event about the same thing came within a minute.

        The next line tells how many were left out. Return whether it is written.
        """
        if level.value > self._level.value:
            return False
        limit = self._limits.pop((event, about), None) or LogLimit(_PER_MINUTE, _MINUTE_NS)
        self._limits[event, about] = limit
        if len(self._limits) > _LIMITS_MAX:
            del self._limits[next(iter(self._limits))]
        if not limit.admits(time.monotonic_ns()):
            return False
        left_out, limit.left_out = limit.left_out, 0
        more = {"left_out": left_out} if left_out else {}
        if self._lost:
            more["lost_lines"], self._lost = self._lost, 0
        line = self.line(event, level, {**fields, **more})
        if self._calls is None:
            self._write(line)
        elif not self._calls.put(lambda: self._write(line)):
            self._lost += 1
            return False
        return True

    def line(self, event: str, level: Level, fields: Mapping[str, object]) -> str:
        """Return the line of an event, without its end."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{now % 1:.3f}"[2:] + "Z"
        record = {"time": stamp, "level": level.word, "event": event, **fields}
        if self._form == "json":
            text = json.dumps(record, default=str)
        else:
            text = " ".join(f"{key}={_logfmt(value)}" for key, value in record.items())
        return f"<{level.value}>{text}" if self._journal else text

    def flush(self) -> None:
        """Wait until every line is written, for at most a second."""
        if self._calls is not None:
            self._calls.flush()

    def take_logging(self, *, quiet: str) -> None:
        """Write what `urds` logs as events `log`, with logger and text.

        Of the logger `quiet` nothing below an error comes.
        """
        root = logging.getLogger("urds")
        root.handlers = [_Handler(self)]
        root.setLevel(logging.INFO)
        root.propagate = False
        logging.getLogger(quiet).setLevel(logging.ERROR)


class _Handler(logging.Handler):
    """Lines of loggers as events."""

    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one; what cannot be formatted is told by `logging` itself."""
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # its arguments do not fit it
            self.handleError(record)
            return
        fields: dict[str, object] = {"logger": record.name, "text": text}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        self._log.put("log", _level_of(record.levelno), fields, about=str(record.msg))


def under_journal() -> bool:
    """Tell whether standard error is journald's. Source: systemd.exec(5), JOURNAL_STREAM."""
    named = os.environ.get("JOURNAL_STREAM", "")
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return named == f"{found.st_dev}:{found.st_ino}"


def _level_of(number: int) -> Level:
    for level, least in ((Level.ERROR, 40), (Level.WARNING, 30), (Level.INFO, 20)):
        if number >= least:
            return level
    return Level.DEBUG


def _logfmt(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return text if text and _PLAIN.issuperset(text) else json.dumps(text)


def _write_line(line: str) -> None:
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:  # its reader is gone
        pass
