"""Sockets between two processes: bytes, ends, a peer that is killed, several devices."""

import errno
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.rsocket.socket_pairs import WAIT_S, Task, receive_exactly
from tests.support import places
from tests.support.children import Child
from tests.support.places import Place
from urds.rsocket import create_connection
from urds.rsocket.link import devices
from urds.rsocket.link.devices import DEVICES_VARIABLE
from urds.rsocket.socket import Socket
from urds.verbs.device import find_device

# Shared memory reaches no other host.
DEVICES = ("shm0", "tcp0", "udp0") if places.is_loopback() else ("tcp0", "udp0")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have tests run at each place of `TEST_PLACES`."""
    places.generate_tests(metafunc, "place")


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Have this process be host 0 of a place; the peer is host 1."""
    with places.taken(request) as taken, taken.inside(taken.address(0)):
        yield taken


class Peer(Child):
    """A process that listens, and its address."""

    def __init__(self, place: Place, act: str, names: str) -> None:
        super().__init__(
            *("-m", "tests.rsocket.socket_peer", act, place.address(1)),
            prefix=place.prefix(1),
            environ={DEVICES_VARIABLE: names},
        )
        host, port = self.hear().split()
        self.address = (host, int(port))


@contextmanager
def opened(names: str) -> Iterator[None]:
    """Open devices for the sockets made meanwhile: each at the place where this thread is."""
    adapters = [find_device(name).open_adapter() for name in names.split(",")]
    try:
        with devices.use(*adapters):
            yield
    finally:
        for adapter in adapters:
            adapter.close()


@contextmanager
def talking_to(
    place: Place, imm_data: str, names: str, *, own: str | None = None
) -> Iterator[tuple[Peer, Socket]]:
    """Start a peer and connect to it."""
    peer = Peer(place, imm_data, names)
    try:
        with opened(own or names), create_connection(peer.address, WAIT_S) as client:
            yield peer, client
    finally:
        peer.kill()


@pytest.mark.parametrize("device", DEVICES)
def test_bytes_come_back_from_another_process(place: Place, device: str) -> None:
    with talking_to(place, "echo", device) as (_, client):
        rng = random.Random(9)
        for byte_count in (1, 100, 70_000, 1_000_000):
            data = rng.randbytes(byte_count)
            task = Task(lambda data=data: client.sendall(data))
            assert client.recv(byte_count, socket.MSG_WAITALL) == data
            task.result()
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


@pytest.mark.parametrize("device", DEVICES)
def test_everything_sent_before_a_half_close_is_counted(place: Place, device: str) -> None:
    with talking_to(place, "count", device) as (_, client):
        for _ in range(20):
            client.sendall(bytes(300_000))
        client.shutdown(socket.SHUT_WR)
        assert receive_exactly(client, 100) == b"6000000"


@pytest.mark.parametrize("device", DEVICES)
def test_a_process_that_ends_in_order_leaves_its_bytes(place: Place, device: str) -> None:
    with talking_to(place, "leave", device) as (peer, client):
        assert receive_exactly(client, 200_000) == b"x" * 100_000
        assert peer.process.wait(WAIT_S) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_killed_peer_is_an_error_to_who_reads_and_who_writes(place: Place, device: str) -> None:
    """docs/reference/rsocket.md 19, point 10."""
    with talking_to(place, "sleep", device) as (peer, client):
        assert client.recv(6, socket.MSG_WAITALL) == b"asleep"
        task = Task(lambda: client.recv(1))
        peer.kill()
        with pytest.raises((ConnectionResetError, TimeoutError)) as caught:
            task.result()
        assert caught.value.errno == errno.ECONNRESET, "late: not even the timeout was needed"
        with pytest.raises(ConnectionResetError):
            client.send(b"x")


@pytest.mark.parametrize("device", DEVICES)
def test_a_killed_peer_ends_a_send_that_waits(place: Place, device: str) -> None:
    with talking_to(place, "sleep", device) as (peer, client):
        client.settimeout(None)
        assert client.recv(6, socket.MSG_WAITALL) == b"asleep"
        task = Task(lambda: client.sendall(bytes(64 << 20)))
        time.sleep(0.1)
        peer.kill()
        with pytest.raises(ConnectionResetError):
            task.result()


@pytest.mark.loopback_only("shm0 reaches no other host")
def test_the_first_device_with_a_listener_is_taken(place: Place) -> None:
    with talking_to(place, "echo", "shm0,tcp0") as (_, client):
        assert client.link.context.name == "shm0"
    with talking_to(place, "echo", "tcp0", own="shm0,tcp0") as (_, client):
        assert client.link.context.name == "tcp0"
        client.sendall(b"over the second")
        assert receive_exactly(client, 15) == b"over the second"
    with talking_to(place, "echo", "shm0,tcp0", own="tcp0") as (_, client):
        assert client.link.context.name == "tcp0"
        client.sendall(b"to the second")
        assert receive_exactly(client, 13) == b"to the second"
