"""What is told of connections: one line and one event for what happens, and the last error."""

import errno
import logging
from ipaddress import ip_address

import pytest

from urds.common.logs import LogQueue
from urds.rds.plane.contract import Carrier
from urds.rds.transports.peer_history import (
    TURNED_AWAY,
    PeerEvent,
    PeerEventKind,
    PeerName,
    Peers,
)

NAME = PeerName(ip_address("10.0.0.1"), ip_address("10.0.0.2"))
S = 1_000_000_000


class Told:
    """Peers with a clock of the test's, and what they told."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.events: list[PeerEvent] = []
        self.log = LogQueue()
        self.peers = Peers(
            self.log.part("control"),
            Carrier.TCP,
            now_ns=lambda: self.now_ns,
            on_event=self.events.append,
        )

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    caplog.set_level(logging.DEBUG, "urds")
    return Told()


def test_a_connection_comes_is_lost_and_is_restored(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    told.peers.note_attached(NAME, Carrier.SHARED_MEMORY)
    told.peers.note_up(NAME)
    told.peers.expect_loss(NAME, "Connection reset by peer")
    told.peers.note_lost(NAME, "it ended")
    told.now_ns = 3 * S
    told.peers.note_attached(NAME)
    told.peers.note_up(NAME)
    told.log.flush()
    assert [(one.levelname, one.name, one.getMessage()) for one in caplog.records] == [
        ("INFO", "urds.control", "10.0.0.1: connected to 10.0.0.2 over shm"),
        (
            "INFO",
            "urds.control",
            "10.0.0.1: connection to 10.0.0.2 lost: Connection reset by peer",
        ),
        (
            "INFO",
            "urds.control",
            "10.0.0.1: connection to 10.0.0.2 restored after 3.0 s, over tcp",
        ),
    ]
    assert [(event.kind, event.reason) for event in told.events] == [
        (PeerEventKind.CONNECTED, ""),
        (PeerEventKind.LOST, "Connection reset by peer"),
        (PeerEventKind.RESTORED, "after 3.0 s"),
    ]
    assert told.events[0].transport is Carrier.SHARED_MEMORY
    assert told.peers.of(NAME).error == "Connection reset by peer"


def test_an_outage_with_one_reason_is_one_event_and_a_debug_line_for_each_attempt(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (errno.ECONNREFUSED, errno.ECONNREFUSED, errno.EHOSTUNREACH):
        told.peers.note_attempt(NAME, "connecting to")
        told.peers.note_failed(NAME, number)
    told.log.flush()
    assert [event.reason.partition(":")[0] for event in told.events] == [
        "Connection refused",
        "No route to host",
    ]
    assert [one.levelname for one in caplog.records] == ["DEBUG"] * 6
    assert told.peers.of(NAME).connect_errno == errno.EHOSTUNREACH


def test_the_next_outage_tells_the_same_reason_again(told: Told) -> None:
    for _ in range(2):
        told.peers.note_failed(NAME, errno.ECONNREFUSED)
        told.peers.note_attached(NAME)
        told.peers.note_up(NAME)
        told.peers.note_lost(NAME, "it ended")
    assert told.kinds() == ["failed", "connected", "lost", "failed", "restored", "lost"]
    told.peers.note_attached(NAME)
    assert told.peers.of(NAME).connect_errno == 0


def test_a_peer_that_takes_call_back_requests_and_never_connects_turns_us_away(
    told: Told,
) -> None:
    """The first two may cross with its connection."""
    for _ in range(3):
        assert told.events == []
        told.peers.note_called_back(NAME, closed=True)
    assert [event.reason for event in told.events] == [TURNED_AWAY]
    told.peers.note_attached(NAME)
    told.peers.note_called_back(NAME, closed=False)
    assert told.kinds() == ["failed"]


def test_what_was_not_up_is_not_lost(told: Told) -> None:
    told.peers.note_lost(NAME, "it ended")
    told.peers.forget(NAME)
    assert told.events == []


def test_an_evicted_peer_is_lost_and_forgotten(told: Told) -> None:
    told.peers.note_up(NAME)
    told.peers.forget(NAME)
    assert told.kinds() == ["connected", "lost"]
    told.peers.note_up(NAME)
    assert told.kinds()[-1] == "connected"
