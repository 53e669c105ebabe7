"""Connections of the tcp provider: how they begin and how they end, within and across processes."""

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.verbs.tcp_ends import ESTABLISHED, End, Server, adapters, connected
from urds.verbs.engine.numbers import QPAttrMask, QPState, WCStatus, WROpcode
from urds.verbs.engine.queue_pair import QPAttr
from urds.verbs.providers.base import ConnectionEventKind, ConnectParameters, PortSpace
from urds.verbs.providers.tcp import TcpAdapter, TcpProviderSettings

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


def test_a_rejection_carries_its_words(openings: tuple[TcpAdapter, ...]) -> None:
    server, client = Server(openings[1]), End(openings[0])
    client.connect(server.address)
    request = server.request()
    with openings[1].lock:
        request.connection.reject(b"full")
    event = client.event(ConnectionEventKind.REJECTED)
    assert event.parameters.private_data == b"full"
    assert client.qp.state is QPState.RESET
    # The queue pair may try again.
    client.connect(server.address)
    server.request()


def test_without_a_listener(openings: tuple[TcpAdapter, ...]) -> None:
    client, server = End(openings[0]), Server(openings[1])
    with openings[1].lock:
        server.listener.close()
        server.listener.close()
    client.connect(server.address)
    client.event(ConnectionEventKind.REFUSED)


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


def test_a_queue_pair_may_be_connected_again() -> None:
    with connected() as (client, server):
        for end in (client, server):
            end.disconnect()
        listener = Server(server.adapter)
        for end in (client, server):
            end.event(ConnectionEventKind.DISCONNECTED)
            with end.adapter.lock:
                reset = QPAttr(qp_state=QPState.RESET)
                end.qp.modify(reset, QPAttrMask.STATE, end.adapter.now_ns())
                end.adapter.progress_qp(end.qp)
        client.connect(listener.address)
        server.accept(listener.request())
        client.event(ESTABLISHED)
        memory = server.receive(5)
        client.send(b"again")
        server.received()
        assert memory.data == b"again"


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


def test_work_under_way_is_flushed_by_the_peers_disconnect() -> None:
    with connected() as (client, server):
        for index in range(5):
            client.send(b"no receive there", wr_id=index)
        server.receive(1, wr_id=9)
        server.disconnect()
        client.event(ConnectionEventKind.DISCONNECTED)
        assert {wc.status for wc in client.sent(5)} <= {
            WCStatus.WR_FLUSH_ERR, WCStatus.REM_INV_REQ_ERR
        }  # fmt: skip


def test_a_removed_queue_pair_disconnects() -> None:
    with connected() as (client, server):
        with client.adapter.lock:
            client.adapter.remove(client.qp)
        server.event(ConnectionEventKind.DISCONNECTED)
        client.event(ConnectionEventKind.DISCONNECTED)


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


def test_a_closed_opening_breaks_its_connections() -> None:
    with connected() as (client, server):
        client.adapter.close()
        client.adapter.close()
        server.event(ConnectionEventKind.BROKEN)
        assert server.qp.state is QPState.ERR
        with pytest.raises(OSError), client.adapter.lock:
            Server(client.adapter)


def test_one_peer_that_breaks_disturbs_no_other() -> None:
    settings = TcpProviderSettings()
    with adapters(settings, settings) as (near, far):
        server = Server(far)
        pairs = []
        for _ in range(4):
            client, served = End(near), End(far)
            client.connect(server.address)
            served.accept(server.request())
            client.event(ESTABLISHED)
            served.event(ESTABLISHED)
            pairs.append((client, served))
        pairs[0][0].post(WROpcode.RDMA_WRITE, pairs[0][0].memory(b"x").sge(), rkey=0x999)
        pairs[0][1].event(ConnectionEventKind.BROKEN)
        for client, served in pairs[1:]:
            served.receive(2)
            client.send(b"ok")
            assert served.received()[0].status is WCStatus.SUCCESS


# -- another process

CHILD = """
import sys
from tests.verbs.tcp_ends import ESTABLISHED, End, Server
from urds.verbs.engine.numbers import WROpcode
from urds.verbs.providers.tcp import TcpAdapter

adapter = TcpAdapter("tcp0")
server = Server(adapter, sys.argv[1])
print(server.address[1], flush=True)
end = End(adapter)
end.init()
memories = [end.receive(65536) for _ in range(64)]
shared = end.memory(bytes(range(256)))
end.accept(
    server.request(),
    private_data=shared.region.rkey.to_bytes(4, "big") + shared.region.address.to_bytes(8, "big"),
)
end.event(ESTABLISHED)
for memory in memories:
    count = end.received()[0].byte_len
    end.post(WROpcode.SEND, memory.sge(0, count))
    end.sent()
sys.stdin.read()
"""


@pytest.fixture
def child(
    request: pytest.FixtureRequest,
) -> Iterator["tuple[subprocess.Popen[str], tuple[str, int]]"]:
    host = getattr(request, "param", "127.0.0.1")
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, host],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(["src", ".", *sys.path])},
    )
    assert process.stdout is not None
    yield process, (host, int(process.stdout.readline()))
    process.kill()
    process.communicate()


@pytest.mark.parametrize("child", ["127.0.0.1", "::1"], indirect=True)
def test_two_processes_talk(child: "tuple[subprocess.Popen[str], tuple[str, int]]") -> None:
    with adapters(None) as (adapter,):
        client = End(adapter)
        client.connect(child[1])
        data = client.event(ESTABLISHED).parameters.private_data
        for count in (0, 1, 64, 65_536):
            memory = client.receive(count)
            client.send(bytes([count % 256]) * count)
            assert client.sent()[0].status is WCStatus.SUCCESS
            assert client.received()[0].byte_len == count
            assert memory.data == bytes([count % 256]) * count
        target = client.memory(256)
        client.post(
            WROpcode.RDMA_READ,
            target.sge(),
            rkey=int.from_bytes(data[:4], "big"),
            remote_addr=int.from_bytes(data[4:12], "big"),
        )
        assert client.sent()[0].status is WCStatus.SUCCESS
        assert target.data == bytes(range(256))


def test_a_killed_peer_is_noticed(
    child: "tuple[subprocess.Popen[str], tuple[str, int]]",
) -> None:
    with adapters(None) as (adapter,):
        client = End(adapter)
        client.connect(child[1])
        client.event(ESTABLISHED)
        for index in range(200):
            client.send(bytes(60_000), wr_id=index)
        child[0].send_signal(signal.SIGKILL)
        client.event(ConnectionEventKind.BROKEN)
        assert client.qp.state is QPState.ERR
        assert {wc.status for wc in client.sent(200)} <= {
            WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
        }  # fmt: skip
