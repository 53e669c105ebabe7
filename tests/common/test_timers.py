"""Deadlines by name: the next one, ties, changes, and a heap that stays small."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rds.sockets.interrupting import Interruption
from urds.common.timers import Deadlines, TimedCalls, Timer

steps = st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 20))))


def test_the_earliest_comes_first_and_equals_in_their_order() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("late", 5)
    deadlines.set("first", 3)
    deadlines.set("second", 3)
    assert deadlines.next_ns() == 3
    assert [deadlines.pop_due(5) for _ in range(4)] == ["first", "second", "late", None]


def test_nothing_is_due_early() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("later", 5)
    assert deadlines.pop_due(4) is None
    assert deadlines.get("later") == 5


def test_a_key_has_one_deadline() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("key", 1)
    deadlines.set("key", 9)
    assert len(deadlines) == 1
    assert deadlines.pop_due(8) is None
    deadlines.cancel("key")
    deadlines.cancel("key")
    assert deadlines.next_ns() is None


def test_what_was_moved_often_takes_no_memory() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for moment in range(10_000):
        deadlines.set("key", moment)
    assert len(deadlines._heap) <= 65  # the bound has no other witness


@given(steps)
def test_it_is_a_dictionary_with_a_smallest_value(changes: list[tuple[int, int | None]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    expected: dict[int, int] = {}
    for key, deadline_ns in changes:
        if deadline_ns is None:
            deadlines.cancel(key)
            expected.pop(key, None)
        else:
            deadlines.set(key, deadline_ns)
            expected[key] = deadline_ns
        assert deadlines.next_ns() == min(expected.values(), default=None)
        assert len(deadlines) == len(expected)
    due = []
    while (key := deadlines.pop_due(10)) is not None:
        due.append(expected.pop(key))
    assert due == sorted(due)
    assert all(deadline_ns > 10 for deadline_ns in expected.values())


def test_calls_come_in_the_order_of_their_times_and_not_before() -> None:
    calls, made = TimedCalls(), list[str]()
    calls.add(20, lambda: made.append("later"))
    calls.add(10, lambda: made.append("first"))
    calls.add(10, lambda: made.append("second"))
    assert calls.take_due(9) is None
    while (call := calls.take_due(15)) is not None:
        call()
    assert made == ["first", "second"]
    assert calls.next_ns() == 20


def test_a_cancelled_call_is_not_made_and_keeps_nothing_alive() -> None:
    calls = TimedCalls()
    timer = calls.add(10, lambda: None)
    calls.add(10, print)
    timer.cancel()
    timer.cancel()
    assert timer.call is None
    assert len(calls) == 1
    assert calls.take_due(10) is print
    assert calls.take_due(10) is None


def test_a_call_cancelled_while_it_is_taken_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may cancel at any moment, without the owner's lock."""
    calls = TimedCalls()
    timer = calls.add(10, print)
    first = calls._first

    def look() -> object:
        found = first()
        timer.cancel()
        return found

    monkeypatch.setattr(calls, "_first", look)  # it comes between a look and what rests on it
    assert calls.take_due(10) is None


def crowded(calls: TimedCalls, stale: int) -> list[Timer]:
    """Add calls that stay, and behind them so many that are cancelled."""
    for _ in range(stale):
        calls.add(50, print).cancel()
    return [calls.add(at_ns, print) for at_ns in (70, 60)]


def all_come(calls: TimedCalls, planned: list[Timer]) -> bool:
    """Whether each of these is taken when all are due, or is known to be gone."""
    waiting = [timer for timer in planned if calls.is_set(timer)]
    taken = []
    while (timer := calls.pop_due(100)) is not None:
        taken.append(timer)
    return set(waiting) <= set(taken)


OPERATIONS = {
    "add": lambda calls: calls.add(40, print),
    "look": lambda calls: calls.next_ns(),
    "take": lambda calls: calls.pop_due(65),
}


@pytest.mark.parametrize("more", [0, 100])
@pytest.mark.parametrize("stale", [1, 61, 62, 63])  # with those that stay: at the bound and around
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_handler_may_plan_at_any_step(name: str, stale: int, more: int) -> None:
    """A device whose timer were lost would never be led by the progress thread again."""
    for at in count(1):
        calls = TimedCalls()
        planned = crowded(calls, stale)

        def plan(_: object, calls: TimedCalls = calls, planned: list[Timer] = planned) -> None:
            planned.append(calls.add(30, print))
            planned.extend(crowded(calls, more))

        with Interruption(at, plan, where="timers.py") as injection:
            OPERATIONS[name](calls)
        assert all_come(calls, planned), injection.positions
        if not injection.fired:
            assert at > 1
            break


@pytest.mark.parametrize("stale", [1, 61, 62, 63])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_handler_may_raise_at_any_step(name: str, stale: int) -> None:
    for at in count(1):
        calls = TimedCalls()
        planned = crowded(calls, stale)
        with Interruption(at, where="timers.py") as injection:
            OPERATIONS[name](calls)
        assert all_come(calls, planned), injection.positions
        if not injection.fired:
            assert at > 1
            break
