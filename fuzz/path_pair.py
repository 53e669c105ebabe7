"""Two nodes of RDS over TCP, real cores on both sides, and a script that is everything between.

The script decides when bytes move and in which portions, when streams break and how much of them
arrives, when control threads look, how much time passes, and when a node restarts. A model checks:
no message is delivered twice to one generation of its receiver, or before an earlier one of its
flow; and once the disturbance ends, each message whose sender and receiver did not restart has
arrived. The acknowledged bytes are read before the stream's end is, as sockets have it.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address
from struct import Struct

from fuzz.accounts import Account
from fuzz.script import Script
from tests.support.lone_peer import LonePeer
from urds.rds.constants import CONGESTION_MAP_BYTES
from urds.rds.control import events
from urds.rds.control.settings import ConnectionSettings
from urds.rds.plane.contract import Buffer, Limits
from urds.rds.plane.python.counters import Counters
from urds.rds.plane.python.inbox import Inbox
from urds.rds.plane.python.path import PathCore
from urds.rds.plane.python.receiver import ControlMessage

STEPS_MAX = 300
MESSAGES_MAX = 24  # of one node at a time
PORTS = (4000, 4001)
ADDRESSES = (IPv4Address("127.0.0.2"), IPv4Address("127.0.0.3"))
_SIZES = (0, 10, 100, 9000, 40_000)
_HEAL_ROUNDS_MAX = 600
_ACTIONS_MAX = 200
_SEQUENCE_SPAN = 1 << 20  # between the first numbers of two generations
_LIVES_MAX = STEPS_MAX
_NUMBER = Struct("!IHHI")  # generation, source port, target port, number in the flow
_MS = 1_000_000

_Flow = tuple[int, int, int]  # generation of the sender, source port, target port


@dataclass(slots=True)
class Way:
    """One direction of a stream."""

    wire: bytearray = field(default_factory=bytearray)  # written, not acknowledged
    lost_bytes: int = 0  # the same, when the stream ended: TCP still reports them
    arrived: bytearray = field(default_factory=bytearray)  # acknowledged, not read


@dataclass(slots=True, eq=False)
class Stream:
    """A TCP connection; ways by the side that reads them."""

    ways: tuple[Way, Way] = field(default_factory=lambda: (Way(), Way()))
    is_over: bool = False

    def end(self) -> None:
        """End it: what has not arrived is lost."""
        self.is_over = True
        for way in self.ways:
            way.lost_bytes += len(way.wire)
            way.wire.clear()


class MessageLog:
    """The messages sent and received, and the checks of them."""

    def __init__(self) -> None:
        self.lives = 0
        self._sent: dict[_Flow, list[int | None]] = {}  # generation of the receiver at that time
        self._came: dict[_Flow, set[int]] = {}
        self._last: dict[tuple[int, _Flow], int] = {}

    def next(self, flow: _Flow, receiver: int) -> bytes:
        """Return what names the next message of a flow."""
        sent = self._sent.setdefault(flow, [])
        sent.append(receiver)
        return _NUMBER.pack(*flow, len(sent) - 1)

    def cancel(self, life: int) -> None:
        """Allow the messages that a node sent so far to be lost."""
        for flow, sent in self._sent.items():
            if flow[0] == life:
                sent[:] = [None] * len(sent)

    def check(self, payload: bytes, receiver: int, target_port: int) -> None:
        """Check a message that came."""
        *named, number = _NUMBER.unpack_from(payload)
        flow = (named[0], named[1], named[2])
        assert flow[2] == target_port and payload[_NUMBER.size :] == _filling(payload)
        last = self._last.get((receiver, flow), -1)
        assert number > last, f"{number} after {last}: doubled or reordered in {flow}"
        self._last[receiver, flow] = number
        self._came.setdefault(flow, set()).add(number)

    def judge_end(self, lives: tuple[int, int]) -> None:
        """Check what did not come: all messages between two generations that both still run."""
        for flow, sent in self._sent.items():
            if flow[0] in lives:
                came = self._came.get(flow, set())
                receiver = lives[1 - lives.index(flow[0])]
                lost = {number for number, to in enumerate(sent) if to == receiver} - came
                assert not lost, f"lost {sorted(lost)} of {flow}"


class Node:
    """One generation of one side: its cores, under a shell that the script drives."""

    def __init__(self, side: int, log: MessageLog, choices: int) -> None:
        log.lives += 1
        self.side, self.life, self.log = side, log.lives, log
        self.account = Account()
        self.inboxes = {port: Inbox(port=port, buffer_bytes=1 << 30) for port in PORTS}
        # Numbers start from the clock, and a clock may be set back.
        start = _LIVES_MAX + 2 - self.life if choices & 16 else self.life
        self.core = PathCore(
            Limits(acknowledge_messages=4, unacked_packets_max=3),
            Counters(),
            sequence_first=1 + start * _SEQUENCE_SPAN,
            generation=self.life,
            inboxes=self.inboxes,
            source_of=lambda port: (str(ADDRESSES[1 - side]), port),
            map_bytes=lambda: bytes(CONGESTION_MAP_BYTES),
        )
        self.connection = LonePeer(
            local=ADDRESSES[side],
            peer=ADDRESSES[1 - side],
            settings=ConnectionSettings(generation=self.life),
            random=random.Random(choices),
        )
        self.stream: Stream | None = None
        self.attachment = 0
        self.attempts = 0  # connects or call-back requests that are not answered
        self.offered: dict[int, Stream] = {}
        self.reports: deque[Callable[[], None]] = deque()
        self._is_first_frame_told = False
        self._is_wanted = False
        self.now_ns = 0

    # -- the application

    def send(self, choice: int, receiver: int) -> None:
        """Queue a message while there is room."""
        if self.core.sender.message_count() >= MESSAGES_MAX:
            return
        source_port, target_port = PORTS[choice & 1], PORTS[choice >> 1 & 1]
        head = self.log.next((self.life, source_port, target_port), receiver)
        filling = _filling(head + bytes(_SIZES[(choice >> 2) % len(_SIZES)]))
        self.core.send(self.account, source_port, target_port, head + filling)
        self._want()

    def take(self) -> None:
        """Receive all messages that are here."""
        for port, inbox in self.inboxes.items():
            while inbox.queue:
                payload = inbox.queue.popleft()[0]
                inbox.receive_queued_bytes -= len(payload)
                self.log.check(payload, self.life, port)

    def cancel(self) -> None:
        """Take back everything that is not acknowledged."""
        self.log.cancel(self.life)
        self.core.sender.cancel(self.account, None)

    # -- the shell of the path

    def _want(self) -> None:
        if self.stream is None and not self._is_wanted:
            self._is_wanted = True
            self.reports.append(lambda: self.connection.handle_wanted(0, self.now_ns))

    def write(self, bytes_max: int) -> None:
        """Have the stream take some bytes."""
        stream = self.stream
        if stream is not None and not stream.is_over:
            taken = _join(self.core.poll_transmit())[:bytes_max]
            if taken:
                self.core.transmitted(len(taken))
                stream.ways[1 - self.side].wire += taken

    def arrive(self, bytes_max: int) -> None:
        """Have this side's TCP take and acknowledge some of the bytes on the wire to it."""
        if self.stream is not None:
            way = self.stream.ways[self.side]
            way.arrived += way.wire[:bytes_max]
            del way.wire[:bytes_max]

    def read(self, bytes_max: int) -> None:
        """Read once; the end of the stream comes behind all that arrived."""
        stream = self.stream
        if stream is None:
            return
        arrived = stream.ways[self.side].arrived
        data = bytes(arrived[:bytes_max])
        del arrived[:bytes_max]
        if data:
            assert self.core.receive_data(data, self.now_ns) is None, "no peer breaks rules here"
            self._settle()
        elif stream.is_over and not arrived:
            frames, attachment = self.core.receiver.frames, self.attachment
            self._release_stream()
            self.reports.append(
                lambda: self.connection.handle_down(0, attachment, frames, self.now_ns)
            )
            if self.core.sender.holds():
                self._want()

    def _settle(self) -> None:
        incoming, attachment = self.core.receiver, self.attachment
        incoming.touched.clear()
        incoming.peer_map = None
        self.core.sender.freed.clear()
        if incoming.frames and not self._is_first_frame_told:
            self._is_first_frame_told = True
            self.reports.append(
                lambda: self.connection.handle_first_frame(0, attachment, self.now_ns)
            )
        while incoming.controls:
            self.reports.append(partial(self._control, attachment, incoming.controls.popleft()))
        if incoming.restarted:
            incoming.restarted = False
            self.reports.append(lambda: self.connection.handle_peer_restarted(self.now_ns))

    def _control(self, attachment: int, message: ControlMessage) -> None:
        self.connection.handle_control(
            0,
            attachment,
            acknowledgement=message.acknowledgement,
            source_port=message.source_port,
            target_port=message.target_port,
            extension=message.extension,
            now_ns=self.now_ns,
        )

    def ask_tcp(self) -> None:
        """Free what the peer's TCP acknowledged."""
        if self.stream is not None:
            way = self.stream.ways[1 - self.side]
            unacknowledged = len(way.wire) + way.lost_bytes
            self.core.handle_stream_acknowledged(self.core.bytes_written - unacknowledged)

    def _release_stream(self) -> None:
        stream, self.stream = self.stream, None
        assert stream is not None
        stream.end()
        self._is_first_frame_told = self._is_wanted = False
        self.core.detach()

    def detach(self) -> None:
        """Read what arrived, then close."""
        if self.stream is not None:
            stream = self.stream
            while self.stream is stream and stream.ways[self.side].arrived:
                self.read(1 << 16)
            self.ask_tcp()
            self._release_stream()

    # -- the control thread

    def turn(self) -> None:
        """Pass reports on, then do the actions that follow."""
        while self.reports:
            self.reports.popleft()()
        self.connection.handle_timeout(self.now_ns)
        self.core.handle_timeout(self.now_ns)
        for _ in range(_ACTIONS_MAX):
            action = self.connection.poll_event()
            if action is None:
                return
            self._do(action)
        raise AssertionError("no end of actions")

    def _do(self, action: events.Action) -> None:
        core = self.core
        match action:
            case events.Connect() | events.RequestCallBack():
                self.attempts += 1
            case events.Attach(_, _, number, hold, probe):
                self.detach()
                self.stream = self.offered.pop(number)
                self.attachment += 1
                core.attach(hold)
                if probe is not None:
                    core.control(source_port=1, target_port=0, extension=probe, hello=False)
            case events.Refuse(_, number):
                self.offered.pop(number).end()
            case events.Detach():
                self.detach()
            case events.SendControl(_, _, source_port, target_port, extension, hello):
                if core.attached:
                    core.control(
                        source_port=source_port,
                        target_port=target_port,
                        extension=extension,
                        hello=hello,
                    )
            case events.Release(_, _, received_by_peer):
                core.end_hold(received_by_peer)
            case events.Agree(_, ack_mode, checksum):
                core.agree(ack_mode=ack_mode, checksum=checksum)
                self.ask_tcp()
            case events.RestartPeer():
                core.restart_peer()
            case events.RememberHandshake(_, generation):
                core.receiver.generations.generation = generation
            case events.ProbeDeadStream():
                core.map_due = core.attached


