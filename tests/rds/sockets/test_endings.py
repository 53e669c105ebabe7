"""How processes end: what still leaves, and what is said of what does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host

pytestmark = pytest.mark.each_carrier("shm0")

ROOT = Path(__file__).resolve().parents[3]
ARRIVAL_S = 20.0
COUNT = 7
SOON = {"URDS_DRAIN_S": "0.2", "URDS_LINGER_S": "0.2"}

SEND = f"""
import sys, urds
sock = urds.Socket()
sock.bind((sys.argv[1], 0))
for number in range({COUNT}):
    sock.sendto(b"%d" % number, (sys.argv[2], 4000))
"""
FORKED = """
import multiprocessing, sys, urds
def child():
{body}
multiprocessing.set_start_method("fork")
process = multiprocessing.Process(target=child)
process.start()
process.join()
"""


def run(script: str, *arguments: str, **tunables: str) -> str:
    """Run a script to its orderly end; return what it said on the error stream."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **tunables},
    )
    return done.stderr


@pytest.mark.parametrize("closing", [False, True], ids=["left open", "closed"])
def test_what_could_not_be_delivered_is_said(closing: bool) -> None:
    said = run(SEND + "sock.close()" * closing, host(3), host(77), **SOON)
    assert f"{COUNT} messages" in said
    assert ("linger_s" if closing else "drain_s") in said


def test_a_delivered_end_says_nothing() -> None:
    with backend_with(), urds.Socket() as receiver:
        receiver.bind((host(2), 4000))
        receiver.settimeout(ARRIVAL_S)
        assert run(SEND, host(3), host(2)) == ""
        assert [receiver.recv(10) for _ in range(COUNT)] == [b"%d" % n for n in range(COUNT)]


def test_a_forked_multiprocessing_child_drains_too() -> None:
    """Such a child ends by os._exit; what it queued is waited for all the same."""
    body = "".join(f"    {line}\n" for line in SEND.strip().splitlines()[1:])
    assert f"{COUNT} messages" in run(FORKED.format(body=body), host(3), host(77), **SOON)
