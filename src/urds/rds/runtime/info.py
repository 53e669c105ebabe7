"""Answers to RDS_INFO_*: a snapshot, as the records that rds-info reads.

Source: linux v6.12 net/rds/info.c; docs/reference/rds.md 5.1. The lists of IPv4 options leave IPv6
sockets out; those of IPv6 options hold both. A connection is shown by its path 0; the accepting end
of one to the same node is not shown, nor is there a list of RDMA connections before RDMA is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from urds.common.errors import ErrorReason, os_error
from urds.common.types import IPAddress
from urds.rds.constants import ConnectionFlag, InfoOpt
from urds.rds.plane.contract import MailboxRow, MessageRow, PathRow, Snapshot
from urds.rds.wire.info import (
    ELEMENT_BYTES,
    Connection,
    Counter,
    QueuedMessage,
    RdmaConnection,
    Record,
    SocketEntry,
    TcpSocket,
    emit_list,
)

Endpoint = tuple[IPAddress, int]

_COUNTER_NAME_MAX: Final = 31
_TCP_SEQUENCES: Final = 1 << 32
_V4_OF: Final = {
    option: InfoOpt[option.name.removeprefix("V6_")]
    for option in InfoOpt
    if option >= InfoOpt.V6_CONNECTIONS
}
_OF_RDMA: Final = {InfoOpt.IB_CONNECTIONS, InfoOpt.V6_IB_CONNECTIONS}


def element_bytes(option: int, *, rdma_in_use: bool = False) -> int:
    """Return the size of one element of a list. Raises OSError (ENOPROTOOPT) if there is none."""
    if option not in ELEMENT_BYTES or (option in _OF_RDMA and not rdma_in_use):
        raise os_error(ErrorReason.NO_SUCH_OPTION, f"RDS_INFO {option}")
    return ELEMENT_BYTES[InfoOpt(option)]


def answer(
    option: int,
    snapshot: Snapshot,
    *,
    counters: Mapping[str, int],
    connected: Mapping[Endpoint, Endpoint],
    buffer_bytes: int,
) -> bytes:
    """Return a whole list that fits `buffer_bytes`.

    Raises OSError: ENOPROTOOPT for an option without a list, ENOSPC if the buffer is too small;
    the text then gives the size that is needed.
    """
    element_bytes(option, rdma_in_use=snapshot.rdma_in_use)
    data = emit_list(InfoOpt(option), _records(InfoOpt(option), snapshot, counters, connected))
    if len(data) > buffer_bytes:
        detail = f"{len(data)} bytes needed, {buffer_bytes} given"
        raise os_error(ErrorReason.NO_SPACE, detail, limit=buffer_bytes)
    return data


def _records(
    option: InfoOpt,
    snapshot: Snapshot,
    counters: Mapping[str, int],
    connected: Mapping[Endpoint, Endpoint],
) -> Iterable[Record]:
    if option is InfoOpt.COUNTERS:
        return [
            Counter(name=name[:_COUNTER_NAME_MAX], value=value) for name, value in counters.items()
        ]
    both = option in _V4_OF
    lists: dict[InfoOpt, Callable[[], Iterable[tuple[IPAddress, Record | None]]]] = {
        InfoOpt.CONNECTIONS: lambda: ((row.local, _connection(row)) for row in snapshot.paths),
        InfoOpt.TCP_SOCKETS: lambda: ((row.local, _tcp_socket(row)) for row in snapshot.paths),
        InfoOpt.IB_CONNECTIONS: lambda: ((row.local, _rdma(row)) for row in snapshot.paths),
        InfoOpt.SEND_MESSAGES: lambda: _messages(snapshot.send_queue),
        InfoOpt.RETRANS_MESSAGES: lambda: _messages(snapshot.retransmit_queue),
        InfoOpt.RECV_MESSAGES: lambda: _messages(snapshot.receive_queue),
        InfoOpt.SOCKETS: lambda: (
            (row.local, _socket(row, connected.get((row.local, row.port))))
            for row in snapshot.mailboxes
        ),
    }
    rows = lists[_V4_OF.get(option, option)]()
    return [record for local, record in rows if record and (both or local.version == 4)]


def _connection(row: PathRow) -> Connection | None:
    if not row.is_listed:
        return None
    flags = ConnectionFlag.CONNECTED if row.up else ConnectionFlag.CONNECTING
    if row.sending:
        flags |= ConnectionFlag.SENDING
    return Connection(
        sequence_next=row.sequence_next,
        sequence_expected=row.sequence_expected,
        local=row.local,
        peer=row.peer,
        transport=row.transport,
        flags=flags,
        tos=row.tos,
    )


def _messages(rows: Iterable[MessageRow]) -> Iterable[tuple[IPAddress, QueuedMessage]]:
    for row in rows:
        yield row.local, QueuedMessage(**row._asdict())


def _socket(row: MailboxRow, peer: Endpoint | None) -> SocketEntry:
    unspecified = IPv4Address(0) if row.local.version == 4 else IPv6Address(0)
    same = peer if peer is not None and peer[0].version == row.local.version else None
    return SocketEntry(
        send_buffer_bytes=row.send_bytes_max,
        bound=row.local,
        connected=same[0] if same else unspecified,
        bound_port=row.port,
        connected_port=same[1] if same else 0,
        receive_buffer_bytes=row.receive_bytes_max,
        inode=row.inode,
    )


def _tcp_socket(row: PathRow) -> TcpSocket | None:
    if row.local_stream is None or row.peer_stream is None:
        return None
    return TcpSocket(
        local=row.local,
        local_port=row.local_stream[1],
        peer=row.peer,
        peer_port=row.peer_stream[1],
        header_bytes_remaining=row.header_remaining_bytes,
        payload_bytes_remaining=row.data_remaining_bytes,
        last_sent_next=row.stream_sent_bytes % _TCP_SEQUENCES,
        last_expected_una=row.stream_expected_bytes % _TCP_SEQUENCES,
        last_seen_una=row.stream_acknowledged_bytes % _TCP_SEQUENCES,
    )


def _rdma(row: PathRow) -> RdmaConnection | None:
    """Return an entry; Linux has zeros for what a connection that is down does not have."""
    rdma = row.rdma
    if rdma is None or not row.is_listed:
        return None
    return RdmaConnection(
        source=row.local,
        target=row.peer,
        source_gid=rdma.local_gid,
        target_gid=rdma.peer_gid,
        send_requests_max=rdma.send_requests_max,
        receive_requests_max=rdma.receive_requests_max,
        send_segments_max=rdma.send_segments_max,
        regions_max=rdma.regions_max,
        region_pages_max=rdma.region_pages_max,
        tos=row.tos,
        service_level=rdma.service_level,
    )
