"""Scatter/gather: bytes of a message from and into the pieces of a work request."""

import pytest

from tests.sim.verbs_pair import MTU_BYTES, Side
from urds.verbs.engine.keys import AccessError
from urds.verbs.engine.numbers import WCStatus
from urds.verbs.engine.queue_pair import LinkTraits
from urds.verbs.engine.work import SGE, total_bytes


def make() -> tuple[Side, list[SGE]]:
    side = Side(1, LinkTraits(MTU_BYTES, lossless=False))
    side.memory[:100] = bytes(range(100))
    return side, [side.sge(0, 10), side.sge(50, 0), side.sge(20, 5), side.sge(90, 10)]


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 25), (0, 10), (9, 2), (10, 5), (14, 3), (25, 0)]
)
def test_bytes_are_gathered_from_anywhere(offset: int, length: int) -> None:
    side, sg = make()
    whole = bytes([*range(10), *range(20, 25), *range(90, 100)])
    found = side.keys.gather(side.pd, sg, offset, length)
    assert total_bytes(sg) == 25 and bytes(found) == whole[offset : offset + length]


def test_bytes_of_one_piece_are_not_copied() -> None:
    side, sg = make()
    found = side.keys.gather(side.pd, sg, 10, 5)
    assert isinstance(found, memoryview) and found.obj is side.memory


def test_bytes_are_scattered_over_the_pieces() -> None:
    side, sg = make()
    side.keys.scatter(side.pd, sg, 8, b"abcdefghij")
    assert side.memory[8:10] == b"ab" and side.memory[20:25] == b"cdefg"
    assert side.memory[90:93] == b"hij" and side.memory[93] == 93


def test_bytes_beyond_the_pieces_are_a_length_error() -> None:
    side, sg = make()
    with pytest.raises(AccessError, match="2 bytes more") as raised:
        side.keys.scatter(side.pd, sg, 20, b"1234567")
    assert raised.value.status is WCStatus.LOC_LEN_ERR


def test_a_piece_outside_its_region_is_a_protection_error() -> None:
    side, _ = make()
    for sg in ([side.sge(4090, 10)], [SGE(side.address, 10, side.region.lkey ^ 1)]):
        with pytest.raises(AccessError) as raised:
            side.keys.gather(side.pd, sg, 0, 10)
        assert raised.value.status is WCStatus.LOC_PROT_ERR
        with pytest.raises(AccessError):
            side.keys.scatter(side.pd, sg, 0, b"0123456789")
