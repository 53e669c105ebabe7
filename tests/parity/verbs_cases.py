"""The same random calls and packets into both verbs engines: each has to come out alike.

`python -m tests.parity.verbs_cases --cases 1000000 [--seed N]`

A case is one call or packet, made of both; what it gave is compared, and at the end of a world all
that can be seen of it, memory included. A world is a seed: two devices, some five hundred cases
(`verbs_random`). A failure names the seed and shows the last cases of each device.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import Any, Final

from tests.parity.verbs_random import RandomWorld

STEPS: Final = 40  # of a world, of several cases each
SHOWN_CASES: Final = 40
REPORT_EVERY_S: Final = 30.0


class Run:
    """Worlds that were made, and what happened in them."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.seen: Counter[str] = Counter()
        self.cases = self.worlds = 0

    def world(self, seed: int) -> None:
        """Make one world. Raises AssertionError, with its seed and its last cases."""
        world: RandomWorld | None = None
        try:
            world = RandomWorld(seed, self._native.Engine, self._native)
            world.run(STEPS)
        except Exception as error:
            nodes = [] if world is None else world.nodes
            lines = "\n".join(f"  {line}" for node in nodes for line in node.log[-SHOWN_CASES:])
            raise AssertionError(f"seed {seed}: {error!r}\n{lines}") from error
        self.worlds += 1
        for node in world.nodes:
            self.seen.update(node.seen)
            self.cases += node.calls

    def until(self, cases: int, seed: int) -> None:
        """Make worlds from `seed` on until there were so many cases."""
        told_s = time.monotonic()
        while self.cases < cases:
            self.world(seed + self.worlds)
            if time.monotonic() - told_s > REPORT_EVERY_S:
                told_s = time.monotonic()
                print(f"{self.worlds} worlds, {self.cases} cases", flush=True)


def main() -> int:
    """Carry out the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first world")
    options = parser.parse_args()
    import urds_native

    run = Run(urds_native)
    began_s = time.monotonic()
    try:
        run.until(options.cases, options.seed)
    except AssertionError as error:
        print(error)
        return 1
    spent_s = time.monotonic() - began_s
    print(f"{run.cases} cases in {run.worlds} worlds alike in {spent_s:.0f} s")
    print(", ".join(f"{name} {count}" for name, count in sorted(run.seen.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
