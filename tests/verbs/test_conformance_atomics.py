"""Conformance: compare-and-swap and fetch-and-add, and all that they refuse."""

import sys

import pytest

from tests.verbs.conformance import EVERYTHING, REGION_BYTES, Pair, Side, World, refuses, shows
from urds.verbs import (
    MR,
    QP,
    SGE,
    AccessFlag,
    AsyncEventType,
    VerbsPostError,
    WCOpcode,
    WCStatus,
    WROpcode,
)

SWAP, ADD = WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD
BOTH = (SWAP, ADD)
CELL_MAX = (1 << 64) - 1
CELL_BYTES = 8


def cell_of(mr: MR, offset: int = 0) -> int:
    return int.from_bytes(mr.read(CELL_BYTES, offset), sys.byteorder)


def set_cell(mr: MR, value: int, offset: int = 0) -> None:
    mr.write(value.to_bytes(CELL_BYTES, sys.byteorder), offset=offset)


def pair_of(world: World, **keywords: AccessFlag) -> Pair | None:
    """Return a pair; without atomics show that they are refused."""
    pair = world.pair(**keywords)
    if not world.lacks("atomics"):
        return pair
    for opcode in BOTH:
        refuses(lambda opcode=opcode: pair.left.post(opcode, to=pair.right.mr))
    assert pair.right.mr.read(CELL_BYTES) == bytes(CELL_BYTES)
    return None


@shows(SWAP, ADD, WCStatus.SUCCESS)
@pytest.mark.parametrize(
    ("opcode", "before", "operands", "after"),
    [
        (SWAP, 5, {"compare_add": 5, "swap": 9}, 9),
        (SWAP, 5, {"compare_add": 6, "swap": 9}, 5),
        (SWAP, CELL_MAX, {"compare_add": CELL_MAX, "swap": 0}, 0),
        (ADD, 40, {"compare_add": 2}, 42),
        (ADD, CELL_MAX, {"compare_add": 3}, 2),
        (ADD, 1 << 63, {"compare_add": 1 << 63}, 0),
    ],
)
def test_an_atomic_operation_returns_the_value_before(
    world: World, opcode: WROpcode, before: int, operands: dict[str, int], after: int
) -> None:
    if (pair := pair_of(world)) is None:
        return
    left, right = pair.left, pair.right
    set_cell(right.mr, before, 24)
    left.post(opcode, CELL_BYTES, offset=16, to=right.mr, at=24, **operands)
    wc = left.sent()[0]
    expected = WCOpcode.COMP_SWAP if opcode is SWAP else WCOpcode.FETCH_ADD
    assert (wc.status, wc.opcode, wc.byte_len) == (WCStatus.SUCCESS, expected, CELL_BYTES)
    assert cell_of(left.mr, 16) == before
    assert cell_of(right.mr, 24) == after
    assert right.mr.read(24) == bytes(24)
    assert right.mr.read(8, 32) == bytes(8)
    # Each test shows both: the other one adds nothing and swaps nothing.
    other = ADD if opcode is SWAP else SWAP
    left.post(other, CELL_BYTES, to=right.mr, at=24, compare_add=0, swap=after)
    assert left.ended() == [WCStatus.SUCCESS]
    assert cell_of(right.mr, 24) == after


@shows(ADD)
def test_additions_of_many_queue_pairs_all_count_once(world: World) -> None:
    """Each sees a value of its own: together they are the numbers from 0 up."""
    if (pair := pair_of(world)) is None:
        return
    right = pair.right
    lefts = [pair.left]
    for _ in range(2):
        served = Side(world, right.context)
        served.qp = QP(right.pd, right.init_attr, right.attr)  # of the domain of the memory
        lefts.append(Pair(world.side(), served).connect().left)
    for number in range(20):
        for left in lefts:
            place = number * CELL_BYTES
            left.post(ADD, CELL_BYTES, offset=place, to=right.mr, compare_add=1, wr_id=number)
    for left in lefts:
        assert left.ended(20) == [WCStatus.SUCCESS] * 20
    seen = [cell_of(left.mr, number * CELL_BYTES) for left in lefts for number in range(20)]
    assert sorted(seen) == list(range(60))
    assert cell_of(right.mr) == 60


@shows(SWAP)
def test_of_those_who_swap_at_once_one_wins(world: World) -> None:
    if (pair := pair_of(world)) is None:
        return
    left, right = pair.left, pair.right
    for number in range(10):
        left.post(SWAP, CELL_BYTES, offset=8 * number, to=right.mr, swap=number + 1, wr_id=number)
    assert left.ended(10) == [WCStatus.SUCCESS] * 10
    assert [cell_of(left.mr, 8 * number) for number in range(10)] == [0] + [1] * 9


# -- refusals


@shows(WCStatus.REM_INV_REQ_ERR, AsyncEventType.QP_REQ_ERR)
@pytest.mark.parametrize("opcode", BOTH)
@pytest.mark.parametrize("fault", ["rights of the queue pair", "unaligned"])
def test_what_is_no_valid_atomic_request(world: World, opcode: WROpcode, fault: str) -> None:
    access = EVERYTHING if fault == "unaligned" else EVERYTHING & ~AccessFlag.REMOTE_ATOMIC
    if (pair := pair_of(world, access=access)) is None:
        return
    at = 8 - pair.right.mr.buf % 8 + (3 if fault == "unaligned" else 0)
    pair.left.post(opcode, CELL_BYTES, to=pair.right.mr, at=at, compare_add=0, swap=1)
    assert pair.left.ended() == [WCStatus.REM_INV_REQ_ERR]
    pair.right.event(AsyncEventType.QP_REQ_ERR)
    assert pair.right.mr.read() == bytes(REGION_BYTES)


@shows(WCStatus.REM_ACCESS_ERR, AsyncEventType.QP_ACCESS_ERR)
@pytest.mark.parametrize("opcode", BOTH)
@pytest.mark.parametrize("fault", ["rights of the region", "key", "behind", "across"])
def test_a_cell_that_the_key_does_not_open(world: World, opcode: WROpcode, fault: str) -> None:
    if (pair := pair_of(world)) is None:
        return
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
    left.post(opcode, CELL_BYTES, rkey=rkey, remote_addr=aligned(mr.buf) + end, compare_add=0)
    assert left.ended() == [WCStatus.REM_ACCESS_ERR]
    right.event(AsyncEventType.QP_ACCESS_ERR)
    assert mr.read() == bytes(mr.length)


@shows(WCStatus.LOC_PROT_ERR)
@pytest.mark.parametrize("opcode", BOTH)
def test_a_result_needs_memory_that_may_be_written(world: World, opcode: WROpcode) -> None:
    if (pair := pair_of(world)) is None:
        return
    left, right = pair.left, pair.right
    left.post(opcode, sg=[SGE(left.mr.buf, CELL_BYTES, left.mr.lkey ^ 1)], to=right.mr)
    assert left.ended() == [WCStatus.LOC_PROT_ERR]


@pytest.mark.parametrize("opcode", BOTH)
@pytest.mark.parametrize("room_bytes", [0, 4, 16])
def test_a_result_has_eight_bytes(world: World, opcode: WROpcode, room_bytes: int) -> None:
    if (pair := pair_of(world)) is None:
        return
    with pytest.raises(VerbsPostError, match=f"room of {room_bytes} bytes"):
        pair.left.post(opcode, room_bytes, to=pair.right.mr)


def aligned(address: int) -> int:
    return (address + CELL_BYTES - 1) // CELL_BYTES * CELL_BYTES
