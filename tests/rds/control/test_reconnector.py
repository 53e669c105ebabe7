"""The search for a connection, of both transports: back-off, quarantine, giving up."""

from ipaddress import ip_address
from random import Random

import pytest

from urds.rds.control.reconnect import ATTEMPT_GAP_NS, Backoff, Quarantine, Reconnector
from urds.rds.control.settings import ReconnectSettings
from urds.rds.control.state import ConnectionState
from urds.rds.control.timers import OwnTimers, TimerKind, Timers

MS = 1_000_000
S = 1_000 * MS
SETTINGS = ReconnectSettings(generation=1, reconnect_give_up_ns=100 * S)
A, B, C = (ip_address(f"10.0.0.{number}") for number in (1, 2, 3))


def quarantine(*, hosts_max: int = 4096) -> Quarantine:
    return Quarantine(SETTINGS, hosts_max=hosts_max, random=Random(1))


class Search:
    """A search, and the timers that it sets."""

    def __init__(self, shared: Quarantine | None = None) -> None:
        shared = quarantine() if shared is None else shared
        self.timers = OwnTimers(Timers(), A, 0)
        self.found = Reconnector(
            SETTINGS, A, timers=self.timers, quarantine=shared, random=Random(1)
        )

    def attempt_at_ns(self) -> int | None:
        return self.timers.get(TimerKind.ATTEMPT)

    def give_up_at_ns(self) -> int | None:
        return self.timers.get(TimerKind.GIVE_UP)


# -- back-off


@pytest.mark.rule("rds7-reconnect-backoff", "rds7-reconnect-limits", "wire-security-backoff")
def test_the_back_off_doubles_from_its_minimum_to_its_maximum() -> None:
    class Highest(Random):
        def randrange(self, stop: int) -> int:
            return stop - 1

    backoff = Backoff(min_ns=MS, random=Highest())
    assert [backoff.next_ns(max_ns=5 * MS) + 1 for _ in range(6)] == [
        1, MS, 2 * MS, 4 * MS, 5 * MS, 5 * MS,
    ]  # fmt: skip
    backoff.reset()
    assert backoff.next_ns(max_ns=5 * MS) == 0


# -- quarantine


def test_a_host_rests_for_a_second_at_most_and_others_do_not() -> None:
    found = quarantine()
    assert found.until_ns(A) == 0
    found.extend(A, 5 * S)
    assert 5 * S <= found.until_ns(A) < 6 * S
    assert found.until_ns(B) == 0


def test_protocol_errors_on_many_connections_at_once_add_up_to_a_minute() -> None:
    """So that 256 connections guess no faster than one: two keys a second, in the long run."""
    found = quarantine()
    for count in range(1, 21):
        before_ns = found.until_ns(A)
        found.extend(A, 0)
        assert before_ns <= found.until_ns(A) < count * S
    assert found.until_ns(A) > 5 * S
    for _ in range(1000):
        found.extend(A, 0)
    assert found.until_ns(A) == 60 * S


def test_a_rest_that_is_over_does_not_make_the_next_one_longer() -> None:
    found = quarantine()
    for second in range(0, 100, 10):
        found.extend(A, second * S)
        assert second * S <= found.until_ns(A) < (second + 1) * S


def test_the_host_that_may_connect_first_is_forgotten_when_there_are_too_many() -> None:
    found = quarantine(hosts_max=2)
    found.extend(A, 0)
    found.extend(A, 0)
    found.extend(A, 0)
    found.extend(B, 0)
    assert found.until_ns(B) < found.until_ns(A)
    found.extend(C, 0)
    assert len(found) == 2
    assert found.until_ns(B) == 0 and found.until_ns(A) and found.until_ns(C)
    found.extend(B, 50 * S)  # both are over
    assert len(found) == 1 and found.until_ns(B)


# -- the search


