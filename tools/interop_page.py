"""Write docs/interop.md: the results of runs with three Linux kernels, side by side.

    make docs

`make interop KERNEL=...` leaves its result in `.reports/`. A whole run found there replaces the
result of its kernel in `docs/data/`, so one run renews one column; the page holds nothing that is
not in `docs/data/`. Short runs are ignored. The text around the tables is in
`tools/interop_page.md`.
"""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = Path(__file__).with_suffix(".md")
PAGE = ROOT / "docs" / "interop.md"
DATA = ROOT / "docs" / "data"
REPORTS = ROOT / ".reports"
SERIES = ("6.1", "6.12", "7")
NOT_RUN = "not run"
DIRECTIONS = {"to_us": "to us", "to_kernel": "to the kernel"}


@dataclass(frozen=True, slots=True)
class Case:
    """One test with one set of parameters, run with one kernel."""

    test: str  # `test_faults.py::test_it`
    case: str
    outcome: str
    counts: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Return the name of the test's file as a title."""
        return _words(self.test.partition(".py::")[0])

    @property
    def claim(self) -> str:
        """Return the name of the test as a sentence."""
        return _words(self.test.partition("::")[2])


@dataclass(frozen=True, slots=True)
class Run:
    """The results of a run with one kernel."""

    series: str
    release: str
    commit: str
    date: str
    seconds: int
    cases: tuple[Case, ...]

    @classmethod
    def parse(cls, text: str) -> "Run":
        """Read a result. Raises ValueError, KeyError or TypeError for an invalid one."""
        fields = json.loads(text)
        cases = tuple(Case(**case) for case in fields.pop("cases"))
        return cls(**fields, cases=cases)

    def of(self, claim: str) -> list[Case]:
        """Return the cases of one scenario."""
        return [case for case in self.cases if case.claim == claim]


Runs = dict[str, Run | None]


def main() -> int:
    """Copy results of whole runs, write the page, print one line per kernel."""
    DATA.mkdir(exist_ok=True)
    for series in SERIES:
        found = REPORTS / f"interop-{series}.json"
        if found.exists():
            Run.parse(found.read_text(encoding="utf-8"))
            (DATA / found.name).write_text(found.read_text(encoding="utf-8"), encoding="utf-8")
    runs = read()
    PAGE.write_text(page(runs), encoding="utf-8")
    for series, run in runs.items():
        print(f"Linux {series}: {NOT_RUN if run is None else _outcomes(run)}")
    return 0


def read() -> Runs:
    """Return the kept result of each kernel, None where there is none."""
    paths = {series: DATA / f"interop-{series}.json" for series in SERIES}
    return {
        series: Run.parse(path.read_text(encoding="utf-8")) if path.exists() else None
        for series, path in paths.items()
    }


def page(runs: Runs) -> str:
    """Return the page of the results `runs`."""
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        kernels=_kernels(runs),
        faults=_fault_table(runs),
        defects=_defects(runs),
        scenarios=_scenarios(runs),
    )


def _kernels(runs: Runs) -> str:
    rows: dict[str, Callable[[Run], str]] = {
        "release": lambda run: f"`{run.release}`",
        "run at": lambda run: run.date,
        "commit": lambda run: f"`{run.commit}`",
        "tests": _outcomes,
        "took": lambda run: f"{run.seconds // 60} min {run.seconds % 60} s",
    }
    lines = _table_head("Linux", runs)
    for title, tell in rows.items():
        cells = (NOT_RUN if run is None else tell(run) for run in runs.values())
        lines.append(_row(title, *cells))
    return "\n".join(lines)


def _fault_table(runs: Runs) -> str:
    lines = _table_head("scenario", runs)
    for claim, case in _first_seen(
        (case.claim, case.case) for run in _there(runs) for case in run.cases if _judged(case)
    ):
        cells = (_judgement(run, claim, case) for run in runs.values())
        lines.append(_row(f"{claim}: {_parameters(case)}", *cells))
    return "\n".join(lines)


