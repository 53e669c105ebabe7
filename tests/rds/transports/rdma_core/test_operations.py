"""Operations: their order on the connection, and how each of them ends, exactly once."""

import pytest

from tests.rds.transports.rdma_core.rdma_core_world import (
    ACK_REQUIRED,
    REPEATED,
    Account,
    Side,
    ack_only,
    atomic,
    frames,
    map_frames,
    pieces,
    read,
    sequences,
    transfer,
)
from urds.rds.constants import RdmaStatus
from urds.rds.plane.contract import Operation
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.transports.rdma.frames import Frame, Outcome, Piece, Work
from urds.rds.wire.extensions import Extension, emit, parse

LONG = bytes(10_000)
SUCCESS, DROPPED, CANCELED = RdmaStatus.SUCCESS, RdmaStatus.DROPPED, RdmaStatus.CANCELED


@pytest.fixture
def side() -> Side:
    side = Side()
    side.begin()
    return side


def complete(side: Side, work: list[Work], outcome: Outcome = Outcome.DONE) -> None:
    for one in work:
        side.core.handle_completed(one.wr_id, outcome)


@pytest.mark.rule("wire-rdma-message", "wire-rdma-trailing")
def test_the_transfer_goes_first_then_the_atomic_then_the_message(side: Side) -> None:
    add, write = atomic(), transfer(100)
    side.send(b"done", operations=[add, write])
    first, second, third = side.post()
    assert isinstance(first, Piece)
    assert first.operation is write
    assert isinstance(second, Piece)
    assert second.operation is add
    assert isinstance(third, Frame)
    assert read(third.data).payload == b"done"


def test_pieces_follow_each_other_in_the_peers_memory(side: Side) -> None:
    side.send(b"x", operations=[transfer(10, 20, 30, remote_address=0x1000)])
    posted = pieces(side.post())
    assert [(piece.number, piece.remote_address) for piece in posted] == [
        (0, 0x1000),
        (1, 0x100A),
        (2, 0x101E),
    ]


@pytest.mark.rule("wire-rdma-key-in-header")
def test_the_header_names_the_key(side: Side) -> None:
    side.send(b"done", operations=[transfer(100, key=0x1300)])
    (seen,) = side.take()
    assert parse(seen.header.extension) == (Extension(2, (0x1300,)),)


def test_the_key_stands_behind_the_callers_extension(side: Side) -> None:
    destination = emit([Extension(3, (0x99, 7))])
    side.send(b"done", operations=[transfer(100, key=0x1300)], extension=destination)
    (seen,) = side.take()
    assert parse(seen.header.extension) == (Extension(3, (0x99, 7)), Extension(2, (0x1300,)))


@pytest.mark.parametrize(
    "extension",
    [emit([Extension(4, (1, 2)), Extension(6, (3,))]), b"\0" * 11 + b"urds!"],
    ids=["full", "no list"],
)
def test_the_key_is_left_out_where_there_is_no_room(side: Side, extension: bytes) -> None:
    side.send(b"done", operations=[transfer(100)], extension=extension)
    assert side.take()[0].header.extension == extension


def test_an_atomic_names_no_key(side: Side) -> None:
    side.send(b"done", operations=[atomic()])
    assert side.take()[0].header.extension == bytes(16)


@pytest.mark.parametrize(
    ("is_write", "fence", "fenced"),
    [(False, True, True), (False, False, False), (True, True, False)],
)
def test_only_a_read_that_asks_fences_the_first_frame(
    side: Side, is_write: bool, fence: bool, fenced: bool
) -> None:
    side.send(LONG, operations=[transfer(10, is_write=is_write, fence=fence)])
    posted = [work for work in side.post() if isinstance(work, Frame)]
    assert [frame.fence for frame in posted] == [fenced, False, False]


def test_an_operation_succeeds_with_its_last_piece(side: Side) -> None:
    operation = transfer(10, 10, 10)
    side.send(b"x", operations=[operation])
    posted = side.post()
    complete(side, posted[:2])
    assert side.ended == []
    complete(side, posted[2:])
    assert side.ended == [(side.account, operation)]
    assert operation.status is SUCCESS


def test_a_later_completion_stands_for_the_earlier_ones(side: Side) -> None:
    side.send(b"x", operations=[transfer(10, 10), atomic()])
    complete(side, side.post()[-1:])
    assert side.statuses() == [SUCCESS, SUCCESS]


def test_only_the_one_that_is_reported_failed(side: Side) -> None:
    side.send(b"x", operations=[transfer(10)])
    side.send(b"y", operations=[transfer(10)])
    posted = side.post()
    complete(side, posted[2:3], Outcome.REMOTE_ACCESS)
    assert side.statuses() == [SUCCESS, RdmaStatus.REMOTE_ERROR]


