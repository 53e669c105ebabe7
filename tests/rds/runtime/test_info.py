"""Answers to RDS_INFO_*: which rows a list holds, and what a record says of them."""

import errno
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import pytest

from urds.common.types import IPAddress
from urds.rds.constants import ConnectionFlag, InfoOpt
from urds.rds.plane.contract import Carrier, MailboxRow, MessageRow, PathRow, RdmaRow, Snapshot
from urds.rds.runtime import info
from urds.rds.wire.info import (
    ELEMENT_BYTES,
    Connection,
    Counter,
    QueuedMessage,
    RdmaConnection,
    SocketEntry,
    TcpSocket,
    split,
)

V4, V4_PEER = IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2")
V6, V6_PEER = IPv6Address("fd00::1"), IPv6Address("fd00::2")
ROOM = 1 << 16


def path(local: IPAddress, peer: IPAddress, **more: object) -> PathRow:
    given: dict[str, object] = {
        "index": 0, "transport": Carrier.TCP, "tos": 0, "up": True, "sending": False, "held": False,
        "sequence_next": 7, "sequence_expected": 9, "unsent_messages": 0,
        "unacknowledged_messages": 0, "local_stream": (str(local), 16385),
        "peer_stream": (str(peer), 40000), "header_remaining_bytes": 48,
        "data_remaining_bytes": 3, "stream_sent_bytes": (1 << 32) + 5,
        "stream_expected_bytes": 6, "stream_acknowledged_bytes": 4,
    }  # fmt: skip
    return PathRow(local=local, peer=peer, **{**given, **more})  # type: ignore[arg-type]  # above


def path_row(local: IPAddress, peer: IPAddress, rdma: RdmaRow, **more: object) -> PathRow:
    """Return a path over RDMA."""
    return path(
        local, peer, **{"transport": Carrier.RDMA, "local_stream": None, "rdma": rdma, **more}
    )


RDMA = RdmaRow(
    device="shm0",
    service_level=3,
    local_gid=IPv6Address("fe00::1"),
    peer_gid=IPv6Address("fe00::2"),
    send_requests_max=256,
    receive_requests_max=1024,
    send_segments_max=1,
    regions_max=65536,
    region_pages_max=257,
)


def mailbox(local: IPAddress, port: int) -> MailboxRow:
    return MailboxRow(
        local=local,
        port=port,
        send_bytes_max=1000,
        receive_bytes_max=2000,
        send_queued_bytes=0,
        receive_queued_bytes=0,
        receive_queued_messages=0,
        congested=False,
        inode=77,
    )


MESSAGE = MessageRow(5, 100, V4, 4000, V4_PEER, 5000, 7)
SNAPSHOT = Snapshot(
    counters={},
    mailboxes=[mailbox(V4, 4000), mailbox(V6, 4001)],
    paths=[
        path(V4, V4_PEER),
        path(V4, V4_PEER, index=1),
        path(V6, V6_PEER, up=False, local_stream=None),
        path_row(V4, V4_PEER, RDMA, tos=19),
        path_row(V4, V4, replace(RDMA, is_passive=True)),
        path_row(V6, V6_PEER, RdmaRow(), up=False),
    ],
    send_queue=[MESSAGE],
    retransmit_queue=[MESSAGE, MESSAGE],
    receive_queue=[MESSAGE, MessageRow(6, 0, V6, 1, V6_PEER, 2)],
    rdma_in_use=True,
)


def elements(option: InfoOpt, *, connected: bool = False) -> list[bytes]:
    data = info.answer(
        option,
        SNAPSHOT,
        counters={"recv_queued": 3, "x" * 40: 4},
        connected={(V4, 4000): (V4_PEER, 5000)} if connected else {},
        buffer_bytes=ROOM,
    )
    return list(split(data, element_bytes=ELEMENT_BYTES[option]))


@pytest.mark.parametrize(
    ("option", "count"),
    [
        (InfoOpt.COUNTERS, 2),
        (InfoOpt.CONNECTIONS, 2),
        (InfoOpt.SEND_MESSAGES, 1),
        (InfoOpt.RETRANS_MESSAGES, 2),
        (InfoOpt.RECV_MESSAGES, 1),
        (InfoOpt.SOCKETS, 1),
        (InfoOpt.TCP_SOCKETS, 2),
        (InfoOpt.IB_CONNECTIONS, 1),
        (InfoOpt.V6_CONNECTIONS, 4),
        (InfoOpt.V6_SEND_MESSAGES, 1),
        (InfoOpt.V6_RETRANS_MESSAGES, 2),
        (InfoOpt.V6_RECV_MESSAGES, 2),
        (InfoOpt.V6_SOCKETS, 2),
        (InfoOpt.V6_TCP_SOCKETS, 2),
        (InfoOpt.V6_IB_CONNECTIONS, 2),
    ],
)
def test_a_list_of_ipv4_leaves_ipv6_out_and_not_the_other_way(option: InfoOpt, count: int) -> None:
    assert len(elements(option)) == count


