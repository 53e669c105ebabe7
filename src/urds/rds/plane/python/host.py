"""State of a local address: its sockets, congestion map and peers; loops; the tables of all."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from ipaddress import IPv6Address
from itertools import chain, islice
from typing import TYPE_CHECKING

from urds.common.types import IPAddress
from urds.rds.plane import loop_path
from urds.rds.plane.contract import (
    Buffer,
    Carrier,
    MailboxRow,
    MessageRow,
    PathRow,
    Snapshot,
    SocketAddress,
)
from urds.rds.plane.python.incoming import Sources
from urds.rds.plane.python.outgoing import Fence
from urds.rds.plane.python.receive_side import put_message
from urds.rds.wire.congestion_map import CongestionMap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urds.rds.plane.message_transport import MessageTransport
    from urds.rds.plane.python.mailbox import Mailbox
    from urds.rds.plane.python.plane import Plane
    from urds.rds.plane.python.stream_path import StreamPath

_ROWS_MAX = 65536  # of each message table


class Host:
    """Tables of one local address; guarded by the plane's lock."""

    def __init__(self, address: IPAddress) -> None:
        self.address = address
        self.inboxes: dict[int, Mailbox] = {}
        self.paths: list[StreamPath] = []
        # Paths over message transports, each with the addresses of its peer's sockets.
        self.transports: dict[MessageTransport, Sources] = {}
        # The local map as senders of this process see it; `map_bytes` is what goes to peers.
        self.congested = CongestionMap()
        self._peer_maps: dict[IPAddress, CongestionMap] = {}

    def add_message_transport(self, path: MessageTransport) -> Sources:
        """Add a path over a message transport; return the addresses of its sources."""
        sources = self.transports[path] = Sources(lambda port: socket_address(path.peer, port))
        return sources

    def all_paths(self) -> list[StreamPath | MessageTransport]:
        """Return the paths of both kinds."""
        return [*self.paths, *self.transports]

    def map_bytes(self) -> bytes:
        """Return the 8192 bytes of the present local map."""
        return self.congested.emit()

    def congested_at(self, peer: IPAddress) -> CongestionMap:
        """Return the peer's map; the same object while it has a path, changed in place."""
        peer_map = self._peer_maps.get(peer)
        if peer_map is None:
            peer_map = self._peer_maps[peer] = CongestionMap()
        return peer_map

    def replace_peer_map(self, peer: IPAddress, data: bytes) -> int:
        """Put the peer's new map in force; return the groups with a port that it cleared."""
        return self.congested_at(peer).replace(data)

    def forget_peer_map(self, peer: IPAddress) -> None:
        """Drop the map of a peer without paths; no socket is routed to it any more."""
        if all(path.peer != peer for path in self.all_paths()):
            self._peer_maps.pop(peer, None)


def socket_address(address: IPAddress, port: int) -> SocketAddress:
    """Return the tuple that Python's socket module uses for an address and a port."""
    if isinstance(address, IPv6Address):
        scope = address.scope_id
        host = str(address).partition("%")[0]
        return host, port, 0, int(scope) if scope and scope.isdigit() else 0
    return str(address), port


class LoopPath(loop_path.LoopPath):
    """A path between two addresses of this process: the sender delivers, nothing is in flight.

    It has no header, numbers or checks. A message in the inbox is acknowledged, so the send account
    never holds it. Congestion is the target's own map. A ping is answered at once. Source: linux
    v6.12 net/rds/loop.c; urds alone treats every address of 127/8 as a host of its own with
    congestion and a bounded queue (docs/differences.md).
    """

    def __init__(self, plane: Plane, *, local: IPAddress, peer: IPAddress) -> None:
        super().__init__(local=local, peer=peer)
        self._plane = plane

    def deliver(self, sender: Mailbox, target_port: int, payload: Buffer, extension: bytes) -> None:
        """Queue a message in its target. Plane's lock held."""
        plane = self._plane
        counters = plane.counters
        counters.send_queued += 1
        if not target_port:
            counters.recv_ping += 1
            counters.send_pong += 1
            put_message(plane, sender, b"", socket_address(self.peer, 0), b"")
            return
        host = plane.hosts.get(self.peer)
        target = host.inboxes.get(target_port) if host else None
        if target is None:
            counters.recv_drop_no_sock += 1
            return
        source = socket_address(self.local, sender.port)
        put_message(plane, target, bytes(payload), source, extension)


