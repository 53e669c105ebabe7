"""Random cases come out of both planes alike; how: `random_crossings`.

50,000 of them in `make test`, 50,000 others beyond it.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.parity.lockstep import Difference
from tests.parity.random_crossings import cross
from tests.support.planes import PLANES
from urds.rds.plane.choose import NATIVE, PYTHON, missing
from urds.rds.plane.contract import Plane
from urds.rds.plane.python.plane import Plane as ReferencePlane

CASES, SHARES = 100_000, 40
SEEDS_PER_SHARE = 1000  # more than a share makes worlds
DIFFERED = (1000290, 1000815, 1000858, 2000804, 50000042, 50005769, 50042499, 60032497)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=f"no compiled plane: {missing()}")
@pytest.mark.parametrize("seed", range(SHARES))
def test_random_calls_and_bytes_come_out_alike(seed: int) -> None:
    """One share of the cases; a failure names its world and its last steps."""
    cross(seed * SEEDS_PER_SHARE, CASES // SHARES, PLANES[PYTHON], PLANES[NATIVE])


@pytest.mark.skipif(bool(missing()), reason=f"no compiled plane: {missing()}")
@pytest.mark.found(*DIFFERED)
@pytest.mark.parametrize("seed", DIFFERED)
def test_worlds_that_once_differed_come_out_alike(seed: int) -> None:
    """Found among millions of cases.

    2000804: an account that its path had kept was forgotten. 50000042: a cancel that found nothing
    told the account, after which one destination was in use again. 50005769: a path that was
    detached from a stream with no room took messages and asked for no other one. 50042499: an empty
    message left a path whose account was forgotten. 60032497: a map of another generation amid a
    stream let the next number be lower than all of the stream so far, which one plane did not see.
    """
    cross(seed, 1, PLANES[PYTHON], PLANES[NATIVE])


@pytest.mark.parametrize(
    "bound",
    ["acknowledge_messages", "control_events_max", "frame_bytes_max", "message_bytes_max"],
)
def test_a_plane_that_is_off_by_one_is_found_out(bound: str) -> None:
    """The comparison can fail: one message more makes a difference, and soon."""

    def off_by_one(**arguments: object) -> Plane:
        limits = arguments.pop("limits")
        limits = replace(limits, **{bound: getattr(limits, bound) + 1})
        return ReferencePlane(limits=limits, **arguments)

    planes: list[Callable[..., Plane]] = [ReferencePlane, off_by_one]
    with pytest.raises(Difference, match="seed"):
        cross(0, 10_000, *planes)


def test_a_plane_is_like_itself() -> None:
    """What differs from run to run has no part in the comparison."""
    assert cross(0, 2000, ReferencePlane, ReferencePlane) >= 2000
