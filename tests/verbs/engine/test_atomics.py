"""Masked atomic operations: the arithmetic, and their way through both halves of a queue pair."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.verbs_pair import Pair, Side
from tests.support.examples import examples
from tests.verbs.engine.verbs_sides import ONLY, answers, make_answering, make_asking, sent
from urds.verbs.engine.numbers import (
    AccessFlag,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.packets import Packet, PacketKind, Syndrome
from urds.verbs.engine.responder import add_in_fields, value_after
from urds.verbs.engine.work import SendWR

MASKED_SWAP = WROpcode.MASKED_ATOMIC_CMP_AND_SWP
MASKED_ADD = WROpcode.MASKED_ATOMIC_FETCH_AND_ADD
ALL = (1 << 64) - 1
BYTES = 0x8080_8080_8080_8080  # the highest bit of each byte: eight counters side by side
values = st.one_of(st.integers(0, ALL), st.sampled_from([0, 1, ALL, 1 << 63, BYTES]))


def bit_by_bit(value: int, addend: int, boundary: int) -> int:
    """Add as the definition says it: a carry goes up unless the bit ends its field."""
    total = carry = 0
    for position in range(64):
        digits = (value >> position & 1) + (addend >> position & 1) + carry
        total |= (digits & 1) << position
        carry = digits >> 1 & ~(boundary >> position) & 1
    return total


def after(before: int, kind: PacketKind = PacketKind.MASKED_SWAP, **operands: int) -> int:
    return value_after(Packet(kind, 0xB, **operands), before)


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(values, values, values)
def test_fields_are_added_as_the_definition_says(value: int, addend: int, boundary: int) -> None:
    assert add_in_fields(value, addend, boundary=boundary) == bit_by_bit(value, addend, boundary)


@pytest.mark.parametrize(
    ("value", "addend", "boundary", "total"),
    [
        (0xFF, 1, 0x80, 0x00),  # nothing leaves the lowest byte
        (0xFF, 1, 0, 0x100),
        (0x01FF, 0x0101, BYTES, 0x0200),
        (ALL, ALL, ALL, 0),  # 64 fields of one bit: exclusive or
        (ALL, 1, 0, 0),
        (1 << 63, 1 << 63, 1 << 63, 0),
        (0xFFFF_FFFF_FFFF_FFFF, 1, 1 << 31, 0xFFFF_FFFF_0000_0000),
    ],
)
def test_examples_of_additions(value: int, addend: int, boundary: int, total: int) -> None:
    kind = PacketKind.MASKED_ADD
    assert after(value, kind, compare_add=addend, boundary=boundary) == total


@pytest.mark.parametrize(
    ("before", "operands", "expected"),
    [
        # Only the lower half is compared, and only the lowest byte replaced.
        (0xAAAA_5555, {"compare_add": 0x1111_5555, "compare_mask": 0xFFFF,
                       "swap": 0x7777_7777, "swap_mask": 0xFF}, 0xAAAA_5577),
        (0xAAAA_5555, {"compare_add": 0xAAAA_5554, "compare_mask": 0xFFFF,
                       "swap": 0, "swap_mask": ALL}, 0xAAAA_5555),
        (0xAAAA_5555, {"compare_add": 0xAAAA_5554, "compare_mask": 0xFFFF_0000,
                       "swap": 9, "swap_mask": ALL}, 9),
        (7, {"compare_add": 8, "compare_mask": 0, "swap": 9}, 9),  # nothing to compare
        (7, {"compare_add": 7, "swap": 9, "swap_mask": 0}, 7),  # nothing to replace
        (7, {"compare_add": 7, "swap": 9}, 9),  # all bits: as without masks
        (7, {"compare_add": 7 | 1 << 63, "swap": 9}, 7),
    ],
)  # fmt: skip
def test_examples_of_swaps(before: int, operands: dict[str, int], expected: int) -> None:
    assert after(before, **operands) == expected


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(values, values, values, values, values)
def test_a_swap_touches_only_what_its_mask_names(
    before: int, compare: int, swap: int, compare_mask: int, swap_mask: int
) -> None:
    operands = {"compare_add": compare, "compare_mask": compare_mask}
    found = after(before, **operands, swap=swap, swap_mask=swap_mask)
    is_equal = before & compare_mask == compare & compare_mask
    assert found & ~swap_mask == before & ~swap_mask
    assert found & swap_mask == (swap if is_equal else before) & swap_mask


@given(values, values, values)
def test_plain_operations_have_masks_that_make_no_difference(
    before: int, first: int, second: int
) -> None:
    assert after(before, PacketKind.ATOMIC_ADD, compare_add=first) == (before + first) & ALL
    swapped = after(before, PacketKind.ATOMIC_SWAP, compare_add=first, swap=second)
    assert swapped == (second if before == first else before)


# -- the responder


def add_bytes(side: Side, psn: int, at: int = 0) -> Packet:
    """Ask for 1 more in the lowest of eight counters of a byte."""
    return Packet(
        PacketKind.MASKED_ADD, 0xB, psn, ONLY,
        address=side.address + at, rkey=side.region.rkey, compare_add=1, boundary=BYTES,
    )  # fmt: skip


def test_a_repeated_masked_operation_is_answered_from_memory() -> None:
    side = make_answering()
    side.memory[0] = 0xFF
    answers(side, add_bytes(side, 100))
    again = answers(side, add_bytes(side, 100))[0]
    assert (again.kind, again.compare_add) == (PacketKind.ATOMIC_RESPONSE, 0xFF)
    assert side.memory[:2] == b"\0\0"


@pytest.mark.parametrize("kind", [PacketKind.MASKED_SWAP, PacketKind.MASKED_ADD])
def test_a_queue_pair_may_forbid_masked_operations(kind: PacketKind) -> None:
    rights = AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ
    side = make_answering(attr={"qp_access_flags": rights})
    packet = Packet(kind, 0xB, 100, ONLY, address=side.address, rkey=side.region.rkey, swap=1)
    assert [found.syndrome for found in answers(side, packet)] == [Syndrome.NAK_INVALID_REQUEST]
    assert not any(side.memory[:8])


# -- the whole way


@pytest.mark.parametrize(
    ("opcode", "swap", "compare_mask", "swap_mask", "boundary"),
    [
        (WROpcode.ATOMIC_FETCH_AND_ADD, 0, ALL, ALL, 0),
        (WROpcode.ATOMIC_CMP_AND_SWP, 2, ALL, ALL, 0),
        (MASKED_ADD, 0, ALL, ALL, 5),
        (MASKED_SWAP, 2, 3, 4, 0),
    ],
)
def test_an_operation_takes_along_what_its_opcode_uses(
    opcode: WROpcode, swap: int, compare_mask: int, swap_mask: int, boundary: int
) -> None:
    side = make_asking()
    wr = SendWR(1, opcode, [side.sge(0, 8)])
    wr.set_wr_masked_atomic(77, 8, 1, 2, compare_mask=3, swap_mask=4, boundary=5)
    side.qp.post_send(wr, 0)
    (packet,) = sent(side)
    assert (packet.rkey, packet.address, packet.compare_add) == (77, 8, 1)
    assert (packet.compare_mask, packet.swap_mask) == (compare_mask, swap_mask)
    assert (packet.swap, packet.boundary) == (swap, boundary)


@pytest.mark.parametrize("opcode", [WROpcode.ATOMIC_FETCH_AND_ADD, MASKED_SWAP])
def test_an_address_beyond_64_bits_is_for_the_peer_to_refuse(opcode: WROpcode) -> None:
    pair = Pair()
    pair.a.remote(1, opcode, pair.b, length=8, at=1 << 64)
    pair.a.remote(2, opcode, pair.b, length=8, at=(1 << 64) + 0x1_0000_0000)
    pair.run()
    assert [wc.status for wc in pair.a.sent()] == [WCStatus.SUCCESS, WCStatus.REM_ACCESS_ERR]
