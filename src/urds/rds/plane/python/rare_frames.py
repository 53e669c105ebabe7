"""Single frames: retransmissions, congestion maps, hellos, acknowledgements."""

from __future__ import annotations

from urds.rds.constants import HeaderFlag
from urds.rds.wire.header import HEADER

_CONG_BITMAP = int(HeaderFlag.CONG_BITMAP)
_NO_EXTENSION = b""


def emit_header(
    *,
    sequence: int,
    acknowledgement: int,
    payload_bytes: int,
    source_port: int,
    target_port: int,
    flags: int,
    extension: bytes,
    checksum: bool,
) -> bytes:
    """Return one header of a retransmission, a map or an acknowledgement."""
    high = int.from_bytes(extension[:8], "big")
    low = int.from_bytes(extension[8:], "big")
    sum_field = 0
    if checksum:
        total = sequence + acknowledgement + payload_bytes + source_port + target_port
        sum_field = 65535 - (total + (flags << 8) + high + low) % 65535
    return HEADER.pack(
        sequence, acknowledgement, payload_bytes, source_port, target_port,
        flags, 0, 0, sum_field, high, low,
    )  # fmt: skip


def emit_map(data: bytes, *, extension: bytes = _NO_EXTENSION, checksum: bool) -> bytes:
    """Return a congestion map frame: number 0, ports 0, exactly the flag CONG_BITMAP."""
    header = emit_header(
        sequence=0,
        acknowledgement=0,
        payload_bytes=len(data),
        source_port=0,
        target_port=0,
        flags=_CONG_BITMAP,
        extension=extension,
        checksum=checksum,
    )
    return header + data
