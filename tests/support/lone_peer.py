"""One peer over TCP without a local address: its actions and its timers are its own."""

from collections import deque
from random import Random

from urds.common.types import IPAddress
from urds.rds.control.events import PeerAction
from urds.rds.control.pending import PendingConnections
from urds.rds.control.reconnect import Quarantine
from urds.rds.control.settings import ConnectionSettings, LocalAddressSettings
from urds.rds.control.stats import Stats
from urds.rds.control.tcp_peer import TcpPeer
from urds.rds.control.timers import Timers


class LonePeer(TcpPeer):
    """A peer with the three calls by which a local address is driven."""

    def __init__(
        self, *, local: IPAddress, peer: IPAddress, settings: ConnectionSettings, random: Random
    ) -> None:
        timers = self._timers = Timers()
        self._actions: deque[PeerAction] = deque()
        super().__init__(
            local=local,
            peer=peer,
            settings=settings,
            random=random,
            stats=Stats(),
            actions=self._actions,
            timers=timers,
            pending=PendingConnections(LocalAddressSettings(), timers),
            quarantine=Quarantine(settings, hosts_max=1, random=random),
            on_streams=lambda peer: None,
        )

    def handle_timeout(self, now_ns: int) -> None:
        """Do what is due."""
        while (key := self._timers.pop_due(now_ns)) is not None:
            self.handle_timer(key.kind, key.number, now_ns)

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` is due next, None for never."""
        return self._timers.next_ns()

    def poll_event(self) -> PeerAction | None:
        """Return the next action or notice."""
        return self._actions.popleft() if self._actions else None
