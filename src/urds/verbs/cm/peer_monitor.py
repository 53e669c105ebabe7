"""Liveness of peers: one record per peer's device context that has connections here.

A datagram link says nothing when a process dies. So a peer that was silent for a while is probed;
after some probes without an answer all its connections are broken. One record serves all
connections with the same device context, so that a thousand of them cost one probe. Any message or
packet from a peer counts as a sign of life.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from urds.common.timers import Deadlines
from urds.verbs.cm.messages import CmMessage, CmMessageKind
from urds.verbs.cm.records import CmConnection, CmPeer, CmSettings, CmStats, Route

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

PeerKey = tuple[Route, bytes]


@dataclass(slots=True, eq=False)
class PeerMonitor:
    """The peers of one connection manager; `send` queues a message."""

    context_guid: bytes
    settings: CmSettings
    stats: CmStats
    random: "Random"
    send: "Callable[[Route, bytes], None]"
    deadlines: Deadlines[PeerKey] = field(default_factory=Deadlines)
    _peers: dict[PeerKey, CmPeer] = field(default_factory=dict)
    _at: dict[Route, set[PeerKey]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Count the peers."""
        return len(self._peers)

    def join(self, connection: CmConnection, now_ns: int) -> None:
        """Add an established connection; its first one starts the monitoring of its peer."""
        key = (connection.route, connection.context_guid)
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = CmPeer(connection.route, connection.context_guid, now_ns)
            self._at.setdefault(connection.route, set()).add(key)
            if self.settings.alive_idle_ns is not None:
                self.deadlines.set(key, now_ns + self.settings.alive_idle_ns)
        peer.heard_ns = now_ns
        peer.connections.add(connection)
        connection.monitored_peer = peer

    def leave(self, connection: CmConnection) -> None:
        """Remove a connection; the last one ends the monitoring of its peer."""
        peer, connection.monitored_peer = connection.monitored_peer, None
        if peer is None:
            return
        peer.connections.discard(connection)
        if not peer.connections:
            key = (peer.route, peer.context_guid)
            del self._peers[key]
            self.deadlines.cancel(key)
            self._at[peer.route].discard(key)
            if not self._at[peer.route]:
                del self._at[peer.route]

    def handle_message(self, message: CmMessage, route: Route, now_ns: int) -> list[CmConnection]:
        """Record a sign of life; return connections whose peer has restarted.

        Another device context that answers a probe has replaced the old one: the process restarted.
        """
        if message.kind is CmMessageKind.ALIVE:
            self.stats.alive_received += 1
            answer = CmMessage(
                kind=CmMessageKind.ALIVE_ANSWER,
                context_guid=self.context_guid,
                remote_id=message.local_id,
            )
            self.send(route, answer.emit())
        gone: list[CmConnection] = []
        for key in self._at.get(route, ()):
            peer = self._peers[key]
            if peer.context_guid == message.context_guid:
                peer.heard_ns, peer.is_suspect = now_ns, False
            elif (
                message.kind is CmMessageKind.ALIVE_ANSWER and message.remote_id == peer.nonce != 0
            ):
                gone += peer.connections
        return gone

    def handle_suspicion(self, route: Route, now_ns: int) -> None:
        """Probe the peers of a route at once: a host reports that the port is closed."""
        if self.settings.alive_idle_ns is None:
            return
        for key in self._at.get(route, ()):
            peer = self._peers[key]
            if not peer.is_suspect:
                peer.is_suspect = True
                peer.heard_ns = now_ns - self.settings.alive_idle_ns
                peer.tries = max(peer.tries, self.settings.alive_tries_max - 2)
                self.deadlines.set(key, now_ns)

    def handle_due(self, key: PeerKey, now_ns: int) -> list[CmConnection]:
        """Probe a silent peer again; return its connections after the last try."""
        peer, settings = self._peers[key], self.settings
        assert settings.alive_idle_ns is not None, "a peer without probes has no deadline"
        if now_ns - peer.heard_ns < settings.alive_idle_ns:
            peer.tries, peer.nonce = 0, 0
            self.deadlines.set(key, peer.heard_ns + settings.alive_idle_ns)
            return []
        if peer.tries >= settings.alive_tries_max:
            return list(peer.connections)
        peer.tries += 1
        peer.nonce = peer.nonce or self.random.getrandbits(32) or 1
        self.stats.alive_sent += 1
        probe = CmMessage(
            kind=CmMessageKind.ALIVE, context_guid=self.context_guid, local_id=peer.nonce
        )
        self.send(peer.route, probe.emit())
        wait_ns = settings.alive_suspect_ns if peer.is_suspect else settings.alive_retry_ns
        self.deadlines.set(key, now_ns + wait_ns)
        return []
