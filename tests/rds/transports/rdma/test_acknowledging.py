"""When an RDMA path asks for acknowledgements, and gives one unasked."""

import socket
import time
from collections.abc import Iterator

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from urds.rds.constants import SOL_RDS, SockOpt, Transport
from urds.rds.runtime.inprocess import InProcess

ARRIVAL_S = 10.0
SEND_BYTES_MAX = 100_000


@pytest.fixture
def backend() -> Iterator[InProcess]:
    with backend_with(rdma_devices=["shm0"]) as made:
        yield made


@pytest.fixture
def pair(backend: InProcess) -> Iterator[tuple[urds.Socket, urds.Socket]]:
    """Give a sender and a receiver that have met: the first message of a path asks anyway."""
    with urds.Socket() as sender, urds.Socket() as receiver:
        for number, sock in enumerate((sender, receiver), 1):
            sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, int(Transport.IB))
            sock.bind((host(number), 0))
            sock.settimeout(ARRIVAL_S)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES_MAX)
        sender.sendto(b"first", receiver.getsockname())
        assert receiver.recv(10) == b"first"
        finish_pass(sender)
        yield sender, receiver


def finish_pass(sock: urds.Socket) -> bool:
    """Wait until everything sent is acknowledged; return whether it was."""
    deadline_s = time.monotonic() + ARRIVAL_S
    while sock.unacknowledged and time.monotonic() < deadline_s:
        time.sleep(0.001)
    return not sock.unacknowledged


def test_the_last_messages_of_a_burst_are_acknowledged_unasked(
    backend: InProcess, pair: tuple[urds.Socket, urds.Socket]
) -> None:
    sender, receiver = pair
    asked = backend.counters()["recv_ack_required"]
    for _ in range(3):
        sender.sendto(b"asks for nothing", receiver.getsockname())
    assert finish_pass(sender)
    assert backend.counters()["recv_ack_required"] == asked


@pytest.mark.parametrize(
    ("payload_bytes", "asks"), [(SEND_BYTES_MAX // 2 - 1, 0), (SEND_BYTES_MAX // 2, 1)]
)
def test_a_sender_whose_account_is_half_full_asks(
    backend: InProcess, pair: tuple[urds.Socket, urds.Socket], payload_bytes: int, asks: int
) -> None:
    sender, receiver = pair
    before = backend.counters()["recv_ack_required"]
    sender.sendto(bytes(payload_bytes), receiver.getsockname())
    assert len(receiver.recv(SEND_BYTES_MAX)) == payload_bytes
    assert backend.counters()["recv_ack_required"] == before + asks
