"""The Internet checksum, byte by byte: what `urds.rds.wire.checksum` is compared with."""

import struct


def internet_checksum(data: bytes) -> int:
    """Return the complement of the folded sum, straight from RFC 1071; 0 over intact bytes.

    An odd last byte counts as the upper half of a word.
    """
    padded = data + b"\0" if len(data) % 2 else data
    total: int = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF
