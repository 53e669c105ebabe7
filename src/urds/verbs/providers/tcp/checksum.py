"""CRC32C, the checksum of an FPDU: Castagnoli's polynomial, reflected, as iSCSI has it.

The standard library has no CRC32C. The table below does about 10 MB/s, so our own nodes never ask
for it (TCP and the links below have checksums); a peer that insists gets it all the same. If the
`crc32c` distribution is installed, its hardware instruction is used.
Source: RFC 5044 section 4.4, RFC 3720 appendix B.4 (examples).
"""

from collections.abc import Callable
from importlib import import_module
from typing import Final

Buffer = bytes | bytearray | memoryview

_POLYNOMIAL: Final = 0x82F63B78


def _table() -> tuple[int, ...]:
    rows = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ _POLYNOMIAL * (value & 1)
        rows.append(value)
    return tuple(rows)


_TABLE: Final = _table()


def crc32c_in_python(octets: Buffer, crc: int = 0) -> int:
    """Return the checksum of `octets`, going on from `crc`, which is that of what came before."""
    crc ^= 0xFFFFFFFF
    for octet in memoryview(octets).cast("B"):
        crc = crc >> 8 ^ _TABLE[(crc ^ octet) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _fastest() -> Callable[[Buffer, int], int]:
    try:
        found: Callable[[Buffer, int], int] = import_module("crc32c").crc32c
    except (ImportError, AttributeError):
        return crc32c_in_python
    return found


crc32c: Final = _fastest()
