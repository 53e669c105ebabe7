"""Packets: the records that the engines of two queue pairs exchange.

The layout is RoCE's transport header with the two numbers of DDP that it lacks: which receive a
packet's message consumes (`msn`) and where in the message its bytes belong (`offset`), and each
packet of a write names its own target address. So a packet can be placed whenever it arrives,
and a responder that accepts selectively knows what is missing. On a link without these numbers
(`LinkTraits.names_places`) they do not travel, and the responder sets them.

`emit_packet` and `parse_packet` are for providers that carry packets; the `tcp` provider speaks
iWARP instead. The layout is private: 12 bytes that every packet has, fields that its kind has, the
payload, and a CRC-32 if the provider requests one because no lower layer checks. All big-endian.

    version 1 | kind 1 | flags 1 | count of selective ranges 1 | target_qpn 4 | psn 4

A parsed packet is a valid record: its numbers fit their fields and no byte is left over. The
queue pair decides whether it makes sense in its state.
"""

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from operator import attrgetter
from struct import Struct
from typing import Final
from zlib import crc32

from urds.common.errors import WireError
from urds.common.types import BytesLike
from urds.verbs.engine.numbers import CELL_MASK, PSN_MASK
from urds.verbs.engine.work import AddressVector


class PacketKind(IntEnum):
    """Kinds of packet. Requests up to MASKED_ADD, then responses, then the datagram."""

    SEND = 0
    WRITE = 1
    READ_REQUEST = 2
    ATOMIC_SWAP = 3
    ATOMIC_ADD = 4
    # Separate kinds, as in ConnectX: a peer that does not know them still understands plain ones.
    MASKED_SWAP = 5
    MASKED_ADD = 6
    READ_RESPONSE = 8
    ATOMIC_RESPONSE = 9
    ACK = 10  # also negative ones: see `syndrome`
    DATAGRAM = 16


ATOMICS: Final = frozenset(
    {
        PacketKind.ATOMIC_SWAP,
        PacketKind.ATOMIC_ADD,
        PacketKind.MASKED_SWAP,
        PacketKind.MASKED_ADD,
    }
)
# Requests whose answer brings data, which the peer has to be ready to send again.
ANSWERED: Final = ATOMICS | {PacketKind.READ_REQUEST}


class PacketFlag(IntFlag):
    """Flags of a packet. FIRST and LAST: of its message; an only packet has both."""

    FIRST = 1
    LAST = 2
    SOLICITED = 4
    ACK_REQUEST = 8
    IMMEDIATE = 16  # `immediate` counts, on the last packet
    INVALIDATE = 32  # `immediate` is a remote key to invalidate, on the last packet of a send
    PLACED = 64  # the sender has written the bytes itself (shared memory): payload is empty


class Syndrome(IntEnum):
    """What an ACK means. RNR: the timer code is added (0 to 31). Source: AETH, section 2."""

    ACK = 0x1F
    RNR_NAK = 0x20
    NAK_SEQUENCE = 0x60
    NAK_INVALID_REQUEST = 0x61
    NAK_REMOTE_ACCESS = 0x62
    NAK_REMOTE_OPERATION = 0x63


_NO_FLAGS = PacketFlag(0)
# Each combination, by its bits: combining flags of an enum is slow.
PACKET_FLAGS: Final = tuple(PacketFlag(bits) for bits in range(int(sum(PacketFlag)) + 1))


