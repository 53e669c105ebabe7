"""A toy network and a toy data plane under real endpoints, in virtual time.

A stream is a pair of ends; frames arrive after a latency, in order. The plane of a node sends a map
first, keeps controls back while held, hellos excepted, and reports first frames and ends. Messages
do not exist here: which node talks to which, over what, is all that is tested.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from ipaddress import IPv4Address
from random import Random

from urds.common.types import IPAddress
from urds.rds.constants import PING_PORT, PROBE_PORT, Capability
from urds.rds.control.events import (
    Action,
    Attach,
    Connect,
    Detach,
    FanIn,
    Hold,
    ProbeDeadStream,
    Refuse,
    Release,
    RequestCallBack,
    SendControl,
)
from urds.rds.control.local_address import LocalAddress
from urds.rds.control.settings import ConnectionSettings, LocalAddressSettings
from urds.rds.control.tcp_peer import TcpPeer
from urds.rds.wire.extensions import Handshake, Mark, emit_handshake

MS = 1_000_000
SECOND = 1_000 * MS
LOW, HIGH = IPv4Address("127.0.0.1"), IPv4Address("127.0.0.2")
EPHEMERAL = (32768, 60999)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: a map (no ports), or a control message."""

    source_port: int | None = None
    target_port: int = 0
    extension: bytes = bytes(16)
    acknowledgement: int = 0


@dataclass(eq=False, slots=True)
class End:
    """One end of a stream."""

    node: "Node | None"
    number: int
    source_port: int  # of the connecting side
    twin: "End | None" = None
    peer: IPAddress | None = None
    index: int | None = None  # of the path it is attached to
    attachment: int = 0
    held: Hold = Hold.NOTHING
    waiting: list[Frame] = field(default_factory=list)
    frames: int = 0
    early: list[Frame] = field(default_factory=list)  # arrived before it was attached
    open: bool = True
    call_back_request: bool = False


