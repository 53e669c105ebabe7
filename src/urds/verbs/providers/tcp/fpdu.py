"""FPDUs: the bytes of MPA, DDP and RDMAP on an established stream. Pure; keeps no state.

First the frames, below what RDMAP puts behind the header of an untagged segment.

An FPDU is: length 2 (of what follows, without itself, pad and CRC), control 2, header, payload,
pad to a multiple of 4, CRC32C 4 (always there; unchecked and 0 where neither side wants it).
Tagged: STag 4, offset 8. Untagged: a word for RDMAP 4, queue 4, message number 4, offset 4.
Source: RFC 5044 section 4, RFC 5041 section 4, RFC 5040 sections 4 and 8 (read 4.4, terminate
4.8), RFC 7306 sections 5 (atomics) and 6 (immediate data), docs/reference/verbs-and-roce.md 16;
the last two payloads, answer and resume, are urds nodes' (docs/adr/0007).
"""

from collections.abc import Callable
from enum import IntEnum, IntFlag
from importlib import import_module
from struct import Struct
from typing import Final, NamedTuple

from urds.common.errors import RemoteProtocolError
from urds.common.types import BytesLike
from urds.verbs.engine.numbers import CELL_MASK

_POLYNOMIAL: Final = 0x82F63B78


def _table() -> tuple[int, ...]:
    rows = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ _POLYNOMIAL * (value & 1)
        rows.append(value)
    return tuple(rows)


_TABLE: Final = _table()


def crc32c_in_python(data: BytesLike, crc: int = 0) -> int:
    """Return the checksum of `data`, going on from `crc`, which is that of what came before."""
    crc ^= 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _fastest() -> Callable[[BytesLike, int], int]:
    try:
        found: Callable[[BytesLike, int], int] = import_module("crc32c").crc32c
    except (ImportError, AttributeError):
        return crc32c_in_python
    return found


crc32c: Final = _fastest()


ULPDU_BYTES_MAX: Final = 0xFFFF
TAGGED_BYTES: Final = 14  # control and header, without the length
UNTAGGED_BYTES: Final = 18
LENGTH_BYTES: Final = 2
CRC_BYTES: Final = 4
FPDU_BYTES_MAX: Final = LENGTH_BYTES + ULPDU_BYTES_MAX + 3 + CRC_BYTES

_TAGGED: Final = Struct(">HHIQ")
_UNTAGGED: Final = Struct(">HHIIII")
_LENGTH_CONTROL: Final = Struct(">HH")
_CRC: Final = Struct("<I")  # little-endian, as the digests of iSCSI
_NO_TRAILER: Final = tuple(bytes(pad + CRC_BYTES) for pad in range(4))

_IS_TAGGED: Final = 0x8000
_IS_LAST: Final = 0x4000
_VERSIONS: Final = 0x0140  # DDP 1 in bits 9:8, RDMAP 1 in bits 7:6
_DDP_VERSION_MASK: Final = 0x0300
_RDMAP_VERSION_MASK: Final = 0x00C0
_VERSIONS_MASK: Final = _DDP_VERSION_MASK | _RDMAP_VERSION_MASK


class Opcode(IntEnum):
    """What RDMAP does. 12 to 15 are unassigned and spoken between urds nodes only (ADR 7)."""

    WRITE = 0
    READ_REQUEST = 1
    READ_RESPONSE = 2
    SEND = 3
    SEND_INVALIDATE = 4
    SEND_SOLICITED = 5
    SEND_SOLICITED_INVALIDATE = 6
    TERMINATE = 7
    IMMEDIATE = 8
    IMMEDIATE_SOLICITED = 9
    ATOMIC_REQUEST = 10
    ATOMIC_RESPONSE = 11
    SEND_WITH_IMMEDIATE = 12
    SEND_SOLICITED_WITH_IMMEDIATE = 13
    ANSWER = 14
    NOTICE = 15


class Queue(IntEnum):
    """Untagged queues; each counts its messages from 1. PRIVATE is ours (ADR 7)."""

    SEND = 0
    REQUEST = 1
    TERMINATE = 2
    ATOMIC_RESPONSE = 3
    PRIVATE = 4


# The queue of each opcode; -1: tagged segments.
QUEUE_OF: Final = (-1, 1, -1, 0, 0, 0, 0, 2, 0, 0, 1, 3, 0, 0, 4, 4)


