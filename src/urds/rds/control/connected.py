"""The peers of a node that have a stream: their limit, and which one is evicted.

Each stream is a descriptor, and descriptors belong to the whole process. So one table holds the
connected peers of all local addresses, and its bound leaves a share to the program. One host of
IPv6 has all the addresses of its /64, so a /64 holds at most a quarter of the bound.

When there is no room, the peer that is idle for longest is evicted, if it never sent a message to a
socket and no message to it is queued: so addresses that only connect do not keep others out. The
table does not see messages; it asks the local address, which asks the driver. A peer stays for two
seconds at least: else evicted peers that reconnect would displace one another without end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from urds.common.errors import ErrorReason
from urds.common.types import IPAddress
from urds.rds.control.events import Reason
from urds.rds.control.idle_queue import IdleQueue
from urds.rds.control.pending import counted_as
from urds.rds.control.tcp_peer import TcpPeer

PEERS_MAX: Final = 4096  # unless a setting gives another number
_NETWORK_SHARE: Final = 4  # the part of the bound that one /64 of IPv6 may hold
_STAYS_NS: Final = 2_000_000_000  # since something last happened on it

ERROR_REASONS: Final = {
    Reason.TOO_MANY_PEERS: ErrorReason.TOO_MANY_PEERS,
    Reason.NO_DESCRIPTORS_LEFT_TO_SHARE: ErrorReason.NO_DESCRIPTORS_LEFT_TO_SHARE,
    Reason.NETWORK_HAS_ITS_SHARE: ErrorReason.NETWORK_HAS_ITS_SHARE,
}

Group = IPAddress | bytes | None  # a local address, the /64 of peers, or all


class _Members:
    """The connected peers of one group."""

    def __init__(self) -> None:
        self.connections: dict[TcpPeer, None] = {}
        self.idle = IdleQueue(lambda: self.connections, self._is_idle)

    def _is_idle(self, connection: TcpPeer, now_ns: int) -> bool:
        return connection.used_ns <= now_ns - _STAYS_NS and connection in self.connections


class Connected:
    """The connected peers of all local addresses of a node."""

    def __init__(
        self,
        peers_max: int = PEERS_MAX,
        descriptors_max: int | None = None,
        *,
        npaths: int = 1,
    ) -> None:
        """Bound them by `peers_max` or, where it is given, by half of the process's descriptors.

        Each peer may take `npaths` of these.
        """
        self._descriptors_max = descriptors_max
        share = peers_max if descriptors_max is None else max(1, descriptors_max // 2 // npaths)
        self._by_descriptors = share < peers_max
        self.peers_max = min(peers_max, share)
        self.network_max = max(1, self.peers_max // _NETWORK_SHARE)
        self._evict: dict[TcpPeer, Callable[[TcpPeer], bool]] = {}
        self._groups: dict[Group, _Members] = {None: _Members()}

    def __len__(self) -> int:
        return len(self._evict)

    def note(self, connection: TcpPeer, evict: Callable[[TcpPeer], bool]) -> None:
        """Count a connection while it has a stream; `evict` ends it, or returns false."""
        is_here = connection in self._evict
        if connection.has_stream == is_here:
            return
        groups = self._groups_of(connection.local, connection.peer)
        if not is_here:
            self._evict[connection] = evict
            for group in groups:
                self._groups.setdefault(group, _Members()).connections[connection] = None
            return
        del self._evict[connection]
        for group in groups:
            members = self._groups[group]
            del members.connections[connection]
            if not members.connections and group is not None:
                del self._groups[group]

    def admit(self, peer: IPAddress, now_ns: int) -> Reason | None:
        """Make room for one more; return why there is none."""
        if peer.version == 6:
            network = counted_as(peer)
            members = self._groups.get(network)
            count = len(members.connections) if members is not None else 0
            if count >= self.network_max and not self.evict(network, now_ns):
                return Reason.NETWORK_HAS_ITS_SHARE
        if len(self) < self.peers_max or self.evict(None, now_ns):
            return None
        if self._by_descriptors:
            return Reason.NO_DESCRIPTORS_LEFT_TO_SHARE
        return Reason.TOO_MANY_PEERS

    def evict(self, group: Group, now_ns: int) -> bool:
        """Evict the peer of a group that is idle for longest; false if there is none to evict."""
        members = self._groups.get(group)
        return members is not None and members.idle.evict(
            now_ns, lambda found: self._evict[found](found)
        )

    def explain(self, reason: Reason) -> str:
        """Return the figures behind an error reason and its remedy, for an error's text."""
        if reason is Reason.NETWORK_HAS_ITS_SHARE:
            count = f"{self.network_max} of {self.peers_max} peers are of one /64"
            return f"{count}, its quarter; raise the setting peers_max"
        if reason is Reason.NO_DESCRIPTORS_LEFT_TO_SHARE:
            count = f"{self.peers_max} of `ulimit -n` {self._descriptors_max}"
            return f"{count}; raise it or set peers_max"
        return f"{self.peers_max} peers; raise the setting peers_max"

    def limit(self, reason: Reason) -> int:
        """Return how many peers are the most, for an error's `limit`."""
        return self.network_max if reason is Reason.NETWORK_HAS_ITS_SHARE else self.peers_max

    @staticmethod
    def _groups_of(local: IPAddress, peer: IPAddress) -> tuple[Group, ...]:
        every: tuple[Group, ...] = (None, local)
        return every if peer.version == 4 else (*every, counted_as(peer))