class World:
    """All nodes and the time between them."""

    def __init__(self, *, latency_ns: int = MS, by_shared_memory: bool = False) -> None:
        self.by_shared_memory = by_shared_memory
        self.now_ns = SECOND
        self.latency_ns = latency_ns
        self.nodes: dict[IPAddress, Node] = {}
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_ns: int, call: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._due, (self.now_ns + delay_ns, self._count, call))

    def run(self, span_ns: int) -> None:
        """Let time pass; every step is bounded by the span."""
        end_ns = self.now_ns + span_ns
        while True:
            timers = [
                (node.endpoint.poll_timeout(), node)
                for node in self.nodes.values()
                if node.endpoint.poll_timeout() is not None
            ]
            due_ns, node = min(timers, key=lambda timer: timer[0], default=(end_ns + 1, None))
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
    """One endpoint with a toy plane."""

    def __init__(
        self,
        world: World,
        local: IPAddress,
        *,
        generation: int,
        seed: int = 1,
        npaths_before: int = 1,
        **settings: object,
    ) -> None:
        self.world = world
        self.local = local
        self.generation = generation
        self.alive = True
        self.reachable = True
        self.log: list[Action] = []
        self.attached: dict[tuple[IPAddress, int], End] = {}
        self._attachments: Counter[tuple[IPAddress, int]] = Counter()
        self._ends: dict[int, End] = {}
        self._numbers = 0
        self.endpoint = LocalAddress(
            local=local,
            settings=LocalAddressSettings(),
            connection_settings=ConnectionSettings(generation=generation, **settings),
            random=Random(seed),
            npaths_before=lambda peer: npaths_before,
        )
        world.nodes[local] = self

    def to(self, peer: IPAddress) -> TcpPeer:
        return self.endpoint.connection(peer, self.world.now_ns)

    def want(self, peer: IPAddress, index: int = 0) -> None:
        self.to(peer).handle_wanted(index, self.world.now_ns)
        self.act()

    def seen(self, kind: type) -> list[Action]:
        return [action for action in self.log if isinstance(action, kind)]

    def crash(self) -> None:
        """End every stream at once, as the end of a process does."""
        self.alive = False
        for end in list(self._ends.values()):
            self.close(end)

    # -- the driver

    def act(self) -> None:
        while self.alive and (action := self.endpoint.poll_event()) is not None:
            self.log.append(action)
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Connect(peer, index, rule):
                port = next(rule.ports(range_low=EPHEMERAL[0], range_high=EPHEMERAL[1]))
                self._open(peer, port, lambda end: self._connected(peer, index, end))
            case RequestCallBack(peer):
                self._open(peer, 40000, lambda end: self._call_back_requested(peer, end))
            case Attach(peer, index, stream, hold, probe):
                self._attach(peer, index, self._ends[stream], hold, probe)
            case Refuse(_, stream):
                self.close(self._ends[stream])
            case Detach(peer, index):
                self.close(self.attached.pop((peer, index)))
            case SendControl(peer, index, source_port, target_port, extension, hello):
                frame = Frame(source_port, target_port, extension)
                self._send(self.attached[peer, index], frame, past_hold=hello)
            case Release(peer, index):
                self._unhold(self.attached[peer, index])
            case ProbeDeadStream(peer, index):
                end = self.attached[peer, index]
                self._send(end, Frame(), past_hold=True)
                if (
                    end.twin is not None and not end.twin.open
                ):  # a host answers what is sent to a closed end with a reset
                    self.world.after(2 * self.world.latency_ns, lambda: self._ended(end))
            case FanIn(peer, count):
                for key in [key for key in self._attachments if key[0] == peer and key[1] >= count]:
                    del self._attachments[key]
                    if key in self.attached:
                        self.close(self.attached.pop(key))

    def new_end(self, source_port: int) -> End:
        self._numbers += 1
        end = End(self, self._numbers, source_port)
        self._ends[end.number] = end
        return end

    def _open(self, peer: IPAddress, source_port: int, done: Callable[[End | None], None]) -> None:
        world = self.world

        def arrive() -> None:
            other = world.nodes.get(peer)
            if not self.alive:
                return
            if other is None or not other.alive or not (other.reachable and self.reachable):
                world.after(world.latency_ns, lambda: done(None) if self.alive else None)
                return
            ours, theirs = self.new_end(source_port), other.new_end(source_port)
            ours.twin, theirs.twin = theirs, ours
            world.after(world.latency_ns, lambda: done(ours) if self.alive else None)
            other.endpoint.handle_accepted(
                theirs.number,
                self.local,
                source_port,
                world.now_ns,
                is_urds=world.by_shared_memory,
            )

        world.after(world.latency_ns, arrive)

    def _connected(self, peer: IPAddress, index: int, end: End | None) -> None:
        if end is None:
            self.to(peer).handle_connect_failed(index, self.world.now_ns)
        else:
            by_shared_memory = self.world.by_shared_memory
            self.to(peer).handle_connected(
                index, end.number, self.world.now_ns, is_urds=by_shared_memory
            )

    def _call_back_requested(self, peer: IPAddress, end: End | None) -> None:
        if end is None:
            self.to(peer).handle_connect_failed(0, self.world.now_ns)
        else:
            end.call_back_request = True
            self.to(peer).handle_call_back_requested(self.world.now_ns)

    # -- the plane

    def _attach(
        self, peer: IPAddress, index: int, end: End, hold: Hold, probe: bytes | None
    ) -> None:
        old = self.attached.get((peer, index))
        if old is not None:
            old.index = None
            self.close(old)
        self.attached[peer, index] = end
        self._attachments[peer, index] += 1
        end.attachment = self._attachments[peer, index]
        end.peer, end.index, end.held = peer, index, hold
        self._send(end, Frame(), past_hold=True)
        if probe is not None:
            self._send(end, Frame(1, 0, probe), past_hold=False)
        early, end.early = end.early, []
        for frame in early:
            self.world.after(0, lambda frame=frame: self._take(end, frame))
        if not end.open:
            self.world.after(0, lambda: self._ended(end))

    def _send(self, end: End, frame: Frame, *, past_hold: bool) -> None:
        if end.held is not Hold.NOTHING and not past_hold:
            end.waiting.append(frame)
            return
        twin = end.twin
        if end.open and twin is not None and twin.node is not None:
            node = twin.node
            self.world.after(self.world.latency_ns, lambda: node._take(twin, frame))

    def _unhold(self, end: End) -> None:
        if end.held is Hold.HELLO and end.twin is not None and end.twin.index is not None:
            assert end.index == end.twin.index, "messages over the path of other numbers"
        end.held = Hold.NOTHING
        waiting, end.waiting = end.waiting, []
        for frame in waiting:
            self._send(end, frame, past_hold=True)

    def _take(self, end: End, frame: Frame) -> None:
        if not self.alive or not end.open:
            return
        if end.peer is None:
            end.early.append(frame)
            return
        if end.index is None:
            return
        end.frames += 1
        connection = self.to(end.peer)
        now_ns = self.world.now_ns
        if end.frames == 1:
            if end.held is Hold.FIRST_FRAME:
                self._unhold(end)
            sender = None if end.twin is None else end.twin.node
            generation = None if sender is None else sender.generation
            connection.handle_first_frame(end.index, end.attachment, now_ns, generation=generation)
            self.act()
        if frame.source_port is not None and end.index is not None:
            connection.handle_control(
                end.index,
                end.attachment,
                acknowledgement=frame.acknowledgement,
                source_port=frame.source_port,
                target_port=frame.target_port,
                extension=frame.extension,
                now_ns=now_ns,
            )

    def close(self, end: End, *, silent: bool = False) -> None:
        """Close our end; the other one learns it after a latency, unless the host is gone."""
        if not end.open:
            return
        end.open = False
        self._ends.pop(end.number, None)
        twin = end.twin
        if twin is not None and twin.node is not None and not silent:
            node = twin.node
            self.world.after(self.world.latency_ns, lambda: node._ended(twin))

    def _ended(self, end: End) -> None:
        end.open = False
        self._ends.pop(end.number, None) if end.index is not None or end.call_back_request else None
        if not self.alive or end.peer is None or end.index is None:
            return
        if self.attached.get((end.peer, end.index)) is end:
            del self.attached[end.peer, end.index]
            index, end.index = end.index, None
            self.to(end.peer).handle_down(index, end.attachment, end.frames, self.world.now_ns)

    def reset(self, peer: IPAddress, index: int = 0) -> None:
        """Break a path's stream under both ends."""
        end = self.attached.get((peer, index))
        if end is not None:
            self.close(end)
            self._ended(end)
            self.act()


