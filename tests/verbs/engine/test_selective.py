"""Selective receive order: packets ahead of others, receive buffers out of order, the counts.

The cases S3 to S19 and W1 to W9 of docs/reference/dat.md 23 are played here with packets, without
the endpoints that count them for an application.
"""

import pytest

from tests.sim.verbs_pair import MTU_BYTES, Side
from tests.verbs.engine.verbs_sides import (
    FIRST,
    LAST,
    LOSSY,
    ONLY,
    add,
    answers,
    events,
    read,
    send,
    write,
)
from urds.verbs.engine.numbers import AsyncEventType, QPAttrMask, QPState, ReceiveOrder, WCStatus
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, Syndrome
from urds.verbs.engine.queue_pair import QPAttr
from urds.verbs.engine.receives import SharedReceiveQueue
from urds.verbs.engine.responder import AHEAD_MAX

OK, FLUSHED = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
SLOT_BYTES = 128


def make(
    receive_order: ReceiveOrder = ReceiveOrder.ARRIVAL_ORDER, *, receives: int = 30, shared=True
):
    """Return a side with receives posted; receive n has slot n of the memory."""
    srq = SharedReceiveQueue(512, 4) if shared else None
    side = Side(0xB, LOSSY, memory_bytes=64 * SLOT_BYTES, receive_order=receive_order, srq=srq)
    side.lead(0xA)
    for wr_id in range(receives):
        side.receive(wr_id, wr_id * SLOT_BYTES, SLOT_BYTES)
    return side


def psn_of(msn: int) -> int:
    """Return the PSN of the first of the two packets that each message has here."""
    return 100 + 2 * (msn - 1)


def first(msn: int) -> Packet:
    return send(psn_of(msn), msn, bytes([msn]) * MTU_BYTES, FIRST)


def last(msn: int) -> Packet:
    return send(psn_of(msn) + 1, msn, bytes([msn]) * 8, LAST, offset=MTU_BYTES)


def give(side: Side, *packets: Packet) -> list[Packet]:
    return answers(side, *packets)


def complete_to(side: Side, msn: int) -> None:
    for number in range(1, msn + 1):
        give(side, first(number), last(number))
    assert [wc.status for wc in side.received()] == [OK] * msn


def in_s4(receive_order: ReceiveOrder = ReceiveOrder.ARRIVAL_ORDER) -> Side:
    """Completed up to 18; first fragments of 19, 22 and 23 are there."""
    side = make(receive_order)
    complete_to(side, 18)
    give(side, first(19), first(22), first(23))
    return side


def done(side: Side) -> list[int]:
    """Return the slots that completed, by what their messages are filled with."""
    found = []
    for wc in side.received():
        assert (wc.status, wc.byte_len) == (OK, MTU_BYTES + 8)
        data = side.memory[wc.wr_id * SLOT_BYTES :][: MTU_BYTES + 8]
        assert len(set(data)) == 1
        found.append(data[0])
    return found


# -- docs/reference/dat.md 23.3


def test_s3_a_first_fragment_takes_a_buffer() -> None:
    side = make(receives=10)
    give(side, first(1))
    assert side.qp.recv_query() == (1, 1) and len(side.srq) == 9


def test_s4_in_arrival_order_three_buffers_span_five_messages() -> None:
    side = in_s4()
    assert side.qp.recv_query() == (3, 5) and len(side.srq) == 30 - 18 - 3


def test_s5_filled_gaps_hold_five_buffers() -> None:
    side = in_s4(ReceiveOrder.FILL_GAPS)
    assert side.qp.recv_query() == (5, 5) and len(side.srq) == 30 - 18 - 5


def test_s6_the_span_is_that_of_the_highest() -> None:
    side = make()
    complete_to(side, 18)
    found = []
    for msn in (23, 22, 19):
        give(side, first(msn))
        found.append(side.qp.recv_query())
    assert found == [(1, 5), (2, 5), (3, 5)]


def test_s7_to_s10_completions_come_in_message_order() -> None:
    side = in_s4()
    give(side, last(22), last(23))
    assert side.qp.recv_query() == (3, 5) and done(side) == []
    give(side, last(19))
    assert done(side) == [19] and side.qp.recv_query() == (2, 4)
    give(side, last(20), first(20))
    assert done(side) == [20] and side.qp.recv_query() == (2, 3)
    give(side, first(21), last(21))
    assert done(side) == [21, 22, 23] and side.qp.recv_query() == (0, 0)


def test_the_evolution_of_the_worked_example() -> None:
    """docs/reference/dat.md 13.2, the table, step by step."""
    side = make()
    complete_to(side, 18)
    steps = [
        ([first(19)], (1, 1)),
        ([first(22)], (2, 4)),
        ([first(23)], (3, 5)),
        ([last(19)], (2, 4)),
        ([first(20), last(20)], (2, 3)),
        ([first(21)], (3, 3)),
        ([last(22)], (3, 3)),
        ([last(21)], (1, 1)),
        ([last(23)], (0, 0)),
    ]
    assert side.qp.recv_query() == (0, 0)
    for packets, expected in steps:
        give(side, *packets)
        assert side.qp.recv_query() == expected


