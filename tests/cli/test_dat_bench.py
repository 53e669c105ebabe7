"""`python -m benches.dat`, run as it is run by hand; no figure is judged."""

import json

import pytest

from tests.cli.commands import urds

PROGRAM = "benches.dat"


@pytest.mark.parametrize("device", ["shm0", "tcp0"])
def test_each_operation_is_measured(device: str) -> None:
    done = urds("--device", device, "--count", "20", "--json", program=PROGRAM)
    assert (done.code, done.err) == (0, "")
    rows = json.loads(done.out)["rows"]
    assert {row["device"] for row in rows} == {device}
    assert len({row["operation"] for row in rows}) == len(rows) == 5
    assert all(0 < row["lowest_decile_us"] <= row["median_us"] for row in rows)


def test_the_table_names_what_it_measures() -> None:
    done = urds("--device", "shm0", "--count", "20", program=PROGRAM)
    assert done.code == 0
    for name in ("SEND there and back, polling", "dat_ep_recv_query"):
        assert name in done.out


def test_too_few_operations_are_wrong_usage() -> None:
    done = urds("--count", "1", program=PROGRAM)
    assert done.code == 2
    assert "--count 1: must be from 10" in done.err
