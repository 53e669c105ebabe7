"""The tables of a plane, row by row, as rds-info and operators read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from urds.dataplane.base import Address


class MessageRow(NamedTuple):
    """One queued message, as rds-info lists it."""

    sequence: int  # 0 while it has none
    payload_bytes: int
    local: Address
    local_port: int
    peer: Address
    peer_port: int


@dataclass(frozen=True, slots=True)
class MailboxRow:
    """One bound socket, as rds-info lists it."""

    local: Address
    port: int
    send_bytes_max: int
    receive_bytes_max: int
    send_queued_bytes: int
    receive_queued_bytes: int
    receive_queued_messages: int
    congested: bool
    inode: int


@dataclass(frozen=True, slots=True)
class PathRow:
    """One path, as rds-info lists its connection and TCP socket."""

    local: Address
    peer: Address
    index: int
    up: bool
    sending: bool
    held: bool
    loop: bool
    sequence_next: int
    sequence_expected: int
    unsent_messages: int
    unacknowledged_messages: int
    local_stream: tuple[str, int] | None  # TCP address of our end
    peer_stream: tuple[str, int] | None
    header_remaining_bytes: int
    data_remaining_bytes: int
    stream_sent_octets: int
    stream_expected_octets: int
    stream_acknowledged_octets: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters and tables of a plane; consistent per object, not over all."""

    counters: Mapping[str, int]
    mailboxes: Sequence[MailboxRow]
    paths: Sequence[PathRow]
    send_queue: Sequence[MessageRow] = field(default=())
    retransmit_queue: Sequence[MessageRow] = field(default=())
    receive_queue: Sequence[MessageRow] = field(default=())
