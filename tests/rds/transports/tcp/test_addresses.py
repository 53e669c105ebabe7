"""Who may talk with a node, and nodes at IPv6 addresses, link-local ones among them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.processes import NodeProcess
from tests.support import carriers, places
from tests.support.places import LINK, Namespace

pytestmark = pytest.mark.each_carrier("tcp0")

ONE, NEIGHBOUR, OTHER = "10.99.0.1", "10.99.0.2", "10.98.0.1"
OTHERS_SUBNET, ONES_SUBNET = "10.98.0.0/24", "10.99.0.0/24"
V6 = ("fd00:8::1", "fd00:8::2")
LINK_LOCAL = ("fe80::8:1", "fe80::8:2")
Start = Callable[..., NodeProcess]


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    """Give a namespace with three IPv4 and four IPv6 addresses."""
    if reason := places.missing():
        pytest.skip(reason)
    place = Namespace()
    place.ip(
        f"link add {LINK} type veth peer name v1",
        f"link set {LINK} up",
        "link set v1 up",
        *(f"address add {one}/24 dev {LINK}" for one in (ONE, NEIGHBOUR, OTHER)),
        *(f"address add {one}/64 dev {LINK} nodad" for one in V6 + LINK_LOCAL),
    )
    yield place
    place.close()


@pytest.fixture
def start(namespace: Namespace) -> Iterator[Start]:
    """Give what starts a node in the namespace."""
    with ExitStack() as ending:

        def start_one(address: str, **settings: Any) -> NodeProcess:
            process = NodeProcess(address, prefix=namespace.prefix, **settings)
            ending.callback(process.close)
            return process

        yield start_one


def exchange(one: NodeProcess, other: NodeProcess) -> None:
    """Send a hundred messages each way."""
    numbers = [str(number) for number in range(100)]
    for sender, receiver in ((one, other), (other, one)):
        sender.ask("send", target=receiver.address, count=100)
        assert receiver.ask("collect", count=100, wait_s=5.0)[0] == numbers


# -- allowed peers


@pytest.mark.loopback_only("loopback itself is the subject")
def test_loopback_peers_are_allowed_without_being_told(lab: Lab) -> None:
    one, other = lab.process(1), lab.process(2)
    exchange(one, other)


@pytest.mark.loopback_only("the peer outside has an IPv4 address")
def test_a_peer_outside_is_refused_with_the_name_of_the_setting(lab: Lab) -> None:
    node = lab.process(1)
    code, text = node.ask("send_error", target="10.1.2.3")
    assert code == errno.EACCES
    assert "URDS_ALLOW" in text
    assert "10.1.2.3" in text


def test_the_own_subnet_is_allowed(start: Start) -> None:
    exchange(start(ONE), start(NEIGHBOUR))


@pytest.mark.parametrize("allow", [[ONES_SUBNET], ["any"]])
def test_a_peer_that_allows_us_is_refused_until_we_allow_it(start: Start, allow: list[str]) -> None:
    node, other = start(ONE), start(OTHER, allow=allow)
    other.ask("send", target=ONE, count=3)
    assert node.ask("collect", count=3, wait_s=0.5)[0] == []
    assert node.ask("counters")[carriers.control_counter("refused_not_allowed")] > 0
    refused = [line for line in node.ask("logged") if OTHER in line]
    said = f"connection of {OTHER} refused: not allowed (setting: URDS_ALLOW)"
    assert refused[0] == "RDMA " * carriers.is_rdma() + said
    node.close()
    node = start(ONE, environ={"URDS_ALLOW": f"192.0.2.0/24, {OTHERS_SUBNET}"})
    assert node.ask("collect", count=3, wait_s=5.0)[0] == ["0", "1", "2"]
    node.ask("send", target=OTHER, count=1)
    assert other.ask("collect", count=1, wait_s=5.0)[0] == ["0"]


def test_any_allows_all_networks(start: Start) -> None:
    exchange(start(ONE, environ={"URDS_ALLOW": "any"}), start(OTHER, allow=["any"]))


# -- IPv6


def test_ipv6_hosts_exchange_messages_through_resets(start: Start) -> None:
    one, other = (start(address, reconnect_max_delay_ms=20) for address in V6)
    exchange(one, other)
    one.begin("send", target=V6[1], count=2000, break_every=100)
    got, _ = other.ask("collect", count=2000, wait_s=10.0, break_every=100)
    assert got == [str(number) for number in range(2000)]
    one.finish()


def test_link_local_hosts_need_their_scope(namespace: Namespace, start: Start) -> None:
    """Requests over shared memory name hosts without a scope: the second device finds them."""
    devices = ["shm0", "tcp0"]
    one, other = (
        start(f"{address}%{namespace.scope()}", rdma_devices=devices) for address in LINK_LOCAL
    )
    exchange(one, other)
    code, _ = one.ask("send_error", target=LINK_LOCAL[1])
    assert code == errno.EINVAL


def test_ipv4_and_ipv6_do_not_mix(start: Start) -> None:
    node = start(V6[0])
    code, _ = node.ask("send_error", target=ONE)
    assert code == errno.EOPNOTSUPP
