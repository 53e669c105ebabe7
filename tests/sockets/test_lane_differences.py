"""Each line about lanes of docs/differences.md has a test here: `test_difference_` and its name."""

import pytest

import urds
from tests.sockets.conftest import backend_with
from tests.sockets.hosts import host
from tests.sockets.remote import RemotePeer
from urds.dataplane.native import NATIVE

ARRIVAL_S = 5.0


def test_difference_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this run has the compiled plane; else there is no difference."""
    monkeypatch.setenv("URDS_SHARED_MEMORY", "1")
    with RemotePeer() as peer, backend_with() as backend, urds.Socket() as sender:
        receiver = peer.socket()
        receiver.bind((host(2), 4000))
        sender.bind((host(1), 0))
        sender.sendto(b"x", (host(2), 4000))
        receiver.settimeout(ARRIVAL_S)
        assert receiver.recv(10) == b"x"
        (path,) = backend.snapshot().paths
        assert path.transport == ("shm" if backend.choice.plane == NATIVE else "tcp")
