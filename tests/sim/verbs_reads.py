"""Long reads over a bad link from a peer that takes repeats as soft-RoCE of Linux does.

It remembers each READ_REQUEST as it was carried out first, and drops without an answer a repeat
that does not lie inside one of them. Source: measured with Linux 6.1 and 7.3.
"""

import random

from tests.sim.verbs_pair import MTU_BYTES, Pair, Side
from urds.verbs.engine.numbers import WCStatus, WROpcode
from urds.verbs.engine.packets import Packet, PacketKind
from urds.verbs.engine.requests import READ_PORTION_PACKETS
from urds.verbs.engine.responder import Responder, psn_count

READS = 3
READ_BYTES = (3 * READ_PORTION_PACKETS + 8) * MTU_BYTES - 5
STEPS_BAD = 400


class StrictResponder(Responder):
    """A responder that carries a read out again only inside one request."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]  # those of the engine's own
        self.requests: list[tuple[int, int]] = []

    def _carry_out(self, packet: Packet) -> None:
        psn = self._expected
        super()._carry_out(packet)
        if packet.kind is PacketKind.READ_REQUEST:
            self.requests.append((psn, self._expected))

    def _handle_duplicate(self, packet: Packet, psn: int) -> None:
        end = psn + psn_count(packet, self._qp.link, self._qp.mtu_bytes)
        is_inside = any(first <= psn and end <= last for first, last in self.requests)
        if packet.kind is not PacketKind.READ_REQUEST or is_inside:
            super()._handle_duplicate(packet, psn)


class World:
    """One side that reads from a strict one."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = rng = random.Random(seed)
        self.burst = 0  # answers still to be lost
        memory: dict[str, object] = {"memory_bytes": READS * READ_BYTES}
        self.pair = Pair(
            seed=seed, loss=rng.choice([0.0, 0.05]), names_places=False, a=memory, b=memory
        )
        self.pair.on_packet = self.lose
        side = self.pair.b
        side.memory[:] = rng.randbytes(len(side.memory))
        side.qp._responder = StrictResponder(side.qp, side.qp._incoming, 100)

    def lose(self, packet: Packet, source: Side) -> list[int] | None:
        """Lose answers in bursts, as a full buffer does: some lie across two portions."""
        if packet.kind is not PacketKind.READ_RESPONSE:
            return None
        if self.burst:
            self.burst -= 1
            return []
        self.burst = self.random.choice([0] * 40 + [1, 2, 8])
        return None

    def run(self) -> None:
        """Read everything; the link is whole after a while."""
        pair = self.pair
        for number in range(READS):
            place = number * READ_BYTES
            pair.a.remote(
                number, WROpcode.RDMA_READ, pair.b, at=place, offset=place, length=READ_BYTES
            )
        for _ in range(STEPS_BAD):
            pair.step()
        pair.loss, pair.on_packet = 0.0, lambda packet, source: None
        pair.run()
        ends = [(wc.wr_id, wc.status) for wc in pair.a.sent()]
        assert ends == [(n, WCStatus.SUCCESS) for n in range(READS)], f"seed {self.seed}: {ends}"
        assert pair.a.memory == pair.b.memory, f"seed {self.seed}: other bytes"
