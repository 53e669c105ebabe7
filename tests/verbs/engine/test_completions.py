"""The completion queue: order, one-shot notification, overflow."""

import errno

import pytest

from urds.verbs.engine.completions import CompletionQueue, Outbox
from urds.verbs.engine.numbers import WCStatus
from urds.verbs.engine.work import WC, Completed


def queue(capacity: int = 4) -> tuple[CompletionQueue, Outbox]:
    outbox = Outbox()
    return CompletionQueue(capacity, outbox=outbox), outbox


def told(outbox: Outbox) -> list[str]:
    return [
        "event" if isinstance(event, Completed) else event.event_type.name
        for event in outbox.take_events()
    ]


def ids(completions: list[WC]) -> list[int]:
    return [completion.wr_id for completion in completions]


def test_completions_come_in_the_order_of_pushing() -> None:
    cq, _ = queue()
    for number in range(3):
        cq.push(WC(number))
    assert len(cq) == 3
    assert ids(cq.poll(2)) == [0, 1]
    assert ids(cq.poll(9)) == [2]
    assert cq.poll(1) == []


def test_an_event_comes_once_per_arming() -> None:
    cq, outbox = queue()
    cq.push(WC(0))
    assert told(outbox) == []
    cq.arm()
    assert told(outbox) == []  # what is queued already fires nothing
    cq.push(WC(1))
    cq.push(WC(2))
    assert told(outbox) == ["event"]


def test_solicited_only_waits_for_a_solicited_one() -> None:
    cq, outbox = queue()
    cq.arm(solicited_only=True)
    cq.push(WC(0))
    assert told(outbox) == []
    cq.push(WC(1, solicited=True))
    assert told(outbox) == ["event"]


def test_a_failure_counts_as_solicited() -> None:
    cq, outbox = queue()
    cq.arm(solicited_only=True)
    cq.push(WC(0, WCStatus.WR_FLUSH_ERR))
    assert told(outbox) == ["event"]


@pytest.mark.parametrize("first", [True, False])
def test_armed_for_both_any_completion_fires(first: bool) -> None:
    cq, outbox = queue()
    cq.arm(solicited_only=first)
    cq.arm(solicited_only=not first)
    cq.push(WC(0))
    assert told(outbox) == ["event"]


def test_a_completion_without_room_is_lost_and_told_once() -> None:
    cq, outbox = queue(capacity=2)
    for number in range(5):
        cq.push(WC(number))
    assert (cq.overrun, cq.lost_count, told(outbox)) == (True, 3, ["CQ_ERR"])
    assert ids(cq.poll(9)) == [0, 1]
    cq.push(WC(9))
    assert cq.overrun
    assert ids(cq.poll(9)) == [9]


def test_a_lost_completion_fires_no_event() -> None:
    cq, outbox = queue(capacity=1)
    cq.push(WC(0))
    cq.arm()
    cq.push(WC(1))
    assert told(outbox) == ["CQ_ERR"]


def test_a_sink_takes_what_completed_in_a_pass_in_order() -> None:
    """It is told when the pass is over, not while a queue pair pushes."""
    outbox, seen = Outbox(), list[list[int]]()
    one = CompletionQueue(1, outbox=outbox, sink=lambda wcs: seen.append(ids(wcs)))
    other = CompletionQueue(1, outbox=outbox, sink=lambda wcs: seen.append(ids(wcs)))
    for number in range(3):
        one.push(WC(number))
        other.push(WC(10 + number))
    assert seen == [] and len(one) == 3
    outbox.feed_sinks()
    assert seen == [[0, 1, 2], [10, 11, 12]] and len(one) == 0
    outbox.feed_sinks()
    assert len(seen) == 2


def test_a_sink_that_raises_keeps_no_other_from_its_completions() -> None:
    outbox, seen = Outbox(), list[list[int]]()

    def fail(_completions: list[WC]) -> None:
        raise ValueError("broken")

    broken = CompletionQueue(1, outbox=outbox, sink=fail)
    whole = CompletionQueue(1, outbox=outbox, sink=lambda wcs: seen.append(ids(wcs)))
    broken.push(WC(1))
    whole.push(WC(2))
    with pytest.raises(ValueError, match="broken"):
        outbox.feed_sinks()
    outbox.feed_sinks()
    broken.push(WC(3))
    with pytest.raises(ValueError, match="broken"):
        outbox.feed_sinks()
    assert seen == [[2]]


def test_a_sink_gets_nothing_of_a_queue_pair_that_starts_over() -> None:
    outbox, seen = Outbox(), list[list[int]]()
    cq = CompletionQueue(1, outbox=outbox, sink=lambda wcs: seen.append(ids(wcs)))
    cq.push(WC(1, qp_num=5))
    cq.discard(5)
    cq.push(WC(2, qp_num=6))
    outbox.feed_sinks()
    assert seen == [[2]]


def test_resizing_keeps_what_is_queued() -> None:
    cq, outbox = queue(capacity=4)
    for number in range(3):
        cq.push(WC(number))
    for capacity in (2, 0):
        with pytest.raises(OSError, match="that are queued") as refused:
            cq.resize(capacity)
        assert refused.value.errno == errno.EINVAL
    cq.resize(3)
    cq.push(WC(3))
    assert told(outbox) == ["CQ_ERR"]
    cq.resize(8)
    cq.push(WC(4))
    assert ids(cq.poll(9)) == [0, 1, 2, 4]


def test_a_queue_without_room_is_none() -> None:
    with pytest.raises(OSError, match="at least 1"):
        CompletionQueue(0)
