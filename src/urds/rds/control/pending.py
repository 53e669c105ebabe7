"""Accepted streams of peers that have not said a word yet: few, and not for long.

Whoever may connect can open connections and stay silent. A stream counts until its first frame, and
only for a peer of which nothing is known; peers that come back after an outage are no strangers.

One host of IPv6 has as many addresses as it likes, those of its /64. So there a /64 counts as one
address.

When there are too many, not the newest goes: silent connections would keep everybody out for as
long as they may stay, while an honest peer speaks at once.
"""

from collections import Counter

from urds.proto.paths import Address
from urds.proto.settings import EndpointSettings
from urds.proto.timers import TimerKey, TimerKind, Timers


def counted_as(peer: Address) -> Address | bytes:
    """Return what a peer's connections are counted under: its address, with IPv6 its /64."""
    return peer if peer.version == 4 else peer.packed[:8]


class Strangers:
    """The silent streams of one endpoint."""

    def __init__(self, settings: EndpointSettings, timers: Timers) -> None:
        self._settings = settings
        self._timers = timers
        self._peers: dict[int, Address] = {}
        self._per_address: Counter[Address | bytes] = Counter()

    def admit(self, stream: int, peer: Address, now_ns: int) -> bool:
        """Count one more and start its time; false if its address has too many."""
        settings = self._settings
        same = sum(other == peer for other in self._peers.values())
        if same >= settings.strangers_per_address_max:
            return False
        self._peers[stream] = peer
        self._per_address[counted_as(peer)] += 1
        key = TimerKey(peer, TimerKind.STRANGER, stream)
        self._timers.set(key, now_ns + settings.stranger_wait_ns)
        return True

    def are_many(self, peer: Address) -> bool:
        """Tell whether half of all, or of what one address may have, are here."""
        settings = self._settings
        return (
            2 * len(self._peers) >= settings.strangers_max
            or 2 * self._per_address[counted_as(peer)] >= settings.strangers_per_address_max
        )

    def one_too_many(self) -> tuple[int, Address] | None:
        """Return the stream that has to go: the eldest of the address that has most.

        It goes where all are too many, or those of one /64: another host of that network is not
        kept out by silent connections.
        """
        most = max(self._per_address.values(), default=0)
        few = len(self._peers) <= self._settings.strangers_max
        if few and most <= self._settings.strangers_per_address_max:
            return None
        return next(
            pair for pair in self._peers.items() if self._per_address[counted_as(pair[1])] == most
        )

    def forget(self, stream: int | None) -> None:
        """Count no more a stream that spoke or ended; one that was not counted is no mistake."""
        peer = self._peers.pop(stream, None) if stream is not None else None
        if stream is None or peer is None:
            return
        self._timers.cancel(TimerKey(peer, TimerKind.STRANGER, stream))
        counted = counted_as(peer)
        self._per_address[counted] -= 1
        if not self._per_address[counted]:
            del self._per_address[counted]
