"""Datagram sockets in virtual time: three hosts, a UDP network, devices with look-ups, restarts.

Everything that goes between hosts may be lost, repeated, delayed and overtaken: datagrams by UDP,
datagrams by queue pair, look-ups. A host that starts anew has a new opening, and of its queue pair
numbers it may get the old ones again. Unknown peers send bytes of any kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random

from urds.common.types import HostPort
from urds.rsocket.core.datagram import (
    ByQueuePair,
    ByUdp,
    DatagramCore,
    DatagramSettings,
    DestinationState,
    LocalDevice,
    LookUp,
    QueuePairAddress,
)

MS = 1_000_000
SECOND = 1_000 * MS
STEP_NS = 100 * MS  # between two datagrams of one flow
HEALED_NS = 75 * SECOND  # longer than the longest pause between look-ups
LAST_NS = 3 * SECOND  # in which all is judged
UNKNOWN_PEER: HostPort = ("127.9.9.9", 9)
KINDS = (("shm", "tcp"), ("tcp", "udp"), ("shm", "udp", "tcp"))
# Which host sends to which: 0 and 1 talk, to 2 both only send, and 2 says nothing.
FLOWS = ((0, 1), (1, 0), (0, 2), (1, 2))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a queue pair is: what a vector names. A host that has died is none."""

    host: int
    lifecycle: int
    kind: str


class Host:
    """One host with one socket, started as often as it likes."""

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index
        self.address: HostPort = (f"127.0.0.{index + 1}", 5000 + index)
        self.lifecycle = 0
        self.lives: list[DatagramCore] = []
        self.start()

    def start(self) -> None:
        """Begin a life; the one before knows nothing of it."""
        self.lifecycle += 1
        rng = self.world.random
        self.bind_id = rng.randbytes(8)
        # Some devices count queue pairs from the same number in each life.
        first = 16 if rng.random() < 0.5 else rng.randrange(16, 1 << 24)
        self.devices = [
            LocalDevice(kind, rng.randrange(1024, 65536), first + number, 4096)
            for number, kind in enumerate(KINDS[self.index])
        ]
        settings = DatagramSettings(receive_slots=1024, destinations_max=2)
        self.core = DatagramCore(
            settings, local=self.address, devices=self.devices, bind_id=self.bind_id
        )
        self.lives.append(self.core)

    def find(self, kind: str, port: int, bind_id: bytes) -> LocalDevice | None:
        """Return what a look-up at a port finds."""
        for device in self.devices:
            if (device.provider, device.port, self.bind_id) == (kind, port, bind_id):
                return device
        return None


