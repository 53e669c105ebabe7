"""One simulation: two nodes, an application on each, and what goes wrong between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from types import MappingProxyType

from tests.sim.flows import Flows
from tests.sim.kernel_node import QUEUE_MAX, KernelNode
from tests.sim.network import Network
from tests.sim.own_node import OwnNode
from tests.sim.thief import Thief
from tests.sim.world import MS, SECOND, Socket, World

LOW, HIGH = IPv4Address("127.0.0.1"), IPv4Address("127.0.0.2")
HEALED_NS = 120 * SECOND  # the longest a healed pair may take
ANSWERED_WITHIN_NS = 10 * SECOND  # over the slowest stream, behind all that waits
CLOCKS_AHEAD_MS = (-86_400_000, -1_000, -40, -1, 0, 0, 1, 1_000)  # of a life, where clocks are set


class Simulation:
    """Two nodes; `restarts` tells which of them may restart, `kernels` which are kernels.

    With `clocks_set` each life has a clock of its own, so that many begin before the one before.
    Of several `npaths` each life has one. With a `thief` the higher node is connected to from the
    lower one's address while that lives; then the higher one waits long enough for an answer,
    and nothing is broken: the first to connect to a path without a stream has it.
    """

    def __init__(
        self,
        seed: int,
        *,
        npaths: int | Sequence[int] = 1,
        restarts: tuple[IPv4Address, ...] = (),
        kernels: Mapping[IPv4Address, int] = MappingProxyType({}),
        rounds: int = 40,
        clocks_set: bool = False,
        thief: bool = False,
    ) -> None:
        self.world = World(seed)
        self.seed = seed
        self.random = self.world.random
        self.network = Network(self.world)
        self.flows = Flows(seed)
        self.npaths = [npaths] if isinstance(npaths, int) else npaths
        self.rounds = rounds
        self.restarted = 0
        self.restarts = restarts
        self.kernels = kernels  # address to release
        self.clocks_set = clocks_set
        self._settings = {"liveness_wait_ns": ANSWERED_WITHIN_NS} if thief else {}
        self.nodes = {LOW: self.new_node(LOW, HIGH), HIGH: self.new_node(HIGH, LOW)}
        victim = self.nodes[HIGH]
        self.thief = Thief(victim) if thief and isinstance(victim, OwnNode) else None

    def new_node(self, local: IPv4Address, peer: IPv4Address) -> OwnNode | KernelNode:
        generation = self.random.randrange(1, 1 << 32)
        network, flows = self.network, self.flows
        if (release := self.kernels.get(local)) is not None:
            return KernelNode(network, flows, local, peer, release=release, generation=generation)
        ahead_ms = self.random.choice(CLOCKS_AHEAD_MS) if self.clocks_set else 0
        return OwnNode(
            network,
            flows,
            local,
            peer,
            npaths=self._draw_npaths(),
            generation=generation,
            clock_ahead_ms=ahead_ms,
            **self._settings,
        )

    def _draw_npaths(self) -> int:
        return self.npaths[0] if len(self.npaths) == 1 else self.random.choice(self.npaths)

    def run(self) -> None:
        """Disturb for a while, heal, and judge."""
        for _ in range(self.rounds):
            if self.thief is None:
                self.disturb()
            else:
                self.steal(self.thief)
            self.use()
            self.world.run(self.world.some(20 * MS))
        self.heal()
        self.finish()

    def disturb(self) -> None:
        """Let one thing go wrong, or none."""
        random = self.random
        choice = random.random()
        node = random.choice(list(self.nodes.values()))
        if choice < 0.30:
            self.break_somewhere()
        elif choice < 0.38:
            self.network.down = not self.network.down
        elif choice < 0.46:
            node.receivers_stopped = not node.receivers_stopped
        elif choice < 0.52 and node.local not in self.kernels:
            node.asleep = not node.asleep
        elif choice < 0.60 and node.local in self.restarts and self.is_old_enough(node):
            self.restart(node.local)

    def steal(self, thief: Thief) -> None:
        """Have the thief connect once the peer is there."""
        victim, random = self.nodes[HIGH], self.random
        assert isinstance(victim, OwnNode)
        if not victim.paths[0].first_frame_told:
            return
        for _ in range(random.randrange(3)):
            thief.connect()

    def break_somewhere(self) -> None:
        """Break a stream now, or at one of the bytes to come; perhaps one end hears nothing."""
        sockets = [socket for socket in self.world.sockets if not socket.broken]
        self.world.sockets = sockets
        if not sockets:
            return
        end: Socket = self.random.choice(sockets)
        end = self.random.choice([end, end.twin])
        if self.random.random() < 0.6:
            end.break_at = end.received + self.random.choice([1, 40, 100, 8_300, 20_000, 60_000])
            end.break_at -= self.random.randrange(min(end.break_at - end.received, 50))
        else:
            silent = self.random.choice([None, None, end, end.twin])
            end.break_stream(silent=silent)

    def is_old_enough(self, node: OwnNode | KernelNode) -> bool:
        """Tell whether a kernel's next life can be told apart from this one.

        A resend of a restart is known by a number below all that the last stream carried; a life
        whose one stream began with its first messages leaves none.
        Source: docs/reference/linux-peer-notes.md 3, rule 8 (what is left over).
        """
        if isinstance(node, OwnNode):
            return True
        own = self.nodes[node.peer]
        assert isinstance(own, OwnNode)
        incoming = own.paths[0].core.receiver
        lowest = incoming._floor if incoming._lowest is None else incoming._lowest
        return lowest is not None and lowest > QUEUE_MAX + 5

    def restart(self, local: IPv4Address) -> None:
        """End a node's process and start another."""
        old = self.nodes[local]
        self.restarted += 1
        old.crash()
        self.world.run(2 * MS)
        self.nodes[local] = self.new_node(local, old.peer)

    def use(self) -> None:
        """Send and receive on both nodes as an application would."""
        random = self.random
        for node in self.nodes.values():
            if not node.asleep:
                for _ in range(random.randrange(12)):
                    node.send(random.choice(self.flows.ports), random.choice(self.flows.ports))
                if not node.receivers_stopped:
                    for port in self.flows.ports:
                        node.receive(port, random.randrange(30))

    def heal(self) -> None:
        self.network.down = False
        for node in self.nodes.values():
            node.asleep = node.receivers_stopped = False
        for socket in self.world.sockets:
            socket.break_at = socket.twin.break_at = None

    def finish(self) -> None:
        """Send a little more and let everything arrive, twice; then judge what came.

        A kernel that has something to send requests a call-back with its next message only.
        """
        for _ in range(2):
            for node in self.nodes.values():
                for port in self.flows.ports:
                    node.send(port, port)
            end_ns = self.world.now_ns + HEALED_NS
            while any(node.left() or node.queued() for node in self.nodes.values()):
                self.world.run(10 * MS)
                for node in self.nodes.values():
                    for port in self.flows.ports:
                        node.receive(port, 1000)
                left = {str(node.local): node.left() for node in self.nodes.values()}
                assert self.world.now_ns < end_ns, f"seed {self.seed}: stuck with {left}"
        low, high = self.nodes[LOW], self.nodes[HIGH]
        self.flows.assert_complete(low.life, high.life)
        self.flows.assert_complete(high.life, low.life)
