"""Flat C names of enum members: `RDS_RECVERR` is `SockOpt.RECVERR`.

A decorator gives the members of an enum their C names, so that no name is typed twice. Type
checkers read the names in stubs, which `python -m tools.stubs` makes.
"""

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

EnumT = TypeVar("EnumT", bound=type[Enum])


class FlatNames(dict[str, object]):
    """The flat names of one interface, each with what it stands for."""

    def of(self, pattern: str, **exceptions: str) -> Callable[[EnumT], EnumT]:
        """Return a decorator that enters the members of an enum; `*` is a member's name.

        `PREFIX_="OTHER_*"` holds for members whose names begin so: there `*` is the rest. The
        longest prefix counts; an empty pattern means that the member has no flat name.
        """
        prefixes = sorted(exceptions, key=len, reverse=True)

        def enter(family: EnumT) -> EnumT:
            for name, member in family.__members__.items():
                prefix = next((each for each in prefixes if name.startswith(each)), "")
                chosen = exceptions[prefix] if prefix else pattern
                if chosen:
                    self[chosen.replace("*", name.removeprefix(prefix))] = member
            return family

        return enter
