"""The responder, packet by packet: what it accepts, in which order, and what it answers."""

import pytest

from tests.sim.verbs_pair import Side
from tests.verbs.engine.verbs_sides import (
    ASK,
    FIRST,
    LAST,
    LOSSLESS,
    LOSSY,
    ONLY,
    add,
    answers,
    events,
    make_answering,
    read,
    send,
    write,
)
from urds.verbs.engine.numbers import (
    RNR_TIMER_NS,
    AsyncEventType,
    QPState,
    ReceiveOrder,
    WCStatus,
)
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, Syndrome

# -- in order


def test_one_ack_answers_a_burst() -> None:
    side = make_answering()
    for wr_id in range(3):
        side.receive(wr_id, length=8)
    (ack,) = answers(side, *(send(100 + index, 1 + index, b"x") for index in range(3)))
    assert (ack.kind, ack.psn, ack.syndrome, ack.msn) == (PacketKind.ACK, 102, Syndrome.ACK, 3)
    assert ack.target_qpn == 0xA


def test_a_packet_that_asks_for_no_ack_gets_none() -> None:
    side = make_answering()
    side.receive(1, length=200)
    assert answers(side, send(100, 1, b"a" * 64, FIRST)) == []
    (ack,) = answers(side, send(101, 1, b"b", LAST | ASK, offset=64))
    assert ack.psn == 101


def test_a_read_is_answered_per_packet() -> None:
    side = make_answering()
    side.memory[:130] = bytes(range(130))
    found = answers(side, read(side, 100, 0, 130))
    assert [packet.psn for packet in found[:3]] == [100, 101, 102]
    assert [packet.flags for packet in found[:3]] == [FIRST, PacketFlag(0), LAST]
    assert [packet.offset for packet in found[:3]] == [0, 64, 128]
    assert b"".join(packet.payload for packet in found[:3]) == bytes(range(130))
    # A read takes as many PSNs as its answer has packets.
    assert found[3].kind is PacketKind.ACK and found[3].psn == 102


def test_a_read_takes_one_psn_on_a_link_without_loss() -> None:
    side = make_answering(link=LOSSLESS)
    found = answers(side, read(side, 100, 0, 130))
    assert [packet.psn for packet in found] == [100, 100, 100, 100]


def test_an_empty_read_has_one_empty_answer() -> None:
    found = answers(make_answering(), Packet(PacketKind.READ_REQUEST, 0xB, 100, ONLY))
    assert found[0].kind is PacketKind.READ_RESPONSE and not len(found[0].payload)
    assert found[0].flags == FIRST | LAST


def test_the_first_packet_in_rtr_is_told() -> None:
    side = Side(0xB, LOSSY)
    side.lead(0xA)
    side.qp.state = QPState.RTR
    answers(side, write(side, 100, 0, b"a"), write(side, 101, 0, b"a"))
    assert events(side) == [AsyncEventType.COMM_EST]


# -- behind and ahead


def test_a_gap_is_told_once_until_the_sequence_goes_on() -> None:
    side = make_answering()
    nak = answers(side, write(side, 102, 0, b"c"))[0]
    assert (nak.syndrome, nak.psn) == (Syndrome.NAK_SEQUENCE, 100)
    assert answers(side, write(side, 103, 0, b"d")) == []
    assert [answer.psn for answer in answers(side, write(side, 100, 0, b"a"))] == [100]
    assert answers(side, write(side, 102, 0, b"c"))[0].psn == 101
    assert side.memory[0:1] == b"a"


def test_a_repeated_send_is_acknowledged_and_not_done_again() -> None:
    side = make_answering()
    side.receive(1, length=8)
    side.receive(2, 8, length=8)
    answers(side, send(100, 1, b"x"))
    (ack,) = answers(side, send(100, 1, b"x"))
    assert ack.psn == 100 and len(side.received()) == 1 and side.qp.recv_query() == (1, 1)


