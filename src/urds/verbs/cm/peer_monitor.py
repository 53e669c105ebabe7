"""Who still runs: one record per opening of a device that we have connections with.

A datagram link says nothing when a process dies. So a peer that was silent for a while is asked;
after some questions without an answer all connections with it are broken. One record serves all
connections with the same opening, so that a thousand of them cost one question. Whatever arrives
from a peer counts as a sign of life.
"""

from typing import TYPE_CHECKING

from urds.verbs.cm.deadlines import Deadlines
from urds.verbs.cm.messages import Message, MessageKind
from urds.verbs.cm.records import CmConnection, CmPeer, CmSettings, CmStats, Route

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

PeerKey = tuple[Route, bytes]


class Peers:
    """The peers of one connection manager; `send` queues a message."""

    def __init__(
        self,
        *,
        opening: bytes,
        settings: CmSettings,
        stats: CmStats,
        random: "Random",
        deadlines: "Deadlines[PeerKey]",
        send: "Callable[[Route, Message], None]",
    ) -> None:
        self._opening = opening
        self._settings = settings
        self._stats = stats
        self._random = random
        self._deadlines = deadlines
        self._send = send
        self._peers: dict[PeerKey, CmPeer] = {}
        self._at: dict[Route, set[PeerKey]] = {}

    def __len__(self) -> int:
        """Count the peers."""
        return len(self._peers)

    def join(self, connection: CmConnection, now_ns: int) -> None:
        """Count an established connection, and watch its peer from the first one on."""
        key = (connection.route, connection.opening)
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = CmPeer(connection.route, connection.opening, now_ns)
            self._at.setdefault(connection.route, set()).add(key)
            if self._settings.alive_idle_ns is not None:
                self._deadlines.set(key, now_ns + self._settings.alive_idle_ns)
        peer.heard_ns = now_ns
        peer.connections.add(connection)
        connection.life = peer

    def leave(self, connection: CmConnection) -> None:
        """Count a connection no more; the peer of the last one is forgotten."""
        peer, connection.life = connection.life, None
        if peer is None:
            return
        peer.connections.discard(connection)
        if not peer.connections:
            key = (peer.route, peer.opening)
            del self._peers[key]
            self._deadlines.cancel(key)
            self._at[peer.route].discard(key)
            if not self._at[peer.route]:
                del self._at[peer.route]

    def handle_message(self, message: Message, route: Route, now_ns: int) -> list[CmConnection]:
        """Note that an opening speaks; return connections whose peer is another one by now.

        Another opening that answers our question lives where the old one was: the process was
        started anew.
        """
        if message.kind is MessageKind.ALIVE:
            self._stats.alive_received += 1
            answer = Message(
                kind=MessageKind.ALIVE_ANSWER, opening=self._opening, remote_id=message.local_id
            )
            self._send(route, answer)
        gone: list[CmConnection] = []
        for key in self._at.get(route, ()):
            peer = self._peers[key]
            if peer.opening == message.opening:
                peer.heard_ns, peer.is_hasty = now_ns, False
            elif message.kind is MessageKind.ALIVE_ANSWER and message.remote_id == peer.nonce != 0:
                gone += peer.connections
        return gone

    def handle_doubt(self, route: Route, now_ns: int) -> None:
        """Ask the peers of a route at once: something says that nobody is there."""
        if self._settings.alive_idle_ns is None:
            return
        for key in self._at.get(route, ()):
            peer = self._peers[key]
            if not peer.is_hasty:
                peer.is_hasty = True
                peer.heard_ns = now_ns - self._settings.alive_idle_ns
                peer.tries = max(peer.tries, self._settings.alive_tries_max - 2)
                self._deadlines.set(key, now_ns)

    def handle_due(self, key: PeerKey, now_ns: int) -> list[CmConnection]:
        """Ask a silent peer again; return its connections when it was asked often enough."""
        peer, settings = self._peers[key], self._settings
        assert settings.alive_idle_ns is not None, "a peer nobody asks has no deadline"
        if now_ns - peer.heard_ns < settings.alive_idle_ns:
            peer.tries, peer.nonce = 0, 0
            self._deadlines.set(key, peer.heard_ns + settings.alive_idle_ns)
            return []
        if peer.tries >= settings.alive_tries_max:
            return list(peer.connections)
        peer.tries += 1
        peer.nonce = peer.nonce or self._random.getrandbits(32) or 1
        self._stats.alive_sent += 1
        question = Message(kind=MessageKind.ALIVE, opening=self._opening, local_id=peer.nonce)
        self._send(peer.route, question)
        wait_ns = settings.alive_hasty_ns if peer.is_hasty else settings.alive_retry_ns
        self._deadlines.set(key, now_ns + wait_ns)
        return []
