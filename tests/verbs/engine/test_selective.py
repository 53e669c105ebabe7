"""Selective receive order: what is ahead of its turn waits, in packets and without time.

The counts, the cases S3 to S23 and W1 to W9 of docs/reference/dat.md 23, are in tests/dat.
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
    read,
    send,
    write,
)
from urds.verbs.engine.numbers import QPState, ReceiveOrder, WCStatus
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, Syndrome
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


def done(side: Side) -> list[int]:
    """Return the slots that completed, by what their messages are filled with."""
    found = []
    for wc in side.received():
        assert (wc.status, wc.byte_len) == (OK, MTU_BYTES + 8)
        data = side.memory[wc.wr_id * SLOT_BYTES :][: MTU_BYTES + 8]
        assert len(set(data)) == 1
        found.append(data[0])
    return found


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
