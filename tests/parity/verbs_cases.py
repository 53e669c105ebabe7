"""The same random calls and packets into both verbs engines: each has to come out alike.

`python -m tests.parity.verbs_cases --cases 1000000 [--seed N]`

A case is one call or packet, made of both; what it gave is compared, and at the end of a world all
that can be seen of it, memory included. A world is a seed: two devices, some five hundred cases
(`verbs_random`). A failure names the seed and shows the last cases of each device.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from tests.parity.runs import Runs, carry_out
from tests.parity.verbs_random import RandomWorld

STEPS: Final = 40  # of a world, of several cases each
SHOWN_CASES: Final = 40


class Run(Runs):
    """See `Runs`."""

    def __init__(self, native: Any) -> None:
        super().__init__()
        self._native = native

    def make_world(self, seed: int) -> None:
        """Make one world. Raises AssertionError, with its seed and its last cases."""
        world: RandomWorld | None = None
        try:
            world = RandomWorld(seed, self._native.Engine, self._native)
            world.run(STEPS)
        except Exception as error:
            nodes = [] if world is None else world.nodes
            lines = "\n".join(f"  {line}" for node in nodes for line in node.log[-SHOWN_CASES:])
            raise AssertionError(f"seed {seed}: {error!r}\n{lines}") from error
        for node in world.nodes:
            self.count(node.calls, node.seen)


if __name__ == "__main__":
    import urds_native

    sys.exit(carry_out(Run(urds_native), __doc__))
