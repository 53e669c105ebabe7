"""What rstream, riostream and udpong share: their options, their table, and a server of their own.

Source: docs/reference/rsocket.md 15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final, TypeVar

from urds.cli.output import TITLE, Exit, Output, UsageError
from urds.cli.parser import check_ranges, json_option, option
from urds.cli.processes import own_server
from urds.cli.rsocket.sockets import (
    LOOPBACK,
    bind_option,
    choose_devices,
    device_names,
    device_option,
    port_option,
)

_Options = TypeVar("_Options", bound="MeasureOptions")


def tests_option(text: str) -> Any:
    """Return the field of `-T`, whose letters `text` explains."""
    return option("-T", metavar="TEST", default=(), help=f"{text} May be repeated.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """Options that rstream, riostream and udpong share, by the letters of those programs."""

    TESTS: ClassVar[dict[str, str]]  # letter of a -T, and the word that stands for it
    SIZE_LIMITS: ClassVar[tuple[int, int]]
    PORT: ClassVar[int]  # of a server that others find, without -p

    host: str | None = option(
        "-s", metavar="HOST", help="Be the client of the server at this host."
    )
    is_server: bool = option(
        "--serve", default=False, help="Be the server, until its client (udpong: Ctrl-C) ends."
    )
    bind: str | None = bind_option()
    buffer_bytes: int | None = option(
        "-B", metavar="BYTES", low=1, high=1 << 30, help="Send and receive buffer."
    )
    transfers: int | None = option(
        "-C", low=1, high=10_000_000, help="Transfers per iteration, or datagrams of each size."
    )
    size: str | None = option("-S", metavar="BYTES", help="Bytes of a transfer, or all.")
    port: int | None = port_option("7471 (udpong: 7174)")
    tests: Sequence[str] = ()
    device: str = device_option()
    json_wanted: bool = json_option()

    def has(self, letter: str) -> bool:
        """Tell whether a `-T` is given, by its letter or its word."""
        return letter in self.tests or self.TESTS.get(letter) in self.tests

    def check(self) -> None:
        """Raise UsageError for wrong options."""
        for name in self.tests:
            if name not in self.TESTS and name not in self.TESTS.values():
                raise UsageError(f"-T {name}: must be one of {', '.join(self.TESTS)}")
        if sum(map(self.has, "abn")) > 1:
            raise UsageError("-T a, b and n exclude each other")
        if self.host is not None and self.is_server:
            raise UsageError("either --serve, or -s with the host of the server")
        low, high = self.SIZE_LIMITS
        size = self.size or "all"
        if size != "all" and not (size.isdecimal() and low <= int(size) <= high):
            raise UsageError(f"-S {size}: must be from {low} to {high}, or all")
        check_ranges(self)
        device_names(self.device)


def run_sides(
    options: _Options,
    serve: Callable[[_Options], None],
    rows: Callable[[_Options, str, int], Iterable[Row]],
    heading: str,
) -> Exit:
    """Serve, or be the client of a server elsewhere or of one of its own, and print the table.

    The server of its own runs the module of the options, which calls `serve_child`.
    """
    options.check()
    choose_devices(device_names(options.device))
    output = Output(json_wanted=options.json_wanted)
    if options.is_server:
        serve(options)
    elif options.host is not None:
        _show(rows(options, options.host, options.port or options.PORT), heading, output)
    else:
        with own_server(type(options).__module__, replace(options, is_server=True)) as port:
            _show(rows(options, LOOPBACK, port), heading, output)
    return Exit.OK


# -- the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row as measured; None where a tool has no such column."""

    name: str
    size_bytes: int
    transfers: int
    iterations: int | None = None
    total_bytes: int
    seconds: float
    gb_per_s: float
    usec_per_transfer: float
    lost: int | None = None


def size_text(count: int) -> str:
    """Return a count of bytes as rstream writes it: 64, 4k, 1m; a half is kept, totals are cut."""
    for unit, shift in (("g", 30), ("m", 20), ("k", 10)):
        if count >= 1 << shift:
            if count % (1 << shift) == 1 << (shift - 1):
                return f"{count >> shift}.5{unit}"
            return f"{count >> shift}{unit}"
    return str(count)


def number(count: int) -> str:
    """Return a count of transfers as rstream writes it: 100k."""
    for unit, thousands in (("g", 10**9), ("m", 10**6), ("k", 1000)):
        if count >= thousands and count % thousands == 0:
            return f"{count // thousands}{unit}"
    return str(count)


# Field of a row: title, alignment and width, and the text of a value.
_COLUMNS: Final[dict[str, tuple[str, str, Callable[[Any], str]]]] = {
    "name": ("name", "<10", str),
    "size_bytes": ("bytes", "<8", size_text),
    "transfers": ("xfers", "<8", number),
    "iterations": ("iters", "<8", number),
    "total_bytes": ("total", "<8", size_text),
    "seconds": ("time", ">9", "{:.2f}s".format),
    "gb_per_s": ("Gb/sec", ">10", "{:.2f}".format),
    "usec_per_transfer": ("usec/xfer", ">12", "{:.2f}".format),
    "lost": ("lost", ">8", str),
}


def heading(*, without: str) -> str:
    """Return the titles of a table that lacks one of the columns."""
    return "".join(
        format(title, width) for name, (title, width, _) in _COLUMNS.items() if name != without
    )


def line(row: Row) -> str:
    """Return a row under its heading."""
    cells = ((getattr(row, name), width, text) for name, (_, width, text) in _COLUMNS.items())
    return "".join(format(text(value), width) for value, width, text in cells if value is not None)


def _show(rows: Iterable[Row], heading: str, output: Output) -> None:
    """Print each row when it has been measured; as JSON all of them at the end."""
    shown: list[dict[str, Any]] = []
    for row in rows:
        if not shown:  # not above the error of a server that is not there
            output.line(heading, TITLE)
        shown.append({name: value for name, value in asdict(row).items() if value is not None})
        output.line(line(row))
    output.document(shown)
