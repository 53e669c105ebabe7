"""Nodes of RDS over RDMA in virtual time: random applications, and all that goes wrong.

The whole stack runs: sockets' mailboxes, the plane, connection cores, endpoints, links, and the
simulated verbs with their connection manager. Datagrams are lost, doubled, late or broken; nodes
are cut off, killed and started again, connections break between two packets, control threads and
receivers come late, rings are small, peers are evicted and given up.

Safety is judged with each message that is taken and each operation that ends, liveness when all is
whole again: then every queue drains, and accounts and tables are as they were before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import count
from random import Random

from tests.sim.rdma_judge import Judge
from tests.sim.rdma_node import MS, SECOND, US, SimNode, SimSettings
from tests.sim.rdma_records import Flow, Sent
from tests.sim.rdma_work import Work
from urds.common.types import IPAddress
from urds.rds.plane.contract import Limits, MailboxSettings
from urds.rds.plane.python.mailbox import Mailbox
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.wire.frame_format import FrameFormat
from urds.verbs.engine.packets import Syndrome, parse_packet
from urds.verbs.providers.sim import LinkProfile, SimAdapter, SimNetwork

STABLE_PORTS = (4000, 4001)  # bound as long as their node lives
PASSING_PORT = 4002  # closed and bound again
TOS_PORT = 4003  # of another type of service
PORTS = (*STABLE_PORTS, PASSING_PORT, TOS_PORT)
PACKETS_MAX = 60_000  # of one world; more means that it spins
HEALED_NS = 300 * SECOND  # the longest that healed nodes may take
SPANS_NS = (*[10 * US, 200 * US, 2 * MS, 20 * MS, 300 * MS] * 4, 3 * SECOND, 15 * SECOND)
ACK_BYTES = 21  # of a packet that acknowledges or refuses
NOTICED_NS = 30 * SECOND  # by then every node has noticed that a peer's earlier life is over
GOOD = LinkProfile(delay_ns=50 * US)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What may happen in a world."""

    nodes: int = 2
    rounds: int = 20
    restarts: bool = False
    visitors: bool = False  # others come and go, more than a node has room for
    gives_up: bool = False
    breaks: bool = True
    to_itself: bool = False
    ipv6: bool = False
    credits: bool = False  # everywhere; else here and there
    healed_ns: int = HEALED_NS  # after which what is not done never will be


def plan_of(random: Random) -> Plan:
    """Draw what a world is like."""
    nodes = random.choice([2, 2, 2, 3])
    visitors = random.random() < 0.1
    return Plan(
        nodes=2 if visitors else nodes,
        rounds=random.choice([8, 16, 24]),
        restarts=random.random() < 0.5,
        visitors=visitors,
        gives_up=visitors or random.random() < 0.1,
        breaks=random.random() < 0.9,
        to_itself=random.random() < 0.2,
        ipv6=random.random() < 0.1,
    )


