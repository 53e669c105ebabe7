"""One local address: its ports, its peers, and the peers that it admits.

It is a value machine, as its connections are. All of them share one queue of actions and one set of
timers, so a driver polls the local address alone. It sends through `connection`, and passes what
concerns a peer to the connection that `find` returns, if any:

    if (connection := local_address.find(peer)) is not None:
        connection.handle_down(index, attachment, frames, now_ns)

Connections outlive their streams, for they hold what tells a retransmit from a new message; only
when there are too many, the one that has been idle for longest is evicted. The local address does
not see messages, so it asks the driver first, for one may be on its way to such a peer. `connected`
bounds how many have a stream in the whole node. Source: docs/reference/rds.md 3.1 (linux v6.12
net/rds/bind.c) for ports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from urds.common.errors import ErrorReason, os_error
from urds.common.records import replace
from urds.common.types import IPAddress
from urds.rds.constants import PORT_COUNT, PORT_FIRST, PORT_LAST, PROBE_PORT
from urds.rds.control.connected import ERROR_REASONS, Connected
from urds.rds.control.events import Forget, PeerAction, PeerKind, Reason, Refuse, Refused
from urds.rds.control.idle_queue import IdleQueue
from urds.rds.control.paths import address_bytes
from urds.rds.control.pending import PendingConnections
from urds.rds.control.reconnect import Quarantine
from urds.rds.control.settings import ConnectionSettings, LocalAddressSettings
from urds.rds.control.stats import Stats
from urds.rds.control.tcp_peer import TcpPeer
from urds.rds.control.timers import Timers

if TYPE_CHECKING:
    from random import Random


class LocalAddress:
    """The control state of one local address."""

    def __init__(
        self,
        *,
        local: IPAddress,
        settings: LocalAddressSettings,
        connection_settings: ConnectionSettings,
        random: Random,
        stats: Stats | None = None,
        may_evict: Callable[[IPAddress], bool] = lambda peer: True,
        may_disconnect: Callable[[IPAddress], bool] = lambda peer: True,
        connected: Connected | None = None,
        npaths_before: Callable[[IPAddress], int] = lambda peer: 1,
    ) -> None:
        self.local = local
        self.stats = Stats() if stats is None else stats
        self._settings = settings
        self._connection_settings = connection_settings
        self._random = random
        self._may_evict = may_evict
        self._may_disconnect = may_disconnect
        self._connected = Connected(settings.peers_max) if connected is None else connected
        self._npaths_before = npaths_before
        self._actions: deque[PeerAction] = deque()
        self._timers = Timers()
        self._pending = PendingConnections(settings, self._timers)
        self._quarantine = Quarantine(
            connection_settings, hosts_max=settings.peers_max, random=random
        )
        self._connections: dict[IPAddress, TcpPeer] = {}
        self._idle = IdleQueue(self._connections.values, self._is_idle)
        self._ports: set[int] = set()
        self.timed_peer: IPAddress | None = None  # the peer that a fault in the timer concerns

    # -- ports

    def bind(self, port: int) -> int:
        """Take a port and return it; 0 chooses: a random start, then upwards, with wrap.

        Raises OSError: EINVAL for port 1, EADDRINUSE for a port in use or when none is free.
        """
        if port == PROBE_PORT:
            raise os_error(ErrorReason.RESERVED_PORT, "port 1 carries handshakes")
        if port == 0:
            port = self._free_port()
        elif port in self._ports:
            raise os_error(ErrorReason.ADDRESS_IN_USE, f"port {port} of {self.local}")
        self._ports |= {port}  # no call: a signal handler that raises comes before it or later
        return port

    def release(self, port: int) -> None:
        """Release a port; one that is not bound is no error."""
        self._ports.discard(port)

    def _free_port(self) -> int:
        start = self._random.randrange(PORT_FIRST, PORT_COUNT)
        for port in chain(range(start, PORT_COUNT), range(PORT_FIRST, start)):
            if port not in self._ports:
                return port
        count = PORT_LAST - PORT_FIRST + 1
        raise os_error(
            ErrorReason.PORTS_EXHAUSTED, f"all {count} ports of {self.local}", limit=count
        )

    # -- peers

    @property
    def connections(self) -> tuple[TcpPeer, ...]:
        """All connections, those without a stream included."""
        return tuple(self._connections.values())

    def find(self, peer: IPAddress) -> TcpPeer | None:
        """Return the connection to a peer if there is one: for reports, which may come late."""
        return self._connections.get(peer)

    def connection(self, peer: IPAddress, now_ns: int) -> TcpPeer:
        """Return the connection to a peer that is not the local address; make one if need be.

        Raises OSError: EACCES for a peer that is not allowed, EUSERS when there are too many, or no
        descriptors for it, or its /64 of IPv6 has its share.
        """
        connection = self._connections.get(peer)
        if connection is not None:
            return connection
        if not self.allows(peer):
            raise os_error(ErrorReason.PEER_NOT_ALLOWED, f"{peer}: see URDS_ALLOW", peer=peer)
        reason = self._connected.admit(peer, now_ns)
        connection = self._make_connection(peer, now_ns) if reason is None else None
        if connection is None:
            reason = reason or Reason.TOO_MANY_PEERS
            self.stats.count_refused(reason)
            limit, detail = self._connected.limit(reason), self._connected.explain(reason)
            raise os_error(ERROR_REASONS[reason], detail, limit=limit, peer=peer)
        return connection

    def allows(self, peer: IPAddress) -> bool:
        """Tell whether the peer may exchange messages with this node."""
        return self._settings.allows(peer)

    def _make_connection(self, peer: IPAddress, now_ns: int) -> TcpPeer | None:
        """Make a connection; None if there are too many and none is idle."""
        if len(self._connections) >= self._settings.peers_max and not (
            self._idle.evict(now_ns, self._evict) or self._connected.evict(self.local, now_ns)
        ):
            return None
        connection = TcpPeer(
            local=self.local,
            peer=peer,
            settings=self._connection_settings,
            random=self._random,
            stats=self.stats,
            actions=self._actions,
            timers=self._timers,
            pending=self._pending,
            quarantine=self._quarantine,
            on_streams=self._note_streams,
            npaths_before=self._npaths_before(peer),
        )
        connection.used_ns = now_ns
        self._connections[peer] = connection
        return connection

    def _evict(self, connection: TcpPeer) -> bool:
        if self._may_evict(connection.peer):
            self._forget(connection)
            return True
        return False

    def _is_idle(self, connection: TcpPeer, now_ns: int) -> bool:
        return connection.is_idle and self._connections.get(connection.peer) is connection

    def _note_streams(self, connection: TcpPeer) -> None:
        self._connected.note(connection, self._disconnect)

    def _disconnect(self, connection: TcpPeer) -> bool:
        """Evict a connection that has a stream, for another; false if it has to stay."""
        if not connection.may_disconnect or not self._may_disconnect(connection.peer):
            return False
        self.stats.evicted_connected += 1
        self._forget(connection)
        return True

    def forget_peers(self) -> None:
        """Evict all peers: the address is released."""
        for connection in self.connections:
            self._forget(connection)

    def _forget(self, connection: TcpPeer) -> None:
        connection.close()
        del self._connections[connection.peer]
        self.stats.evicted += 1
        self._actions.append(Forget(connection.peer))

    # -- incoming streams

    def handle_accepted(
        self, stream: int, peer: IPAddress, source_port: int, now_ns: int, *, is_urds: bool = False
    ) -> None:
        """Attach, park or refuse an accepted stream; `is_urds` if only a urds node has such."""
        if address_bytes(peer) == address_bytes(self.local) or not self.allows(peer):
            self._refuse(stream, peer, Reason.NOT_ALLOWED)
            return
        connection = self._connections.get(peer)
        reason = None
        if connection is None or not (connection.lower or connection.has_stream):
            reason = self._connected.admit(peer, now_ns)
        if connection is None and reason is None:
            connection = self._make_connection(peer, now_ns)
        if connection is None or reason is not None:
            self._refuse(stream, peer, reason or Reason.TOO_MANY_PEERS)
        elif self._is_one_too_many(connection, stream, now_ns):
            self._refuse(stream, peer, Reason.TOO_MANY_PENDING)
        else:
            connection.handle_accepted(stream, source_port, now_ns, is_urds=is_urds)
            self._make_room(now_ns)

    def handle_connected(
        self, peer: IPAddress, index: int, stream: int, now_ns: int, *, is_urds: bool = False
    ) -> None:
        """Take the stream that a `Connect` brought, or refuse it: the room may be gone."""
        connection = self._connections.get(peer)
        reason = None
        if connection is not None and not connection.has_stream:
            reason = self._connected.admit(peer, now_ns)
        if connection is None or reason is not None:
            self._actions.append(Refuse(peer, stream))
        else:
            connection.handle_connected(index, stream, now_ns, is_urds=is_urds)
        if connection is not None and reason is not None:
            self.stats.count_refused(reason)
            self._actions.append(Refused(peer, reason))
            connection.handle_connect_failed(index, now_ns)

    def is_crowded(self, peer: IPAddress) -> bool:
        """Tell whether a pending connection is reported after its first frame: there are many.

        A peer that would be refused anyway, or that only requests a call-back, is reported at once.
        """
        connection = self._connections.get(peer)
        if connection is not None and connection.facts.kind is not PeerKind.UNKNOWN:
            return False
        higher = address_bytes(self.local) > address_bytes(peer)
        return higher and self.allows(peer) and self._pending.are_many(peer)

    def accept_queue_settings(self) -> LocalAddressSettings:
        """Return the bounds of the pending connections of that kind: the half that is left."""
        settings = self._settings
        half, share = settings.pending_max // 2, settings.pending_per_address_max // 2
        return replace(settings, pending_max=max(1, half), pending_per_address_max=max(1, share))

    def _make_room(self, now_ns: int) -> None:
        """Drop a pending connection if there are too many of them."""
        crowded_out = self._pending.one_too_many()
        if crowded_out is not None:
            stream, peer = crowded_out
            self._connections[peer].drop_pending(stream, Reason.TOO_MANY_PENDING, now_ns)

    def _is_one_too_many(self, connection: TcpPeer, stream: int, now_ns: int) -> bool:
        """Count a stream of an unknown peer as pending. A call-back request is refused anyway."""
        if connection.lower or connection.facts.kind is not PeerKind.UNKNOWN:
            return False
        return not self._pending.admit(stream, connection.peer, now_ns)

    def _refuse(self, stream: int, peer: IPAddress, reason: Reason) -> None:
        self.stats.count_refused(reason)
        self._actions.append(Refuse(peer, stream))
        self._actions.append(Refused(peer, reason))

    # -- time

    def handle_timeout(self, now_ns: int) -> None:
        """Do what is due on any connection."""
        self.timed_peer = None
        while (key := self._timers.pop_due(now_ns)) is not None:
            self.timed_peer = key.peer
            self._connections[key.peer].handle_timer(key.kind, key.number, now_ns)
            self.timed_peer = None

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` is due next, None for never."""
        return self._timers.next_ns()

    def poll_event(self) -> PeerAction | None:
        """Return the next action or notice of any connection."""
        return self._actions.popleft() if self._actions else None
