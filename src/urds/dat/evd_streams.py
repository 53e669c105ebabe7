"""Which event streams may feed one dispatcher, and how their completions notify.

Source: docs/reference/dat.md 4.1 (sharing rules), 5, 7.2 (field 15) and 10.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from urds.dat.constants import CompletionFlag, EvdFlag, EvdState
from urds.dat.errors import bad_argument, dat_error
from urds.dat.returns import ReturnType, Subtype

if TYPE_CHECKING:
    from urds.dat.handles import DatObject


class Role(Enum):
    """What an event stream carries: the flag that its dispatcher needs, the error if it has not."""

    RECV = (EvdFlag.DTO, Subtype.INVALID_HANDLE_EVD_RECV)
    REQUEST = (EvdFlag.DTO, Subtype.INVALID_HANDLE_EVD_REQUEST)
    CONNECTION = (EvdFlag.CONNECTION, Subtype.INVALID_HANDLE_EVD_CONN)
    CR = (EvdFlag.CR, Subtype.INVALID_HANDLE_EVD_CR)
    ASYNC = (EvdFlag.ASYNC, Subtype.INVALID_HANDLE_EVD_ASYNC)

    def __init__(self, flag: EvdFlag, subtype: Subtype) -> None:
        self.flag = flag
        self.subtype = subtype  # of INVALID_HANDLE, for a dispatcher without the flag


DTO_ROLES: Final = frozenset({Role.RECV, Role.REQUEST})
_Kind = tuple[Role, CompletionFlag]

# Order of the rows and columns of `MERGING`. Source: docs/reference/dat.md 7.2, field 15.
STREAM_ORDER: Final = (
    EvdFlag.SOFTWARE,
    EvdFlag.CR,
    EvdFlag.DTO,
    EvdFlag.CONNECTION,
    EvdFlag.RMR_BIND,
    EvdFlag.ASYNC,
)
# All streams merge but the asynchronous one: the overflow of its dispatcher is the end of it.
MERGING: Final = tuple(
    tuple((row is EvdFlag.ASYNC) == (column is EvdFlag.ASYNC) for column in STREAM_ORDER)
    for row in STREAM_ORDER
)
_KNOWN_FLAGS: Final = EvdFlag.SOFTWARE | EvdFlag.DEFAULT


@lru_cache(maxsize=64)  # once per completion, and arithmetic of flags is slow
def is_signalled(attribute: CompletionFlag, posted: CompletionFlag, solicited: bool) -> bool:
    """Return whether a completion wakes a waiter and triggers the notification point.

    `attribute` is the endpoint's for this direction, `posted` the flags of the post. With
    SOLICITED_WAIT only what the sender marked, or what failed, does.
    """
    if CompletionFlag.SOLICITED_WAIT in attribute:
        return solicited
    return CompletionFlag.UNSIGNALLED not in posted


class Streams:
    """The streams of one dispatcher, each an owner's in one role.

    Thousands of endpoints may share a dispatcher, so what is asked of all streams is counted by
    kind, a role with the completion flags of its transfers.
    """

    def __init__(self) -> None:
        self._kind_of: dict[tuple[DatObject, Role], _Kind] = {}
        self._counts: Counter[_Kind] = Counter()

    def add(self, role: Role, owner: DatObject, flags: CompletionFlag) -> None:
        """Add a stream; `flags` is the endpoint's attribute for this direction, of transfers.

        Raises DatInvalidParameter: it cannot share the dispatcher.
        """
        kind = (role, flags)
        problem = _problem_of({*self._counts, kind})
        if problem:
            raise dat_error(ReturnType.INVALID_PARAMETER, detail=problem)
        assert (owner, role) not in self._kind_of, f"{owner!r} feeds it as {role.name} already"
        self._kind_of[owner, role] = kind
        self._counts[kind] += 1

    def remove(self, role: Role, owner: DatObject) -> None:
        """Take away one stream, which must be there."""
        kind = self._kind_of.pop((owner, role))
        self._counts[kind] -= 1
        if not self._counts[kind]:
            del self._counts[kind]

    def forget(self, owner: DatObject) -> None:
        """Take away all streams of an owner."""
        for role in Role:
            if (owner, role) in self._kind_of:
                self.remove(role, owner)

    @property
    def owners(self) -> list[DatObject]:
        """Return the distinct objects that feed the dispatcher."""
        return list(dict.fromkeys(owner for owner, _ in self._kind_of))

    @property
    def notification(self) -> EvdState:
        """Return the band that the transfers set; without any a threshold is free to choose."""
        # All transfers that share a dispatcher have the same flags.
        shared = (flags for role, flags in self._counts if role in DTO_ROLES)
        flags = next(shared, CompletionFlag.DEFAULT)
        if CompletionFlag.SOLICITED_WAIT in flags:
            return EvdState.CONFIG_SOLICITED
        if CompletionFlag.UNSIGNALLED in flags:
            return EvdState.CONFIG_NOTIFY
        return EvdState.CONFIG_THRESHOLD


def _problem_of(kinds: set[_Kind]) -> str:
    """Return why streams of these kinds cannot share a dispatcher; nothing if they can."""
    roles = {role for role, _ in kinds}
    flags = {flags for role, flags in kinds if role in DTO_ROLES}
    if len(flags) > 1:
        return "its transfers have different completion flags"
    if flags - {CompletionFlag.EVD_THRESHOLD} and roles - DTO_ROLES:
        return "transfers beside other streams need EVD_THRESHOLD"
    if CompletionFlag.SOLICITED_WAIT in flags and Role.REQUEST in roles:
        return "SOLICITED_WAIT is for receives alone"
    return ""


def demand_flags(flags: int) -> None:
    """Raise DatInvalidParameter: no stream, an unknown one, or a pair that does not merge."""
    if not flags or flags & ~int(_KNOWN_FLAGS):
        raise bad_argument(4, f"flags {flags:#x}, known are {int(_KNOWN_FLAGS):#x}")
    wanted = [index for index, flag in enumerate(STREAM_ORDER) if flags & flag]
    for one in wanted:
        for other in wanted:
            if not MERGING[one][other]:
                names = f"{STREAM_ORDER[one].name} and {STREAM_ORDER[other].name}"
                raise bad_argument(4, f"{names} cannot feed one dispatcher")
