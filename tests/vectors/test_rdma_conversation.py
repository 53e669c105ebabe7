"""A conversation of two Linux kernels over RDMA: read, written again, and lived through by a core.

In the replay a core stands in the place of one of the kernels. It gets the other one's frames, and
the calls that the kernel's sockets must have made; what it posts has to be what that kernel sent,
byte for byte. How much a kernel had taken in before it made a frame, its acknowledgement says.
"""

import re
import struct
from collections import deque
from typing import NamedTuple

import pytest

from tests.vectors import load
from urds.rds.constants import CONGESTION_MAP_BYTES, HeaderFlag, RdmaStatus
from urds.rds.plane.contract import Operation, RdmaTransfer
from urds.rds.plane.python.counters import Counters
from urds.rds.transports.rdma.core import ConnectionCore, CoreLimits
from urds.rds.transports.rdma.counters import RdmaCounters
from urds.rds.transports.rdma.frames import (
    FRAGMENT_BYTES,
    Frame,
    MessageHeader,
    Outcome,
    Piece,
    fragment_count,
)
from urds.rds.wire.congestion_map import CongestionMap
from urds.rds.wire.header import HEADER_BYTES, Header

CONVERSATION = load("linux_6_1_rdma_conversation")
FRAMES = {name: data for name, data in CONVERSATION.items() if len(data) >= HEADER_BYTES}


class Line(NamedTuple):
    """One line of the conversation."""

    name: str
    side: str
    operation: str | None  # "read" or "write"; None: a frame
    data: bytes

    @property
    def header(self) -> Header:
        return Header.parse(self.data[:HEADER_BYTES])

    @property
    def payload(self) -> bytes:
        return self.data[HEADER_BYTES:]


def lines() -> list[Line]:
    found = []
    for name, data in CONVERSATION.items():
        parts = re.fullmatch(r"([ab])_\d+(?:_(read|write))?", name)
        assert parts is not None, name
        found.append(Line(name, parts[1], parts[2], data))
    return found


@pytest.mark.rule("wire-header-fields", "wire-checksum")
@pytest.mark.parametrize("data", FRAMES.values(), ids=FRAMES)
def test_a_frame_of_linux_is_written_again_byte_for_byte(data: bytes) -> None:
    header, payload = Header.parse(data[:HEADER_BYTES]), data[HEADER_BYTES:]
    ours = MessageHeader(
        sequence=header.sequence,
        payload_bytes=header.payload_bytes,
        source_port=header.source_port,
        target_port=header.target_port,
        flags=int(header.flags),
        extension=header.extension,
    )
    made = ours.emit(acknowledgement=header.ack, credit=header.credit, payload=payload)
    assert made == data
    assert len(payload) <= min(header.payload_bytes, FRAGMENT_BYTES)


def test_the_conversation_shows_every_kind_of_frame() -> None:
    headers = [Header.parse(data[:HEADER_BYTES]) for data in FRAMES.values()]
    assert sum(header.flags == HeaderFlag.CONG_BITMAP for header in headers) == 8
    assert sum(not header.sequence and not header.flags for header in headers) > 4  # acks alone
    assert sum(header.flags == HeaderFlag.ACK_REQUIRED for header in headers) > 4
    assert sum(not header.target_port and bool(header.source_port) for header in headers) == 2
    assert sum(header.extension[0] == 2 for header in headers) > 8  # a key that was used
    assert sum(header.extension[0] == 3 for header in headers) > 8  # a target that is offered
    assert {fragment_count(header.payload_bytes) for header in headers} == {1, 2, 3}


class Account:
    """The sockets of the kernel whose place the core takes."""


class Step(NamedTuple):
    """What one kernel sent for one message: an operation, if any, and all frames."""

    operation: Line | None
    frames: list[Line]

    def work(self) -> list[Line]:
        return [*([self.operation] if self.operation else []), *self.frames]


def steps(side: str) -> list[Step]:
    """Return a kernel's part; an operation that the capture cut off its message is left out."""
    rest = deque(line for line in lines() if line.side == side)
    found = []
    while rest:
        operation = rest.popleft() if rest[0].operation else None
        if rest:
            count = fragment_count(rest[0].header.payload_bytes)
            found.append(Step(operation, [rest.popleft() for _ in range(count)]))
    return found


