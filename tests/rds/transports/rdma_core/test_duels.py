"""Requests that meet something over RDMA: an attempt, a connection, another generation."""

from ipaddress import IPv4Address

import pytest

from tests.rds.transports.rdma_core.rdma_bench import INCOMPATIBLE, NOW, REQUEST, TO_HIGH, Bench
from tests.rds.transports.rdma_core.rdma_world import HIGH, LOW, MS, SECOND
from urds.rds.control.rdma_events import (
    Abandon,
    Accept,
    Attach,
    Connect,
    Detach,
    Failure,
    PeerKey,
    PeerKnown,
    Reject,
    RestartPeer,
)
from urds.rds.wire.private_data import ConnectData

# -- duels


@pytest.mark.parametrize("generation", [None, 4])
@pytest.mark.parametrize("local", [LOW, HIGH])
def test_a_request_meets_our_attempt(local: IPv4Address, generation: int | None) -> None:
    """Linux rejects and goes on; of urds nodes the higher gives way to the lower."""
    peer = HIGH if local == LOW else LOW
    bench, key = Bench(local), PeerKey(peer, 0)
    assert bench.want(peer) == [Connect(key, 1)]
    found = bench.request(peer=peer, generation=generation)
    if local == HIGH and generation:
        assert found == [Abandon(key, 1), Accept(key, REQUEST)]
        assert bench.establish(1, bench.data(peer), key=key) == [], "too late"
        assert bench.establish(REQUEST, key=key)[-1] == Attach(key, REQUEST, 0, 0, True)
    else:
        assert found == [Reject(REQUEST, INCOMPATIBLE)]
        assert bench.establish(1, bench.data(peer), key=key)[-1] == Attach(key, 1, 0, 0, False)
    assert bench.stats.connect_raced == 1


def test_the_lower_node_does_not_insist_for_ever() -> None:
    """Its attempt may have gone to a generation of the peer that is over."""
    bench = Bench()
    bench.want()
    assert bench.request(generation=4, now_ns=NOW + SECOND - 1) == [Reject(REQUEST, INCOMPATIBLE)]
    assert bench.request(1001, generation=4, now_ns=NOW + SECOND) == [
        Abandon(TO_HIGH, 1),
        Accept(TO_HIGH, 1001),
    ]


@pytest.mark.parametrize("generation", [None, 4])
def test_a_request_meets_one_that_we_accept(generation: int | None) -> None:
    bench = Bench()
    bench.request(generation=generation)
    assert bench.request(1001, generation=generation) == [Reject(1001, INCOMPATIBLE)]
    found = bench.request(1002, generation=generation, now_ns=NOW + SECOND)
    if generation is None:
        assert found == [Reject(1002, INCOMPATIBLE)]
    else:
        assert found == [Abandon(TO_HIGH, REQUEST), Accept(TO_HIGH, 1002)]


def test_another_life_takes_the_place_of_a_request_at_once() -> None:
    bench = Bench()
    bench.request(generation=4)
    found = bench.request(1001, generation=5)
    assert found == [Abandon(TO_HIGH, REQUEST), Accept(TO_HIGH, 1001)]


def test_a_request_of_linux_ends_a_connection_that_seemed_up() -> None:
    """It is rejected too; but Linux asks again, and before we do: messages wait so long."""
    bench = Bench()
    bench.join()
    assert bench.request() == [Detach(TO_HIGH, 1), Reject(REQUEST, INCOMPATIBLE)]
    assert bench.stats.listen_closed_stale == 1
    assert bench.want() == []
    assert bench.wait(20 * MS - 1) == []
    assert bench.request(1001, now_ns=NOW + 20 * MS - 1) == [Accept(TO_HIGH, 1001)]


def test_if_linux_does_not_ask_again_we_do() -> None:
    bench = Bench()
    bench.join()
    bench.request()
    assert bench.wait(SECOND) == [Connect(TO_HIGH, 2)]


