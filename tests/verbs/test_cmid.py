"""Identifiers in the shape of rdma_cm: synchronous, by events and in asyncio."""

import asyncio
import errno
import os
import select
import threading
from collections.abc import Iterator

import pytest

from tests.support.waiting import ends_with
from urds.verbs import (
    CQ,
    PD,
    AccessFlag,
    Context,
    QPInitAttr,
    QPState,
    QPType,
    VerbsArgumentError,
    VerbsTimeoutError,
    WCStatus,
    get_device_list,
)
from urds.verbs.cm_events import CMError, CMEvent, CMEventChannel, CMEventType
from urds.verbs.cm_parameters import RAI_PASSIVE, UD_QKEY, AddrInfo, ConnParam
from urds.verbs.cmid import CMID, IdentifierState
from urds.verbs.providers.base import PortSpace
from urds.verbs.providers.sim import SimNetwork

HOST, PORT = "10.0.0.2", 7000
WAIT_S = 10.0


@pytest.fixture
def contexts() -> Iterator[tuple[Context, Context]]:
    network = SimNetwork(1)
    left, right = (Context(adapter=network.adapter(name)) for name in ("left", "right"))
    yield left, right
    left.close()
    right.close()


def listening(context: Context, *, port_space: int = PortSpace.TCP) -> CMID:
    address = AddrInfo(src=HOST, src_service=PORT, port_space=port_space, flags=RAI_PASSIVE)
    listener = CMID(address, QPInitAttr(), context=context)
    listener.listen()
    return listener


def by_events(context: Context, *, port_space: int = PortSpace.TCP) -> CMID:
    """Return an identifier whose route is resolved, with a queue pair."""
    channel = CMEventChannel(context)
    cmid = CMID(channel, port_space=port_space)
    cmid.resolve_addr(AddrInfo(dst=HOST, dst_service=PORT, port_space=port_space))
    assert channel.get_event(0).event_type is CMEventType.ADDR_RESOLVED
    cmid.resolve_route()
    assert channel.get_event(0).event_type is CMEventType.ROUTE_RESOLVED
    cmid.create_qp(QPInitAttr())
    return cmid


def connected(contexts: tuple[Context, Context]) -> tuple[CMID, CMID]:
    """Return a requester by events and a synchronous server, connected."""
    left, right = contexts
    listener = listening(right)
    client = by_events(left)
    client.connect(ConnParam(private_data=b"hello"))
    server = listener.get_request(WAIT_S)
    server.accept(ConnParam(private_data=b"welcome"))
    event = client.event_channel.get_event(WAIT_S)
    assert event.event_type is CMEventType.ESTABLISHED
    assert event.private_data == b"welcome"
    return client, server


def test_the_numbers_are_rdma_cms() -> None:
    """Source: docs/reference/verbs-and-roce.md 14.3."""
    assert [event.value for event in CMEventType] == list(range(16))
    assert CMEventType.CONNECT_REQUEST == 4
    assert CMEventType.ESTABLISHED == 9
    assert CMEventType.DISCONNECTED == 10
    assert CMEventType.TIMEWAIT_EXIT == 15


def test_messages_reads_and_writes(contexts: tuple[Context, Context]) -> None:
    client, server = connected(contexts)
    mine, theirs = client.reg_msgs(100), server.reg_msgs(100)
    server.post_recv(theirs)
    mine.write(b"a message")
    client.post_send(mine, length=9)
    assert client.get_send_comp(WAIT_S).status is WCStatus.SUCCESS
    assert server.get_recv_comp(WAIT_S).byte_len == 9
    assert theirs.read(9) == b"a message"
    readable, writable = server.reg_read(100), server.reg_write(100)
    readable.write(b"to be read")
    client.post_read(mine, 10, readable.buf, readable.rkey)
    assert client.get_send_comp(WAIT_S).status is WCStatus.SUCCESS
    assert mine.read(10) == b"to be read"
    mine.write(b"written")
    client.post_write(mine, 7, writable.buf, writable.rkey)
    assert client.get_send_comp(WAIT_S).status is WCStatus.SUCCESS
    assert writable.read(7) == b"written"


