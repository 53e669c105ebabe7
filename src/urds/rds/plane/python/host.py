"""State of a local address: its bound sockets, its congestion map, and those of its peers."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import TYPE_CHECKING

from urds.common.types import IPAddress
from urds.rds.plane.contract import SocketAddress
from urds.rds.plane.python.incoming import Sources
from urds.rds.wire.congestion_map import CongestionMap

if TYPE_CHECKING:
    from urds.rds.plane.message_transport import MessageTransport
    from urds.rds.plane.python.mailbox import Mailbox
    from urds.rds.plane.python.stream_path import StreamPath


class Host:
    """Tables of one local address; guarded by the plane's lock."""

    def __init__(self, address: IPAddress) -> None:
        self.address = address
        self.inboxes: dict[int, Mailbox] = {}
        self.paths: list[StreamPath] = []
        # Paths over message transports, each with the addresses of its peer's sockets.
        self.transports: dict[MessageTransport, Sources] = {}
        # The local map as senders of this process see it; `map_bytes` is what goes to peers.
        self.congested = CongestionMap()
        self._peer_maps: dict[IPAddress, CongestionMap] = {}

    def add_message_transport(self, path: MessageTransport) -> Sources:
        """Add a path over a message transport; return the addresses of its sources."""
        sources = self.transports[path] = Sources(lambda port: socket_address(path.peer, port))
        return sources

    def all_paths(self) -> list[StreamPath | MessageTransport]:
        """Return the paths of both kinds."""
        return [*self.paths, *self.transports]

    def map_bytes(self) -> bytes:
        """Return the 8192 bytes of the present local map."""
        return self.congested.emit()

    def congested_at(self, peer: IPAddress) -> CongestionMap:
        """Return the peer's map; the same object while it has a path, changed in place."""
        peer_map = self._peer_maps.get(peer)
        if peer_map is None:
            peer_map = self._peer_maps[peer] = CongestionMap()
        return peer_map

    def replace_peer_map(self, peer: IPAddress, data: bytes) -> int:
        """Put the peer's new map in force; return the groups with a port that it cleared."""
        return self.congested_at(peer).replace(data)

    def forget_peer_map(self, peer: IPAddress) -> None:
        """Drop the map of a peer without paths; no socket is routed to it any more."""
        if all(path.peer != peer for path in self.all_paths()):
            self._peer_maps.pop(peer, None)


def socket_address(address: IPAddress, port: int) -> SocketAddress:
    """Return the tuple that Python's socket module uses for an address and a port."""
    if isinstance(address, IPv6Address):
        scope = address.scope_id
        host = str(address).partition("%")[0]
        return host, port, 0, int(scope) if scope and scope.isdigit() else 0
    return str(address), port
