"""Conformance: connections in the shape of rdma_cm, synchronous, by events and in asyncio."""

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.verbs.conformance import WAIT_S, World
from urds.common.types import HostPort
from urds.verbs import Context, QPCap, QPInitAttr, QPState, VerbsArgumentError, VerbsError, WCStatus
from urds.verbs.cm_events import CMError, CMEvent, CMEventChannel, CMEventType
from urds.verbs.cm_parameters import RAI_PASSIVE, AddrInfo, ConnParam
from urds.verbs.cmid import CMID
from urds.verbs.providers.base import PortSpace


class Ends:
    """A listener on one device and a client's device and channel on another."""

    def __init__(self, world: World, space: PortSpace = PortSpace.TCP, backlog: int = 8) -> None:
        self.near, self.far = world.context(), world.context()
        self.near_channel, self.far_channel = CMEventChannel(self.near), CMEventChannel(self.far)
        self.listener = CMID(self.far_channel, port_space=space, context=self.far)
        self.listener.bind_addr(world.address(self.far))
        self.listener.listen(backlog)
        assert self.listener.local_addr is not None
        self.address: HostPort = self.listener.local_addr
        self.space = space

    def client(self, address: HostPort | None = None) -> CMID:
        """Return an identifier that has resolved its way, with a queue pair."""
        cmid = CMID(self.near_channel, port_space=self.space, context=self.near)
        cmid.resolve_addr(address or self.address)
        assert self.near_event(CMEventType.ADDR_RESOLVED).id is cmid
        cmid.resolve_route()
        self.near_event(CMEventType.ROUTE_RESOLVED)
        if self.space is PortSpace.TCP:
            cmid.create_qp(QPInitAttr(cap=QPCap()))
        return cmid

    def near_event(self, event_type: CMEventType) -> CMEvent:
        """Wait for the client's next event."""
        return expect(self.near_channel, event_type)

    def request(self) -> tuple[CMID, CMEvent]:
        """Wait for a request; return its identifier and event."""
        event = expect(self.far_channel, CMEventType.CONNECT_REQUEST)
        assert event.id is self.listener
        return CMID(event), event


def expect(channel: CMEventChannel, event_type: CMEventType) -> CMEvent:
    event = channel.get_event(WAIT_S)
    assert event.event_type is event_type, event
    event.ack_cm_event()
    return event


# -- by events


def test_a_connection_is_made_used_and_ended_by_events(world: World) -> None:
    ends = Ends(world)
    client = ends.client()
    client.connect(ConnParam(resources=4, depth=2, private_data=b"who asks"))
    served, event = ends.request()
    assert (event.private_data, event.param.depth, event.param.resources) == (b"who asks", 4, 2)
    served.create_qp(QPInitAttr())
    target, room = served.reg_write(64), served.reg_msgs(64)
    served.post_recv(room, wr_id=5)
    served.accept(ConnParam(resources=2, depth=4, private_data=b"who serves"))
    established = ends.near_event(CMEventType.ESTABLISHED)
    assert established.private_data == b"who serves"
    expect(ends.far_channel, CMEventType.ESTABLISHED)
    memory = client.reg_read(64)
    memory.write(b"remote")
    client.post_write(memory, 6, target.buf, target.rkey)
    client.post_send(memory, length=6)
    assert [client.get_send_comp(WAIT_S).status for _ in range(2)] == [WCStatus.SUCCESS] * 2
    assert served.get_recv_comp(WAIT_S).wr_id == 5
    assert target.read(6) == room.read(6) == b"remote"
    served.post_read(target, 6, memory.buf, memory.rkey, offset=10)
    assert served.get_send_comp(WAIT_S).status is WCStatus.SUCCESS
    assert target.read(6, 10) == b"remote"
    # A right that the region does not give ends the connection for both.
    served.post_write(target, 6, memory.buf, memory.rkey)
    assert served.get_send_comp(WAIT_S).status is WCStatus.REM_ACCESS_ERR
    for channel in (ends.near_channel, ends.far_channel):
        expect_end(channel)


