"""Several paths between urds nodes: fan-out, port hash, order, breaks of single paths."""

from __future__ import annotations

import errno
import threading
from collections import defaultdict
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from random import Random
from typing import Any

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.nodes import PORT, Node
from tests.rds.transports.tcp.relay import Way
from tests.support.waiting import wait_until
from urds.common.types import IPAddress
from urds.rds.control.paths import path_of_port
from urds.rds.control.tcp_peer import TcpPeer
from urds.rds.plane.contract import PathRow
from urds.rds.plane.python.stream_path import StreamPath
from urds.rds.runtime.actions import Actions
from urds.rds.runtime.local_addresses import PeerPaths
from urds.rds.transports import tcp
from urds.rds.transports.tcp import TcpSettings, reset_in_place

ORDERS = ["lower", "higher"]
PATHS = [2, 4, 8]
# Ports of which the hash covers all eight paths. Source: docs/reference/rds.md 1.8 (linux v6.12).
PORTS = range(4000, 4064)


def rows_of(node: Node, peer: Node) -> list[PathRow]:
    """Return the state of all paths to the peer."""
    with node.driver.lock:
        if not node.knows(peer.address):
            return []
        count = len(node.peer_paths(peer.address).paths)
        return [node.row(peer.address, index) for index in range(count)]


def fan_out(one: Node, other: Node, npaths: int) -> None:
    """Send a first message and wait until all paths are up at both ends."""
    one.send(b"first", other.address)
    for node, peer in ((one, other), (other, one)):
        wait_for_paths(node, peer, npaths)
    assert other.mailbox.recvfrom(100)[0] == b"first"


def wait_for_paths(node: Node, peer: Node, npaths: int) -> None:
    """Wait until so many paths may send."""
    wait_until(lambda: is_spread(node, peer, npaths))


def reset_when_up(node: Node, peer: Node, index: int) -> None:
    """Reset the path's stream once it has one."""
    wait_until(lambda: node.row(peer.address, index).up)
    with node.driver.lock, suppress(AssertionError, KeyError, OSError):  # it may be down again
        reset_in_place(node.stream(peer.address, index))


def is_spread(node: Node, peer: Node, npaths: int) -> bool:
    """Tell whether so many paths have a stream that may send."""
    paths = rows_of(node, peer)
    up = [path for path in paths if path.up and not path.held]
    return len(paths) == len(up) == npaths


