"""No write of ours raises SIGPIPE, which ends a program that has not asked Python to ignore it."""

import os
import subprocess
import sys

import pytest

from tests.support import planes

BEGIN = """
import contextlib, signal, socket

signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in a tool that stands in a pipeline
ours, theirs = socket.socketpair()
"""
# Each writes to a socket whose other end is closed.
WRITES = {
    "stream": """
from tests.parity.planes import PEER, PEER_PORT, World
from tests.support.planes import PLANES, in_use
from urds.rds.types import AckMode
world = World(PLANES[in_use()])
mailbox = world.mailbox()
remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
remote.socket.close()
mailbox.sendto(b"to no port", (str(PEER), PEER_PORT))
world.turn()
""",
    "descriptor": """
from urds.common.readiness import ReadinessDescriptor
wanted = [(False, True)]
shown = ReadinessDescriptor(lambda: wanted[0])
socket.socket(fileno=shown.fileno()).close()
wanted[0] = (True, False)
shown.sync()
""",
    "report": """
from urds.rds.runtime.information_socket import InformationSocket
theirs.close()
served = object.__new__(InformationSocket)
served._report = lambda: b"{}"
with contextlib.suppress(BrokenPipeError):
    served._answer(ours)
""",
    "shared memory of verbs": """
from urds.verbs.providers.shm.channels import open_channel
theirs.close()
with contextlib.suppress(BrokenPipeError):
    open_channel(bytes(16), ours, own_gid=bytes(16), make=print)
""",
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_to_a_closed_end_ends_no_program(name: str) -> None:
    program = f"{BEGIN}{WRITES[name]}\nprint('alive')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **planes.chosen()},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
