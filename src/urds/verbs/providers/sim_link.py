"""The fate of datagrams in a simulated network: delay, loss, repeats, reordering, broken bits."""

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from urds.verbs.engine.packet_codec import parse_packet
from urds.verbs.engine.packets import Packet

if TYPE_CHECKING:
    from collections.abc import Callable

    from urds.verbs.providers.sim import SimAdapter, SimNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """One direction between two adapters. Chances are 0.0 to 1.0, drawn for each datagram."""

    delay_ns: int = 50_000
    jitter_ns: int = 0  # up to so much more, drawn evenly
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0  # chance to be held up by four delays: others overtake it
    corrupt: float = 0.0  # chance of one flipped bit
    is_cut: bool = False  # a partition: nothing passes

    def fate(self, octets: bytes, random: Random) -> list[tuple[int, bytes]]:
        """Return what arrives of one datagram, as delays and octets."""
        if self.is_cut or random.random() < self.loss:
            return []
        copies = 2 if random.random() < self.duplicate else 1
        return [(self._delay_ns(random), self._octets(octets, random)) for _ in range(copies)]

    def _delay_ns(self, random: Random) -> int:
        held_up = 4 * self.delay_ns if random.random() < self.reorder else 0
        return self.delay_ns + held_up + (random.randrange(self.jitter_ns + 1))

    def _octets(self, octets: bytes, random: Random) -> bytes:
        if random.random() >= self.corrupt:
            return octets
        broken = bytearray(octets)
        bit = random.randrange(8 * len(broken))
        broken[bit // 8] ^= 1 << bit % 8
        return bytes(broken)


class HeldPacket(NamedTuple):
    """One datagram that a script keeps back."""

    packet: Packet
    octets: bytes
    source: "SimAdapter"
    target: "SimAdapter"


class Hold:
    """Keeps back the datagrams that `wants` names, until they are released or it is closed.

    Copies that the sender repeats are kept as well. Made by `SimNetwork.hold`.
    """

    def __init__(
        self,
        network: "SimNetwork",
        wants: "Callable[[Packet, SimAdapter, SimAdapter], bool]",
    ) -> None:
        self.held: list[HeldPacket] = []
        self._network = network
        self._wants = wants

    def take(self, octets: bytes, source: "SimAdapter", target: "SimAdapter") -> bool:
        """Keep a datagram if it is wanted. Called by the network."""
        packet = parse_packet(octets, checksum=source.has_checksum)
        if not self._wants(packet, source, target):
            return False
        self.held.append(HeldPacket(packet, octets, source, target))
        return True

    def release(
        self, which: "Callable[[Packet], bool]" = lambda _packet: True, *, delay_ns: int = 0
    ) -> int:
        """Let the held packets go for which `which` is true, oldest first; return how many."""
        with self._network.lock:
            chosen = tuple(each for each in self.held if which(each.packet))
            for each in chosen:
                self.held.remove(each)
                self._network.inject(
                    each.octets, source=each.source, target=each.target, delay_ns=delay_ns
                )
            return len(chosen)

    def close(self) -> None:
        """Keep nothing back any more, and release what is held."""
        self._network.end_hold(self)
        self.release()
