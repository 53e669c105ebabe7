"""A path of RDS over TCP whose peer sends anything, with an application and a control plane on top.

Whatever comes, the path goes on or names a protocol error. It keeps no more than its limits allow,
charges each socket what its messages weigh, and what it writes are whole frames in order: numbers
that rise, retransmits of what was sent before, nothing between header and payload.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from fuzz.accounts import Account
from fuzz.script import Script, step
from urds.rds.constants import CONGESTION_MAP_BYTES, Capability, ExtensionType, HeaderFlag
from urds.rds.plane.contract import (
    Buffer,
    DownReason,
    Limits,
)
from urds.rds.plane.python.counters import Counters
from urds.rds.plane.python.inbox import Inbox
from urds.rds.plane.python.path import PathCore
from urds.rds.plane.python.queued_messages import Fence
from urds.rds.types import AckMode, Hold
from urds.rds.wire import extensions as exthdr
from urds.rds.wire.header import HEADER_BYTES, Header

STEPS_MAX = 400
FRAME_BYTES_MAX = 20_000
MESSAGES_MAX = 40
PORTS = (2, 3, 4)  # of which ours are the first two
SEQUENCE_FIRST = 1000
GENERATION = 77
_WIRE_BYTES_MAX = 1 << 18  # that the peer has sent and the path has not read
_PORTIONS_MAX = 32
_HANDSHAKES_OF_STREAM = 4
_PARTIAL_BYTES_MAX = HEADER_BYTES + 8192  # of a message that is not collected apart
_SIZES = (0, 1, 100, 5000, 9000, FRAME_BYTES_MAX)
_HELLO_PORTS = (1, 0)
_MS = 1_000_000
_MARK = exthdr.Mark(Capability(0))


class Judge:
    """Reads what the path writes to one stream after the other, as the peer would.

    What was framed when a stream ended is retransmitted, whether the peer saw it or not, and what
    was cancelled then leaves a hole.
    """

    def __init__(self) -> None:
        self._new_last = SEQUENCE_FIRST - 1  # of all streams
        self._last = 0  # of this stream
        self._bytes = bytearray()

    def begin_stream(self) -> None:
        """Forget half a frame: it was lost with its stream."""
        self._bytes.clear()
        self._last = 0

    def take(self, data: bytes) -> None:
        """Read bytes; check each whole frame."""
        self._bytes += data
        while len(self._bytes) >= HEADER_BYTES:
            header = Header.parse(bytes(self._bytes[:HEADER_BYTES]))  # a checksum must fit
            end = HEADER_BYTES + header.payload_bytes
            if len(self._bytes) < end:
                return
            del self._bytes[:end]
            self._judge(header)

    def _judge(self, header: Header) -> None:
        number = header.sequence
        if header.flags == HeaderFlag.CONG_BITMAP:
            assert (number, header.payload_bytes) == (0, CONGESTION_MAP_BYTES)
            return
        if not number:
            assert not header.payload_bytes, "only acknowledgements and hellos have no number"
            return
        assert number > self._last, f"{number} after {self._last} on one stream"
        self._last = number
        if not header.flags & HeaderFlag.RETRANSMITTED:
            assert number > self._new_last, f"{number} is not new, and not flagged"
            self._new_last = number


class Besieged:
    """One path and its surroundings; the peer is the script's."""

    def __init__(self, choices: int) -> None:
        self.limits = Limits(
            frame_bytes_max=FRAME_BYTES_MAX,
            control_events_max=1,
            acknowledge_messages=8,
            acknowledge_bytes=30_000,
            unacked_packets_max=2,
            unacked_bytes_max=10_000,
        )
        self.inboxes = {port: Inbox(port=port, buffer_bytes=10_000) for port in PORTS[:2]}
        self.inboxes[PORTS[1]].detailed = bool(choices & 1)
        self.accounts = [Account(), Account()]
        self.judge = Judge()
        self.now_ns = 0
        self.wire = bytearray()  # sent by the peer, not read yet
        self.core = PathCore(
            self.limits,
            Counters(),
            sequence_first=SEQUENCE_FIRST,
            generation=GENERATION if choices & 2 else None,
            inboxes=self.inboxes,
            source_of=lambda port: ("127.0.0.2", port),
            map_bytes=lambda: bytes(CONGESTION_MAP_BYTES),
        )
        self._other_fence = Fence()  # of another path
        self._agreed = False
        self._streams = self._controls = 0  # so far; control messages that were let through

    # -- the stream

    def attach(self, hold: Hold) -> None:
        """Begin a stream, if there is none."""
        if not self.core.attached:
            self.judge.begin_stream()
            self._streams += 1
            self.core.attach(hold)

    def detach(self) -> None:
        """End it; bytes on it that were not read are lost."""
        if self.core.attached:
            self.core.detach()
        self.wire.clear()

    def say(self, data: bytes) -> None:
        """Let the peer send something, to be read later."""
        if self.core.attached and len(self.wire) + len(data) <= _WIRE_BYTES_MAX:
            self.wire += data

    def read(self, portion: int) -> None:
        """Read the peer's bytes, in portions of a size; a protocol error ends the stream."""
        for _ in range(_PORTIONS_MAX):
            if not self.wire or not self.core.attached:
                return
            data = bytes(self.wire[:portion])
            del self.wire[:portion]
            reason = self.core.receive_data(data, self.now_ns)
            self._settle()
            if reason is not None:
                assert isinstance(reason, DownReason)
                self.detach()

    def _settle(self) -> None:
        incoming = self.core.receiver
        if incoming.peer_map is not None:
            assert len(incoming.peer_map) == CONGESTION_MAP_BYTES
            incoming.peer_map = None
        for inbox, count in incoming.touched.items():
            assert inbox in self.inboxes.values() and count > 0
        incoming.touched.clear()
        self._controls += len(incoming.controls)
        incoming.controls.clear()
        earned = self.limits.control_events_max + self.now_ns // self.limits.control_interval_ns
        assert self._controls <= earned + self._streams * _HANDSHAKES_OF_STREAM, "over the budget"
        incoming.restarted = False
        assert incoming.partial.bytes_wanted() > 0

    def write(self, bytes_max: int) -> None:
        """Have the stream take some of the path's bytes."""
        due = self.core.wants_to_write()
        buffers = self.core.poll_transmit()
        assert due or not buffers, "no peer would have written this"
        # What a kernel asks to have acknowledged is due, and no bytes: it is due only once.
        assert buffers or not self.core.wants_to_write(), "a writer would spin"
        taken = _join(buffers)[:bytes_max]
        if taken:
            self.judge.take(taken)
            self.core.transmitted(len(taken))

    # -- the application

    def queue(self, choice: int, amount: int) -> None:
        """Queue a message while there is room."""
        outgoing = self.core.sender
        if outgoing.message_count() < MESSAGES_MAX:
            extension = bytes([ExtensionType.RDMA]) + bytes(15) if choice & 8 else b""
            payload = bytes(_SIZES[amount % len(_SIZES)])
            owner = self.accounts[choice & 1]
            self.core.send(owner, PORTS[choice & 1], PORTS[amount % 3], payload, extension)
            outgoing.ack_wanted |= bool(choice & 2)

    def act(self, choice: int, amount: int) -> None:
        """Do something that an application, the shell or TCP does."""
        core = self.core
        match choice % 6:
            case 0:
                core.sender.cancel(
                    self.accounts[amount & 1], None if amount & 2 else PORTS[amount % 3]
                )
            case 1:
                core.handle_stream_acknowledged(core.bytes_written * amount // 255)
            case 2:
                self.now_ns += amount * _MS // 16
                core.handle_timeout(self.now_ns)
            case 3:
                for inbox in self.inboxes.values():
                    self._empty(inbox)
            case _:
                core.acknowledge()

    def _empty(self, inbox: Inbox) -> None:
        while inbox.queue:
            payload, source, *_ = inbox.queue.popleft()
            assert len(payload) <= FRAME_BYTES_MAX and source[0] == "127.0.0.2"
            inbox.receive_queued_bytes -= len(payload)

    # -- the control plane

    def control(self, choice: int, amount: int) -> None:
        """Do something that the control plane does; like its shell, no more than there is room."""
        core = self.core
        has_room = core.sender.message_count() < MESSAGES_MAX
        match choice % 8:
            case 0:
                core.end_hold(None if amount & 1 else core.sender.sequence_next - (amount >> 4))
            case 1:
                self._agree(tuple(AckMode)[1 + amount % 2], checksum=bool(amount & 4))
            case 2:
                core.restart_peer()
            case 3:
                core.receiver.generations.generation = amount or None
            case 4 if core.attached and has_room:
                source, target = _HELLO_PORTS if amount & 1 else (0, PORTS[amount % 3])
                core.control(
                    source_port=source,
                    target_port=target,
                    extension=bytes(16),
                    hello=amount & 1 > 0,
                )
            case 5:
                core.map_due = core.attached
            case 6 if amount & 1:
                core.hold_behind(self._other_fence)
            case 6:
                self._other_fence.open = True
                self._other_fence = Fence()
            case 7 if not amount % 16:
                core.sender.drop_all()
            case 7 if has_room:
                core.sender.fence()

    def _agree(self, ack_mode: AckMode, *, checksum: bool) -> None:
        self._agreed = True
        self.core.agree(ack_mode=ack_mode, checksum=checksum)

    # -- invariants

    def check(self) -> None:
        """Check what the path keeps, and what it charges."""
        outgoing, incoming = self.core.sender, self.core.receiver
        weights: Counter[int] = Counter()
        for message in outgoing.unsent:
            if not isinstance(message, Fence) and message[0] is not None:
                weights[id(message[0])] += len(message[3])
        for sent in (*outgoing.retransmits, *outgoing.unacked):
            weights[id(sent[2])] += len(sent[5]) if sent[2] is not None else 0
        for account in self.accounts:
            assert account.send_queued_bytes == weights[id(account)], "the account is wrong"
        numbers = [sent[0] for sent in (*outgoing.unacked, *outgoing.retransmits)]
        assert numbers == sorted(set(numbers)), "what is kept is out of order"
        assert outgoing.message_count() <= MESSAGES_MAX
        assert len(incoming.partial.begun) <= _PARTIAL_BYTES_MAX
        body = incoming.partial._body  # no public access to the parts of a long message
        assert sum(map(len, body)) <= FRAME_BYTES_MAX
        for inbox in self.inboxes.values():
            queued = sum(len(item[0]) for item in inbox.queue)
            assert inbox.receive_queued_bytes == queued, "the inbox is wrong"

    def close(self) -> None:
        """End; every account is empty."""
        self.detach()
        self.core.sender.drop_all()
        self.check()
        assert not any(account.send_queued_bytes for account in self.accounts)


def rds_path(data: bytes) -> None:
    """Let a script be the peer, the stream, the application and the control plane of a path."""
    script = Script(data)
    side = Besieged(script.number())
    side.attach(Hold.NOTHING)
    for _ in range(STEPS_MAX):
        if not script:
            break
        action, amount = script.number(), script.number()
        match action & 7:
            case 0:
                side.say(script.piece())
            case 1 | 2:
                side.say(_frame(action >> 3, amount, script.number(), side))
            case 3:
                side.read(amount * amount + 1)
            case 4:
                side.write(amount * amount + 1)
            case 5:
                side.queue(action >> 3, amount)
            case 6:
                side.act(action >> 3, amount)
            case _ if action & 8:
                side.control(action >> 4, amount)
            case _ if action & 16:
                side.detach()
            case _:
                side.attach(tuple(Hold)[amount % len(Hold)])
        side.check()
    side.close()


def _frame(kind: int, amount: int, number: int, side: Besieged) -> bytes:
    """Return a frame that is nearly in order, sometimes with a checksum."""
    if kind & 15 == 15:
        size = CONGESTION_MAP_BYTES - (number & 1)
        life = exthdr.Handshake(generation=1 + amount, mark=_MARK)
        header = Header(
            flags=HeaderFlag.CONG_BITMAP,
            payload_bytes=size,
            extension=exthdr.emit_handshake(life),
        )
        return header.emit(checksum=bool(amount & 1)) + bytes(size)
    size = _SIZES[amount % len(_SIZES)] + (amount == 255)
    acknowledged = max(0, side.core.sender.sequence_next + 1 - (number & 15))
    flags = HeaderFlag(0)
    if kind & 1:
        flags |= HeaderFlag.RETRANSMITTED
    if kind & 2:
        flags |= HeaderFlag.ACK_REQUIRED
    header = Header(
        sequence=max(0, side.core.receiver.sequence_expected + 3 - (number >> 4)),
        ack=acknowledged if kind & 4 else 0,
        payload_bytes=size,
        source_port=amount >> 4 & 3,
        target_port=PORTS[amount % 3] if kind & 8 else amount >> 6,
        flags=flags,
        extension=exthdr.emit_handshake(
            exthdr.Handshake(generation=1 + (number & 1), mark=_MARK if number & 2 else None)
        ),
    )
    return header.emit(checksum=bool(kind & 16)) + bytes(size)


def _join(buffers: list[Buffer]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


TARGETS: dict[str, Callable[[bytes], None]] = {"rds_path": rds_path}


def _conversation(*, agree: int) -> Iterator[bytes]:
    """Give the steps of a stream with a urds node or a kernel, then of a second one."""
    yield bytes([1 + 0x78, 2, 0]) + bytes([3, 200])  # its map
    yield bytes([7 + 8 + 0x10, agree])
    for amount in range(6):
        yield bytes([5, amount, 4, 255]) + bytes([1 + 0x68, 0x20 + amount, 0x30, 3, 7 * amount])
    yield bytes([6 + 0x10, 80, 6 + 8, 200, 4, 255])  # time, TCP's acknowledgement
    yield bytes(
        [7 + 16, 0, 7, 3, 1 + 0x78, 2, 0, 3, 255, 7 + 8, 1, 4, 255, 4, 90, 6, 0, 6 + 0x18, 0]
    )


_PING = Header(sequence=1, source_port=2, target_port=0).emit()
SEEDS: dict[str, tuple[bytes, ...]] = {
    "rds_path": (
        b"\2" + b"".join(_conversation(agree=5)),
        b"\3" + b"".join(_conversation(agree=0)),
        b"\1" + b"".join(_conversation(agree=1)) + bytes([5, 4, 5, 5, 7 + 0x78, 1, 4, 200]),
        b"\0" + step(0, 0, data=_PING * 6) + bytes([3, 3, 6 + 0x28, 0]) + _PING,
    )
}
