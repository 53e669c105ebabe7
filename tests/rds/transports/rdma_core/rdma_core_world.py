"""One or two connection cores of RDS over RDMA with their surroundings, without a device."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from urds.rds.constants import CONGESTION_MAP_BYTES, HeaderFlag
from urds.rds.plane.contract import AtomicOperation, Operation, RdmaTransfer
from urds.rds.plane.python.counters import Counters
from urds.rds.transports.rdma.core import ConnectionCore, CoreLimits
from urds.rds.transports.rdma.counters import RdmaCounters
from urds.rds.transports.rdma.frames import Frame, Message, Outcome, Piece, Work
from urds.rds.wire.frame_format import FrameFormat
from urds.rds.wire.header import HEADER_BYTES, Header

SOURCE, TARGET = 4000, 5000
FRAGMENT = 4096
NO_FLAGS = HeaderFlag(0)
ACK_REQUIRED = HeaderFlag.ACK_REQUIRED
RETRANSMITTED = HeaderFlag.RETRANSMITTED
CONG_BITMAP = HeaderFlag.CONG_BITMAP
REPEATED = RETRANSMITTED | ACK_REQUIRED


class Account:
    """What a socket is to its paths; the core says what it holds of it."""

    def __init__(self) -> None:
        self.core: ConnectionCore | None = None  # that it has sent by
        self.given_up = 0

    @property
    def send_queued_bytes(self) -> int:
        return self.core.outgoing.held(self)[1] if self.core is not None else 0


class Seen(NamedTuple):
    """A frame as its receiver reads it."""

    header: Header
    payload: bytes


class Side:
    """A core with one account; it notes everything the core asks of its surroundings."""

    def __init__(self, limits: CoreLimits | None = None, *, sequence_first: int = 1) -> None:
        self.counters, self.rdma = Counters(), RdmaCounters()
        self.account = Account()
        self.map = bytes(CONGESTION_MAP_BYTES)
        self.answers_pings = True
        self.is_paused = False
        self.got: list[tuple[int, int, bytes, bytes]] = []
        self.maps: list[bytes] = []
        self.keys: list[int] = []
        self.events: list[object] = []  # keys and payloads, in their order
        self.ended: list[tuple[Account, Operation]] = []
        self.core = ConnectionCore(
            limits or CoreLimits(),
            self.counters,
            self.rdma,
            self,
            sequence_first=sequence_first,
        )
        give_up = self.core.outgoing._give_up

        def give_up_and_count(messages: Iterable[Message]) -> int:
            chosen = list(messages)
            for message in chosen:
                if message.owner is not None:
                    message.owner.given_up += 1
            return give_up(chosen)

        self.core.outgoing._give_up = give_up_and_count

    # -- around the core

    def deliver(self, source_port: int, target_port: int, payload: bytes, extension: bytes) -> None:
        self.got.append((source_port, target_port, payload, extension))
        self.events.append(payload)

    def take_map(self, data: bytes) -> None:
        self.maps.append(data)

    def map_bytes(self) -> bytes:
        return self.map

    def may_answer_ping(self, port: int) -> bool:
        return self.answers_pings

    def key_used(self, target_port: int, key: int) -> None:
        self.keys.append(key)
        self.events.append(key)

    def operation_ended(self, owner: Account, operation: Operation) -> None:
        assert operation.status is not None
        self.ended.append((owner, operation))

    # -- what a test does

    def begin(
        self,
        *,
        acknowledged: int = 0,
        credits: int = 0,
        frame_format: FrameFormat = FrameFormat.SHORT,
    ) -> None:
        """Attach and let the map go."""
        self.core.attach(acknowledged=acknowledged, credits=credits, frame_format=frame_format)
        for fragment in range(2 if frame_format is FrameFormat.SHORT else 1):
            seen = self.take(1)
            assert seen[0].header.flags == CONG_BITMAP, f"fragment {fragment}"

    def reconnect(self, *, acknowledged: int = 0) -> None:
        self.core.detach()
        self.begin(acknowledged=acknowledged)

    def send(
        self,
        *payloads: bytes,
        operations: Sequence[Operation] = (),
        extension: bytes = b"",
        target_port: int = TARGET,
        account: Account | None = None,
        ack_required: bool = False,
    ) -> None:
        sender = account or self.account
        sender.core = self.core
        for payload in payloads:
            self.core.outgoing.queue(
                sender,
                SOURCE,
                target_port,
                payload,
                extension,
                operations,
                ack_required=ack_required,
            )

    def post(self, count: int | None = None) -> list[Work]:
        """Take work from the core, all that there is or so many; nothing completes."""
        posted: list[Work] = []
        while count is None or len(posted) < count:
            wanted = self.core.wants_work()
            work = self.core.poll_work()
            assert wanted == (work is not None), "wants_work tells what poll_work does"
            if work is None:
                break
            posted.append(work)
        return posted

    def take(self, count: int | None = None) -> list[Seen]:
        """Take frames from the core and complete each; pieces of operations complete as well."""
        seen = []
        while count is None or len(seen) < count:
            posted = self.post(1)
            if not posted:
                break
            self.core.handle_completed(posted[0].wr_id, Outcome.DONE)
            if isinstance(posted[0], Frame):
                seen += messages_of(posted[0].data)
        return seen

    def receive(self, *frames: bytes) -> str | None:
        """Hand frames to the core; return the first protocol error."""
        for data in frames:
            reason = self.core.handle_frame(memoryview(data))
            if reason is not None:
                return reason
        return None

    def payloads(self) -> list[bytes]:
        return [payload for _, _, payload, _ in self.got]

    def statuses(self) -> list[int | None]:
        return [operation.status for _, operation in self.ended]


def read(data: bytes) -> Seen:
    return Seen(Header.parse(data[:HEADER_BYTES]), data[HEADER_BYTES:])


def messages_of(data: bytes) -> list[Seen]:
    """Return what a frame holds: a fragment, or one whole message or more."""
    seen = []
    while data:
        header = Header.parse(data[:HEADER_BYTES])
        end = HEADER_BYTES + min(header.payload_bytes, len(data))
        seen.append(Seen(header, data[HEADER_BYTES:end]))
        data = data[end:]
    return seen


def frames(
    sequence: int,
    payload: bytes = b"",
    *,
    flags: HeaderFlag = NO_FLAGS,
    source_port: int = SOURCE,
    target_port: int = TARGET,
    fragment_bytes: int = FRAGMENT,
    **fields: object,
) -> list[bytes]:
    """Return the frames of one message, made apart from the code under test."""
    header = Header(
        sequence=sequence,
        payload_bytes=len(payload),
        flags=flags,
        source_port=source_port,
        target_port=target_port,
        **fields,
    ).emit(checksum=True)
    starts = range(0, max(1, len(payload)), fragment_bytes)
    return [header + payload[start : start + fragment_bytes] for start in starts]


def ack_only(acknowledgement: int, credit: int = 0) -> bytes:
    return Header(ack=acknowledgement, credit=credit).emit(checksum=True)


def map_frames(data: bytes, **fields: object) -> list[bytes]:
    return frames(0, data, flags=CONG_BITMAP, source_port=0, target_port=0, **fields)


def sequences(seen: Iterable[Seen]) -> list[int]:
    return [one.header.sequence for one in seen]


def pieces(work: Iterable[Work]) -> list[Piece]:
    return [one for one in work if isinstance(one, Piece)]


def transfer(*sizes: int, is_write: bool = True, **fields: object) -> RdmaTransfer:
    """Return an operation of pieces of these sizes."""
    views = tuple(memoryview(bytearray(size)) for size in sizes or (100,))
    values = {"key": 0x77, "remote_address": 0x1000, **fields}
    return RdmaTransfer(pieces=views, is_write=is_write, **values)


def atomic(*, is_compare: bool = False, **fields: object) -> AtomicOperation:
    return AtomicOperation(
        key=0x88,
        remote_address=0x2000,
        is_compare=is_compare,
        operand=1,
        result=memoryview(bytearray(8)),
        **fields,
    )


class Pair:
    """Two cores and the wire between them: receives take SENDs in order, one by one."""

    def __init__(self, limits: CoreLimits | None = None) -> None:
        self.sides = (Side(limits), Side(limits, sequence_first=1000))
        self.wires: tuple[deque[bytes], deque[bytes]] = (deque(), deque())  # to side 0, to side 1

    def connect(self) -> None:
        offers = [side.core.offer(side.core.limits.receive_ring) for side in self.sides]
        told = [side.core.acknowledge_sequence for side in self.sides]
        for index, side in enumerate(self.sides):
            side.core.attach(acknowledged=told[1 - index], credits=offers[1 - index])

    def disconnect(self) -> None:
        for side, wire in zip(self.sides, self.wires, strict=True):
            side.core.detach()
            wire.clear()

    def post(self, index: int, count: int | None = None) -> None:
        """Let a side post; what it posts completes at once and lies on the wire."""
        side = self.sides[index]
        while count is None or count:
            posted = side.post(1)
            if not posted:
                break
            side.core.handle_completed(posted[0].wr_id, Outcome.DONE)
            if isinstance(posted[0], Frame):
                self.wires[1 - index].append(posted[0].data)
            count = None if count is None else count - 1

    def arrive(self, index: int, count: int | None = None) -> None:
        """Let frames reach a side, which posts their receives again."""
        side, wire = self.sides[index], self.wires[index]
        while wire and (count is None or count):
            assert side.receive(wire.popleft()) is None
            side.core.handle_posted(1)
            count = None if count is None else count - 1

    def run(self) -> None:
        """Go on until both are silent."""
        for _ in range(10_000):
            for index in range(2):
                self.post(index)
                self.arrive(index)
            if not any(self.wires) and not any(side.core.wants_work() for side in self.sides):
                return
        raise AssertionError("two cores do not come to rest")
