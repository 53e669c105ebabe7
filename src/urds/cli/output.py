"""What all tools print with: lines, aligned tables, JSON.

Text is the same with and without rich; rich adds colours, on a terminal only, and respects
NO_COLOR. A pipe gets plain lines, each flushed, so that the next program sees it at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

Cell = str | int

GOOD: Final = "green"
BAD: Final = "bold red"
QUIET: Final = "dim"
TITLE: Final = "bold"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    characters_min: int = 0
    left: bool = False  # else to the right, as numbers and the tables of rds-info stand


class Output:
    """Standard output of one tool."""

    def __init__(self, *, json_wanted: bool = False) -> None:
        self.json_wanted = json_wanted
        self._styled = None if json_wanted else _styled_print()

    def line(self, text: str = "", style: str | None = None) -> None:
        """Print one line, coloured where that can be."""
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
        """Print one JSON object on a line of its own, for output that goes on and on."""
        print(json.dumps(record, default=str), flush=True)

    def document(self, document: object) -> None:
        """Print one JSON document; what JSON does not know, as a text."""
        print(json.dumps(document, indent=2, default=str), flush=True)


def align(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """Return the titles and the rows as lines; a column is as wide as its longest cell."""
    cells = [[column.title for column in columns]]
    cells += [[str(cell) for cell in row] for row in rows]
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


def complain(tool: str, text: str) -> None:
    """Print one line to standard error, with the name of the tool."""
    print(f"urds {tool}: {text}", file=sys.stderr, flush=True)


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
