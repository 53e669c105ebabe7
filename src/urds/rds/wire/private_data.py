"""Private data of an RDMA connect: the RDS data of a CM request and its reply.

The connection manager pads private data with zeros, so longer bytes are read from the front. In a
request they follow the 36 bytes of the RDMA-CM header. The address family of the connection decides
between the two forms, not the data.

Urds nodes mark theirs in bytes that Linux sends as zeros and does not read: behind tos a sign and a
version, at the end the generation, which every start of a node draws anew. The version tells which
frames the node takes, see `frame_format`; a connection has what both sides offer.

Source: linux v6.12 net/rds/ib_cm.c, net/rds/rdma_transport.c; docs/adr/0010, 0014
and 0047 for the mark.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Self

from urds.common.errors import WireError
from urds.common.struct_layout import Layout
from urds.rds.wire.frame_format import FRAME_FORMAT_NEWEST, FrameFormat

CONNECT_DATA_V4_BYTES: Final = 32
CONNECT_DATA_V6_BYTES: Final = 56
VERSION_OFFERED: Final = (3, 1)
MINOR_MASK_OFFERED: Final = 0x0003  # minors 0 and 1
REJECTED_INCOMPATIBLE: Final = 1  # the int in the private data of a reject

# source target major minor minor_mask tos sign mark_version ack_sequence credits generation
_V4: Final = Layout("connect data", ">4s4sBBHB2sBQII", size_bytes=CONNECT_DATA_V4_BYTES)
_V6: Final = Layout("connect data (IPv6)", ">16s16sBBHB2sBQII", size_bytes=CONNECT_DATA_V6_BYTES)
_SIGN: Final = b"UR"
_NO_SIGN: Final = bytes(len(_SIGN))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectData:
    """One side's offer, or its answer. Both addresses are of one family."""

    source: IPv4Address | IPv6Address
    target: IPv4Address | IPv6Address
    major: int = VERSION_OFFERED[0]
    minor: int = VERSION_OFFERED[1]
    minor_mask: int = MINOR_MASK_OFFERED  # bit n: minor n is understood
    tos: int = 0  # reserved in the wire specification
    ack_sequence: int = 0  # highest sequence received, as the ack of a header
    credits: int = 0  # receive buffers granted; 0 turns flow control off
    generation: int | None = None  # of a urds node, 1 to 2**32 - 1; None: no mark
    frame_format: FrameFormat = FrameFormat.SHORT  # SHORT without a generation

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor."""
        return self.major, self.minor

    @classmethod
    def parse(cls, data: bytes, *, ipv6: bool) -> Self:
        """Read one record from the front of `data`. Raises WireError if they are too few."""
        layout, address = (_V6, IPv6Address) if ipv6 else (_V4, IPv4Address)
        if len(data) < layout.size_bytes:
            raise WireError(f"connect data of {len(data)} bytes, less than {layout.size_bytes}")
        fields = layout.unpack(data[: layout.size_bytes])
        generation = _parse_mark(fields[6], fields[7], fields[10])
        return cls(
            source=address(fields[0]),
            target=address(fields[1]),
            major=fields[2],
            minor=fields[3],
            minor_mask=fields[4],
            tos=fields[5],
            ack_sequence=fields[8],
            credits=fields[9],
            generation=generation,
            frame_format=FrameFormat.SHORT
            if generation is None
            else FrameFormat(min(fields[7], FRAME_FORMAT_NEWEST)),
        )

    def emit(self) -> bytes:
        """Write 32 bytes for IPv4, 56 for IPv6. Raises WireError if a field does not fit."""
        if self.source.version != self.target.version:
            raise WireError(f"connect data from {self.source} to {self.target}: two families")
        if self.generation == 0:
            raise WireError("connect data: generation 0 is not in 1 to 4294967295")
        is_marked = self.generation is not None
        return (_V4 if self.source.version == 4 else _V6).pack(
            self.source.packed,
            self.target.packed,
            self.major,
            self.minor,
            self.minor_mask,
            self.tos,
            _SIGN if is_marked else _NO_SIGN,
            self.frame_format if is_marked else 0,
            self.ack_sequence,
            self.credits,
            self.generation or 0,
        )


def accepted_version(offer: ConnectData | None) -> tuple[int, int] | None:
    """Return the (major, minor) that Linux answers to an offer; None: it rejects.

    `None` (data absent or too short) and major 0 are taken for 4.0. Of 4.x it answers the highest
    minor that both know; of the others it accepts 3.1 alone.
    """
    if offer is None or offer.major == 0:
        return (4, 0)
    common = offer.minor_mask & MINOR_MASK_OFFERED
    if offer.major == 4 and common:
        return (4, common.bit_length() - 1)
    return VERSION_OFFERED if offer.version == VERSION_OFFERED else None


def _parse_mark(sign: bytes, version: int, generation: int) -> int | None:
    """Return the generation of a urds node. Later versions of the mark keep what is here."""
    return generation if sign == _SIGN and version and generation else None
