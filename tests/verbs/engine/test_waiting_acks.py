"""Acknowledgements on a link where they wait for a packet to ride on."""

from dataclasses import replace

from tests.sim.verbs_pair import Side
from tests.verbs.engine.verbs_sides import (
    LOSSLESS,
    answer,
    answers,
    done,
    make_answering,
    make_asking,
    read,
    send,
    sent,
)
from urds.verbs.engine.numbers import QPAttrMask, QPState, WCStatus
from urds.verbs.engine.packets import Packet, PacketKind, Syndrome
from urds.verbs.engine.queue_pair import QPAttr
from urds.verbs.engine.responder import UNACKED_MAX

WAITING = replace(LOSSLESS, acks_wait=True)


def pending(receives: int = 8) -> Side:
    """Return a side that has executed a send, and has yet to acknowledge PSN 100."""
    side = make_answering(link=WAITING)
    for wr_id in range(receives):
        side.receive(wr_id, length=8)
    assert answers(side, send(100, 1, b"x")) == []
    assert side.qp.ack_pending
    return side


def is_ack(packet: Packet, psn: int) -> bool:
    return (packet.kind, packet.psn, packet.syndrome) == (PacketKind.ACK, psn, Syndrome.ACK)


def test_it_waits_until_it_is_hurried() -> None:
    side = pending()
    side.qp.hurry_ack()
    (ack,) = sent(side)
    assert is_ack(ack, 100) and ack.acknowledged is None
    assert not side.qp.ack_pending and sent(side) == []


def test_to_hurry_nothing_hurries_nothing_later() -> None:
    side = pending()
    side.qp.hurry_ack()
    sent(side)
    side.qp.hurry_ack()
    assert answers(side, send(101, 2, b"x")) == []


def test_it_rides_on_the_next_request() -> None:
    side = pending()
    side.send(1, length=8)
    side.send(2, length=8)
    first, second = sent(side)
    assert (first.kind, first.acknowledged, second.acknowledged) == (PacketKind.SEND, 100, None)
    assert not side.qp.ack_pending


def test_it_rides_on_an_answer_and_goes_no_other_way() -> None:
    side = pending()
    (response,) = answers(side, read(side, 101, 0, 8))
    assert (response.kind, response.acknowledged) == (PacketKind.READ_RESPONSE, 101)
    assert not side.qp.ack_pending


def test_many_packets_do_not_wait() -> None:
    side = pending(receives=UNACKED_MAX)
    for number in range(1, UNACKED_MAX - 1):
        assert answers(side, send(100 + number, 1 + number, b"x")) == []
    (ack,) = answers(side, send(99 + UNACKED_MAX, UNACKED_MAX, b"x"))
    assert is_ack(ack, 99 + UNACKED_MAX)
    side.receive(99, length=8)
    assert answers(side, send(100 + UNACKED_MAX, UNACKED_MAX + 1, b"x")) == []


def test_a_missing_receive_is_told_at_once_and_takes_it_along() -> None:
    side = pending(receives=1)
    (nak,) = answers(side, send(101, 2, b"x"))
    assert nak.syndrome >= Syndrome.RNR_NAK and (nak.psn, nak.acknowledged) == (101, 100)


def test_a_broken_rule_is_told_at_once() -> None:
    side = pending()
    (nak,) = answers(side, send(101, 9, b"x"))
    assert nak.syndrome == Syndrome.NAK_INVALID_REQUEST and nak.psn == 101


def test_it_does_not_wait_in_a_queue_pair_that_has_ended() -> None:
    side = pending()
    side.qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE, 0)
    (ack,) = sent(side)
    assert is_ack(ack, 100)


def test_it_does_not_wait_where_a_request_of_this_side_ends_the_queue_pair() -> None:
    side = pending()
    side.send(1, length=8)
    side.keys.deregister(side.region)
    (ack,) = sent(side)
    assert is_ack(ack, 100) and (1, WCStatus.LOC_PROT_ERR) in done(side)


def test_it_survives_a_reset() -> None:
    """What it is for was executed; the peer of that time hears so."""
    side = pending()
    peer = side.qp.peer
    side.qp.modify(QPAttr(qp_state=QPState.RESET), QPAttrMask.STATE, 0)
    (ack,) = sent(side)
    assert is_ack(ack, 100) and peer is not None and ack.destination == peer
    assert sent(side) == []


def test_one_that_rides_completes_requests_before_its_packet_acts() -> None:
    side = make_asking(link=WAITING)
    side.send(1, length=8)
    side.send(2, length=8)
    sent(side)
    side.receive(3, length=8)
    packet = send(100, 1, b"x")
    packet.acknowledged = 101
    side.qp.receive_packet(packet, 0)
    assert done(side) == [(1, WCStatus.SUCCESS), (2, WCStatus.SUCCESS)]
    assert [wc.wr_id for wc in side.received()] == [3]


def test_one_of_what_was_never_sent_is_ignored() -> None:
    side = make_asking(link=WAITING)
    side.send(1, length=8)
    sent(side)
    answer(side, 100, kind=PacketKind.ATOMIC_RESPONSE, acknowledged=0xFF_0000)
    answer(side, 99, acknowledged=105)
    assert done(side) == []
    answer(side, 99, acknowledged=100)
    assert done(side) == [(1, WCStatus.SUCCESS)]
