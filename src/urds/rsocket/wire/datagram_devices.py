"""What our own sockets say behind the header of a control message: where they can be looked up.

The original finds the way to a queue pair by the peer's IP address alone. Our devices share one
address, and the port of a datagram socket is the kernel's already. So a peer says at which port of
each of its devices look-ups are answered, and under which name: the opening, octets that are drawn
anew whenever a socket is bound, for queue pair numbers may repeat. An original reads the header
and nothing else.
"""

from dataclasses import dataclass
from typing import Final, Self

from urds.errors import WireError
from urds.wire.layout import Layout

WAYS_MAX: Final = 8
OPENING_BYTES: Final = 8
PROVIDER_BYTES: Final = 8
_MAGIC: Final = b"urds"
_VERSION: Final = 1
#                                        magic version count opening
_START: Final = Layout("ways of a datagram socket", ">4sBB2x8s", octets=16)
#                              provider port
_WAY: Final = Layout("way", ">8sH2x", octets=12)


@dataclass(frozen=True, slots=True)
class DatagramWay:
    """One device of a socket: its kind, and the port there at which look-ups are answered."""

    provider: str
    port: int


@dataclass(frozen=True, slots=True)
class DatagramWays:
    """All devices of a socket, in the order in which it prefers them, and which opening it is."""

    opening: bytes
    ways: tuple[DatagramWay, ...] = ()

    def emit(self) -> bytes:
        """Write 16 octets and 12 for each way. Raises WireError if a field does not fit."""
        if len(self.opening) != OPENING_BYTES:
            raise WireError(f"opening of {len(self.opening)} octets, not {OPENING_BYTES}")
        _check_count(len(self.ways))
        start = _START.pack(_MAGIC, _VERSION, len(self.ways), self.opening)
        return start + b"".join(_emit_way(way) for way in self.ways)

    @classmethod
    def parse(cls, octets: bytes | bytearray | memoryview) -> Self:
        """Read what follows the header of a control message.

        Raises WireError for another magic or version, a length that the count does not give, too
        many ways, a provider that is no name, port 0.
        """
        octets = bytes(octets)
        magic, version, count, opening = _START.unpack(octets[: _START.octets])
        if magic != _MAGIC or version != _VERSION:
            raise WireError(f"ways begin with {magic!r}, version {version}")
        _check_count(count)
        if len(octets) != _START.octets + count * _WAY.octets:
            raise WireError(f"{count} ways in {len(octets)} octets")
        starts = range(_START.octets, len(octets), _WAY.octets)
        return cls(opening, tuple(_parse_way(octets[at : at + _WAY.octets]) for at in starts))


def _emit_way(way: DatagramWay) -> bytes:
    name = way.provider.encode("ascii", "replace")
    if not _is_name(name) or not way.port:
        raise WireError(f"way {way.provider!r} at port {way.port}")
    return _WAY.pack(name, way.port)


def _parse_way(octets: bytes) -> DatagramWay:
    padded, port = _WAY.unpack(octets)
    name = padded.rstrip(b"\0")
    if not _is_name(name) or not port:
        raise WireError(f"way {name!r} at port {port}")
    return DatagramWay(name.decode("ascii"), port)


def _is_name(name: bytes) -> bool:
    return len(name) <= PROVIDER_BYTES and name.isalnum()


def _check_count(count: int) -> None:
    if count > WAYS_MAX:
        raise WireError(f"{count} ways, limit {WAYS_MAX}")
