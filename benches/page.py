"""Keep the reports of runs below docs/data, and write the figures of docs/benchmarks.md from them.

    page.py .reports/bench.json .reports/interop-bench.json

Each report given is kept under its date, kind and data plane; the page shows the newest of each
kind and plane. The text between the two marks of the page is replaced; all else stays as it is. The
same reports give the same page. Without a report the page is written anew.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from results import BYTES, COUNT, MESSAGES_PER_S, Line, Report, ReportError, Table, Verdict

_ROOT = Path(__file__).resolve().parent.parent
_BEGIN, _END = "<!-- figures: begin -->", "<!-- figures: end -->"
_WRONG = 2
_PLANES = ("native", "python")
_PLOTS = {
    "rates": "Messages per second of each peer, one way",
    "round_trips": "Median round trip of each peer",
    "peers": "Cost of a message by the number of peers",
}
_FILE = re.compile(r"\d{4}-\d\d-\d\d-(?P<kind>[\w-]+)-(?P<plane>native|python)\.json")


def main() -> int:
    """Keep the reports, write the page; return 0, or 2 if a file or the page is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", nargs="*", type=Path, metavar="FILE", help="JSON of a run")
    parser.add_argument("--page", type=Path, default=_ROOT / "docs" / "benchmarks.md")
    parser.add_argument("--data", type=Path, metavar="DIR", help="(`data/benchmarks` beside it)")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="(`plots` beside the page)")
    options = parser.parse_args()
    data = options.data or options.page.parent / "data" / "benchmarks"
    directory = options.plots or options.page.parent / "plots"
    try:
        given = [Report.read(path) for path in options.reports]
        before, after = _around(options.page.read_text(encoding="utf-8"))
        for report in given:
            _keep(report, data)
        kinds = newest(data)
    except (OSError, ReportError, ValueError) as error:
        print(error, file=sys.stderr)
        return _WRONG
    images = _images(given, directory)
    places = [Path(os.path.relpath(image, options.page.parent)) for image in images]
    body = render(kinds, places)
    options.page.write_text(f"{before}{_BEGIN}\n{body}\n{_END}{after}", encoding="utf-8")
    return 0


def _keep(report: Report, data: Path) -> None:
    """Write a report to `data`, without its single rounds."""
    kind = "kernel" if "kernel" in report.title else "hosts"
    tables = [
        replace(table, lines=tuple(replace(line, rounds=()) for line in table.lines))
        for table in report.tables
    ]
    name = f"{report.machine['date'][:10]}-{kind}-{_plane(report)}.json"
    replace(report, tables=tuple(tables)).write(data / name)


def _plane(report: Report) -> str:
    return "native" if "native" in report.machine["urds"] else "python"


def newest(data: Path) -> list[list[Report]]:
    """Return the newest report of each plane, by kind."""
    files = {}
    for path in sorted(data.glob("*.json")):
        if match := _FILE.fullmatch(path.name):
            files[match["kind"], match["plane"]] = path
    kinds = sorted({kind for kind, _ in files})
    return [
        [Report.read(files[kind, plane]) for plane in _PLANES if (kind, plane) in files]
        for kind in kinds
    ]


def _images(reports: list[Report], directory: Path) -> list[Path]:
    """Draw the plots of new reports; otherwise return those that are there."""
    if reports and find_spec("matplotlib"):
        from plots import draw

        draw([table for report in reports for table in report.tables], directory)
    elif reports:
        print("matplotlib is not installed: the plots stay as they are", file=sys.stderr)
    return [path for name in _PLOTS if (path := directory / f"{name}.svg").exists()]


def _around(text: str) -> tuple[str, str]:
    """Return the text before and after the marks. Raises ValueError if they are not there."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the page lacks {_BEGIN} or {_END}")
    return before, after


def render(kinds: Iterable[Sequence[Report]], images: Iterable[Path]) -> str:
    """Return the section in Markdown, without a line feed at its end."""
    parts = [f"![{_PLOTS[image.stem]}]({image.as_posix()})" for image in images]
    for reports in kinds:
        parts += [f"### {reports[0].title}", _machines(reports), _medians(reports)]
        parts.append(_goals(reports))
    return "\n\n".join(part for part in parts if part)


def _machines(reports: Sequence[Report]) -> str:
    """Return one line of facts for each run."""
    return "\n".join(
        f"* {_plane(report)} plane: "
        + "; ".join(f"{name} {value}" for name, value in report.machine.items() if name != "urds")
        for report in reports
    )


def _medians(reports: Sequence[Report]) -> str:
    """Return a row for each work: the medians of each plane, and of the peers beside it."""
    planes = [_plane(report) for report in reports]
    names = ["work", *(f"{plane}, urds" for plane in planes)]
    names += [f"{plane}, beside it (ratio)" for plane in planes]
    rows = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    titles = dict.fromkeys(table.title for report in reports for table in report.tables)
    for title in titles:
        tables = [
            next((table for table in report.tables if table.title == title), None)
            for report in reports
        ]
        cells = [_ours(table) for table in tables] + [_others(table) for table in tables]
        rows.append(f"| {' | '.join([title, *cells])} |")
    return "\n".join(rows)


def _ours(table: Table | None) -> str:
    if table is None:
        return ""
    lines = [line for line in table.lines if line.label == table.subject]
    if lines:
        return _figure(table, lines[0])
    return "; ".join(f"{line.label} {_figure(table, line)}" for line in table.lines)


def _others(table: Table | None) -> str:
    if table is None or not table.subject:
        return ""
    texts = []
    for line in table.lines:
        if line.label != table.subject:
            ratio = "" if line.ratio is None else f" ({line.ratio:,.2f})"
            texts.append(f"{line.label} {_figure(table, line)}{ratio}")
    return "; ".join(texts)


def _figure(table: Table, line: Line) -> str:
    """Return the median with its unit, or why there is none."""
    if line.median is None:
        return line.problem
    if table.unit == MESSAGES_PER_S:
        return f"{line.median:,.0f}/s"
    if table.unit in (BYTES, COUNT):
        return f"{line.median:,.0f}"
    return f"{line.median / 1000:,.1f} us"


def _goals(reports: Sequence[Report]) -> str:
    """Return every goal that a run could reach or miss."""
    rows = []
    for report in reports:
        for table in report.tables:
            for line in table.lines:
                # Of the other plane's goals nothing is known.
                known = [one for one in line.verdicts if one.reached is not None or not one.plane]
                rows += [_goal(_plane(report), table, line, verdict) for verdict in known]
    head = ["| plane | work | beside | goal | run | |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *rows]) if rows else ""


def _goal(plane: str, table: Table, line: Line, verdict: Verdict) -> str:
    if not table.subject:
        beside, figure = line.label, _figure(table, line)
    else:
        beside, figure = f"{table.subject} : {line.label}", f"{line.ratio or 0:,.2f}"
    bound = f"{verdict.bound:,.10g} or {'less' if verdict.at_most else 'more'}"
    said = {None: "no figure", True: "reached", False: "**missed**"}[verdict.reached]
    return f"| {plane} | {table.title} | {beside} | {bound} | {figure} | {said} |"


if __name__ == "__main__":
    sys.exit(main())