def test_a_goodbye_reaches_both(contexts: tuple[Context, Context]) -> None:
    client, server = connected(contexts)
    client.disconnect()
    event = client.event_channel.get_event(WAIT_S)
    assert (event.event_type, event.status) == (CMEventType.DISCONNECTED, 0)
    server.disconnect()
    assert server.state is client.state is IdentifierState.OVER
    assert client.qp is not None and client.qp.qp_state is QPState.ERR


def test_events_say_who_asks_and_what(contexts: tuple[Context, Context]) -> None:
    left, right = contexts
    channel = CMEventChannel(right)
    listener = CMID(channel)
    listener.bind_addr((HOST, PORT))
    listener.listen()
    client = by_events(left)
    client.connect(ConnParam(resources=3, depth=4, retry=2, rnr_retry=6, private_data=b"hi"))
    event = CMEvent(channel, WAIT_S)
    assert event.event_type is CMEventType.CONNECT_REQUEST
    assert event.event_str() == "RDMA_CM_EVENT_CONNECT_REQUEST"
    assert event.id is listener
    assert event.private_data == b"hi"
    # The peer's depth is what we have to serve, and the other way round.
    assert (event.param.resources, event.param.depth) == (4, 3)
    assert (event.param.retry, event.param.rnr_retry) == (2, 6)
    server = CMID(event, listen_id=listener)
    assert server.event_channel is channel
    assert (server.local_addr, server.peer_addr) == ((HOST, PORT), client.local_addr)
    server.create_qp(QPInitAttr())
    server.accept(ConnParam(resources=9, depth=2))
    event.ack_cm_event()
    assert event.is_acked
    assert channel.get_event(WAIT_S).id is server
    answer = client.event_channel.get_event(WAIT_S)
    assert answer.event_type is CMEventType.ESTABLISHED
    # What is agreed: neither side asks for more than the other serves.
    assert (answer.param.resources, answer.param.depth) == (2, 4)
    assert client.qp is not None and server.qp is not None
    mine, theirs = client.qp.query()[0], server.qp.query()[0]
    assert (mine.max_rd_atomic, mine.max_dest_rd_atomic) == (4, 2)
    assert (theirs.max_rd_atomic, theirs.max_dest_rd_atomic) == (2, 4)
    assert (mine.retry_cnt, theirs.retry_cnt, theirs.rnr_retry) == (2, 2, 6)


def test_receives_posted_before_the_connection_stay(contexts: tuple[Context, Context]) -> None:
    left, right = contexts
    listener, client = listening(right), by_events(left)
    mine = client.reg_msgs(10)
    client.post_recv(mine, wr_id=77)
    client.connect()
    server = listener.get_request(WAIT_S)
    server.accept()
    theirs = server.reg_msgs(10)
    server.post_send(theirs)
    assert client.get_recv_comp(WAIT_S).wr_id == 77


def test_a_rejection_tells_why(contexts: tuple[Context, Context]) -> None:
    left, right = contexts
    listener, client = listening(right), by_events(left)
    client.connect()
    server = listener.get_request(WAIT_S)
    server.reject(b"not today")
    event = client.event_channel.get_event(WAIT_S)
    assert (event.event_type, event.status) == (CMEventType.REJECTED, 28)
    assert event.private_data == b"not today"
    assert client.state is IdentifierState.ROUTE_RESOLVED
    client.connect()  # it may try again
    listener.get_request(WAIT_S).accept()
    assert client.event_channel.get_event(WAIT_S).event_type is CMEventType.ESTABLISHED


def test_without_a_listener(contexts: tuple[Context, Context]) -> None:
    client = by_events(contexts[0])
    client.connect()
    event = client.event_channel.get_event(WAIT_S)
    assert (event.event_type, event.status) == (CMEventType.REJECTED, 8)


def test_a_synchronous_connect_raises(contexts: tuple[Context, Context]) -> None:
    left, _ = contexts
    client = CMID(AddrInfo(dst=HOST, dst_service=PORT), QPInitAttr(), context=left)
    with pytest.raises(CMError) as caught:
        client.connect()
    assert caught.value.errno == errno.ECONNREFUSED
    assert caught.value.event.status == 8
    absent = CMID(AddrInfo(dst="10.7.7.7", dst_service=PORT), QPInitAttr(), context=left)
    with pytest.raises(CMError) as caught:
        absent.connect(timeout_s=2)
    assert caught.value.errno == errno.ETIMEDOUT
    assert absent.state is IdentifierState.ROUTE_RESOLVED