def test_s11_one_far_message_spans_all_before_it() -> None:
    side = make()
    give(side, first(100))
    assert side.qp.recv_query() == (1, 100)


def test_s12_repeats_take_no_buffer() -> None:
    side = in_s4()
    give(side, first(22), first(17), last(17), first(22))
    assert side.qp.recv_query() == (3, 5) and len(side.srq) == 9


def test_s13_writes_between_sends_count_no_message() -> None:
    side = make()
    give(side, first(1), last(1), write(side, 102, 0, b"x"), write(side, 104, 0, b"y"))
    assert side.qp.recv_query() == (0, 0) and side.received()[0].status is OK
    give(side, send(105, 2, b"z" * 8, LAST, offset=MTU_BYTES))
    assert side.qp.recv_query() == (1, 1)


def test_s14_without_a_buffer_nothing_is_allocated_until_the_retry() -> None:
    side = make(receives=21)
    complete_to(side, 18)
    give(side, first(19), first(22), first(23))
    assert side.qp.recv_query() == (3, 5) and len(side.srq) == 0
    ack, nak = give(side, first(20))
    assert (nak.syndrome, nak.psn) == (Syndrome.RNR_NAK + 12, psn_of(20))
    assert ack.psn == psn_of(19)  # says what is there, so that only 20 is sent again
    assert side.qp.recv_query() == (3, 5)
    side.receive(21, 21 * SLOT_BYTES, SLOT_BYTES)
    give(side, first(20))
    assert side.qp.recv_query() == (4, 5)


def test_s15_what_is_held_is_flushed_and_the_shared_queue_stays() -> None:
    side = in_s4()
    side.qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE, 0)
    assert [(wc.wr_id, wc.status) for wc in side.received()] == [(n, FLUSHED) for n in (18, 19, 20)]
    assert side.qp.recv_query() == (0, 0) and len(side.srq) == 9


def test_s23_after_reset_messages_are_counted_anew() -> None:
    side = in_s4()
    side.qp.modify(QPAttr(qp_state=QPState.RESET), QPAttrMask.STATE, 0)
    side.lead(0xA)
    give(side, first(1))
    assert side.qp.recv_query() == (1, 1)


# -- docs/reference/dat.md 23.6


def hold(side: Side, count: int) -> None:
    for msn in range(1, count + 1):
        give(side, first(msn))


def test_w1_w2_the_soft_mark_is_told_once() -> None:
    side = make()
    side.qp.set_recv_watermarks(2, None)
    hold(side, 2)
    assert events(side) == []
    hold(side, 5)
    assert events(side) == [AsyncEventType.QP_RECV_SOFT_WATERMARK]
    assert side.qp.state is QPState.RTS


def test_w3_the_soft_mark_acts_at_once() -> None:
    side = make()
    hold(side, 4)
    side.qp.set_recv_watermarks(3, None)
    assert events(side) == [AsyncEventType.QP_RECV_SOFT_WATERMARK]


def test_w4_the_hard_mark_ends_the_queue_pair() -> None:
    side = make()
    side.qp.set_recv_watermarks(None, 2)
    hold(side, 3)
    assert side.qp.state is QPState.ERR and side.qp.recv_query() == (0, 0)
    assert [wc.status for wc in side.received()] == [FLUSHED] * 3
    assert AsyncEventType.QP_RECV_HARD_WATERMARK in events(side)


def test_w5_the_hard_mark_acts_at_once() -> None:
    side = make()
    hold(side, 4)
    side.qp.set_recv_watermarks(None, 2)
    assert side.qp.state is QPState.ERR


def test_w7_the_soft_mark_is_told_before_the_hard_one() -> None:
    side = make()
    side.qp.set_recv_watermarks(2, 4)
    hold(side, 5)
    assert events(side)[:2] == [
        AsyncEventType.QP_RECV_SOFT_WATERMARK,
        AsyncEventType.QP_RECV_HARD_WATERMARK,
    ]


def test_w8_marks_compare_buffers_and_not_the_span() -> None:
    side = make()
    complete_to(side, 18)
    side.qp.set_recv_watermarks(None, 3)
    give(side, first(19), first(22), first(23))
    assert side.qp.state is QPState.RTS and side.qp.recv_query() == (3, 5)


# -- what waits for its turn


def test_an_own_queue_has_no_gaps() -> None:
    """Its receives belong to the next messages in posting order, whatever arrives first."""
    side = make(shared=False, receives=4)
    assert side.qp.recv_query() == (4, 4)
    give(side, first(3), last(3))
    assert side.qp.recv_query() == (4, 4) and side.received() == []
    assert side.memory[2 * SLOT_BYTES] == 3
    give(side, first(1), last(1), first(2), last(2))
    assert done(side) == [1, 2, 3] and side.qp.recv_query() == (1, 1)
    assert give(side, first(5))[-1].syndrome == Syndrome.RNR_NAK + 12


