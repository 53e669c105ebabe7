"""The rows of a plane's tables, as rds-info and operators read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from urds.common.types import IPAddress

_NO_GID: Final = IPv6Address(0)


class Carrier(StrEnum):
    """The transport of a path, by Linux's name."""

    TCP = "tcp"
    SHARED_MEMORY = "shm"  # urds only: a path over TCP whose stream is in shared memory
    RDMA = "infiniband"  # also without InfiniBand hardware: kernel parity


class MessageRow(NamedTuple):
    """One queued message, as rds-info lists it."""

    sequence: int  # 0 before it is numbered
    payload_bytes: int
    local: IPAddress
    local_port: int
    peer: IPAddress
    peer_port: int
    tos: int = 0


@dataclass(frozen=True, slots=True)
class MailboxRow:
    """One bound socket, as rds-info lists it."""

    local: IPAddress
    port: int
    send_bytes_max: int
    receive_bytes_max: int
    send_queued_bytes: int
    receive_queued_bytes: int
    receive_queued_messages: int
    congested: bool
    inode: int


@dataclass(frozen=True, slots=True)
class RdmaRow:
    """The RDMA part of a path's row; all zeros while it has no connection."""

    is_passive: bool = False  # the accepting end of a connection to itself, which Linux hides
    device: str = ""  # the local one
    service_level: int = 0
    local_gid: IPv6Address = _NO_GID
    peer_gid: IPv6Address = _NO_GID
    send_requests_max: int = 0
    receive_requests_max: int = 0
    send_segments_max: int = 0
    regions_max: int = 0
    region_pages_max: int = 0


@dataclass(frozen=True, slots=True)
class PathRow:
    """One path, as rds-info lists its connection and transport."""

    local: IPAddress
    peer: IPAddress
    index: int
    transport: Carrier
    tos: int
    up: bool
    sending: bool
    held: bool
    sequence_next: int
    sequence_expected: int
    unsent_messages: int
    unacknowledged_messages: int
    local_stream: tuple[str, int] | None  # TCP address of the local end
    peer_stream: tuple[str, int] | None
    header_remaining_bytes: int
    data_remaining_bytes: int
    stream_sent_bytes: int
    stream_expected_bytes: int
    stream_acknowledged_bytes: int
    rdma: RdmaRow | None = None  # of `Carrier.RDMA`

    @property
    def is_listed(self) -> bool:
        """Whether Linux lists its connection: path 0, and not a passive end."""
        return not self.index and (self.rdma is None or not self.rdma.is_passive)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters and tables of a plane; consistent per object, not over all."""

    counters: Mapping[str, int]
    mailboxes: Sequence[MailboxRow]
    paths: Sequence[PathRow]
    send_queue: Sequence[MessageRow] = field(default=())
    retransmit_queue: Sequence[MessageRow] = field(default=())
    receive_queue: Sequence[MessageRow] = field(default=())
    rdma_in_use: bool = False  # a socket of this process used it, even if closed now