class World:
    """Both nodes and the network between them."""

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self._numbers = 0
        self.log = MessageLog()
        self.now_ns = 0
        self.nodes = [Node(side, self.log, choices) for side in (0, 1)]

    @property
    def lives(self) -> tuple[int, int]:
        """Return the generations that run on both sides."""
        return self.nodes[0].life, self.nodes[1].life

    def connect(self, side: int, *, is_refused: bool) -> None:
        """Answer an attempt of a side, if there is one."""
        node, other = self.nodes[side], self.nodes[1 - side]
        if not node.attempts:
            return
        node.attempts -= 1
        if is_refused:
            node.connection.handle_connect_failed(0, self.now_ns)
            return
        self._numbers += 1
        number, stream = self._numbers, Stream()
        other.offered[number] = stream
        other.reports.append(
            lambda: other.connection.handle_accepted(number, 8 * number, self.now_ns)
        )
        if side:  # a call-back request carries nothing; the other side refuses it and connects
            node.connection.handle_call_back_requested(self.now_ns)
        else:
            node.offered[number] = stream
            node.connection.handle_connected(0, number, self.now_ns)

    def break_streams(self, bytes_max: int) -> None:
        """Break the connections between them; at most so many bytes each way still arrive."""
        for node in self.nodes:
            node.arrive(bytes_max)
        for stream in {node.stream for node in self.nodes if node.stream is not None}:
            stream.end()

    def restart(self, side: int) -> None:
        """Kill a node and start it anew; the other one's streams end."""
        old = self.nodes[side]
        for stream in (*old.offered.values(), old.stream):
            if stream is not None:
                stream.end()
        self.nodes[side] = Node(side, self.log, self._choices)
        self.pass_time(0)

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        self.now_ns += milliseconds * _MS
        for node in self.nodes:
            node.now_ns = self.now_ns

    def heal(self) -> None:
        """End the disturbance; in bounded time everything arrives."""
        for _ in range(_HEAL_ROUNDS_MAX):
            self.pass_time(20)
            for side, node in enumerate(self.nodes):
                node.turn()
                self.connect(side, is_refused=False)
                for _ in range(8):
                    node.write(1 << 17)
                    self.nodes[1 - side].arrive(1 << 17)
                    self.nodes[1 - side].read(1 << 17)
                node.take()
                node.ask_tcp()
            if not any(node.core.sender.holds() or node.reports for node in self.nodes):
                break
        else:
            raise AssertionError("messages stay for ever")
        for node in self.nodes:
            node.take()
            assert not node.account.send_queued_bytes, "the account is wrong"
        self.log.judge_end(self.lives)