def test_a_repeated_write_does_not_land_again() -> None:
    side = make_answering()
    answers(side, write(side, 100, 0, b"new"))
    side.memory[:3] = b"own"
    answers(side, write(side, 100, 0, b"new"))
    assert side.memory[:3] == b"own"


def test_a_repeated_read_is_read_again() -> None:
    side = make_answering()
    answers(side, read(side, 100, 0, 4), write(side, 101, 0, b"late"))
    found = answers(side, read(side, 100, 0, 4))
    assert bytes(found[0].payload) == b"late" and found[1].psn == 101


def test_a_read_may_be_repeated_in_other_portions() -> None:
    """The rest of a read that begins before the expected PSN and ends after it is new."""
    side = make_answering()
    answers(side, read(side, 100, 0, 64))
    found = answers(side, read(side, 100, 0, 192))
    assert [packet.psn for packet in found] == [100, 101, 102, 102]
    assert answers(side, write(side, 103, 0, b"x"))[0].psn == 103


def test_a_repeated_atomic_is_answered_from_memory() -> None:
    side = make_answering()
    answers(side, add(side, 100, 0, 5))
    found = answers(side, add(side, 100, 0, 5))
    assert (found[0].kind, found[0].compare_add) == (PacketKind.ATOMIC_RESPONSE, 0)
    assert int.from_bytes(side.memory[:8], "little") == 5


def test_psns_wrap() -> None:
    side = make_answering(attr={"rq_psn": 0xFFFFFF})
    assert answers(side, write(side, 0xFFFFFF, 0, b"a"), write(side, 0, 1, b"b"))[0].psn == 0
    assert answers(side, write(side, 0xFFFFFF, 0, b"z"))[0].psn == 0
    assert side.memory[:2] == b"ab"


# -- no receive


def test_without_a_receive_the_peer_is_asked_to_wait() -> None:
    side = make_answering(attr={"min_rnr_timer": 5})
    (nak,) = answers(side, send(100, 1, b"x"), send(101, 2, b"y"))
    assert (nak.syndrome, nak.psn) == (Syndrome.RNR_NAK + 5, 100)
    assert RNR_TIMER_NS[5] == 60_000
    side.receive(1, length=8)
    assert answers(side, send(100, 1, b"x"))[0].psn == 100


def test_what_was_done_before_a_nak_is_acknowledged_first() -> None:
    side = make_answering()
    side.receive(1, length=8)
    ack, nak = answers(side, send(100, 1, b"x", FIRST | LAST), send(101, 2, b"y"))
    assert (ack.psn, ack.syndrome) == (100, Syndrome.ACK)
    assert (nak.psn, nak.syndrome) == (101, Syndrome.RNR_NAK + 12)


def test_a_write_with_immediate_waits_for_a_receive_before_it_lands() -> None:
    side = make_answering()
    packet = write(side, 100, 0, b"new", ONLY | PacketFlag.IMMEDIATE, msn=1)
    assert answers(side, packet)[0].syndrome == Syndrome.RNR_NAK + 12
    assert side.memory[:3] == bytes(3)


# -- broken rules


def refused(side: Side, *packets: Packet) -> tuple[int, list[AsyncEventType]]:
    """Return the syndrome that ends the queue pair, and its events."""
    nak = answers(side, *packets)[-1]
    assert side.qp.state is QPState.ERR
    # The reason is repeated for as long as the peer asks.
    assert answers(side, packets[-1])[0].syndrome == nak.syndrome
    return nak.syndrome, events(side)


INVALID = (Syndrome.NAK_INVALID_REQUEST, [AsyncEventType.QP_REQ_ERR])


def test_a_middle_without_a_first_is_invalid() -> None:
    side = make_answering()
    assert refused(side, write(side, 100, 0, b"x", PacketFlag(0), offset=64)) == INVALID
    assert side.memory[:1] == b"\0"


