"""The congestion map: one bit per port of one address, set while that port's socket is full.

On the wire 8192 octets, port p in octet p // 8, bit p % 8 from the low end; read as 64-bit
little-endian words, port p is bit p % 64 of word p // 64. A map is sent whole and replaces the
one before it. Nearly every map is empty, and an empty one holds no octets here.
Source: linux v6.12 net/rds/cong.c, net/rds/tcp_recv.c.
"""

from collections.abc import Iterable, Iterator
from typing import Self

from urds.constants import CONGESTION_MAP_BYTES, PORT_LAST, RDS_CONG_MONITOR_SIZE
from urds.errors import WireError

_EMPTY = bytes(CONGESTION_MAP_BYTES)
_FOLD_WIDTHS = [1 << power for power in range(15, 5, -1)]  # 32768 bits down to 64


class CongestionMap:
    """A set of ports, mutable, at most 8 KiB; equal maps hold the same ports.

    Has no lock: its owner guards it.
    """

    __slots__ = ("_octets",)
    __hash__ = None  # type: ignore[assignment]  # mutable

    def __init__(self, ports: Iterable[int] = ()) -> None:
        self._octets: bytearray | None = None
        for port in ports:
            self.set(port)

    @classmethod
    def parse(cls, octets: bytes | bytearray | memoryview) -> Self:
        """Read the payload of a map message. Copies, unless the map is empty.

        Raises WireError for a bad size.
        """
        if len(octets) != CONGESTION_MAP_BYTES:
            raise WireError(f"congestion map of {len(octets)} octets, not {CONGESTION_MAP_BYTES}")
        found = cls()
        if octets != _EMPTY:  # one memcmp for bytes and bytearray
            found._octets = bytearray(octets)
        return found

    def emit(self) -> bytes:
        """Write the 8192 octets. An empty map costs no memory: all share the same zeros."""
        return _EMPTY if self._octets is None else bytes(self._octets)

    def set(self, port: int) -> bool:
        """Mark `port` congested; tell whether that is news. Raises WireError for no port."""
        index, bit = _place(port)
        if self._octets is None:
            self._octets = bytearray(CONGESTION_MAP_BYTES)
        news = not self._octets[index] & bit
        self._octets[index] |= bit
        return news

    def clear(self, port: int) -> bool:
        """Mark `port` free; tell whether that is news. Raises WireError for no port."""
        index, bit = _place(port)
        if self._octets is None or not self._octets[index] & bit:
            return False
        self._octets[index] ^= bit
        if self._octets == _EMPTY:
            self._octets = None
        return True

    def test(self, port: int) -> bool:
        """Tell whether `port` is congested. Raises WireError for no port."""
        index, bit = _place(port)
        return self._octets is not None and bool(self._octets[index] & bit)

    def changed_from(self, before: "CongestionMap") -> "CongestionMap":
        """Return the ports that are in one of the two maps only."""
        return _from_bits(self._bits() ^ before._bits())

    def cleared_from(self, before: "CongestionMap") -> "CongestionMap":
        """Return the ports that were congested in `before` and are not any more."""
        return _from_bits(before._bits() & ~self._bits())

    def monitor_mask(self) -> int:
        """Return the 64-bit mask of RDS_CMSG_CONG_UPDATE: bit p % 64 for each port p."""
        bits = self._bits()
        for width in _FOLD_WIDTHS:
            bits |= bits >> width
        return bits & ((1 << RDS_CONG_MONITOR_SIZE) - 1)

    def __bool__(self) -> bool:
        return self._octets is not None

    def __len__(self) -> int:
        return self._bits().bit_count()

    def __iter__(self) -> Iterator[int]:
        """Yield the congested ports in rising order."""
        for index, octet in enumerate(bytes(self._octets or b"")):
            for bit in range(8) if octet else ():
                if octet >> bit & 1:
                    yield index * 8 + bit

    def __contains__(self, port: int) -> bool:
        return self.test(port)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CongestionMap):
            return NotImplemented
        return self._octets == other._octets

    def __repr__(self) -> str:
        return f"CongestionMap({list(self)})"

    def _bits(self) -> int:
        return 0 if self._octets is None else int.from_bytes(self._octets, "little")


def _place(port: int) -> tuple[int, int]:
    if not 0 <= port <= PORT_LAST:
        raise WireError(f"port {port} is not in 0 to {PORT_LAST}")
    return port >> 3, 1 << (port & 7)


def _from_bits(bits: int) -> CongestionMap:
    return CongestionMap.parse(bits.to_bytes(CONGESTION_MAP_BYTES, "little"))
