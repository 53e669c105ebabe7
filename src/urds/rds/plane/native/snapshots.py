"""Counters and tables of the compiled plane as the contract's rows.

A row arrives as a tuple of plain values, as declared in `native/urds_native.pyi`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from urds.rds.plane.contract import Carrier, MailboxRow, MessageRow, PathRow, Snapshot
from urds.rds.plane.native.plain import address_of

_NO_TOS = 0  # TCP reports every type of service as 0


def snapshot_of(
    counters: dict[str, int],
    mailboxes: Sequence[tuple[Any, ...]],
    paths: Sequence[tuple[Any, ...]],
    *messages: Sequence[tuple[Any, ...]],
) -> Snapshot:
    """Return the record of the plane's copy; messages in three tables, as in `Snapshot`."""
    unsent, unacknowledged, received = ([_message_row(*row) for row in table] for table in messages)
    return Snapshot(
        counters=counters,
        mailboxes=[MailboxRow(address_of(*row[:2]), *row[2:]) for row in mailboxes],
        paths=[_path_row(*row) for row in paths],
        send_queue=unsent,
        retransmit_queue=unacknowledged,
        receive_queue=received,
    )


def _path_row(
    local: bytes, local_scope: int, peer: bytes, peer_scope: int, index: int, *values: Any
) -> PathRow:
    *states, carrier, streams = values
    return PathRow(
        address_of(local, local_scope),
        address_of(peer, peer_scope),
        index,
        Carrier(carrier),
        _NO_TOS,
        *states[:7],  # up to the unacknowledged messages
        *(streams or (None, None)),
        *states[7:],
    )


def _message_row(
    sequence: int, payload_bytes: int, local: bytes, scope: int, port: int, *peer: Any
) -> MessageRow:
    data, peer_scope, peer_port = peer
    source, target = address_of(local, scope), address_of(data, peer_scope)
    return MessageRow(sequence, payload_bytes, source, port, target, peer_port)