def rds_pair(data: bytes) -> None:
    """Let a script be the applications, the network, the threads and the time of two nodes."""
    script = Script(data)
    world = World(script.number())
    for _ in range(STEPS_MAX):
        if not script:
            break
        action, amount = script.number(), script.number()
        side = action >> 7
        node = world.nodes[side]
        match action & 15:
            case 0 | 1 | 2:
                node.send(amount, world.nodes[1 - side].life)
            case 3 | 4:
                node.write(_portion(amount))
            case 5:
                node.arrive(_portion(amount))
            case 6 | 7:
                node.arrive(_portion(amount))
                node.read(_portion(amount))
            case 8 | 9:
                node.turn()
            case 10:
                world.connect(side, is_refused=amount & 7 == 7)
            case 11:
                world.break_streams(_portion(amount))
            case 12:
                world.pass_time(amount * amount >> (action >> 3 & 14))
            case 13 if amount & 3 == 3:
                world.restart(side)
            case 13:
                node.ask_tcp()
            case 14 if amount & 31 == 31:
                node.cancel()
            case _:
                node.take()
    world.heal()


def _portion(amount: int) -> int:
    """Return how many bytes: few exactly, many roughly."""
    return amount if amount < 128 else (amount - 127) ** 2 * 8


def _filling(payload: bytes) -> bytes:
    """Return what follows the number of a message of this length."""
    return payload[_NUMBER.size - 1 : _NUMBER.size] * (len(payload) - _NUMBER.size)


