"""A toy connection manager and toy paths under real RDMA endpoints, in virtual time.

Every message takes a random time, so those of different attempts overtake each other; a device's
reports of one node stay in order, and come late too. Frames do not exist here, but numbers do: each
side counts what it sent and what it got, so that an acknowledgement of another generation is met.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from ipaddress import IPv4Address
from itertools import count
from random import Random

from urds.common.types import IPAddress
from urds.rds.control.events import Action
from urds.rds.control.rdma_events import (
    Abandon,
    Accept,
    Attach,
    Connect,
    Detach,
    Failure,
    PeerKey,
    Reject,
    RestartPeer,
)
from urds.rds.control.rdma_local_address import RdmaLocalAddress
from urds.rds.control.settings import LocalAddressSettings, PeerSettings
from urds.rds.control.stats import RdmaStats
from urds.rds.wire.private_data import ConnectData

US = 1_000
MS = 1_000 * US
SECOND = 1_000 * MS
LOW, HIGH = IPv4Address("127.0.0.1"), IPv4Address("127.0.0.2")
LATENCY_NS = (50 * US, 2 * MS)
REPORT_NS = 300 * US  # until the control thread hears of something, at most
LOSS_NS = 1 * SECOND  # until a connection manager knows that no peer answers
SILENCE_NS = 2 * SECOND  # until a device knows that its peer is gone


@dataclass(eq=False, slots=True)
class End:
    """One end of an attempt, or of what became of it."""

    node: "Node"
    number: int
    key: PeerKey | None = None  # None: a request without an answer
    twin: "End | None" = None
    is_open: bool = True
    is_established: bool = False


@dataclass(slots=True)
class Numbers:
    """What a path knows of its peer; `life` and `is_restarted` are the world's own knowledge."""

    sent: int = 0
    received: int = 0
    life: int | None = None  # of the peer, when it was attached last
    is_restarted: bool = False  # we were told of a restart since


class World:
    """All nodes and the time between them."""

    def __init__(self, seed: int = 0) -> None:
        self.now_ns = SECOND
        self.random = Random(seed)
        self.nodes: dict[IPAddress, Node] = {}
        self.numbers = count(1)
        self.lost = 0  # so many of the next messages get lost
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = count()

    def after(self, delay_ns: int, call: Callable[[], None]) -> None:
        heappush(self._due, (self.now_ns + delay_ns, next(self._count), call))

    def carry(self, call: Callable[[], None], *nodes: "Node", or_else: Callable[[], None]) -> None:
        """Have a message arrive, or `or_else` happen in the end if it cannot."""
        if self.lost > 0 or not all(node.is_reachable for node in nodes):
            self.lost -= self.lost > 0
            self.after(LOSS_NS, or_else)
        else:
            self.after(self.random.randrange(*LATENCY_NS), call)

    def run(self, span_ns: int) -> None:
        """Let time pass; every step is bounded by the span."""
        end_ns = self.now_ns + span_ns
        while True:
            timers = [(node.next_ns(), node) for node in self.nodes.values()]
            due_ns, node = min(timers, key=lambda timer: timer[0])
            if self._due and self._due[0][0] <= due_ns:
                due_ns, node = self._due[0][0], None
            if due_ns > end_ns:
                break
            self.now_ns = max(self.now_ns, due_ns)
            if node is None:
                heappop(self._due)[2]()
            else:
                node.endpoint.handle_timeout(self.now_ns)
            for each in self.nodes.values():
                each.act()
        self.now_ns = end_ns