def expect_end(channel: CMEventChannel) -> CMEvent:
    event = channel.get_event(WAIT_S)
    assert event.event_type is CMEventType.DISCONNECTED, event
    return event


def test_a_goodbye_reaches_both_and_flushes(world: World) -> None:
    ends = Ends(world)
    client, served = established(ends)
    rooms = [cmid.reg_msgs(8) for cmid in (served, client)]
    served.post_recv(rooms[0], wr_id=1)
    client.post_recv(rooms[1], wr_id=2)
    client.disconnect()
    for channel in (ends.near_channel, ends.far_channel):
        assert expect_end(channel).status == 0
    for cmid in (client, served):
        assert cmid.get_recv_comp(WAIT_S).status is WCStatus.WR_FLUSH_ERR
        assert cmid.qp is not None
        assert cmid.qp.qp_state is QPState.ERR


def established(ends: Ends) -> tuple[CMID, CMID]:
    client = ends.client()
    client.connect()
    served, _ = ends.request()
    served.create_qp(QPInitAttr())
    served.accept()
    ends.near_event(CMEventType.ESTABLISHED)
    expect(ends.far_channel, CMEventType.ESTABLISHED)
    return client, served


@pytest.mark.parametrize("words", [b"", b"no room for you", bytes(range(100))])
def test_a_rejection_tells_why(world: World, words: bytes) -> None:
    ends = Ends(world)
    client = ends.client()
    client.connect()
    ends.request()[0].reject(words)
    event = ends.near_event(CMEventType.REJECTED)
    assert (event.status, event.private_data) == (28, words)
    # The identifier may ask again, and is taken this time.
    client.connect()
    served, _ = ends.request()
    served.create_qp(QPInitAttr())
    served.accept()
    ends.near_event(CMEventType.ESTABLISHED)


def test_without_a_listener_every_request_is_refused(world: World) -> None:
    ends = Ends(world)
    ends.listener.close()
    client = ends.client()
    client.connect()
    event = ends.near_channel.get_event(WAIT_S)
    assert (event.event_type, event.status) == (CMEventType.REJECTED, 8)


def test_a_full_backlog_refuses_and_serves_later(world: World) -> None:
    ends = Ends(world, backlog=2)
    clients = [ends.client() for _ in range(4)]
    for client in clients:
        client.connect()
    for _ in range(2):
        assert ends.near_event(CMEventType.REJECTED).status == 8
    for served in [ends.request()[0] for _ in range(2)]:
        served.create_qp(QPInitAttr())
        served.accept()
        ends.near_event(CMEventType.ESTABLISHED)
        expect(ends.far_channel, CMEventType.ESTABLISHED)


def test_private_data_have_one_limit(world: World) -> None:
    ends = Ends(world)
    limit = ends.near.attributes.max_private_data
    client = ends.client()
    with pytest.raises(VerbsArgumentError, match=f"{limit + 1}, limit {limit}"):
        client.connect(ConnParam(private_data=bytes(limit + 1)))
    words = bytes(index & 255 for index in range(limit))
    client.connect(ConnParam(private_data=words))
    served, event = ends.request()
    assert event.private_data == words
    served.create_qp(QPInitAttr())
    with pytest.raises(VerbsArgumentError, match="limit"):
        served.accept(ConnParam(private_data=bytes(limit + 1)))
    served.accept(ConnParam(private_data=words))
    assert ends.near_event(CMEventType.ESTABLISHED).private_data == words


@pytest.mark.parametrize(
    "fields", [{"resources": 129}, {"depth": -1}, {"retry": 8}, {"rnr_retry": 8}]
)
def test_parameters_that_cannot_be_are_refused(world: World, fields: dict[str, int]) -> None:
    ends = Ends(world)
    client = ends.client()
    with pytest.raises(VerbsArgumentError, match="limit"):
        client.connect(ConnParam(**fields))
    client.connect()
    ends.request()