def _join(buffers: list[Buffer]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


TARGETS: dict[str, Callable[[bytes], None]] = {"rds_pair": rds_pair}

_HIGH = 0x80
_MEET = bytes([8, 0, 10, 0, 8, 0, _HIGH + 8, 0])
_CALL_BACK_REQUEST = bytes([_HIGH + 8, 0, _HIGH + 10, 0])
_MOVE = bytes([3, 255, _HIGH + 3, 255, 6, 255, _HIGH + 6, 255, 8, 0, _HIGH + 8, 0])
_SEND = bytes([0, 0, 1, 7, 2, 14, _HIGH, 1, _HIGH + 1, 13])
_TAKE = bytes([15, 0, _HIGH + 15, 0])
_BREAK = bytes([11, 60, 6, 255, 6, 255, _HIGH + 6, 255, _HIGH + 6, 255])
_RESTART_HIGH = bytes([_HIGH + 13, 3])
_LATER = bytes([12, 60])
SEEDS: dict[str, tuple[bytes, ...]] = {
    "rds_pair": (
        b"\0" + _SEND + _MEET + _MOVE * 4 + _TAKE,
        b"\1" + _SEND + _MEET + _MOVE * 3 + (_SEND + _BREAK + _LATER + _MEET + _MOVE * 3) * 2,
        b"\2" + _SEND + _MEET + _MOVE * 3 + _SEND + _RESTART_HIGH + _LATER + _MEET + _MOVE * 4,
        b"\3" + _SEND + _MEET + bytes([12, 255, 12, 255]) + _MOVE * 3 + _SEND + _BREAK + _MOVE,
        b"\x10" + _SEND + _MEET + _MOVE * 3 + _SEND + _RESTART_HIGH + _LATER + _MEET + _MOVE * 4,
        b"\4" + _SEND + _CALL_BACK_REQUEST + _MEET + _MOVE + bytes([14, 31]) + _MOVE,
    )
}
