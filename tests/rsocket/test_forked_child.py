"""A child that outlives its parent keeps nothing of the parent's connections open."""

import os
import subprocess
import sys

import pytest

from tests.docs.pages import environment
from urds.rsocket import create_server

WAIT_S = 20.0
PARENT = """
import os, sys, time
from urds import rsocket
one = rsocket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
child = os.fork()
if not child:
    time.sleep(30)
    os._exit(0)
one.send(child.to_bytes(4, "big"))
sys.stdin.read()  # until the peer has it
os._exit(0)
"""


@pytest.mark.parametrize("device", ["shm0", "tcp0", "udp0"])
def test_the_peer_hears_of_the_parents_death(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URDS_RSOCKET_DEVICES", device)
    with create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [sys.executable, "-c", PARENT, port]
        surroundings = environment() | {"URDS_RSOCKET_DEVICES": device}
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=surroundings) as parent:
            listener.settimeout(WAIT_S)
            one, _ = listener.accept()
            with one:
                one.settimeout(WAIT_S)
                child = int.from_bytes(one.recv(4), "big")
                try:
                    assert parent.stdin is not None
                    parent.stdin.close()
                    assert parent.wait(WAIT_S) == 0
                    with pytest.raises(ConnectionResetError):
                        one.recv(1)
                    os.kill(child, 0)  # it is still there
                finally:
                    os.kill(child, 9)
