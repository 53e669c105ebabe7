"""One RDMA endpoint, driven by hand: every call is followed by a look at its actions."""

from ipaddress import ip_network
from itertools import count
from random import Random

from tests.rds.transports.rdma_core.rdma_world import HIGH, LOW, SECOND
from urds.common.types import IPAddress
from urds.rds.control.events import Action
from urds.rds.control.rdma_events import Connect, PeerKey
from urds.rds.control.rdma_local_address import RdmaLocalAddress
from urds.rds.control.settings import LocalAddressSettings, PeerSettings
from urds.rds.control.stats import RdmaStats
from urds.rds.wire.private_data import ConnectData

INCOMPATIBLE = b"\x01\x00\x00\x00"  # what a rejection says
OURS = 7  # our generation
REQUEST = 1000  # numbers of the shell begin here
NOW = 5 * SECOND
TO_HIGH = PeerKey(HIGH, 0)


class Bench:
    """One endpoint, and time as the test tells it."""

    def __init__(
        self,
        local: IPAddress = LOW,
        *,
        allowed: str = "10.0.0.0/8",
        peers_max: int = 4096,
        may_evict: bool = True,
        **settings: int,
    ) -> None:
        numbers = count(1)
        self.stats = RdmaStats()
        self.core = RdmaLocalAddress(
            local=local,
            settings=LocalAddressSettings(allowed=(ip_network(allowed),), peers_max=peers_max),
            peer_settings=PeerSettings(generation=OURS, **settings),
            random=Random(1),
            stats=self.stats,
            next_number=lambda: next(numbers),
            may_evict=lambda key: may_evict,
        )

    def actions(self) -> list[Action]:
        found = []
        while (action := self.core.poll_event()) is not None:
            found.append(action)
        return found

    def data(self, peer: IPAddress = HIGH, **fields: object) -> bytes:
        """Return private data of a peer; without a generation it is Linux."""
        return ConnectData(source=peer, target=self.core.local, **fields).emit()

    def want(self, peer: IPAddress = HIGH, tos: int = 0, now_ns: int = NOW) -> list[Action]:
        self.core.handle_wanted(self.core.key_for(peer, tos, now_ns), now_ns)
        return self.actions()

    def request(
        self, number: int = REQUEST, *, peer: IPAddress = HIGH, now_ns: int = NOW, **fields: object
    ) -> list[Action]:
        self.core.handle_request(number, peer, self.data(peer, **fields), now_ns)
        return self.actions()

    def establish(
        self, number: int, data: bytes = b"", now_ns: int = NOW, key: PeerKey = TO_HIGH
    ) -> list[Action]:
        self.core.handle_established(key, number, data, now_ns)
        return self.actions()

    def join(self, **fields: object) -> list[Action]:
        """Be accepted by the higher node at our first attempt."""
        assert self.want() == [Connect(TO_HIGH, 1)]
        return self.establish(1, self.data(**fields))

    def end(self, number: int, now_ns: int = NOW) -> list[Action]:
        self.core.handle_ended(PeerKey(HIGH, 0), number, now_ns)
        return self.actions()

    def wait(self, span_ns: int, now_ns: int = NOW) -> list[Action]:
        """Run the timers of a time; at each its own time."""
        end_ns = now_ns + span_ns
        while (due_ns := self.core.poll_timeout()) is not None and due_ns <= end_ns:
            self.core.handle_timeout(due_ns)
        return self.actions()
