"""What the driver keeps for each local address: its endpoint, listener, paths, and memory of peers.

A peer that was evicted may still repeat what it sent before. The numbers that tell its repeats from
new messages are therefore kept for longer than anything else of it.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Final

from urds.dataplane.base import Address, Agreement, Mailbox, Path, Received
from urds.proto.endpoint import Endpoint
from urds.proto.paths import path_of_port

_REMEMBERED_MAX: Final = 65_536  # paths of evicted peers; beyond it the oldest is forgotten


@dataclass(slots=True)
class PeerPaths:
    """The paths to one peer and the mailboxes that were routed over them."""

    paths: list[Path]
    npaths: int = 1
    mailboxes: set[Mailbox] = field(default_factory=set)
    given_up_messages: int = 0
    connect_error: int = 0  # errno of the last attempt, 0 while it was good
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
    listen_at_ns: int | None = None  # when to accept again, after a rest
    peers: dict[Address, PeerPaths] = field(default_factory=dict)
    mailboxes: set[Mailbox] = field(default_factory=set)
    remembered: dict[tuple[Address, int], Received] = field(default_factory=dict)

    def note_connect(self, peer: Address, failure: int) -> None:
        """Note how the last attempt to connect to a peer ended: an errno, 0 if it was good."""
        paths = self.peers.get(peer)
        if paths is not None:
            paths.connect_error = failure

    def remember(self, peer: Address, index: int, received: Received) -> None:
        """Keep what a path knew of its peer's numbers; of one that sent nothing there is none."""
        if not received.sequence_expected:
            return
        self.remembered[peer, index] = received
        if len(self.remembered) > _REMEMBERED_MAX:
            del self.remembered[next(iter(self.remembered))]

    def recall(self, peer: Address, index: int) -> Received | None:
        """Give back what an earlier path to the peer knew, if that was remembered."""
        return self.remembered.pop((peer, index), None)
