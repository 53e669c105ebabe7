"""Bytes read as a script: what a target does step by step, and with which bytes.

Any bytes are a script, so that every change of one is another one.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeVar

_Action = TypeVar("_Action")


class Script:
    """Reads steps from the front. Beyond the end numbers are 0 and pieces are empty."""

    def __init__(self, data: bytes) -> None:
        self._bytes = data
        self._place = 0

    def __bool__(self) -> bool:
        """Return whether anything is left."""
        return self._place < len(self._bytes)

    def take(self, byte_count: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        found = self._bytes[self._place : self._place + byte_count]
        self._place += byte_count
        return found

    def number(self, byte_count: int = 1) -> int:
        """Return the next bytes as one number."""
        return int.from_bytes(self.take(byte_count), "big")

    def piece(self) -> bytes:
        """Return the bytes of a step, which two bytes of length precede."""
        return self.take(self.number(2))

    def rest(self) -> bytes:
        """Return everything that is left."""
        return self.take(len(self._bytes))


def step(*numbers: int, data: bytes = b"") -> bytes:
    """Return one step of a seed: numbers of one byte, then a piece."""
    return bytes(numbers) + len(data).to_bytes(2, "big") + data


def split(data: bytes, places: bytes) -> list[bytes]:
    """Cut bytes at places that another byte string names; nothing is lost."""
    ends = sorted({place * (len(data) + 1) // 256 for place in places})
    return [data[start:end] for start, end in pairwise([0, *ends, len(data)])]


def actions(poll: Callable[[], _Action | None], *, actions_max: int) -> Iterator[_Action]:
    """Yield a core's decisions, until it has none; their number must be finite."""
    for _ in range(actions_max):
        action = poll()
        if action is None:
            return
        yield action
    raise AssertionError("no end of actions")
