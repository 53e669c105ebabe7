"""What all tests share: hypothesis profiles, short simulations, the results per rule.

A test names the rules that it shows with `@pytest.mark.rule("rds7-bind-once")`. The results
go to `.reports/rules.json`, from which `tools/conformance.py` writes `docs/conformance.md`.
"""

import os
import signal

import pytest
from hypothesis import settings

from tests import places, planes
from tools.rules import Results, known_ids

# One profile everywhere: a failure seen in CI is seen at home, with the same octets.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("URDS_HYPOTHESIS", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--short-sim N`."""
    parser.addoption(
        "--short-sim", type=int, metavar="N", help="of the simulations, keep the seeds below N"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Settle the plane. Collect results in the process that reports: not in xdist's workers."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell has it for what it starts in the background; children would inherit it, and
        # tests press Ctrl-C in them.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    planes.choose()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(RuleResults())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop what is not asked for; hand the rules of each test to the reports."""
    if not places.is_loopback():
        dropped = [item for item in items if item.get_closest_marker("loopback_only")]
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]
    seeds_max = config.getoption("--short-sim")
    if seeds_max is not None:
        dropped = [item for item in items if _seed(item) >= seeds_max]
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if _seed(item) < seeds_max]
    planes.leave_out(items)
    known = known_ids()
    for item in items:
        for rule in (rule for mark in item.iter_markers("rule") for rule in mark.args):
            if rule not in known:
                raise pytest.UsageError(f"{item.nodeid}: no rule {rule!r} in tools/conformance")
            item.user_properties.append(("rule", rule))


class RuleResults:
    """The plug-in that keeps what each test said about its rules."""

    def __init__(self) -> None:
        self._results = Results()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note one phase of one test; what is tried again (in CI) says nothing yet."""
        if report.outcome == "rerun":
            return
        rules = [str(value) for name, value in report.user_properties if name == "rule"]
        self._results.add(report.nodeid, rules, report.outcome)

    def pytest_sessionfinish(self) -> None:
        """Write the results, added to those of earlier runs."""
        self._results.save()


def _seed(item: pytest.Item) -> int:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    seed = parameters.get("seed", 0) if "/sim/" in item.nodeid else 0
    return seed if isinstance(seed, int) else 0
