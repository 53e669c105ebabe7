"""Addresses that were released and are bound again, in the process that released them."""

from ipaddress import ip_address

import pytest

import urds
from tests.rds.sockets.hosts import host
from tests.support import backends
from urds.rds.runtime.inprocess import InProcess

pytestmark = pytest.mark.skipif(backends.IS_ATTACHED, reason="of a backend in this process")
PORT = 4000


def bound(number: int) -> urds.Socket:
    """Return a socket with an address and a time-out."""
    sock = urds.Socket()
    sock.bind((host(number), PORT))
    sock.settimeout(30)
    return sock


def test_what_was_sent_to_a_released_address_arrives_first_when_it_is_bound_again() -> None:
    with backends.made(drain_s=0) as backend, backends.in_use(backend), bound(1) as sender:
        assert isinstance(backend, InProcess)
        driver, there = backend.driver, (host(2), PORT)
        bound(2).close()
        for now_s in (0.0, 1e9):
            driver.releases.release_unused(now_s)
        assert driver.hosts[ip_address(host(2))].is_released
        for number in range(5):
            sender.sendto(b"%d" % number, there)
        with bound(2) as receiver:
            for number in range(5, 10):
                sender.sendto(b"%d" % number, there)
            assert [receiver.recv(10) for _ in range(10)] == [b"%d" % n for n in range(10)]