class Replay:
    """A core in the place of one kernel; `run` compares what both posted."""

    def __init__(self, side: str) -> None:
        self.steps = steps(side)
        self.theirs = deque(line for line in lines() if line.side != side and not line.operation)
        self.account = Account()
        self.map = bytes(CONGESTION_MAP_BYTES)
        self.maps: list[bytes] = []
        self.got: list[tuple[int, int, bytes, bytes]] = []
        self.keys: list[int] = []
        self.ended: list[Operation] = []
        self.counters, self.rdma = Counters(), RdmaCounters()
        self.core = ConnectionCore(CoreLimits(), self.counters, self.rdma, self, sequence_first=1)
        self.core.attach(acknowledged=0, credits=0)

    # -- around the core

    def deliver(self, source_port: int, target_port: int, payload: bytes, extension: bytes) -> None:
        self.got.append((source_port, target_port, payload, extension))

    def take_map(self, data: bytes) -> None:
        self.maps.append(data)

    def map_bytes(self) -> bytes:
        return self.map

    def may_answer_ping(self, port: int) -> bool:
        return True

    def key_used(self, target_port: int, key: int) -> None:
        self.keys.append(key)

    def operation_ended(self, owner: object, operation: Operation) -> None:
        self.ended.append(operation)

    # -- one step after the other

    def run(self) -> None:
        for step in self.steps:
            while self.core.acknowledge_sequence < step.frames[0].header.ack:
                self.take_in_one()
            self.call(step)
            for line in step.work():
                self.compare(line)
            assert self.core.poll_work() is None, f"after {step.frames[-1].name}"
        while self.theirs:
            self.take_in_one()

    def take_in_one(self) -> None:
        line = self.theirs.popleft()
        assert self.core.handle_frame(memoryview(line.data)) is None, line.name

    def call(self, step: Step) -> None:
        """Do what made the kernel send this message, unless that came from its peer."""
        header = step.frames[0].header
        payload = b"".join(line.payload for line in step.frames)
        if header.flags == HeaderFlag.CONG_BITMAP:
            self.map, self.core.map_due = payload, True
        elif header.sequence and header.source_port:
            operations = [_operation(step.operation)] if step.operation else []
            extension = b"" if operations or not any(header.extension) else header.extension
            self.core.outgoing.queue(
                self.account,
                header.source_port,
                header.target_port,
                payload,
                extension,
                operations,
            )

    def compare(self, line: Line) -> None:
        work = self.core.poll_work()
        assert work is not None, line.name
        if isinstance(work, Frame):
            assert work.data == line.data, line.name
        else:
            assert isinstance(work, Piece)
            assert isinstance(work.operation, RdmaTransfer)
            named = (work.remote_address, work.operation.key, work.operation.payload_bytes)
            assert struct.pack(">QII", *named) == line.data, line.name
            assert work.operation.is_write == (line.operation == "write")
        self.core.handle_completed(work.wr_id, Outcome.DONE)


def _operation(line: Line) -> RdmaTransfer:
    address, key, data = struct.unpack(">QII", line.data)
    return RdmaTransfer(
        key=key,
        remote_address=address,
        pieces=(memoryview(bytearray(data)),),
        is_write=line.operation == "write",
        fence=True,
    )


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_core_in_the_place_of_a_kernel_sends_the_same_bytes(side: str) -> None:
    replay = Replay(side)
    replay.run()
    assert replay.counters.send_queued == sum(
        bool(step.frames[0].header.sequence) for step in replay.steps
    )
    assert [one.status for one in replay.ended] == [RdmaStatus.SUCCESS] * len(replay.ended)
    assert len(replay.ended) > 8


def test_what_the_core_took_in() -> None:
    """As kernel a: the map of b's full socket, the reply, the keys that b's operations used."""
    replay = Replay("a")
    replay.run()
    ports = [list(CongestionMap.parse(data)) for data in replay.maps]
    assert ports == [[], [5100], []]
    assert replay.got[0] == (5000, 4000, b"reply", b"")
    assert replay.got[1] == (0, 17839, b"", b"")  # a pong
    assert replay.keys[:3] == [0x1300, 0x1400, 0x1500]
    asked = [step for step in replay.steps if step.frames[0].header.ack]
    assert replay.rdma.ib_ack_sent == sum(
        not step.frames[0].header.payload_bytes and not step.frames[0].header.sequence
        for step in asked
    )


def test_another_byte_is_noticed() -> None:
    """Shows that the replay can fail: a kernel that acknowledges one more than it got."""
    replay = Replay("a")
    replay.core.incoming.sequence_expected = 2
    with pytest.raises(AssertionError):
        replay.run()
