"""Addresses of a peer's sockets, kept so that their messages share one tuple each."""

from __future__ import annotations

from collections.abc import Callable

from urds.rds.plane.contract import SocketAddress

SOURCES_MAX = 1024  # a peer may send from 65,534 ports: 228 bytes each


class Sources(dict[int, SocketAddress]):
    """The address of each port of a peer, created on first use; cleared when full."""

    def __init__(self, source_of: Callable[[int], SocketAddress]) -> None:
        super().__init__()
        self._source_of = source_of

    def __missing__(self, port: int) -> SocketAddress:
        """Create the address of a port."""
        if len(self) >= SOURCES_MAX:
            self.clear()
        source = self[port] = self._source_of(port)
        return source
