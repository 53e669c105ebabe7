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
    VerbsArgumentError,
    VerbsTimeoutError,
)
from urds.verbs.cm_events import CMError, CMEvent, CMEventChannel, CMEventType
from urds.verbs.cm_parameters import RAI_PASSIVE, AddrInfo, ConnParam
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


@pytest.mark.parametrize("port", [65_536, "65536", 1 << 40])
def test_a_port_that_is_none_is_refused(port: int | str) -> None:
    """The C library would take its lower 16 bits."""
    said = f"port {port}, from 0 to 65535"
    with pytest.raises(VerbsArgumentError, match=said):
        AddrInfo(HOST, port, flags=RAI_PASSIVE)
    with pytest.raises(VerbsArgumentError, match=said):
        AddrInfo(dst=HOST, dst_service=port)


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


def test_an_own_device_is_closed_with_its_identifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URDS_VERBS_DEVICE", "udp0")

    def held() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    before = held()
    cmid = CMID(AddrInfo("127.0.0.1", 0))
    cmid.listen()
    cmid.close()
    assert ends_with(held, before)  # the progress thread ends if no other device is open
