"""Worlds of random cases, one after the other, in a test or from the command line."""

import argparse
import time
from abc import ABC, abstractmethod
from collections import Counter
from typing import Final

REPORT_EVERY_S: Final = 30.0


class Runs(ABC):
    """Worlds that were made, the cases in them, and what happened."""

    def __init__(self) -> None:
        self.worlds = 0
        self.cases = 0
        self.seen: Counter[str] = Counter()

    def count(self, cases: int, seen: Counter[str]) -> None:
        """Add cases, and what happened in them."""
        self.cases += cases
        self.seen.update(seen)

    @abstractmethod
    def make_world(self, seed: int) -> None:
        """Make one world. Raises AssertionError, with its seed and its last cases."""

    def until(self, cases: int, seed: int) -> None:
        """Make worlds from `seed` on until there were so many cases."""
        told_s = time.monotonic()
        while self.cases < cases:
            self.make_world(seed + self.worlds)
            self.worlds += 1
            if time.monotonic() - told_s > REPORT_EVERY_S:
                told_s = time.monotonic()
                print(f"{self.worlds} worlds, {self.cases} cases", flush=True)


def carry_out(runs: Runs, description: str | None) -> int:
    """Carry out the command line of a program of cases; return the exit code."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first world")
    options = parser.parse_args()
    began_s = time.monotonic()
    try:
        runs.until(options.cases, options.seed)
    except AssertionError as error:
        print(error)
        return 1
    spent_s = time.monotonic() - began_s
    print(f"{runs.cases} cases in {runs.worlds} worlds alike in {spent_s:.0f} s")
    print(", ".join(f"{name} {count}" for name, count in sorted(runs.seen.items())))
    return 0