class World:
    """See the module. `run` is all there is to do."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.plan = plan or plan_of(random)
        self.judge = Judge(seed, gives_up=self.plan.gives_up)
        self.network = SimNetwork(
            random.randrange(1 << 30), mtu_bytes=random.choice([1024, 4096, 9000, 9000])
        )
        self.network.on_packet = self._on_packet
        self.packets = 0
        self.happened: dict[str, int] = {}
        self._news = False
        self._lasts: list[tuple[Flow, Sent]] = []
        self._after: tuple[int, Callable[[], None]] | None = None
        self._lived: set[IPAddress] = set()
        self._credits_everywhere = True
        self.core = self._draw_core()
        self.limits = self._draw_limits()
        self.nodes: dict[IPAddress, SimNode] = {}
        self._visitor: SimNode | None = None
        self._addresses = count(1)
        # Each peer has two types of service; a connection to ourselves has two ends.
        needed = 2 * (self.plan.nodes - 1) + (4 if self.plan.to_itself else 0)
        self._peers_max = needed + 2 if self.plan.visitors else 16
        for _ in range(self.plan.nodes):
            self._start(self._new_address())
        self.work = Work(self.judge, random, self.nodes, PORTS, to_itself=self.plan.to_itself)

    # -- what there is

    def _draw_core(self) -> CoreLimits:
        random = self.random
        return CoreLimits(
            send_ring=random.choice([3, 16, 64]),
            receive_ring=random.choice([4, 8, 16, 40]),
            unacked_packets_max=random.choice([0, 3, 8]),
            unacked_bytes_max=random.choice([9_000, 1 << 20]),
            messages_max=random.choice([6, 200, 65_536]),
            flow_control=self.plan.credits or random.random() < 0.5,
        )

    def _draw_limits(self) -> Limits:
        factor, hard_bytes = self.random.choice([(4, 16 << 20), (1, 1_000), (2, 20_000)])
        return Limits(receive_hard_factor=factor, receive_hard_bytes=hard_bytes, linger_ns=50 * MS)

    def _new_address(self) -> IPAddress:
        prefix = "fd00::" if self.plan.ipv6 else "10.0.0."
        return ip_address(f"{prefix}{next(self._addresses)}")

    def _start(self, address: IPAddress) -> SimNode:
        """Begin a life of an address; its ports are bound before a peer can reach it."""
        random = self.random
        core = self.core
        if not self.plan.credits and random.random() < 0.2:
            core = replace(core, flow_control=not core.flow_control)
        self._credits_everywhere &= core.flow_control
        generation = random.randrange(1, 1 << 32)
        node = SimNode(
            self.network,
            self.judge,
            address,
            SimSettings(
                generation=generation,
                is_first_life=address not in self._lived,
                core=core,
                limits=self.limits,
                peers_max=self._peers_max,
                give_up_ns=random.choice([100 * MS, 3 * SECOND]) if self.plan.gives_up else 0,
                sequence_first=random.choice([1, 1 << 30, (1 << 62) + random.randrange(1 << 20)]),
                frame_format=FrameFormat((1, 2, 3, 3)[generation % 4]),
            ),
            random=random,
            on_news=self._note_news,
        )
        for port in PORTS:
            self._bind(node, port)
        self._lived.add(address)
        self.nodes[address] = node
        return node

    def _bind(self, node: SimNode, port: int) -> Mailbox:
        random = self.random
        return node.bind(
            port,
            MailboxSettings(
                send_bytes_max=random.choice([9_000, 106_496, 400_000]),
                receive_bytes_max=random.choice([500, 20_000, 400_000]),
                monitor=random.random() < 0.3,
                tos=3 if port == TOS_PORT else 0,
            ),
        )

    def counted(self, name: str) -> int:
        """Return the sum of one counter over the lives that are here."""
        return sum(
            getattr(table, name, 0)
            for node in self.nodes.values()
            for table in (
                node.plane.state.counters,
                node.rdma.message_counters,
                node.rdma.counters,
                node.rdma.stats,
            )
        )

    def fail(self, what: str) -> AssertionError:
        """Return the failure to be raised."""
        return self.judge.fail(what)

    def count(self, what: str) -> None:
        """Count something that went wrong on purpose."""
        self.happened[what] = self.happened.get(what, 0) + 1

    # -- time

    def _note_news(self) -> None:
        self._news = True

    def pass_time(self, span_ns: int) -> None:
        """Let time pass: packets, timers, and control threads that come when they come."""
        network = self.network
        end_ns = network.now_ns + span_ns
        while True:
            due = [
                (at_ns, index, node)
                for index, node in enumerate(self.nodes.values())
                if (at_ns := node.turn_at_ns) is not None
            ]
            if due and min(due)[0] <= network.now_ns:
                min(due)[2].turn()
                continue
            if network.now_ns >= end_ns:
                return
            next_ns = min([at_ns for at_ns, _, _ in due] + [end_ns])
            self._news = False
            network.run_until(lambda: self._news, next_ns - network.now_ns)

    def _on_packet(
        self, data: bytes, _source: SimAdapter, _target: SimAdapter
    ) -> list[tuple[int, bytes]] | None:
        """Count packets; let something go wrong at the one that was chosen for it."""
        self.packets += 1
        if self.packets > PACKETS_MAX:
            raise self.fail(f"it spins at {self.network.now_ns} ns")
        if self._credits_everywhere and len(data) == ACK_BYTES:
            self._check_credits(data)
        if self._after is not None and self.packets >= self._after[0]:
            action, self._after = self._after[1], None
            action()
        return None

    def _check_credits(self, data: bytes) -> None:
        """Who has a credit finds a receive."""
        packet = parse_packet(data, checksum=True)
        if Syndrome.RNR_NAK <= packet.syndrome < Syndrome.NAK_SEQUENCE:
            raise self.fail(f"a receive was missing at {self.network.now_ns} ns, with credits")

    def _soon(self, action: Callable[[], None]) -> None:
        """Do something now, or between two of the packets to come."""
        if self.random.random() < 0.3:
            action()
        else:
            self._after = (self.packets + self.random.choice([1, 3, 10, 30]), action)

    # -- the run

    def run(self) -> None:
        """Disturb for a while, heal, and judge."""
        for _ in range(self.plan.rounds):
            self.disturb()
            self.work.use()
            self.pass_time(self.random.choice(SPANS_NS))
        self.heal()
        self.finish()
        self.end()

    def disturb(self) -> None:
        """Let one thing go wrong, or none."""
        random = self.random
        node = random.choice(list(self.nodes.values()))
        peer = random.choice(list(self.nodes.values()))
        choice = random.random()
        if choice < 0.20 and self.plan.breaks:
            self._soon(lambda: self._break(node))
        elif choice < 0.28 and self.plan.breaks:
            self._soon(lambda: self._cut(node, peer))
        elif choice < 0.40:
            self._set_weather()
        elif choice < 0.48:
            node.receivers_stopped = not node.receivers_stopped
        elif choice < 0.54:
            node.is_asleep = not node.is_asleep
        elif choice < 0.58:
            node.lateness_ns = random.choice([(0,), (0, 20 * US, 300 * US), (20 * MS,)])
        elif choice < 0.64:
            self._rebind(node)
        elif choice < 0.72 and self.plan.restarts and node is not self._visitor:
            self._restart(node)
        elif choice < 0.90 and self.plan.visitors:
            self._visit()

    def _break(self, node: SimNode) -> None:
        """End one connection of a node, or all, as a fault of the device would."""
        links = [path.link for path in node.paths() if path.link is not None]
        if not node.is_alive or not links:
            return
        self.count("breaks")
        for link in self.random.choice([links, [self.random.choice(links)]]):
            connection = link.connection
            if connection is not None:
                # Not inside a call of the device, where this may come from.
                link.device.soon(link, connection.disconnect)

    def _cut(self, node: SimNode, peer: SimNode) -> None:
        if node is not peer and node.is_alive and peer.is_alive:
            self.count("cuts")
            is_cut = not self.network.profile_of(node.adapter, peer.adapter).is_cut
            self.network.cut(node.adapter, peer.adapter, is_cut=is_cut)

    def _set_weather(self) -> None:
        random = self.random
        self.network.profile = replace(
            GOOD,
            jitter_ns=random.choice([0, 0, 100 * US]),
            loss=random.choice([0.0, 0.0, 0.02, 0.2]),
            duplicate=random.choice([0.0, 0.1]),
            reorder=random.choice([0.0, 0.1]),
            corrupt=random.choice([0.0, 0.05]),
        )

    def _rebind(self, node: SimNode) -> None:
        """Close a socket and bind another in its place."""
        self.count("rebinds")
        mailbox = node.mailboxes[PASSING_PORT]
        self.work.note_closed(mailbox)
        node.close(PASSING_PORT, linger_ns=self.random.choice([None, 0]))
        for region in self.judge.regions:
            if region.mailbox is mailbox and not region.is_freed:
                region.note_freed()
        self._bind(node, PASSING_PORT)

    def _restart(self, node: SimNode) -> None:
        """End a life, killed between two packets or in order, and begin the next one."""
        if self.random.random() < 0.3:
            self.count("stops")
            node.stop()
        else:
            self.count("kills")
            node.die()
        self.work.note_dead(node)
        if self.random.random() < 0.5:
            del self.nodes[node.address]
            self.pass_time(self.random.choice([1 * MS, 100 * MS, 20 * SECOND]))
        self._start(node.address)

    def _visit(self) -> None:
        """Have a visitor go and another one come."""
        self._leave()
        self.count("visits")
        self._visitor = self._start(self._new_address())

    def _leave(self) -> None:
        """Have the visitor go for good, if there is one."""
        if self._visitor is not None and self._visitor.is_alive:
            self._visitor.die()
            self.work.note_dead(self._visitor)
            del self.nodes[self._visitor.address]

    # -- the end

    def heal(self) -> None:
        """Make everything whole."""
        self._after = None
        self._leave()
        network = self.network
        network.profile = GOOD
        nodes = list(self.nodes.values())
        for node in nodes:
            node.is_asleep = node.receivers_stopped = False
            node.lateness_ns = (0, 20 * US)
            for peer in nodes:
                network.set_profile(node.adapter, peer.adapter, GOOD)

    def finish(self) -> None:
        """Send a little more on every flow and let everything arrive; then judge what came."""
        self.finish_pass()
        self.pass_time(NOTICED_NS)
        for source, mailbox, target, port in self.work.routes():
            if mailbox.port in STABLE_PORTS or mailbox.port == port == TOS_PORT:
                self._send_last(source, mailbox, target, port)
        self.finish_pass()
        self.work.free_regions()
        self.finish_pass()
        for flow, sent in self._lasts:
            if not sent.is_delivered and not (self.plan.gives_up and flow.mailbox.sends.given_up):
                raise self.fail(f"{flow.name()}: the last one, {sent.number}, never came")
        # What a node that stops in order has acknowledged in its last moment was not taken there.
        counted_ports = () if "stops" in self.happened else STABLE_PORTS
        self.judge.check_end(self.nodes, counted_ports=counted_ports)
        for node in self.nodes.values():
            self._check_tables(node)

    def _send_last(self, source: SimNode, mailbox: Mailbox, target: SimNode, port: int) -> None:
        end_ns = self.network.now_ns + self.plan.healed_ns
        while not self.work.send(source, mailbox, target, port, plain=True):
            self.pass_time(50 * MS)
            self.work.receive_all()
            if self.network.now_ns > end_ns:
                raise self.fail(f"{mailbox.local} may not send to {target.address} port {port}")
        flow = self.judge.flow(source, mailbox, str(target.address), port)
        self._lasts.append((flow, flow.sent[-1]))

    def finish_pass(self) -> None:
        """Let time pass until nothing is left to be sent or taken."""
        end_ns = self.network.now_ns + self.plan.healed_ns
        while True:
            self.pass_time(20 * MS)
            self.work.receive_all()
            nodes = self.nodes.values()
            if not any(node.left() or node.queued() for node in nodes):
                return
            if self.network.now_ns > end_ns:
                left = {str(node.address): (node.left(), node.queued()) for node in nodes}
                raise self.fail(f"stuck with {left} messages to send and to take")

    def _check_tables(self, node: SimNode) -> None:
        """Nothing is held that has no use any more."""
        paths, device = node.paths(), node.rdma.devices[0]
        # Those up and those under way: a connection that is lost is tried for for a long time.
        links = sum(
            peer.number is not None
            for host in node.rdma.hosts.values()
            for peer in host.endpoint.peers
        )
        keys = node.adapter.region_count
        attempts = node.rdma._attempts  # what it holds shows in no public place
        held = {
            "queue pairs": (len(device.links), links),
            "attempts": (len(attempts._attempts), links),
            "requests": (len(attempts._requests), 0),
            "regions": (len(node.regions), 0),
            "keys": (keys, links),
            "paths": (len(node.plane.state.hosts[node.address].externals), len(paths)),
            "lingering": (len(node.plane.state.lingering), 0),
        }
        for what, (found, expected) in held.items():
            if found != expected:
                raise self.fail(f"{node.address} holds {found} {what}, has use for {expected}")
        for mailbox in node.mailboxes.values():
            if mailbox.sends.send_queued_bytes or mailbox.receives.receive_queued_bytes:
                raise self.fail(f"{node.address} port {mailbox.port}: an account is not empty")

    def end(self) -> None:
        """Stop all nodes in order."""
        for node in self.nodes.values():
            node.stop()
