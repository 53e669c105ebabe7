"""What all tests share: hypothesis profiles, the seeds of a run, the results per rule.

A test names the rules that it shows with `@pytest.mark.rule("rds7-bind-once")`. The results
go to `.reports/rules.json`, from which `tools/conformance.py` writes `docs/conformance.md`.
"""

import gc
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from tests.support import order, places, planes
from tools.rules import Results, known_ids

LOOKS_WITHIN_NS = 60 * 10**9

# Derandomized everywhere: a failure seen in CI is seen at home, with the same bytes.
settings.register_profile("usual", deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "thorough", deadline=None, derandomize=True, print_blob=True, max_examples=1000
)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("TEST_HYPOTHESIS", "usual"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--seeds FIRST:END`."""
    parser.addoption(
        "--seeds",
        type=_seeds,
        metavar="FIRST:END",
        help="of tests with a seed keep those seeds: `:20` with those found, `20:` nothing else",
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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is collected out of the garbage collector's sight.

    Half a million objects live as long as the process: each `gc.collect()` of a test would visit
    all of them, for half a second on a slow machine.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop what is not asked for; hand the rules of each test to the reports."""
    if not places.is_loopback():
        dropped = [item for item in items if item.get_closest_marker("loopback_only")]
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]
    seeds = config.getoption("--seeds")
    if seeds is not None:
        dropped = [item for item in items if not _is_kept(item, seeds)]
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if _is_kept(item, seeds)]
    planes.leave_out(items)
    if hasattr(config, "workerinput"):
        order.begin_with_long_files(items)
    known = known_ids()
    for item in items:
        for rule in (rule for mark in item.iter_markers("rule") for rule in mark.args):
            if rule not in known:
                raise pytest.UsageError(f"{item.nodeid}: no rule {rule!r} in tools/conformance")
            item.user_properties.append(("rule", rule))


@pytest.fixture(autouse=True, scope="module")
def _devices_stay_attended() -> Iterator[None]:
    """See that no open device is left with an hour until the progress thread looks after it.

    Tests share the devices of a process: one that gives all of them another time leaves them deaf
    for the tests behind it, in whichever files those are.
    """
    yield
    progress = sys.modules.get("urds.common.progress")
    if progress is not None:
        soon_ns = time.monotonic_ns() + LOOKS_WITHIN_NS
        for loop in list(progress._open_loops):
            check = loop._check
            assert loop.is_closed or check is None or check.deadline_ns < soon_ns, loop


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


def _seeds(given: str) -> range:
    first, _, end = given.partition(":")
    return range(int(first or 0), int(end or sys.maxsize))


def _is_kept(item: pytest.Item, seeds: range) -> bool:
    """Tell whether a run of these seeds has the test.

    A seed that found something belongs to the first ones, `@pytest.mark.found(137)`.
    """
    seed = getattr(getattr(item, "callspec", None), "params", {}).get("seed")
    if not isinstance(seed, int):
        return seeds.start == 0
    found = any(seed in mark.args for mark in item.iter_markers("found"))
    return seed in seeds or (found and seeds.start == 0)