def test_a_full_backlog_refuses(contexts: tuple[Context, Context]) -> None:
    left, right = contexts
    listener = CMID(AddrInfo(HOST, PORT, flags=RAI_PASSIVE), context=right)
    listener.listen(backlog=1)
    clients = [by_events(left), by_events(left)]
    for client in clients:
        client.connect()
    assert clients[1].event_channel.get_event(WAIT_S).status == 8
    assert clients[0].state is IdentifierState.CONNECTING


def test_datagrams_are_looked_up(contexts: tuple[Context, Context]) -> None:
    left, right = contexts
    listener = listening(right, port_space=PortSpace.UDP)
    client = by_events(left, port_space=PortSpace.UDP)
    client.connect(ConnParam(private_data=b"who"))
    server = listener.get_request(WAIT_S)
    assert server.qp is not None and server.qp.qp_type is QPType.UD
    theirs = server.reg_msgs(100)
    server.post_recv(theirs)
    server.accept(ConnParam(private_data=b"me"))
    event = client.event_channel.get_event(WAIT_S)
    assert event.event_type is CMEventType.ESTABLISHED
    assert event.private_data == b"me"
    assert (event.qp_num, event.param.qkey) == (server.qp.qp_num, UD_QKEY)
    mine = client.reg_msgs(5)
    mine.write(b"hello")
    assert event.vector is not None
    client.post_ud_send(mine, event.vector, event.qp_num)
    assert server.get_recv_comp(WAIT_S).byte_len == 45
    assert theirs.read(5, 40) == b"hello"
    client.disconnect()
    assert client.event_channel.get_event(WAIT_S).event_type is CMEventType.DISCONNECTED
    assert client.qp is not None and client.qp.qp_state is QPState.RTS


@pytest.mark.parametrize(
    ("param", "words"),
    [
        (ConnParam(private_data=bytes(197)), "private data in bytes: 197, limit 196"),
        (ConnParam(resources=129), "resources 129, limit 128"),
        (ConnParam(depth=-1), "depth -1, limit 128"),
        (ConnParam(retry=8), "retry 8, limit 7"),
        (ConnParam(rnr_retry=8), "rnr_retry 8, limit 7"),
    ],
)
def test_what_cannot_be_is_refused(
    contexts: tuple[Context, Context], param: ConnParam, words: str
) -> None:
    client = by_events(contexts[0])
    with pytest.raises(VerbsArgumentError, match=words):
        client.connect(param)
    assert client.state is IdentifierState.ROUTE_RESOLVED


def test_private_data_of_a_rejection_have_a_limit(contexts: tuple[Context, Context]) -> None:
    listener, client = listening(contexts[1]), by_events(contexts[0])
    client.connect()
    server = listener.get_request(WAIT_S)
    with pytest.raises(VerbsArgumentError, match="197, limit 196"):
        server.reject(bytes(197))
    server.reject(bytes(196))
    assert client.event_channel.get_event(WAIT_S).private_data == bytes(196)


def test_steps_out_of_order_are_refused(contexts: tuple[Context, Context]) -> None:
    channel = CMEventChannel(contexts[0])
    cmid = CMID(channel)
    steps = (cmid.connect, cmid.listen, cmid.accept, cmid.reject, cmid.get_request)
    for call in (*steps, cmid.resolve_route):
        with pytest.raises(VerbsArgumentError, match="identifier is IDLE, not"):
            call()
    cmid.resolve_addr((HOST, PORT))
    with pytest.raises(VerbsArgumentError, match="ADDR_RESOLVED, not IDLE or BOUND"):
        cmid.resolve_addr((HOST, PORT))
    cmid.resolve_route()
    with pytest.raises(VerbsArgumentError, match="no queue pair"):
        cmid.connect()
    with pytest.raises(VerbsArgumentError, match="is no request"):
        CMID(channel.get_event(0))


