"""The completion queue: order, one-shot notification, overflow."""

import errno

import pytest

from urds.verbs.engine.completions import CompletionQueue
from urds.verbs.engine.numbers import WCStatus
from urds.verbs.engine.work import WC


def queue(capacity: int = 4) -> tuple[CompletionQueue, list[str]]:
    made, calls = CompletionQueue(capacity), list[str]()
    made.on_event = lambda: calls.append("event")
    made.on_overflow = lambda: calls.append("overflow")
    return made, calls


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
    cq, calls = queue()
    cq.push(WC(0))
    assert calls == []
    cq.arm()
    assert calls == []  # what is queued already fires nothing
    cq.push(WC(1))
    cq.push(WC(2))
    assert calls == ["event"]


def test_solicited_only_waits_for_a_solicited_one() -> None:
    cq, calls = queue()
    cq.arm(solicited_only=True)
    cq.push(WC(0))
    assert calls == []
    cq.push(WC(1), solicited=True)
    assert calls == ["event"]


def test_a_failure_counts_as_solicited() -> None:
    cq, calls = queue()
    cq.arm(solicited_only=True)
    cq.push(WC(0, WCStatus.WR_FLUSH_ERR))
    assert calls == ["event"]


@pytest.mark.parametrize("first", [True, False])
def test_armed_for_both_any_completion_fires(first: bool) -> None:
    cq, calls = queue()
    cq.arm(solicited_only=first)
    cq.arm(solicited_only=not first)
    cq.push(WC(0))
    assert calls == ["event"]


def test_a_completion_without_room_is_lost_and_told_once() -> None:
    cq, calls = queue(capacity=2)
    for number in range(5):
        cq.push(WC(number))
    assert (cq.overrun, cq.lost_count, calls) == (True, 3, ["overflow"])
    assert ids(cq.poll(9)) == [0, 1]
    cq.push(WC(9))
    assert cq.overrun
    assert ids(cq.poll(9)) == [9]


def test_a_lost_completion_fires_no_event() -> None:
    cq, calls = queue(capacity=1)
    cq.push(WC(0))
    cq.arm()
    cq.push(WC(1))
    assert calls == ["overflow"]


def test_a_completion_that_was_taken_away_is_not_queued() -> None:
    cq, calls = queue()
    seen: list[tuple[int, bool]] = []

    def take(wc: WC, solicited: bool) -> bool:
        seen.append((wc.wr_id, solicited))
        return wc.wr_id != 1

    cq.on_push = take
    cq.arm()
    cq.push(WC(0), solicited=True)
    cq.push(WC(1, WCStatus.GENERAL_ERR))
    assert seen == [(0, True), (1, True)]
    assert (ids(cq.poll(9)), calls) == ([1], ["event"])


def test_resizing_keeps_what_is_queued() -> None:
    cq, calls = queue(capacity=4)
    for number in range(3):
        cq.push(WC(number))
    for capacity in (2, 0):
        with pytest.raises(OSError, match="that are queued") as refused:
            cq.resize(capacity)
        assert refused.value.errno == errno.EINVAL
    cq.resize(3)
    cq.push(WC(3))
    assert calls == ["overflow"]
    cq.resize(8)
    cq.push(WC(4))
    assert ids(cq.poll(9)) == [0, 1, 2, 4]


def test_a_queue_without_room_is_none() -> None:
    with pytest.raises(OSError, match="at least 1"):
        CompletionQueue(0)
