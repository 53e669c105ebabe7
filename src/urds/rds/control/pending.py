"""Accepted streams that have not carried a frame yet: few, and not for long.

Any peer that may connect can open connections and stay silent. A stream counts as pending until its
first frame, and only for a peer of which nothing is known; a known peer that comes back after an
outage makes no pending connection.

One host of IPv6 has as many addresses as it likes, those of its /64. So there a /64 counts as one
address.

When there are too many, the newest is not the one dropped: silent connections would keep all others
out for as long as they may stay, while an honest peer sends at once.
"""

from collections import Counter

from urds.common.types import IPAddress
from urds.rds.control.settings import LocalAddressSettings
from urds.rds.control.timers import TimerKey, TimerKind, Timers


def counted_as(peer: IPAddress) -> IPAddress | bytes:
    """Return what a peer's connections are counted under: its address, with IPv6 its /64."""
    return peer if peer.version == 4 else peer.packed[:8]


class PendingConnections:
    """The silent streams of one local address."""

    def __init__(self, settings: LocalAddressSettings, timers: Timers) -> None:
        self._settings = settings
        self._timers = timers
        self._peers: dict[int, IPAddress] = {}
        self._per_address: Counter[IPAddress | bytes] = Counter()

    def admit(self, stream: int, peer: IPAddress, now_ns: int) -> bool:
        """Count one more and start its timer; false if its address has too many."""
        settings = self._settings
        same = sum(other == peer for other in self._peers.values())
        if same >= settings.pending_per_address_max:
            return False
        self._peers[stream] = peer
        self._per_address[counted_as(peer)] += 1
        key = TimerKey(peer, TimerKind.PENDING, stream)
        self._timers.set(key, now_ns + settings.pending_wait_ns)
        return True

    def are_many(self, peer: IPAddress) -> bool:
        """Tell whether half of all, or of what one address may have, are here."""
        settings = self._settings
        return (
            2 * len(self._peers) >= settings.pending_max
            or 2 * self._per_address[counted_as(peer)] >= settings.pending_per_address_max
        )

    def one_too_many(self) -> tuple[int, IPAddress] | None:
        """Return the stream to drop: the oldest one of the address that has most.

        That applies where there are too many in all, or in one /64: silent connections of one
        network do not keep another host of it out.
        """
        most = max(self._per_address.values(), default=0)
        few = len(self._peers) <= self._settings.pending_max
        if few and most <= self._settings.pending_per_address_max:
            return None
        return next(
            pair for pair in self._peers.items() if self._per_address[counted_as(pair[1])] == most
        )

    def forget(self, stream: int | None) -> None:
        """Stop counting a stream that sent a frame or ended; an uncounted one is no error."""
        peer = self._peers.pop(stream, None) if stream is not None else None
        if stream is None or peer is None:
            return
        self._timers.cancel(TimerKey(peer, TimerKind.PENDING, stream))
        counted = counted_as(peer)
        self._per_address[counted] -= 1
        if not self._per_address[counted]:
            del self._per_address[counted]
