"""What the driver keeps for each local address: its endpoint, its listener, its paths."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from urds.dataplane.base import Address, Agreement, Mailbox, Path
from urds.proto.endpoint import Endpoint
from urds.proto.paths import path_of_port


@dataclass(slots=True)
class PeerPaths:
    """The paths to one peer and the mailboxes that were routed over them."""

    paths: list[Path]
    npaths: int = 1
    mailboxes: set[Mailbox] = field(default_factory=set)
    given_up_messages: int = 0
    agreed: Agreement | None = None  # of the handshake, for paths made later

    def path_for(self, port: int) -> Path:
        """Return the path of the socket bound to `port`."""
        return self.paths[path_of_port(port, self.npaths)]


@dataclass(slots=True)
class LocalHost:
    """One local address of this process."""

    address: Address
    endpoint: Endpoint
    listener: socket.socket
    listen_at_ns: int | None = None  # when to accept again after an accept that failed
    peers: dict[Address, PeerPaths] = field(default_factory=dict)
    mailboxes: set[Mailbox] = field(default_factory=set)