@dataclass(slots=True)
class Packet:
    """One packet. Fields that its kind does not use are 0, the two masks all ones.

    psn: 24 bits. An answer carries the PSN of the request packet it answers; of a read, the
    request's PSN plus the index of the response packet (on a lossless link just the request's).
    msn: ordinal of the receive that this message consumes, from 1, 32 bits (SEND, and WRITE with
    IMMEDIATE); in an answer: how many messages the responder has completed.
    offset: bytes of the message before this packet.  length: all bytes of a READ_REQUEST, and of
    a WRITE in its first packet; in the layout below only of one whose bytes are PLACED.
    address, rkey: target of this packet's first byte (WRITE), source (READ), cell (atomics).
    compare_add, swap: operands; `compare_add` of an ATOMIC_RESPONSE is the value before.
    compare_mask, swap_mask, boundary: of masked operations, see `engine.responder`.
    selective: ranges [first, last] of PSNs beyond `psn` that arrived (ACK of a responder that
    accepts selectively), at most 8.
    source_qpn, qkey: DATAGRAM.
    announced: of a SEND packet before the last one: the marks that the last will have, with
    `immediate`, for frames that name them in each segment. It does not travel in packets.
    acknowledged: the PSN of an acknowledgement that rides on this packet, of whatever kind, on a
    link where they wait (`LinkTraits.acks_wait`); it counts before the packet does. It does not
    travel in the layout below.
    destination: where a DATAGRAM goes; never on the way itself. The other kinds go to the peer
    of their queue pair.
    """

    kind: PacketKind
    target_qpn: int
    psn: int = 0
    flags: PacketFlag = _NO_FLAGS
    msn: int = 0
    offset: int = 0
    length: int = 0
    address: int = 0
    rkey: int = 0
    immediate: int = 0
    compare_add: int = 0
    swap: int = 0
    compare_mask: int = CELL_MASK
    swap_mask: int = CELL_MASK
    boundary: int = 0
    syndrome: int = 0
    source_qpn: int = 0
    qkey: int = 0
    selective: tuple[tuple[int, int], ...] = ()
    payload: bytes | bytearray | memoryview = b""
    destination: AddressVector | None = None
    announced: PacketFlag = _NO_FLAGS
    acknowledged: int | None = None


VERSION: Final = 1
HEADER_BYTES: Final = 12
CHECKSUM_BYTES: Final = 4
SELECTIVE_MAX: Final = 8

_HEADER: Final = Struct(">BBBBII")
_LONG: Final = Struct(">I")
_RANGE: Final = Struct(">II")
assert _HEADER.size == HEADER_BYTES

# What each kind carries, in order. Structure and field names stand side by side.
_FIELDS: Final[dict[PacketKind, tuple[Struct, tuple[str, ...]]]] = {
    PacketKind.SEND: (Struct(">II"), ("msn", "offset")),
    PacketKind.WRITE: (Struct(">QIII"), ("address", "rkey", "msn", "offset")),
    PacketKind.READ_REQUEST: (Struct(">QII"), ("address", "rkey", "length")),
    PacketKind.ATOMIC_SWAP: (Struct(">QIQQ"), ("address", "rkey", "compare_add", "swap")),
    PacketKind.ATOMIC_ADD: (Struct(">QIQ"), ("address", "rkey", "compare_add")),
    PacketKind.MASKED_SWAP: (
        Struct(">QIQQQQ"),
        ("address", "rkey", "compare_add", "swap", "compare_mask", "swap_mask"),
    ),
    PacketKind.MASKED_ADD: (Struct(">QIQQ"), ("address", "rkey", "compare_add", "boundary")),
    PacketKind.READ_RESPONSE: (Struct(">II"), ("msn", "offset")),
    PacketKind.ATOMIC_RESPONSE: (Struct(">IQ"), ("msn", "compare_add")),
    PacketKind.ACK: (Struct(">BI"), ("syndrome", "msn")),
    PacketKind.DATAGRAM: (Struct(">II"), ("source_qpn", "qkey")),
}
# With the header in front, and what takes the values out of a packet.
_EMIT: Final = {
    kind: (Struct(_HEADER.format + structure.format[1:]).pack, attrgetter(*names))
    for kind, (structure, names) in _FIELDS.items()
}
_WITH_PAYLOAD: Final = {
    PacketKind.SEND, PacketKind.WRITE, PacketKind.READ_RESPONSE, PacketKind.DATAGRAM,
}  # fmt: skip
_KINDS: Final = {int(kind): kind for kind in PacketKind}
_WITH_IMMEDIATE: Final = int(PacketFlag.IMMEDIATE | PacketFlag.INVALIDATE)
_PLACED: Final = int(PacketFlag.PLACED)


