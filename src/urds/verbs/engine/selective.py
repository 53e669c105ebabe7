"""What arrived ahead of the packet that is expected next, on a responder that keeps it.

The octets of a send are placed when they arrive: nobody looks at its receive before it completes.
What is kept is the record, for what must wait until everything before it is there: the check of
its place in the message, the completion of a receive, an invalidation. Reads and atomic
operations wait as a whole, and so do writes with their octets, since what is missing before them
may be written to the same place.
"""

from typing import Final

from urds.verbs.engine.numbers import PSN_MASK
from urds.verbs.engine.packet_codec import SELECTIVE_MAX
from urds.verbs.engine.packets import Packet

AHEAD_MAX: Final = 256  # PSNs beyond the expected one; a requester of ours stays within 128


class AheadPackets:
    """Packets by PSN (counted without wrapping), at most `AHEAD_MAX` beyond the expected."""

    __slots__ = ("_packets",)

    def __init__(self) -> None:
        self._packets: dict[int, Packet] = {}

    def __len__(self) -> int:
        return len(self._packets)

    def __contains__(self, psn: int) -> bool:
        return psn in self._packets

    def keep(self, psn: int, packet: Packet) -> None:
        """Keep a packet until it is next."""
        self._packets[psn] = packet

    def take(self, psn: int) -> Packet | None:
        """Take the packet of a PSN, `None` if it did not arrive."""
        return self._packets.pop(psn, None)

    def forget_before(self, psn: int) -> None:
        """Forget what lies before a PSN: a read has taken these numbers for its answers."""
        for stale in [found for found in self._packets if found < psn]:
            del self._packets[stale]

    def clear(self) -> None:
        """Forget all of them."""
        self._packets.clear()

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return what is here as ranges of wire PSNs, lowest first, at most `SELECTIVE_MAX`.

        What does not fit is told later: the requester may repeat it, and is told again.
        """
        found: list[list[int]] = []
        for psn in sorted(self._packets):
            if found and psn == found[-1][1] + 1:
                found[-1][1] = psn
            elif len(found) == SELECTIVE_MAX:
                break
            else:
                found.append([psn, psn])
        return tuple((first & PSN_MASK, last & PSN_MASK) for first, last in found)