def test_bytes_and_atomics_are_counted(side: Side) -> None:
    side.send(b"a", operations=[transfer(10, 20)])
    side.send(b"b", operations=[transfer(5, is_write=False), atomic(is_compare=True)])
    side.send(b"c", operations=[atomic()])
    side.take()
    counters = side.counters
    assert (counters.send_rdma, counters.send_rdma_bytes, counters.recv_rdma_bytes) == (2, 30, 5)
    assert (side.rdma.ib_atomic_cswp, side.rdma.ib_atomic_fadd) == (1, 1)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.REMOTE_ACCESS, RdmaStatus.REMOTE_ERROR),
        (Outcome.FAILED, RdmaStatus.OTHER_ERROR),
    ],
)
@pytest.mark.parametrize("posted_count", [1, 2, 3, 5])
def test_a_failed_operation_takes_its_message_along(
    outcome: Outcome, status: RdmaStatus, posted_count: int
) -> None:
    side = Side()
    side.begin()
    side.send(LONG, operations=[transfer(10, 10)])
    posted = side.post(posted_count)
    complete(side, posted[:1], outcome)
    complete(side, posted[1:], Outcome.FLUSHED)
    assert side.statuses() == [status]
    assert side.account.send_queued_bytes == 0
    assert set(side.core.outgoing.freed) == {side.account}
    assert not side.core.outgoing.holds()
    side.reconnect()
    assert side.take() == []
    assert side.statuses() == [status]


@pytest.mark.parametrize("later", [Outcome.DONE, Outcome.FAILED, Outcome.REMOTE_ACCESS])
def test_what_completes_behind_a_failure_changes_nothing(side: Side, later: Outcome) -> None:
    """Holds for the pieces of the operation and for others of its message, halfway in frames."""
    side.send(LONG, operations=[transfer(10, 10), transfer(10)])
    posted = side.post(4)
    complete(side, posted[:1], Outcome.REMOTE_ACCESS)
    complete(side, posted[1:2], later)
    complete(side, posted[2:3], Outcome.FAILED)
    assert side.statuses() == [RdmaStatus.REMOTE_ERROR, RdmaStatus.OTHER_ERROR]
    assert side.account.send_queued_bytes == 0
    assert side.account.given_up == 1


def test_what_a_failed_operation_leaves_behind_ends_with_the_connection(side: Side) -> None:
    failed, behind = transfer(10), atomic()
    side.send(b"x", operations=[failed, behind])
    side.send(b"y")
    posted = side.post()
    complete(side, posted[:1], Outcome.REMOTE_ACCESS)
    complete(side, posted[1:], Outcome.FLUSHED)
    side.reconnect()
    assert (failed.status, behind.status) == (RdmaStatus.REMOTE_ERROR, DROPPED)
    assert [(seen.header.sequence, seen.payload) for seen in side.take()] == [(2, b"y")]


def test_a_flushed_operation_has_no_status_before_the_connection_ends(side: Side) -> None:
    operation = transfer(10)
    side.send(b"x", operations=[operation])
    complete(side, side.post(), Outcome.FLUSHED)
    assert operation.status is None
    side.core.detach()
    assert side.statuses() == [DROPPED]
    assert side.counters.send_given_up == side.account.given_up == 1


@pytest.mark.parametrize("posted_count", [1, 2, 3, 5])
def test_a_break_drops_what_was_handed_over(side: Side, posted_count: int) -> None:
    side.send(LONG, operations=[transfer(10, 10)])
    side.post(posted_count)
    side.core.detach()
    assert side.statuses() == [DROPPED]
    assert side.account.send_queued_bytes == 0
    assert side.core.outgoing.message_count() == 0


def test_what_was_not_handed_over_is_done_on_the_next_connection(side: Side) -> None:
    operation = transfer(10)
    side.send(b"first")
    side.send(b"x", operations=[operation])
    side.take(1)
    side.reconnect(acknowledged=1)
    assert operation.status is None
    posted = side.post()
    assert [type(work) for work in posted] == [Piece, Frame]
    complete(side, posted)
    assert side.statuses() == [SUCCESS]


