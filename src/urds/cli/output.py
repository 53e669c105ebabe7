"""Output and exit codes of all commands: lines, aligned tables, JSON.

Text is the same with and without rich; rich adds colours, on a terminal only, and respects
NO_COLOR. A pipe gets plain lines, each flushed, so that the next program sees it at once.
"""

from __future__ import annotations

import _thread
import errno
import json
import os
import resource
import signal
import sys
import threading
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Self

from urds.common.errors import PlaneError, SettingError

Cell = str | int

GOOD: Final = "green"
BAD: Final = "bold red"
QUIET: Final = "dim"
TITLE: Final = "bold"
_LINE_EVERY_S: Final = 1.0
_AGAIN_S: Final = 0.01  # a finaliser, and what told of it, has ended by then


class Exit(IntEnum):
    """Exit codes of all commands."""

    OK = 0
    FAILED = 1  # no answer, or not what was asked for
    USAGE = 2  # wrong arguments or settings
    INTERRUPTED = 130  # Ctrl-C: 128 and the number of SIGINT, as of shells


class UsageError(ArgumentTypeError, ValueError):
    """Wrong arguments; the text names the argument, its value and its limits.

    `argparse` tells the reason of this kind of error only, where it parses a value.
    """


def open_standard_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed.

    Python has None for one, which cannot be flushed. Without it the number would go to the next
    socket, and what a library prints with it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - it stays open


def guarded(name: str, run: Callable[[], Exit]) -> Exit:
    """Run a command; print its failure as one line of standard error, without a traceback."""
    try:
        with ctrl_c_kept():
            code = _flushed(run)
    except KeyboardInterrupt:
        return interrupted()
    except BrokenPipeError:  # the reader of the pipe ended
        _drop_output()
        return Exit.FAILED
    except (UsageError, SettingError, PlaneError) as wrong:
        complain(name, str(wrong))
        return Exit.USAGE
    except OSError as failure:
        complain(name, reason_of(failure))
        _drop_output()
        return Exit.FAILED
    return interrupted() if code is Exit.INTERRUPTED else code


def _flushed(run: Callable[[], Exit]) -> Exit:
    """Run a command and flush what it printed, help and version too, which raise SystemExit."""
    try:
        code = run()
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


