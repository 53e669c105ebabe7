"""One local address over RDMA: its peers, and the peers that it admits.

A value machine: no I/O, no clock, no random numbers of its own, no lock. The driver's control
thread feeds it, does what `poll_event` returns, and calls `handle_timeout` at the time that
`poll_timeout` returns. The module `rdma_peer` decides what becomes of one peer.

Peers outlive their connections, for they remember the generation of the peer. When there are too
many, the one idle for longest is evicted, if the shell agrees: it knows of messages on their way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from urds.common.errors import ErrorReason, os_error
from urds.common.types import IPAddress
from urds.rds.control.events import Action, Reason, Refused
from urds.rds.control.idle_queue import IdleQueue
from urds.rds.control.paths import address_bytes
from urds.rds.control.rdma_events import Failure, Forget, PeerKey, Reject
from urds.rds.control.rdma_peer import REJECTION, RdmaPeer, key_of, read_offer
from urds.rds.control.reconnect import Quarantine
from urds.rds.control.settings import LocalAddressSettings, PeerSettings
from urds.rds.control.stats import RdmaStats
from urds.rds.control.timers import Timers
from urds.rds.wire.private_data import accepted_version

if TYPE_CHECKING:
    from random import Random


class RdmaLocalAddress:
    """The control state of one local address.

    `next_number` draws the numbers of this side's attempts; the shell gives requests others.
    """

    def __init__(
        self,
        *,
        local: IPAddress,
        settings: LocalAddressSettings,
        peer_settings: PeerSettings,
        random: Random,
        stats: RdmaStats,
        next_number: Callable[[], int],
        may_evict: Callable[[PeerKey], bool] = lambda key: True,
    ) -> None:
        self.local = local
        self.stats = stats
        self._settings = settings
        self._peer_settings = peer_settings
        self._random = random
        self._next_number = next_number
        self._may_evict = may_evict
        self._quarantine = Quarantine(peer_settings, hosts_max=settings.peers_max, random=random)
        self._actions: deque[Action] = deque()
        self._timers = Timers()
        self._peers: dict[PeerKey, RdmaPeer] = {}
        self._idle = IdleQueue(self._peers.values, self._is_idle)
        self.timed_key: PeerKey | None = None  # the peer that a fault in the timer concerns

    # -- peers

    @property
    def peers(self) -> tuple[RdmaPeer, ...]:
        """All peers, those without a connection included."""
        return tuple(self._peers.values())

    def find(self, key: PeerKey) -> RdmaPeer | None:
        """Return a peer if there is one."""
        return self._peers.get(key)

    def key_for(self, peer: IPAddress, tos: int, now_ns: int) -> PeerKey:
        """Return the key by which messages reach a peer; make the peer if need be.

        Raises OSError: EACCES for a peer that is not allowed, EUSERS when there are too many.
        """
        key = PeerKey(peer, tos)
        if key in self._peers:
            return key
        if not self.allows(peer):
            raise os_error(ErrorReason.PEER_NOT_ALLOWED, f"{peer}: see URDS_ALLOW", peer=peer)
        if self._make_peer(key, now_ns) is None:
            self.stats.count_refused(Reason.TOO_MANY_PEERS)
            limit = self._settings.peers_max
            raise os_error(ErrorReason.TOO_MANY_PEERS, f"{limit} peers", limit=limit, peer=peer)
        return key

    def allows(self, peer: IPAddress) -> bool:
        """Tell whether the peer may exchange messages with this node."""
        return self._is_ourselves(peer) or self._settings.allows(peer)

    def _is_ourselves(self, peer: IPAddress) -> bool:
        return address_bytes(peer) == address_bytes(self.local)

    def _make_peer(self, key: PeerKey, now_ns: int) -> RdmaPeer | None:
        """Make a peer; None if there are too many and none is idle."""
        is_full = len(self._peers) >= self._settings.peers_max
        if is_full and not self._idle.evict(now_ns, self._evict):
            return None
        peer = RdmaPeer(
            key=key,
            local=self.local,
            settings=self._peer_settings,
            random=self._random,
            stats=self.stats,
            quarantine=self._quarantine,
            actions=self._actions,
            timers=self._timers,
            next_number=self._next_number,
        )
        peer.used_ns = now_ns
        self._peers[key] = peer
        return peer

    def _evict(self, peer: RdmaPeer) -> bool:
        if not self._may_evict(peer.key):
            return False
        peer.close()
        del self._peers[peer.key]
        self.stats.evicted += 1
        self._actions.append(Forget(peer.key))
        return True

    def _is_idle(self, peer: RdmaPeer, now_ns: int) -> bool:
        return peer.is_idle and self._peers.get(peer.key) is peer

    # -- reports of the shell; of a peer that was evicted meanwhile they are ignored

    def offer(self, key: PeerKey, *, acknowledged: int, credits: int) -> bytes:
        """Return the private data for the last `Connect` or `Accept` of a peer."""
        return self._peers[key].offer(acknowledged=acknowledged, credits=credits)

    def handle_wanted(self, key: PeerKey, now_ns: int) -> None:
        """Connect: messages wait, and there is no connection.

        The passive end of a connection to the same node has the other end connect.
        """
        if (peer := self._peers.get(key)) is not None:
            peer.handle_wanted(now_ns)
            if key.passive:
                active_key = key._replace(passive=False)
                active = self._peers.get(active_key) or self._make_peer(active_key, now_ns)
                if active is not None:
                    active.handle_wanted(now_ns)

    def handle_request(self, number: int, peer: IPAddress, data: bytes, now_ns: int) -> None:
        """Answer a request of the peer; `data` is its private data."""
        if not self.allows(peer):
            self._refuse(number, peer, Reason.NOT_ALLOWED)
            return
        offer, reason = read_offer(data, local=self.local, peer=peer)
        version = accepted_version(offer)
        if reason is not None or version is None:
            self._refuse(number, peer, reason or Reason.VERSION)
            return
        if now_ns < self._quarantine.until_ns(peer):
            self.stats.refused_quarantined += 1
            self._actions.append(Reject(number, REJECTION))
            return
        key = PeerKey(peer, 0 if offer is None else offer.tos, self._is_ourselves(peer))
        known = self._peers.get(key) or self._make_peer(key, now_ns)
        if known is None:
            self._refuse(number, peer, Reason.TOO_MANY_PEERS)
        else:
            known.handle_request(number, offer, version, now_ns)

    def handle_established(self, key: PeerKey, number: int, data: bytes, now_ns: int) -> None:
        """Take the connection. `data`: the reply's private data, none where this side accepted."""
        if (peer := self._peers.get(key)) is not None:
            peer.handle_established(number, data, now_ns)

    def handle_failed(self, key: PeerKey, number: int, failure: Failure, now_ns: int) -> None:
        """Try again later.

        The private data of a rejection would tell which version to offer next; but a connection
        begins with the version to which Linux falls back, so they are not read.
        """
        if (peer := self._peers.get(key)) is not None:
            peer.handle_failed(number, failure, now_ns)

    def handle_ended(self, key: PeerKey, number: int, now_ns: int, *, useful: bool = False) -> None:
        """Reconnect a peer whose established connection is gone.

        After a `useful` one, which has carried messages, the delays begin anew.
        """
        if (peer := self._peers.get(key)) is not None:
            peer.handle_ended(number, now_ns, useful=useful)

    def handle_protocol_error(
        self, key: PeerKey, number: int, now_ns: int, *, wrong_key: bool = False
    ) -> None:
        """End a connection on which the peer broke the protocol, and quarantine its host."""
        self.stats.wrong_keys += wrong_key
        if (peer := self._peers.get(key)) is not None:
            peer.handle_protocol_error(number, now_ns)

    def handle_fault(self, key: PeerKey, now_ns: int) -> None:
        """Have a peer start over after a quarantine: a fault of this node may have lost actions."""
        if (peer := self._peers.get(key)) is not None:
            peer.handle_fault(now_ns)

    def _refuse(self, number: int, peer: IPAddress, reason: Reason) -> None:
        self.stats.count_refused(reason)
        self._actions.append(Reject(number, REJECTION))
        self._actions.append(Refused(peer, reason))

    # -- time

    def handle_timeout(self, now_ns: int) -> None:
        """Do what is due for any peer."""
        self.timed_key = None
        while (timer := self._timers.pop_due(now_ns)) is not None:
            self.timed_key = key_of(timer)
            self._peers[self.timed_key].handle_timer(timer.kind, now_ns)
            self.timed_key = None

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` is due next, None for never."""
        return self._timers.next_ns()

    def poll_event(self) -> Action | None:
        """Return the next action or notice of any peer."""
        return self._actions.popleft() if self._actions else None
