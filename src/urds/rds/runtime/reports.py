"""Reports of the plane, passed on to what they concern: connection, transport, client or handler.

`actions` is the other direction: there the plane does what the control core decides. Control lock
held.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from time import monotonic_ns as now_ns
from typing import Any, Final, Protocol

from urds.common.logs import LogQueue
from urds.common.types import IPAddress
from urds.rds.control.tcp_peer import TcpPeer
from urds.rds.plane import contract as base
from urds.rds.runtime.local_addresses import LocalAddressState
from urds.rds.runtime.looks import Looks
from urds.rds.runtime.paths import Paths
from urds.rds.runtime.undelivered import tell_linger_over
from urds.rds.runtime.watches import Watches
from urds.rds.settings import Settings
from urds.rds.transports.peer_history import TURNED_AWAY, PeerName, Peers

_HARMLESS: Final = frozenset({base.DownReason.END_OF_STREAM, base.DownReason.ERROR})


class Owner(Protocol):
    """The driver, as far as it is needed here."""

    log: LogQueue
    settings: Settings
    watches: Watches
    paths: Paths
    looks: Looks
    peers: Peers
    guard: Any
    rdma: Any
    clients: Any

    def make_route(self, mailbox: base.Mailbox, peer: IPAddress) -> None:
        """Route a mailbox to a peer. Raises OSError."""

    def snapshot(self) -> base.Snapshot:
        """Return counters and tables of the process. Raises OSError."""

    def failure(self, local: IPAddress, peer: IPAddress) -> str:
        """Return why the last attempt to connect to a peer failed, "" if it did not."""


class Reports:
    """Where the reports of a driver's plane go."""

    def __init__(self, driver: Owner) -> None:
        self._driver = driver

    def take(self, event: base.Event) -> None:
        """Pass on one report; one of a path that was forgotten meanwhile is dropped."""
        driver = self._driver
        if isinstance(event, base.Ready):
            driver.watches.handle_ready(event.descriptor)
        elif isinstance(event, base.LingerOver):
            tell_linger_over(self._driver, event)
        elif isinstance(event, base.OfTransport):
            driver.rdma.take(event)
        elif isinstance(event, base.OfClient):
            self._take_of_client(event)
        elif (owner := driver.paths.owner_of(event.path)) is not None:
            host, peer = owner
            connection = host.endpoint.find(peer)
            if connection is not None:
                with driver.guard.confine(host, peer):
                    self._take_of_path(host, connection, event)

    def take_last(self, events: Sequence[base.Event]) -> None:
        """Report what was cancelled during the drain, and answer handshakes.

        Without its answer a peer would not know that the acknowledgements that follow are some. No
        other report matters any more.
        """
        for event in events:
            if isinstance(event, base.LingerOver | base.Control):
                self.take(event)
            elif isinstance(event, base.LingerEnded):
                self._driver.rdma.take(event)

    def _take_of_client(self, event: base.OfClient) -> None:
        clients = self._driver.clients
        if clients is None:
            return
        if not isinstance(event, base.RouteWanted):
            clients.note(event)
            return
        try:
            self._driver.make_route(event.mailbox, event.peer)
        except OSError as refused:
            clients.fail_route(event.mailbox, event.peer, refused.errno or errno.EIO)

    def _take_of_path(
        self, host: LocalAddressState, connection: TcpPeer, event: base.OfPath
    ) -> None:
        index, now = event.path.index, now_ns()
        if isinstance(event, base.ConnectWanted):
            connection.handle_wanted(index, now)
        elif isinstance(event, base.FirstFrame):
            connection.handle_first_frame(index, event.attachment, now, generation=event.generation)
        elif isinstance(event, base.Down):
            self._take_down(host, connection, event, now)
        elif isinstance(event, base.PeerRestarted):
            connection.handle_peer_restarted(now)
        else:
            connection.handle_control(
                index,
                event.attachment,
                acknowledgement=event.acknowledgement,
                source_port=event.source_port,
                target_port=event.target_port,
                extension=event.extension,
                now_ns=now,
            )

    def _take_down(
        self, host: LocalAddressState, connection: TcpPeer, event: base.Down, now: int
    ) -> None:
        peers, index = self._driver.peers, event.path.index
        name = PeerName(host.address, connection.peer)
        if not event.frames:  # it was attached, and ended before the peer's first frame
            peers.note_failed(name, event.errno or errno.ECONNRESET, TURNED_AWAY)
        elif not index:
            peers.expect_loss(name, _reason_of(event))
        self._driver.looks.end(event.path, event.frames, now)
        connection.handle_down(
            index,
            event.attachment,
            event.frames,
            now,
            protocol_error=event.reason not in _HARMLESS,
        )


def _reason_of(event: base.Down) -> str:
    """Return in words why a stream ended."""
    if event.reason is base.DownReason.END_OF_STREAM:
        return "the peer closed it"
    if event.reason is base.DownReason.ERROR:
        return os.strerror(event.errno)
    return f"protocol error of the peer: {event.reason.name.lower().replace('_', ' ')}"
