"""Records of the connection manager: settings, counters, connections, events, and peers.

A datagram link says nothing when a process dies. So a peer that was silent for a while is probed;
after some probes without an answer all its connections are broken. One record serves all
connections with the same device context, so that a thousand of them cost one probe. Any message or
packet from a peer counts as a sign of life.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING, Any, Final

from urds.common.timers import Deadlines
from urds.common.types import HostPort
from urds.verbs.cm.messages import CmMessage, CmMessageKind, Offer

if TYPE_CHECKING:
    from random import Random

Route = Hashable  # where a provider sends to; the core only compares it

DATAGRAM_SPACE: Final = 0x0111  # port space of rdma_cm whose connections are look-ups


@dataclass(frozen=True, slots=True)
class CmSettings:
    """Times and limits of one connection manager.

    Linux retries after 6.1 s, 15 times (docs/reference/verbs-and-roce.md 14.3). Duplicates are
    harmless, so this retries sooner and gives up after 9.4 s.

    names_context: every message names its sender's device context. False as in InfiniBand, where a
    request and its reply alone do: the numbers of the two sides and the route find the connection
    of any other, and so does the route with the requester's number for a repeated request.
    """

    retry_first_ns: int = 200_000_000  # doubles with each try
    retry_max_ns: int = 3_200_000_000
    tries_max: int = 6
    request_wait_ns: int = 30_000_000_000  # for the listener's owner to answer
    past_max: int = 4096  # ended requests that are remembered
    pending_max: int = 4096  # unanswered requests of all listeners
    connections_max: int = 65_536
    error_grace_ns: int = 20_000_000  # lets the queue pair's last answer go first
    alive_idle_ns: int | None = 2_000_000_000  # silence before a probe; None: the link reports ends
    alive_retry_ns: int = 1_000_000_000
    alive_suspect_ns: int = 100_000_000  # after a hint that the peer is gone
    # Ten seconds in all, so that a queue pair with work under way fails first and says why.
    alive_tries_max: int = 8
    names_context: bool = True


@dataclass(slots=True)
class CmStats:
    """Counts since the start, one per rare event and one per reason of a drop."""

    requests_sent: int = 0
    requests_received: int = 0
    requests_duplicate: int = 0  # duplicates received
    retries: int = 0  # messages sent again
    established: int = 0
    established_by_data: int = 0  # the RTU was late or lost
    rejected_no_listener: int = 0
    rejected_backlog: int = 0
    rejected_pending: int = 0
    rejected_connections: int = 0
    stale: int = 0  # connections replaced by a new one of the same queue pair
    broken: int = 0
    dropped_malformed: int = 0
    dropped_unknown: int = 0  # about unknown connections
    dropped_misplaced: int = 0  # kind that does not fit the state
    alive_sent: int = 0


class CmState(IntEnum):
    """States of a connection, as one side sees it."""

    REQ_SENT = 1
    REQUESTED = 2  # the owner has it and has not answered
    REP_SENT = 3
    ESTABLISHED = 4
    DREQ_SENT = 5  # DREQ sent
    OVER = 6


class CmEventKind(Enum):
    """Events of a connection. All but the first two end it."""

    REQUEST = auto()
    ESTABLISHED = auto()
    REJECTED = auto()
    REFUSED = auto()
    UNREACHABLE = auto()
    ERROR = auto()
    DISCONNECTED = auto()
    BROKEN = auto()


@dataclass(slots=True, eq=False)
class CmListener:
    """One listening port of one space; `host` may be the wildcard address."""

    space: int
    host: str
    port: int
    backlog: int
    owner: Any = None
    pending: int = 0


@dataclass(slots=True, eq=False)
class CmPeer:
    """One peer's device context that has connections here, and when it was heard last."""

    route: Route
    context_guid: bytes
    heard_ns: int
    connections: set["CmConnection"] = field(default_factory=set)
    tries: int = 0
    nonce: int = 0
    is_suspect: bool = False


@dataclass(slots=True, eq=False)
class CmConnection:
    """One side of a connection. Only the core changes it; `owner` belongs to the owner."""

    local_id: int
    route: Route
    space: int
    is_requester: bool
    local: HostPort
    peer: HostPort
    state: CmState
    offer: Offer = field(default_factory=Offer)
    peer_offer: Offer = field(default_factory=Offer)
    remote_id: int = 0
    context_guid: bytes = b""  # the peer's; empty while unknown
    requester: Hashable = None  # at the listener: the side whose number the request's is
    listener: CmListener | None = None
    owner: Any = None
    is_silent: bool = False  # forgotten by its owner: no events
    monitored_peer: CmPeer | None = None
    data: bytes = b""  # what is repeated until the peer answers
    tries: int = 0
    give_up_ns: int | None = None

    @property
    def is_datagram(self) -> bool:
        """Whether this only looks up a datagram queue pair."""
        return self.space == DATAGRAM_SPACE


@dataclass(frozen=True, slots=True)
class CmEvent:
    """One event. `message` is the peer's message that caused it, if any."""

    kind: CmEventKind
    connection: CmConnection
    message: CmMessage | None = None
    reason: str = ""


PeerKey = tuple[Route, bytes]


@dataclass(slots=True, eq=False)
class PeerMonitor:
    """The peers of one connection manager; `send` queues a message."""

    context_guid: bytes
    settings: CmSettings
    stats: CmStats
    random: "Random"
    send: Callable[[Route, bytes], None]
    deadlines: Deadlines[PeerKey] = field(default_factory=Deadlines)
    _peers: dict[PeerKey, CmPeer] = field(default_factory=dict)
    _at: dict[Route, set[PeerKey]] = field(default_factory=dict)

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

        A message without a device context is a sign of every peer of its route. Another device
        context that answers a probe has replaced the old one: the process restarted.
        """
        if message.kind is CmMessageKind.ALIVE:
            answer = CmMessage(
                kind=CmMessageKind.ALIVE_ANSWER,
                context_guid=self.context_guid,
                remote_id=message.local_id,
            )
            self.send(route, answer.emit())
        gone: list[CmConnection] = []
        for key in self._at.get(route, ()):
            peer = self._peers[key]
            if message.context_guid in (b"", peer.context_guid):
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