def take_snapshot(plane: Plane) -> Snapshot:
    """Copy counters and tables. Plane's lock held."""
    mailboxes = [box for host in plane.hosts.values() for box in host.inboxes.values()]
    paths = [path for host in plane.hosts.values() for path in host.paths]
    transports = {path: path.row() for host in plane.hosts.values() for path in host.transports}
    tos_of = _tos_of_sources(plane, transports)
    counters = plane.counters.as_dict()
    counters["recv_delivered"] += (
        counters["recv_queued"]
        - counters["recv_drop_closed"]
        - sum(box.message_count() for box in mailboxes)
    )
    freed = sum(box.receive_queued_bytes for box in mailboxes)
    counters["recv_bytes_freed_fromsock"] = counters["recv_bytes_added_to_sock"] - freed
    counters["copy_to_user"] = counters["recv_bytes_freed_fromsock"]
    counters["send_queued"] += sum(len(path.core.outgoing.unsent) for path in paths)
    return Snapshot(
        counters=counters,
        mailboxes=[_mailbox_row(box) for box in mailboxes],
        paths=[*(_path_row(path) for path in paths), *transports.values()],
        send_queue=_first_rows(
            *(_unsent_rows(path) for path in paths), *(path.unsent_rows() for path in transports)
        ),
        retransmit_queue=_first_rows(
            *(_sent_rows(path) for path in paths), *(path.sent_rows() for path in transports)
        ),
        receive_queue=_first_rows(*(_received_rows(box, tos_of) for box in mailboxes)),
    )


def _first_rows(*tables: list[MessageRow]) -> list[MessageRow]:
    return list(islice(chain.from_iterable(tables), _ROWS_MAX))


def _mailbox_row(box: Mailbox) -> MailboxRow:
    inode = 0
    if box.descriptor is not None:
        with suppress(OSError):
            inode = os.fstat(box.descriptor.fileno()).st_ino
    return MailboxRow(
        local=box.local,
        port=box.port,
        send_bytes_max=box.settings.send_bytes_max,
        receive_bytes_max=box.settings.receive_bytes_max,
        send_queued_bytes=box.send_queued_bytes,
        receive_queued_bytes=box.receive_queued_bytes,
        receive_queued_messages=box.message_count(),
        congested=box.congested,
        inode=inode,
    )


def _path_row(path: StreamPath) -> PathRow:
    core = path.core
    outgoing = core.outgoing
    header_missing, data_missing = core.incoming.remaining()
    local, peer = _stream_addresses(path)
    acknowledged = core.bytes_written
    if path.stream is not None:
        with suppress(OSError):
            acknowledged -= path.stream.unacknowledged()
    return PathRow(
        local=path.local,
        peer=path.peer,
        index=path.index,
        transport=Carrier.TCP,
        tos=0,  # TCP reports every one as 0
        up=path.stream is not None,
        sending=path.writing,
        held=core.is_held(),
        sequence_next=outgoing.sequence_next,
        sequence_expected=core.incoming.sequence_expected,
        unsent_messages=len(outgoing.unsent) + len(outgoing.retransmits),
        unacknowledged_messages=len(outgoing.unacked),
        local_stream=local,
        peer_stream=peer,
        header_remaining_bytes=header_missing,
        data_remaining_bytes=data_missing,
        stream_sent_bytes=core.bytes_written,
        stream_expected_bytes=outgoing.unacked[-1][1] if outgoing.unacked else outgoing.position,
        stream_acknowledged_bytes=acknowledged,
    )


def _stream_addresses(path: StreamPath) -> tuple[tuple[str, int] | None, tuple[str, int] | None]:
    stream = path.stream
    if not isinstance(stream, socket.socket):
        return None, None
    with suppress(OSError):
        local, peer = stream.getsockname(), stream.getpeername()
        if isinstance(local, tuple) and isinstance(peer, tuple):
            return local[:2], peer[:2]
    return None, None


def _unsent_rows(path: StreamPath) -> list[MessageRow]:
    return [
        MessageRow(0, len(message[3]), path.local, message[1], path.peer, message[2])
        for message in islice(path.core.outgoing.unsent, _ROWS_MAX)
        if not isinstance(message, Fence)
    ]


def _sent_rows(path: StreamPath) -> list[MessageRow]:
    outgoing = path.core.outgoing
    return [
        MessageRow(message[0], len(message[5]), path.local, message[3], path.peer, message[4])
        for queue in (outgoing.unacked, outgoing.retransmits)
        for message in islice(queue, _ROWS_MAX)
    ]


def _received_rows(box: Mailbox, tos_of: Mapping[int, int]) -> list[MessageRow]:
    rows = []
    for item in islice(box.messages(), _ROWS_MAX):
        host, port = item[1][:2]
        tos = tos_of.get(id(item[1]), 0)
        rows.append(
            MessageRow(0, len(item[0]), box.local, box.port, type(box.local)(host), port, tos)
        )
    return rows


def _tos_of_sources(plane: Plane, rows: Mapping[MessageTransport, PathRow]) -> dict[int, int]:
    """Return the type of service of each source address that is not 0, by the tuple's identity.

    A queued message does not name the path it came by, but the messages of a path and a port share
    one tuple, which no other path has. If more ports sent than `Sources` keeps, the messages from
    before it was cleared show 0.
    """
    return {
        id(source): rows[path].tos
        for host in plane.hosts.values()
        for path, sources in host.transports.items()
        if rows[path].tos
        for source in sources.values()
    }
