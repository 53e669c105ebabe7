"""Which event streams may feed one dispatcher, and how their completions notify.

Source: dat.md sections 4.1 (sharing rules), 5, 7.2 (field 15) and 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from urds.dat.errors import bad_argument, dat_error
from urds.dat.numbers import CompletionFlag, EvdFlag, EvdState
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

    @property
    def flag(self) -> EvdFlag:
        """Return the flag that the dispatcher needs."""
        return self.value[0]

    @property
    def subtype(self) -> Subtype:
        """Return the subtype of INVALID_HANDLE for a dispatcher without it."""
        return self.value[1]


DTO_ROLES: Final = (Role.RECV, Role.REQUEST)

# Order of the rows and columns of `MERGING`. Source: dat.md section 7.2, field 15.
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


def is_signalled(
    attribute: CompletionFlag, posted: CompletionFlag, *, solicited: bool = False
) -> bool:
    """Return whether a completion wakes a waiter and triggers the notification point.

    `attribute` is the endpoint's for this direction, `posted` the flags of the post. With
    SOLICITED_WAIT only what the sender marked, or what failed, does.
    """
    if CompletionFlag.SOLICITED_WAIT in attribute:
        return solicited
    return CompletionFlag.UNSIGNALLED not in posted


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream that feeds a dispatcher."""

    role: Role
    owner: DatObject
    flags: CompletionFlag  # of transfers: the endpoint's attribute for this direction


class Streams:
    """The streams of one dispatcher."""

    def __init__(self) -> None:
        self._streams: list[Stream] = []

    def add(self, stream: Stream) -> None:
        """Add a stream. Raises DatInvalidParameter: it cannot share the dispatcher."""
        problem = self._problem_with(stream)
        if problem:
            raise dat_error(ReturnType.INVALID_PARAMETER, detail=problem)
        self._streams.append(stream)

    def remove(self, role: Role, owner: DatObject) -> None:
        """Take away one stream, which must be there."""
        found = next(each for each in self._streams if each.role is role and each.owner is owner)
        self._streams.remove(found)

    def forget(self, owner: DatObject) -> None:
        """Take away all streams of an owner."""
        self._streams = [stream for stream in self._streams if stream.owner is not owner]

    @property
    def owners(self) -> list[DatObject]:
        """Return whoever feeds the dispatcher, each once."""
        return list({stream.owner.handle: stream.owner for stream in self._streams}.values())

    @property
    def notification(self) -> EvdState:
        """Return the band that the transfers set; without any a threshold is free to choose."""
        flags = CompletionFlag.DEFAULT
        for stream in self._streams:
            if stream.role in DTO_ROLES:
                flags |= stream.flags
        if CompletionFlag.SOLICITED_WAIT in flags:
            return EvdState.CONFIG_SOLICITED
        if CompletionFlag.UNSIGNALLED in flags:
            return EvdState.CONFIG_NOTIFY
        return EvdState.CONFIG_THRESHOLD

    def _problem_with(self, stream: Stream) -> str:
        streams = [*self._streams, stream]
        transfers = [each for each in streams if each.role in DTO_ROLES]
        kinds = {each.flags for each in transfers}
        if len(kinds) > 1:
            return "its transfers have different completion flags"
        if len(transfers) < len(streams) and kinds - {CompletionFlag.EVD_THRESHOLD}:
            return "transfers beside other streams need EVD_THRESHOLD"
        if CompletionFlag.SOLICITED_WAIT in kinds and any(
            each.role is Role.REQUEST for each in transfers
        ):
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
