"""The results as records: a run writes them to JSON, and tables, page and plots are made of them.

They know neither peers nor methods of measuring, so that a report of another machine, another plane
or another program reads like one of this.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
MESSAGES_PER_S, NS, BYTES, COUNT = "messages/s", "ns", "bytes", "count"  # units of a table


class ReportError(Exception):
    """A file is not a report of this format."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bound, and whether this run kept to it."""

    plane: str | None  # which data plane it is for; None: both
    bound: float  # of a ratio; without a subject of the figure: in bytes, or microseconds
    at_most: bool
    reached: bool | None  # None: another plane ran, or there is no figure

    def __str__(self) -> str:
        """Return it as tables show it."""
        bound = f"{'<=' if self.at_most else '>='} {self.bound:,.10g}"
        if self.reached is not None:
            return f"{bound}: {'reached' if self.reached else 'missed'}"
        return f"{self.plane}: {bound}" if self.plane else bound


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table. Figures are in the unit of the table and None where there is none."""

    name: str
    label: str
    problem: str = ""  # why there are no figures
    note: str = ""
    median: float | None = None
    lowest: float | None = None
    highest: float | None = None
    p99_ns: float | None = None
    cpu_ns: float | None = None  # of all processes, per message
    wake_ups: float | None = None  # the same, where the table counts them
    ratio: float | None = None  # the subject's figure divided by this one
    verdicts: tuple[Verdict, ...] = ()
    rounds: tuple[dict[str, float], ...] = ()

    @property
    def goal(self) -> str:
        """Return all verdicts as one text."""
        return ", ".join(map(str, self.verdicts))


@dataclass(frozen=True, slots=True)
class Table:
    """One work and the results of all peers."""

    kind: str
    title: str
    unit: str
    payload_bytes: int
    rounds: int
    placement: str  # and which side spins
    subject: str  # the label of the row that ratios are of; empty without ratios
    lines: tuple[Line, ...]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All tables of one run, and the machine they were made on."""

    title: str
    machine: dict[str, str]
    tables: tuple[Table, ...]

    def write(self, path: Path) -> None:
        """Write JSON, the directory too if it is not there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Report":
        """Read what `write` wrote. Raises ReportError for anything else, OSError."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields["format"] != FORMAT:
                raise ReportError(f"{path}: format {fields['format']}, not {FORMAT}")
            tables = tuple(map(_table, fields["tables"]))
            return cls(str(fields["title"]), dict(fields["machine"]), tables)
        except (ValueError, TypeError, KeyError) as error:
            raise ReportError(f"{path} is no report of a benchmark: {error!r}") from error


def _table(fields: dict[str, Any]) -> Table:
    lines = tuple(map(_line, fields["lines"]))
    return Table(**{**fields, "lines": lines, "remarks": tuple(fields["remarks"])})


def _line(fields: dict[str, Any]) -> Line:
    verdicts = tuple(Verdict(**verdict) for verdict in fields["verdicts"])
    return Line(**{**fields, "verdicts": verdicts, "rounds": tuple(fields["rounds"])})
