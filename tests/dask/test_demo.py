"""`urds dask demo`, with Dask: in `make dask`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from tests.cli.commands import environment, interrupt, urds


def _children_of_demos() -> set[str]:
    """Return the processes of jobs that run, by their command lines."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if b"urds.cli.dask.demo_job" in line:
            found.add(path.parent.name)
    return found


def test_a_job_over_rds_is_right_and_loses_no_worker() -> None:
    done = urds(
        *("dask", "demo", "--only-rds", "--workers", "2", "--rounds", "5", "--json"), extra="with"
    )
    assert done.code == 0, done.out + done.err
    (outcome,) = json.loads(done.out)
    assert (outcome["scheme"], outcome["result"]) == ("rds", "right")
    assert outcome["tasks"] == outcome["tasks_total"] == 30
    assert outcome["workers_lost"] == 0 and outcome["resets"] > 0


def test_without_resets_both_are_right() -> None:
    done = urds(
        *("dask", "demo", "--workers", "2", "--rounds", "1", "--reset-every", "0"), extra="with"
    )
    assert done.code == 0, done.out + done.err
    assert "Both results are right; workers lost: 0 and 0." in done.out
    assert "resets 0" in done.out


def test_over_tcp_a_job_loses_workers() -> None:
    """That the faults are faults: with RDS they change nothing."""
    plan = {"scheme": "tcp", "workers": 2, "rounds": 20, "reset_every_s": 0.2, "patience_s": 5}
    with subprocess.Popen(
        [sys.executable, "-m", "urds.cli.dask.demo_job", json.dumps(plan)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(),
        start_new_session=True,
    ) as child:  # fmt: skip
        words = [json.loads(line) for line in child.stdout]
    assert words[-1]["workers_lost"] > 0
    assert words[-1]["resets"] > 0


def test_ctrl_c_ends_all_processes() -> None:
    before = _children_of_demos()
    done = interrupt("dask", "demo", "--rounds", "10000", after="tasks", extra="with")
    assert done.code == 130, done.err
    assert "Traceback" not in done.err
    assert _children_of_demos() <= before, os.listdir("/proc")
