"""The `sim` provider: adapters of one process, joined by a network in virtual time.

    network = SimNetwork(seed=7, loss=0.05)
    left, right = network.adapter("left"), network.adapter("right")

Nothing happens by itself: `wait` of an adapter, `step`, `run` and `run_until` of the network run
the clock from event to event, and computing takes no time. One seed, one run: all random numbers
come from one generator. Several threads may call; each step is taken by one of them, under the
lock that the network and all its adapters share.

A script controls single packets: `on_packet` returns the fate of each, `hold` keeps some back
and releases them in any order, `inject` sends any bytes.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from random import Random
from threading import RLock
from typing import Final, NamedTuple

from urds.common.types import BytesLike, HostPort
from urds.verbs.cm.records import CmSettings
from urds.verbs.engine.contract import EngineFactory
from urds.verbs.engine.keys import KeyTable
from urds.verbs.engine.numbers import ReceiveOrder
from urds.verbs.engine.packets import Packet, parse_packet
from urds.verbs.engine.queue_pair import LinkTraits
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.base import DeviceAttributes, PortSpace
from urds.verbs.providers.engine_adapter import EngineAdapter
from urds.verbs.providers.packet_adapter import PacketAdapter
from urds.verbs.providers.packet_connection import packed


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """One direction between two adapters. Probabilities are 0.0 to 1.0, drawn for each datagram."""

    delay_ns: int = 50_000
    jitter_ns: int = 0  # up to so much more, drawn evenly
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0  # probability of a delay four times as long: others overtake it
    corrupt: float = 0.0  # probability of one flipped bit
    is_cut: bool = False  # a partition: nothing passes

    def fate(self, data: bytes, random: Random) -> list[tuple[int, bytes]]:
        """Return what arrives of one datagram, as delays and bytes."""
        if self.is_cut or random.random() < self.loss:
            return []
        copies = 2 if random.random() < self.duplicate else 1
        return [(self._delay_ns(random), self._bytes(data, random)) for _ in range(copies)]

    def _delay_ns(self, random: Random) -> int:
        held_up = 4 * self.delay_ns if random.random() < self.reorder else 0
        return self.delay_ns + held_up + (random.randrange(self.jitter_ns + 1))

    def _bytes(self, data: bytes, random: Random) -> bytes:
        if random.random() >= self.corrupt:
            return data
        broken = bytearray(data)
        bit = random.randrange(8 * len(broken))
        broken[bit // 8] ^= 1 << bit % 8
        return bytes(broken)


class HeldPacket(NamedTuple):
    """One datagram that a script keeps back."""

    packet: Packet
    data: bytes
    source: "SimAdapter"
    target: "SimAdapter"


@dataclass(eq=False)
class PacketHold:
    """Keeps back the datagrams that `wants` selects, until they are released or it is closed.

    Copies that the sender retries are kept as well. Made by `SimNetwork.hold`.
    """

    _network: "SimNetwork" = field(repr=False)
    _wants: "Callable[[Packet, SimAdapter, SimAdapter], bool]"
    held: list[HeldPacket] = field(default_factory=list)

    def take(self, data: bytes, source: "SimAdapter", target: "SimAdapter") -> bool:
        """Keep a datagram if it is wanted. Called by the network."""
        packet = parse_packet(data, checksum=source.has_checksum)
        if not self._wants(packet, source, target):
            return False
        self.held.append(HeldPacket(packet, data, source, target))
        return True

    def release(
        self, which: Callable[[Packet], bool] = lambda _packet: True, *, delay_ns: int = 0
    ) -> int:
        """Release the held packets for which `which` is true, oldest first; return how many."""
        with self._network.lock:
            chosen = tuple(each for each in self.held if which(each.packet))
            for each in chosen:
                self.held.remove(each)
                self._network.inject(
                    each.data, source=each.source, target=each.target, delay_ns=delay_ns
                )
            return len(chosen)

    def close(self) -> None:
        """Stop holding, and release what is held."""
        self._network.end_hold(self)
        self.release()


# The longest wait without a limit: the liveness probes of peers would keep the clock running for
# ever.
PATIENCE_NS: Final = 120_000_000_000
STEPS_MAX: Final = 5_000_000  # of one wait
_PORT_FIRST: Final = 49_152
_ANY: Final = ("0.0.0.0", "::")
_LOOPBACK: Final = ("127.0.0.1", "::1")

OnPacket = Callable[[bytes, "SimAdapter", "SimAdapter"], list[tuple[int, bytes]] | None]


class SimNetwork:
    """A network of simulated adapters; the keywords are those of `LinkProfile`.

    engine: makes the engine of each adapter, for a network without loss: `urds.verbs.engine.engine`
    has the reference, `urds_native` the compiled one. Without it the queue pairs are served one by
    one, which a link with loss needs.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        mtu_bytes: int = 4096,
        lossless: bool = False,
        engine: EngineFactory | None = None,
        settings: CmSettings | None = None,
        delay_ns: int = 50_000,
        jitter_ns: int = 0,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        corrupt: float = 0.0,
    ) -> None:
        self.lock = RLock()
        self.now_ns = 0
        self.on_packet: OnPacket | None = None
        self.profile = LinkProfile(
            delay_ns=delay_ns,
            jitter_ns=jitter_ns,
            loss=loss,
            duplicate=duplicate,
            reorder=reorder,
            corrupt=corrupt,
        )
        self.datagrams_lost = 0
        self._random = Random(seed)
        self._engine = engine
        self._link = LinkTraits(mtu_bytes=mtu_bytes, lossless=lossless)
        self._settings = settings
        self._profiles: dict[tuple[SimAdapter, SimAdapter], LinkProfile] = {}
        self._adapters: dict[bytes, SimAdapter] = {}
        self._holds: list[PacketHold] = []
        self._flying: list[tuple[int, int, bytes, SimAdapter, SimAdapter]] = []
        self._numbers = count()

    # -- what there is

    def adapter(self, name: str = "", *, address: str = "") -> "SimAdapter":
        """Open one more adapter; without an address it gets the next of 10.0.0.0/16."""
        with self.lock:
            number = len(self._adapters) + 1
            address = address or f"10.0.{number >> 8}.{number & 255}"
            if packed(address) in self._adapters:
                raise OSError(errno.EADDRINUSE, f"{address} has an adapter")
            attributes = DeviceAttributes(
                name=name or f"sim{number - 1}",
                provider="sim",
                link=self._link,
                receive_order=frozenset(
                    ReceiveOrder if self._engine is None else {ReceiveOrder.IN_ORDER}
                ),
            )
            given = self, attributes, address, self._settings, self._random
            adapter: SimAdapter
            if self._engine is None:
                adapter = SimAdapter(*given)
            else:
                adapter = with_engine = SimEngineAdapter(*given)
                checksum = adapter.has_checksum
                with_engine.use(self._engine(self._link, gid=adapter.gid, checksum=checksum))
            self._adapters[adapter.gid] = adapter
            return adapter

    def profile_of(self, source: "SimAdapter", target: "SimAdapter") -> LinkProfile:
        """Return the profile of one direction."""
        return self._profiles.get((source, target), self.profile)

    def set_profile(self, source: "SimAdapter", target: "SimAdapter", profile: LinkProfile) -> None:
        """Give one direction a profile of its own."""
        with self.lock:
            self._profiles[source, target] = profile

    def cut(self, left: "SimAdapter", right: "SimAdapter", *, is_cut: bool = True) -> None:
        """Partition two adapters, both ways, or with `is_cut` false join them again."""
        for source, target in ((left, right), (right, left)):
            changed = replace(self.profile_of(source, target), is_cut=is_cut)
            self.set_profile(source, target, changed)

    def kill(self, adapter: "SimAdapter") -> None:
        """Silence an adapter at once, as a killed process is."""
        with self.lock:
            adapter.is_killed = True

    def hold(self, wants: "Callable[[Packet, SimAdapter, SimAdapter], bool]") -> PacketHold:
        """Keep back the datagrams for which `wants(packet, source, target)` is true."""
        hold = PacketHold(self, wants)
        with self.lock:
            self._holds.append(hold)
        return hold

    def end_hold(self, hold: PacketHold) -> None:
        """Remove `hold`."""
        with self.lock:
            self._holds = [*(each for each in self._holds if each is not hold)]

    # -- datagrams

    def send(self, data: bytes, *, source: "SimAdapter", destination: AddressVector) -> None:
        """Send a datagram, which may be lost. Lock held."""
        target = self._adapters.get(destination.dgid)
        if target is None or source.is_killed:
            self.datagrams_lost += 1
            return
        if any(hold.take(data, source, target) for hold in self._holds):
            return
        fates = self.on_packet(data, source, target) if self.on_packet else None
        if fates is None:
            fates = self.profile_of(source, target).fate(data, self._random)
        self.datagrams_lost += not fates
        for delay_ns, arriving in fates:
            self.inject(arriving, source=source, target=target, delay_ns=delay_ns)

    def inject(
        self, data: bytes, *, source: "SimAdapter", target: "SimAdapter", delay_ns: int = 0
    ) -> None:
        """Deliver bytes at `target` after `delay_ns`, without loss. Lock held."""
        arrival = (self.now_ns + delay_ns, next(self._numbers), data, source, target)
        heappush(self._flying, arrival)

    # -- time

    def step(self) -> bool:
        """Run the clock to the next event and process it; false if nothing can happen any more."""
        with self.lock:
            deadline_ns = self._next_ns()
            if deadline_ns is None:
                return False
            self.now_ns = max(self.now_ns, deadline_ns)
            if self._flying and self._flying[0][0] <= self.now_ns:
                _, _, data, source, target = heappop(self._flying)
                target.deliver(data, source)
            else:
                for adapter in self._live():
                    adapter.run_due()
            return True

    def run(self, for_ns: int | None = None) -> None:
        """Run until nothing happens any more, or for a time; never beyond `PATIENCE_NS`."""
        self.run_until(lambda: False, for_ns)

    def run_until(self, is_ready: Callable[[], bool], timeout_ns: int | None = None) -> bool:
        """Run until `is_ready()` (called with the lock held) or the time is over.

        Returns the last result of `is_ready`. With a limit the clock stands there at the end;
        without one this ends when nothing can happen any more, or after `PATIENCE_NS`.
        """
        with self.lock:
            end_ns = self.now_ns + (PATIENCE_NS if timeout_ns is None else timeout_ns)
        for _ in range(STEPS_MAX):
            with self.lock:
                if is_ready():
                    return True
                next_ns = self._next_ns()
                if next_ns is None or next_ns > end_ns:
                    break
                self.step()
        with self.lock:
            if timeout_ns is not None:
                self.now_ns = max(self.now_ns, end_ns)
            return is_ready()

    def _next_ns(self) -> int | None:
        times = [adapter.deadline_ns() for adapter in self._live()]
        if self._flying:
            times.append(self._flying[0][0])
        return min((each for each in times if each is not None), default=None)

    def _live(self) -> "list[SimAdapter]":
        return [each for each in self._adapters.values() if not each.is_killed]

    def forget(self, adapter: "SimAdapter") -> None:
        """Deliver nothing more to an adapter that is closed. Lock held."""
        self._adapters.pop(adapter.gid, None)