class World:
    """The hosts, and what is on its way between them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ns = 100 * SECOND
        self.trouble = 0.0  # how much of what is on its way gets lost, and as much is repeated
        self.hosts = [Host(self, index) for index in range(3)]
        self.sent: dict[bytes, tuple[HostPort, int]] = {}  # payload to its sender and receiver
        self.received: Counter[bytes] = Counter()
        self.device_ports: Counter[tuple[int, int, str]] = Counter()
        self._numbers = count()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []

    # -- the run

    def run(self, *, trouble: float, restarts: int) -> None:
        """Run with trouble, heal, and judge. Raises AssertionError, which names the seed."""
        self.trouble = trouble
        for _ in range(100):
            self._step(restart_chance=restarts / 100)
        self.trouble = 0.0
        self._turn_for(HEALED_NS)
        self.device_ports.clear()
        last = self._turn_for(LAST_NS)
        self._advance(10 * SECOND)
        self._judge(last)

    def _turn_for(self, duration_ns: int) -> list[bytes]:
        sent: list[bytes] = []
        for _ in range(duration_ns // STEP_NS):
            sent += self._step(restart_chance=0.0)
        return sent

    def _step(self, *, restart_chance: float) -> list[bytes]:
        """Have each flow send one datagram, let some time pass, restart a host or not."""
        sent = [self._send(source, target) for source, target in FLOWS]
        if self.trouble and self.random.random() < 0.2:
            self._say_something_strange()
        if self.random.random() < restart_chance:
            self.random.choice(self.hosts).start()
        self._advance(STEP_NS)
        return sent

    def _judge(self, last: list[bytes]) -> None:
        lost = [payload for payload in last if not self.received[payload]]
        assert not lost, f"seed {self.seed}: {len(lost)} of {len(last)} lost in a whole network"
        for source, target in FLOWS:
            state = self.hosts[source].core.state_of(self.hosts[target].address)
            assert state is DestinationState.BY_QUEUE_PAIR, f"seed {self.seed}: {source}: {state}"
            by_udp = self.device_ports[source, target, "udp"]
            assert by_udp <= LAST_NS // SECOND + 1, f"seed {self.seed}: {by_udp} by UDP"

    # -- datagrams

    def _send(self, source: int, target: int) -> bytes:
        host, address = self.hosts[source], self.hosts[target].address
        number = len(self.sent)
        payload = bytes([source, target]) + number.to_bytes(4, "big")
        payload += bytes(self.random.randrange(64))
        self.sent[payload] = (host.address, target)
        if not host.core.knows(address):
            host.core.add_destination(address, host.address[0])
        what = host.core.send(payload, address, self.now_ns)
        self.device_ports[source, target, "udp" if isinstance(what, ByUdp) else "queue pair"] += 1
        self._post_pending(host, what)
        self._serve(host)
        return payload

    def _post_pending(self, host: Host, what: ByUdp | ByQueuePair | None) -> None:
        if isinstance(what, ByUdp):
            data, target, source = what.data, what.target, host.address
            self._on_the_way(lambda: self._arrive_by_udp(data, source, target))
        elif isinstance(what, ByQueuePair):
            qp_address, data = what.qp_address, what.data
            self._on_the_way(lambda: self._arrive_at_queue_pair(qp_address, data))

    def _arrive_by_udp(self, data: bytes, source: HostPort, target: HostPort) -> None:
        for host in self.hosts:
            if host.address == target:
                self._post_pending(host, host.core.receive_udp(data, source, self.now_ns))
                self._serve(host)
                self._take(host)

    def _arrive_at_queue_pair(self, qp_address: QueuePairAddress, data: bytes) -> None:
        place: Place = qp_address.vector
        host = self.hosts[place.host]
        numbers = {device.provider: device.qpn for device in host.devices}
        if place.lifecycle == host.lifecycle and numbers[place.kind] == qp_address.qpn:
            host.core.receive_queue_pair(data)
            self._take(host)

    def _take(self, host: Host) -> None:
        """Have the application receive: what it gets was sent to it, by who is named."""
        while (datagram := host.core.receive()) is not None:
            payload, source = datagram
            if source == UNKNOWN_PEER:
                continue
            sender, target = self.sent.get(payload, (None, None))
            assert (source, host.index) == (sender, target), f"seed {self.seed}: {payload!r}"
            self.received[payload] += 1

    def _say_something_strange(self) -> None:
        """Send bytes of any kind, or a control message that is none of the host's business."""
        host = self.random.choice(self.hosts)
        data = bytearray(self.random.randbytes(self.random.randrange(80)))
        if self.random.random() < 0.7:
            data[:8] = (
                b"UUUU\x04\x07\x10\x00" if self.random.random() < 0.5 else b"UUUU\x04\0\x10\0"
            )
        self._arrive_by_udp(bytes(data), UNKNOWN_PEER, host.address)

    # -- look-ups

    def _serve(self, host: Host) -> None:
        while (event := host.core.poll_event()) is not None:
            if isinstance(event, LookUp):
                self._look_up(host, host.core, event)

    def _look_up(self, host: Host, core: DatagramCore, event: LookUp) -> None:
        kind = host.devices[event.device].provider
        found = self._find(kind, event)
        if found is None or self.random.random() < self.trouble:
            delay_ns = 2 * SECOND if found is not None else self.random.randrange(MS)
            self._at(delay_ns, lambda: self._answer(host, core, event, None))
        else:
            delay_ns = self.random.randrange(30 * MS)
            self._at(delay_ns, lambda: self._answer(host, core, event, found))

    def _find(self, kind: str, event: LookUp) -> tuple[Place, int] | None:
        for other in self.hosts:
            device = other.find(kind, event.peer[1], event.bind_id)
            if other.address[0] == event.peer[0] and device is not None:
                return Place(other.index, other.lifecycle, kind), device.qpn
        return None

    def _answer(
        self, host: Host, core: DatagramCore, event: LookUp, found: tuple[Place, int] | None
    ) -> None:
        if core is not host.core:
            return  # who asked is dead
        if found is None:
            core.handle_not_found(event.token, self.now_ns)
        else:
            place, qpn = found
            qp_address = QueuePairAddress(event.device, place, qpn, 0x01234567)
            core.handle_found(event.token, qp_address)
        self._serve(host)

    # -- time

    def _on_the_way(self, arrive: Callable[[], None]) -> None:
        copies = 1
        if self.random.random() < self.trouble:
            copies = 0
        elif self.random.random() < self.trouble:
            copies = 2
        for _ in range(copies):
            longest_ns = 300 * MS if self.random.random() < self.trouble else 2 * MS
            self._at(self.random.randrange(longest_ns), arrive)

    def _at(self, delay_ns: int, call: Callable[[], None]) -> None:
        heappush(self._agenda, (self.now_ns + delay_ns, next(self._numbers), call))

    def _advance(self, duration_ns: int) -> None:
        end_ns = self.now_ns + duration_ns
        while self._agenda and self._agenda[0][0] <= end_ns:
            self.now_ns, _, call = heappop(self._agenda)
            call()
        self.now_ns = end_ns
