"""Link-local IPv6 addresses between hosts: each names the link by a number of its own."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.rds.transports.tcp.processes import NodeProcess
from tests.support.places import LINK, Namespaces

pytestmark = [
    pytest.mark.each_carrier("tcp0"),
    pytest.mark.parametrize("hosts", ["netns6"], indirect=True),
]
ADDRESSES = ("fe80::8:1", "fe80::8:2")


@pytest.fixture
def scopes(hosts: Namespaces) -> tuple[int, int]:
    """Return the numbers that the hosts have for the link: they differ."""
    hosts.right.ip(f"link del {LINK}")
    hosts.right.ip(*(f"link add other{number} type bridge" for number in range(3)))
    hosts.left.ip(f"link add {LINK} type veth peer name {LINK} netns {hosts.right.pid}")
    for side, address in zip(hosts.sides, ADDRESSES, strict=True):
        side.ip(f"address add {address}/64 dev {LINK} nodad", f"link set {LINK} up")
    return hosts.left.scope(), hosts.right.scope()


@pytest.fixture
def nodes(hosts: Namespaces, scopes: tuple[int, int]) -> Iterator[list[NodeProcess]]:
    """Give a node at each end."""
    made: list[NodeProcess] = []
    try:
        for host in (0, 1):
            address = f"{ADDRESSES[host]}%{scopes[host]}"
            made.append(NodeProcess(address, prefix=hosts.prefix(host), reconnect_max_delay_ms=20))
        yield made
    finally:
        for node in made:
            node.close()


def test_each_sends_by_its_own_number_of_the_link(
    scopes: tuple[int, int], nodes: list[NodeProcess]
) -> None:
    """Through resets by who takes, so that either end connects."""
    assert scopes[0] != scopes[1]
    for host in (0, 1):
        target = f"{ADDRESSES[1 - host]}%{scopes[host]}"
        nodes[host].begin("send", target=target, count=500)
        got, broken = nodes[1 - host].ask("collect", count=500, wait_s=10.0, break_every=50)
        assert got == [str(number) for number in range(500)]
        assert broken > 0
        nodes[host].finish()


def test_without_a_number_it_is_refused(nodes: list[NodeProcess]) -> None:
    code, _ = nodes[0].ask("send_error", target=ADDRESSES[1])
    assert code == errno.EINVAL