class FpduMark(IntFlag):
    """Bits of DDP's control that RFC 5041 reserves; `urds` peers use them (ADR 7)."""

    NONE = 0
    IMMEDIATE_FOLLOWS = 0x2000  # on the last segment of a write: the next FPDU belongs to it
    ACK_REQUEST = 0x1000


_MARKS: Final = 0x3C00


class TerminateCode(IntEnum):
    """Layer, type and code of a TERMINATE, as the upper 16 bits of its control word.

    Source: RFC 5040 section 4.8, RFC 5041 section 7, RFC 5044 section 8, RFC 6581 section 9.2.
    """

    LOCAL_CATASTROPHIC = 0x0000
    REMOTE_INVALID_STAG = 0x0100
    REMOTE_BASE_BOUNDS = 0x0101
    REMOTE_ACCESS_RIGHTS = 0x0102
    REMOTE_PROTECTION = 0x01FF
    REMOTE_RDMAP_VERSION = 0x0205
    REMOTE_OPCODE = 0x0206
    REMOTE_STREAM_CATASTROPHIC = 0x0207
    REMOTE_CANNOT_INVALIDATE = 0x0209
    REMOTE_OPERATION = 0x02FF
    DDP_CATASTROPHIC = 0x1000
    TAGGED_INVALID_STAG = 0x1100
    TAGGED_BASE_BOUNDS = 0x1101
    TAGGED_OFFSET_WRAP = 0x1103
    TAGGED_VERSION = 0x1104
    UNTAGGED_QUEUE = 0x1201
    UNTAGGED_NO_BUFFER = 0x1202
    UNTAGGED_SEQUENCE = 0x1203
    UNTAGGED_OFFSET = 0x1204
    UNTAGGED_TOO_LONG = 0x1205
    UNTAGGED_VERSION = 0x1206
    MPA_STREAM_LOST = 0x2001
    MPA_CRC = 0x2002
    MPA_LENGTH = 0x2003
    MPA_FRAME = 0x2004
    MPA_LOCAL_CATASTROPHIC = 0x2005
    MPA_INSUFFICIENT_IRD = 0x2006
    MPA_FIRST_FRAME = 0x2007


class StreamBroken(RemoteProtocolError):
    """The peer violated the stream's protocol; `code` and `header` go out in a TERMINATE."""

    def __init__(self, code: TerminateCode, reason: str, header: bytes = b"") -> None:
        super().__init__(f"{reason} ({code.name})")
        self.code = code
        self.header = header  # length and DDP header of the segment at fault


class Fpdu(NamedTuple):
    """One FPDU, split. `payload` is a view into the buffer it was parsed from.

    `word` is the STag of a tagged segment, RDMAP's word of an untagged one; `offset` the tagged
    offset or the message offset. `queue` and `msn` are 0 in tagged segments.
    """

    opcode: int
    is_tagged: bool
    is_last: bool
    marks: int
    word: int
    queue: int
    msn: int
    offset: int
    payload: memoryview


def tagged_header(
    opcode: int, stag: int, offset: int, payload_bytes: int, *, is_last: bool, marks: int = 0
) -> bytes:
    """Return length, control and header of a tagged segment: 16 bytes."""
    control = opcode | _VERSIONS | _IS_TAGGED | marks | (_IS_LAST if is_last else 0)
    return _TAGGED.pack(TAGGED_BYTES + payload_bytes, control, stag, offset)


def untagged_header(
    opcode: int,
    queue: int,
    msn: int,
    offset: int,
    payload_bytes: int,
    *,
    word: int = 0,
    is_last: bool = True,
    marks: int = 0,
) -> bytes:
    """Return length, control and header of an untagged segment: 20 bytes."""
    control = opcode | _VERSIONS | marks | (_IS_LAST if is_last else 0)
    return _UNTAGGED.pack(UNTAGGED_BYTES + payload_bytes, control, word, queue, msn, offset)


def trailer(header: bytes, payload: bytes | bytearray | memoryview, *, crc: bool) -> bytes:
    """Return the pad and the CRC that end an FPDU: 4 to 7 bytes."""
    pad_bytes = -(len(header) + len(payload)) & 3
    if not crc:
        return _NO_TRAILER[pad_bytes]
    value = crc32c(bytes(pad_bytes), crc32c(payload, crc32c(header, 0)))
    return bytes(pad_bytes) + _CRC.pack(value)


