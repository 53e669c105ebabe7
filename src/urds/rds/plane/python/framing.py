"""The header of a frame, and the place in a queue that is no frame: a fence."""

from __future__ import annotations

from urds.rds.wire.checksum import header_checksum
from urds.rds.wire.header import HEADER


class Fence:
    """A place in a path's queue that another path waits for.

    Fan-out moves a socket from path 0 to another; later messages there must not overtake those left
    behind. Source: linux v7.0 (mprds catch-up, see docs/protocol/rds-tcp.md).
    """

    __slots__ = ("open", "sequence")

    def __init__(self) -> None:
        self.open = False
        self.sequence: int | None = None  # set once the queue is numbered up to here


def emit_header(
    sequence: int,
    acknowledgement: int,
    payload_bytes: int,
    source_port: int,
    target_port: int,
    flags: int,
    extension: bytes,
    *,
    checksum: bool,
) -> bytes:
    """Return the header of a frame; without credit and padding."""
    high = low = sum_field = 0
    if extension:
        high, low = int.from_bytes(extension[:8], "big"), int.from_bytes(extension[8:], "big")
    if checksum:
        sum_field = header_checksum(
            sequence,
            acknowledgement,
            payload_bytes,
            source_port,
            target_port,
            flags,
            0,
            0,
            high,
            low,
        )
    return HEADER.pack(
        sequence, acknowledgement, payload_bytes, source_port, target_port,
        flags, 0, 0, sum_field, high, low,
    )  # fmt: skip
