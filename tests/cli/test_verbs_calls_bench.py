"""`python -m benches.verbs_calls`, run as it is run by hand; no figure is judged."""

import json

from tests.cli.commands import urds

PROGRAM = "benches.verbs_calls"


def test_each_operation_is_measured_beside_its_conditions() -> None:
    done = urds("--count", "100", "--json", program=PROGRAM)
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    rows = told["rows"]
    assert len({row["operation"] for row in rows}) == len(rows) == 7
    assert all(0 < row["lowest_decile"] <= row["median"] for row in rows)
    assert {"floor_ns", "load", "processors"} <= told["conditions"].keys()


def test_processors_that_are_not_there_are_wrong_usage() -> None:
    done = urds("--place", "0,999999", program=PROGRAM)
    assert done.code == 2
    assert "must be two of" in done.err
