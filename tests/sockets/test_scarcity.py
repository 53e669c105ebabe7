"""The system has no epoll watch left for a while: the control thread lives, and goes on later."""

import errno

import pytest

import urds
from tests.sockets.conftest import backend_with
from tests.sockets.hosts import host

ARRIVAL_S = 5.0


@pytest.mark.parametrize(("sender", "receiver"), [(1, 2), (2, 1)], ids=["connects", "knocks"])
def test_a_watch_that_is_refused_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, sender: int, receiver: int
) -> None:
    with backend_with() as theirs, urds.Socket() as target:
        target.bind((host(receiver), 4000))
        target.settimeout(ARRIVAL_S)
        with backend_with() as ours, urds.Socket() as source:
            source.bind((host(sender), 0))
            for backend in (ours, theirs):
                refuse_often(monkeypatch, backend.plane)
            source.sendto(b"x", target.getsockname())
            assert target.recv(10) == b"x"
            assert ours._driver._thread.is_alive()
            assert theirs._driver._thread.is_alive()


def refuse_often(monkeypatch: pytest.MonkeyPatch, plane) -> None:
    """Refuse every other watch."""
    watch, asked = plane.watch, []

    def refuse(*arguments: object) -> None:
        asked.append(arguments)
        if len(asked) % 2:
            raise OSError(errno.ENOSPC, "no watch left")
        watch(*arguments)

    monkeypatch.setattr(plane, "watch", refuse)
