"""Deadlines by name: the next one, ties, changes, and a heap that stays small."""

from hypothesis import given
from hypothesis import strategies as st

from urds.common.timers import Deadlines

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
