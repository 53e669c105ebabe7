"""Threads of a process that uses all four systems at once: at most three of ours."""

import os
import subprocess
import sys

import pytest

from tests.support.planes import NATIVE, PYTHON, missing

PROGRAM = """
import os, socket, threading
import urds
from urds import dat, rsocket, verbs
from urds.rds.constants import SOL_RDS, SockOpt, Transport

open_ones = []
for number, transport in enumerate((Transport.TCP, Transport.IB), 1):
    pair = [urds.Socket() for _ in range(2)]
    for host, sock in enumerate(pair, 1):
        sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, transport)
        sock.bind((f"127.0.91.{host}", 4000 + number))
        sock.settimeout(30)
    pair[0].sendto(b"over RDS", pair[1].getsockname())
    assert pair[1].recv(10) == b"over RDS"
    open_ones.append(pair)
open_ones.append([verbs.Context(name) for name in ("shm0", "tcp0", "udp0")])
open_ones.append([dat.open(name) for name in ("shm0", "tcp0", "udp0")])
listener, stream, datagrams = rsocket.Socket(), rsocket.Socket(), rsocket.Socket(
    socket.AF_INET, socket.SOCK_DGRAM
)
listener.bind(("127.0.0.1", 0))
listener.listen()
stream.connect(listener.getsockname())
accepted, _ = listener.accept()
stream.send(b"by rsocket")
assert accepted.recv(10) == b"by rsocket"
datagrams.bind(("127.0.0.1", 0))
print(*(thread.name for thread in threading.enumerate()))
print(len(os.listdir("/proc/self/task")), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("plane", [PYTHON, NATIVE])
def test_all_four_systems_have_three_threads(plane: str) -> None:
    if plane == NATIVE and (reason := missing()):
        pytest.skip(f"no compiled plane: {reason}")
    settings = {
        "URDS_IMPL": plane,
        "URDS_INFO_SOCKET": "0",
        "URDS_RDMA_DEVICES": "shm0",
        "URDS_RSOCKET_DEVICES": "shm0,tcp0,udp0",
    }
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | settings, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    names, task_count = said.stdout.splitlines()
    ours = [name for name in names.split() if name != "MainThread"]
    assert len(ours) <= 3, ours
    assert sorted(set(ours)) == sorted(ours), "one of a kind"
    assert "urds-progress" in ours
    assert int(task_count) == len(ours) + 1, "the compiled plane has no thread of its own"
