"""Datagram queue pairs of the tcp provider: UDP between openings, and who serves a port."""

import socket
from collections.abc import Iterator

import pytest

from tests.verbs.tcp_ends import ESTABLISHED, End, adapters
from urds.verbs.engine.numbers import GRH_BYTES, QPAttrMask, QPState, QPType, WCFlag, WCStatus
from urds.verbs.engine.queue_pair import QPAttr
from urds.verbs.engine.work import SendWR
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
    VerbsConnectionEvent,
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


def send(end: End, data: bytes, other: End, *, qkey: int = QKEY) -> None:
    wr = SendWR(sg=[end.memory(data).sge()])
    wr.set_wr_ud(other.adapter.datagrams.vector, other.qp.qpn, qkey)
    with end.adapter.lock:
        end.qp.post_send(wr, end.adapter.now_ns())
        end.adapter.progress_qp(end.qp)


@pytest.fixture
def openings() -> Iterator[tuple[TcpAdapter, ...]]:
    with adapters(None, None) as opened:
        yield opened


@pytest.mark.parametrize("count", [0, 1, 1400])
def test_a_datagram_arrives(openings: tuple[TcpAdapter, ...], count: int) -> None:
    near, far = ready(openings[0]), ready(openings[1])
    send(near, b"d" * count, far)
    assert near.sent()[0].status is WCStatus.SUCCESS
    (wc,) = far.received()
    assert (wc.status, wc.byte_len, wc.src_qp) == (WCStatus.SUCCESS, GRH_BYTES + count, near.qp.qpn)
    assert WCFlag.GRH in wc.wc_flags
    assert far.memories[0].data[GRH_BYTES : GRH_BYTES + count] == b"d" * count


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


def test_one_that_is_too_large_is_refused(openings: tuple[TcpAdapter, ...]) -> None:
    near, far = ready(openings[0]), ready(openings[1])
    try:
        send(near, bytes(1401), far)
    except OSError:
        return
    assert near.sent()[0].status is not WCStatus.SUCCESS


def test_over_ipv6() -> None:
    settings = TcpProviderSettings(address="::1")
    with adapters(settings, settings) as (near_adapter, far_adapter):
        near, far = ready(near_adapter), ready(far_adapter)
        send(near, b"six", far)
        assert far.received()[0].byte_len == GRH_BYTES + 3


def test_a_wrong_key_is_dropped(openings: tuple[TcpAdapter, ...]) -> None:
    near, far = ready(openings[0]), ready(openings[1])
    send(near, b"no", far, qkey=QKEY + 1)
    send(near, b"yes", far)
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


# -- the datagram port space


def test_who_serves_a_port(openings: tuple[TcpAdapter, ...]) -> None:
    requests: list[VerbsConnectionEvent] = []
    near, far = ready(openings[0]), ready(openings[1])
    with openings[1].lock:
        listener = openings[1].listen(
            ("127.0.0.1", 0), PortSpace.UDP, backlog=4, on_event=requests.append
        )
    with openings[0].lock:
        connection = openings[0].connect(
            near.qp,
            listener.local,
            PortSpace.UDP,
            ConnectParameters(private_data=b"who?"),
            on_event=near.note,
        )
    assert openings[1].wait(lambda: bool(requests), 5_000_000_000)
    assert requests[0].parameters.private_data == b"who?"
    with openings[1].lock:
        requests[0].connection.accept(far.qp, ConnectParameters(private_data=b"me", qkey=QKEY))
    event = near.event(ESTABLISHED)
    assert (event.qpn, event.parameters.qkey) == (far.qp.qpn, QKEY)
    assert event.parameters.private_data == b"me"
    assert event.vector is not None
    wr = SendWR(sg=[near.memory(b"hello").sge()])
    wr.set_wr_ud(event.vector, event.qpn, event.parameters.qkey)
    with openings[0].lock:
        near.qp.post_send(wr, 0)
        openings[0].progress_qp(near.qp)
    assert far.received()[0].byte_len == GRH_BYTES + 5
    with openings[0].lock:
        connection.close()
        listener.close()


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
