"""Run random cases of both verbs engines: `python -m tests.parity.verbs_cases 100000`.

A case is a seed: some dozens of calls and packets for two devices. The first case that differs is
printed with its last calls, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import Any, Final

from tests.parity.verbs_random import RandomWorld

STEPS: Final = 40
SHOWN_CALLS: Final = 40
REPORT_EVERY_S: Final = 30.0


class Run:
    """Cases that were run, and what happened in them."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.seen: Counter[str] = Counter()
        self.calls = 0

    def case(self, seed: int, steps: int = STEPS) -> None:
        """Run one case. Raises AssertionError, with its seed and its last calls."""
        world: RandomWorld | None = None
        try:
            world = RandomWorld(seed, self._native.Engine, self._native)
            world.run(steps)
        except Exception as error:
            nodes = [] if world is None else world.nodes
            calls = "\n".join(f"  {line}" for node in nodes for line in node.log[-SHOWN_CALLS:])
            raise AssertionError(f"seed {seed}: {error!r}\n{calls}") from error
        for node in world.nodes:
            self.seen.update(node.seen)
            self.calls += node.calls


def main() -> int:
    """Carry out the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", type=int)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    import urds_native

    run = Run(urds_native)
    begin_s = told_s = time.monotonic()
    for seed in range(options.first, options.first + options.cases):
        try:
            run.case(seed, options.steps)
        except AssertionError as error:
            print(error)
            return 1
        if time.monotonic() - told_s > REPORT_EVERY_S:
            told_s = time.monotonic()
            print(f"{seed - options.first + 1} cases, {run.calls} calls", flush=True)
    spent_s = time.monotonic() - begin_s
    print(f"{options.cases} cases, {run.calls} calls of both, no difference, {spent_s:.0f} s")
    print(", ".join(f"{name} {count}" for name, count in sorted(run.seen.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