def test_steps_out_of_order_are_refused(world: World) -> None:
    ends = Ends(world)
    fresh = CMID(ends.near_channel, context=ends.near)
    for step in (fresh.connect, fresh.accept, fresh.reject, fresh.resolve_route, fresh.disconnect):
        with pytest.raises(VerbsArgumentError, match="IDLE"):
            step()
    client, served = established(ends)
    for step in (client.connect, served.accept, served.reject):
        with pytest.raises(VerbsArgumentError, match="CONNECTED"):
            step()


def test_an_address_has_one_listener_and_is_given_back(world: World) -> None:
    ends = Ends(world)
    other = CMID(ends.far_channel, context=ends.far)
    other.bind_addr(ends.address)
    with pytest.raises(VerbsError) as caught:
        other.listen()
    assert caught.value.errno == errno.EADDRINUSE
    ends.listener.close()
    other.listen()
    client = ends.client()
    client.connect()
    assert expect(ends.far_channel, CMEventType.CONNECT_REQUEST).id is other


def test_a_foreign_address_is_no_address_to_listen_at(world: World) -> None:
    cmid = CMID(CMEventChannel(world.context()))
    cmid.bind_addr(("192.0.2.1", 7000))
    with pytest.raises(VerbsError) as caught:
        cmid.listen()
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_who_goes_before_the_answer_leaves_no_trace(world: World) -> None:
    ends = Ends(world)
    client = ends.client()
    client.connect()
    served, _ = ends.request()
    served.create_qp(QPInitAttr())
    client.close()
    with suppress(VerbsArgumentError):  # it is known already that no thread waits
        served.accept()
    event = ends.far_channel.get_event(WAIT_S)
    if event.event_type is CMEventType.ESTABLISHED:
        event = ends.far_channel.get_event(WAIT_S)
    assert event.event_type in (CMEventType.DISCONNECTED, CMEventType.CONNECT_ERROR), event
    established(ends)


def test_many_connections_come_and_go(world: World) -> None:
    """A storm: forty ask at once, more than wait; each hears one end, and all is as before."""
    ends = Ends(world, backlog=4)
    clients = [ends.client() for _ in range(40)]
    for client in clients:
        client.connect(timeout_s=5.0)
    ended = 0
    served = []
    adapter = ends.near.adapter
    for _ in range(2000):
        adapter.wait(lambda: bool(ends.near_channel._events), 5_000_000)
        ends.far.adapter.wait(lambda: bool(ends.far_channel._events), 5_000_000)
        for event in drained(ends.far_channel):
            if event.event_type is CMEventType.CONNECT_REQUEST:
                cmid = CMID(event)
                cmid.create_qp(QPInitAttr())
                cmid.accept()
                served.append(cmid)
        for event in drained(ends.near_channel):
            assert event.event_type in (CMEventType.ESTABLISHED, CMEventType.REJECTED), event
            ended += 1
        if ended == 40:
            break
    assert ended == 40
    assert served
    for client in clients:
        client.close()
    drained(ends.far_channel)
    for cmid in served:
        cmid.close()
    drained(ends.far_channel)
    established(ends)


def drained(channel: CMEventChannel) -> Iterator[CMEvent]:
    while channel._events:
        yield channel.get_event(0)


# -- datagrams


def test_datagram_queue_pairs_are_looked_up(world: World) -> None:
    if world.lacks("datagrams"):
        ends = Ends(world)
        cmid = CMID(ends.near_channel, port_space=PortSpace.UDP, context=ends.near)
        with pytest.raises(VerbsError) as caught:
            cmid.create_qp(QPInitAttr())
        assert caught.value.errno == errno.EOPNOTSUPP
        return
    ends = Ends(world, PortSpace.UDP)
    client = ends.client()
    client.connect(ConnParam(private_data=b"who is there"))
    served, event = ends.request()
    assert event.private_data == b"who is there"
    qp = served.create_qp(QPInitAttr())
    served.accept(ConnParam(private_data=b"I am", qkey=0x0123_4567))
    found = ends.near_event(CMEventType.ESTABLISHED)
    assert (found.qp_num, found.private_data) == (qp.qp_num, b"I am")
    assert found.vector is not None
    client.create_qp(QPInitAttr())
    memory, target = client.reg_msgs(64), served.reg_msgs(64)
    served.post_recv(target)
    memory.write(b"datagram")
    client.post_ud_send(memory, found.vector, found.qp_num, length=8)
    assert served.get_recv_comp(WAIT_S).byte_len == 48
    assert target.read(8, 40) == b"datagram"
    client.disconnect()
    ends.near_event(CMEventType.DISCONNECTED)
    assert client.qp is not None and client.qp.qp_state is QPState.RTS