class Collector:
    """Numbers by source port, in the order of arrival."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.by_port: dict[int, list[int]] = defaultdict(list)
        self.count = 0

    def look(self) -> int:
        """Take what is here; return how much there was so far."""
        for payload, source in self._node.take_from(self._node.mailbox):
            self.by_port[source[1]].append(int(payload))
            self.count += 1
        return self.count


def send_from_all(mailboxes: list[Any], target: str, numbers: range) -> None:
    """Send the same numbers from every mailbox."""
    for number in numbers:
        for mailbox in mailboxes:
            mailbox.sendto(str(number).encode(), (target, PORT))


@pytest.mark.rule("wire-mprds-paths", "wire-mprds-agree")
@pytest.mark.parametrize("npaths", PATHS)
@pytest.mark.parametrize("order", ORDERS)
def test_both_ends_fan_out(lab: Lab, order: str, npaths: int) -> None:
    one, other = lab.own_pair(order, npaths=npaths)
    fan_out(one, other, npaths)
    lower, higher = (one, other) if order == "lower" else (other, one)
    for index in range(npaths):
        port = lower.stream(higher.address, index).getsockname()[1]
        assert port % 8 == index
        assert higher.stream(lower.address, index).getpeername()[1] == port


@pytest.mark.rule("wire-mprds-hash", "wire-mprds-on-path")
@pytest.mark.parametrize("npaths", PATHS)
def test_a_socket_keeps_to_the_path_of_its_port(lab: Lab, npaths: int) -> None:
    one, other = lab.own_pair("lower", npaths=npaths)
    fan_out(one, other, npaths)
    mailboxes = [one.mailbox, *(one.bind(port) for port in PORTS[1:])]
    before = [path.sequence_next for path in rows_of(one, other)]
    send_from_all(mailboxes, other.address, range(5))
    collector = Collector(other)
    wait_until(lambda: collector.look() == 5 * len(PORTS))
    sent = [path.sequence_next for path in rows_of(one, other)]
    expected = [
        5 * sum(path_of_port(port, npaths) == index for port in PORTS) for index in range(npaths)
    ]
    assert [now - then for now, then in zip(sent, before, strict=True)] == expected
    assert all(expected), "every path carried something"


@pytest.mark.rule("wire-mprds-before-data")
@pytest.mark.parametrize("npaths", PATHS)
@pytest.mark.parametrize("order", ORDERS)
def test_order_is_kept_across_the_fan_out(lab: Lab, order: str, npaths: int) -> None:
    """Every socket begins on path 0 and moves in the middle of its stream."""
    one, other = lab.own_pair(order, npaths=npaths)
    mailboxes = [one.mailbox, *(one.bind(port) for port in PORTS[1:])]
    collector = Collector(other)
    count = 0

    def spread_or_send_more() -> bool:
        nonlocal count
        send_from_all(mailboxes, other.address, range(count, count + 2))
        count += 2
        return is_spread(one, other, npaths)

    wait_until(spread_or_send_more)
    send_from_all(mailboxes, other.address, range(count, count + 50))
    count += 50
    wait_until(lambda: collector.look() == count * len(PORTS), wait_s=20.0)
    assert len(collector.by_port) == len(PORTS)
    assert all(numbers == list(range(count)) for numbers in collector.by_port.values())


@pytest.mark.reference
def test_without_the_catch_up_rule_messages_overtake(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamPath, "hold_behind", lambda self, other: None)
    got = move_while_path_0_is_slow(lab, monkeypatch)
    assert got != list(range(41))
    assert sorted(got) == list(range(41))


def test_the_catch_up_rule_holds_messages_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert move_while_path_0_is_slow(lab, monkeypatch) == list(range(41))


def move_while_path_0_is_slow(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have path 0 stand still at the receiver while a socket moves from it to path 1."""
    one, other = lab.own_pair("lower", npaths=2)
    moving = one.bind(next(port for port in PORTS[1:] if path_of_port(port, 2) == 1))
    reached, go_on = threading.Event(), threading.Event()
    set_npaths = TcpPeer._set_npaths

    def set_npaths_later(self: TcpPeer) -> None:
        if str(self.local) == one.address:
            reached.set()
            assert go_on.wait(5.0)
        set_npaths(self)

    monkeypatch.setattr(TcpPeer, "_set_npaths", set_npaths_later)
    collector = Collector(other)
    moving.sendto(b"0", (other.address, PORT))
    assert reached.wait(5.0)
    wait_until(lambda: collector.look() == 1)
    with other.blind(one.address):
        send_from_all([moving], other.address, range(1, 21))
        go_on.set()
        wait_until(lambda: is_spread(one, other, 2))
        send_from_all([moving], other.address, range(21, 41))
        try:
            wait_until(lambda: collector.look() > 1, wait_s=0.2)
        except AssertionError:
            pass  # as it should be: path 1 waits for path 0
    wait_until(lambda: collector.look() == 41)
    return collector.by_port[moving.port]


