"""The plug-in that keeps what a run with one kernel showed: docs/interop.md is made from it.

`--interop-report FILE` names the file. `tools/interop_page.py` reads it.
"""

import json
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

COUNTS = "interop"  # the property of a test that holds what it counted
ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Case:
    """One test with one set of parameters."""

    test: str  # `test_faults.py::test_it`
    case: str  # the parameters' names, joined by hyphens
    outcome: str = "failed"  # until it has passed: a run may be interrupted
    counts: dict[str, object] = field(default_factory=dict)


class Report:
    """Collects the cases of a session and writes them at its end, if a guest was booted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began_s = time.monotonic()
        self._cases: dict[str, Case] = {}
        self.series = ""
        self.release = ""  # as `uname -rv` in the guest says

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note one phase of one test: the call says that it passed, each phase that it did not."""
        function, _, case = report.nodeid.rpartition("/")[2].partition("[")
        noted = self._cases.setdefault(report.nodeid, Case(function, case.removesuffix("]")))
        if report.when == "call" or report.outcome != "passed":
            noted.outcome = report.outcome
        for name, value in report.user_properties:
            if name == COUNTS and isinstance(value, dict):
                noted.counts |= value

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        if not self.release:
            return
        whole = {
            "series": self.series,
            "release": self.release,
            "commit": _commit(),
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "seconds": round(time.monotonic() - self._began_s),
            "cases": [asdict(case) for case in self._cases.values()],
        }
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def _commit() -> str:
    """Return the commit that was run; with a plus sign if what was run differs from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "src", "tests/interop")
    return git("rev-parse", "--short=12", "HEAD") + "+" * bool(changed)
