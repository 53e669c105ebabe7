"""Two planes that do the same, one step after the other, and are compared after each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

from tests.parity.sides import Outcome, Side, brief
from urds.rds.plane.python.partial_message import PartialMessage

READ_BYTES: Final = 262_144  # at once, by the compiled plane
_HISTORY: Final = 12
_DIFFERENCE_CHARACTERS: Final = 3000


class Difference(AssertionError):
    """Two planes did not do the same."""


class Lockstep:
    """Two sides, how many steps they made, and the names of the last ones."""

    def __init__(self, seed: int, sides: Sequence[Side]) -> None:
        self.seed = seed
        self.sides = sides
        self.steps = 0
        self._history: deque[str] = deque(maxlen=_HISTORY)

    def both(self, label: str, call: Callable[[Side], object]) -> None:
        """Make one call on both sides; compare what it gave. Raises Difference."""
        self.steps += 1
        self._history.append(label)
        self.compare(label, *(side.attempt(call) for side in self.sides))

    def look(self) -> Mapping[str, bytes]:
        """Have both sides do what is to be done, compare what can be seen of them then.

        Return the bytes that came out, by the name of their stream. Raises Difference.
        """
        for side in self.sides:
            side.settle()
        arrived = [side.read() for side in self.sides]
        seen = [side.seen(data) for side, data in zip(self.sides, arrived, strict=True)]
        self.compare(f"bytes and readiness after {self._history[-1]}", *seen)
        return arrived[0]

    def look_inside(self, *, with_tables: bool) -> None:
        """Compare what both sides report, and their tables. Raises Difference."""
        self.compare("events", *(side.events() for side in self.sides))
        if with_tables:
            self.compare("tables", *(side.tables() for side in self.sides))

    def close(self) -> list[Outcome]:
        """End both sides; return how that went."""
        return [side.close() for side in self.sides]

    def compare(self, what: str, one: object, other: object) -> None:
        """Tell apart what two sides gave. Raises Difference."""
        if one == other:
            return
        if isinstance(one, dict) and isinstance(other, dict):
            changed = [key for key in {**one, **other} if one.get(key) != other.get(key)]
            one = {key: one.get(key) for key in changed}
            other = {key: other.get(key) for key in changed}
        steps = "\n  ".join(self._history)
        raise Difference(
            f"seed {self.seed}, case {self.steps}, {what}:\n  {steps}\n"
            f"one:   {str(brief(one))[:_DIFFERENCE_CHARACTERS]}\n"
            f"other: {str(brief(other))[:_DIFFERENCE_CHARACTERS]}"
        )


@contextmanager
def reading_alike() -> Iterator[None]:
    """Have the reference read as much at once as the compiled plane.

    How much that is shows in acknowledgements, and where a full mailbox stops a stream.
    """

    def bytes_wanted(partial: PartialMessage) -> int:
        return partial.remaining()[1] + READ_BYTES

    with patch.object(PartialMessage, "bytes_wanted", bytes_wanted):
        yield
