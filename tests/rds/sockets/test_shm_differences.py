"""Each line of docs/differences.md about shm streams has a test here, `test_difference_<name>`."""

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.remote import RemotePeer
from urds.rds.plane.choose import NATIVE


def test_difference_shm_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this run has the compiled plane; else there is no difference."""
    monkeypatch.setenv("URDS_SHARED_MEMORY", "1")
    with RemotePeer() as peer, backend_with() as backend, urds.Socket() as sender:
        peer.receive_one(sender)
        (path,) = backend.snapshot().paths
        assert path.transport == ("shm" if backend.choice.plane == NATIVE else "tcp")
