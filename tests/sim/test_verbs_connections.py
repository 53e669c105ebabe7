"""Connections of queue pairs over a bad network: both sides agree, work arrives, all of it ends.

Safety at each step, liveness in the end, the seed in each message. At the end of the file rules
are broken on purpose, and a seed turns red for each.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.verbs.pair import ENDS, End, bytes_of
from urds.verbs import Context, QPState, RecvWR, WCStatus
from urds.verbs.cm.core import CmCore
from urds.verbs.cm.records import CmState, PeerMonitor
from urds.verbs.providers import packet_connection
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
    VerbsConnectionEvent,
)
from urds.verbs.providers.packet_connection import connect_queue_pair
from urds.verbs.providers.sim import SimAdapter, SimNetwork

pytestmark = pytest.mark.sim

PORT = 5000
PAIRS = 4
MESSAGES = 8
LENGTH = 600
SEEDS = 50
SEEDS_BROKEN_MAX = 60
SECOND_NS = 1_000_000_000
REQUEST, ESTABLISHED = ConnectionEventKind.REQUEST, ConnectionEventKind.ESTABLISHED
DISCONNECTED, BROKEN = ConnectionEventKind.DISCONNECTED, ConnectionEventKind.BROKEN


class Simulation:
    """Some queue pairs on two adapters, a listener that says yes, later, or no, and faults."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.network = SimNetwork(
            seed, loss=0.1, duplicate=0.1, reorder=0.2, corrupt=0.03, jitter_ns=30_000
        )
        adapters = [self.network.adapter(name) for name in ("left", "right")]
        self.left_adapter, self.right_adapter = adapters
        contexts = [Context(adapter=adapter) for adapter in adapters]
        self.lefts = [End(contexts[0], depth=32) for _ in range(PAIRS)]
        self.rights = [End(contexts[1], depth=32) for _ in range(PAIRS)]
        self.contexts = contexts
        self.waiting: list[tuple[int, End, VerbsConnectionEvent]] = []
        self.rejected = 0
        self.requests = 0

    def run(self) -> None:
        """Connect, work, leave, and judge."""
        self.connect()
        pairs = self.pairs()
        for left, right in pairs:
            self.work(left, right)
            self.work(right, left)
        if self.seed % 5 == 4:
            self.kill(pairs)
        else:
            self.leave(pairs)
        self.judge()
        for context in self.contexts:
            context.close()

    # -- steps

    def begin(self) -> None:
        """Let every left end ask."""
        with self.network.lock:
            self.right_adapter.listen(
                (self.right_adapter.address, PORT),
                PortSpace.TCP,
                backlog=PAIRS,
                on_event=self.asked,
            )
        for left in self.lefts:
            left.connect((self.right_adapter.address, PORT))

    def connect(self) -> None:
        """Let every left end ask; the rights answer in their own time."""
        self.begin()
        for _ in range(200):
            self.network.run(SECOND_NS // 10)
            self.answer()
            self.check(len(self.rejected_ends()) <= self.rejected, "rejected by no peer")
        for left in self.lefts:
            self.check(bool(left.events), "a connect without an answer")

    def asked(self, event: VerbsConnectionEvent) -> None:
        """Take a request: each is a new one, and there are no more than asked for."""
        self.check(event.kind is REQUEST, f"a listener hears {event.kind}")
        self.requests += 1
        self.check(self.requests <= PAIRS, "a request that was not made")
        right = self.rights[self.requests - 1]
        right.connection = event.connection
        event.connection.on_event = right.take
        when_ns = self.network.now_ns + self.random.choice([0, 0, 3 * SECOND_NS])
        self.waiting.append((when_ns, right, event))

    def answer(self) -> None:
        """Accept or reject what has waited long enough."""
        due = [each for each in self.waiting if each[0] <= self.network.now_ns]
        self.waiting = [each for each in self.waiting if each not in due]
        for _, right, event in due:
            if right.events:
                continue  # it was given up meanwhile
            with self.network.lock:
                if self.random.random() < 0.2:
                    self.rejected += 1
                    event.connection.reject(b"no")
                else:
                    event.connection.accept(right.qp.engine, ConnectParameters(b"yes"))

    def work(self, sender: End, receiver: End) -> None:
        """Send messages, some of them before there is a receive for them."""
        before = self.random.randrange(MESSAGES + 1)
        receiver.post_receives(before, LENGTH)
        for number in range(MESSAGES):
            sender.send(number, bytes_of(number, LENGTH), base=1 << 19)
        self.network.run(2_000_000)
        for number in range(before, MESSAGES):
            piece = receiver.mr.sge(number * LENGTH, LENGTH)
            receiver.qp.post_recv(RecvWR(number, [piece]))
        sent = sender.cq.wait_for(MESSAGES, 60.0)
        self.check(all(wc.status is WCStatus.SUCCESS for wc in sent), f"sent {sent}")
        received = receiver.cq.wait_for(MESSAGES, 60.0)
        self.check([wc.wr_id for wc in received] == list(range(MESSAGES)), f"order {received}")
        for number in range(MESSAGES):
            data = receiver.mr.read(LENGTH, number * LENGTH)
            self.check(data == bytes_of(number, LENGTH), f"bytes of message {number}")

    def leave(self, pairs: list[tuple[End, End]]) -> None:
        """End each connection from one side, or from both at once."""
        for left, right in pairs:
            for end in self.random.choice([(left,), (right,), (left, right)]):
                end.disconnect()
        self.network.run(30 * SECOND_NS)
        for left, right in pairs:
            for end in (left, right):
                self.check(end.kinds[-1] is DISCONNECTED, f"left with {end.events[-1]}")

    def kill(self, pairs: list[tuple[End, End]]) -> None:
        """Kill one side: the other learns of it in bounded time."""
        self.network.kill(self.right_adapter)
        self.network.run(15 * SECOND_NS)
        for left, right in pairs:
            self.check(left.kinds[-1] is BROKEN, f"a dead peer left {left.events[-1]}")
            right.disconnect()

    # -- judgement

    def pairs(self) -> list[tuple[End, End]]:
        """Return which side is connected with which: both must say the same."""
        found = []
        for left in self.lefts:
            if ESTABLISHED not in left.kinds or left.kinds[-1] in ENDS:
                continue
            rights = [
                right for right in self.rights
                if right.qp.qp_num == left.qp.engine.attr.dest_qp_num
            ]  # fmt: skip
            self.check(len(rights) == 1, f"connected with {len(rights)} queue pairs")
            right = rights[0]
            self.check(ESTABLISHED in right.kinds, f"the other side has {right.events}")
            self.check(right.qp.engine.attr.dest_qp_num == left.qp.qp_num, "crossed")
            found.append((left, right))
        return found

    def rejected_ends(self) -> list[End]:
        """Return who was told no."""
        return [left for left in self.lefts if ConnectionEventKind.REJECTED in left.kinds]

    def judge(self) -> None:
        """Look at what was told to each, and at what is left."""
        for end in self.lefts + self.rights:
            kinds = end.kinds
            self.check(kinds.count(ESTABLISHED) <= 1, f"established twice: {kinds}")
            ends = [kind for kind in kinds if kind in ENDS]
            self.check(len(ends) <= 1, f"ended twice: {kinds}")
            self.check(not ends or kinds[-1] in ENDS, f"told after the end: {kinds}")
            connected = (QPState.RTR, QPState.RTS)
            self.check(not ends or end.qp.qp_state not in connected, "connected after the end")
        self.network.run(15 * SECOND_NS)
        for adapter in (self.left_adapter, self.right_adapter):
            if not adapter.is_killed:
                left_over = adapter.cm._connections
                self.check(not left_over, f"{adapter.name} keeps {left_over}")

    def check(self, holds: bool, words: str) -> None:
        """Fail with the seed."""
        assert holds, f"seed {self.seed}: {words}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_connections_hold_over_a_bad_network(seed: int) -> None:
    Simulation(seed).run()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_peer_killed_at_any_point_is_noticed(seed: int) -> None:
    """Also in the middle of the handshake: each side that asked or was asked hears an end."""
    simulation = Simulation(seed)
    random = Random(f"kill {seed}")
    simulation.begin()
    simulation.network.run(random.randrange(1_000, 400_000_000))
    simulation.answer()
    victims = [simulation.left_adapter, simulation.right_adapter]
    victim = random.choice(victims)
    simulation.network.kill(victim)
    survivors = simulation.rights if victim is victims[0] else simulation.lefts
    for end in survivors:
        if end.qp.qp_state is QPState.RTS:
            end.send(0, bytes_of(0, LENGTH))
    simulation.network.run(60 * SECOND_NS)
    simulation.answer()
    simulation.network.run(60 * SECOND_NS)
    for end in survivors:
        if end.connection is not None and end.events:
            simulation.check(end.kinds[-1] in ENDS, f"heard {end.events[-1]}")
        simulation.check(end.qp.qp_state is not QPState.RTS, "sends to a dead peer")
    simulation.judge()


# -- rules broken on purpose

Patch = Callable[[pytest.MonkeyPatch], None]


def forget_requests(patch: pytest.MonkeyPatch) -> None:
    """Take a late duplicate of a request for a new one."""
    patch.setattr(CmCore, "_remember", lambda *_: None)


def answer_requests_once(patch: pytest.MonkeyPatch) -> None:
    """Make another connection of a request that is repeated while the owner thinks."""
    original = CmCore._receive_request

    def broken(self: Any, message: Any, *rest: Any) -> None:
        self._requests.pop((message.context_guid, message.local_id), None)
        original(self, message, *rest)

    patch.setattr(CmCore, "_receive_request", broken)


def confirm_once(patch: pytest.MonkeyPatch) -> None:
    """Confirm a reply once, whatever is lost, and let data establish nothing."""
    original = CmCore._receive_reply

    def broken(self: Any, connection: Any, message: Any, now_ns: int) -> None:
        if connection.state is CmState.REQ_SENT:
            original(self, connection, message, now_ns)

    patch.setattr(CmCore, "_receive_reply", broken)
    patch.setattr("urds.verbs.cm.core.CmCore.handle_data", lambda *_: False)


def say_goodbye_once(patch: pytest.MonkeyPatch) -> None:
    """Say goodbye once, whatever is lost."""
    original = CmCore._send_with_retry

    def broken(self: Any, connection: Any, now_ns: int) -> None:
        if connection.state is not CmState.DREQ_SENT or connection.tries == 0:
            original(self, connection, now_ns)

    patch.setattr(CmCore, "_send_with_retry", broken)


def swap_sequences(patch: pytest.MonkeyPatch) -> None:
    """Let each side expect its own first number."""

    def broken(qp: Any, *, own: Any, peer: Any, **rest: Any) -> None:
        connect_queue_pair(
            qp, own=own, peer=replace(peer, sequence_start=own.sequence_start), **rest
        )

    patch.setattr(packet_connection, "connect_queue_pair", broken)


def ask_no_peer(patch: pytest.MonkeyPatch) -> None:
    """Ask no silent peer whether it lives."""
    patch.setattr(PeerMonitor, "handle_due", lambda *_: [])


def trust_bytes(patch: pytest.MonkeyPatch) -> None:
    """Send packets without a checksum."""
    patch.setattr(SimAdapter, "has_checksum", False)


def leave_queue_pairs(patch: pytest.MonkeyPatch) -> None:
    """Leave the queue pair as it is when its connection ends."""
    patch.setattr(packet_connection.PacketConnection, "_break_queue_pair", lambda *_: None)


@pytest.mark.parametrize(
    "patch_rule",
    [
        forget_requests, answer_requests_once, confirm_once, say_goodbye_once, swap_sequences,
        ask_no_peer, trust_bytes, leave_queue_pairs,
    ],
)  # fmt: skip
def test_a_broken_rule_turns_a_seed_red(patch_rule: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_rule(monkeypatch)
    for seed in range(SEEDS_BROKEN_MAX):
        try:
            Simulation(seed).run()
        except (AssertionError, TimeoutError):
            return
    pytest.fail(f"{patch_rule.__name__} broke nothing in {SEEDS_BROKEN_MAX} seeds")
