"""Too many peers: who goes is idle, and takes no message with it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from tests.support import carriers
from tests.support.clocks import give_time
from urds.rds.runtime import paths
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.paths import first_sequence

pytestmark = pytest.mark.each_carrier

FIRST, SECOND = (host(50), 4000), (host(51), 4000)


@contextmanager
def control_thread_held(backend: InProcess) -> Iterator[None]:
    """Keep the control thread from its work, and send meanwhile as if we were not inside of it."""
    driver = backend._driver
    holds_lock = driver.holds_lock
    with driver.lock:
        driver.holds_lock = lambda: False
        try:
            yield
        finally:
            driver.holds_lock = holds_lock


def test_a_peer_whose_first_message_is_just_queued_stays() -> None:
    with backend_with(peers_max=1) as backend, urds.Socket() as sock:
        sock.bind((host(1), 0))
        with control_thread_held(backend):  # it has not read its `ConnectWanted` yet
            sock.sendto(b"kept", FIRST)
            with pytest.raises(OSError, match="peers"):
                sock.sendto(b"refused", SECOND)
            sock.sendto(b"goes on", FIRST)
        assert [row.payload_bytes for row in backend.snapshot().send_queue] == [4, 7]
        assert backend.counters()[carriers.control_counter("evicted")] == 0


def test_a_peer_that_is_evicted_and_wanted_at_once_keeps_the_new_message() -> None:
    with backend_with(peers_max=1) as backend, urds.Socket() as sock:
        sock.bind((host(1), 0))
        with control_thread_held(backend):
            for address in (FIRST, SECOND, FIRST):
                sock.cancel()
                sock.sendto(b"%d" % address[1], address)
        assert backend.counters()[carriers.control_counter("evicted")] == 2
        assert backend.counters()["send_given_up"] == 0
        assert [str(row.peer) for row in backend.snapshot().send_queue] == [FIRST[0]]


def test_numbers_do_not_follow_a_clock_that_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = first_sequence()
    give_time(monkeypatch, paths, time_ns=lambda: 0)
    assert first_sequence() >= before
