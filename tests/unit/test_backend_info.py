"""Answers to RDS_INFO_*: which rows a list holds, and what a record says of them."""

import errno
from ipaddress import IPv4Address, IPv6Address

import pytest

from urds.backend import info
from urds.constants import ConnectionFlag, InfoOpt
from urds.dataplane.base import Address, MailboxRow, MessageRow, PathRow, Snapshot
from urds.wire.info import (
    ELEMENT_BYTES,
    Connection,
    Counter,
    QueuedMessage,
    SocketEntry,
    TcpSocket,
    split,
)

V4, V4_PEER = IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2")
V6, V6_PEER = IPv6Address("fd00::1"), IPv6Address("fd00::2")
ROOM = 1 << 16


def path(local: Address, peer: Address, **more: object) -> PathRow:
    given: dict[str, object] = {
        "index": 0, "up": True, "sending": False, "held": False, "loop": False,
        "sequence_next": 7, "sequence_expected": 9, "unsent_messages": 0,
        "unacknowledged_messages": 0, "local_stream": (str(local), 16385),
        "peer_stream": (str(peer), 40000), "header_remaining_bytes": 48,
        "data_remaining_bytes": 3, "stream_sent_octets": (1 << 32) + 5,
        "stream_expected_octets": 6, "stream_acknowledged_octets": 4,
    }  # fmt: skip
    return PathRow(local=local, peer=peer, **{**given, **more})  # type: ignore[arg-type]  # above


def mailbox(local: Address, port: int) -> MailboxRow:
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


MESSAGE = MessageRow(5, 100, V4, 4000, V4_PEER, 5000)
SNAPSHOT = Snapshot(
    counters={},
    mailboxes=[mailbox(V4, 4000), mailbox(V6, 4001)],
    paths=[
        path(V4, V4_PEER),
        path(V4, V4_PEER, index=1),
        path(V6, V6_PEER, up=False, local_stream=None),
    ],
    send_queue=[MESSAGE],
    retransmit_queue=[MESSAGE, MESSAGE],
    receive_queue=[MESSAGE, MessageRow(6, 0, V6, 1, V6_PEER, 2)],
)


def elements(option: InfoOpt, *, connected: bool = False) -> list[bytes]:
    octets = info.answer(
        option,
        SNAPSHOT,
        counters={"recv_queued": 3, "x" * 40: 4},
        connected={(V4, 4000): (V4_PEER, 5000)} if connected else {},
        buffer_bytes=ROOM,
    )
    return list(split(octets, element_bytes=ELEMENT_BYTES[option]))


@pytest.mark.parametrize(
    ("option", "count"),
    [
        (InfoOpt.COUNTERS, 2),
        (InfoOpt.CONNECTIONS, 1),
        (InfoOpt.SEND_MESSAGES, 1),
        (InfoOpt.RETRANS_MESSAGES, 2),
        (InfoOpt.RECV_MESSAGES, 1),
        (InfoOpt.SOCKETS, 1),
        (InfoOpt.TCP_SOCKETS, 2),
        (InfoOpt.V6_CONNECTIONS, 2),
        (InfoOpt.V6_SEND_MESSAGES, 1),
        (InfoOpt.V6_RETRANS_MESSAGES, 2),
        (InfoOpt.V6_RECV_MESSAGES, 2),
        (InfoOpt.V6_SOCKETS, 2),
        (InfoOpt.V6_TCP_SOCKETS, 2),
    ],
)
def test_a_list_of_ipv4_leaves_ipv6_out_and_not_the_other_way(option: InfoOpt, count: int) -> None:
    assert len(elements(option)) == count


def test_counters_have_their_names_cut_to_31() -> None:
    names = [Counter.parse(octets) for octets in elements(InfoOpt.COUNTERS)]
    assert [(one.name, one.value) for one in names] == [("recv_queued", 3), ("x" * 31, 4)]


def test_a_connection_is_its_first_path() -> None:
    v4, v6 = map(Connection.parse, elements(InfoOpt.V6_CONNECTIONS))
    assert (v4.sequence_next, v4.sequence_expected, v4.transport) == (7, 9, "tcp")
    assert (v4.flags, v6.flags) == (ConnectionFlag.CONNECTED, ConnectionFlag.CONNECTING)
    assert (v6.local, v6.peer) == (V6, V6_PEER)


def test_a_message_tells_both_ends() -> None:
    found = QueuedMessage.parse(elements(InfoOpt.RECV_MESSAGES)[0])
    assert (found.local, found.local_port, found.peer, found.peer_port) == (V4, 4000, V4_PEER, 5000)
    assert (found.sequence, found.payload_bytes) == (5, 100)


def test_a_socket_tells_whom_it_is_connected_to() -> None:
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
        (InfoOpt.IB_CONNECTIONS, ROOM, errno.ENOPROTOOPT),
        (InfoOpt.CONNECTION_STATS, ROOM, errno.ENOPROTOOPT),
        (10002, ROOM, errno.ENOPROTOOPT),
    ],
)
def test_a_list_is_refused(option: int, room: int, code: int) -> None:
    with pytest.raises(OSError) as refused:
        info.answer(option, SNAPSHOT, counters={}, connected={}, buffer_bytes=room)
    assert refused.value.errno == code
