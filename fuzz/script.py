"""Octets read as a script: what a target does step by step, and with which octets.

Any octets are a script, so that every change of one is another one.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeVar

_Action = TypeVar("_Action")


class Script:
    """Reads steps from the front. Beyond the end numbers are 0 and pieces are empty."""

    def __init__(self, octets: bytes) -> None:
        self._octets = octets
        self._place = 0

    def __bool__(self) -> bool:
        """Return whether anything is left."""
        return self._place < len(self._octets)

    def take(self, octet_count: int) -> bytes:
        """Return the next octets, fewer at the end."""
        found = self._octets[self._place : self._place + octet_count]
        self._place += octet_count
        return found

    def number(self, octet_count: int = 1) -> int:
        """Return the next octets as one number."""
        return int.from_bytes(self.take(octet_count), "big")

    def piece(self) -> bytes:
        """Return the octets of a step, which two octets of length precede."""
        return self.take(self.number(2))

    def rest(self) -> bytes:
        """Return everything that is left."""
        return self.take(len(self._octets))


def step(*numbers: int, octets: bytes = b"") -> bytes:
    """Return one step of a seed: numbers of one octet, then a piece."""
    return bytes(numbers) + len(octets).to_bytes(2, "big") + octets


def split(octets: bytes, places: bytes) -> list[bytes]:
    """Cut octets at places that another octet string names; nothing is lost."""
    ends = sorted({place * (len(octets) + 1) // 256 for place in places})
    return [octets[start:end] for start, end in pairwise([0, *ends, len(octets)])]


def actions(poll: Callable[[], _Action | None], *, actions_max: int) -> Iterator[_Action]:
    """Yield what a core decides, until it has nothing more; there must be an end of it."""
    for _ in range(actions_max):
        action = poll()
        if action is None:
            return
        yield action
    raise AssertionError("no end of actions")
