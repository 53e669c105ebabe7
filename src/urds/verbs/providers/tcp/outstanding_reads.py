"""Reads and atomics in flight on one stream, shared by both directions.

Our requests wait for responses of the peer (`outbound`), the peer's for ours (`inbound`). iWARP
names a response by the STag that its request gave; the engine names it by the request's packet
number. This table maps the two, and it is bounded: by the engine's limit for ours, by the
negotiated number of reads (IRD) for the peer's.
"""

from dataclasses import dataclass

from urds.verbs.engine.numbers import PSN_MASK
from urds.verbs.providers.tcp.fpdu import StreamBroken, TerminateCode

_STAG_FIRST = 0x100
_STAG_LAST = 0xFFFF_FFFF


@dataclass(slots=True)
class OutboundRead:
    """A read of ours: its response comes under a unique STag."""

    psn: int
    read_bytes: int
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class InboundRead:
    """A read of the peer: where our response goes."""

    sink_stag: int
    sink_offset: int


def is_before(psn: int, other: int) -> bool:
    """Return whether a packet number lies before another, in 24 bits."""
    return bool((psn - other) & (PSN_MASK + 1) >> 1)


class OutstandingReads:
    """Reads and atomics in flight on one stream."""

    def __init__(self, *, inbound_max: int) -> None:
        self._inbound_max = inbound_max
        self._stag_next = _STAG_FIRST
        self.outbound: dict[int, OutboundRead] = {}  # by sink STag, oldest first
        self.outbound_atomics: set[int] = set()  # packet numbers, which are their identifiers
        self.inbound: dict[int, InboundRead] = {}  # by packet number
        self.inbound_atomics: dict[int, int] = {}  # packet number: identifier

    def ask(self, psn: int, read_bytes: int) -> int:
        """Record a read of ours; return the STag for its response, a new one each time."""
        stag = self._stag_next
        self._stag_next = _STAG_FIRST if stag == _STAG_LAST else stag + 1
        self.outbound[stag] = OutboundRead(psn, read_bytes)
        return stag

    def oldest_outbound(self) -> int | None:
        """Return the packet number of our oldest incomplete read."""
        return next((read.psn for read in self.outbound.values()), None)

    def reserve_inbound(self, psn: int) -> None:
        """Check for room for one more request of the peer. Raises StreamBroken beyond the limit."""
        if psn in self.inbound or psn in self.inbound_atomics:
            return
        if len(self.inbound) + len(self.inbound_atomics) >= self._inbound_max:
            raise StreamBroken(
                TerminateCode.UNTAGGED_NO_BUFFER, f"more than {self._inbound_max} reads at once"
            )

    def rewind_outbound(self, psn: int) -> None:
        """Forget our requests from `psn` on, before they are sent again."""
        self.outbound = {
            stag: read for stag, read in self.outbound.items() if is_before(read.psn, psn)
        }
        self.outbound_atomics = {asked for asked in self.outbound_atomics if is_before(asked, psn)}

    def rewind_inbound(self, psn: int) -> None:
        """Forget the peer's requests from `psn` on: it sends them again."""
        self.inbound = {key: read for key, read in self.inbound.items() if is_before(key, psn)}
        self.inbound_atomics = {
            key: identifier
            for key, identifier in self.inbound_atomics.items()
            if is_before(key, psn)
        }
