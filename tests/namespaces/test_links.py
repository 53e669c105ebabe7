"""What a link between hosts does and 127/8 does not: go down, lose address, route, packet size.

Messages go both ways all the time. None is lost, doubled or reordered, and each test prints after
how long messages of then came through again. A silent link costs at most the time for which TCP
backs off. Where the end at the fault loses its connection meanwhile, the other does not hear of it,
and the attempts to connect must survive.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.namespaces.conftest import Say
from tests.namespaces.traffic import Traffic
from tests.support.places import LINK, Namespaces

pytestmark = pytest.mark.each_carrier("tcp0")

FAULT_S = 1.5
RECOVERED_S = 12.0


@pytest.fixture
def traffic(hosts: Namespaces) -> Iterator[Traffic]:
    """Have messages go between the hosts."""
    for side in hosts.sides:
        if hosts.ipv6:  # a link that goes down takes them with it otherwise
            side.run("sh", "-c", f"echo 1 > /proc/sys/net/ipv6/conf/{LINK}/keep_addr_on_down")
    made = Traffic(hosts)
    try:
        made.recover(wait_s=5.0)
        yield made
        made.finish()
    finally:
        made.close()


def interrupted(
    hosts: Namespaces, traffic: Traffic, *, down: str, up: str, breaks: bool, host: int = 0
) -> float:
    """Have a command of `ip` at one host, wait, undo it; return the seconds to recovery."""
    side = hosts.side(host)
    traffic.run(0.2)
    side.ip(down)
    traffic.run(FAULT_S / 2)
    if breaks:
        traffic.break_connection(host)
    traffic.run(FAULT_S / 2)
    assert traffic.silence_s(host) > FAULT_S / 2, "it was no fault"
    side.ip(up)
    return traffic.recover(wait_s=RECOVERED_S)


SILENT, BROKEN = False, True


@pytest.mark.parametrize(("host", "breaks"), [(0, SILENT), (1, BROKEN)], ids=["silent", "broken"])
def test_a_link_goes_down_and_comes_up(
    hosts: Namespaces, traffic: Traffic, say: Say, host: int, breaks: bool
) -> None:
    down, up = f"link set {LINK} down", f"link set {LINK} up"
    took_s = interrupted(hosts, traffic, down=down, up=up, breaks=breaks, host=host)
    say(f"recovered after {took_s:.2f} s")


@pytest.mark.parametrize(("host", "breaks"), [(0, SILENT), (1, BROKEN)], ids=["silent", "broken"])
def test_an_address_goes_and_comes_again(
    hosts: Namespaces, traffic: Traffic, say: Say, host: int, breaks: bool
) -> None:
    place = f"{hosts.address(host)}/{64 if hosts.ipv6 else 24} dev {LINK}"
    down, up = f"address del {place}", f"address add {place}{' nodad' * hosts.ipv6}"
    took_s = interrupted(hosts, traffic, down=down, up=up, breaks=breaks, host=host)
    say(f"recovered after {took_s:.2f} s")


@pytest.mark.parametrize(
    ("kind", "host", "breaks"),
    [("blackhole", 0, SILENT), ("unreachable", 1, BROKEN), ("prohibit", 0, BROKEN)],
    ids=["blackhole", "unreachable", "prohibit"],
)
def test_a_route_leads_nowhere_for_a_while(
    hosts: Namespaces, traffic: Traffic, say: Say, kind: str, host: int, breaks: bool
) -> None:
    route = f"{kind} {hosts.address(1 - host)}/{128 if hosts.ipv6 else 32}"
    down, up = f"route add {route}", f"route del {route}"
    took_s = interrupted(hosts, traffic, down=down, up=up, breaks=breaks, host=host)
    say(f"recovered after {took_s:.2f} s")


def test_the_mtu_shrinks_under_way(hosts: Namespaces, traffic: Traffic, say: Say) -> None:
    """From 1500 bytes to the least that IPv6 allows, first at one end, then at the other."""
    traffic.run(0.3)
    for side in hosts.sides:
        assert "mtu 1500" in side.run("ip", "link", "show", LINK)
        side.ip(f"link set {LINK} mtu 1280")
        took_s = traffic.recover(wait_s=RECOVERED_S)
        say(f"recovered after {took_s:.2f} s")
