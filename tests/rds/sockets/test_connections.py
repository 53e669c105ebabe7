"""What a program learns of its connections: their records, and a call for each that happens."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from tests.rds.sockets.test_control_faults import SOON, exchange, pair
from tests.rds.sockets.test_undelivered import Receiver, receiver
from tests.support.waiting import wait_until
from urds.rds.constants import RDS_TCP_PORT
from urds.rds.plane.contract import Carrier
from urds.rds.runtime.peer_events import PeerEvents
from urds.rds.transports.peer_history import TURNED_AWAY

WAIT_S = 20.0


class Heard:
    """A callback that keeps the events."""

    def __init__(self) -> None:
        self.events: list[urds.PeerEvent] = []

    def __call__(self, event: urds.PeerEvent) -> None:
        self.events.append(event)

    def of(self, peer: str) -> list[str]:
        return [event.kind for event in self.events if str(event.peer) == peer]

    def reason(self, kind: str) -> str:
        return next(event.reason for event in self.events if event.kind == kind)


@contextmanager
def hearing() -> Iterator[Heard]:
    heard = Heard()
    forget = urds.on_peer_event(heard)
    try:
        yield heard
    finally:
        forget()


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="a callback must be callable, not None"):
        urds.on_peer_event(None)  # type: ignore[arg-type]  # on purpose


def the_one() -> urds.ConnectionInfo:
    """Return the only connection; its first path, should it have more."""
    (one,) = (one for one in urds.connections() if not one.path)
    return one


def test_before_a_bind_there_are_none() -> None:
    with backend_with():
        assert urds.connections() == []


def test_an_absent_peer_is_connecting_with_the_reason() -> None:
    with backend_with(**SOON), hearing() as heard, urds.Socket() as source:
        source.bind((host(1), 4000))
        source.sendto(b"one", (host(2), 4000))
        wait_until(lambda: the_one().attempts >= 3)
        one = the_one()
        wait_until(lambda: bool(heard.events))
    assert (str(one.local), str(one.peer), one.path) == (host(1), host(2), 0)
    assert one.state is urds.ConnectionState.CONNECTING
    assert one.last_error.startswith("Connection refused: nothing listens there")
    assert one.last_received_s is one.oldest_unacknowledged_s is None
    assert one.unsent_messages == 1
    assert one.state_s is not None
    assert one.state_s >= 0
    assert one.last_error_s is not None
    assert heard.of(host(2)) == ["failed"], "38 attempts with one reason are one event"


@pytest.mark.parametrize(
    ("variables", "carrier"),
    [
        ({"URDS_TRANSPORT": "tcp", "URDS_SHARED_MEMORY": "0"}, Carrier.TCP),
        ({"URDS_TRANSPORT": "ib", "URDS_RDMA_DEVICES": "shm0"}, Carrier.RDMA),
    ],
    ids=["tcp", "rdma"],
)
def test_a_connection_is_up_then_lost_then_restored(
    variables: dict[str, str], carrier: Carrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    peer = host(2)
    with hearing() as heard, pair(1, 2) as (ours, source, target):
        exchange(ours, source, target)
        source.sendto(b"after the break", target.getsockname())
        assert target.recv(100) == b"after the break"
        wait_until(lambda: heard.of(peer)[-1:] == ["restored"])
        wait_until(lambda: the_one().unacknowledged_messages == 0)
        one = the_one()
    # An attempt for the second path may fail between them.
    kinds = [kind for kind in heard.of(peer) if kind != "failed"]
    assert kinds[:3] == ["connected", "lost", "restored"]
    assert heard.reason("lost")
    assert (one.state, one.attempts, one.next_attempt_s) == (urds.ConnectionState.UP, 0, None)
    assert one.last_received_s is not None
    assert one.last_error
    assert one.transport is carrier


def test_what_a_short_connection_brought_is_known_after_it() -> None:
    """It ended before the first of the looks that come once a second."""
    with hearing() as heard, backend_with(**SOON), urds.Socket() as source:
        source.bind((host(1), 4000))
        with receiver(3) as there:
            source.sendto(b"one", there.address)
            there.expect("one")
        wait_until(lambda: "lost" in heard.of(host(3)))
        source.sendto(b"two", there.address)
        assert the_one().last_received_s is not None


def test_a_stopped_peer_shows_by_silence_and_the_age_of_what_it_has_not_acknowledged() -> None:
    receiver = Receiver(host(3))
    try:
        with backend_with(**SOON), urds.Socket() as source:
            source.bind((host(1), 4000))
            source.sendto(b"one", receiver.address)
            receiver.expect("one")
            wait_until(lambda: the_one().unacknowledged_messages == 0)
            receiver.stop()
            source.sendto(b"two", receiver.address)
            wait_until(lambda: (the_one().oldest_unacknowledged_s or 0) > 0.3)
            one = the_one()
    finally:
        receiver.process.send_signal(signal.SIGCONT)
        receiver.process.kill()
        receiver.process.wait()
        assert receiver.process.stdout is not None
        receiver.process.stdout.close()
    assert one.state is urds.ConnectionState.UP
    assert one.unacknowledged_messages == 1
    assert one.last_received_s is not None
    assert one.last_received_s >= 0.3


@pytest.mark.parametrize("numbers", [(1, 2), (2, 1)], ids=["we connect", "it is to connect"])
def test_a_peer_that_closes_at_once_turns_us_away(numbers: tuple[int, int]) -> None:
    """As a node does with an address that it does not allow."""
    ours, its = map(host, numbers)
    over = threading.Event()
    with socket.create_server((its, RDS_TCP_PORT)) as listener:
        listener.settimeout(0.1)

        def turn_away() -> None:
            while not over.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.close()

        thread = threading.Thread(target=turn_away)
        thread.start()
        try:
            with backend_with(**SOON), hearing() as heard, urds.Socket() as source:
                source.bind((ours, 4000))
                source.sendto(b"one", (its, 4000))
                wait_until(lambda: bool(heard.events))
                one = the_one()
        finally:
            over.set()
            thread.join(WAIT_S)
    assert heard.reason("failed") == TURNED_AWAY
    assert one.last_error == TURNED_AWAY


def test_a_refused_connection_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """One that stays silent for too long; what a peer repeats is counted, not repeated."""
    peer = host(1)
    with (
        caplog.at_level(logging.WARNING, "urds"),
        hearing() as heard,
        backend_with(pending_wait_s=0.05) as ours,
        urds.Socket() as target,
    ):
        target.bind((host(2), 4000))
        for _ in range(2):
            with socket.socket() as silent:
                silent.bind((peer, 0))
                silent.connect((host(2), RDS_TCP_PORT))
                silent.settimeout(WAIT_S)
                with suppress(ConnectionResetError):
                    while silent.recv(1 << 16):  # the map comes first
                        pass
        wait_until(lambda: ours.counters()["pending_silent"] == 2)
        wait_until(lambda: heard.of(peer) == ["refused"])
    assert heard.reason("refused") == "silent"
    assert caplog.messages == [f"connection of {peer} refused: silent"]


def test_a_callback_may_use_sockets() -> None:
    """It is called with no lock held, in a thread that no other call waits for."""
    done: list[bytes] = []

    def send_on(event: urds.PeerEvent) -> None:
        if event.kind == "connected" and str(event.peer) == host(2) and not done:
            with urds.Socket() as own:
                own.bind((host(1), 0))
                own.sendto(b"of the callback", own_target)
                done.append(logged.recv(100))

    forget = urds.on_peer_event(send_on)
    try:
        with pair(1, 2) as (ours, source, target), urds.Socket() as logged:
            logged.bind((host(1), 4002))
            logged.settimeout(WAIT_S)
            own_target = logged.getsockname()
            exchange(ours, source, target)
            wait_until(lambda: done == [b"of the callback"])
    finally:
        forget()


# -- the callbacks themselves

EVENT = urds.PeerEvent(
    kind=urds.PeerEventKind.LOST,
    local=None,  # type: ignore[arg-type]  # not looked at
    peer=None,  # type: ignore[arg-type]  # not looked at
    transport=Carrier.TCP,
    tos=0,
    reason="it ended",
    time_ns=1,
)


def test_what_a_callback_raises_is_logged_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events, heard = PeerEvents(), Heard()

    def fail(event: urds.PeerEvent) -> None:
        raise RuntimeError("of the program")

    events.add(fail)
    events.add(heard)
    for _ in range(2):
        events.emit(EVENT)
    events.flush()
    assert heard.events == [EVENT, EVENT]
    assert [(one.name, one.levelname) for one in caplog.records] == [("urds.events", "ERROR")] * 2
    assert "of the program" in caplog.text


def test_an_unregistered_callback_is_not_called_even_for_what_waits() -> None:
    events, heard = PeerEvents(), Heard()
    go_on, reached = threading.Event(), threading.Event()

    def block(event: urds.PeerEvent) -> None:
        reached.set()
        assert go_on.wait(WAIT_S)

    events.add(block)
    forget = events.add(heard)
    twice = events.add(heard)
    events.emit(EVENT)
    assert reached.wait(WAIT_S)
    forget()
    forget()
    go_on.set()
    events.flush()
    assert heard.events == [EVENT], "registered twice, unregistered once"
    twice()


def test_events_that_wait_for_a_callback_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("urds.rds.runtime.peer_events._EVENTS_MAX", 2)
    events = PeerEvents()
    go_on, reached = threading.Event(), threading.Event()
    count: list[urds.PeerEvent] = []

    def block(event: urds.PeerEvent) -> None:
        count.append(event)
        reached.set()
        assert go_on.wait(WAIT_S)

    events.add(block)
    events.emit(EVENT)
    assert reached.wait(WAIT_S)
    for _ in range(4):
        events.emit(EVENT)
    go_on.set()
    events.flush()
    assert len(count) == 3
    assert len(caplog.messages) == 2
    assert "an event was dropped" in caplog.text
