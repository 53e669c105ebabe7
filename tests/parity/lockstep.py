"""Two planes that do the same, one step after the other, and are compared after each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, Protocol, TypeVar
from unittest.mock import patch

from tests.parity.sides import Outcome, brief
from urds.rds.plane.python.partial_message import PartialMessage

READ_BYTES: Final = 262_144  # at once, by the compiled plane
_HISTORY: Final = 12
_DIFFERENCE_CHARACTERS: Final = 3000


class Difference(AssertionError):
    """Two planes did not do the same."""


class Compared(Protocol):
    """One of two sides that do the same; what its methods return has to be equal."""

    def attempt(self, call: Callable[[Any], object]) -> Outcome:
        """Make a call; return what it gave as a plain value."""

    def settle(self) -> None:
        """Do what is to be done."""

    def read(self) -> Any:
        """Return what came out since the last look."""

    def seen(self, data: Any) -> dict[str, object]:
        """Return what is compared after a look."""

    def close(self) -> Outcome:
        """End everything; return how that went."""


One = TypeVar("One", bound=Compared)


class Lockstep(Generic[One]):
    """Two sides, how many steps they made, and the names of the last ones."""

    def __init__(self, seed: int, sides: Sequence[One]) -> None:
        self.seed = seed
        self.sides = sides
        self.steps = 0
        self._history: deque[str] = deque(maxlen=_HISTORY)

    def both(self, label: str, call: Callable[[One], object]) -> None:
        """Make one call on both sides; compare what it gave. Raises Difference."""
        self.steps += 1
        self._history.append(label)
        self.compare(label, *(side.attempt(call) for side in self.sides))

    def look(self) -> Any:
        """Have both sides do what is to be done, compare what can be seen of them then.

        Return what came out of the first one. Raises Difference.
        """
        for side in self.sides:
            side.settle()
        arrived = [side.read() for side in self.sides]
        seen = [side.seen(data) for side, data in zip(self.sides, arrived, strict=True)]
        self.compare(f"bytes and readiness after {self._history[-1]}", *seen)
        return arrived[0]

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
