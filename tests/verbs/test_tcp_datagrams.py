"""Datagram queue pairs of the tcp provider: UDP between openings, and who serves a port."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv6Address

import pytest

from tests.verbs.tcp_ends import End, adapters
from urds.verbs.engine.numbers import GRH_BYTES, QPAttrMask, QPState, QPType, WCStatus
from urds.verbs.engine.queue_pair import QPAttr
from urds.verbs.engine.work import SendWR
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
)
from urds.verbs.providers.tcp import TcpAdapter, TcpProviderSettings

QKEY = 0x1234
LARGE = TcpProviderSettings(datagram_bytes_max=65_000)


def ready(adapter: TcpAdapter) -> End:
    """Return a datagram end in RTS with three receives."""
    end, mask = End(adapter, qp_type=QPType.UD), QPAttrMask
    with adapter.lock:
        for state, more in (
            (QPState.INIT, mask.PKEY_INDEX | mask.PORT | mask.QKEY),
            (QPState.RTR, mask(0)),
            (QPState.RTS, mask.SQ_PSN),
        ):
            attr = QPAttr(qp_state=state, qkey=QKEY)
            end.qp.modify(attr, mask.STATE | more, adapter.now_ns())
    end.memories = [end.receive(66_000, wr_id=index) for index in range(3)]
    return end


def send(end: End, data: bytes, other: End, *, qkey: int = QKEY, qpn: int | None = None) -> None:
    wr = SendWR(sg=[end.memory(data).sge()])
    wr.set_wr_ud(other.adapter.datagrams.vector, qpn or other.qp.qpn, qkey)
    with end.adapter.lock:
        end.qp.post_send(wr, end.adapter.now_ns())
        end.adapter.progress_qp(end.qp)


@pytest.fixture
def openings() -> Iterator[tuple[TcpAdapter, ...]]:
    with adapters(None, None) as opened:
        yield opened


def test_an_opening_tells_where_its_datagrams_arrive(openings: tuple[TcpAdapter, ...]) -> None:
    """And takes no port before a caller asks."""
    assert openings[0].datagrams._sockets == {}
    assert openings[0].port == openings[0].datagrams.vector.port > 0
    assert openings[0].port != openings[1].port


def test_two_queue_pairs_of_one_opening(openings: tuple[TcpAdapter, ...]) -> None:
    one, other = ready(openings[0]), ready(openings[0])
    send(one, b"here", other)
    assert other.received()[0].byte_len == GRH_BYTES + 4


def test_a_large_datagram_where_the_opening_allows_it() -> None:
    with adapters(LARGE, LARGE) as (near_adapter, far_adapter):
        near, far = ready(near_adapter), ready(far_adapter)
        send(near, b"l" * 65_000, far)
        assert far.received()[0].byte_len == GRH_BYTES + 65_000


def test_over_ipv6() -> None:
    settings = TcpProviderSettings(address="::1")
    with adapters(settings, settings) as (near_adapter, far_adapter):
        near, far = ready(near_adapter), ready(far_adapter)
        send(near, b"six", far)
        assert far.received()[0].byte_len == GRH_BYTES + 3


def test_strange_bytes_are_dropped_and_counted(openings: tuple[TcpAdapter, ...]) -> None:
    far = ready(openings[1])
    vector = openings[1].datagrams.vector
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as pending:
        for data in (b"", b"x", bytes(2000), b"\x01\x10\x03\x00" + bytes(60)):
            pending.sendto(data, ("127.0.0.1", vector.port))
    packets = openings[1].datagrams.packets
    far.until(lambda: packets.dropped_malformed + packets.dropped_unknown == 4)
    assert len(far.rcq) == 0


def test_what_is_no_message_of_a_manager_is_dropped_and_counted(
    openings: tuple[TcpAdapter, ...],
) -> None:
    near, far = ready(openings[0]), ready(openings[1])
    send(near, b"to queue pair 1", far, qpn=1)
    far.until(lambda: openings[1].datagrams.packets.dropped_manager == 1)
    send(near, b"and on", far)
    assert far.received()[0].byte_len == GRH_BYTES + 6


def test_a_datagram_that_the_system_refuses_is_counted_and_completes(
    openings: tuple[TcpAdapter, ...],
) -> None:
    near = ready(openings[0])
    broadcast = IPv6Address("::ffff:255.255.255.255")  # EACCES without SO_BROADCAST
    wr = SendWR(sg=[near.memory(b"x").sge()])
    wr.set_wr_ud(replace(openings[1].datagrams.vector, dgid=broadcast.packed), 2, QKEY)
    with near.adapter.lock:
        near.qp.post_send(wr, near.adapter.now_ns())
        near.adapter.progress_qp(near.qp)
    near.until(lambda: openings[0].stats.datagrams_dropped_unsent == 1)
    assert near.sent()[0].status is WCStatus.SUCCESS


# -- the datagram port space


def test_an_unserved_port(openings: tuple[TcpAdapter, ...]) -> None:
    near = ready(openings[0])
    with openings[1].lock:
        there = openings[1].datagrams.vector
    with openings[0].lock:
        openings[0].connect(
            near.qp,
            ("127.0.0.1", there.port),
            PortSpace.UDP,
            ConnectParameters(),
            on_event=near.note,
        )
    near.event(ConnectionEventKind.REFUSED)


def test_both_port_spaces_have_the_same_numbers(openings: tuple[TcpAdapter, ...]) -> None:
    with openings[0].lock:
        stream = openings[0].listen(
            ("127.0.0.1", 0), PortSpace.TCP, backlog=1, on_event=lambda _event: None
        )
        datagram = openings[0].listen(
            stream.local, PortSpace.UDP, backlog=1, on_event=lambda _event: None
        )
        assert datagram.local == stream.local
        datagram.close()
        again = openings[0].listen(
            stream.local, PortSpace.UDP, backlog=1, on_event=lambda _event: None
        )
        with pytest.raises(OSError):
            openings[0].listen(stream.local, PortSpace.UDP, backlog=1, on_event=lambda _event: None)
        again.close()
