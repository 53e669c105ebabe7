"""Counters and tables of a plane, as rds-info lists them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING

from urds.rds.plane.contract import (
    Carrier,
    MailboxRow,
    MessageRow,
    PathRow,
    Snapshot,
    Stream,
)
from urds.rds.plane.python.queued_messages import Fence

if TYPE_CHECKING:
    from urds.rds.plane.python.receive_side import ReceiveSide
    from urds.rds.plane.python.state import Box, State
    from urds.rds.plane.python.stream_path import StreamPath

_ROWS_MAX = 65536  # of each message table


def take_snapshot(state: State) -> Snapshot:
    """Copy counters and tables. Lock held."""
    hosts = list(state.hosts.values())
    boxes = [mailbox for host in hosts for mailbox in host.mailboxes.values()]
    paths = [path for host in hosts for path in host.paths]
    tos_of = _tos_of_sources(state)
    counters = state.counters.as_dict()
    counters["recv_delivered"] += (
        counters["recv_queued"]
        - counters["recv_drop_closed"]
        - sum(box.receives.message_count() for box in boxes)
    )
    freed = sum(box.receives.receive_queued_bytes for box in boxes)
    counters["recv_bytes_freed_fromsock"] = counters["recv_bytes_added_to_sock"] - freed
    counters["copy_to_user"] = counters["recv_bytes_freed_fromsock"]
    counters["send_queued"] += sum(len(path.core.sender.unsent) for path in paths)
    received = chain.from_iterable(_received_rows(box.receives, tos_of) for box in boxes)
    return Snapshot(
        counters=counters,
        mailboxes=[_mailbox_row(box) for box in boxes],
        paths=[_path_row(path) for path in paths],
        send_queue=_first_rows(map(_unsent_rows, paths)),
        retransmit_queue=_first_rows(map(_sent_rows, paths)),
        receive_queue=list(islice(received, _ROWS_MAX)),
    )


def _first_rows(tables: Iterable[list[MessageRow]]) -> list[MessageRow]:
    return list(islice(chain.from_iterable(tables), _ROWS_MAX))


def _mailbox_row(box: Box) -> MailboxRow:
    receives, inode = box.receives, 0
    if box.descriptor is not None:
        with suppress(OSError):
            inode = os.fstat(box.descriptor.fileno()).st_ino
    return MailboxRow(
        local=box.local,
        port=box.port,
        send_bytes_max=box.settings.send_bytes_max,
        receive_bytes_max=box.settings.receive_bytes_max,
        send_queued_bytes=box.sends.send_queued_bytes,
        receive_queued_bytes=receives.receive_queued_bytes,
        receive_queued_messages=receives.message_count(),
        congested=receives.congested,
        inode=inode,
    )


def _path_row(path: StreamPath) -> PathRow:
    core, sender = path.core, path.core.sender
    header_missing, data_missing = core.receiver.partial.remaining()
    local, peer = _stream_addresses(path.stream)
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
        sending=path.writer.writing,
        held=core.is_held(),
        sequence_next=sender.sequence_next,
        sequence_expected=core.receiver.sequence_expected,
        unsent_messages=len(sender.unsent) + len(sender.retransmits),
        unacknowledged_messages=len(sender.unacked),
        local_stream=local,
        peer_stream=peer,
        header_remaining_bytes=header_missing,
        data_remaining_bytes=data_missing,
        stream_sent_bytes=core.bytes_written,
        stream_expected_bytes=sender.unacked[-1][1] if sender.unacked else sender.position,
        stream_acknowledged_bytes=acknowledged,
    )


def _stream_addresses(
    stream: Stream | None,
) -> tuple[tuple[str, int] | None, tuple[str, int] | None]:
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
        for message in islice(path.core.sender.unsent, _ROWS_MAX)
        if not isinstance(message, Fence)
    ]


def _sent_rows(path: StreamPath) -> list[MessageRow]:
    return [
        MessageRow(message[0], len(message[5]), path.local, message[3], path.peer, message[4])
        for queue in (path.core.sender.unacked, path.core.sender.retransmits)
        for message in islice(queue, _ROWS_MAX)
    ]


def _received_rows(receives: ReceiveSide, tos_of: Mapping[int, int]) -> list[MessageRow]:
    local, rows = receives.mailbox.local, []
    for item in islice(receives.messages(), _ROWS_MAX):
        host, port = item[1][:2]
        tos = tos_of.get(id(item[1]), 0)
        peer = type(local)(host)
        rows.append(MessageRow(0, len(item[0]), local, receives.port, peer, port, tos))
    return rows


def _tos_of_sources(state: State) -> dict[int, int]:
    """Return the type of service of each source address that is not 0, by the tuple's identity.

    A queued message does not name the path it came by, but the messages of a path and a port share
    one tuple, which no other path has. If more ports sent than `Sources` keeps, the messages from
    before it was cleared show 0.
    """
    return {
        id(source): path.tos
        for host in state.hosts.values()
        for path, sources in host.externals.items()
        if path.tos
        for source in sources.values()
    }
