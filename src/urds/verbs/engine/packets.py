"""Packets: the records that the engines of two queue pairs exchange.

The layout is RoCE's transport header with the two numbers of DDP that it lacks: which receive a
packet's message consumes (`msn`) and where in the message its bytes belong (`offset`), and each
packet of a write names its own target address. So a packet can be placed whenever it arrives,
and a responder that accepts selectively knows what is missing. `engine.packet_codec` turns the
record into bytes for providers that carry packets; the `tcp` provider speaks iWARP instead.
"""

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

from urds.verbs.engine.numbers import CELL_MASK
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


@dataclass(slots=True)
class Packet:
    """One packet. Fields that its kind does not use are 0, the two masks all ones.

    psn: 24 bits. An answer carries the PSN of the request packet it answers; of a read, the
    request's PSN plus the index of the response packet (on a lossless link just the request's).
    msn: ordinal of the receive that this message consumes, from 1, 32 bits (SEND, and WRITE with
    IMMEDIATE); in an answer: how many messages the responder has completed.
    offset: bytes of the message before this packet.  length: all bytes of a READ_REQUEST, or of
    a WRITE whose bytes are PLACED.
    address, rkey: target of this packet's first byte (WRITE), source (READ), cell (atomics).
    compare_add, swap: operands; `compare_add` of an ATOMIC_RESPONSE is the value before.
    compare_mask, swap_mask, boundary: of masked operations, see `engine.responder`.
    selective: ranges [first, last] of PSNs beyond `psn` that arrived (ACK of a responder that
    accepts selectively), at most 8.
    source_qpn, qkey: DATAGRAM.
    announced: of a SEND packet before the last one: the marks that the last will have, with
    `immediate`, for frames that name them in each segment. It does not travel in packets.
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
