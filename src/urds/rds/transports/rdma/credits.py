"""Flow control of one connection: a SEND takes a credit, which is a receive the peer has posted.

Both sides must have offered credits in their private data, else there is no flow control and the
device retries a SEND that finds no receive. The last credit is kept for a frame that itself grants
some, or two sides without credits would wait for each other for ever.
Source: linux v6.12 net/rds/ib_send.c (rds_ib_send_grab_credits); docs/reference/rds.md 4.2.
"""

from __future__ import annotations

from typing import Final

ADVERTISED_MAX: Final = 255  # what the byte of a header holds
CREDITS_MAX: Final = 65535  # more receives than a peer can have
_ADVERTISE_AT: Final = 16  # receives posted again before a frame grants them alone


class Credits:
    """Credits of both directions; all counts in receives, that is frames."""

    __slots__ = ("_advertise_at", "_available", "_offered", "_unadvertised", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self._offered = 0
        self._available = 0  # receives of the peer that no frame has taken
        self._unadvertised = 0  # own receives that the peer does not know of
        self._advertise_at = _ADVERTISE_AT

    def offer(self, posted: int) -> int:
        """Return what the local private data grants: all receives posted so far."""
        self._offered = posted
        self._unadvertised = 0
        # A peer with few credits would wait for ever for a bound that it cannot reach.
        self._advertise_at = max(1, min(_ADVERTISE_AT, posted // 2))
        return posted

    def begin(self, granted: int) -> None:
        """Begin a connection whose peer's private data granted `granted`, 0 for no flow control."""
        self.is_on = self._offered > 0 and granted > 0
        self._available = granted

    def end(self) -> None:
        """Forget the connection."""
        self.is_on = False
        self._offered = self._available = self._unadvertised = 0

    def note_posted(self, count: int) -> None:
        """Note receives that were posted again: the next frames grant them."""
        self._unadvertised += count

    def handle_granted(self, count: int) -> bool:
        """Add the credits of a frame; False if the sum is above `CREDITS_MAX`."""
        if not self.is_on:
            return True
        self._available += count
        return self._available <= CREDITS_MAX

    def may_take(self) -> bool:
        """Tell whether a frame may leave now."""
        return not self.is_on or self._available > (0 if self._unadvertised else 1)

    def take(self) -> int:
        """Take the credit of one frame; return what its header grants."""
        if not self.is_on:
            return 0
        assert self.may_take(), "the caller asks first"
        self._available -= 1
        advertised = min(self._unadvertised, ADVERTISED_MAX)
        self._unadvertised -= advertised
        return advertised

    def update_is_due(self) -> bool:
        """Tell whether the ungranted receives are enough for a frame of their own."""
        return self.is_on and self._unadvertised >= self._advertise_at
