"""Conformance: compare-and-swap and fetch-and-add under masks, and all that they refuse."""

import pytest

from tests.verbs.conformance import Pair, World, shows
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
    set_cell,
)
from urds.verbs import AccessFlag, AsyncEventType, VerbsPostError, WCStatus, WROpcode

SWAP = WROpcode.MASKED_ATOMIC_CMP_AND_SWP
ADD = WROpcode.MASKED_ATOMIC_FETCH_AND_ADD
BOTH = (SWAP, ADD)
BYTES = 0x8080_8080_8080_8080  # highest bits of eight counters
LOW, HIGH = 0xFFFF_FFFF, 0xFFFF_FFFF << 32


def pair_of(world: World, **keywords: AccessFlag) -> Pair | None:
    return pair_with(world, "masked_atomics", BOTH, **keywords)


@shows(SWAP, ADD, WCStatus.SUCCESS)
@pytest.mark.parametrize(
    ("opcode", "before", "operands", "after"),
    [
        # Equal in what is compared: what is named changes, and nothing else.
        (SWAP, 5 << 32 | 7, {"compare_add": 9 << 32 | 7, "compare_mask": LOW,
                             "swap": CELL_MAX, "swap_mask": HIGH}, HIGH | 7),
        (SWAP, 5 << 32 | 7, {"compare_add": 5 << 32 | 8, "compare_mask": LOW,
                             "swap": CELL_MAX, "swap_mask": HIGH}, 5 << 32 | 7),
        (SWAP, 5, {"compare_add": 6, "compare_mask": 0, "swap": 9}, 9),
        (SWAP, 5, {"compare_add": 5, "swap": 9}, 9),
        (ADD, 0x01FF, {"compare_add": 0x0101, "boundary": BYTES}, 0x0200),
        (ADD, CELL_MAX, {"compare_add": 1 << 32 | 1, "boundary": 1 << 31}, 0),
        (ADD, CELL_MAX, {"compare_add": 1, "boundary": 1 << 31}, HIGH),
        (ADD, CELL_MAX, {"compare_add": 3}, 2),
    ],
)  # fmt: skip
def test_a_masked_operation_returns_the_value_before(
    world: World, opcode: WROpcode, before: int, operands: dict[str, int], after: int
) -> None:
    if (pair := pair_of(world)) is None:
        return
    left, right = pair.left, pair.right
    check_result(pair, opcode, before, after, **operands)
    # Each test shows both: the other one adds nothing and swaps nothing.
    other = ADD if opcode is SWAP else SWAP
    left.post(other, CELL_BYTES, to=right.mr, at=24, compare_add=0, swap_mask=0)
    assert left.ended() == [WCStatus.SUCCESS]
    assert (cell_of(left.mr), cell_of(right.mr, 24)) == (after, after)


@shows(ADD)
def test_counters_of_one_cell_stay_apart(world: World) -> None:
    """Each byte counts modulo 256 for itself, whichever request turns it over."""
    if (pair := pair_of(world)) is None:
        return
    left, right = pair.left, pair.right
    set_cell(right.mr, 0xFE | 0xFD << 8)
    for number in range(6):
        step = 1 << 8 * (number % 2)
        left.post(ADD, CELL_BYTES, to=right.mr, compare_add=step, boundary=BYTES, wr_id=number)
    assert left.ended(6) == [WCStatus.SUCCESS] * 6
    assert cell_of(right.mr) == 0x01


# -- refusals


@shows(WCStatus.REM_INV_REQ_ERR, AsyncEventType.QP_REQ_ERR)
@pytest.mark.parametrize("opcode", BOTH)
@pytest.mark.parametrize("fault", INVALID)
def test_what_is_no_valid_masked_request(world: World, opcode: WROpcode, fault: str) -> None:
    if (pair := pair_of(world, access=access_of(fault))) is not None:
        check_invalid(pair, opcode, fault, compare_mask=0, swap=1)


@shows(WCStatus.REM_ACCESS_ERR, AsyncEventType.QP_ACCESS_ERR)
@pytest.mark.parametrize("opcode", BOTH)
@pytest.mark.parametrize("fault", ["rights of the region", "key", "behind"])
def test_a_masked_operation_needs_the_key(world: World, opcode: WROpcode, fault: str) -> None:
    if (pair := pair_of(world)) is not None:
        check_closed(world, pair, opcode, fault, compare_mask=0, swap=1)


@pytest.mark.parametrize(
    ("opcode", "name"),
    [(SWAP, "compare_mask"), (SWAP, "swap_mask"), (SWAP, "swap"), (ADD, "boundary")],
)
def test_masks_have_64_bits(world: World, opcode: WROpcode, name: str) -> None:
    if (pair := pair_of(world)) is None:
        return
    with pytest.raises(VerbsPostError, match=f"{name} 0x10000000000000000 of .* outside 64 bits"):
        pair.left.post(opcode, CELL_BYTES, to=pair.right.mr, **{name: CELL_MAX + 1})
