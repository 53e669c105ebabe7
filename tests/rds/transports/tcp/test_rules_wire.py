"""Rules of the wire specification that the other tests of TCP do not show one by one.

Between a node and a kernel, or between urds nodes where both ends are looked at.
"""

from __future__ import annotations

import errno
from ipaddress import ip_address

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.frames import NO_EXTENSION
from tests.rds.transports.tcp.kernel_peer import KernelPeer
from tests.rds.transports.tcp.meetings import (
    KERNEL_PORT,
    arrived,
    meet,
    numbered,
    send_to_kernel,
    settle,
)
from tests.rds.transports.tcp.nodes import PORT, Node
from tests.rds.transports.tcp.relay import Relay, Way
from tests.rds.transports.tcp.test_multipath import PORTS, fan_out, rows_of
from tests.support.waiting import wait_until
from urds.rds.constants import MSG_DONTWAIT, RDS_TCP_PORT
from urds.rds.control.events import PeerKind
from urds.rds.control.paths import path_of_port
from urds.rds.plane.contract import MailboxSettings
from urds.rds.wire.congestion_map import CongestionMap
from urds.rds.wire.extensions import parse_handshake

ORDERS = ["lower", "higher"]


def take(node: Node, mailbox: object, count: int) -> list[tuple[bytes, tuple[str, int]]]:
    """Wait for `count` messages of a mailbox and take them."""
    taken: list[tuple[bytes, tuple[str, int]]] = []

    def enough() -> bool:
        taken.extend(node.take_from(mailbox))
        return len(taken) >= count

    wait_until(enough)
    return taken


# -- names and connections


@pytest.mark.rule("wire-single-transport")
@pytest.mark.parametrize("order", ORDERS)
def test_all_sockets_of_two_nodes_share_one_connection(lab: Lab, order: str) -> None:
    node, peer = lab.pair(order)
    meet(node, peer)
    mailboxes = [node.bind(port) for port in range(4001, 4009)]
    for mailbox in mailboxes:
        for port in (5000, 6000, 7000):
            mailbox.sendto(b"%d" % mailbox.port, (peer.address, port))
        peer.send(b"back", source_port=6000, target_port=mailbox.port)
    assert len(arrived(peer, 24)) == 24
    assert {(one.source_port, one.target_port) for one in peer.received} == {
        (mailbox.port, port) for mailbox in mailboxes for port in (5000, 6000, 7000)
    }
    for mailbox in mailboxes:
        assert take(node, mailbox, 1) == [(b"back", (peer.address, 6000))]
    begun = (peer.accepts, peer.connects)
    assert begun == ((1, 0) if order == "lower" else (1, 1)), (
        "one connection, or call-back request and call"
    )


@pytest.mark.rule("wire-addresses-and-ports")
def test_an_end_is_an_address_and_a_port_of_16_bits(lab: Lab) -> None:
    one, other = lab.own_pair("lower")
    mailboxes = [node.bind(65535) for node in (one, other)]
    mailboxes[0].sendto(b"over there", (other.address, 65535))
    mailboxes[0].sendto(b"right here", (one.address, 65535))
    assert take(other, mailboxes[1], 1) == [(b"over there", (one.address, 65535))]
    assert take(one, mailboxes[0], 1) == [(b"right here", (one.address, 65535))]
    with pytest.raises(OverflowError):
        mailboxes[0].sendto(b"beyond", (other.address, 65536))


@pytest.mark.rule("wire-port-space")
def test_ports_of_tcp_and_udp_do_not_matter(lab: Lab) -> None:
    one, other = lab.own_pair("lower")
    with lab.listen(2, 4321), lab.take_udp_port(2, 4321):
        for port in (4321, RDS_TCP_PORT):
            mailbox = other.bind(port)
            one.send(b"to RDS", other.address, port)
            assert take(other, mailbox, 1) == [(b"to RDS", (one.address, PORT))]


@pytest.mark.rule("wire-tcp-encapsulation")
def test_a_header_goes_before_each_datagram_and_names_its_socket(lab: Lab) -> None:
    node, peer = lab.pair("lower")
    meet(node, peer)
    peer.frames.clear()
    payloads = [b"", b"x", bytes(5000)]
    send_to_kernel(node, peer, payloads)
    assert len(arrived(peer, 3)) == 3
    assert [frame.payload for frame in peer.frames] == payloads
    for frame in peer.frames:
        assert frame.ports == (PORT, KERNEL_PORT)
        assert frame.header.payload_bytes == len(frame.payload)
    sockets = {port: node.bind(port) for port in (4001, 4002)}
    for port in (4002, 4001, 4002):
        peer.send(b"for %d" % port, source_port=KERNEL_PORT, target_port=port)
    peer.run_until(lambda: not peer.undelivered)
    for port, count in ((4001, 1), (4002, 2)):
        expected = [(b"for %d" % port, (peer.address, KERNEL_PORT))] * count
        assert take(node, sockets[port], count) == expected


