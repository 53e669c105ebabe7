"""`urds info`: counters and tables as rds-info prints them, of every urds process of this user.

A kernel has one RDS; here each process has its own. So the tables name the process in a last
column, and the counters are sums unless one process is chosen. Columns and titles are those of
rds-info, in its order; `-v` adds ours. Source: rds-tools rds-info(1); linux v6.12 net/rds/info.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from urds.backend import processes
from urds.backend.processes import Report, Silent
from urds.cli.exits import Exit, UsageError
from urds.cli.info_tables import TABLES, Table
from urds.cli.output import Column, Output, complain


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoOptions:
    """What to show; no table named means all of them."""

    tables: frozenset[str] = frozenset()  # letters of `TABLES`
    pid: int | None = None
    verbose: bool = False
    json_wanted: bool = False


def run(options: InfoOptions) -> Exit:
    """Ask the processes and print; `Exit.FAILED` if none of them answered.

    Raises UsageError for a process number that cannot be.
    """
    if options.pid is not None and options.pid < 1:
        raise UsageError(f"--pid {options.pid}: must be 1 or more")
    reports, silent = _ask(options.pid)
    output = Output(json_wanted=options.json_wanted)
    chosen = [one for one in TABLES if not options.tables or one.letter in options.tables]
    counters_chosen = not options.tables or "c" in options.tables
    if options.json_wanted:
        output.document(document(reports, chosen, counters_chosen=counters_chosen))
        return Exit.OK if reports else Exit.FAILED
    if not reports and not silent:
        whom = f"process {options.pid}" if options.pid else "any process of this user"
        complain("info", f"no urds socket is bound in {whom}")
    if not reports:
        return Exit.FAILED
    if counters_chosen:
        columns = [Column("CounterName", 34), Column("Value", 16)]
        output.table("", columns, _sum_counters(reports).items())
    for table in chosen:
        print_table(output, table, reports, verbose=options.verbose)
    return Exit.OK


def print_table(output: Output, table: Table, reports: Sequence[Report], *, verbose: bool) -> None:
    """Print one table with the rows of all processes."""
    extra = table.verbose_columns if verbose else ()
    rows = []
    for report in reports:
        for record in table.records(report, verbose):
            plain, more = table.cells(report, record)
            rows.append((*plain, *(more if verbose else ()), report.pid))
    output.table(table.title, [*table.columns, *extra, Column("Pid", 7)], rows)


def document(
    reports: Sequence[Report], tables: Sequence[Table], *, counters_chosen: bool
) -> dict[str, object]:
    """Return everything chosen, for JSON: rows as records under our names for the fields."""
    found: dict[str, object] = {}
    if counters_chosen:
        found["counters"] = _sum_counters(reports)
    for table in tables:
        found[table.key] = [
            {**_fields(record), "pid": report.pid}
            for report in reports
            for record in table.records(report, True)
        ]
    return found


def _ask(pid: int | None) -> tuple[list[Report], list[Silent]]:
    """Ask the processes; return what they said and who said nothing, which is told at once."""
    answers = list(processes.ask_all([pid] if pid else processes.find()))
    silent = [answer for answer in answers if isinstance(answer, Silent)]
    for answer in silent:
        complain("info", f"process {answer.pid}: {answer.reason}")
    return [answer for answer in answers if not isinstance(answer, Silent)], silent


def _sum_counters(reports: Sequence[Report]) -> dict[str, int]:
    """Add the processes' counters up, in the order of who has most: others may lack RDMA's."""
    sums: dict[str, int] = {}
    for report in sorted(reports, key=lambda one: len(one.counters), reverse=True):
        for name, value in report.counters.items():
            sums[name] = sums.get(name, 0) + value
    return sums


def _fields(record: Any) -> dict[str, Any]:
    if is_dataclass(record) and not isinstance(record, type):
        return asdict(record)
    return record._asdict() if hasattr(record, "_asdict") else dict(record)
