"""Write the figures of reports into docs/benchmarks.md, and draw the plots beside it.

    page.py .reports/bench.json .reports/interop-bench.json

What stands between the two marks of the page is replaced; all else is left as it is. The same
reports give the same page.
"""

import argparse
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from results import MESSAGES_PER_S, OCTETS, Line, Report, ReportError, Table, Verdict

_ROOT = Path(__file__).resolve().parent.parent
_BEGIN, _END = "<!-- figures: begin -->", "<!-- figures: end -->"
_WRONG = 2
_PLOTS = {
    "rates": "Messages per second of each peer, one way",
    "round_trips": "Median round trip of each peer",
    "peers": "Cost of a message by the number of peers",
}


def main() -> int:
    """Render the reports; return 0, or 2 if a file or the page is not as it should be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", nargs="+", type=Path, metavar="FILE", help="JSON of a run")
    parser.add_argument("--page", type=Path, default=_ROOT / "docs" / "benchmarks.md")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="(`plots` beside the page)")
    options = parser.parse_args()
    try:
        reports = [Report.read(path) for path in options.reports]
        text = options.page.read_text(encoding="utf-8")
        before, after = _around(text)
    except (OSError, ReportError, ValueError) as error:
        print(error, file=sys.stderr)
        return _WRONG
    directory = options.plots or options.page.parent / "plots"
    images = _images(reports, directory)
    places = [Path(os.path.relpath(image, options.page.parent)) for image in images]
    body = render(reports, places)
    options.page.write_text(f"{before}{_BEGIN}\n{body}\n{_END}{after}", encoding="utf-8")
    return 0


def _images(reports: list[Report], directory: Path) -> list[Path]:
    """Draw the plots; without the library for it, return those that are there."""
    if find_spec("matplotlib"):
        from plots import draw

        return draw([table for report in reports for table in report.tables], directory)
    print("matplotlib is not installed: the plots stay as they are", file=sys.stderr)
    return [path for name in _PLOTS if (path := directory / f"{name}.svg").exists()]


def _around(text: str) -> tuple[str, str]:
    """Return what stands before and after the marks. Raises ValueError if they are not there."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the page lacks {_BEGIN} or {_END}")
    return before, after


def render(reports: list[Report], images: list[Path]) -> str:
    """Return the section in Markdown, without a line feed at its end."""
    parts = [f"![{_PLOTS[image.stem]}]({image.as_posix()})" for image in images]
    for report in reports:
        parts += [f"### {report.title}", _machine(report.machine), _goals(report.tables)]
        parts += [_table(table) for table in report.tables]
    return "\n\n".join(part for part in parts if part)


def _machine(facts: dict[str, str]) -> str:
    return "\n".join(f"* {name}: {value}" for name, value in facts.items())


def _goals(tables: Iterable[Table]) -> str:
    """Return every goal that this run could reach or miss."""
    rows = ["| work | beside | goal | this run | |", "|---|---|---|---|---|"]
    for table in tables:
        for line in table.lines:
            # Of the other plane's goals nothing is known.
            known = [one for one in line.verdicts if one.reached is not None or not one.plane]
            rows += [_goal(table, line, verdict) for verdict in known]
    return "\n".join(rows) if len(rows) > 2 else ""


def _goal(table: Table, line: Line, verdict: Verdict) -> str:
    if table.unit == OCTETS:
        beside, figure = line.label, _number(line.median, 1, 0)
    else:
        beside, figure = f"{table.subject} : {line.label}", _number(line.ratio, 1, 2)
    bound = f"{verdict.bound:,g} or {'less' if verdict.at_most else 'more'}"
    said = {None: "no figure", True: "reached", False: "**missed**"}[verdict.reached]
    return f"| {table.title} | {beside} | {bound} | {figure} | {said} |"


def _table(table: Table) -> str:
    """Return a table with its heading and remarks."""
    if table.unit == MESSAGES_PER_S:
        names, scale, digits = ["messages/s", "lowest to highest", "MB/s", "CPU us"], 1, 0
    elif table.unit == OCTETS:
        names, scale, digits = ["octets", "lowest to highest"], 1, 0
    else:
        names, scale, digits = ["us", "lowest to highest", "p99 us", "CPU us"], 1000, 1
    compares = any(line.ratio is not None for line in table.lines)
    names = ["", *names, *["ratio"] * compares]
    rows = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for line in table.lines:
        cells = _cells(table, line, scale, digits)
        cells += [_number(line.ratio, 1, 2)] * (compares and line.median is not None)
        cells += [""] * (len(names) - 1 - len(cells))
        rows.append(f"| {' | '.join([line.label, *cells])} |")
    rounds = f"{table.rounds} round{'s' * (table.rounds != 1)}"
    place = [f"**{table.title}** ({rounds}; {table.placement})"]
    notes = [f"{line.label}: {line.note}." for line in table.lines if line.note]
    notes += [f"Figures are {' '.join(table.remarks)}."] if table.remarks else []
    return "\n\n".join([*place, "\n".join(rows), *notes])


def _cells(table: Table, line: Line, scale: int, digits: int) -> list[str]:
    if line.median is None:
        return [line.problem]
    spread = [_number(one, scale, digits) for one in (line.lowest, line.highest)]
    cells = [_number(line.median, scale, digits), " to ".join(spread)]
    if table.unit == MESSAGES_PER_S:
        cells.append(f"{line.median * table.payload_bytes / 1e6:,.1f}")
    elif table.unit != OCTETS:
        cells.append(_number(line.p99_ns, 1000, 1))
    return cells if table.unit == OCTETS else [*cells, _number(line.cpu_ns, 1000, 2)]


def _number(value: float | None, scale: int, digits: int) -> str:
    """Return a figure as a cell shows it: nothing where there is none."""
    return "" if value is None else f"{value / scale:,.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
