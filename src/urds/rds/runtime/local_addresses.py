"""What the driver keeps for each local address: its core, listener, paths, and memory of peers.

An evicted peer may still retransmit what it sent before. The numbers that tell its retransmits from
new messages are therefore kept for longer than anything else of it.
"""

from __future__ import annotations

import socket
from typing import Final

from urds.common.records import field, record
from urds.common.types import IPAddress
from urds.rds.control.events import PeerKind
from urds.rds.control.local_address import LocalAddress
from urds.rds.control.paths import path_of_port
from urds.rds.control.state import ConnectionReport
from urds.rds.plane.contract import Agreement, Mailbox, Path, Received

_REMEMBERED_MAX: Final = 65_536  # paths of evicted peers; beyond it the oldest is forgotten


@record(frozen=False)
class PeerPaths:
    """The paths to one peer and the mailboxes that were routed over them."""

    paths: list[Path]
    npaths: int = 1
    mailboxes: set[Mailbox] = field(default_factory=set)
    fan_out_from: int | None = None  # how many there were, while a fan-out is not finished
    agreed: Agreement | None = None  # of the handshake, for paths made later

    def path_for(self, port: int) -> Path:
        """Return the path of the socket bound to `port`."""
        return self.paths[path_of_port(port, self.npaths)]


@record(frozen=False)
class LocalAddressState:
    """One local address of this process."""

    address: IPAddress
    endpoint: LocalAddress
    listener: socket.socket
    listen_at_ns: int | None = None  # when to accept again, after a pause
    is_released: bool = False  # another process may be its host; the next bind listens anew
    peers: dict[IPAddress, PeerPaths] = field(default_factory=dict)
    mailboxes: set[Mailbox] = field(default_factory=set)
    portless: set[Mailbox] = field(default_factory=set)  # of these, whose port is not theirs
    remembered: dict[tuple[IPAddress, int], Received] = field(default_factory=dict)

    def remember(self, peer: IPAddress, index: int, received: Received) -> None:
        """Keep the peer's numbers that a path knew; of a peer that sent nothing there are none."""
        if not received.sequence_expected:
            return
        self.remembered[peer, index] = received
        if len(self.remembered) > _REMEMBERED_MAX:
            del self.remembered[next(iter(self.remembered))]

    def recall(self, peer: IPAddress, index: int) -> Received | None:
        """Return the numbers that an earlier path to the peer knew, if they were kept."""
        return self.remembered.pop((peer, index), None)

    def report(self, peer: IPAddress, index: int) -> tuple[ConnectionReport, Path] | None:
        """Return what the core knows of a path, and the path; None if it is gone."""
        connection = self.endpoint.find(peer)
        if connection is None or peer not in self.peers:
            return None
        report, paths = connection.report(index), self.peers[peer].paths
        if report is None or index >= len(paths):
            return None
        return report, paths[index]

    def awaits_handshake(self) -> bool:
        """Tell whether a peer with a stream has delivered a message and is not known."""
        for peer, paths in self.peers.items():
            connection = self.endpoint.find(peer)
            if connection is None or connection.facts.kind is not PeerKind.UNKNOWN:
                continue
            if connection.has_stream and any(path.has_delivered() for path in paths.paths):
                return True
        return False