def _drop_output() -> None:
    """Drop output that cannot be written: Python would complain of it once more at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reason_of(failure: OSError) -> str:
    """Return why a call failed, in one line: with its file, and with the limit of descriptors."""
    text = failure.strerror or str(failure)
    if failure.filename is not None:
        text = f"{os.fsdecode(failure.filename)}: {text}"
    if failure.strerror == os.strerror(errno.EMFILE):  # a quota of a node says more itself
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        text += f", at most {limit}: raise the limit by `ulimit -n`"
    return text


@contextmanager
def ctrl_c_kept() -> Iterator[None]:
    """Have a Ctrl-C that comes while a finaliser runs end what runs here all the same.

    No exception leaves a finaliser: Python prints it and goes on.
    """
    before = sys.unraisablehook
    is_over, here = False, threading.get_ident()

    def hook(failure: sys.UnraisableHookArgs) -> None:
        if failure.exc_type is KeyboardInterrupt:
            # Not from here, where no exception gets further than in the finaliser.
            _thread.start_new_thread(interrupt_again, ())
        else:
            before(failure)

    def interrupt_again() -> None:
        time.sleep(_AGAIN_S)
        if not is_over:
            signal.pthread_kill(here, signal.SIGINT)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        is_over = True
        sys.unraisablehook = before


def interrupted() -> Exit:
    """Return the exit code of a process that ends because of Ctrl-C, and have it be that.

    Python notes that KeyboardInterrupt has left code that it was given as a string, such as the
    methods of a dataclass that it makes, and does not ask who handled it: a process of `-m` then
    ends by the signal, whatever its exit code. The next string clears the note.
    Source: CPython v3.11 Python/pythonrun.c (run_eval_code_obj), Modules/main.c (Py_RunMain).
    """
    exec("")
    return Exit.INTERRUPTED


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    characters_min: int = 0
    left: bool = False  # else to the right, as numbers and the tables of rds-info are


def columns(words: str) -> list[Column]:
    """Return columns from words of title and width; with `<` before the width, to the left.

    As `title:width|title:<width`; a width may be left out.
    """
    found = []
    for word in words.split("|"):
        title, _, width = word.partition(":")
        found.append(Column(title, int(width.lstrip("<") or 0), left=width.startswith("<")))
    return found


class Output:
    """Standard output of one tool: text or JSON; what is for the other one is not printed."""

    def __init__(self, *, json_wanted: bool = False) -> None:
        self.json_wanted = json_wanted
        self._styled = None if json_wanted else _styled_print()

    def line(self, text: str = "", style: str | None = None) -> None:
        """Print one line, coloured on a terminal with rich."""
        if self.json_wanted:
            return
        if style and self._styled:
            self._styled(text, style)
        else:
            print(text, flush=True)

    def table(self, title: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> None:
        """Print an empty line, the title, the columns' titles and the rows, aligned."""
        heading, *lines = align(columns, rows)
        self.line()
        if title:
            self.line(f"{title}:", TITLE)
        self.line(heading, TITLE)
        for line in lines:
            self.line(line)

    def record(self, record: object) -> None:
        """Print one JSON object on a line of its own (JSON Lines), for output without end."""
        self._json(record)

    def document(self, document: object) -> None:
        """Print one JSON document; what JSON does not know, as a text."""
        self._json(document, indent=2)

    def _json(self, value: object, indent: int | None = None) -> None:
        if self.json_wanted:
            print(json.dumps(value, indent=indent, default=str), flush=True)


def align(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """Return the titles and the rows as lines; a column is as wide as its longest cell.

    A cell may come from another process, so control characters of a terminal become `?`.
    """
    cells = [[column.title for column in columns]]
    cells += [[_printable(str(cell)) for cell in row] for row in rows]
    widths = [
        max(column.characters_min, *(len(row[index]) for row in cells))
        for index, column in enumerate(columns)
    ]
    return [
        " ".join(
            cell.ljust(width) if column.left else cell.rjust(width)
            for column, width, cell in zip(columns, widths, row, strict=True)
        ).rstrip()
        for row in cells
    ]


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else "?" for one in text)


def complain(name: str, text: str) -> None:
    """Print one line to standard error, with the name of the program."""
    # One write: threads may complain at once.
    sys.stderr.write(f"{name}: {text}\n")
    sys.stderr.flush()


def is_terminal() -> bool:
    """Tell whether standard output is a person's terminal."""
    return sys.stdout.isatty()


def _styled_print() -> Callable[[str, str], None] | None:
    """Return rich's print where it makes a difference: on a terminal, if it is installed."""
    if not is_terminal():
        return None
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    return lambda text, style: console.print(text, style=style)


class Progress:
    """The progress of a longer work: a bar on a terminal, else a line per second.

    The bar is on standard output like the lines, and disappears at the work's end.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar = None if quiet or not is_terminal() else _rich_progress()
        self._told_s = time.monotonic()
        self._task = self._bar.add_task("", total=1.0) if self._bar else None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: float, text: str) -> None:
        """Show that this much, of 1, is done."""
        if self._bar:
            self._bar.update(self._task, completed=done, description=text)
            return
        now_s = time.monotonic()
        if not self._quiet and now_s - self._told_s >= _LINE_EVERY_S:
            self._told_s = now_s
            print(text, flush=True)


def _rich_progress() -> Any:
    try:
        from rich.progress import BarColumn, Progress, TextColumn
    except ModuleNotFoundError:
        return None
    columns = (BarColumn(), TextColumn("{task.description}", markup=False))
    return Progress(*columns, transient=True)
