"""Conformance: compare-and-swap and fetch-and-add, and all that they refuse."""

import pytest

from tests.verbs.conformance import Pair, Side, World, shows
from tests.verbs.conformance_cells import (
    CELL_BYTES,
    CELL_MAX,
    INVALID,
    access_of,
    cell_of,
    check_closed,
    check_invalid,
    check_result,
    pair_with,
)
from urds.verbs import QP, SGE, AccessFlag, AsyncEventType, VerbsPostError, WCStatus, WROpcode

SWAP, ADD = WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD
BOTH = (SWAP, ADD)


def pair_of(world: World, **keywords: AccessFlag) -> Pair | None:
    return pair_with(world, "atomics", BOTH, **keywords)


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
    check_result(pair, opcode, before, after, **operands)
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
@pytest.mark.parametrize("fault", INVALID)
def test_what_is_no_valid_atomic_request(world: World, opcode: WROpcode, fault: str) -> None:
    if (pair := pair_of(world, access=access_of(fault))) is not None:
        check_invalid(pair, opcode, fault, compare_add=0, swap=1)


@shows(WCStatus.REM_ACCESS_ERR, AsyncEventType.QP_ACCESS_ERR)
@pytest.mark.parametrize("opcode", BOTH)
@pytest.mark.parametrize("fault", ["rights of the region", "key", "behind", "across"])
def test_a_cell_that_the_key_does_not_open(world: World, opcode: WROpcode, fault: str) -> None:
    if (pair := pair_of(world)) is not None:
        check_closed(world, pair, opcode, fault, compare_add=0)


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
