"""Sessions in virtual time: hubs, and what carries their packets as RDS does.

Packets of one pair of sockets arrive once and in order, after a time drawn for each; those to a
host that is gone arrive nowhere, and no host is told. A host may die, with or without notice.
"""

from collections.abc import Iterator
from random import Random

from urds.dask.hub import Hub
from urds.dask.session import Limits, Session
from urds.dask.wire import Hello

MS = 1_000_000
WINDOW = 4096
LIMITS = Limits(
    window_bytes=WINDOW, fragment_bytes=512, message_bytes_max=1 << 20, ping_ns=1000 * MS
)
Address = tuple[str, int]


class Host:
    """A process with one hub."""

    def __init__(self, number: int, limits: Limits = LIMITS) -> None:
        self.address: Address = (f"10.0.0.{number}", 1)
        self.limits = limits
        self.start()

    def start(self) -> None:
        """Begin, or begin again without a memory."""
        hello = Hello(self.limits.window_bytes, bytes(16), 1, 1)
        self.hub = Hub(limits=self.limits, hello=hello)
        self.hub.is_listening = True
        self.accepted: list[tuple[Address, Session]] = []
        self.is_alive = True
        self.is_stopped = False  # as by SIGSTOP: packets wait


class World:
    """Hosts, their packets on the way, and the clock."""

    def __init__(self, seed: int, hosts: int = 2, limits: Limits = LIMITS) -> None:
        self.random = Random(seed)
        self.now_ns = 0
        self.hosts = [Host(number + 1, limits) for number in range(hosts)]
        self._flows: dict[tuple[Address, Address], list[tuple[int, bytes]]] = {}
        self.packets_lost = 0

    def host(self, address: Address) -> Host:
        """Return the host with an address."""
        return next(one for one in self.hosts if one.address == address)

    def connect(self, source: int, target: int) -> Session:
        """Ask for a session."""
        peer = self.hosts[target].address
        number = self.random.getrandbits(64)
        return self.hosts[source].hub.open(peer, number, self.now_ns)

    def connected(self, source: int = 0, target: int = 1) -> tuple[Session, Session]:
        """Return both ends of a session that is open."""
        asker = self.connect(source, target)
        self.run(100 * MS)
        return asker, self.hosts[target].accepted[-1][1]

    def run(self, for_ns: int, step_ns: int = MS) -> None:
        """Let time pass."""
        until_ns = self.now_ns + for_ns
        while self.now_ns < until_ns:
            self.now_ns += step_ns
            self.step()

    def step(self) -> None:
        """Send what there is, deliver what is due."""
        for one in self.hosts:
            if one.is_alive and not one.is_stopped:
                one.hub.handle_time(self.now_ns)
                self._send(one)
        for (source, target), flow in self._flows.items():
            host = self.host(target)
            while flow and flow[0][0] <= self.now_ns and not host.is_stopped:
                _, payload = flow.pop(0)
                if host.is_alive:
                    host.hub.handle(payload, source, self.now_ns)
                    while (accepted := host.hub.poll_accepted()) is not None:
                        host.accepted.append(accepted)
                else:
                    self.packets_lost += 1

    def _send(self, host: Host) -> None:
        for (peer, _, _), session in tuple(host.hub._sessions.items()):
            while (packet := session.poll_packet()) is not None:
                self._put(host.address, peer, b"".join(packet))
            if session.is_over:
                host.hub.forget(peer, session)
        while (answer := host.hub.poll_answer()) is not None:
            self._put(host.address, answer[0], b"".join(answer[1]))

    def _put(self, source: Address, target: Address, payload: bytes) -> None:
        flow = self._flows.setdefault((source, target), [])
        after = flow[-1][0] if flow else self.now_ns
        flow.append((max(after, self.now_ns + self.random.randrange(8) * MS), payload))


def views(*frames: bytes) -> list[memoryview]:
    """Return frames as a session takes them."""
    return [memoryview(frame) for frame in frames]


def taken(session: Session) -> Iterator[tuple[bytes, ...]]:
    """Read what there is."""
    while (frames := session.receive()) is not None:
        yield tuple(map(bytes, frames))