class Node:
    """One endpoint with a toy device and toy paths."""

    def __init__(
        self,
        world: World,
        local: IPAddress,
        *,
        generation: int,
        is_linux: bool = False,
        **settings: int,
    ) -> None:
        self.world = world
        self.local = local
        self.generation = generation
        self.is_linux = is_linux  # plays by Linux's rules, by never seeing nor showing a mark
        self.is_alive = True
        self.is_reachable = True
        self.log: list[Action] = []
        self.connects_ns: list[int] = []
        self.attached: dict[PeerKey, End] = {}
        self.numbers: defaultdict[PeerKey, Numbers] = defaultdict(Numbers)
        self._ends: dict[int, End] = {}
        self._reported_ns = 0
        self.stats = RdmaStats()
        self.endpoint = RdmaLocalAddress(
            local=local,
            settings=LocalAddressSettings(),
            peer_settings=PeerSettings(generation=generation, **settings),
            random=Random(world.random.random()),
            stats=self.stats,
            next_number=lambda: next(world.numbers),
        )
        world.nodes[local] = self

    def next_ns(self) -> float:
        due_ns = self.endpoint.poll_timeout() if self.is_alive else None
        return float("inf") if due_ns is None else due_ns

    def want(self, peer: IPAddress, tos: int = 0) -> PeerKey:
        key = self.endpoint.key_for(peer, tos, self.world.now_ns)
        self.endpoint.handle_wanted(key, self.world.now_ns)
        self.act()
        return key

    def seen(self, kind: type) -> list[Action]:
        return [action for action in self.log if isinstance(action, kind)]

    def crash(self, *, silent: bool = False) -> None:
        """End as a process does, or as a host does: then no peer is told for a while."""
        for end in list(self._ends.values()):
            self._close(end, silent=silent)
        self.is_alive = False

    def break_connection(self, key: PeerKey, *, silent: bool) -> None:
        """End a connection under us; the peer hears of it soon, or late."""
        end = self.attached.get(key)
        if end is not None and end.is_open:
            self._close(end, silent=silent)
            self._report(lambda: self.endpoint.handle_ended(key, end.number, self.world.now_ns))

    def protocol_error(self, key: PeerKey) -> None:
        """Find that the peer broke the protocol."""
        end = self.attached.get(key)
        if end is not None:
            self.endpoint.handle_protocol_error(key, end.number, self.world.now_ns)
            self.act()

    # -- the shell

    def act(self) -> None:
        while self.is_alive and (action := self.endpoint.poll_event()) is not None:
            self.log.append(action)
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Connect(key, number):
                self.connects_ns.append(self.world.now_ns)
                end = self._ends[number] = End(self, number, key)
                self._ask(end, key, self._offer(key))
            case Accept(key, number):
                end = self._ends[number]
                end.key = key
                self._answer(end, self._offer(key))
            case Reject(number, data):
                end = self._ends.pop(number)
                end.is_open = False
                self._refuse(end.twin, Failure.REJECTED, data)
            case Attach():
                self._attach(action)
            case Detach(key, number):
                end = self.attached.pop(key)
                assert end.number == number
                self._close(end)
            case Abandon(key, number):
                assert key not in self.attached
                self._close(self._ends[number])
            case RestartPeer(key):
                assert key not in self.attached, "a restart begins without a connection"
                self.numbers[key].received = 0
                self.numbers[key].is_restarted = True

    def _offer(self, key: PeerKey) -> bytes:
        return self.endpoint.offer(key, acknowledged=self.numbers[key].received, credits=8)

    def _report(self, call: Callable[[], None]) -> None:
        """Tell the endpoint a little later, behind what was reported before."""
        world = self.world
        at_ns = max(self._reported_ns, world.now_ns + world.random.randrange(REPORT_NS))
        self._reported_ns = at_ns

        def tell() -> None:
            if self.is_alive:
                call()

        world.after(at_ns - world.now_ns, tell)

    def _attach(self, action: Attach) -> None:
        key, end, numbers = action.key, self._ends[action.number], self.numbers[action.key]
        assert key not in self.attached, "two connections of one peer"
        assert end.twin is not None
        if not (self.is_linux or end.twin.node.is_linux):  # else generations cannot be told apart
            assert action.acknowledged <= numbers.sent, "acknowledges what another generation sent"
            life = end.twin.node.generation
            is_new = numbers.life not in (None, life)
            assert numbers.is_restarted == is_new, f"life {numbers.life}, then {life}"
            numbers.life, numbers.is_restarted = life, False
        self.attached[key] = end
        self.send(key)

    def send(self, key: PeerKey) -> None:
        """Send one message, that is, its number; lost if the connection breaks before."""
        end = self.attached.get(key)
        if end is None or end.twin is None:
            return
        numbers, twin = self.numbers[key], end.twin
        numbers.sent += 1
        number = numbers.sent

        def arrive() -> None:
            if twin.is_open and twin.key is not None and twin.node.attached.get(twin.key) is twin:
                their = twin.node.numbers[twin.key]
                their.received = max(their.received, number)

        self.world.carry(arrive, self, twin.node, or_else=lambda: None)

    # -- the connection manager

    def _ask(self, end: End, key: PeerKey, data: bytes) -> None:
        world = self.world

        def arrive() -> None:
            other = world.nodes.get(key.peer)
            if other is None or not other.is_alive:
                self._refuse(end, Failure.REFUSED, b"")
                return
            if not (other.is_reachable and self.is_reachable):
                world.after(LOSS_NS, fail)
                return
            theirs = End(other, next(world.numbers), twin=end)
            end.twin = theirs
            other._ends[theirs.number] = theirs
            shown = self._shown(data, other)
            other._report(
                lambda: other.endpoint.handle_request(
                    theirs.number, self.local, shown, world.now_ns
                )
            )

        def fail() -> None:
            self._refuse(end, Failure.UNREACHABLE, b"")

        world.carry(arrive, self, or_else=fail)

    def _shown(self, raw: bytes, other: "Node") -> bytes:
        if self.is_linux or other.is_linux:
            data = ConnectData.parse(raw, ipv6=self.local.version == 6)
            return replace(data, generation=None).emit()
        return raw

    def _refuse(self, end: End | None, failure: Failure, data: bytes) -> None:
        """Have an attempt fail at its end, unless it is over."""
        if end is None or end.key is None:
            return
        key, node = end.key, end.node
        node._report(
            lambda: node.endpoint.handle_failed(key, end.number, failure, self.world.now_ns)
        )

    def _answer(self, end: End, data: bytes) -> None:
        twin = end.twin
        assert twin is not None and twin.key is not None
        key, other, shown = twin.key, twin.node, self._shown(data, twin.node)

        def lose() -> None:
            self._refuse(twin, Failure.UNREACHABLE, b"")
            self._refuse(end, Failure.UNREACHABLE, b"")

        def arrive() -> None:
            if not twin.is_open:
                self._refuse(end, Failure.ERROR, b"")
                return
            twin.is_established = True
            other._report(
                lambda: other.endpoint.handle_established(
                    key, twin.number, shown, self.world.now_ns
                )
            )
            self.world.carry(confirm, self, other, or_else=miss)

        def confirm() -> None:
            if end.is_open and end.key is not None:
                end.is_established = True
                ours = end.key
                self._report(
                    lambda: self.endpoint.handle_established(
                        ours, end.number, b"", self.world.now_ns
                    )
                )

        def miss() -> None:  # they have a connection that we never had
            self._refuse(end, Failure.UNREACHABLE, b"")

        self.world.carry(arrive, self, other, or_else=lose)

    def _close(self, end: End, *, silent: bool = False) -> None:
        """Close our end; the other one learns it soon, or when it hears nothing for long."""
        self._ends.pop(end.number, None)
        twin = end.twin
        if not end.is_open:
            return
        end.is_open = False
        if twin is None:
            return

        def tell() -> None:
            if twin.is_open and twin.key is not None:
                twin.node._end(twin)

        if silent:
            self.world.after(SILENCE_NS, tell)
        else:
            self.world.carry(tell, self, twin.node, or_else=tell)

    def _end(self, end: End) -> None:
        key = end.key
        assert key is not None
        if end.is_established:
            self._report(lambda: self.endpoint.handle_ended(key, end.number, self.world.now_ns))
        else:
            self._refuse(end, Failure.ERROR, b"")


def pair(world: World, *, is_linux: bool = False, **settings: int) -> tuple[Node, Node]:
    """Make a lower and a higher node."""
    low = Node(world, LOW, generation=101, **settings)
    return low, Node(world, HIGH, generation=201, is_linux=is_linux, **settings)


def are_joined(one: Node, other: Node, tos: int = 0) -> bool:
    """Tell whether both have one and the same connection."""
    mine = one.attached.get(PeerKey(other.local, tos))
    theirs = other.attached.get(PeerKey(one.local, tos))
    return mine is not None and theirs is not None and mine.twin is theirs and theirs.twin is mine
