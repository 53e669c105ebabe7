"""Two cores over a connection that breaks anywhere: each message once, each operation ends once.

A reliable connection is modelled exactly: what one side posts is done at the other in the order of
posting, and completes here later. A break takes what was not done, and the completions of what was
done and had not completed. A piece that the peer's memory refuses stops all that is behind it.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rds.transports.rdma_core.rdma_core_world import Account, Side, atomic, transfer
from tests.support.examples import examples
from urds.rds.constants import RdmaStatus
from urds.rds.plane.contract import Operation
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.transports.rdma.frames import Frame, Outcome, Piece, Work
from urds.rds.wire.frame_format import FrameFormat

BAD_KEY = 0xBAD
SIDES = st.integers(0, 1)
COUNTS = st.sampled_from([1, 2, 3, 5, 100])
SIZES = st.sampled_from([0, 1, 4092, 4093, 9000, 65_532, 65_533, 140_000])
KINDS = st.sampled_from(["write", "read", "atomic", "both", "silent", "bad", "bad silent"])
STEPS = st.one_of(
    st.tuples(st.just("send"), SIDES, SIZES),
    st.tuples(st.just("operate"), SIDES, KINDS),
    st.tuples(st.just("post"), SIDES, COUNTS),
    st.tuples(st.just("arrive"), SIDES, COUNTS),
    st.tuples(st.just("complete"), SIDES, COUNTS),
    st.tuples(st.just("change_map"), SIDES, st.just(0)),
    st.tuples(st.just("cancel"), SIDES, st.just(0)),
    st.tuples(st.just("cut"), SIDES, st.just(0)),
    st.tuples(st.just("change_frames"), SIDES, st.integers(0, 2)),
)


@dataclass
class End:
    """One side with what it has posted and what it was sent."""

    side: Side
    posted: deque[Work] = field(default_factory=deque)  # not done at the peer
    done: deque[tuple[Work, Outcome]] = field(default_factory=deque)  # not completed here
    is_broken: bool = False  # a piece was refused: what is behind it is never done
    receives: int = 0  # posted and free
    sent: list[bytes] = field(default_factory=list)  # every payload, in order
    plain: list[bytes] = field(default_factory=list)  # those without operations, not cancelled
    operations: list[Operation] = field(default_factory=list)
    message_of: dict[bytes, list[Operation]] = field(default_factory=dict)
    pieces_done: Counter[tuple[int, int]] = field(default_factory=Counter)


class World:
    """Two ends and the connection between them."""

    def __init__(self, limits: CoreLimits, frame_format: FrameFormat = FrameFormat.SHORT) -> None:
        self.limits = limits
        self.frame_format = frame_format  # agreed on anew at each connect
        self.ends = (End(Side(limits)), End(Side(limits, sequence_first=1000)))
        self.connect()

    def connect(self) -> None:
        offers, told = [], []
        for end in self.ends:
            end.posted.clear()
            end.done.clear()
            end.is_broken = False
            end.receives = self.limits.receive_ring
            offers.append(end.side.core.offer(end.receives))
            told.append(end.side.core.acknowledge_sequence)
        for index, end in enumerate(self.ends):
            end.side.core.attach(
                acknowledged=told[1 - index],
                credits=offers[1 - index],
                frame_format=self.frame_format,
            )

    def cut(self, _index: int = 0, _value: int = 0) -> None:
        for end in self.ends:
            end.side.core.detach()
        self.connect()

    def send(self, index: int, byte_count: int) -> None:
        end = self.ends[index]
        payload = len(end.sent).to_bytes(4, "big") + bytes(byte_count)
        end.sent.append(payload)
        end.plain.append(payload)
        end.side.send(payload)

    def operate(self, index: int, kind: str) -> None:
        """Queue a message with one operation or two; "bad" ones name a key that does not exist."""
        end = self.ends[index]
        key = BAD_KEY if "bad" in kind else 0x77
        operations: list[Operation] = []
        if kind != "atomic":
            operations.append(transfer(8, 8, 8, is_write=kind != "read", fence=True, key=key))
        if kind in ("atomic", "both"):
            operations.append(atomic())
        payload = b""
        if "silent" in kind:
            operations[0].silent = True
        else:
            payload = len(end.sent).to_bytes(4, "big")
            end.sent.append(payload)
            end.message_of[payload] = operations
        end.operations += operations
        end.side.send(payload, operations=operations)

    def post(self, index: int, count: int) -> None:
        end = self.ends[index]
        end.posted.extend(end.side.post(count))
        assert len(end.posted) + len(end.done) <= self.limits.send_ring

    def arrive(self, index: int, count: int) -> None:
        """Let what one side posted be done at the other."""
        end, other = self.ends[index], self.ends[1 - index]
        for _ in range(min(count, len(end.posted))):
            work, outcome = end.posted[0], Outcome.DONE
            if end.is_broken:
                outcome = Outcome.FLUSHED
            elif isinstance(work, Frame):
                if not other.receives:
                    assert not self.limits.flow_control, "a credit without a receive"
                    return  # the device tries again
                other.receives -= 1
                self.receive(end, other, work)
            else:
                outcome = self.do_piece(end, work)
            end.done.append((end.posted.popleft(), outcome))

    def receive(self, end: End, other: End, frame: Frame) -> None:
        before = len(other.side.got)
        assert other.side.receive(frame.data) is None
        other.receives += 1
        other.side.core.handle_posted(1)
        for payload in other.side.payloads()[before:]:
            for operation in end.message_of.get(payload, []):
                assert end.pieces_done[id(operation), 0], "a message before its operation"

    def do_piece(self, end: End, piece: Piece) -> Outcome:
        if piece.operation.key == BAD_KEY:
            end.is_broken = True
            return Outcome.REMOTE_ACCESS
        end.pieces_done[id(piece.operation), piece.number] += 1
        return Outcome.DONE

    def complete(self, index: int, count: int) -> None:
        end = self.ends[index]
        for _ in range(min(count, len(end.done))):
            work, outcome = end.done.popleft()
            end.side.core.handle_completed(work.wr_id, outcome)

    def change_map(self, index: int, _value: int) -> None:
        self.ends[index].side.core.map_due = True

    def change_frames(self, _index: int, value: int) -> None:
        """Connect anew, as nodes that agree otherwise about frames."""
        self.frame_format = FrameFormat(1 + value % 3)
        self.cut()

    def cancel(self, index: int, _value: int) -> None:
        end = self.ends[index]
        end.side.core.cancel(end.side.account, None)
        got = set(self.ends[1 - index].side.payloads())
        end.plain = [payload for payload in end.plain if payload in got]

    def heal(self) -> None:
        """Let everything through; a new connection tells what was received."""
        for _ in range(60):
            for index in range(2):
                self.post(index, 1000)
                self.arrive(index, 1000)
                self.complete(index, 1000)
            if any(end.is_broken for end in self.ends):
                self.cut()
        self.cut()

    def check(self) -> None:
        """Check what must hold at any time."""
        for end, other in (self.ends, self.ends[::-1]):
            got = other.side.payloads()
            assert len(set(got)) == len(got), "a message came twice"
            numbers = [int.from_bytes(payload[:4], "big") for payload in got]
            assert numbers == sorted(numbers), "out of order"
            assert got == [end.sent[number] for number in numbers], "another payload"
            assert max(end.pieces_done.values(), default=1) == 1, "a piece was done twice"
            ended = [operation for _, operation in end.side.ended]
            assert len(set(map(id, ended))) == len(ended), "an operation ended twice"
            for operation in ended:
                if operation.status is RdmaStatus.SUCCESS:
                    assert end.pieces_done[id(operation), 0], "a success that never was"

    def check_healed(self) -> None:
        """Check what must hold in the end."""
        self.check()
        for end, other in (self.ends, self.ends[::-1]):
            got = set(other.side.payloads())
            assert [one for one in end.plain if one not in got] == [], "a message is lost"
            assert all(operation.status is not None for operation in end.operations)
            assert len(end.side.ended) == len(end.operations)
            assert not end.side.core.outgoing.holds()
            assert end.side.account.send_queued_bytes == 0
            for payload, operations in end.message_of.items():
                ended = {operation.status for operation in operations}
                if RdmaStatus.REMOTE_ERROR in ended:
                    assert payload not in got, "a message without its operation"


@pytest.mark.rule("rds7-once", "rds7-reliable-in-order", "rds7-reliable-retry")
@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(CoreLimits(), id="plain"),
        pytest.param(CoreLimits(send_ring=3, receive_ring=3), id="small rings"),
        pytest.param(CoreLimits(flow_control=True, receive_ring=3), id="few credits"),
        pytest.param(CoreLimits(flow_control=True, receive_ring=64, send_ring=16), id="credits"),
    ],
)
@settings(max_examples=examples(150))
@given(steps=st.lists(STEPS, max_size=60))
def test_each_message_arrives_once_and_each_operation_ends_once(
    limits: CoreLimits, steps: list[tuple[str, int, int]]
) -> None:
    world = World(limits)
    for name, index, value in steps:
        getattr(world, name)(index, value)
        world.check()
    world.heal()
    world.check_healed()


@settings(max_examples=examples(150))
@given(steps=st.lists(st.tuples(st.booleans(), SIZES, COUNTS), max_size=40))
def test_a_new_life_of_the_peer_gets_nothing_of_its_old_life(
    steps: list[tuple[bool, int, int]],
) -> None:
    """Over all lives each message arrives at most once, and in order."""
    sender, receiver, sent, got = Side(), Side(), [], []
    sender.begin()
    receiver.begin()
    for restarts, size, count in steps:
        if restarts:
            got += receiver.payloads()
            handed = sum(1 for _ in sender.core.outgoing.sent_entries())
            sender.core.detach()
            assert sender.core.restart_peer() == handed
            receiver = Side()
            sender.begin()
            receiver.begin()
        payload = len(sent).to_bytes(4, "big") + bytes(size)
        sent.append(payload)
        sender.send(payload)
        for work in sender.post(count):
            assert isinstance(work, Frame)
            assert receiver.receive(work.data) is None
            sender.core.handle_completed(work.wr_id, Outcome.DONE)
    got += receiver.payloads()
    assert got == sorted(set(got))
    assert isinstance(sender.account, Account)
