"""How long hosts rest that broke the protocol, and how many are remembered."""

from ipaddress import ip_address
from random import Random

from urds.rds.transports.rdma.quarantine import Quarantine

S = 1_000_000_000
A, B, C = (ip_address(f"10.0.0.{number}") for number in (1, 2, 3))


def quarantine(*, hosts_max: int = 4096) -> Quarantine:
    return Quarantine(each_max_ns=S, all_max_ns=60 * S, hosts_max=hosts_max, random=Random(1))


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
