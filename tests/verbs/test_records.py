"""Records of requests: the dataclasses, and the compiled classes if the module is there."""

import copy
import pickle
import sys
from dataclasses import FrozenInstanceError, asdict, fields, replace
from typing import Any

import pytest

from urds.verbs import records
from urds.verbs.engine import work
from urds.verbs.engine.numbers import SendFlag, WROpcode

IS_COMPILED = records.SGE is not work.SGE  # chosen when this process began
BOTH = [work, records] if IS_COMPILED else [work]


@pytest.fixture(params=BOTH, ids=lambda module: module.__name__.rpartition(".")[2])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_all_classes_are_of_one_module() -> None:
    place = "urds_native" if IS_COMPILED else "urds.verbs.engine.work"
    assert {one.__module__ for one in (records.SGE, records.RecvWR, records.SendWR)} == {place}
    assert records.WC is work.WC


def test_fields_and_defaults(kind: Any) -> None:
    for name in ("SGE", "RecvWR", "SendWR"):
        cls, reference = getattr(kind, name), getattr(work, name)
        assert [field.name for field in fields(cls)] == [field.name for field in fields(reference)]
        assert cls.__match_args__ == reference.__match_args__
    send = kind.SendWR()
    assert (send.wr_id, send.opcode, send.sg, send.send_flags) == (
        0, WROpcode.SEND, [], SendFlag.SIGNALED,
    )  # fmt: skip
    assert asdict(send) == asdict(work.SendWR())
    assert kind.SendWR().sg is not kind.SendWR().sg


def test_a_copy_with_other_values(kind: Any) -> None:
    sge = kind.SGE(1, 2, 3)
    send = kind.SendWR(7, sg=[sge], rkey=4, num_sge=1)
    other = replace(send, wr_id=8, rkey=5)
    assert type(other) is type(send)
    assert (other.wr_id, other.rkey, other.num_sge, other.sg) == (8, 5, 1, [sge])
    assert replace(sge, length=9) == kind.SGE(1, 9, 3)
    assert replace(kind.RecvWR(1, [sge]), wr_id=2) == kind.RecvWR(2, [sge])
    if sys.version_info >= (3, 13):
        assert copy.replace(sge, lkey=0) == kind.SGE(1, 2, 0)


def test_equal_values_are_equal_and_survive_pickling(kind: Any) -> None:
    made = kind.SendWR(
        1, WROpcode.RDMA_WRITE, [kind.SGE(1, 2, 3)], data=b"x", next_wr=kind.SendWR()
    )
    for one in (made, kind.RecvWR(4, [kind.SGE(0, 1, 2)], num_sge=1), kind.SGE(4, 5, 6)):
        for twin in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
            assert twin == one
            assert type(twin) is type(one)
            assert repr(twin) == repr(one)
    assert kind.SendWR(1) != kind.SendWR(2)
    assert kind.SendWR() != kind.RecvWR()
    assert kind.SGE(1, 2, 3) != kind.SGE(1, 2, 4)


def test_text_is_that_of_the_reference(kind: Any) -> None:
    assert repr(kind.SGE(1, 2, 3)) == repr(work.SGE(1, 2, 3))
    assert repr(kind.SendWR(5, num_sge=2)) == repr(work.SendWR(5, num_sge=2))
    assert repr(kind.RecvWR(5)) == repr(work.RecvWR(5))


def test_pieces_are_values_and_the_others_are_not(kind: Any) -> None:
    assert {kind.SGE(1, 2, 3): 1}[kind.SGE(addr=1, length=2, lkey=3)] == 1
    with pytest.raises((AttributeError, FrozenInstanceError)):
        kind.SGE(1, 2, 3).addr = 5
    for record in (kind.SendWR(), kind.RecvWR()):
        with pytest.raises(TypeError):
            hash(record)


@pytest.mark.parametrize("values", [(1 << 70, -1, 1 << 40), (-5, 1 << 80, -1), ("a", None, 2.5)])
def test_a_piece_keeps_whatever_it_was_given(kind: Any, values: tuple[Any, ...]) -> None:
    sge = kind.SGE(*values)
    assert (sge.addr, sge.length, sge.lkey) == values
    assert sge == kind.SGE(*values)
    assert hash(sge) == hash(kind.SGE(*values))
    assert repr(sge) == repr(work.SGE(*values))
    assert pickle.loads(pickle.dumps(sge)) == sge


def test_a_place_in_a_class_pattern(kind: Any) -> None:
    match kind.SGE(1, 2, 3):
        case kind.SGE(addr, length, lkey):
            assert (addr, length, lkey) == (1, 2, 3)
        case _:
            pytest.fail("no match")