@pytest.mark.rule("wire-connect-on-send", "wire-source-port")
def test_the_first_message_makes_the_connection(lab: Lab) -> None:
    node, peer = lab.pair("lower")
    peer.run_for(0.1)
    assert peer.accepts == 0
    send_to_kernel(node, peer, [b"first"])
    assert arrived(peer, 1) == [b"first"]
    assert peer.listener.getsockname()[1] == RDS_TCP_PORT
    (port,) = peer.node_ports
    assert port not in (RDS_TCP_PORT, PORT)
    assert port >= 1024


@pytest.mark.rule("wire-transparent", "wire-reconnect", "rds7-reconnect")
@pytest.mark.parametrize("order", ORDERS)
def test_a_program_sends_and_need_not_know_of_connections(lab: Lab, order: str) -> None:
    """Neither node is told to connect; between any two messages the connection is reset."""
    one, other = lab.own_pair(order)
    for number in range(20):
        one.send(b"%d" % number, other.address)
        assert take(other, other.mailbox, 1) == [(b"%d" % number, (one.address, PORT))]
        breaking = (one, other)[number % 2]
        breaking.backend.break_connections()
    assert one.counters["downs"] + other.counters["downs"] >= 20


@pytest.mark.rule("wire-many-destinations")
def test_one_socket_talks_with_many_nodes(lab: Lab) -> None:
    node = lab.node(2)
    others = [lab.node(last) for last in (1, 3, 4)]
    for other in others:
        node.send(b"out", other.address)
        assert take(other, other.mailbox, 1) == [(b"out", (node.address, PORT))]
        other.send(b"back", node.address)
    back = take(node, node.mailbox, 3)
    assert sorted(source for _, source in back) == [(other.address, PORT) for other in others]


# -- congestion


def last_map(peer: KernelPeer) -> CongestionMap:
    """Return the newest map that the node sent."""
    return CongestionMap.parse([frame.payload for frame in peer.frames if frame.is_map][-1])


@pytest.mark.rule(
    "wire-congestion-accept", "rds7-congested-still-accepts", "rds7-receive-unbounded"
)
@pytest.mark.parametrize("order", ORDERS)
def test_a_congested_port_takes_what_comes(lab: Lab, order: str) -> None:
    """The kernel here sends on, whatever the map says."""
    node, peer = lab.pair(order)
    meet(node, peer)
    full = node.bind(5000)
    full.configure(MailboxSettings(receive_bytes_max=1000))
    early, late = numbered("early", 200), numbered("late", 2000)
    for payload in early:
        peer.send(payload, source_port=KERNEL_PORT, target_port=5000)
    peer.run_until(lambda: last_map(peer).test(5000))
    for payload in late:
        peer.send(payload, source_port=KERNEL_PORT, target_port=5000)
    peer.run_until(lambda: not peer.undelivered)
    assert [payload for payload, _ in take(node, full, 2200)] == early + late


def is_refused(node: Node, target: str) -> bool:
    """Tell whether a send to port 5000 is refused as congested."""
    try:
        node.mailbox.sendto(bytes(100), MSG_DONTWAIT, (target, 5000))
    except OSError as refused:
        if refused.errno != errno.ENOBUFS:
            raise
        return True
    return False


@pytest.mark.rule(
    "wire-congested", "wire-congestion-update", "wire-congestion-sender", "rds7-congestion-update"
)
def test_every_connected_node_hears_of_a_full_port(lab: Lab) -> None:
    receiver = lab.node(2)
    busy, idle = lab.node(1), lab.node(3)
    full = receiver.bind(5000)
    full.configure(MailboxSettings(receive_bytes_max=1000))
    for node in (busy, idle):
        node.send(b"hello", receiver.address)
    assert len(take(receiver, receiver.mailbox, 2)) == 2
    assert not is_refused(idle, receiver.address)
    wait_until(lambda: is_refused(busy, receiver.address))
    wait_until(lambda: is_refused(idle, receiver.address))
    assert receiver.account(full).receive_queued_bytes > 1000
    waiting = take(receiver, full, 11)
    assert {len(payload) for payload, _ in waiting} == {100}
    wait_until(lambda: not is_refused(busy, receiver.address))
    wait_until(lambda: not is_refused(idle, receiver.address))


