"""Sockets between two processes: octets, ends, a peer that is killed, several devices."""

import errno
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.health.sources import ROOT
from tests.rsocket.socket_pairs import DEVICES, WAIT_S, Task, receive_exactly, using
from urds.rsocket import create_connection
from urds.rsocket.devices import DEVICES_VARIABLE
from urds.rsocket.sockets import Socket


class Peer:
    """A process that listens, and its address."""

    def __init__(self, word: str, devices: str) -> None:
        environ = {**os.environ, DEVICES_VARIABLE: devices, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.rsocket.socket_peer", word],
            env=environ,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        host, port = self.process.stdout.readline().split()
        self.address = (host, int(port))

    def kill(self) -> None:
        """End the process without a word."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def close(self) -> None:
        """End the process if it has not ended."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def talking_to(word: str, devices: str, *, own: str | None = None) -> Iterator[tuple[Peer, Socket]]:
    """Start a peer and connect to it."""
    peer = Peer(word, devices)
    try:
        with using(own or devices), create_connection(peer.address, WAIT_S) as client:
            yield peer, client
    finally:
        peer.close()


@pytest.mark.parametrize("device", DEVICES)
def test_octets_come_back_from_another_process(device: str) -> None:
    with talking_to("echo", device) as (_, client):
        chance = random.Random(9)
        for byte_count in (1, 100, 70_000, 1_000_000):
            data = chance.randbytes(byte_count)
            task = Task(lambda data=data: client.sendall(data))
            assert client.recv(byte_count, socket.MSG_WAITALL) == data
            task.result()
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


@pytest.mark.parametrize("device", DEVICES)
def test_everything_sent_before_a_half_close_is_counted(device: str) -> None:
    with talking_to("count", device) as (_, client):
        for _ in range(20):
            client.sendall(bytes(300_000))
        client.shutdown(socket.SHUT_WR)
        assert receive_exactly(client, 100) == b"6000000"


@pytest.mark.parametrize("device", DEVICES)
def test_a_process_that_ends_in_order_leaves_its_octets(device: str) -> None:
    with talking_to("leave", device) as (peer, client):
        assert receive_exactly(client, 200_000) == b"x" * 100_000
        assert peer.process.wait(WAIT_S) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_killed_peer_is_an_error_to_who_reads_and_who_writes(device: str) -> None:
    """rsocket.md 19, point 10."""
    with talking_to("sleep", device) as (peer, client):
        assert client.recv(6, socket.MSG_WAITALL) == b"asleep"
        task = Task(lambda: client.recv(1))
        peer.kill()
        with pytest.raises((ConnectionResetError, TimeoutError)) as caught:
            task.result()
        assert caught.value.errno == errno.ECONNRESET, "late: not even the timeout was needed"
        with pytest.raises(ConnectionResetError):
            client.send(b"x")


@pytest.mark.parametrize("device", DEVICES)
def test_a_killed_peer_ends_a_send_that_waits(device: str) -> None:
    with talking_to("sleep", device) as (peer, client):
        client.settimeout(None)
        assert client.recv(6, socket.MSG_WAITALL) == b"asleep"
        task = Task(lambda: client.sendall(bytes(64 << 20)))
        time.sleep(0.1)
        peer.kill()
        with pytest.raises(ConnectionResetError):
            task.result()


def test_the_first_device_on_which_somebody_listens_is_taken() -> None:
    with talking_to("echo", "shm0,tcp0") as (_, client):
        assert client.link.opening.name == "shm0"
    with talking_to("echo", "tcp0", own="shm0,tcp0") as (_, client):
        assert client.link.opening.name == "tcp0"
        client.sendall(b"over the second")
        assert receive_exactly(client, 15) == b"over the second"
    with talking_to("echo", "shm0,tcp0", own="tcp0") as (_, client):
        assert client.link.opening.name == "tcp0"
        client.sendall(b"to the second")
        assert receive_exactly(client, 13) == b"to the second"