class SimAdapter(PacketAdapter):
    """One adapter of a `SimNetwork`. Made by `SimNetwork.adapter`."""

    has_checksum = True
    has_own_time = False

    def __init__(
        self,
        network: SimNetwork,
        attributes: DeviceAttributes,
        address: str,
        settings: CmSettings | None,
        rng: Random,
    ) -> None:
        super().__init__(
            attributes, gid=packed(address), rng=rng, settings=settings, lock=network.lock
        )
        self.keys = KeyTable()  # they count up: a run depends on its seed alone
        self.network = network
        self.address = address
        self.is_killed = False
        self._ports = count(_PORT_FIRST)

    @property
    def name(self) -> str:
        """Return the device's name."""
        return self.attributes.name

    # -- time and progress

    def now_ns(self) -> int:
        """Return the network's clock."""
        return self.network.now_ns

    def progress(self) -> None:
        """Take one step of the network: a caller that polls in a loop moves the clock."""
        self.network.step()

    def wait(self, is_ready: Callable[[], bool], timeout_ns: int | None) -> bool:
        """Run the network until `is_ready()`. See `SimNetwork.run_until`."""
        return self.network.run_until(is_ready, timeout_ns)

    def close(self) -> None:
        """Disconnect and leave the network."""
        with self.lock:
            if not self.is_closed:
                self._disconnect_all()
                self.network.forget(self)

    # -- calls of the network, lock held

    def deliver(self, data: bytes, source: "SimAdapter") -> None:
        """Process one datagram."""
        if not (self.is_killed or self.is_closed):
            with self.flushing, self.batch:
                self._receive(data, AddressVector(source.gid))

    def run_due(self) -> None:
        """Run the timers that are due."""
        deadline_ns = self.deadline_ns()
        if deadline_ns is not None and deadline_ns <= self.now_ns():
            with self.flushing, self.batch:
                self._run_timers(self.now_ns())

    # -- hooks

    def _transmit(self, destination: AddressVector, parts: Sequence[BytesLike]) -> None:
        self.network.send(b"".join(parts), source=self, destination=destination)

    def _resolve(
        self, peer: HostPort, local: HostPort | None, space: PortSpace
    ) -> tuple[AddressVector | None, HostPort]:
        own = self._claim(local or (self.address, 0), space)
        host = self.address if own[0] in _ANY else own[0]
        try:
            route = self.gid if peer[0] in _LOOPBACK else packed(peer[0])
        except ValueError as error:
            raise OSError(errno.EINVAL, str(error)) from None
        return AddressVector(route), (host, own[1])

    def _claim(self, local: HostPort, space: PortSpace) -> HostPort:
        host, port = local
        if host not in (self.address, *_ANY, *_LOOPBACK):
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not {self.name}'s address")
        return host, port or next(self._ports)

    def _release(self, local: HostPort, space: PortSpace) -> None:
        pass


class SimEngineAdapter(EngineAdapter, SimAdapter):
    """An adapter of a `SimNetwork` whose queue pairs are an engine's."""