# Reports by hand, about the current stream: these count as the toy plane would.


def first_frame(core: TcpPeer, index: int, now_ns: int) -> None:
    core.handle_first_frame(index, core._paths[index].attachment, now_ns)


def down(core: TcpPeer, index: int, frames: int, now_ns: int) -> None:
    core.handle_down(index, core._paths[index].attachment, frames, now_ns)


def control(core: TcpPeer, index: int, **message: object) -> None:
    core.handle_control(index, core._paths[index].attachment, **message)


def shake_hands(
    core: TcpPeer, told: Handshake, *, ping: bool, now_ns: int = 0, index: int = 0
) -> None:
    """Report the peer's handshake: a probe or a hello (`ping`), or the answer to ours."""
    source_port, target_port = (PROBE_PORT, PING_PORT) if ping else (PING_PORT, PROBE_PORT)
    control(
        core,
        index,
        acknowledgement=0,
        source_port=source_port,
        target_port=target_port,
        extension=emit_handshake(told),
        now_ns=now_ns,
    )


def of_own(generation: int | None, npaths: int = 1) -> Handshake:
    """Return what a urds node tells; its probe has no generation."""
    mark = Mark(Capability.GENERATION_HELLO)
    return Handshake(npaths=npaths, generation=generation, mark=mark)


def paths_match(one: Node, other: Node) -> bool:
    """Tell whether both have the same paths, each over one stream with the same index."""
    mine = {index: end for (peer, index), end in one.attached.items() if peer == other.local}
    theirs = {index: end for (peer, index), end in other.attached.items() if peer == one.local}
    return (
        bool(mine)
        and mine.keys() == theirs.keys()
        and all(mine[index].twin is theirs[index] for index in mine)
    )
