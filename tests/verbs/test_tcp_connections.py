"""Connections of the tcp provider: how they begin and how they end, within and across processes."""

import errno
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.verbs.tcp_ends import ESTABLISHED, End, Server, adapters, connected
from urds.verbs.engine.numbers import QPAttrMask, QPState, WCStatus
from urds.verbs.engine.queue_pair import QPAttr
from urds.verbs.providers.base import ConnectionEventKind, ConnectParameters, PortSpace
from urds.verbs.providers.tcp import TcpAdapter

SECOND_NS = 1_000_000_000


@pytest.fixture
def openings() -> Iterator[tuple[TcpAdapter, ...]]:
    with adapters(None, None) as opened:
        yield opened


def test_both_sides_tell_what_they_bring(openings: tuple[TcpAdapter, ...]) -> None:
    server, client, served = Server(openings[1]), End(openings[0]), End(openings[1])
    client.connect(server.address, private_data=b"who", responder_resources=3, initiator_depth=5)
    request = server.request()
    assert request.parameters.private_data == b"who"
    assert request.parameters.responder_resources == 5
    assert request.parameters.initiator_depth == 3
    assert request.connection.local == server.address
    served.accept(request, private_data=b"me", responder_resources=4, initiator_depth=8)
    assert served.qp.state is QPState.RTS
    established = client.event(ESTABLISHED)
    assert established.parameters.private_data == b"me"
    assert established.parameters.initiator_depth == 4
    assert client.qp.attr.max_rd_atomic == 4 and served.qp.attr.max_dest_rd_atomic == 4
    assert client.qp.attr.max_dest_rd_atomic == 3 and served.qp.attr.max_rd_atomic == 3
    assert client.connection.peer == server.address
    assert client.connection.local == served.connection.peer
    served.event(ESTABLISHED)


def test_a_full_backlog_refuses(openings: tuple[TcpAdapter, ...]) -> None:
    server = Server(openings[1], backlog=2)
    clients = [End(openings[0]) for _ in range(3)]
    for client in clients:
        client.connect(server.address)
    openings[0].wait(lambda: any(client.events for client in clients), 5 * SECOND_NS)
    (refused,) = [client for client in clients if client.events]
    refused.event(ConnectionEventKind.REFUSED)
    assert openings[1].stats.requests_refused == 1
    # An answer makes room.
    with openings[1].lock:
        server.request().connection.reject()
    refused.connect(server.address)
    server.request()
    server.request()


