"""Programs written for pyverbs: what cannot mean the same here does not pass in silence."""

from collections.abc import Callable

import pytest

from tests.verbs.objects_world import World
from urds.verbs import (
    MR,
    AHAttr,
    GlobalRoute,
    MWBind,
    MWBindInfo,
    QPAttr,
    QPInitAttr,
    QPState,
    SendFlag,
)

DGID = bytes(16)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GlobalRoute(DGID, 0),  # flow_label there
        lambda: AHAttr(0),  # dlid there
        lambda: QPAttr(QPState.INIT, QPState.RESET, 1),  # port_num there
        lambda: QPInitAttr(2),
        lambda: MR(World().left.pd, bytearray(8), 1, 0x1000),  # where the memory is, there
        lambda: MWBind(MWBindInfo(World().left.mr, 0, 8), 2),  # send_flags there
    ],
)
def test_arguments_by_place_end_where_pyverbs_has_another_order(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="positional argument"):
        make()


def test_arguments_by_place_mean_what_they_mean_in_pyverbs() -> None:
    assert GlobalRoute(DGID).dgid == DGID
    attributes = QPAttr(QPState.ERR, QPState.RTS)
    assert (attributes.qp_state, attributes.cur_qp_state) == (QPState.ERR, QPState.RTS)


def test_defaults_are_those_of_pyverbs() -> None:
    """A modify to the state of `QPAttr()`, or a wait for a send without flags, depends on them."""
    assert (QPAttr().qp_state, QPAttr().cur_qp_state) == (QPState.INIT, QPState.RESET)
    assert QPInitAttr().sq_sig_all
    world = World().connect()
    world.right.receive()
    world.left.send(b"unflagged", 7, SendFlag(0))
    assert [wc.wr_id for wc in world.left.cq.wait_for(1, timeout_s=1)] == [7]
