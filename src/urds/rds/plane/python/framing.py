"""The header of a frame."""

from __future__ import annotations

from urds.rds.wire.checksum import header_checksum
from urds.rds.wire.header import HEADER


def emit_header(
    sequence: int,
    acknowledgement: int,
    payload_bytes: int,
    source_port: int,
    target_port: int,
    flags: int,
    extension: bytes,
    checksum: bool,
) -> bytes:
    """Return the header of a frame; without credit and padding."""
    high = low = sum_field = 0
    if extension:
        high, low = int.from_bytes(extension[:8], "big"), int.from_bytes(extension[8:], "big")
    if checksum:
        sum_field = header_checksum(
            sequence, acknowledgement, payload_bytes, source_port, target_port,
            flags, 0, 0, high, low,
        )  # fmt: skip
    return HEADER.pack(
        sequence, acknowledgement, payload_bytes, source_port, target_port,
        flags, 0, 0, sum_field, high, low,
    )  # fmt: skip
