"""The soak itself, for some seconds: every part plays, nothing is wrong, Ctrl-C ends it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("--network", "127.61.0", "--cpu-share", "0.8", "--reset-every-s", "1",
         "--restart-every-s", "2", "--socket-life-s", "1", "--sample-every-s", "0.2",
         "--line-every-s", "0.5", "--json")  # fmt: skip
ROLES = 8  # that live as long as the soak


def start(minutes: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.soak", "--minutes", str(minutes), *QUICK],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def summary(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, progress = process.communicate(timeout=100)
    assert process.returncode == 0, said + progress
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.slow
def test_some_seconds_of_the_soak_are_well() -> None:
    found = summary(start(0.12))
    # A busy machine does little in some seconds; that is no fault of what is tested.
    assert found["errors"] == 0 and found["messages"] > 50
    assert found["resets"] > 0 and found["restarts"] > 0 and found["sockets"] > ROLES
    assert len(found["processes"]) == ROLES


@pytest.mark.slow
def test_an_interrupt_ends_the_soak_with_its_summary() -> None:
    process = start(60)
    assert process.stderr is not None
    for line in process.stderr:  # until a few messages have come
        if " 0 messages " not in line:
            break
    process.send_signal(signal.SIGINT)
    found = summary(process)
    assert found["messages"] > 0 and found["minutes"] < 1
