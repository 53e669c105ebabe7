"""An interpreter that ends while daemon threads are in calls: no abort, no hang, no word of it.

Any exception in such a thread would be told on standard error, so none of them sees one. By hand,
`TEST_EXIT_RUNS=200` makes so many runs of each pattern; the suite makes one.
"""

import os
import subprocess
import sys

import pytest

from tests.rds.sockets.exiting_program import PATTERNS
from tests.rds.sockets.hosts import host

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


RECEIVER = """
import sys, urds

there = urds.Socket()
there.bind((sys.argv[1], 4000))
print(flush=True)
for _ in range(3):
    there.recvfrom(10)
"""
SENDER = """
import sys, urds

urds.configure(linger_s=0, drain_s=0)
here = urds.Socket()
here.bind((sys.argv[1], 0))
for _ in range(3):
    here.sendto(b"last", (sys.argv[2], 4000))
print(urds.drain(2))
"""


def test_a_program_that_ends_behind_its_last_message_acknowledges_it() -> None:
    """The connection is new: the handshake, without which nothing can be, may come last."""
    there = host(1)
    for number in range(8 * RUNS):
        program = [sys.executable, "-c", RECEIVER, there]
        with subprocess.Popen(program, stdout=subprocess.PIPE) as receiver:
            assert receiver.stdout is not None
            assert receiver.stdout.readline()
            sent = subprocess.run(
                [sys.executable, "-c", SENDER, host(2), there],
                capture_output=True, text=True, timeout=30, check=False,
            )  # fmt: skip
            receiver.kill()
        assert (sent.stdout, sent.stderr) == ("0\n", ""), f"run {number}"