def test_a_request_of_an_own_node_takes_the_place_of_a_connection() -> None:
    """Unless that is so young that the request may be the older one."""
    bench = Bench()
    bench.join(generation=4)
    assert bench.request(generation=4, now_ns=NOW + SECOND - 1) == [Reject(REQUEST, INCOMPATIBLE)]
    assert bench.request(1001, generation=4, now_ns=NOW + SECOND) == [
        Detach(TO_HIGH, 1),
        Accept(TO_HIGH, 1001),
    ]
    assert bench.establish(1001, now_ns=NOW + 3 * SECOND) == [Attach(TO_HIGH, 1001, 0, 0, True)]
    found = bench.request(1002, generation=4, now_ns=NOW + 4 * SECOND - 1)
    assert found == [Reject(1002, INCOMPATIBLE)], "young since it came up"


# -- new lives


def test_another_generation_is_a_restart() -> None:
    """What it acknowledges is of another generation too; we acknowledge nothing while in doubt."""
    bench = Bench()
    bench.join(generation=4)
    found = bench.request(generation=5, ack_sequence=9)
    assert found == [Detach(TO_HIGH, 1), Accept(TO_HIGH, REQUEST)]
    data = bench.core.offer(TO_HIGH, acknowledged=77, credits=0)
    assert ConnectData.parse(data, ipv6=False).ack_sequence == 0
    assert bench.establish(REQUEST) == [
        RestartPeer(TO_HIGH),
        Attach(TO_HIGH, REQUEST, acknowledged=0, credits=0, is_urds_peer=True),
    ]
    assert bench.stats.peer_restarts == 1


def test_an_answer_tells_a_new_life_as_well() -> None:
    bench = Bench()
    bench.join(generation=4)
    bench.end(1)
    (connect,) = bench.wait(SECOND)
    assert bench.establish(connect.number, bench.data(generation=5, ack_sequence=9)) == [
        RestartPeer(TO_HIGH),
        Attach(TO_HIGH, connect.number, acknowledged=0, credits=0, is_urds_peer=True),
    ]


@pytest.mark.parametrize(("before", "after"), [(4, None), (None, 4)])
def test_who_becomes_linux_or_was_it_began_a_new_life(
    before: int | None, after: int | None
) -> None:
    bench = Bench()
    bench.join(generation=before)
    bench.end(1)
    (connect,) = bench.wait(SECOND)
    found = bench.establish(connect.number, bench.data(generation=after))
    assert found[:2] == [RestartPeer(TO_HIGH), PeerKnown(TO_HIGH, after is not None, (3, 1))]


def test_linux_again_is_no_new_life() -> None:
    bench = Bench()
    bench.join()
    bench.end(1)
    (connect,) = bench.wait(SECOND)
    found = bench.establish(connect.number, bench.data(ack_sequence=9))
    assert found == [Attach(TO_HIGH, connect.number, acknowledged=9, credits=0, is_urds_peer=False)]


def test_a_request_that_came_to_nothing_is_no_new_life_but_leaves_doubt() -> None:
    """The other life may have been attached there, and then knows that it never heard of us."""
    bench = Bench()
    bench.join(generation=4)
    bench.request(generation=5)
    bench.core.handle_failed(TO_HIGH, REQUEST, Failure.ERROR, NOW)
    assert bench.actions()[0] == Abandon(TO_HIGH, REQUEST)
    (connect,) = bench.wait(SECOND)
    data = bench.core.offer(TO_HIGH, acknowledged=77, credits=0)
    assert ConnectData.parse(data, ipv6=False).ack_sequence == 0
    found = bench.establish(connect.number, bench.data(generation=4, ack_sequence=9))
    assert found == [Attach(TO_HIGH, connect.number, acknowledged=9, credits=0, is_urds_peer=True)]
    data = bench.core.offer(TO_HIGH, acknowledged=77, credits=0)
    assert ConnectData.parse(data, ipv6=False).ack_sequence == 77
