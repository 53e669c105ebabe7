"""The `udp` provider: real sockets, two processes, a bad relay between them, a killed peer."""

import errno
import socket
from collections.abc import Iterator
from random import Random

import pytest

from tests.verbs.pair import End, bytes_of, connect, reads
from tests.verbs.relay import Relay
from urds.verbs import (
    Context,
)
from urds.verbs.engine.packets import PacketKind
from urds.verbs.providers.base import (
    ConnectionEventKind,
)
from urds.verbs.providers.udp import UdpAdapter, UdpSettings

SECOND_NS = 1_000_000_000
HOST = "127.0.0.1"


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    left, right = End(Context("udp0")), End(Context("udp0"))
    yield left, right
    left.context.close()
    right.context.close()


def test_a_listener_at_all_addresses_answers_from_the_one_that_was_asked(
    ends: tuple[End, End],
) -> None:
    left, right = ends
    port = right.listen(("0.0.0.0", 0)).local[1]
    left.connect(("127.0.0.7", port))
    assert left.wait_for(ConnectionEventKind.ESTABLISHED)
    reads(left, right)
    assert right.connection is not None
    assert right.connection.local == ("127.0.0.7", port)


@pytest.mark.parametrize(
    ("wildcard", "host", "own"),
    [("0.0.0.0", "127.0.0.7", "127.0.0.1"), ("::", "::1", "::1")],
)
def test_a_client_at_all_addresses_is_answered_and_names_the_one_that_it_uses(
    ends: tuple[End, End], wildcard: str, host: str, own: str
) -> None:
    left, right = ends
    local = right.listen((host, 0)).local
    left.connect(local, (wildcard, 0))
    assert left.wait_for(ConnectionEventKind.ESTABLISHED)
    reads(left, right)
    reads(right, left)
    assert left.connection is not None
    assert right.connection is not None
    assert left.connection.local == right.connection.peer
    assert left.connection.local[0] == own


def test_a_client_at_all_addresses_hears_of_an_unbound_port_at_once(ends: tuple[End, End]) -> None:
    left, _ = ends
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    left.connect((HOST, port), ("0.0.0.0", 0))
    assert left.wait_for_end(2 * SECOND_NS) is ConnectionEventKind.REFUSED


def test_ipv6_works_as_ipv4(ends: tuple[End, End]) -> None:
    left, right = ends
    connect(left, right, ("::1", 0))
    reads(left, right)


def test_an_unbound_port_is_told_at_once(ends: tuple[End, End]) -> None:
    left, _ = ends
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    left.connect((HOST, port))
    assert left.wait_for_end(2 * SECOND_NS) is ConnectionEventKind.REFUSED


def test_a_listener_may_outlive_its_device(ends: tuple[End, End]) -> None:
    listener = ends[0].listen((HOST, 0))
    ends[0].context.close()
    listener.close()


@pytest.mark.parametrize(("theirs", "agreed"), [(None, 8192), (1400, 1400), (9000, 8192)])
def test_the_smaller_mtu_of_two_counts(theirs: int | None, agreed: int) -> None:
    left = End(Context(adapter=UdpAdapter(settings=UdpSettings(mtu_bytes=8192))))
    right = End(Context(adapter=UdpAdapter(settings=UdpSettings(mtu_bytes=theirs))))
    try:
        connect(left, right, (HOST, 0))
        assert left.qp.engine.mtu_bytes == right.qp.engine.mtu_bytes == agreed
        reads(left, right, count=10, length=20_000)
        reads(right, left, count=10, length=20_000)
    finally:
        left.context.close()
        right.context.close()


def test_garbage_does_no_harm(ends: tuple[End, End]) -> None:
    left, right = ends
    connect(left, right, (HOST, 0))
    assert isinstance(right.adapter, UdpAdapter)
    random = Random(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as pending:
        for length in range(0, 3000, 11):
            pending.sendto(random.randbytes(length), (HOST, right.adapter.port))
    reads(left, right)
    assert right.adapter.wait(lambda: right.adapter.packets.dropped_malformed > 200, SECOND_NS)


def test_an_mtu_beyond_udp_is_refused() -> None:
    with pytest.raises(ValueError, match="mtu of 70000 bytes, not 256 to 65000"):
        UdpAdapter(settings=UdpSettings(mtu_bytes=70_000))


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(OSError) as caught:
        UdpAdapter(settings=UdpSettings(address="192.0.2.1"))
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_a_relay_holds_one_message_back_and_lets_it_go(ends: tuple[End, End]) -> None:
    left, right = ends
    relay = Relay(right.listen((HOST, 0)).local[1])
    try:
        left.connect((HOST, relay.port))
        assert left.wait_for(ConnectionEventKind.ESTABLISHED)
        relay.hold_back(lambda packet: packet.kind is PacketKind.SEND and packet.msn == 2)
        right.post_receives(3, 100)
        for number in range(3):
            left.send(number, bytes_of(number, 100))
        assert right.cq.wait_for(1, 5)[0].wr_id == 0
        assert left.adapter.wait(lambda: len(relay.held()) > 1, 5 * SECOND_NS)
        assert len(right.cq) == 0
        relay.release()
        assert [wc.wr_id for wc in right.cq.wait_for(2, 5)] == [1, 2]
    finally:
        relay.close()