def test_a_first_inside_a_message_is_invalid() -> None:
    side = make_answering()
    assert refused(side, write(side, 100, 0, b"x", FIRST), write(side, 101, 0, b"y")) == INVALID


def test_a_read_inside_a_message_is_invalid() -> None:
    side = make_answering()
    assert refused(side, write(side, 100, 0, b"x", FIRST), read(side, 101, 0, 4)) == INVALID


def test_a_message_of_two_kinds_is_invalid() -> None:
    side = make_answering()
    side.receive(1, length=100)
    packets = [send(100, 1, b"x" * 64, FIRST), write(side, 101, 0, b"y", LAST, offset=64)]
    assert refused(side, *packets) == INVALID
    assert [wc.status for wc in side.received()] == [WCStatus.WR_FLUSH_ERR]


@pytest.mark.parametrize("msn", [0, 2, 0xFFFFFFFF])
def test_a_message_out_of_number_is_invalid(msn: int) -> None:
    side = make_answering()
    side.receive(1, length=8)
    assert refused(side, send(100, msn, b"x")) == INVALID


def test_a_payload_beyond_the_mtu_is_invalid() -> None:
    side = make_answering()
    assert refused(side, write(side, 100, 0, b"x" * 65)) == INVALID


def test_a_send_that_claims_to_be_placed_is_invalid() -> None:
    side = make_answering()
    side.receive(1, length=8)
    assert refused(side, send(100, 1, b"", ONLY | PacketFlag.PLACED, length=1 << 20)) == INVALID


@pytest.mark.parametrize("kind", ["read", "add"])
def test_reads_need_resources(kind: str) -> None:
    side = make_answering(attr={"max_dest_rd_atomic": 0})
    packet = {"read": read(side, 100, 0, 8), "add": add(side, 100, 0, 1)}[kind]
    assert refused(side, packet) == INVALID


def test_reads_before_a_broken_rule_are_answered() -> None:
    side = make_answering()
    found = answers(side, read(side, 100, 0, 4), add(side, 101, 4, 1))
    assert [packet.kind for packet in found] == [PacketKind.READ_RESPONSE, PacketKind.ACK]
    assert (found[1].psn, found[1].syndrome) == (101, Syndrome.NAK_INVALID_REQUEST)


def test_memory_that_goes_away_under_a_read_is_refused_in_place() -> None:
    side = make_answering()
    side.qp.receive_packet(read(side, 100, 0, 130), 0)
    assert side.qp.poll_transmit(0) is not None
    side.keys.deregister(side.region)
    nak = side.qp.poll_transmit(0)
    assert nak is not None and (nak.psn, nak.syndrome) == (101, Syndrome.NAK_REMOTE_ACCESS)
    assert side.qp.state is QPState.ERR


def test_more_reads_than_agreed_wait_for_their_turn() -> None:
    side = make_answering(attr={"max_dest_rd_atomic": 1})
    found = answers(side, read(side, 100, 0, 8), read(side, 101, 0, 8))
    assert [packet.psn for packet in found] == [100, 100]
    strict = make_answering(link=LOSSLESS, attr={"max_dest_rd_atomic": 1})
    found = answers(strict, read(strict, 100, 0, 8), read(strict, 101, 0, 8))
    assert found[-1].syndrome == Syndrome.NAK_INVALID_REQUEST


def test_a_link_without_loss_is_silent_about_what_is_ahead() -> None:
    side = make_answering(link=LOSSLESS)
    assert answers(side, write(side, 101, 0, b"x")) == []


@pytest.mark.parametrize("receive_order", list(ReceiveOrder))
def test_before_rtr_and_after_reset_nothing_is_taken(receive_order: ReceiveOrder) -> None:
    side = Side(0xB, LOSSY, receive_order=receive_order)
    assert answers(side, write(side, 100, 0, b"x")) == [] and side.memory[:1] == b"\0"
