"""What is told of messages whose time is over: which were never sent, which may have arrived."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from tests.rds.sockets.test_logging import Handler, handled_by
from tests.support import carriers
from tests.support.children import Child
from tests.support.waiting import BUSY_S

pytestmark = pytest.mark.each_carrier("shm0")

WAIT_S = BUSY_S
PORT = 4000
SOON = {"reconnect_min_delay_ms": 1, "reconnect_max_delay_ms": 20}
_RECEIVER = """
import sys, urds
sock = urds.Socket()
sock.bind((sys.argv[1], 4000))
print("bound", flush=True)
while True:
    print(sock.recv(100).decode(), flush=True)
"""


class Receiver(Child):
    """A process that says what it receives."""

    def __init__(self, address: str) -> None:
        self.address = (address, PORT)
        super().__init__("-c", _RECEIVER, address)
        self.expect("bound")

    def expect(self, line: str) -> None:
        """Wait for a line."""
        assert self.hear() == line


@contextmanager
def receiver(number: int) -> Iterator[Receiver]:
    """Start a receiver, for a `with` block."""
    made = Receiver(host(number))
    try:
        yield made
    finally:
        made.kill()


@contextmanager
def warnings() -> Iterator[list[str]]:
    """Give what is warned of."""
    handler = Handler()
    handler.setLevel(logging.WARNING)
    with handled_by(handler):
        yield handler.lines


@pytest.fixture
def met() -> Iterator[Receiver]:
    """Give a receiver of host 2."""
    with receiver(2) as made:
        yield made


def test_what_a_stopped_peer_has_is_not_called_lost(met: Receiver) -> None:
    with warnings() as lines:
        with backend_with(drain_s=0.3), urds.Socket() as sock:
            sock.bind((host(1), PORT))
            sock.sendto(b"one", met.address)
            met.expect("one")
            _settle(sock)
            met.stop()
            sock.sendto(b"two", met.address)
        met.go_on()
        met.expect("two")
    assert lines == [f"{host(2)}:4000: 1 message not acknowledged within 0.3 s (drain_s)"]


def test_what_was_never_sent_is_told_with_the_reason(met: Receiver) -> None:
    """The peer dies with a message that it may have taken; later ones are never sent."""
    with warnings() as lines, backend_with(drain_s=0.3, **SOON) as ours, urds.Socket() as sock:
        sock.bind((host(1), PORT))
        sock.sendto(b"one", met.address)
        met.expect("one")
        _settle(sock)
        met.stop()
        for text in (b"two", b"three", b"four"):
            sock.sendto(text, met.address)
        met.process.kill()
        met.process.wait()
        _wait_for_failure(host(1), host(2), ours)
        for text in (b"five", b"six"):
            sock.sendto(text, met.address)
    # Over RDMA the second and third one wait for the frame of the first: the peer is stopped.
    is_rdma = carriers.chosen().get("URDS_TRANSPORT") == "ib"
    sent, unsent = ("1 message", 4) if is_rdma else ("3 messages", 2)
    expected = (
        rf"{host(2)}:4000: {sent} not acknowledged within 0.3 s \(drain_s\), {unsent} never sent "
        r"\((connection )?refused\)"
    )
    (line,) = lines
    assert re.fullmatch(expected, line)


def _settle(sock: urds.Socket) -> None:
    """Wait until everything is acknowledged: an acknowledgement may come late."""
    until_s = time.monotonic() + WAIT_S
    while sock._mailbox.unacknowledged():  # type: ignore[union-attr]  # it is bound
        assert time.monotonic() < until_s
        time.sleep(0.005)


def _wait_for_failure(local: str, peer: str, backend: object) -> None:
    from ipaddress import ip_address

    until_s = time.monotonic() + WAIT_S
    driver = backend._driver  # type: ignore[attr-defined]  # nothing public tells it yet
    while not driver.failure(ip_address(local), ip_address(peer)).endswith("refused"):
        assert time.monotonic() < until_s
        time.sleep(0.005)


@pytest.mark.parametrize(("number", "other"), [(1, 2), (2, 1)])
def test_an_absent_peer_is_named_with_the_error(number: int, other: int) -> None:
    """Whichever of the two connects."""
    with warnings() as lines, backend_with(drain_s=0.3, **SOON), urds.Socket() as sock:
        sock.bind((host(number), PORT))
        sock.sendto(b"one", (host(other), 4001))
    (line,) = lines
    start = re.escape(f"{host(other)}:4001: 1 message never sent within 0.3 s (drain_s) (")
    assert re.fullmatch(rf"{start}(connection )?refused\)", line)


def test_five_peers_are_named() -> None:
    with warnings() as lines, backend_with(drain_s=0.05, **SOON), urds.Socket() as sock:
        sock.bind((host(1), PORT))
        for other in range(2, 9):
            for _ in range(10 - other):
                sock.sendto(b"", (host(other), PORT))
    assert [line.partition(" (")[0] for line in lines] == [
        *(f"{host(one)}:4000: {10 - one} messages never sent within 0.05 s" for one in range(2, 7)),
        "other peers: 5 messages not acknowledged within 0.05 s",
    ]


def test_a_closed_socket_is_told_of_when_its_time_is_over(met: Receiver) -> None:
    """Long before the process ends."""
    with warnings() as lines, backend_with(linger_s=0.2, drain_s=0, **SOON):
        with urds.Socket() as sock:
            sock.bind((host(1), PORT))
            sock.sendto(b"one", met.address)
            met.expect("one")
            _settle(sock)
            met.stop()
            sock.sendto(b"two", met.address)
            sock.sendto(b"nobody", (host(3), PORT))
        until_s = time.monotonic() + WAIT_S
        while len(lines) < 2:
            assert time.monotonic() < until_s
            time.sleep(0.005)
    met.go_on()
    met.expect("two")
    first, second = sorted(lines)
    start = f"{host(2)}: of a closed socket: "
    assert first == start + "1 message not acknowledged within 0.2 s (linger_s)"
    start = f"{host(3)}: of a closed socket: 1 message never sent within 0.2 s (linger_s)"
    assert re.fullmatch(re.escape(start) + r" \((connection )?refused\)", second)


def test_what_lingers_into_the_end_is_told() -> None:
    """Its time ends while the process drains; nothing is left then, and it is told."""
    with warnings() as lines, backend_with(linger_s=0.2, drain_s=5, **SOON), urds.Socket() as sock:
        sock.bind((host(1), PORT))
        sock.sendto(b"nobody", (host(3), PORT))
    (line,) = lines
    assert line.startswith(f"{host(3)}: of a closed socket: 1 message never sent within 0.2 s")


def test_who_asks_for_cancelling_hears_nothing() -> None:
    with warnings() as lines, backend_with(linger_s=0, drain_s=0.1, **SOON):
        with urds.Socket() as sock:
            sock.bind((host(1), PORT))
            sock.sendto(b"nobody", (host(3), PORT))
        time.sleep(0.05)
    assert lines == []
