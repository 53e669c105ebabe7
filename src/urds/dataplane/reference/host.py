"""One local address of the plane: its bound sockets, its congestion map, and those of its peers."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import TYPE_CHECKING

from urds.dataplane.base import Address, SocketAddress
from urds.dataplane.reference.sources import Sources
from urds.wire.congestion_map import CongestionMap

if TYPE_CHECKING:
    from urds.dataplane.carriage import CarriedPath
    from urds.dataplane.reference.mailbox import Mailbox
    from urds.dataplane.reference.stream_path import StreamPath


class Host:
    """Tables of one local address; guarded by the plane's lock."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.inboxes: dict[int, Mailbox] = {}
        self.paths: list[StreamPath] = []
        # Paths that another transport carries, each with the addresses of its peer's sockets.
        self.carried: dict[CarriedPath, Sources] = {}
        # Our map as senders of this process see it; `map_octets` is what goes to peers.
        self.congested = CongestionMap()
        self._peer_maps: dict[Address, CongestionMap] = {}

    def add_carried(self, path: CarriedPath) -> Sources:
        """Know a path that another transport carries; return the addresses of its sources."""
        sources = self.carried[path] = Sources(lambda port: socket_address(path.peer, port))
        return sources

    def all_paths(self) -> list[StreamPath | CarriedPath]:
        """Return the paths of both kinds."""
        return [*self.paths, *self.carried]

    def map_octets(self) -> bytes:
        """Return the 8192 octets of our map as it is now."""
        return self.congested.emit()

    def congested_at(self, peer: Address) -> CongestionMap:
        """Return the peer's map; the same one while it has a path, changed in place."""
        peer_map = self._peer_maps.get(peer)
        if peer_map is None:
            peer_map = self._peer_maps[peer] = CongestionMap()
        return peer_map

    def replace_peer_map(self, peer: Address, octets: bytes) -> int:
        """Put the peer's new map in force; return the groups with a port that it cleared."""
        return self.congested_at(peer).replace(octets)

    def forget_peer_map(self, peer: Address) -> None:
        """Drop the map of a peer to which no path is left; no socket is routed to it any more."""
        if all(path.peer != peer for path in self.all_paths()):
            self._peer_maps.pop(peer, None)


def socket_address(address: Address, port: int) -> SocketAddress:
    """Return the tuple that Python's socket module uses for an address and a port."""
    if isinstance(address, IPv6Address):
        scope = address.scope_id
        host = str(address).partition("%")[0]
        return host, port, 0, int(scope) if scope and scope.isdigit() else 0
    return str(address), port
