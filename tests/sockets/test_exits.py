"""An interpreter that ends while daemon threads go in and out of calls: no abort, no hang.

A thread that comes back out of compiled code for an interpreter that is gone is ended on its way
through frames that cannot be unwound, and the process aborts. So closing waits until all are back.
"""

import subprocess
import sys

import pytest

PROGRAM = """
import threading, time, urds
from tests.sockets.hosts import host

here, there, quiet = urds.Socket(), urds.Socket(), urds.Socket()
here.bind((host(1), 4000))
there.bind((host(2), 4000))
quiet.bind((host(1), 4001))

def take():
    while True:
        here.recv(100)

def give():
    while True:
        there.sendto(bytes(64), (host(1), 4000))

threading.excepthook = lambda _: None  # the refusals that end the threads
for call in (take, give, lambda: quiet.recv(10), lambda: quiet.recv(10)):
    threading.Thread(target=call, daemon=True).start()
time.sleep({pause_s})
"""


@pytest.mark.parametrize("pause_s", [0.05, 0.11, 0.17, 0.23])
def test_an_interpreter_ends_with_threads_in_calls(pause_s: float) -> None:
    program = PROGRAM.format(pause_s=pause_s)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
