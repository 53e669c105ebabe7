"""The same random calls and frames through a courier and through the core: both come out alike.

`python -m tests.parity.courier_cases --cases 1000000 [--seed N]`

One side has the compiled plane, whose plain messages a courier carries over a compiled engine; the
other one the Python plane, and the core for everything. A case is one call or frame, made of both:
what it gave is compared. Then both come to rest at the same time of their clocks, and the messages
that left are compared, in their order, with congestion maps, acknowledgements, operations and
readiness; now and then tables and counters too, for which a courier gives the numbers back. A world
is a seed and some hundred steps (`courier_random`); a failure names it and shows its last cases.

Nothing that acknowledges, and no map, comes between two calls without a rest: a courier reads where
it sends. Where a frame ends is its own affair from messages of 4 KiB on, which it sends from where
they lie, and so is how often it acknowledges.
"""

from __future__ import annotations

import sys

from tests.parity.courier_random import CourierWorld, MakePlane
from tests.parity.runs import Runs, carry_out
from tests.support.planes import PLANES
from urds.rds.plane.choose import NATIVE, PYTHON


class Run(Runs):
    """See `Runs`."""

    def __init__(self, one: MakePlane, other: MakePlane) -> None:
        super().__init__()
        self._makers = (one, other)

    def make_world(self, seed: int) -> None:
        """Make one world. Raises Difference, with its seed and its last cases."""
        world = CourierWorld(seed, self._makers)
        world.run()
        self.count(world.cases, world.happened)


if __name__ == "__main__":
    sys.exit(carry_out(Run(PLANES[PYTHON], PLANES[NATIVE]), __doc__))
