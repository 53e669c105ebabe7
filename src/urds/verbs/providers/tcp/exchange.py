"""What both directions of a stream must know of each other: the reads and atomics under way.

Our requests wait for answers of the peer (`asked`), the peer's for ours (`owed`). iWARP names an
answer by the STag that its request gave; the engine names it by the request's packet number. This
table is where the two meet, and it is bounded: by the engine's limit for ours, by the negotiated
number of reads for the peer's.
"""

from dataclasses import dataclass

from urds.verbs.engine.numbers import PSN_MASK
from urds.verbs.providers.tcp.frames import StreamBroken, TerminateCode

_STAG_FIRST = 0x100
_STAG_LAST = 0xFFFF_FFFF


@dataclass(slots=True)
class AskedRead:
    """A read of ours: its answer comes under an STag that nothing else has."""

    psn: int
    read_bytes: int
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OwedRead:
    """A read of the peer: where our answer has to go."""

    sink_stag: int
    sink_offset: int


def is_before(psn: int, other: int) -> bool:
    """Tell whether a packet number lies before another, in 24 bits."""
    return bool((psn - other) & (PSN_MASK + 1) >> 1)


class Exchange:
    """Reads and atomics under way on one stream."""

    def __init__(self, *, owed_max: int) -> None:
        self._owed_max = owed_max
        self._stag_next = _STAG_FIRST
        self.asked: dict[int, AskedRead] = {}  # by sink STag, oldest first
        self.atomics_asked: set[int] = set()  # packet numbers, which are their identifiers
        self.owed: dict[int, OwedRead] = {}  # by packet number
        self.atomics_owed: dict[int, int] = {}  # packet number: identifier

    def ask(self, psn: int, read_bytes: int) -> int:
        """Note a read of ours; return the STag for its answer. Each read gets another one."""
        stag = self._stag_next
        self._stag_next = _STAG_FIRST if stag == _STAG_LAST else stag + 1
        self.asked[stag] = AskedRead(psn, read_bytes)
        return stag

    def oldest_asked(self) -> int | None:
        """Return the packet number of our oldest read without its whole answer."""
        return next((read.psn for read in self.asked.values()), None)

    def owe(self, psn: int) -> None:
        """Make room for one more request of the peer. Raises StreamBroken beyond the limit."""
        if psn in self.owed or psn in self.atomics_owed:
            return
        if len(self.owed) + len(self.atomics_owed) >= self._owed_max:
            raise StreamBroken(
                TerminateCode.UNTAGGED_NO_BUFFER, f"more than {self._owed_max} reads at once"
            )

    def take_back_asked(self, psn: int) -> None:
        """Forget what we asked from `psn` on: we go back and ask again."""
        self.asked = {stag: read for stag, read in self.asked.items() if is_before(read.psn, psn)}
        self.atomics_asked = {asked for asked in self.atomics_asked if is_before(asked, psn)}

    def take_back_owed(self, psn: int) -> None:
        """Forget what the peer asked from `psn` on: it goes back and asks again."""
        self.owed = {key: read for key, read in self.owed.items() if is_before(key, psn)}
        self.atomics_owed = {
            key: identifier for key, identifier in self.atomics_owed.items() if is_before(key, psn)
        }
