"""Streams over shm0 between two processes of which one or both have the compiled engine.

Nothing on the wire tells which: bytes, credits, receives in place and a killed peer are alike.
"""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.rsocket.socket_pairs import HOST, WAIT_S, Task, receive_exactly
from tests.support.children import Child
from urds.common.implementation import NATIVE, PYTHON, VARIABLE
from urds.rsocket import allocate, create_connection
from urds.rsocket.link import devices
from urds.rsocket.link.devices import DEVICES_VARIABLE
from urds.rsocket.socket import Socket
from urds.verbs.providers.shm import ShmAdapter

pytest.importorskip("urds_native")
from urds.verbs.providers.shm.native_adapter import NativeShmAdapter

OPENERS = {PYTHON: ShmAdapter, NATIVE: NativeShmAdapter}
SIZES = (1, 79, 80, 81, 255, 256, 2048, 16_383, 16_384, 65_536, 65_537, 200_001, 1_500_000)
ROUNDS = 40

own_and_other = pytest.mark.parametrize(
    ("own", "other"), [(PYTHON, NATIVE), (NATIVE, PYTHON), (NATIVE, NATIVE)]
)


@contextmanager
def talking(own: str, other: str, act: str) -> Iterator[tuple[Child, Socket]]:
    """Connect an engine of this process to one of another."""
    peer = Child(
        *("-m", "tests.rsocket.socket_peer", act, HOST),
        environ={DEVICES_VARIABLE: "shm0", VARIABLE: other},
    )
    adapter = OPENERS[own]()
    try:
        host, port = peer.hear().split()
        with devices.use(adapter), create_connection((host, int(port)), WAIT_S) as client:
            yield peer, client
    finally:
        adapter.close()
        peer.kill()


def received(rng: random.Random, client: Socket, byte_count: int) -> bytes:
    """Receive so many bytes in one of the ways."""
    way = rng.randrange(3)
    if way == 0:
        return receive_exactly(client, byte_count)
    room = memoryview(bytearray(byte_count)) if way == 1 else allocate(byte_count)
    assert client.recv_into(room, 0, socket.MSG_WAITALL) == byte_count
    return bytes(room)


@own_and_other
def test_bytes_come_back_whatever_the_engines(own: str, other: str) -> None:
    """Sends of all sizes, several before their answers are read, which are read in every way."""
    rng = random.Random(f"{own}{other}")
    with talking(own, other, "echo") as (_, client):
        for _ in range(ROUNDS):
            parts = [rng.randbytes(rng.choice(SIZES)) for _ in range(rng.randrange(1, 5))]
            task = Task(lambda parts=parts: [client.sendall(part) for part in parts])
            whole = b"".join(parts)
            taken = rng.randrange(len(whole) + 1)
            found = received(rng, client, taken) if taken else b""
            found += received(rng, client, len(whole) - taken) if taken < len(whole) else b""
            assert found == whole
            task.result()
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


@own_and_other
def test_all_is_there_that_was_sent_before_the_end(own: str, other: str) -> None:
    rng = random.Random(f"{own}{other}")
    with talking(own, other, "count") as (_, client):
        total = 0
        for _ in range(ROUNDS * 5):
            size = min(rng.choice(SIZES), 20_000)
            total += size
            client.sendall(bytes(size))
        client.shutdown(socket.SHUT_WR)
        assert receive_exactly(client, 100) == b"%d" % total


@own_and_other
def test_a_killed_peer_ends_a_send_that_waits(own: str, other: str) -> None:
    with talking(own, other, "sleep") as (peer, client):
        assert client.recv(6, socket.MSG_WAITALL) == b"asleep"
        client.settimeout(None)
        task = Task(lambda: client.sendall(bytes(64 << 20)))
        peer.kill()
        with pytest.raises(ConnectionResetError):
            task.result()