def test_the_first_attempt_is_due_at_once_and_the_next_after_a_delay() -> None:
    search = Search()
    assert search.found.retry_later(S)
    assert search.attempt_at_ns() is None
    search.found.begin_attempt(S)
    delays = []
    for _ in range(30):
        due = search.found.retry_later(S)
        delays.append(0 if due else (search.attempt_at_ns() or 0) - S)
    assert S < max(delays) < 60 * S, "no message waits: the delay grows on"
    search.found.want(S)
    search.found.retry_later(S)
    assert (search.attempt_at_ns() or 0) <= 2 * S


def test_what_retries_now_makes_one_attempt_in_10_ms() -> None:
    search = Search()
    assert search.found.retry_now(S)
    search.found.begin_attempt(S)
    assert not search.found.retry_now(S + 1)
    assert search.attempt_at_ns() == S + ATTEMPT_GAP_NS
    assert search.found.retry_now(S + ATTEMPT_GAP_NS)
    assert search.attempt_at_ns() is None, "the owner makes it, not the timer as well"


def test_what_retries_soon_counts_the_delay_from_the_last_attempt() -> None:
    search = Search()
    search.found.begin_attempt(0)
    for _ in range(20):
        search.found.retry_later(0)
    assert not search.found.retry_soon(1) and (search.attempt_at_ns() or 0) < S
    assert search.found.retry_soon(S), "a second is the longest delay where messages wait"


def test_a_message_has_the_whole_time_until_giving_up() -> None:
    search = Search()
    search.found.begin_outage(0)
    assert search.give_up_at_ns() == 100 * S
    assert search.found.want(99 * S)
    assert search.give_up_at_ns() == 199 * S
    assert not search.found.want(150 * S), "it is known"
    search.found.begin_outage(160 * S)
    assert search.give_up_at_ns() == 199 * S
    search.found.begin_attempt(198 * S)
    assert not search.found.retry_now(198 * S)
    assert search.found.give_up(199 * S) == 100 * S
    assert not search.found.wanted and not search.found.is_active
    assert search.give_up_at_ns() is search.attempt_at_ns() is search.found.down_ns is None


def test_a_connection_ends_the_outage_and_the_owner_ends_the_delays() -> None:
    search = Search()
    search.found.want(0)
    for _ in range(12):
        search.found.begin_attempt(0)
        search.found.retry_later(0)
    search.found.cancel()
    search.found.end_outage()
    assert search.give_up_at_ns() is search.attempt_at_ns() is None
    assert search.found.attempts == 0
    assert not search.found.retry_later(0), "another one may end as the last did"
    search.found.reset_backoff()
    assert search.found.retry_later(0)


def test_no_attempt_comes_before_the_end_of_a_quarantine() -> None:
    shared = quarantine()
    search, other = Search(shared), Search(shared)
    search.found.quarantine(0)
    until_ns = shared.until_ns(A)
    assert not search.found.retry_now(1) and search.attempt_at_ns() == until_ns
    assert not other.found.retry_later(1) and other.attempt_at_ns() == until_ns, "it is the host's"
    other.found.quarantine(2)  # after that timer was set
    assert not search.found.is_due(until_ns)
    assert search.attempt_at_ns() == shared.until_ns(A) > until_ns
    assert search.found.is_due(shared.until_ns(A))


def test_a_peer_that_is_about_to_connect_has_its_time() -> None:
    search = Search()
    search.found.yield_until(20 * MS)
    assert not search.found.retry_now(0) and search.attempt_at_ns() == 20 * MS
    assert search.found.retry_now(20 * MS)


def test_a_report_tells_of_the_outage() -> None:
    search = Search()
    report = search.found.report(ConnectionState.DOWN, 7)
    assert (report.state, report.since_ns) == (ConnectionState.DOWN, 7)
    search.found.retry_later(10)
    search.found.begin_attempt(10)
    search.found.yield_until(S)
    search.found.retry_later(10)
    report = search.found.report(ConnectionState.DOWN, 7)
    assert (report.state, report.since_ns) == (ConnectionState.CONNECTING, 10)
    assert (report.attempts, report.attempt_at_ns) == (1, S)
    search.found.end_outage()
    assert search.found.report(ConnectionState.UP, 11).since_ns == 11