def test_a_listeners_address_is_taken_once(contexts: tuple[Context, Context]) -> None:
    listener = listening(contexts[1])
    with pytest.raises(OSError) as caught:
        listening(contexts[1])
    assert listener.state is IdentifierState.LISTENING
    assert caught.value.errno == errno.EADDRINUSE


def test_port_zero_takes_a_free_one(contexts: tuple[Context, Context]) -> None:
    listener = CMID(AddrInfo(HOST, 0, flags=RAI_PASSIVE), context=contexts[1])
    listener.listen()
    assert listener.local_addr is not None and listener.local_addr[1] > 0


def test_the_descriptor_shows_events(contexts: tuple[Context, Context]) -> None:
    channel = CMEventChannel(contexts[0])
    cmid = CMID(channel)
    readable = [channel.fileno()]
    assert select.select(readable, [], [], 0)[0] == []
    cmid.resolve_addr((HOST, PORT))
    assert select.select(readable, [], [], 0)[0] == readable
    channel.get_event(0)
    assert select.select(readable, [], [], 0)[0] == []
    with pytest.raises(VerbsTimeoutError):
        channel.get_event(0)


def test_closing_an_identifier_tells_the_peer(contexts: tuple[Context, Context]) -> None:
    client, server = connected(contexts)
    server.close()
    event = client.event_channel.get_event(WAIT_S)
    assert event.event_type is CMEventType.DISCONNECTED
    assert server.closed


def test_closing_a_listener_refuses_who_waits(contexts: tuple[Context, Context]) -> None:
    left, right = contexts
    listener, client = listening(right), by_events(left)
    client.connect()
    assert right.wait_until(lambda: bool(listener.event_channel._events), WAIT_S)
    listener.close()
    event = client.event_channel.get_event(WAIT_S)
    assert event.event_type is CMEventType.REJECTED


@pytest.mark.parametrize("order", ["cmid", "channel", "context"])
def test_any_order_of_closing_is_safe(contexts: tuple[Context, Context], order: str) -> None:
    client, server = connected(contexts)
    things = {"cmid": client, "channel": client.event_channel, "context": client.context}
    things[order].close()
    for thing in things.values():
        thing.close()
    assert server.event_channel.get_event(WAIT_S).event_type is CMEventType.DISCONNECTED


def test_own_domain_and_queues_are_used(contexts: tuple[Context, Context]) -> None:
    left, _ = contexts
    domain, queue = PD(left), CQ(left, 10)
    cmid = CMID(AddrInfo(dst=HOST, dst_service=PORT), QPInitAttr(scq=queue, rcq=queue), domain)
    assert cmid.context is left and cmid.pd is domain
    assert cmid.qp is not None and cmid.qp.init_attr.scq is queue
    with pytest.raises(VerbsArgumentError, match="has a queue pair"):
        cmid.create_qp(QPInitAttr())
    assert cmid.reg_write(1).access == AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE


def test_asyncio_in_virtual_time(contexts: tuple[Context, Context]) -> None:
    """Both sides are tasks of one loop; each gives way to the other."""
    left, right = contexts

    async def serve(listener: CMID) -> bytes:
        server = await listener.get_request_async()
        await server.accept_async(ConnParam(private_data=b"welcome"))
        event = await server.event_channel.event()
        assert event.event_type is CMEventType.DISCONNECTED
        return b"done"

    async def ask() -> bytes:
        client = CMID(AddrInfo(dst=HOST, dst_service=PORT), QPInitAttr(), context=left)
        event = await client.connect_async()
        await client.disconnect_async()
        return event.private_data

    async def both() -> list[bytes]:
        return list(await asyncio.gather(serve(listening(right)), ask()))

    assert asyncio.run(both()) == [b"done", b"welcome"]