@pytest.mark.parametrize("frames_posted", [0, 1, 2, 3])
def test_a_message_whose_operations_succeeded_is_repeated_alone(
    side: Side, frames_posted: int
) -> None:
    """Beyond Linux, which drops it: docs/differences.md."""
    side.send(b"before")
    side.send(LONG, operations=[transfer(10, key=0x1300)])
    posted = side.post(2 + frames_posted)
    complete(side, posted[:2])
    side.reconnect(acknowledged=1)
    again = side.post()
    assert pieces(again) == []
    seen = [read(work.data) for work in again if isinstance(work, Frame)]
    assert b"".join(one.payload for one in seen) == LONG
    assert sequences(seen) == [2, 2, 2]
    assert parse(seen[0].header.extension) == (Extension(2, (0x1300,)),)
    assert (seen[0].header.flags == REPEATED) == (frames_posted > 0)
    assert side.statuses() == [SUCCESS]


@pytest.mark.parametrize("posted_count", [1, 2])
def test_a_message_repeated_alone_waits_for_no_read(side: Side, posted_count: int) -> None:
    side.send(b"x", operations=[transfer(10, is_write=False, fence=True)])
    complete(side, side.post(posted_count))
    side.reconnect()
    (again,) = side.post()
    assert isinstance(again, Frame)
    assert not again.fence


def test_a_message_without_a_number_keeps_its_place_over_a_break(side: Side) -> None:
    side.send(b"a", operations=[transfer(10)])
    side.send(b"b")
    complete(side, side.post(1))
    side.reconnect()
    assert [(seen.header.sequence, seen.payload) for seen in side.take()] == [(1, b"a"), (2, b"b")]


def test_a_new_life_of_the_peer_does_not_get_what_its_old_life_was_handed(side: Side) -> None:
    side.send(b"x", operations=[transfer(10)])
    complete(side, side.post(1))
    side.core.detach()
    assert side.core.restart_peer() == 1
    side.begin()
    assert side.take() == []


def test_an_acknowledged_message_may_have_an_operation_under_way(side: Side) -> None:
    side.send(b"x", operations=[transfer(10, is_write=False)])
    posted = side.post()
    assert side.receive(ack_only(1)) is None
    assert side.account.send_queued_bytes == 0
    complete(side, posted)
    assert side.statuses() == [SUCCESS]


# -- silent messages


def silent(*operations: Operation) -> list[Operation]:
    for operation in operations:
        operation.silent = True
    return list(operations)


def test_a_silent_message_sends_no_frame_and_gets_no_number(side: Side) -> None:
    side.send(b"", operations=silent(transfer(10), atomic()))
    side.send(b"next")
    posted = side.post()
    assert [type(work) for work in posted] == [Piece, Piece, Frame]
    assert side.core.outgoing.holds(side.account)
    assert side.core.outgoing.message_count() == 2
    complete(side, posted)
    assert side.core.outgoing.message_count() == 1
    assert read(posted[2].data).header.sequence == 1


@pytest.mark.parametrize(
    ("payload", "extension", "operations"),
    [
        (b"x", b"", silent(transfer(10))),
        (b"", emit([Extension(3, (1, 2))]), silent(transfer(10))),
        (b"", b"", [*silent(transfer(10)), atomic()]),
    ],
    ids=["payload", "cookie", "not all"],
)
def test_it_is_silent_only_if_nothing_is_to_be_said(
    side: Side, payload: bytes, extension: bytes, operations: list[Operation]
) -> None:
    side.send(payload, operations=operations, extension=extension)
    assert len(side.take()) == 1


@pytest.mark.parametrize("done", [False, True])
def test_a_break_drops_a_silent_message_that_is_not_done(side: Side, done: bool) -> None:
    side.send(b"", operations=silent(transfer(10)))
    posted = side.post()
    if done:
        complete(side, posted)
    side.reconnect()
    assert side.statuses() == [SUCCESS if done else DROPPED]
    assert side.take() == []
    assert not side.core.outgoing.holds()
    assert side.core.outgoing.message_count() == 0
    assert set(side.core.outgoing.freed) == {side.account}
    assert side.account.given_up == side.counters.send_given_up == (not done)


def test_a_silent_message_that_fails_is_gone(side: Side) -> None:
    side.send(b"", operations=silent(transfer(10), atomic()))
    complete(side, side.post()[:1], Outcome.REMOTE_ACCESS)
    assert not side.core.outgoing.holds()


# -- cancel and give up


def test_cancel_before_anything_is_posted(side: Side) -> None:
    side.core.detach()
    operation = transfer(10)
    side.send(b"x", operations=[operation])
    assert side.core.cancel(side.account, None) == 1
    assert side.ended == [(side.account, operation)]
    assert side.statuses() == [CANCELED]
    side.begin()
    assert side.take() == []


def test_a_cancelled_operation_ends_when_the_device_is_done_with_its_memory(side: Side) -> None:
    side.send(LONG, operations=[transfer(10, 10, 10), atomic()])
    posted = side.post(2)
    assert side.core.cancel(side.account, None) == 1
    assert side.statuses() == [CANCELED]  # the atomic, which nothing was posted of
    complete(side, posted[:1])
    assert side.statuses() == [CANCELED]
    complete(side, posted[1:])
    assert side.statuses() == [CANCELED, CANCELED]
    assert side.take() == []
    assert side.core.outgoing.sequence_next == 1


