"""The congestion map: one bit per port of one address, set while that port's socket is full.

On the wire 8192 bytes, port p in byte p // 8, bit p % 8 from the low end; read as 64-bit
little-endian words, port p is bit p % 64 of word p // 64. A map is sent whole and replaces the
one before it. Nearly every map is empty, and an empty one holds no bytes here. What changed
from one map to the next is worked out on whole maps as integers, never port by port.
Source: linux v6.12 net/rds/cong.c, net/rds/tcp_recv.c.
"""

from collections.abc import Iterable, Iterator
from typing import Self

from urds.common.errors import WireError
from urds.rds.constants import CONGESTION_MAP_BYTES, PORT_LAST, RDS_CONG_MONITOR_SIZE

_EMPTY = bytes(CONGESTION_MAP_BYTES)
_FOLD_WIDTHS = [1 << power for power in range(15, 5, -1)]  # 32768 bits down to 64


class CongestionMap:
    """A set of ports, mutable, at most 8 KiB; equal maps hold the same ports.

    `data` is one object for the lifetime of the map, 0 bytes while it is empty, else 8192. The path
    of a message keeps it and tests its bit there. Has no lock: its owner guards it.
    """

    __slots__ = ("data",)
    __hash__ = None  # type: ignore[assignment]  # mutable

    def __init__(self, ports: Iterable[int] = ()) -> None:
        self.data = bytearray()
        for port in ports:
            self.set(port)

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read the payload of a map message. Copies, unless the map is empty.

        Raises WireError for a bad size.
        """
        found = cls()
        found._fill(data)
        return found

    def emit(self) -> bytes:
        """Write the 8192 bytes. An empty map costs no memory: all share the same zeros."""
        return bytes(self.data) or _EMPTY

    def set(self, port: int) -> bool:
        """Mark `port` congested; tell whether that is news. Raises WireError for no port."""
        index, bit = _place(port)
        if not self.data:
            self.data += _EMPTY
        news = not self.data[index] & bit
        self.data[index] |= bit
        return news

    def clear(self, port: int) -> bool:
        """Mark `port` free; tell whether that is news. Raises WireError for no port."""
        index, bit = _place(port)
        if not self.data or not self.data[index] & bit:
            return False
        self.data[index] ^= bit
        if self.data == _EMPTY:
            self.data.clear()
        return True

    def test(self, port: int) -> bool:
        """Tell whether `port` is congested. Raises WireError for no port."""
        index, bit = _place(port)
        return bool(self.data and self.data[index] & bit)

    def replace(self, data: bytes | bytearray | memoryview) -> int:
        """Take the payload of the next map message in place of what is here.

        Return the monitor mask of the ports that were congested and are not any more. Raises
        WireError for a bad size, and nothing changed then.
        """
        before = self._bits()
        self._fill(data)
        return _fold(before & ~self._bits())

    def monitor_mask(self) -> int:
        """Return the 64-bit mask of RDS_CMSG_CONG_UPDATE: bit p % 64 for each port p."""
        return _fold(self._bits())

    def __bool__(self) -> bool:
        return bool(self.data)

    def __len__(self) -> int:
        return self._bits().bit_count()

    def __iter__(self) -> Iterator[int]:
        """Yield the congested ports in rising order."""
        for index, byte in enumerate(bytes(self.data)):
            for bit in range(8) if byte else ():
                if byte >> bit & 1:
                    yield index * 8 + bit

    def __contains__(self, port: int) -> bool:
        return self.test(port)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CongestionMap):
            return NotImplemented
        return self.data == other.data

    def __repr__(self) -> str:
        return f"CongestionMap({list(self)})"

    def _bits(self) -> int:
        return int.from_bytes(self.data, "little")

    def _fill(self, data: bytes | bytearray | memoryview) -> None:
        """Replace the map's bytes; all zeros are none."""
        if len(data) != CONGESTION_MAP_BYTES:
            raise WireError(f"congestion map of {len(data)} bytes, not {CONGESTION_MAP_BYTES}")
        # One memcmp for bytes and bytearray.
        self.data[:] = b"" if data == _EMPTY else data


def _place(port: int) -> tuple[int, int]:
    if not 0 <= port <= PORT_LAST:
        raise WireError(f"port {port} is not in 0 to {PORT_LAST}")
    return port >> 3, 1 << (port & 7)


def _fold(bits: int) -> int:
    """Return the groups, of 64, in which one of the 65,536 bits is set."""
    for width in _FOLD_WIDTHS if bits else ():
        bits |= bits >> width
    return bits & ((1 << RDS_CONG_MONITOR_SIZE) - 1)