def _judged(case: Case) -> bool:
    return all(direction in case.counts for direction in DIRECTIONS)


def _judgement(run: Run | None, claim: str, name: str) -> str:
    """Return the cell of one case with one kernel."""
    for case in run.of(claim) if run else ():
        if case.case == name:
            if not _judged(case):
                return case.outcome
            ways = (_way(case, way) for way in DIRECTIONS)
            failed = "**failed** " * (case.outcome == "failed")
            sent = f"{case.counts['messages']:,} messages"
            resets = f", {case.counts['resets']:,} resets" if "resets" in case.counts else ""
            return f"{failed}{sent}{resets}<br>{', '.join(ways)}"
    return NOT_RUN


def _way(case: Case, way: str) -> str:
    """Return the result of one direction: ours, then the kernel's where there is any."""
    told = "/".join(map(str, case.counts[way]))
    by_kernel = case.counts.get(f"{way}_by_kernel", ())
    more = f" + {'/'.join(map(str, by_kernel))}" * any(by_kernel)
    return f"{DIRECTIONS[way]} {told}{more}"


def _defects(runs: Runs) -> str:
    """Return the list of the kernels' errors in these runs, with what the wire showed."""
    lines = []
    for run in _there(runs):
        for case in run.cases:
            lost, doubled = case.counts.get("between_kernels", (0, 0))
            if lost or doubled:
                lines.append(
                    f"- {run.series}: two kernels lost {lost} and doubled {doubled} of "
                    f"{case.counts['messages']} messages between them at start-up."
                )
            for way, name in DIRECTIONS.items():
                if any(case.counts.get(f"{way}_by_kernel", ())):
                    lines.append(f"- {run.series}, {case.claim}: {_parameters(case.case)}, {name}:")
                    lines += [f"    - {told}" for told in case.counts[f"{way}_evidence"]]
    return "\n".join(lines or ["- Nothing."])


def _scenarios(runs: Runs) -> str:
    lines: list[str] = []
    title = ""
    for file, claim in _first_seen(
        (case.file, case.claim) for run in _there(runs) for case in run.cases
    ):
        if file != title:
            title = file
            lines += ["", f"### {file}", "", *_table_head("scenario", runs)]
        lines.append(_row(claim, *(_passed(run, claim) for run in runs.values())))
    return "\n".join(lines[1:])


def _passed(run: Run | None, claim: str) -> str:
    """Return how many cases of a scenario passed with one kernel."""
    outcomes = [case.outcome for case in run.of(claim)] if run else []
    if not outcomes:
        return NOT_RUN
    passed = outcomes.count("passed")
    return str(passed) if passed == len(outcomes) else f"**{passed} of {len(outcomes)}**"


def _outcomes(run: Run) -> str:
    outcomes = [case.outcome for case in run.cases]
    return ", ".join(
        f"{outcomes.count(kind)} {kind}"
        for kind in ("passed", "failed", "skipped")
        if kind in outcomes
    )


def _table_head(title: str, runs: Runs) -> list[str]:
    return [_row(title, *runs), "|---" * (len(runs) + 1) + "|"]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _there(runs: Runs) -> list[Run]:
    return [run for run in runs.values() if run is not None]


def _first_seen(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each pair once, grouped by their first halves, in the order of appearance."""
    groups: dict[str, dict[str, None]] = {}
    for first, second in pairs:
        groups.setdefault(first, {})[second] = None
    return [(first, second) for first, seconds in groups.items() for second in seconds]


def _words(name: str) -> str:
    """Return the name of a test, file or case as words."""
    words = name.removeprefix("test_").replace("_", " ").replace("-", " ")
    return words[:1].upper() + words[1:] if name.startswith("test_") else words


def _parameters(case: str) -> str:
    """Return the names of a case's parameters; the order of the addresses comes first."""
    order, _, rest = case.partition("-")
    return f"{order}, {_words(rest)}" if rest else order


if __name__ == "__main__":
    sys.exit(main())
