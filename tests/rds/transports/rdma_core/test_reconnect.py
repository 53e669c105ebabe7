"""When an RDMA connection is asked for again: delays grow, and stay bounded."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.rds.transports.rdma_core.rdma_bench import NOW, REQUEST, TO_HIGH, Bench
from tests.rds.transports.rdma_core.rdma_world import MS, SECOND
from urds.rds.control.rdma_events import Connect, Failure


def failing_attempts(bench: Bench, now_ns: int, *, span_ns: int) -> Iterator[int]:
    """Let every attempt fail at once; yield the time of each in the span."""
    end_ns = now_ns + span_ns
    while True:
        for action in bench.actions():
            if isinstance(action, Connect):
                yield now_ns
                bench.core.handle_failed(action.key, action.number, Failure.REFUSED, now_ns)
        due_ns = bench.core.poll_timeout()
        if due_ns is None or due_ns > end_ns:
            return
        now_ns = due_ns
        bench.core.handle_timeout(now_ns)


def gaps(times_ns: list[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(times_ns)]


def test_delays_double_from_1_ms_to_1_s_while_messages_wait() -> None:
    bench = Bench()
    bench.core.handle_wanted(bench.core.key_for(TO_HIGH.peer, 0, NOW), NOW)
    times_ns = list(failing_attempts(bench, NOW, span_ns=200 * SECOND))
    assert times_ns[0] == NOW, "the first attempt is immediate"
    found = gaps(times_ns)
    for index, gap_ns in enumerate(found):
        assert 0 <= gap_ns < min(MS << index, SECOND)
    assert max(found[:10]) > 100 * MS
    assert 300 < len(found) < 500, "half a second each, on average"


def test_delays_grow_to_a_minute_while_nothing_waits() -> None:
    bench = Bench()
    bench.join(generation=4)
    bench.core.handle_ended(TO_HIGH, 1, NOW + 10 * SECOND)
    found = gaps(list(failing_attempts(bench, NOW + 10 * SECOND, span_ns=3600 * SECOND)))
    for index, gap_ns in enumerate(found):
        assert 0 <= gap_ns < min(MS << index, 60 * SECOND)
    assert max(found) > 30 * SECOND
    assert 90 < len(found) < 200


@pytest.mark.parametrize("useful", [False, True])
def test_delays_begin_anew_after_a_connection_with_a_message(*, useful: bool) -> None:
    """Many short connections, as a wire that cuts makes them: useful ones cost no patience."""
    bench = Bench()
    bench.join(generation=4)
    number, now_ns = 1, NOW
    for _ in range(12):
        bench.core.handle_ended(TO_HIGH, number, now_ns, useful=useful)
        while not (asked := [one for one in bench.actions() if isinstance(one, Connect)]):
            due_ns = bench.core.poll_timeout()
            assert due_ns is not None, "a lost connection is tried for"
            now_ns = due_ns
            bench.core.handle_timeout(now_ns)
        number = asked[0].number
        bench.establish(number, bench.data(generation=4), now_ns)
    assert (now_ns - NOW < 12 * MS) is useful


def test_a_message_ends_the_idle_delays() -> None:
    bench = Bench()
    bench.join(generation=4)
    bench.core.handle_ended(TO_HIGH, 1, NOW)
    *_, last_ns = failing_attempts(bench, NOW, span_ns=3600 * SECOND)
    bench.actions()
    due_ns = bench.core.poll_timeout()
    assert due_ns is not None and due_ns > last_ns + 2 * SECOND
    bench.core.handle_wanted(TO_HIGH, last_ns + SECOND)
    (connect,) = bench.actions()
    assert isinstance(connect, Connect)


def test_a_message_does_not_undo_the_back_off() -> None:
    """Right after an attempt of many, the next one waits up to a second."""
    bench = Bench()
    bench.join(generation=4)
    bench.core.handle_ended(TO_HIGH, 1, NOW)
    *_, last_ns = failing_attempts(bench, NOW, span_ns=3600 * SECOND)
    bench.actions()
    bench.core.handle_wanted(TO_HIGH, last_ns)
    assert bench.actions() == []
    due_ns = bench.core.poll_timeout()
    assert due_ns is not None and last_ns < due_ns <= last_ns + SECOND


def test_more_messages_change_nothing() -> None:
    bench = Bench()
    bench.core.handle_wanted(bench.core.key_for(TO_HIGH.peer, 0, NOW), NOW)
    *_, last_ns = failing_attempts(bench, NOW, span_ns=60 * SECOND)
    due_ns = bench.core.poll_timeout()
    for _ in range(10):
        bench.core.handle_wanted(TO_HIGH, last_ns)
        assert bench.core.poll_timeout() == due_ns


@pytest.mark.parametrize("is_wanted", [False, True])
def test_connections_that_end_at_once_are_not_hammered(is_wanted: bool) -> None:
    bench = Bench()
    bench.core.handle_wanted(bench.core.key_for(TO_HIGH.peer, 0, NOW), NOW)
    now_ns, count = NOW, 0
    while now_ns < NOW + 60 * SECOND:
        for action in bench.actions():
            if isinstance(action, Connect):
                count += 1
                data = bench.data(generation=4)
                bench.core.handle_established(TO_HIGH, action.number, data, now_ns)
                bench.core.handle_ended(TO_HIGH, action.number, now_ns)
                if is_wanted:
                    bench.core.handle_wanted(TO_HIGH, now_ns)
        due_ns = bench.core.poll_timeout()
        if due_ns is not None:
            now_ns = max(now_ns, due_ns)
        bench.core.handle_timeout(now_ns)
    assert 10 < count < 200


def test_a_connection_that_lasted_is_sought_at_once() -> None:
    bench = Bench()
    bench.join(generation=4)
    (_, connect) = bench.end(1, NOW + SECOND)
    assert isinstance(connect, Connect)
    bench.establish(connect.number, bench.data(generation=4), NOW + SECOND)
    assert len(bench.end(connect.number, NOW + 2 * SECOND - 1)) == 1, "that one did not last"


def test_protocol_errors_are_not_hammered() -> None:
    """Whichever side connects: on average, half a second passes between them."""
    bench = Bench()
    count, now_ns = 0, NOW
    for number in range(REQUEST, REQUEST + 2000):
        now_ns += 10 * MS
        bench.request(number, generation=4, now_ns=now_ns)
        peer = bench.core.find(TO_HIGH)
        assert peer is not None
        if peer.number == number:
            count += 1
            bench.establish(number, now_ns=now_ns)
            bench.core.handle_protocol_error(TO_HIGH, number, now_ns)
            bench.actions()
    assert 20 < count < 80, "in 20 s"