def test_a_cancelled_operation_ends_as_such_also_if_the_connection_breaks(side: Side) -> None:
    side.send(b"x", operations=[transfer(10)])
    side.post()
    side.core.cancel(side.account, None)
    side.core.detach()
    assert side.statuses() == [CANCELED]


@pytest.mark.parametrize("posted_count", [1, 2])
def test_a_cancelled_operation_that_fails_was_cancelled(side: Side, posted_count: int) -> None:
    side.send(LONG, operations=[transfer(10)])
    posted = side.post(posted_count)
    side.core.cancel(side.account, None)
    complete(side, posted[:1], Outcome.REMOTE_ACCESS)
    assert side.statuses() == [CANCELED]
    assert side.account.send_queued_bytes == side.account.given_up == 0


def test_cancel_after_success_changes_nothing(side: Side) -> None:
    side.send(b"x", operations=[transfer(10)])
    complete(side, side.post())
    side.core.cancel(side.account, None)
    assert side.statuses() == [SUCCESS]


def test_giving_up_drops_operations(side: Side) -> None:
    side.core.detach()
    side.send(b"x", operations=[transfer(10), atomic()])
    assert side.core.drop_all() == 1
    assert side.statuses() == [DROPPED, DROPPED]


@pytest.mark.parametrize("cancels", [True, False])
def test_operations_that_are_dropped_together_end_in_their_order(side: Side, cancels: bool) -> None:
    side.core.detach()
    operations = [transfer(10) for _ in range(50)]
    for operation in operations:
        side.send(b"x", operations=[operation])
    if cancels:
        side.core.cancel(side.account, None)
    else:
        side.core.drop_all()
    assert [operation for _, operation in side.ended] == operations


def test_each_owner_hears_of_its_own(side: Side) -> None:
    other, mine, theirs = Account(), transfer(10), transfer(10)
    side.send(b"x", operations=[mine])
    side.send(b"y", operations=[theirs], account=other)
    side.take()
    assert side.ended == [(side.account, mine), (other, theirs)]


# -- in the company of other work


def test_the_ring_bounds_pieces_as_well() -> None:
    side = Side(CoreLimits(send_ring=2))
    side.begin()
    side.send(b"x", operations=[transfer(*[8] * 5)])
    seen = []
    for _ in range(3):
        posted = side.post()
        assert len(posted) <= 2
        seen += posted
        complete(side, posted)
    assert [type(work) for work in seen] == [Piece] * 5 + [Frame]
    assert side.statuses() == [SUCCESS]


def test_no_map_comes_between_an_operation_and_its_message(side: Side) -> None:
    side.send(b"x", operations=[transfer(10, 10)])
    begun = side.post(1)
    side.core.map_due = True
    rest = side.post()
    assert isinstance(begun[0], Piece)
    assert isinstance(rest[0], Piece)
    seen = [read(work.data) for work in rest[1:] if isinstance(work, Frame)]
    assert [one.header.payload_bytes for one in seen] == [1, 8192, 8192]


def test_an_acknowledgement_does_not_wait_for_a_long_operation(side: Side) -> None:
    side.send(b"x", operations=[transfer(*[8] * 5)])
    side.post(1)
    assert side.receive(*frames(1, b"a", flags=ACK_REQUIRED), *map_frames(bytes(8192))) is None
    (ack,) = side.post(1)
    assert isinstance(ack, Frame)
    assert ack.data == ack_only(1)
    assert isinstance(side.post(1)[0], Piece)


def test_a_listener_that_fails_loses_no_status(side: Side) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    side.send(b"x", operations=[transfer(10)])
    side.send(b"y", operations=[atomic()])
    side.post()
    side.operation_ended, told = fail, side.operation_ended
    with pytest.raises(MemoryError):
        side.core.detach()
    side.operation_ended = told
    assert side.core.outgoing.message_count() == 0
    side.core.drop_all()
    assert side.statuses() == [DROPPED]  # the first one's listener failed


def test_what_was_taken_back_in_the_middle_of_its_frames_is_not_sent_on_the_next_connection(
    side: Side,
) -> None:
    side.send(LONG, operations=[transfer(10)])
    assert sequences(side.take(1)) == [1]
    assert side.core.cancel(side.account, None) == 1
    side.core.detach()
    side.send(b"next")
    side.begin()
    assert [seen.payload for seen in side.take()] == [b"next"]