def parse_fpdu(data: memoryview, *, crc: bool) -> tuple[Fpdu, int] | None:
    """Split the FPDU at the front of `data`; return it and its bytes.

    Returns `None` while some are missing. Raises StreamBroken for a length that holds no header,
    a wrong CRC, another version or an opcode in the other kind of segment. A ULPDU without any
    byte is EMPTY_FPDU_FRAME.
    """
    available = len(data)
    if available < LENGTH_BYTES + CRC_BYTES + 2:
        return None
    ulpdu_bytes, control = _LENGTH_CONTROL.unpack_from(data)
    checked = LENGTH_BYTES + ulpdu_bytes + (-(LENGTH_BYTES + ulpdu_bytes) & 3)
    if available < checked + CRC_BYTES:
        return None
    if crc and _CRC.unpack_from(data, checked)[0] != crc32c(data[:checked], 0):
        raise StreamBroken(TerminateCode.MPA_CRC, f"CRC of {ulpdu_bytes} bytes does not match")
    if ulpdu_bytes == 0:
        return EMPTY_FPDU_FRAME, checked + CRC_BYTES
    is_tagged = bool(control & _IS_TAGGED)
    header_bytes = TAGGED_BYTES if is_tagged else UNTAGGED_BYTES
    if ulpdu_bytes < header_bytes:
        raise StreamBroken(
            TerminateCode.MPA_LENGTH, f"FPDU of {ulpdu_bytes} bytes, header has {header_bytes}"
        )
    if is_tagged:
        _, _, word, offset = _TAGGED.unpack_from(data)
        queue = msn = 0
    else:
        _, _, word, queue, msn, offset = _UNTAGGED.unpack_from(data)
    opcode = control & 0x000F
    if control & _VERSIONS_MASK != _VERSIONS or QUEUE_OF[opcode] != (-1 if is_tagged else queue):
        _raise_broken(data, control, queue)
    payload = data[LENGTH_BYTES + header_bytes : LENGTH_BYTES + ulpdu_bytes]
    is_last = bool(control & _IS_LAST)
    marks = control & _MARKS
    frame = Fpdu(opcode, is_tagged, is_last, marks, word, queue, msn, offset, payload)
    return frame, checked + CRC_BYTES


def header_of(data: memoryview) -> bytes:
    """Return length, control and DDP header of the FPDU at the front: for a TERMINATE."""
    is_tagged = _LENGTH_CONTROL.unpack_from(data)[1] & _IS_TAGGED
    return bytes(data[: LENGTH_BYTES + (TAGGED_BYTES if is_tagged else UNTAGGED_BYTES)])


# An FPDU without a ULPDU says nothing. Some peers send one first of all (RFC 6581 section 9).
EMPTY_FPDU_FRAME: Final = Fpdu(-1, False, True, 0, 0, 0, 0, 0, memoryview(b""))


def _raise_broken(data: memoryview, control: int, queue: int) -> None:
    """Raise StreamBroken for a control word, or a queue, that fits no opcode of ours."""
    is_tagged, opcode = bool(control & _IS_TAGGED), control & 0x000F
    if (control ^ _VERSIONS) & _DDP_VERSION_MASK:
        code = TerminateCode.TAGGED_VERSION if is_tagged else TerminateCode.UNTAGGED_VERSION
        raise StreamBroken(code, f"DDP control {control:#06x}", header_of(data))
    if (control ^ _VERSIONS) & _RDMAP_VERSION_MASK:
        code = TerminateCode.REMOTE_RDMAP_VERSION
        raise StreamBroken(code, f"RDMAP control {control:#06x}", header_of(data))
    if is_tagged or QUEUE_OF[opcode] < 0:
        raise StreamBroken(
            TerminateCode.REMOTE_OPCODE, f"opcode {opcode} in the wrong kind", header_of(data)
        )
    raise StreamBroken(
        TerminateCode.UNTAGGED_QUEUE, f"opcode {opcode} on queue {queue}", header_of(data)
    )


# -- payloads of untagged segments

