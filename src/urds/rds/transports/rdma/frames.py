"""What a core asks its device to post, and frames: a header and one fragment of payload each.

A core never touches a queue pair. It gives work in the order in which it must be posted, numbered
by `wr_id`; completions come in that order with these numbers.

A fragment has up to 4096 bytes, between own nodes that agreed on it up to 65536 (docs/adr/0014).
A message becomes as many frames as it has fragments, at least one. All of them carry the header of
the message; only acknowledgement, credit and checksum may differ between them. Every header has
its checksum. Source: linux v6.12 net/rds/ib_send.c; docs/reference/rds.md 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from urds.rds.constants import IB_FRAGMENT_BYTES
from urds.rds.plane.contract import Buffer
from urds.rds.plane.operations import Operation
from urds.rds.wire.checksum import header_checksum
from urds.rds.wire.header import HEADER

FRAGMENT_BYTES: Final = IB_FRAGMENT_BYTES
LONG_FRAGMENT_BYTES: Final = 65536  # the device's packets bound it no more than its memory

# Header fields in the order of wire.header.HEADER.
Fields = tuple[int, int, int, int, int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Frame:
    """One SEND: a header and one fragment of payload."""

    wr_id: int
    data: bytes
    solicited: bool = False  # the last fragment of a message
    fence: bool = False  # behind a read of the same message that asked for it


@dataclass(frozen=True, slots=True)
class Piece:
    """One work request of an operation: piece `number` of a transfer, or an atomic (number 0)."""

    wr_id: int
    operation: Operation
    number: int
    remote_address: int  # of this piece


Work = Frame | Piece


class Outcome(Enum):
    """How a work request ended."""

    DONE = auto()
    REMOTE_ACCESS = auto()  # the peer's memory refused it
    FLUSHED = auto()  # never done, or unknown: the connection broke
    FAILED = auto()  # anything else


class MessageHeader:
    """What the frames of one message have in common."""

    __slots__ = ("_fields", "_words")

    def __init__(
        self,
        *,
        sequence: int = 0,
        payload_bytes: int = 0,
        source_port: int = 0,
        target_port: int = 0,
        flags: int = 0,
        extension: bytes = b"",
    ) -> None:
        self._fields = (sequence, payload_bytes, source_port, target_port, flags)
        space = extension.ljust(16, b"\0")
        self._words = (int.from_bytes(space[:8], "big"), int.from_bytes(space[8:], "big"))

    def emit(self, *, acknowledgement: int, credit: int, payload: Buffer = b"") -> bytes:
        """Return the bytes of one frame; copies the payload, one fragment of the message."""
        sequence, payload_bytes, source_port, target_port, flags = self._fields
        fields = (
            sequence, acknowledgement, payload_bytes, source_port, target_port, flags, credit, 0,
        )  # fmt: skip
        checksum = header_checksum(*fields, *self._words)
        return HEADER.pack(*fields, checksum, *self._words) + payload


ACK_ONLY: Final = MessageHeader()  # number, length, ports and flags are all 0


def is_ack_only(fields: Fields) -> bool:
    """Tell whether a frame only acknowledges or grants credits: ports 0/0 and no length."""
    return not (fields[3] or fields[4] or fields[2])


def fragment_count(payload_bytes: int, fragment_bytes: int = FRAGMENT_BYTES) -> int:
    """Return how many frames a message takes; an empty one takes one."""
    return max(1, -(-payload_bytes // fragment_bytes))