def test_counters_have_their_names_cut_to_31() -> None:
    names = [Counter.parse(data) for data in elements(InfoOpt.COUNTERS)]
    assert [(one.name, one.value) for one in names] == [("recv_queued", 3), ("x" * 31, 4)]


def test_a_connection_is_its_first_path() -> None:
    v4, v6, *_ = map(Connection.parse, elements(InfoOpt.V6_CONNECTIONS))
    assert (v4.sequence_next, v4.sequence_expected, v4.transport) == (7, 9, "tcp")
    assert (v4.flags, v6.flags) == (ConnectionFlag.CONNECTED, ConnectionFlag.CONNECTING)
    assert (v6.local, v6.peer) == (V6, V6_PEER)


def test_a_connection_names_its_transport_and_type_of_service() -> None:
    """The IPv6 form has no place for the type of service: kernel parity."""
    found = list(map(Connection.parse, elements(InfoOpt.CONNECTIONS)))
    assert [(one.transport, one.tos) for one in found] == [("tcp", 0), ("infiniband", 19)]
    found = list(map(Connection.parse, elements(InfoOpt.V6_CONNECTIONS)))
    assert [one.transport for one in found] == ["tcp", "tcp", "infiniband", "infiniband"]


def test_a_connection_over_rdma_tells_its_devices_and_queue_pair() -> None:
    up, down = map(RdmaConnection.parse, elements(InfoOpt.V6_IB_CONNECTIONS))
    assert elements(InfoOpt.IB_CONNECTIONS) == [up.emit()]
    assert up == RdmaConnection(
        source=V4,
        target=V4_PEER,
        source_gid=IPv6Address("fe00::1"),
        target_gid=IPv6Address("fe00::2"),
        send_requests_max=256,
        receive_requests_max=1024,
        send_segments_max=1,
        regions_max=65536,
        region_pages_max=257,
        tos=19,
        service_level=3,
    )
    assert (down.source, down.target, down.send_requests_max) == (V6, V6_PEER, 0)
    assert down.source_gid == down.target_gid == IPv6Address(0)


@pytest.mark.parametrize("option", [InfoOpt.IB_CONNECTIONS, InfoOpt.V6_IB_CONNECTIONS])
def test_the_list_of_rdma_is_there_with_its_first_user(option: InfoOpt) -> None:
    """As on Linux, where the module brings it."""
    unused = Snapshot(counters={}, mailboxes=(), paths=())
    with pytest.raises(OSError) as refused:
        info.answer(option, unused, counters={}, connected={}, buffer_bytes=ROOM)
    assert refused.value.errno == errno.ENOPROTOOPT
    used = replace(unused, rdma_in_use=True)
    assert info.answer(option, used, counters={}, connected={}, buffer_bytes=0) == b""
    assert info.element_bytes(option, rdma_in_use=True) == ELEMENT_BYTES[option]


def test_a_message_tells_both_ends() -> None:
    found = QueuedMessage.parse(elements(InfoOpt.RECV_MESSAGES)[0])
    assert (found.local, found.local_port, found.peer, found.peer_port) == (V4, 4000, V4_PEER, 5000)
    assert (found.sequence, found.payload_bytes, found.tos) == (5, 100, 7)


def test_a_socket_tells_its_connected_peer() -> None:
    alone = SocketEntry.parse(elements(InfoOpt.SOCKETS)[0])
    assert (alone.connected, alone.connected_port) == (IPv4Address(0), 0)
    assert (alone.send_buffer_bytes, alone.receive_buffer_bytes, alone.inode) == (1000, 2000, 77)
    joined = SocketEntry.parse(elements(InfoOpt.SOCKETS, connected=True)[0])
    assert (joined.bound, joined.bound_port) == (V4, 4000)
    assert (joined.connected, joined.connected_port) == (V4_PEER, 5000)


def test_stream_positions_wrap_as_tcp_sequences() -> None:
    found = TcpSocket.parse(elements(InfoOpt.TCP_SOCKETS)[0])
    assert (found.last_sent_next, found.last_expected_una, found.last_seen_una) == (5, 6, 4)
    assert (found.header_bytes_remaining, found.payload_bytes_remaining) == (48, 3)
    assert (found.local_port, found.peer_port) == (16385, 40000)


@pytest.mark.parametrize(
    ("option", "room", "code"),
    [
        (InfoOpt.SOCKETS, 27, errno.ENOSPC),
        (InfoOpt.SOCKETS, 0, errno.ENOSPC),
        (InfoOpt.IB_CONNECTIONS, 67, errno.ENOSPC),
        (InfoOpt.CONNECTION_STATS, ROOM, errno.ENOPROTOOPT),
        (10002, ROOM, errno.ENOPROTOOPT),
    ],
)
def test_a_list_is_refused(option: int, room: int, code: int) -> None:
    with pytest.raises(OSError) as refused:
        info.answer(option, SNAPSHOT, counters={}, connected={}, buffer_bytes=room)
    assert refused.value.errno == code