def test_what_is_sent_while_routes_change_is_not_overtaken(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket sends once more over path 0 in the middle of the fan-out, then over its own."""
    one, other = lab.own_pair("lower", npaths=2)
    moving = one.bind(next(port for port in PORTS[1:] if path_of_port(port, 2) == 1))
    collector = Collector(other)
    route = Actions._route
    with ExitStack() as path_0_stands_still:

        def route_late(self: Actions, peer: IPAddress, paths: PeerPaths, npaths: int) -> None:
            if self is one.driver.actions:
                path_0_stands_still.enter_context(other.blind(one.address))
                send_from_all([moving], other.address, range(1))
            route(self, peer, paths, npaths)
            if self is one.driver.actions:
                send_from_all([moving], other.address, range(1, 5))

        monkeypatch.setattr(Actions, "_route", route_late)
        moving.sendto(b"-1", (other.address, PORT))
        wait_until(lambda: is_spread(one, other, 2))
        with suppress(AssertionError):  # as it should be: path 1 waits for path 0
            wait_until(lambda: collector.look() > 1, wait_s=0.2)
    wait_until(lambda: collector.look() == 6)
    assert collector.by_port[moving.port] == list(range(-1, 5))


@pytest.mark.rule("wire-generation-transport")
@pytest.mark.parametrize("npaths", PATHS)
@pytest.mark.parametrize("order", ORDERS)
def test_resets_of_single_paths_cost_nothing(lab: Lab, order: str, npaths: int) -> None:
    rng = Random(f"{order} {npaths}")
    one, other = lab.own_pair(order, npaths=npaths)
    fan_out(one, other, npaths)
    mailboxes = [one.mailbox, *(one.bind(port) for port in PORTS[1:])]
    collector = Collector(other)
    for start in range(0, 300, 10):
        send_from_all(mailboxes, other.address, range(start, start + 10))
        collector.look()
        node, peer = rng.choice(((one, other), (other, one)))
        reset_when_up(node, peer, rng.choice(rows_of(node, peer)).index)
    wait_until(lambda: collector.look() == 300 * len(PORTS), wait_s=20.0)
    assert all(numbers == list(range(300)) for numbers in collector.by_port.values())
    wait_until(lambda: is_spread(one, other, npaths) and is_spread(other, one, npaths))
    assert one.counters["downs"] + other.counters["downs"] > 20


@pytest.mark.rule("wire-mprds-agree", "wire-mprds-minimum")
@pytest.mark.parametrize(("first", "second"), [(1, 8), (8, 1), (2, 8), (8, 4)])
@pytest.mark.parametrize("order", ORDERS)
def test_the_smaller_number_of_paths_counts(lab: Lab, order: str, first: int, second: int) -> None:
    one = lab.node(1 if order == "lower" else 3, npaths=first)
    other = lab.node(2, npaths=second)
    fan_out(one, other, min(first, second))
    send_from_all([one.bind(port) for port in PORTS[1:]], other.address, range(10))
    collector = Collector(other)
    wait_until(lambda: collector.look() == 10 * (len(PORTS) - 1))
    assert len(rows_of(one, other)) == len(rows_of(other, one)) == min(first, second)


@pytest.mark.parametrize("npaths", [1, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_a_restart_with_fewer_paths_fans_in(lab: Lab, order: str, npaths: int) -> None:
    """What was never sent goes over the paths that are left, before anything newer."""
    one, other = lab.own_pair(order, npaths=8)
    fan_out(one, other, 8)
    mailboxes = [one.mailbox, *(one.bind(port) for port in PORTS[1:])]
    other.close()
    wait_until(lambda: not any(path.up for path in rows_of(one, other)))
    send_from_all(mailboxes, other.address, range(5))
    other = lab.node(2, npaths=npaths)
    collector = Collector(other)
    wait_until(lambda: len(rows_of(one, other)) == npaths)
    send_from_all(mailboxes, other.address, range(5, 10))
    wait_until(lambda: collector.look() == 10 * len(PORTS))
    assert all(numbers == list(range(10)) for numbers in collector.by_port.values())
    assert one.counters["send_given_up"] == 0


def test_paths_keep_apart_through_a_relay(lab: Lab) -> None:
    """All connections cut at once, again and again: each path finds its own stream anew."""
    lower, higher, relay = lab.relayed(npaths=4)
    fan_out(lower, higher, 4)
    mailboxes = [lower.mailbox, *(lower.bind(port) for port in PORTS[1:])]
    collector = Collector(higher)
    for start in range(0, 100, 10):
        send_from_all(mailboxes, higher.address, range(start, start + 10))
        relay.cut_all()
        wait_until(lambda: is_spread(lower, higher, 4) or bool(collector.look()))
    wait_until(lambda: collector.look() == 100 * len(PORTS))
    assert all(numbers == list(range(100)) for numbers in collector.by_port.values())
    assert relay.sent(Way.UP)


def test_not_every_port_is_tried_from_an_address_that_is_away() -> None:
    """The address is one for documentation, which no interface has; nothing is sent."""
    ports = iter(range(40_000, 60_000, 8))
    away, peer = (ip_address(f"192.0.2.{last}") for last in (1, 2))
    with pytest.raises(OSError, match=r"from 192\.0\.2\.1 to 192\.0\.2\.2") as refused:
        tcp.connect(away, peer, TcpSettings(), ports)
    assert refused.value.errno == errno.EADDRNOTAVAIL
    assert next(ports) == 40_008
