"""The wake-up rules of the compiled plane: each scenario ends well, and finds its rule broken.

The module that can break rules is built beside the usual one by `python -m tools.native rules`; a
process of its own loads it for each scenario. See test_wakeups.py for why there are scenarios.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import planes
from tools import native

ROOT = Path(__file__).parents[3]
WOKE, SLEPT_ON = 0, 3
CHILD_S_MAX = 60
# Of wakeup_compiled.py, which only a process with that module can import.
NAMES = [
    "list before sleeping",
    "look after notice",
    "kick the leader",
    "leave the kick",
    "name a successor",
    "who is named names",
    "pass it on, follower",
    "pass it on, leader",
    "close wakes all waiters",
    "the writer looks again",
    "asleep under the lock",
    "wake the helper",
    "a wait flushes tails",
    "room is told where it is",
]

each_rule = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def _module() -> None:
    if planes.in_use() != planes.NATIVE:
        pytest.skip("about the compiled plane alone: URDS_IMPL=native")
    reason = native.rules_missing(Path(sys.prefix))
    if reason and os.environ.get(planes.REQUIRED) == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


def play(name: str, *how: str) -> subprocess.CompletedProcess[str]:
    """Play one scenario in a process of its own."""
    places = [str(native.RULES), str(ROOT / "src"), str(ROOT)]
    return subprocess.run(
        [sys.executable, "-m", "tests.rds.sockets.wakeup_compiled", name, *how],
        check=False,
        capture_output=True,
        text=True,
        timeout=CHILD_S_MAX,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )


@each_rule
def test_the_scenario_ends_well(name: str) -> None:
    done = play(name)
    assert done.returncode == WOKE, done.stderr or "a thread slept on"


@each_rule
def test_the_scenario_finds_the_broken_rule(name: str) -> None:
    done = play(name, "broken")
    assert done.returncode == SLEPT_ON, done.stderr or "the scenario does not need the rule"


def test_the_module_that_people_get_breaks_no_rule() -> None:
    urds_native = pytest.importorskip("urds_native")
    assert not hasattr(urds_native, "break_rule")
