"""The system has no epoll watch left for a while: the control thread lives, and goes on later."""

import errno

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host

ARRIVAL_S = 20.0


@pytest.mark.parametrize(
    ("sender", "receiver"), [(1, 2), (2, 1)], ids=["connects", "call_back_requests"]
)
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


@pytest.mark.reference
@pytest.mark.parametrize("end", ["ours", "theirs"])
def test_a_stream_that_is_not_watched_counts_as_lost(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """No thread would read it; another one is tried for, and nothing counts as a fault of ours."""
    with backend_with(reconnect_max_delay_ms=20) as theirs, urds.Socket() as target:
        target.bind((host(2), 4000))
        target.settimeout(ARRIVAL_S)
        with backend_with(reconnect_max_delay_ms=20) as ours, urds.Socket() as source:
            source.bind((host(1), 0))
            poll_set = (ours if end == "ours" else theirs).plane.passes.poll_set
            refused = refuse_twice(monkeypatch, poll_set)
            source.sendto(b"x", target.getsockname())
            assert target.recv(10) == b"x"
            assert len(refused) == 2
            for backend in (ours, theirs):
                assert backend.counters()["control_faults"] == 0
                assert backend._driver._thread.is_alive()


def refuse_twice(monkeypatch: pytest.MonkeyPatch, poll_set) -> list[object]:
    """Refuse to watch the first two streams; return those that were refused."""
    add, refused = poll_set.add, []

    def refuse(path) -> None:
        if len(refused) < 2:
            refused.append(path)
            raise OSError(errno.ENOSPC, "no watch left")
        add(path)

    monkeypatch.setattr(poll_set, "add", refuse)
    return refused