def emit_packet(packet: Packet, *, checksum: bool = False) -> list[BytesLike]:
    """Return a packet's bytes in parts, for a gathering write; no payload is copied.

    With `checksum` the last part is the CRC-32 of all others.
    """
    flags = int(packet.flags)
    kind, selective = packet.kind, packet.selective
    pack, values = _EMIT[kind]
    head = pack(
        VERSION, kind, flags, len(selective), packet.target_qpn, packet.psn, *values(packet)
    )
    if flags & _WITH_IMMEDIATE:
        head += _LONG.pack(packet.immediate)
    if flags & _PLACED:
        head += _LONG.pack(packet.length)
    for first, last in selective:
        head += _RANGE.pack(first, last)
    parts: list[BytesLike] = [head]
    if len(packet.payload):
        parts.append(packet.payload)
    if checksum:
        value = crc32(packet.payload, crc32(head))
        parts.append(_LONG.pack(value))
    return parts


def parse_packet(data: BytesLike, *, checksum: bool = False) -> Packet:
    """Read one packet; its payload is a view of `data`.

    Raises WireError for bytes that are not a packet, and for a CRC-32 that does not match.
    """
    view = memoryview(data)
    if checksum:
        view = _checked(view)
    if len(view) < HEADER_BYTES:
        raise WireError(f"packet of {len(view)} bytes, its header has {HEADER_BYTES}")
    version, kind_number, flags, range_count, qpn, psn = _HEADER.unpack_from(view)
    kind = _KINDS.get(kind_number)
    if version != VERSION or kind is None:
        raise WireError(f"packet of version {version} and kind {kind_number}")
    if flags >= len(PACKET_FLAGS) or qpn > PSN_MASK or psn > PSN_MASK:
        raise WireError(f"packet with flags {flags:#x}, queue pair {qpn:#x}, PSN {psn:#x}")
    if flags & _PLACED and kind is not PacketKind.WRITE:
        raise WireError(f"PLACED packet of kind {kind.name}")
    packet = Packet(kind, qpn, psn, PACKET_FLAGS[flags])
    rest = _parse_fields(packet, view[HEADER_BYTES:], flags)
    if range_count:
        rest = _parse_selective(packet, rest, range_count)
    if len(rest) and (kind not in _WITH_PAYLOAD or flags & _PLACED):
        raise WireError(f"{len(rest)} bytes after a packet of kind {kind.name}")
    packet.payload = rest
    return packet


def _checked(view: memoryview) -> memoryview:
    if len(view) < CHECKSUM_BYTES:
        raise WireError(f"packet of {len(view)} bytes, its checksum has {CHECKSUM_BYTES}")
    (expected,) = _LONG.unpack_from(view, len(view) - CHECKSUM_BYTES)
    body = view[:-CHECKSUM_BYTES]
    if crc32(body) != expected:
        raise WireError("packet checksum does not match")
    return body


def _parse_fields(packet: Packet, view: memoryview, flags: int) -> memoryview:
    """Set the fields of the kind and the flags; return what is left."""
    structure, names = _FIELDS[packet.kind]
    tail_bytes = (4 if flags & _WITH_IMMEDIATE else 0) + (4 if flags & _PLACED else 0)
    if len(view) < structure.size + tail_bytes:
        raise WireError(
            f"{packet.kind.name} with {len(view)} bytes of fields, "
            f"it has {structure.size + tail_bytes}"
        )
    for name, value in zip(names, structure.unpack_from(view), strict=True):
        setattr(packet, name, value)
    place = structure.size
    if flags & _WITH_IMMEDIATE:
        (packet.immediate,) = _LONG.unpack_from(view, place)
        place += _LONG.size
    if flags & _PLACED:
        (packet.length,) = _LONG.unpack_from(view, place)
        place += _LONG.size
    return view[place:]


def _parse_selective(packet: Packet, view: memoryview, count: int) -> memoryview:
    end = count * _RANGE.size
    if packet.kind is not PacketKind.ACK or count > SELECTIVE_MAX or len(view) < end:
        raise WireError(
            f"{packet.kind.name} with {count} ranges in {len(view)} bytes, limit {SELECTIVE_MAX}"
        )
    ranges = tuple(_RANGE.iter_unpack(view[:end]))
    if any(psn > PSN_MASK for pair in ranges for psn in pair):
        raise WireError(f"selective ranges {ranges} beyond 24 bits")
    packet.selective = ranges
    return view[end:]