_READ: Final = Struct(">IQIIQ")
_ATOMIC: Final = Struct(">IIIQQQQQ")
ATOMIC_RESPONSE: Final = Struct(">IQ")  # identifier, value before
IMMEDIATE: Final = Struct(">Q")  # ours are 32 bits and stand in the lower half
_TERMINATE: Final = Struct(">HH")
ANSWER: Final = Struct(">I")  # how many messages the answerer has completed
_RESUME: Final = Struct(">II")
_HEADER_INCLUDED: Final = 0xC000  # M: the length is there; D: so is the DDP header
FETCH_ADD: Final = 0
COMPARE_SWAP: Final = 2


class ReadRequest(NamedTuple):
    """What a read asks for, 28 bytes: where its answer goes, how much, and from where."""

    sink_stag: int
    sink_offset: int
    read_bytes: int
    source_stag: int
    source_offset: int

    def emit(self) -> bytes:
        """Write the payload."""
        return _READ.pack(*self)


class AtomicRequest(NamedTuple):
    """An atomic operation on eight bytes, 52 bytes. `operation`: FETCH_ADD or COMPARE_SWAP.

    All operations have masks here; a plain one has those that make no difference.
    """

    operation: int
    identifier: int
    stag: int
    offset: int
    operand: int  # added, or put in place
    mask: int  # highest bits of the fields to add in, or bits to replace
    compare: int  # this and its mask: 0 of an addition
    compare_mask: int

    @property
    def is_plain(self) -> bool:
        """Whether its masks make no difference."""
        if self.operation == COMPARE_SWAP:
            return self.mask == self.compare_mask == CELL_MASK
        return not self.mask

    def emit(self) -> bytes:
        """Write the payload."""
        return _ATOMIC.pack(*self)


def _fixed(payload: memoryview, layout: Struct, what: str) -> tuple[int, ...]:
    if len(payload) != layout.size:
        raise StreamBroken(
            TerminateCode.REMOTE_OPERATION, f"{what} of {len(payload)} bytes, not {layout.size}"
        )
    return layout.unpack(payload)


def parse_read_request(payload: memoryview) -> ReadRequest:
    """Read one. Raises StreamBroken for another size."""
    return ReadRequest(*_fixed(payload, _READ, "read request"))


def parse_atomic_request(payload: memoryview) -> AtomicRequest:
    """Read one. Raises StreamBroken for another size or operation."""
    word, *rest = _fixed(payload, _ATOMIC, "atomic request")
    operation = word & 0xF
    if operation not in (FETCH_ADD, COMPARE_SWAP):
        raise StreamBroken(TerminateCode.REMOTE_OPERATION, f"atomic operation {operation}")
    return AtomicRequest(operation, *rest)


def parse_atomic_response(payload: memoryview) -> tuple[int, int]:
    """Read (identifier, value before). Raises StreamBroken for another size."""
    identifier, value = _fixed(payload, ATOMIC_RESPONSE, "atomic response")
    return identifier, value


def parse_immediate(payload: memoryview) -> int:
    """Read immediate data. Raises StreamBroken for another size or more than 32 bits."""
    (value,) = _fixed(payload, IMMEDIATE, "immediate data")
    if value >> 32:
        raise StreamBroken(TerminateCode.REMOTE_OPERATION, f"immediate data {value:#x}")
    return value


def emit_terminate(code: int, header: bytes = b"") -> bytes:
    """Write a terminate's payload, with length and header of the segment at fault if known."""
    return _TERMINATE.pack(code, _HEADER_INCLUDED if header else 0) + header


def parse_terminate(payload: memoryview) -> int:
    """Read layer, type and code, a `TerminateCode` if we know it; the rest is for people."""
    if len(payload) < _TERMINATE.size:
        return TerminateCode.LOCAL_CATASTROPHIC
    code: int = _TERMINATE.unpack_from(payload)[0]
    return code


def parse_answer(payload: memoryview) -> int:
    """Read it. Raises StreamBroken for another size."""
    return _fixed(payload, ANSWER, "answer")[0]


def emit_resume(psn: int, offset: int) -> bytes:
    """Write which packet comes next, and how many bytes of its message came before."""
    return _RESUME.pack(psn, offset)


def parse_resume(payload: memoryview) -> tuple[int, int]:
    """Read (psn, offset). Raises StreamBroken for another size or a number beyond 24 bits."""
    psn, offset = _fixed(payload, _RESUME, "resume")
    if psn >> 24:
        raise StreamBroken(TerminateCode.REMOTE_OPERATION, f"packet number {psn}")
    return psn, offset
