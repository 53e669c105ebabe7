"""Connections over RDMA that end, fail, are given up, or meet a fault; reports that come late."""

from ipaddress import IPv4Address

import pytest

from tests.rds.transports.rdma_core.rdma_bench import INCOMPATIBLE, NOW, REQUEST, TO_HIGH, Bench
from tests.rds.transports.rdma_core.rdma_world import HIGH, SECOND
from urds.rds.control.events import Action
from urds.rds.control.rdma_events import (
    Abandon,
    Accept,
    Attach,
    Connect,
    Detach,
    Failure,
    GiveUp,
    PeerKey,
    Reject,
)
from urds.rds.control.state import PeerState


def test_reports_about_what_has_ended_are_ignored() -> None:
    bench = Bench()
    bench.want()
    core, unknown_peer = bench.core, PeerKey(IPv4Address("10.0.0.9"), 0)
    for is_up in (False, True):
        for key, number in [(TO_HIGH, 99), (unknown_peer, 1)]:
            core.handle_established(key, number, b"", NOW)
            core.handle_failed(key, number, Failure.REFUSED, NOW)
            core.handle_ended(key, number, NOW)
            core.handle_protocol_error(key, number, NOW)
        core.handle_fault(unknown_peer, NOW)
        core.handle_wanted(unknown_peer, NOW)
        if is_up:
            core.handle_established(TO_HIGH, 1, b"", NOW)
            core.handle_failed(TO_HIGH, 1, Failure.ERROR, NOW)
            core.handle_wanted(TO_HIGH, NOW)
        assert bench.actions() == []
        bench.establish(1, bench.data(generation=4))


def test_an_attempt_without_an_answer_is_abandoned() -> None:
    bench = Bench()
    bench.want()
    assert bench.wait(30 * SECOND - 1) == []
    assert bench.wait(SECOND, NOW + 30 * SECOND) == [Abandon(TO_HIGH, 1), Connect(TO_HIGH, 2)]
    assert bench.stats.silent == 1


def test_a_request_ends_the_wait_for_our_next_attempt() -> None:
    bench = Bench()
    bench.want()
    bench.core.handle_failed(TO_HIGH, 1, Failure.REFUSED, NOW)
    bench.actions()
    assert bench.request(generation=4) == [Accept(TO_HIGH, REQUEST)]
    assert bench.wait(2 * SECOND) == []


def test_an_answer_without_an_echo_is_abandoned_and_neither_side_reconnects() -> None:
    bench = Bench()
    bench.request(generation=4)
    assert bench.wait(100 * SECOND) == [Abandon(TO_HIGH, REQUEST)]
    assert bench.core.poll_timeout() is None


def fail_all(bench: Bench, now_ns: int, *, span_ns: int) -> list[Action]:
    """Let every attempt of a time fail at once; return what else was asked for."""
    end_ns, found = now_ns + span_ns, []
    while True:
        for action in bench.actions():
            if isinstance(action, Connect):
                number = action.number
                bench.core.handle_failed(TO_HIGH, number, Failure.UNREACHABLE, now_ns)
            elif not isinstance(action, Abandon):
                found.append(action)
        due_ns = bench.core.poll_timeout()
        if due_ns is None or due_ns > end_ns:
            return found
        now_ns = due_ns
        bench.core.handle_timeout(now_ns)


@pytest.mark.parametrize("times", [1, 2])
def test_giving_up_drops_what_waits_until_the_next_message(times: int) -> None:
    bench = Bench(reconnect_give_up_ns=2 * SECOND)
    for time in range(times):
        now_ns = NOW + 10 * SECOND * time
        bench.core.handle_wanted(bench.core.key_for(HIGH, 0, now_ns), now_ns)
        found = fail_all(bench, now_ns, span_ns=9 * SECOND)
        assert found == [GiveUp(TO_HIGH, 2 * SECOND)]
        assert bench.core.poll_timeout() is None, "nothing is tried for any more"


@pytest.mark.parametrize("is_ours", [False, True])
def test_we_give_up_while_an_attempt_is_out_and_take_it_if_it_succeeds(is_ours: bool) -> None:
    bench = Bench(reconnect_give_up_ns=2 * SECOND)
    if not is_ours:
        bench.request(generation=4)
    bench.want()
    assert bench.wait(2 * SECOND) == [GiveUp(TO_HIGH, 2 * SECOND)]
    number = 1 if is_ours else REQUEST
    found = bench.establish(number, bench.data(generation=4), NOW + 3 * SECOND)
    assert found[-1] == Attach(TO_HIGH, number, 0, 0, True)


def test_what_was_given_up_is_not_tried_again() -> None:
    bench = Bench(reconnect_give_up_ns=2 * SECOND)
    bench.want()
    bench.wait(2 * SECOND)
    bench.core.handle_failed(TO_HIGH, 1, Failure.UNREACHABLE, NOW + 3 * SECOND)
    assert bench.actions() == [Abandon(TO_HIGH, 1)]
    assert bench.core.poll_timeout() is None


def test_each_outage_has_its_own_time() -> None:
    bench = Bench(reconnect_give_up_ns=2 * SECOND)
    bench.join(generation=4)
    bench.core.handle_ended(TO_HIGH, 1, NOW + 10 * SECOND)
    found = fail_all(bench, NOW + 10 * SECOND, span_ns=9 * SECOND)
    assert found == [Detach(TO_HIGH, 1), GiveUp(TO_HIGH, 2 * SECOND)]


