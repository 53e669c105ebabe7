"""What the congestion maps of peers cost one local address."""

import tracemalloc
from ipaddress import ip_address

import pytest

from urds.rds.plane.python.state import Host

PEERS = [ip_address(f"10.0.0.{number}") for number in range(1, 33)]
FULL, EMPTY = b"\xff" * 8192, bytes(8192)


@pytest.mark.parametrize(
    ("rounds", "most_bytes"), [([FULL], 8600), ([FULL, EMPTY, FULL], 8600), ([FULL, EMPTY], 400)]
)
def test_a_map_costs_its_bytes_at_most(rounds: list[bytes], most_bytes: int) -> None:
    """The peer chooses what is in it; a Python set of all ports would take 6.3 MB."""
    # The least of three: threads that other tests have left allocate meanwhile.
    assert min(grown_bytes(rounds) for _ in range(3)) / len(PEERS) < most_bytes


def grown_bytes(rounds: list[bytes]) -> int:
    """Return what a host holds more after maps of all peers have come."""
    host = Host(ip_address("10.0.0.100"))
    host.replace_peer_map(ip_address("10.0.0.200"), FULL)  # what is made once for all
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for data in rounds:
            for peer in PEERS:
                host.replace_peer_map(peer, data)
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_our_own_map_goes_out_as_it_is() -> None:
    host = Host(ip_address("10.0.0.100"))
    host.congested.set(4000)
    data = host.map_bytes()
    host.congested.clear(4000)
    assert data[500] == 1
    assert host.map_bytes() == EMPTY