def test_a_silent_listener_is_given_up(openings: tuple[TcpAdapter, ...]) -> None:
    """Its TCP takes the connection; the MPA reply never comes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = End(openings[0])
        with openings[0].lock:
            client.connection = openings[0].connect(
                client.qp,
                silent.getsockname(),
                PortSpace.TCP,
                ConnectParameters(),
                on_event=client.note,
                timeout_ns=SECOND_NS // 20,
            )
        client.event(ConnectionEventKind.UNREACHABLE)


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"", b"MPA ID Req Frame\0\0\0\0"])
def test_a_listener_that_is_none_of_ours(openings: tuple[TcpAdapter, ...], answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        client = End(openings[0])
        client.connect(other.getsockname())
        accepted, _ = other.accept()
        accepted.sendall(answer)
        accepted.close()
        client.until(lambda: bool(client.events))
        # A close with our request unread is a reset, which also means that there is no listener.
        assert client.events[0].kind in (ConnectionEventKind.ERROR, ConnectionEventKind.REFUSED)


def test_a_requester_that_goes_ends_its_request(openings: tuple[TcpAdapter, ...]) -> None:
    server, client = Server(openings[1]), End(openings[0])
    client.connect(server.address)
    request, heard = server.request(), []
    request.connection.on_event = heard.append
    with openings[0].lock:
        client.connection.close()
    assert openings[1].wait(lambda: bool(heard), 5 * SECOND_NS)
    assert heard[0].kind is ConnectionEventKind.ERROR
    with pytest.raises(OSError, match="no request waits") as refused:
        End(openings[1]).accept(request)
    assert refused.value.errno == errno.EINVAL
    assert client.events == []


def test_misuse_is_refused(openings: tuple[TcpAdapter, ...]) -> None:
    client, adapter = End(openings[0]), openings[0]

    def refused(call: Callable[[], object], wanted: int) -> None:
        with pytest.raises(OSError) as raised, adapter.lock:
            call()
        assert raised.value.errno == wanted

    def connect(qp: Any, peer: tuple[str, int], **fields: Any) -> None:
        parameters = ConnectParameters(**fields)
        adapter.connect(qp, peer, PortSpace.TCP, parameters, on_event=client.note)

    refused(lambda: connect(None, ("127.0.0.1", 1)), errno.EINVAL)
    refused(lambda: connect(client.qp, ("localhost", 1)), errno.EINVAL)
    refused(lambda: connect(client.qp, ("127.0.0.1", 70_000)), errno.EINVAL)
    refused(lambda: connect(client.qp, ("127.0.0.1", 1), private_data=bytes(509)), errno.ENOMEM)
    refused(
        lambda: adapter.listen(("192.0.2.1", 0), PortSpace.TCP, backlog=1, on_event=client.note),
        errno.EADDRNOTAVAIL,
    )
    refused(
        lambda: adapter.connect(
            client.qp,
            ("127.0.0.1", 1),
            PortSpace.TCP,
            ConnectParameters(initiator_depth=129),
            on_event=client.note,
        ),
        errno.EINVAL,
    )
    refused(lambda: connect(End(openings[1]).qp, ("127.0.0.1", 1)), errno.EINVAL)
    server = Server(openings[1])
    refused(
        lambda: adapter.listen(server.address, PortSpace.TCP, backlog=1, on_event=client.note),
        errno.EADDRINUSE,
    )
    client.connect(server.address)
    refused(lambda: connect(client.qp, server.address), errno.EINVAL)
    assert client.connection is not None


def test_a_queue_pair_led_by_hand_is_refused(openings: tuple[TcpAdapter, ...]) -> None:
    """The objects refuse it before; the adapter does for those who drive it themselves."""
    client, mask = End(openings[0]), QPAttrMask
    attr = QPAttr(qp_state=QPState.INIT)
    with openings[0].lock:
        client.qp.modify(attr, mask.STATE | mask.PKEY_INDEX | mask.PORT | mask.ACCESS_FLAGS, 0)
        openings[0].progress_qp(client.qp)
        attr.qp_state, attr.ah_attr = QPState.RTR, openings[0].datagrams.vector
        client.qp.modify(
            attr,
            mask.STATE | mask.AV | mask.PATH_MTU | mask.DEST_QPN | mask.RQ_PSN
            | mask.MAX_DEST_RD_ATOMIC | mask.MIN_RNR_TIMER,
            0,
        )  # fmt: skip
        with pytest.raises(OSError, match="connect or accept") as refused:
            openings[0].progress_qp(client.qp)
    assert refused.value.errno == errno.EOPNOTSUPP
    assert client.qp.state is QPState.RESET


# -- ends


def test_a_disconnect_flushes_what_was_sent_before() -> None:
    with connected() as (client, server):
        memories = [server.receive(100_000) for _ in range(20)]
        for index in range(20):
            client.send(bytes([index]) * 100_000)
        client.disconnect()
        client.event(ConnectionEventKind.DISCONNECTED)
        assert client.qp.state is QPState.ERR
        assert all(wc.status in (WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR) for wc in client.sent(20))
        assert {wc.status for wc in server.received(20)} == {WCStatus.SUCCESS}
        assert [memory.data[99_999] for memory in memories] == list(range(20))
        server.event(ConnectionEventKind.DISCONNECTED)
        assert server.qp.state is QPState.ERR


def test_both_may_disconnect_at_once() -> None:
    with connected() as (client, server):
        client.disconnect()
        server.disconnect()
        for end in (client, server):
            end.event(ConnectionEventKind.DISCONNECTED)
            end.disconnect()  # once more is nothing
        assert not client.adapter.wait(
            lambda: bool(client.events or server.events), SECOND_NS // 10
        )
        for end in (client, server):
            assert not end.adapter.connections


def test_a_closed_opening_breaks_its_connections() -> None:
    with connected() as (client, server):
        client.adapter.close()
        client.adapter.close()
        server.event(ConnectionEventKind.BROKEN)
        assert server.qp.state is QPState.ERR
        with pytest.raises(OSError), client.adapter.lock:
            Server(client.adapter)


def test_a_forgotten_connection_tells_its_peer_only() -> None:
    with connected() as (client, server):
        with client.adapter.lock:
            client.connection.close()
        server.event(ConnectionEventKind.DISCONNECTED)
        assert client.events == []


def test_a_queue_pair_led_to_error_breaks_the_connection() -> None:
    with connected() as (client, server):
        with client.adapter.lock:
            client.qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE, 0)
            client.adapter.progress_qp(client.qp)
        client.event(ConnectionEventKind.BROKEN)
        assert "LOCAL_CATASTROPHIC" in server.event(ConnectionEventKind.BROKEN).reason
        assert server.adapter.stats.terminates_received == 1


# -- another process
