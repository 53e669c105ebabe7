"""A second stream of a urds node: it is asked on the first before the second takes the path."""

from __future__ import annotations

import pytest

from tests.rds.control.proto_world import (
    HIGH,
    LOW,
    MS,
    SECOND,
    End,
    Node,
    World,
    of_own,
    shake_hands,
)
from urds.rds.control.events import Attach, Reason, Refuse, Refused, SendControl
from urds.rds.wire.extensions import Handshake

QUESTION_NS = SECOND // 5


def met(npaths: int = 1) -> tuple[World, Node, Node]:
    """Have two urds nodes connected; the higher one accepts."""
    world = World()
    low = Node(world, LOW, generation=100, npaths=npaths)
    high = Node(world, HIGH, generation=200, npaths=npaths)
    low.want(HIGH)
    world.run(SECOND)
    high.log.clear()
    return world, low, high


def second(high: Node) -> End:
    """Have another stream come from the lower node's address, over which nothing is said."""
    end = high.new_end(40_000)
    high.endpoint.handle_accepted(end.number, LOW, 40_000, high.world.now_ns)
    high.act()
    return end


@pytest.mark.parametrize("npaths", [1, 8])
def test_a_peer_that_answers_keeps_its_stream(npaths: int) -> None:
    world, low, high = met(npaths)
    end = second(high)
    assert high.seen(Attach) == []
    world.run(10 * MS)
    assert high.seen(Refuse) == [Refuse(LOW, end.number)]
    assert high.seen(Refused) == [Refused(LOW, Reason.STILL_CONNECTED)]
    world.run(10 * SECOND)
    assert high.seen(Attach) == []
    stats = high.to(LOW).stats
    assert (stats.takeovers_refused, stats.superseded, stats.downs) == (1, 0, 0)
    assert all(end.open for end in low.attached.values())


@pytest.mark.parametrize("is_known", [False, True])
def test_a_peer_keeps_its_stream_while_the_handshake_is_under_way(is_known: bool) -> None:
    """Messages go over it before that ends. Otherwise a thief would be taken for the peer then.

    `is_known`: the peer's own probe has come, but not yet the answer to ours.
    """
    world = World()
    high = Node(world, HIGH, generation=200)
    second(high)
    peer = high.to(LOW)
    peer.handle_first_frame(0, 1, world.now_ns, generation=100)
    if is_known:
        shake_hands(peer, of_own(None), ping=True, now_ns=SECOND)
    high.act()
    high.log.clear()
    thief = second(high)
    shake_hands(peer, of_own(100), ping=False, now_ns=SECOND)
    high.act()
    assert high.seen(Refuse) == [], "it may be older than the thief's stream"
    shake_hands(peer, of_own(100), ping=False, now_ns=SECOND)
    high.act()
    assert high.seen(Refuse) == [Refuse(LOW, thief.number)]
    world.run(10 * SECOND)
    assert high.seen(Attach) == []
    assert (peer.stats.takeovers_refused, peer.stats.superseded) == (1, 0)


@pytest.mark.parametrize("is_there", [True, False])
def test_an_answer_to_what_greeted_the_peer_does_not_tell(is_there: bool) -> None:
    """It may have lost the stream since it sent that, and is the one that connects again."""
    world, low, high = met()
    high.to(LOW)._paths[0].answered = False
    if not is_there:
        low.close(low.attached[HIGH, 0], silent=True)
    newer = second(high)
    shake_hands(high.to(LOW), of_own(100), ping=False, now_ns=world.now_ns)
    high.act()
    assert high.seen(Refuse) == []
    world.run(2 * QUESTION_NS)
    assert (Refuse(LOW, newer.number) in high.seen(Refuse)) is is_there
    assert [one.stream for one in high.seen(Attach)][:1] == ([] if is_there else [newer.number])


def test_a_silent_peer_is_waited_for_at_most_200_ms() -> None:
    """Its host may have forgotten the stream and not tell so."""
    world, low, high = met()
    low.close(low.attached[HIGH, 0], silent=True)
    end = second(high)
    world.run(QUESTION_NS - 1)
    assert high.seen(Attach) == []
    world.run(2)
    assert [action.stream for action in high.seen(Attach)] == [end.number]
    assert high.to(LOW).stats.superseded == 1


def test_a_peer_that_has_ended_is_not_waited_for() -> None:
    """A restart may connect before the end of the old one is known."""
    world, low, high = met()
    low.crash()
    end = second(high)
    assert high.seen(Attach) == []
    world.run(2 * MS)
    assert [action.stream for action in high.seen(Attach)] == [end.number]
    assert high.to(LOW).stats.takeovers_refused == 0


def test_one_question_is_asked_for_all_that_come_meanwhile() -> None:
    world, _, high = met()
    first, last = second(high), second(high)
    assert len(high.seen(SendControl)) == 1
    assert high.seen(Refuse) == [Refuse(LOW, first.number)]
    world.run(10 * MS)
    assert high.seen(Refuse) == [Refuse(LOW, first.number), Refuse(LOW, last.number)]


def test_an_answer_holds_for_a_while() -> None:
    """A flood of connections must not use up the control messages that the peer takes of us."""
    world, _, high = met()
    for _ in range(100):
        second(high)
        world.run(5 * MS)
    assert len(high.seen(SendControl)) <= 6  # in half a second
    assert high.to(LOW).stats.takeovers_refused == len(high.seen(Refuse)) == 100
    assert high.seen(Attach) == []


def test_an_answer_does_not_hold_beyond_its_stream() -> None:
    world, low, high = met()
    second(high)
    world.run(10 * MS)
    low.crash()
    world.run(2 * MS)
    end = second(high)
    assert [action.stream for action in high.seen(Attach)] == [end.number]


def test_a_second_stream_that_stays_silent_goes_like_any_other() -> None:
    world, low, high = met()
    low.close(low.attached[HIGH, 0], silent=True)
    end = second(high)
    high.to(LOW).drop_pending(end.number, Reason.SILENT, world.now_ns)
    high.act()
    assert high.seen(Refuse) == [Refuse(LOW, end.number)]
    world.run(2 * QUESTION_NS)
    assert high.seen(Attach) == []


def test_a_newer_stream_that_need_not_wait_ends_the_wait_of_an_older() -> None:
    """A peer that says on its stream that it is a Linux one now has no more questions asked."""
    world, low, high = met()
    low.close(low.attached[HIGH, 0], silent=True)
    older = second(high)
    shake_hands(high.to(LOW), Handshake(npaths=1), ping=True, now_ns=world.now_ns)
    newer = second(high)
    assert [action.stream for action in high.seen(Attach)] == [newer.number]
    assert high.seen(Refuse) == [Refuse(LOW, older.number)]
    world.run(2 * QUESTION_NS)
    assert older.number not in [action.stream for action in high.seen(Attach)]


def test_a_fault_forgets_the_second_stream_with_the_first() -> None:
    """The driver closes every stream that no path has."""
    world, low, high = met()
    low.close(low.attached[HIGH, 0], silent=True)
    end = second(high)
    high.to(LOW).handle_fault([1], world.now_ns)
    high.act()
    world.run(QUESTION_NS)
    assert end.number not in [action.stream for action in high.seen(Attach)]