def test_reads_and_atomics_wait_for_what_is_before_them() -> None:
    side = make()
    found = give(side, read(side, 101, 0, 4), add(side, 102, 8, 5))
    assert [packet.kind for packet in found] == [PacketKind.ACK]
    assert found[0].selective == ((101, 102),) and side.memory[8:16] == bytes(8)
    side.memory[:4] = b"init"
    found = give(side, write(side, 100, 0, b"late"))
    assert [packet.kind for packet in found] == [
        PacketKind.READ_RESPONSE,
        PacketKind.ATOMIC_RESPONSE,
        PacketKind.ACK,
    ]
    assert bytes(found[0].payload) == b"late" and int.from_bytes(side.memory[8:16], "little") == 5
    assert found[2].psn == 102 and found[2].selective == ()


def test_writes_land_in_order() -> None:
    """What is missing may be written to the same place."""
    side = make()
    give(side, write(side, 101, 0, b"new"))
    assert side.memory[:3] == bytes(3)
    give(side, write(side, 100, 0, b"old"))
    assert side.memory[:3] == b"new"


def test_a_bad_write_ahead_is_judged_in_its_turn() -> None:
    side = make()
    bad = write(side, 101, 0, b"x")
    bad.rkey ^= 1
    give(side, bad)
    assert side.qp.state is QPState.RTS
    found = give(side, write(side, 100, 0, b"y"))
    assert (found[0].psn, found[0].syndrome) == (101, Syndrome.NAK_REMOTE_ACCESS)
    assert side.memory[:1] == b"y"


def test_an_invalidation_waits_for_what_is_before_it() -> None:
    side = make()
    window = side.keys.new_window(side.pd, kind=2)
    key = side.keys.bind(window, side.region, side.address, 8, side.region.access, qpn=0xB)
    packet = send(101, 1, b"x", ONLY | PacketFlag.INVALIDATE, immediate=key)
    give(side, packet)
    assert window.region is not None and side.received() == []
    give(side, write(side, 100, 0, b"y"))
    assert window.region is None and side.received()[0].imm_data == key


def test_a_send_waits_for_the_write_before_it() -> None:
    side = make()
    give(side, send(101, 1, b"x"))
    assert side.received() == []
    give(side, write(side, 100, 1000, b"y"))
    assert side.received()[0].status is OK


def test_what_is_there_is_told_as_ranges() -> None:
    side = make()
    (ack,) = give(side, *(write(side, 100 + n, n, b"x") for n in (1, 2, 4, 7, 8, 9)))
    assert ack.psn == 99 and ack.selective == ((101, 102), (104, 104), (107, 109))
    (ack,) = give(side, *(write(side, 100 + n, n, b"x") for n in range(12, 60, 2)))
    assert len(ack.selective) == 8


def test_ranges_wrap_with_the_psns() -> None:
    side = Side(0xB, LOSSY, receive_order=ReceiveOrder.ARRIVAL_ORDER)
    side.lead(0xA, rq_psn=0xFFFFFE)
    (ack,) = give(side, write(side, 0xFFFFFF, 0, b"a"), write(side, 0, 1, b"b"))
    assert ack.psn == 0xFFFFFD and ack.selective == ((0xFFFFFF, 0),)
    assert give(side, write(side, 0xFFFFFE, 2, b"c"))[0].psn == 0


# -- hostile and broken packets ahead


def test_a_message_too_long_is_judged_when_it_is_next() -> None:
    side = make()
    bad = send(101, 1, b"x" * 64, LAST, offset=SLOT_BYTES - 10)
    give(side, bad)
    assert side.qp.state is QPState.RTS and side.memory[SLOT_BYTES] == 0


@pytest.mark.parametrize("msn", [0, 7, 0xFFFFFFFF])
def test_a_message_farther_than_its_packet_takes_nothing(msn: int) -> None:
    """Each message before it has a packet at least, so the highest number is bounded."""
    side = make()
    give(side, send(105, msn, b"x"))
    assert side.qp.recv_query() == (0, 0) and len(side.srq) == 30


def test_nothing_is_kept_beyond_the_limit() -> None:
    side = make()
    (ack,) = give(side, write(side, 100 + AHEAD_MAX + 1, 0, b"x"))
    assert ack.selective == ()
    (ack,) = give(side, write(side, 100 + AHEAD_MAX, 0, b"x"))
    assert ack.selective == ((100 + AHEAD_MAX, 100 + AHEAD_MAX),)


def test_two_packets_of_one_number_are_found_out_in_order() -> None:
    """A peer that numbers two messages alike gets no completion twice, and no crash."""
    side = make()
    give(side, send(101, 1, b"b"))
    found = give(side, send(100, 1, b"a"))
    assert found[-1].syndrome == Syndrome.NAK_INVALID_REQUEST
    assert [wc.status for wc in side.received()] == [OK]
    assert side.qp.state is QPState.ERR and side.qp.recv_query() == (0, 0)
