"""`urds verbs bench`, run as it is run by hand; no figure is judged."""

import json
import os
import signal
import subprocess

import pytest

from tests.cli.commands import EXTRAS, interrupt, started, urds
from urds.cli import conditions
from urds.cli.conditions import is_far
from urds.cli.verbs.bench import Row

BENCH = ("verbs", "bench", "--count", "100")
LONG = ("verbs", "bench", "--count", "1000000")
END_S = 30


def bench(*arguments: str, extra: str = "without") -> dict[str, object]:
    done = urds(*BENCH, *arguments, "--json", extra=extra)
    assert (done.code, done.err) == (0, "")
    told: dict[str, object] = json.loads(done.out)
    return told


def test_each_operation_is_measured() -> None:
    rows = bench()["rows"]
    assert isinstance(rows, list)
    assert len({row["operation"] for row in rows}) == len(rows) == 12
    assert all(0 < row["lowest_decile"] <= row["median"] for row in rows)
    assert all(row["of_copy"] > 0 for row in rows if "KiB" in row["operation"])
    assert sum(row["goal"] is not None for row in rows) == 7


def test_on_one_processor_there_is_no_floor() -> None:
    """The reason stands in its place. Ends that spin there take half a minute for the rows."""
    processor = min(os.sched_getaffinity(0))
    found = conditions.look((processor, processor), spins="both")
    assert found["floor_ns"] is None
    assert found["floor_problem"] == "both ends are on one processor"
    conditions.look_again(found)
    assert found["after"]["floor_ns"] is None
    assert found["loop_ns"] > 0 < found["after"]["loop_ns"]


def test_the_floor_lies_between_two_processors() -> None:
    module = pytest.importorskip("urds_native", reason="it measures the floor")
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        pytest.skip("one processor has none")
    found = bench("--place", f"{usable[0]},{usable[1]}", extra="with")["conditions"]
    assert isinstance(found, dict)
    assert found["processors"] == found["floor_of"] == usable[:2]
    if found["floor_ns"] is None:  # other work had both of them for all of the time
        assert "busy" in found["floor_problem"]
    else:
        assert found["floor_ns"] > 0
    with pytest.raises(ValueError, match="a cache line goes between two"):
        module.line_floor_ns(usable[0], usable[0])
    with pytest.raises(ValueError, match="processor 1023: "):
        module.line_floor_ns(usable[0], 1023)


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_conditions_stand_above_the_table(extra: str) -> None:
    done = urds(*BENCH, extra=extra)
    assert (done.code, done.err) == (0, "")
    above, table = done.out.split("Calls of verbs on shm0:\n")
    for name in ("processes", "cache line", "what spins", "a copy", "a loop"):
        assert f"\n{name} " in above
    heading, *rows = [line for line in table.split("\n\nafterwards ")[0].splitlines() if line]
    assert heading.split()[-4:] == ["median", "x", "copy", "goal"]
    assert len(rows) == 12
    unit = heading.index("unit")
    assert all(row[unit - 1] == " " and row[unit] != " " for row in rows), "aligned"


@pytest.mark.parametrize(
    ("median", "of_copy", "goal", "verdict"),
    [
        (2.0, None, None, ""),
        (2.0, None, 2.0, "<= 2: reached"),
        (2.0, None, 1.9, "<= 1.9: missed"),
        (2.0, 0.7, 0.7, ">= 0.7: reached"),
        (2.0, 0.6, 0.7, ">= 0.7: missed"),
    ],
)
def test_a_row_is_judged_by_its_goal(
    median: float, of_copy: float | None, goal: float | None, verdict: str
) -> None:
    row = Row(
        operation="it", unit="us", lowest_decile=1.0, median=median, of_copy=of_copy, goal=goal
    )
    assert row.verdict == verdict


@pytest.mark.parametrize(("floor_ns", "far"), [(None, True), (100.0, False), (450.0, True)])
def test_processors_without_a_common_cache_are_far(floor_ns: float | None, far: bool) -> None:
    assert is_far({"floor_ns": floor_ns}) is far


def test_ctrl_c_ends_both_processes() -> None:
    done = interrupt(*LONG, after="a copy")
    assert (done.code, done.err) == (130, "")


def test_an_other_side_that_is_killed_is_one_line() -> None:
    with started(*LONG) as child:
        assert child.stdout is not None
        while "a copy" not in child.stdout.readline():
            pass
        os.kill(only_child(child.pid), signal.SIGKILL)
        _, err = child.communicate(timeout=END_S)
    assert child.returncode == 1
    assert err.startswith("urds verbs bench: ")
    assert err.count("\n") == 1


def only_child(pid: int) -> int:
    for _ in range(1000):
        command = ["pgrep", "-P", str(pid)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.stdout:
            return int(found.stdout)
    raise AssertionError("it starts none")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--place", "0,999999"), "must be two of"),
        (("--count", "5"), "--count 5: must be from 100"),
    ],
)
def test_what_cannot_be_is_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    done = urds("verbs", "bench", *arguments)
    assert done.code == 2
    assert words in done.err
