"""Receive queues, and the account of who holds which receive buffer."""

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from urds.verbs.engine.receives import ReceiveQueue, ReceiveTracker, SharedReceiveQueue
from urds.verbs.engine.work import RecvWR


def tracker(completed: int, *allocated: int) -> ReceiveTracker:
    made = ReceiveTracker()
    for msn in range(1, completed + 1):
        made.allocate(msn)
        made.complete(msn)
    for msn in allocated:
        made.allocate(msn)
    return made


def posted(capacity: int, count: int) -> SharedReceiveQueue:
    srq = SharedReceiveQueue(capacity, max_sge=1)
    for number in range(count):
        srq.post(RecvWR(number))
    return srq


# -- queues


def test_receives_are_taken_in_posting_order() -> None:
    queue = ReceiveQueue(3, max_sge=1)
    for number in range(3):
        queue.post(RecvWR(number))
    with pytest.raises(OSError, match=r"full: 3 work requests") as full:
        queue.post(RecvWR(3))
    assert full.value.errno == errno.ENOMEM
    taken = [queue.take() for _ in range(4)]
    assert [wr and wr.wr_id for wr in taken] == [0, 1, 2, None]


def test_resizing_loses_no_receive() -> None:
    srq = posted(8, 6)
    with pytest.raises(OSError, match="the 6 that wait"):
        srq.resize(5)
    srq.resize(6)
    assert (srq.capacity, len(srq)) == (6, 6)
    srq.arm_limit(3)
    for _ in range(3):
        srq.take()
    with pytest.raises(OSError, match="below the limit 3"):
        srq.resize(2)


# -- the tracker. Source of the numbers: docs/reference/dat.md 13.2


def test_arrival_allocation_of_the_worked_example() -> None:
    """18 are completed; 19, 22 and 23 begin; then the gap fills and all complete."""
    seen = []
    one = tracker(18)
    seen.append(one.held)
    for msn in (19, 22, 23):
        one.allocate(msn)
        seen.append(one.held)
    one.complete(19)
    seen.append(one.held)
    one.allocate(20)
    one.complete(20)
    seen.append(one.held)
    one.allocate(21)
    seen.append(one.held)
    for msn in (21, 22):
        one.complete(msn)
    seen.append(one.held)
    one.complete(23)
    seen.append(one.held)
    assert seen == [(0, 0), (1, 1), (2, 4), (3, 5), (2, 4), (2, 3), (3, 3), (1, 1), (0, 0)]


def test_filled_gaps_of_the_worked_example() -> None:
    assert tracker(18, 19, 20, 21, 22, 23).held == (5, 5)


@pytest.mark.parametrize(
    ("arrivals", "expected"), [((23,), (1, 5)), ((23, 22), (2, 5)), ((23, 22, 19), (3, 5))]
)
def test_the_span_does_not_depend_on_the_order(
    arrivals: tuple[int, ...], expected: tuple[int, int]
) -> None:
    assert tracker(18, *arrivals).held == expected


def test_a_large_gap_is_a_large_span() -> None:
    assert tracker(7, 107).held == (1, 100)


def test_posted_receives_of_an_own_queue_belong_to_the_next_messages() -> None:
    one = ReceiveTracker()
    assert [one.allocate_next() for _ in range(3)] == [1, 2, 3]
    assert one.held == (3, 3)
    one.complete(1)
    assert one.allocate_next() == 4
    assert one.held == (3, 3)


def test_flushing_counts_everything_as_completed() -> None:
    one = tracker(18, 19, 22, 23)
    one.flush()
    assert (one.held, one.last_completed) == ((0, 0), 23)
    assert one.allocate_next() == 24


def test_a_reset_begins_with_message_1_again() -> None:
    one = tracker(18, 19, 22)
    one.reset()
    assert (one.held, one.last_completed, one.allocate_next()) == ((0, 0), 0, 1)


def test_mistakes_of_the_caller_are_found() -> None:
    one = tracker(18, 19, 22)
    for wrong in (18, 22):
        with pytest.raises(AssertionError):
            one.allocate(wrong)
    with pytest.raises(AssertionError):
        one.complete(22)
    assert one.held == (2, 4)
    one.allocate(21)


@pytest.mark.parametrize(
    ("last", "msn32", "meant"),
    [
        ((1 << 32) - 2, (1 << 32) - 1, (1 << 32) - 1),
        ((1 << 32) - 2, 0, 1 << 32),
        ((1 << 32) - 2, 2, (1 << 32) + 2),
        ((1 << 32) + 5, (1 << 32) - 1, (1 << 32) - 1),  # a repeat from before the wrap
        ((5 << 32) + 1, 1, (5 << 32) + 1),
        (0, 1, 1),
        (0, (1 << 32) - 1, -1),
    ],
)
def test_a_narrow_number_means_the_nearest_message(last: int, msn32: int, meant: int) -> None:
    one = ReceiveTracker()
    one.last_completed = last  # as after that many messages
    assert one.unwrap(msn32) == meant


@settings(max_examples=examples(20))
@given(order=st.permutations(range(1, 25)), whole=st.lists(st.booleans(), min_size=24))
def test_the_span_is_never_below_the_count(order: list[int], whole: list[bool]) -> None:
    """Messages begin in any order; those that are whole complete when they are the next."""
    one, begun = ReceiveTracker(), set[int]()
    for msn, completes in zip(order, whole, strict=False):
        one.allocate(msn)
        begun.add(msn)
        while completes and one.last_completed + 1 in begun:
            one.complete(one.last_completed + 1)
        count, span = one.held
        held = {each for each in begun if each > one.last_completed}
        assert count == len(held) <= span or (count, span, held) == (0, 0, set())
        assert not held or span == max(held) - one.last_completed


# -- marks


def test_the_soft_mark_is_passed_once_per_setting() -> None:
    one = tracker(0)
    one.set_marks(soft=2, hard=None)
    passed = []
    for msn in range(1, 5):
        one.allocate(msn)
        passed.append(one.passes_soft())
    assert passed == [False, False, True, False]
    one.set_marks(soft=3, hard=None)
    assert (one.passes_soft(), one.passes_hard()) == (True, False)


def test_marks_count_buffers_and_not_the_span() -> None:
    one = tracker(18, 19, 22, 23)
    one.set_marks(soft=None, hard=3)
    assert not one.passes_hard()
    one.allocate(20)
    assert one.passes_hard()
    assert not one.passes_soft()
