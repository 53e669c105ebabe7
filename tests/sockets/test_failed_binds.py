"""A bind that fails half-way leaves nothing behind."""

import errno

import pytest

import urds
from tests.planes import in_use
from tests.sockets.hosts import host
from urds.backend.inprocess import InProcess
from urds.dataplane.native import PYTHON


@pytest.mark.parametrize("step", ["watch", "mailbox"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, ""), KeyboardInterrupt()], ids=repr)
def test_the_next_bind_finds_address_and_port_free(
    backend: InProcess, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    with urds.Socket() as sock:
        with monkeypatch.context() as patch:
            patch.setattr(backend.plane, step, fail)
            with pytest.raises(type(failure)):
                sock.bind((host(1), 4000))
        sock.bind((host(1), 4000))
        assert [row.port for row in backend.snapshot().mailboxes] == [4000]
        waited_for = backend._driver._handlers.keys()
        # Bell, reports, listener; and the compiled plane listens for lanes.
        assert len(waited_for) == (3 if in_use() == PYTHON else 4)
        if in_use() == PYTHON:
            assert waited_for == backend.plane.poll_set._watched.keys()
