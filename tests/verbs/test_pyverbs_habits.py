"""Programs written for pyverbs: what cannot mean the same here does not pass in silence."""

from collections.abc import Callable

import pytest

from tests.verbs.objects_world import World
from urds.verbs import MR, AHAttr, GlobalRoute, MWBind, MWBindInfo, QPAttr, QPInitAttr, QPState

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
