"""Counters and tables of a plane, as rds-info and operators read them."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING

from urds.common.types import IPAddress
from urds.rds.plane.contract import Carrier, MailboxRow, MessageRow, PathRow, Snapshot
from urds.rds.plane.python.outgoing import Fence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urds.rds.plane.message_transport import MessageTransport
    from urds.rds.plane.python.mailbox import Mailbox
    from urds.rds.plane.python.plane import Plane
    from urds.rds.plane.python.stream_path import StreamPath

_ROWS_MAX = 65536  # of each message table


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
            MessageRow(0, len(item[0]), box.local, box.port, _address_of(box, host), port, tos)
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


def _address_of(box: Mailbox, host: str) -> IPAddress:
    return type(box.local)(host)
