"""What RDMAP puts behind the header of an untagged segment, bytes to records and back.

Source: RFC 5040 sections 4.4 (read) and 4.8 (terminate), RFC 7306 sections 5 (atomics) and 6
(immediate data); the last two layouts are our own nodes' (docs/adr/0007).
"""

from struct import Struct
from typing import Final, NamedTuple

from urds.verbs.engine.numbers import CELL_MASK
from urds.verbs.providers.tcp.fpdu import StreamBroken, TerminateCode

_READ: Final = Struct(">IQIIQ")
_ATOMIC: Final = Struct(">IIIQQQQQ")
_ATOMIC_RESPONSE: Final = Struct(">IQ")
_IMMEDIATE: Final = Struct(">Q")
_TERMINATE: Final = Struct(">HH")
_ANSWER: Final = Struct(">I")
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


def emit_atomic_response(identifier: int, value: int) -> bytes:
    """Write the answer to an atomic request: the value before, 12 bytes."""
    return _ATOMIC_RESPONSE.pack(identifier, value)


def parse_atomic_response(payload: memoryview) -> tuple[int, int]:
    """Read (identifier, value before). Raises StreamBroken for another size."""
    identifier, value = _fixed(payload, _ATOMIC_RESPONSE, "atomic response")
    return identifier, value


def emit_immediate(value: int) -> bytes:
    """Write immediate data, 8 bytes; ours are 32 bits and stand in the lower half."""
    return _IMMEDIATE.pack(value)


def parse_immediate(payload: memoryview) -> int:
    """Read immediate data. Raises StreamBroken for another size or more than 32 bits."""
    (value,) = _fixed(payload, _IMMEDIATE, "immediate data")
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


def emit_answer(completed_count: int) -> bytes:
    """Write how many messages the answerer has completed, 32 bits."""
    return _ANSWER.pack(completed_count)


def parse_answer(payload: memoryview) -> int:
    """Read it. Raises StreamBroken for another size."""
    return _fixed(payload, _ANSWER, "answer")[0]


def emit_resume(psn: int, offset: int) -> bytes:
    """Write which packet comes next, and how many bytes of its message came before."""
    return _RESUME.pack(psn, offset)


def parse_resume(payload: memoryview) -> tuple[int, int]:
    """Read (psn, offset). Raises StreamBroken for another size or a number beyond 24 bits."""
    psn, offset = _fixed(payload, _RESUME, "resume")
    if psn >> 24:
        raise StreamBroken(TerminateCode.REMOTE_OPERATION, f"packet number {psn}")
    return psn, offset
