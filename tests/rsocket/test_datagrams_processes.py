"""Datagram sockets of two processes: both ways, and a peer that is killed and started again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import pytest

from tests.rsocket.datagram_ends import HASTY, Ends, address_of, ends, take, until
from tests.support.children import Child
from urds.common.types import HostPort
from urds.rsocket.link.datagram_link import DatagramLink
from urds.rsocket.wire.datagram import DatagramOp, UdpHeader

ROOT = Path(__file__).parents[2]
DEVICES = ("shm0", "tcp0", "udp0", "shm0,tcp0")


class Peer(Child):
    """One life of the other process."""

    def __init__(self, kind: str, device: str, port: int = 0) -> None:
        super().__init__("-m", "tests.rsocket.datagram_peer", kind, device, port)
        self.address: HostPort = ("127.0.0.1", int(self.hear()))


@contextmanager
def peers() -> Iterator[list[Peer]]:
    """Kill all that was put into the list."""
    made: list[Peer] = []
    try:
        yield made
    finally:
        for peer in made:
            peer.kill()


def link_over(made: Ends, device: str) -> DatagramLink:
    return made.link(*device.split(","), host="127.0.0.1", settings=HASTY)


def asks(link: DatagramLink, target: HostPort, payload: bytes, timeout_s: float = 5.0) -> bool:
    """Send and wait for the same to come back; False if it did not."""
    link.send(payload, target)
    if not link.wait(lambda: link.readiness().readable, timeout_s):
        return False
    assert take(link) == (payload, target)
    return True


@pytest.mark.parametrize("device", DEVICES)
def test_two_processes_change_to_their_queue_pairs(device: str) -> None:
    with peers() as started, ends() as made:
        started.append(Peer("echo", device))
        target, link = started[0].address, link_over(made, device)
        assert asks(link, target, b"first")
        assert (link.stats.sent_by_udp, link.stats.received_by_udp) == (1, 1)
        until(lambda: asks(link, target, b"more") and link.stats.received_by_queue_pair > 0)
        for number in range(100):
            assert asks(link, target, bytes([number]) * (number * 13))
        assert link.stats.sent_by_queue_pair >= 90
        assert link.stats.received_by_queue_pair >= 90
        assert link.stats.queue_pairs_lost == 0
        link.send(b"bye", target)
        assert started[0].process.wait(20) == 0


def is_answered_by_queue_pair(link: DatagramLink, target: HostPort, wanted: int) -> bool:
    return asks(link, target, b"z") and link.stats.received_by_queue_pair >= wanted


@pytest.mark.parametrize("device", DEVICES)
def test_a_killed_peer_that_is_started_again_is_found_again(device: str) -> None:
    with peers() as started, ends() as made:
        started.append(Peer("echo", device))
        target, link = started[0].address, link_over(made, device)
        until(lambda: asks(link, target, b"x") and link.stats.received_by_queue_pair > 5)
        for _ in range(2):
            started[-1].kill()
            for _ in range(5):
                link.send(b"nobody hears it", target)
            started.append(Peer("echo", device, target[1]))
            until(lambda: asks(link, target, b"y", 0.05))
            wanted = link.stats.received_by_queue_pair + 1
            until(partial(is_answered_by_queue_pair, link, target, wanted))
        assert link.stats.queue_pairs_lost == 2


@pytest.mark.parametrize("device", DEVICES)
def test_a_killed_peer_that_only_listens_is_found_again(device: str) -> None:
    with peers() as started, ends() as made:
        started.append(Peer("count", device))
        link = link_over(made, device)
        for _ in range(2):
            peer = started[-1]
            until(partial(hears_by_queue_pair, peer, link))
            peer.kill()
            link.send(b"nobody hears it", peer.address)
            started.append(Peer("count", device, peer.address[1]))
        until(partial(hears_by_queue_pair, started[-1], link))
        assert link.stats.queue_pairs_lost == 2
        assert link.stats.received_by_queue_pair == link.stats.received_by_udp == 0


def hears_by_queue_pair(peer: Peer, link: DatagramLink) -> bool:
    """Send a datagram, and ask the peer aside whether anything came to its queue pair."""
    link.send(b"hello", peer.address)
    question = UdpHeader(DatagramOp.DATA, 1, ip_address("127.0.0.1")).emit() + b"tell"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as aside:
        aside.sendto(question, peer.address)
    return int(peer.hear()) > 3


def test_processes_without_a_device_in_common_stay_with_udp() -> None:
    with peers() as started, ends() as made:
        started.append(Peer("echo", "tcp0"))
        link = link_over(made, "shm0")
        for _ in range(20):
            assert asks(link, started[0].address, b"x")
        assert link.stats.sent_by_queue_pair == link.stats.look_ups == 0
        assert address_of(link)[0] == "127.0.0.1"