def test_a_look_up_is_rejected(world: World) -> None:
    if world.lacks("datagrams"):
        return
    ends = Ends(world, PortSpace.UDP)
    client = ends.client()
    client.connect()
    ends.request()[0].reject(b"not today")
    assert ends.near_event(CMEventType.REJECTED).private_data == b"not today"


# -- synchronous, and in asyncio


@contextmanager
def serving(world: World, serve: Callable[[CMID], None]) -> Iterator[tuple[Context, HostPort]]:
    """Serve one request of a listener in a thread; yield a device and the address.

    Not in virtual time, which a thread that waits would run to its end.
    """
    near, far = world.context(), world.context()
    host, port = world.address(far)
    listener = CMID(AddrInfo(host, port, flags=RAI_PASSIVE), QPInitAttr(), context=far)
    listener.listen()
    assert listener.local_addr is not None
    faults: list[BaseException] = []

    def run() -> None:
        try:
            serve(listener.get_request(WAIT_S))
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield near, listener.local_addr
    finally:
        thread.join(WAIT_S + 2)
        assert not thread.is_alive()
        assert faults == []


@pytest.mark.parametrize("world", ["shm", "udp", "tcp"], indirect=True)
def test_synchronous_calls_wait(world: World) -> None:
    def serve(served: CMID) -> None:
        memory = served.reg_msgs(16)
        served.post_recv(memory)
        served.accept()
        served.get_recv_comp(WAIT_S)
        served.post_send(memory, length=5)
        served.get_send_comp(WAIT_S)
        served.disconnect()

    with serving(world, serve) as (near, address):
        client = CMID(AddrInfo(dst=address[0], dst_service=address[1]), QPInitAttr(), context=near)
        memory = client.reg_msgs(16)
        client.connect(timeout_s=WAIT_S)
        client.post_recv(memory, offset=8, length=8)
        memory.write(b"hello")
        client.post_send(memory, length=5)
        assert client.get_send_comp(WAIT_S).status is WCStatus.SUCCESS
        assert client.get_recv_comp(WAIT_S).byte_len == 5
        assert memory.read(5, 8) == b"hello"
        client.disconnect()


@pytest.mark.parametrize("world", ["shm", "udp", "tcp"], indirect=True)
def test_a_synchronous_connect_raises_the_rejection(world: World) -> None:
    with serving(world, lambda served: served.reject(b"closed")) as (near, address):
        client = CMID(AddrInfo(dst=address[0], dst_service=address[1]), QPInitAttr(), context=near)
        with pytest.raises(CMError) as caught:
            client.connect(timeout_s=WAIT_S)
        assert caught.value.errno == errno.ECONNREFUSED
        assert caught.value.event.private_data == b"closed"


def test_asyncio_connects_and_ends(world: World) -> None:
    near, far = world.context(), world.context()
    host, port = world.address(far)
    listener = CMID(AddrInfo(host, port, flags=RAI_PASSIVE), QPInitAttr(), context=far)
    listener.listen()
    assert listener.local_addr is not None
    host, port = listener.local_addr
    client = CMID(AddrInfo(dst=host, dst_service=port), QPInitAttr(), context=near)

    async def serve() -> CMID:
        served = await listener.get_request_async()
        await served.accept_async(ConnParam(private_data=b"welcome"))
        return served

    async def both() -> None:
        async with asyncio.timeout(WAIT_S):
            task = asyncio.create_task(serve())
            event = await client.connect_async()
            assert event.private_data == b"welcome"
            served = await task
            await client.disconnect_async()
            assert (await served.event_channel.event()).event_type is CMEventType.DISCONNECTED

    asyncio.run(both())