def test_a_connection_in_time_is_not_given_up() -> None:
    bench = Bench(reconnect_give_up_ns=2 * SECOND)
    bench.join(generation=4)
    assert bench.wait(10 * SECOND) == []


def test_a_protocol_error_ends_the_connection_and_lets_both_sides_rest() -> None:
    bench = Bench()
    bench.join(generation=4)
    bench.core.handle_protocol_error(TO_HIGH, 1, NOW)
    assert bench.actions() == [Detach(TO_HIGH, 1)]
    quarantined_until_ns = bench.core.poll_timeout()
    assert quarantined_until_ns is not None and NOW < quarantined_until_ns <= NOW + SECOND
    found = bench.request(generation=4, now_ns=quarantined_until_ns - 1)
    assert found == [Reject(REQUEST, INCOMPATIBLE)]
    assert bench.request(1001, generation=4, now_ns=quarantined_until_ns) == [Accept(TO_HIGH, 1001)]
    assert (bench.stats.protocol_errors, bench.stats.refused_quarantined) == (1, 1)


def test_a_protocol_error_lets_the_host_rest_whatever_the_type_of_service() -> None:
    bench = Bench()
    bench.join(generation=4)
    assert bench.request(1001, tos=3, generation=4) == [Accept(PeerKey(HIGH, 3), 1001)]
    bench.establish(1001, key=PeerKey(HIGH, 3))
    bench.core.handle_protocol_error(TO_HIGH, 1, NOW, wrong_key=True)
    assert bench.actions() == [Detach(TO_HIGH, 1)], "the other connection stays"
    assert (bench.stats.protocol_errors, bench.stats.wrong_keys) == (1, 1)
    quarantined_until_ns = bench.core.poll_timeout()
    assert quarantined_until_ns is not None
    for tos in (0, 3, 4):
        found = bench.request(1002 + tos, tos=tos, generation=4, now_ns=quarantined_until_ns - 1)
        assert found == [Reject(1002 + tos, INCOMPATIBLE)]
    assert bench.core.find(PeerKey(HIGH, 4)) is None, "nothing is kept of who is not let in"
    other = IPv4Address("10.0.0.77")
    assert bench.request(1100, peer=other, generation=4) == [Accept(PeerKey(other, 0), 1100)]
    assert bench.stats.refused_quarantined == 3


def test_our_own_attempts_wait_for_a_rest_that_began_after_they_were_planned() -> None:
    bench = Bench()
    bench.join(generation=4)
    to_three = PeerKey(HIGH, 3)
    assert bench.want(tos=3) == [Connect(to_three, 2)]
    bench.core.handle_failed(to_three, 2, Failure.UNREACHABLE, NOW)
    bench.core.handle_failed(to_three, 2, Failure.UNREACHABLE, NOW)
    planned_ns = bench.core.poll_timeout()
    assert planned_ns is not None and planned_ns < NOW + SECOND // 100
    bench.actions()
    bench.core.handle_protocol_error(TO_HIGH, 1, NOW)
    bench.actions()
    quarantine = bench.core._quarantine  # when they may go on; the draw is at random
    quarantined_until_ns = quarantine.until_ns(HIGH)
    assert quarantined_until_ns > NOW + SECOND // 100
    assert bench.wait(quarantined_until_ns - 1 - NOW) == []
    assert {action.key for action in bench.wait(SECOND) if isinstance(action, Connect)} == {
        TO_HIGH,
        to_three,
    }


@pytest.mark.parametrize("state", list(PeerState))
def test_after_a_fault_of_ours_everything_starts_over(state: PeerState) -> None:
    bench = Bench()
    if state is PeerState.ACCEPTING:
        bench.request(generation=4)
    elif state is not PeerState.DOWN:
        bench.want()
    if state is PeerState.WAITING:
        bench.core.handle_failed(TO_HIGH, 1, Failure.ERROR, NOW)
        bench.core.handle_failed(TO_HIGH, 1, Failure.ERROR, NOW)
    elif state is PeerState.UP:
        bench.establish(1, bench.data())
    key = bench.core.key_for(HIGH, 0, NOW)
    bench.actions()
    bench.core.handle_fault(key, NOW)
    kinds = [type(action) for action in bench.actions()]
    ends = {PeerState.CONNECTING: [Abandon], PeerState.ACCEPTING: [Abandon], PeerState.UP: [Detach]}
    assert kinds == ends.get(state, [])
    is_sought = state in (PeerState.WAITING, PeerState.CONNECTING, PeerState.UP)
    assert [type(action) for action in bench.wait(SECOND)] == [Connect] * is_sought


def test_a_fault_is_followed_by_a_rest() -> None:
    """Though the connection lasted, so that another one would be sought at once."""
    bench = Bench()
    bench.join(generation=4)
    bench.core.handle_fault(TO_HIGH, NOW + 10 * SECOND)
    assert bench.actions() == [Detach(TO_HIGH, 1)]


def test_a_fault_in_a_timer_does_not_end_the_search() -> None:
    bench = Bench()
    bench.join(generation=4)
    bench.end(1)
    peer = bench.core.find(TO_HIGH)
    assert peer is not None
    peer._next_number, next_number = iter(()).__next__, peer._next_number  # a fault, made here
    with pytest.raises(StopIteration):
        bench.wait(SECOND)
    assert bench.core.timed_key == TO_HIGH
    assert bench.core.poll_timeout() is None
    peer._next_number = next_number
    bench.core.handle_fault(TO_HIGH, NOW + SECOND)
    assert [type(action) for action in bench.wait(SECOND, NOW + SECOND)] == [Connect]
