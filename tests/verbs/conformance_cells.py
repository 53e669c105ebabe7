"""Cells of eight bytes at a peer, for the conformance of plain and masked atomic operations."""

import sys
from typing import Any

from tests.verbs.conformance import EVERYTHING, REGION_BYTES, Pair, World, refuses
from urds.verbs import MR, AccessFlag, AsyncEventType, WCOpcode, WCStatus, WROpcode

CELL_MAX = (1 << 64) - 1
CELL_BYTES = 8
SWAPS = {WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.MASKED_ATOMIC_CMP_AND_SWP}
INVALID = ("rights of the queue pair", "unaligned")


def cell_of(mr: MR, offset: int = 0) -> int:
    return int.from_bytes(mr.read(CELL_BYTES, offset), sys.byteorder)


def set_cell(mr: MR, value: int, offset: int = 0) -> None:
    mr.write(value.to_bytes(CELL_BYTES, sys.byteorder), offset=offset)


def aligned(address: int) -> int:
    return (address + CELL_BYTES - 1) // CELL_BYTES * CELL_BYTES


def pair_with(
    world: World, feature: str, opcodes: tuple[WROpcode, ...], **keywords: AccessFlag
) -> Pair | None:
    """Return a pair; without the feature show that its operations are refused."""
    pair = world.pair(**keywords)
    if not world.lacks(feature):
        return pair
    for opcode in opcodes:
        refuses(lambda opcode=opcode: pair.left.post(opcode, to=pair.right.mr))
    assert pair.right.mr.read(CELL_BYTES) == bytes(CELL_BYTES)
    return None


def check_result(pair: Pair, opcode: WROpcode, before: int, after: int, **operands: int) -> None:
    """Show that an operation returns what a cell was, and leaves what it shall be, and no more."""
    left, right = pair.left, pair.right
    set_cell(right.mr, before, 24)
    left.post(opcode, CELL_BYTES, offset=16, to=right.mr, at=24, **operands)
    wc = left.sent()[0]
    expected = WCOpcode.COMP_SWAP if opcode in SWAPS else WCOpcode.FETCH_ADD
    assert (wc.status, wc.opcode, wc.byte_len) == (WCStatus.SUCCESS, expected, CELL_BYTES)
    assert (cell_of(left.mr, 16), cell_of(right.mr, 24)) == (before, after)
    assert right.mr.read(24) == bytes(24)
    assert right.mr.read(8, 32) == bytes(8)


def access_of(fault: str) -> AccessFlag:
    """Return the rights of a queue pair for a fault of `INVALID`."""
    return EVERYTHING if fault == "unaligned" else EVERYTHING & ~AccessFlag.REMOTE_ATOMIC


def check_invalid(pair: Pair, opcode: WROpcode, fault: str, **operands: int) -> None:
    """Show that a request with a fault of `INVALID` ends both sides and changes nothing."""
    at = 8 - pair.right.mr.buf % 8 + (3 if fault == "unaligned" else 0)
    pair.left.post(opcode, CELL_BYTES, to=pair.right.mr, at=at, **operands)
    assert pair.left.ended() == [WCStatus.REM_INV_REQ_ERR]
    pair.right.event(AsyncEventType.QP_REQ_ERR)
    assert pair.right.mr.read() == bytes(REGION_BYTES)


def check_closed(world: World, pair: Pair, opcode: WROpcode, fault: str, **operands: Any) -> None:
    """Show that a cell that its key does not open stays as it was."""
    left, right = pair.left, pair.right
    mr = right.mr
    # A region whose last byte is in the middle of a cell: nothing aligned may reach across.
    if fault == "across":
        mr = world.memory(right.pd, 28, address=1 << 20).mr
    elif fault == "rights of the region":
        access = EVERYTHING & ~AccessFlag.REMOTE_ATOMIC
        mr = world.memory(right.pd, access=access, address=1 << 20).mr
    rkey = mr.rkey ^ 0x100 if fault == "key" else mr.rkey
    end = {"behind": REGION_BYTES, "across": 24}.get(fault, 0)
    left.post(opcode, CELL_BYTES, rkey=rkey, remote_addr=aligned(mr.buf) + end, **operands)
    assert left.ended() == [WCStatus.REM_ACCESS_ERR]
    right.event(AsyncEventType.QP_ACCESS_ERR)
    assert mr.read() == bytes(mr.length)