# -- multipath


@pytest.mark.rule("wire-mprds-incapable")
@pytest.mark.parametrize("order", ORDERS)
def test_a_bare_pong_means_one_path(lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    node, peer = lab.pair(order, kernel={"probes": False, "npaths": 8}, npaths=8)
    monkeypatch.setattr(peer, "_handshake", lambda: NO_EXTENSION)
    monkeypatch.setattr(peer, "_learn", lambda handshake: None)
    send_to_kernel(node, peer, [b"first"])
    if peer.lower:
        peer.seek()
    peer.run_until(lambda: node.counters["handshakes"] == 1, wait_s=0.5)
    assert (1, 0) in [frame.ports for frame in peer.frames], "the node asked"
    settle(node, peer)
    send_to_kernel(node, peer, [b"second"])
    assert arrived(peer, 2) == [b"first", b"second"]
    assert len(node.peer_paths(peer.address).paths) == 1
    assert sum(path.connection is not None for path in peer.paths) == 1


@pytest.mark.rule("wire-mprds-capable")
def test_only_traffic_over_tcp_is_hashed(lab: Lab) -> None:
    """Two addresses of one node exchange messages without a connection, so without paths."""
    one, other = lab.own_pair("lower", npaths=8)
    fan_out(one, other, 8)
    with lab.inside(5):
        here = one.backend.bind(
            address=ip_address(lab.address(5)),
            port=PORT,
            settings=MailboxSettings(),
            transport=None,
        )
    mailboxes = [one.bind(port) for port in PORTS[1:]]
    before = [path.sequence_next for path in rows_of(one, other)]
    for mailbox in mailboxes:
        mailbox.sendto(b"by loop", (lab.address(5), PORT))
        mailbox.sendto(b"by TCP", (other.address, PORT))
    assert len(take(one, here, len(mailboxes))) == len(mailboxes)
    assert not one.knows(lab.address(5))
    assert len(take(other, other.mailbox, len(mailboxes))) == len(mailboxes)
    after = [path.sequence_next for path in rows_of(one, other)]
    assert all(now > then for now, then in zip(after, before, strict=True)), "by all eight"


@pytest.mark.rule("rds7-order-otherwise-free")
def test_a_socket_does_not_wait_for_another_ones_path(lab: Lab) -> None:
    one, other = lab.own_pair("lower", npaths=2)
    fan_out(one, other, 2)
    on_path = [
        one.bind(next(port for port in PORTS[1:] if path_of_port(port, 2) == index))
        for index in (0, 1)
    ]
    with other.blind(one.address):
        on_path[0].sendto(b"sent first", (other.address, PORT))
        on_path[1].sendto(b"sent second", (other.address, PORT))
        assert take(other, other.mailbox, 1) == [(b"sent second", (one.address, on_path[1].port))]
    assert take(other, other.mailbox, 1) == [(b"sent first", (one.address, on_path[0].port))]


# -- generations


@pytest.mark.rule("wire-generation-probe")
def test_probe_and_pong_tell_the_generation_to_a_known_own_node(lab: Lab) -> None:
    lower, higher, relay = lab.relayed()
    probe, pong = (1, 0), (0, 1)
    lower.send(b"hello", higher.address)
    wait_until(lambda: tells_both(relay, pong, lower, higher))
    assert not tells(relay, Way.UP, probe, lower), "the first probe goes to an unknown peer"
    wait_until(lambda: lower.connection(higher.address).facts.kind is PeerKind.URDS)
    wait_until(lambda: higher.connection(lower.address).facts.kind is PeerKind.URDS)
    relay.cut_all()
    wait_until(lambda: tells_both(relay, probe, lower, higher))


def tells_both(relay: Relay, ports: tuple[int, int], lower: Node, higher: Node) -> bool:
    """Tell whether both nodes sent such a frame with their generation."""
    return tells(relay, Way.UP, ports, lower) and tells(relay, Way.DOWN, ports, higher)


def tells(relay: Relay, way: Way, ports: tuple[int, int], node: Node) -> bool:
    """Tell whether a probe or pong with the node's generation went that way."""
    told = [
        parse_handshake(frame.header.extension).generation
        for frame in relay.sent(way)
        if frame.ports == ports
    ]
    return node.driver.generation in told
