"""Flow control: who may send, what is granted, and why no side waits for ever."""

import pytest

from tests.rds.transports.rdma_core.rdma_core_world import (
    ACK_REQUIRED,
    Pair,
    Side,
    ack_only,
    frames,
    transfer,
)
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.transports.rdma.credits import ADVERTISED_MAX, CREDITS_MAX, Credits
from urds.rds.transports.rdma.frames import Frame, Outcome, Piece

ON = CoreLimits(flow_control=True)


def controlled(*, posted: int = 64, granted: int = 64, maps: bool = True) -> Side:
    """Return a side with flow control whose map has gone, at the cost of two credits."""
    side = Side(ON)
    assert side.core.offer(posted) == posted
    if maps:
        side.begin(credits=granted + 2)
    else:
        side.core.attach(acknowledged=0, credits=granted)
    return side


def test_no_credits_are_offered_unless_we_are_asked_to() -> None:
    assert Side().core.offer(256) == 0


@pytest.mark.rule("wire-flow-optional", "wire-ib-credit-offer")
@pytest.mark.parametrize(("ours", "theirs"), [(0, 2), (2, 0)])
def test_without_an_offer_of_both_sides_there_is_no_flow_control(ours: int, theirs: int) -> None:
    side = Side(ON)
    side.core.offer(ours)
    side.core.attach(acknowledged=0, credits=theirs)
    side.send(*[b"x"] * 20)
    side.core.handle_posted(100)
    assert side.receive(ack_only(0, credit=200)) is None
    assert [seen.header.credit for seen in side.take()] == [0] * 22


@pytest.mark.rule("wire-flow-stop")
def test_each_frame_takes_a_credit_and_the_last_one_is_kept() -> None:
    side = controlled(granted=4)
    side.send(*[b"x"] * 10)
    assert len(side.take()) == 3
    assert side.core.poll_work() is None
    assert side.rdma.ib_tx_throttle
    assert side.receive(ack_only(0, credit=2)) is None
    assert len(side.take()) == 2


def test_the_map_waits_for_credits_and_is_read_when_it_goes() -> None:
    side = controlled(granted=1, maps=False)
    assert side.take() == []
    side.map = b"\x01" * 8192
    assert side.receive(ack_only(0, credit=2)) is None
    assert [seen.payload for seen in side.take()] == [b"\x01" * 4096] * 2


@pytest.mark.rule("wire-credit", "wire-flow-refill")
def test_receives_that_were_posted_again_ride_on_a_message() -> None:
    side = controlled()
    side.core.handle_posted(5)
    side.send(b"a", b"b")
    assert [seen.header.credit for seen in side.take()] == [5, 0]
    assert side.rdma.ib_tx_credit_updates == 1


@pytest.mark.rule("wire-flow-refill", "wire-flow-no-starvation")
def test_sixteen_of_them_get_a_frame_of_their_own() -> None:
    side = controlled()
    side.core.handle_posted(15)
    assert side.take() == []
    side.core.handle_posted(1)
    (update,) = side.take()
    assert update.header.credit == 16
    assert (update.header.sequence, update.header.flags, update.payload) == (0, 0, b"")


def test_a_peer_with_few_credits_hears_of_them_sooner() -> None:
    side = controlled(posted=4)
    side.core.handle_posted(1)
    assert side.take() == []
    side.core.handle_posted(1)
    assert [seen.header.credit for seen in side.take()] == [2]


def test_the_last_credit_goes_for_a_frame_that_grants() -> None:
    side = controlled(granted=1)
    side.send(b"x")
    assert side.take() == []
    side.core.handle_posted(3)
    assert [seen.header.credit for seen in side.take()] == [3]
    side.send(b"y")
    side.core.handle_posted(100)
    assert side.take() == []  # there is none at all


def test_a_header_grants_no_more_than_its_byte_holds() -> None:
    side = controlled(posted=1000)
    side.core.handle_posted(300)
    assert [seen.header.credit for seen in side.take()] == [ADVERTISED_MAX, 45]


def test_any_frame_brings_credits_and_they_add_up() -> None:
    side = controlled(granted=1)
    side.send(*[b"x"] * 10)
    assert side.receive(*frames(1, b"a", credit=2), ack_only(0, credit=3)) is None
    assert len(side.take()) == 5
    assert side.rdma.ib_rx_credit_updates == 2


def test_credits_beyond_belief_are_a_protocol_error() -> None:
    side = controlled(granted=CREDITS_MAX - 300)
    assert side.receive(ack_only(0, credit=200)) is None
    assert side.receive(ack_only(0, credit=200)) is not None


def test_what_the_private_data_grants_is_bounded() -> None:
    side = controlled(granted=1 << 31, maps=False)
    assert side.receive(ack_only(0, credit=1)) is not None


def test_operations_take_no_credits() -> None:
    side = controlled(granted=1)
    side.send(b"x", operations=[transfer(10, 10)])
    assert [type(work) for work in side.post()] == [Piece, Piece]


def test_where_credits_end_the_frame_is_solicited() -> None:
    """A Linux peer is woken by solicited frames alone, and only then grants more."""
    side = controlled(granted=3)
    side.send(bytes(5 * 4096))
    posted = [work for work in side.post() if isinstance(work, Frame)]
    assert [frame.solicited for frame in posted] == [False, True]


def test_an_acknowledgement_needs_a_credit_too() -> None:
    side = controlled(granted=1)
    assert side.receive(*frames(1, b"a", flags=ACK_REQUIRED)) is None
    assert side.take() == []
    side.core.handle_posted(1)
    assert [(seen.header.ack, seen.header.credit) for seen in side.take()] == [(1, 1)]


def test_an_update_that_is_due_waits_for_the_one_on_its_way() -> None:
    side = controlled()
    side.core.handle_posted(16)
    (update,) = side.post()
    side.core.handle_posted(16)
    assert side.post() == []
    side.core.handle_completed(update.wr_id, Outcome.DONE)
    assert [seen.header.credit for seen in side.take()] == [16]


def test_a_new_connection_begins_with_what_it_was_granted() -> None:
    side = controlled(granted=2)
    side.core.handle_posted(10)
    side.core.detach()
    side.core.offer(64)
    side.begin(credits=4)
    side.send(*[b"x"] * 5)
    assert [seen.header.credit for seen in side.take()] == [0]


@pytest.mark.rule("wire-flow-no-starvation")
@pytest.mark.parametrize("receives", [2, 3, 4, 16, 17, 33, 64])
def test_two_sides_never_starve_each_other(receives: int) -> None:
    pair = Pair(CoreLimits(flow_control=True, receive_ring=receives))
    pair.connect()
    payloads = [bytes([number]) * 9000 for number in range(40)]
    for side in pair.sides:
        side.send(*payloads)
    for _ in range(2000):
        for index, side in enumerate(pair.sides):
            pair.post(index)
            waiting = pair.wires[1 - index]
            assert len(waiting) <= receives, "a frame finds no receive"
            assert side.core.is_attached
        for index in range(2):
            pair.arrive(index, 1)
    for side in pair.sides:
        assert side.payloads() == payloads


def test_a_taker_asks_first() -> None:
    credits = Credits()
    credits.offer(10)
    credits.begin(1)
    with pytest.raises(AssertionError):
        credits.take()