def test_asyncio_over_sockets() -> None:
    """Two devices of this process; their threads wake the loop."""

    async def serve(listener: CMID) -> None:
        server = await listener.get_request_async()
        await server.accept_async()
        with server:
            message = server.reg_msgs(10)
            server.post_recv(message)
            assert server.qp is not None and server.qp.init_attr.rcq is not None
            await server.qp.init_attr.rcq.wait()
            assert message.read(5) == b"hello"

    async def ask(peer: tuple[str, int]) -> None:
        address = AddrInfo(dst=peer[0], dst_service=peer[1])
        with Context("udp0") as context, CMID(address, QPInitAttr(), context=context) as client:
            await client.connect_async()
            message = client.reg_msgs(5)
            message.write(b"hello")
            client.post_send(message)
            event = await client.event_channel.event()
            assert event.event_type is CMEventType.DISCONNECTED

    async def both() -> None:
        with Context("udp0") as context:
            listener = CMID(AddrInfo("127.0.0.1", 0), QPInitAttr(), context=context)
            listener.listen()
            assert listener.local_addr is not None
            await asyncio.wait_for(
                asyncio.gather(serve(listener), ask(listener.local_addr)), WAIT_S
            )

    asyncio.run(both())


def test_a_cancelled_wait_takes_no_event() -> None:
    with Context("udp0") as context:
        channel = CMEventChannel(context)

        async def wait_and_cancel() -> None:
            waiting = asyncio.ensure_future(channel.event())
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        asyncio.run(wait_and_cancel())
        CMID(channel).resolve_addr(("127.0.0.1", 1))
        assert channel.get_event(0).event_type is CMEventType.ADDR_RESOLVED


@pytest.mark.parametrize("device", [device.name for device in get_device_list()])
def test_threads_connect_over_every_device(device: str) -> None:
    """Synchronous calls on both sides, each in a thread of its own."""
    with Context(device) as left, Context(device) as right:
        listener = CMID(AddrInfo("127.0.0.1", 0), QPInitAttr(), context=right)
        listener.listen()
        assert listener.local_addr is not None
        problems: list[BaseException] = []

        def serve() -> None:
            try:
                server = listener.get_request(WAIT_S)
                message = server.reg_msgs(10)
                server.post_recv(message)
                server.accept(ConnParam(private_data=b"welcome"))
                assert server.get_recv_comp(WAIT_S).byte_len == 5
                assert message.read(5) == b"hello"
                server.disconnect()
            except BaseException as error:
                problems.append(error)

        thread = threading.Thread(target=serve)
        thread.start()
        host, port = listener.local_addr
        client = CMID(AddrInfo(dst=host, dst_service=port), QPInitAttr(), context=left)
        client.connect(ConnParam(private_data=b"hi"))
        message = client.reg_msgs(5)
        message.write(b"hello")
        client.post_send(message)
        client.get_send_comp(WAIT_S)
        thread.join(WAIT_S)
        client.disconnect()
        assert problems == []


@pytest.mark.parametrize("device", [device.name for device in get_device_list()])
def test_every_device_rejects_and_refuses(device: str) -> None:
    with Context(device) as left, Context(device) as right:
        channel = CMEventChannel(right)
        listener = CMID(channel)
        listener.bind_addr(("127.0.0.1", 0))
        listener.listen()
        assert listener.local_addr is not None
        host, port = listener.local_addr
        waiting = CMEventChannel(left)
        client = CMID(waiting)
        client.resolve_addr((host, port))
        client.resolve_route()
        assert [waiting.get_event(1).event_type for _ in range(2)] == [0, 2]
        client.create_qp(QPInitAttr())
        client.connect(ConnParam(private_data=b"hi"))
        event = channel.get_event(WAIT_S)
        assert event.private_data[:2] == b"hi"
        CMID(event).reject(b"no")
        answer = waiting.get_event(WAIT_S)
        assert (answer.event_type, answer.status) == (CMEventType.REJECTED, 28)
        assert answer.private_data[:2] == b"no"
        listener.close()
        client.connect()
        answer = waiting.get_event(WAIT_S)
        assert (answer.event_type, answer.status) == (CMEventType.REJECTED, 8)


def test_an_own_device_is_closed_with_its_identifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URDS_VERBS_DEVICE", "udp0")

    def held() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    before = held()
    cmid = CMID(AddrInfo("127.0.0.1", 0))
    cmid.listen()
    cmid.close()
    assert ends_with(held, before)  # the progress thread ends if no other device is open
