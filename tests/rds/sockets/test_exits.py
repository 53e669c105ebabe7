"""An interpreter that ends while daemon threads are in calls: no abort, no hang, no word of it.

Any exception in such a thread would be told on standard error, so none of them sees one. By hand,
`TEST_EXIT_RUNS=200` makes so many runs of each pattern; the suite makes one.
"""

import os
import subprocess
import sys

import pytest

from tests.rds.sockets.exiting_program import PATTERNS

RUNS = int(os.environ.get("TEST_EXIT_RUNS", "1"))


def run(program: list[str], **variables: str) -> tuple[int, str]:
    """Run a program of Python; return its code and what it said."""
    done = subprocess.run(
        [sys.executable, *program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, **variables},
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_interpreter_ends_with_threads_in_calls(pattern: str) -> None:
    for number in range(RUNS):
        share = str(number * 0.618 % 1)
        program = ["-m", "tests.rds.sockets.exiting_program", pattern, share]
        code, said = run(program, URDS_DRAIN_S="0.05")
        # A drain that was too short is said; nothing else is.
        lines = [line for line in said.splitlines() if "drain_s" not in line]
        assert (code, lines) == (0, []), f"run {number}"


LATE = """
import atexit, urds
from tests.rds.sockets.hosts import host

here = urds.Socket()

def late():
    here.sendto(b"late", here.getsockname())
    print(here.recv(10), flush=True)

atexit.register(late)
here.bind((host(1), 4000))
"""


def test_what_a_function_at_exit_sends_arrives() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.stderr) == ("b'late'\n", "")
