"""Random lives of endpoints on a bad network: whatever a program calls, the rules hold.

After each call the counts of the shared queue and its endpoints fit together, and each attempt to
connect ends in exactly one event. Nothing raises but DAT errors.
Source: docs/reference/dat.md 4.3, 12.1.
"""

from collections import Counter
from random import Random

import pytest

from tests.dat.scene import MESSAGE_BYTES, PACKET_BYTES, SECOND_NS, drain
from urds import dat
from urds.verbs.engine.numbers import ReceiveOrder
from urds.verbs.providers.sim import SimNetwork

QUAL = 4000
STEPS = 400
SEEDS = 12
ENDPOINTS = 3
SRQ_DEPTH = 64
ACTIONS = {
    "connect": 4, "answer": 5, "send": 10, "give": 4, "take": 4, "disconnect": 1, "graceful": 1,
    "reset": 4, "free": 1, "mark": 1, "low": 1, "write": 1,
}  # fmt: skip
State = dat.EpState
ESTABLISHED = dat.EventNumber.CONNECTION_ESTABLISHED


class Side:
    """One adapter that listens, with endpoints on a shared queue; it does things at random."""

    def __init__(self, network: SimNetwork, name: str, random: Random) -> None:
        self.random = random
        adapter = network.adapter(name)
        receive_order = random.choice([ReceiveOrder.ARRIVAL_ORDER, ReceiveOrder.FILL_GAPS])
        support = dat.Support(receive_order=receive_order)
        self.ia = dat.InterfaceAdapter(name, adapter, address=adapter.address, support=support)
        self.pz = self.ia.create_pz()
        self.piece = [self.pz.register(bytearray(MESSAGE_BYTES)).triplet()]
        self.srq = self.pz.create_srq(SRQ_DEPTH)
        self.recv = self.ia.create_evd(SRQ_DEPTH, dat.EvdFlag.DTO)
        self.request = self.ia.create_evd(2000, dat.EvdFlag.DTO)
        self.requests = self.ia.create_evd(4, dat.EvdFlag.CR)
        self.ia.listen(QUAL, evd=self.requests)
        self.connections = self.ia.create_evd(100, dat.EvdFlag.CONNECTION)
        self.established = 0
        # Of the life of an endpoint since it was UNCONNECTED: its events.
        self.lives: dict[dat.Endpoint, list[dat.EventNumber]] = {}
        for _ in range(ENDPOINTS):
            self.make()

    def make(self) -> None:
        """Make one more endpoint."""
        attr = dat.EpAttr(max_recv_dtos=dat.DAT_HW_DEFAULT, max_request_dtos=8)
        ep = self.pz.create_ep(self.recv, self.request, self.connections, attr, self.srq)
        self.lives[ep] = []

    def act(self, other: "Side") -> str:
        """Do one thing; return what."""
        ep = self.random.choice(list(self.lives))
        (action,) = self.random.choices(list(ACTIONS), ACTIONS.values())
        try:
            self.do(action, ep, other)
        except (dat.DatInvalidState, dat.DatInsufficientResources):
            return f"{action} refused"
        return action

    def do(self, action: str, ep: dat.Endpoint, other: "Side") -> None:
        """Do a thing to an endpoint."""
        random = self.random
        if action == "connect":
            timeout_s = random.choice([None, 0.001, 1.0])
            ep.connect(other.ia.address, QUAL, timeout_s=timeout_s)
        elif action == "answer":
            self.answer(ep)
        elif action == "send":
            ep.post_send(self.piece if random.random() < 0.8 else [])
        elif action == "write":
            ep.post_rdma_write(self.piece, dat.RmrTriplet(0xBAD, 0, MESSAGE_BYTES))
        elif action == "give":
            for _ in range(random.randrange(8)):
                self.srq.post_recv(self.piece)
        elif action == "take":
            drain(self.recv)
            drain(self.request)
        elif action in ("disconnect", "graceful"):
            ep.disconnect(graceful=action == "graceful")
        elif action == "reset":
            self.settle_life(ep)
            ep.reset()
        elif action == "free":
            ep.free()
            del self.lives[ep]
            self.note_events()
            self.make()
        elif action == "mark":
            ep.set_watermark(random.choice([None, 1, 3]), random.choice([None, None, 2, 5]))
        else:
            self.srq.set_low_watermark(random.randrange(10))

    def answer(self, ep: dat.Endpoint) -> None:
        """Accept or reject a request that waits."""
        event = self.requests.dequeue()
        if event is None:
            return
        if ep.state is State.UNCONNECTED and self.random.random() < 0.8:
            event.cr.accept(ep)
        else:
            event.cr.reject()

    def note_events(self) -> None:
        """Give the events that are queued to the lives that they are of."""
        for event in drain(self.connections):
            self.established += event.event_number is ESTABLISHED
            if event.ep in self.lives:
                self.lives[event.ep].append(event.event_number)

    def settle_life(self, ep: dat.Endpoint) -> None:
        """Fail unless the life of an endpoint that is over had one end; begin a new one."""
        self.note_events()
        if ep.state is State.DISCONNECTED:
            events = self.lives[ep]
            assert len(events) == 1 + (events[0] is ESTABLISHED), events
            assert events[-1] is not ESTABLISHED, events
            self.lives[ep] = []

    def check(self) -> None:
        """Fail unless the counts fit together."""
        param = self.srq.query()
        infos = {ep: ep.recv_query() for ep in self.lives}
        for ep, (count, span) in infos.items():
            assert 0 <= count <= span or count == span == 0, (count, span)
            if ep.state not in (
                State.CONNECTED,
                State.DISCONNECT_PENDING,
                State.COMPLETION_PENDING,
            ):
                assert (count, span) == (0, 0), ep.state
        available, outstanding = param.available_dto_count, param.outstanding_dto_count
        held = sum(count for count, _ in infos.values())
        assert available <= outstanding == available + held + len(self.recv) <= SRQ_DEPTH


@pytest.mark.rule("dat-span-at-least-count", "dat-allocated-completes")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_lives(seed: int) -> None:
    random = Random(seed)
    network = SimNetwork(
        seed, mtu_bytes=PACKET_BYTES, loss=0.05, reorder=0.1, duplicate=0.02, jitter_ns=30_000
    )
    sides = Side(network, "left", random), Side(network, "right", random)
    done: Counter[str] = Counter()
    for _ in range(STEPS):
        index = random.randrange(2)
        done[sides[index].act(sides[1 - index])] += 1
        network.run(for_ns=random.choice([0, 1_000, 100_000, 1_000_000, 50_000_000]))
        for side in sides:
            side.check()
    network.run(for_ns=200 * SECOND_NS)
    for side in sides:
        for ep in list(side.lives):
            if ep.state in (
                State.CONNECTED,
                State.DISCONNECT_PENDING,
                State.ACTIVE_CONNECTION_PENDING,
            ):
                ep.disconnect()
            side.settle_life(ep)
            ep.free()
        drain(side.recv)
        left = side.srq.query()
        assert left.available_dto_count == left.outstanding_dto_count
        side.srq.free()
        side.ia.close()
    assert done["send"] > 5 and all(side.established for side in sides), done
