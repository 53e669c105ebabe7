"""Packets that do not name their places, as in InfiniBand and RoCE: what the responder does.

Only the first packet of a write names target, key and length. Source of the NAKs:
docs/reference/verbs-and-roce.md 6 and 7, and what rxe of Linux 6.1 and 7.3 was seen to answer.
"""

import pytest

from tests.sim.verbs_pair import ALL_ACCESS, MTU_BYTES, Side
from tests.verbs.engine.verbs_sides import (
    ASK,
    FIRST,
    LAST,
    ONLY,
    answers,
    events,
    make_answering,
    make_asking,
    read,
    sent,
)
from urds.verbs.engine.numbers import (
    AsyncEventType,
    QPState,
    ReceiveOrder,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, Syndrome
from urds.verbs.engine.queue_pair import LinkTraits

PLAIN = LinkTraits(MTU_BYTES, lossless=False, names_places=False)
MIDDLE = PacketFlag(0)
IMMEDIATE = PacketFlag.IMMEDIATE
A, B, C = (bytes([byte]) * MTU_BYTES for byte in b"abc")


def make(**fields: object) -> Side:
    return make_answering(link=PLAIN, **fields)


def send(psn: int, payload: bytes, flags: PacketFlag = ONLY, **fields: int) -> Packet:
    return Packet(PacketKind.SEND, 0xB, psn, flags, payload=payload, **fields)


def begin(
    side: Side, psn: int, at: int, length: int, payload: bytes, flags: PacketFlag = FIRST
) -> Packet:
    """Return the first packet of a write of `length` bytes."""
    return Packet(
        PacketKind.WRITE, 0xB, psn, flags, address=side.address + at, rkey=side.region.rkey,
        length=length, payload=payload,
    )  # fmt: skip


def go_on(psn: int, payload: bytes, flags: PacketFlag = MIDDLE, **fields: int) -> Packet:
    """Return a packet of a write behind the first one."""
    return Packet(PacketKind.WRITE, 0xB, psn, flags, payload=payload, **fields)


# -- what the responder knows itself


def test_a_write_goes_on_behind_its_first_packet() -> None:
    side = make()
    (ack,) = answers(
        side, begin(side, 100, 8, 130, A), go_on(101, B), go_on(102, b"!!", LAST | ASK)
    )
    assert (ack.psn, ack.syndrome, ack.msn) == (102, Syndrome.ACK, 1)
    assert side.memory[8:138] == A + B + b"!!" and side.memory[138] == 0


def test_the_target_of_a_write_wraps_with_the_addresses() -> None:
    side = make(address=(1 << 64) - 2 * MTU_BYTES, memory_bytes=2 * MTU_BYTES)
    answers(side, begin(side, 100, 0, 2 * MTU_BYTES, A), go_on(101, B, LAST))
    assert side.memory == A + B


def test_messages_take_the_next_receives() -> None:
    side = make()
    for wr_id in range(3):
        side.receive(wr_id, wr_id * 128, 128)
    last = go_on(103, b"w", LAST | ASK | IMMEDIATE, immediate=7)
    found = answers(
        side,
        send(100, A, FIRST), send(101, b"x", LAST),
        begin(side, 102, 1024, 65, C), last,
        send(104, b""),
    )  # fmt: skip
    assert [(answer.psn, answer.msn) for answer in found] == [(104, 3)]
    assert [(wc.wr_id, wc.opcode, wc.byte_len, wc.imm_data) for wc in side.received()] == [
        (0, WCOpcode.RECV, 65, 0),
        (1, WCOpcode.RECV_RDMA_WITH_IMM, 65, 7),
        (2, WCOpcode.RECV, 0, 0),
    ]
    assert side.memory[:65] == A + b"x" and side.memory[1024:1089] == C + b"w"


def test_a_write_refused_at_its_last_packet_goes_on_there() -> None:
    """Repeated from its first packet, then, what was before being acknowledged, the last alone."""
    side = make()
    first, middle = begin(side, 100, 0, 130, A), go_on(101, B)
    last = go_on(102, b"!!", LAST | ASK | IMMEDIATE, immediate=7)
    ack, nak = answers(side, first, middle, last)
    assert (ack.psn, nak.psn, nak.syndrome) == (101, 102, Syndrome.RNR_NAK + 12)
    found = answers(side, begin(side, 100, 0, 130, A), go_on(101, B), last)
    assert [answer.psn for answer in found] == [101, 102]
    side.receive(1, length=0)
    (ack,) = answers(side, last)
    assert (ack.psn, ack.syndrome, ack.msn) == (102, Syndrome.ACK, 1)
    assert side.memory[:130] == A + B + b"!!" and side.received()[0].byte_len == 130


def test_duplicates_and_reads_again_leave_an_open_message_as_it_is() -> None:
    side = make()
    answers(side, read(side, 100, 500, 4), begin(side, 101, 0, 130, A))
    again = answers(side, read(side, 100, 500, 4), begin(side, 101, 0, 130, A))
    assert [answer.psn for answer in again] == [100, 101]
    answers(side, go_on(102, B), go_on(103, b"!!", LAST))
    assert side.memory[:130] == A + B + b"!!"


def test_an_empty_write_needs_no_key() -> None:
    side = make()
    (ack,) = answers(side, Packet(PacketKind.WRITE, 0xB, 100, ONLY))
    assert (ack.psn, ack.syndrome) == (100, Syndrome.ACK)


def test_a_packet_ahead_says_nothing_and_is_dropped() -> None:
    side = make()
    (nak,) = answers(side, go_on(101, B, LAST))
    assert (nak.psn, nak.syndrome) == (100, Syndrome.NAK_SEQUENCE)
    answers(side, begin(side, 100, 0, 128, A), go_on(101, B, LAST))
    assert side.memory[:128] == A + B


def test_places_that_are_not_named_allow_no_other_order() -> None:
    with pytest.raises(AssertionError, match="order"):
        Side(0xB, PLAIN, receive_order=ReceiveOrder.FILL_GAPS)


# -- broken rules


def refused(side: Side, *packets: Packet) -> int:
    """Give packets to a side, the last of which ends it; return the syndrome."""
    nak = answers(side, *packets)[-1]
    assert side.qp.state is QPState.ERR and nak.psn == packets[-1].psn
    return nak.syndrome


@pytest.mark.parametrize("kind", [PacketKind.SEND, PacketKind.WRITE])
@pytest.mark.parametrize(
    ("sizes", "length"),
    [
        ([63, 1], 64),  # the first is short
        ([0, 64], 64),
        ([64, 63, 1], 128),  # the middle is short
        ([64, 0], 64),  # the last is empty
        ([65], 65),  # beyond the MTU
        ([64, 65], 129),
    ],
    ids=str,
)
def test_packets_before_the_last_hold_the_mtu_and_the_last_some(
    kind: PacketKind, sizes: list[int], length: int
) -> None:
    side = make()
    side.receive(1, length=1000)
    packets = []
    for number, size in enumerate(sizes):
        flags = (FIRST if number == 0 else MIDDLE) | (LAST if number == len(sizes) - 1 else MIDDLE)
        if kind is PacketKind.SEND:
            packets.append(send(100 + number, bytes(size), flags))
        elif number:
            packets.append(go_on(100 + number, bytes(size), flags))
        else:
            packets.append(begin(side, 100, 0, length, bytes(size), flags))
    assert answers(side, *packets)[-1].syndrome == Syndrome.NAK_INVALID_REQUEST
    assert side.qp.state is QPState.ERR and side.qp.recv_query() == (0, 0)


@pytest.mark.parametrize(
    ("length", "syndrome"),
    [
        (64, Syndrome.NAK_INVALID_REQUEST),
        (66, Syndrome.NAK_INVALID_REQUEST),
        (129, Syndrome.NAK_INVALID_REQUEST),
        (1 << 31, Syndrome.NAK_REMOTE_ACCESS),
        ((1 << 31) + 1, Syndrome.NAK_INVALID_REQUEST),
    ],
)
def test_a_write_brings_the_length_that_it_named(length: int, syndrome: int) -> None:
    side = make(memory_bytes=4096)
    nak = answers(side, begin(side, 100, 0, length, A), go_on(101, b"x", LAST))[-1]
    assert (nak.syndrome, side.qp.state) == (syndrome, QPState.ERR)
    assert side.memory[MTU_BYTES:] == bytes(4096 - MTU_BYTES)


def test_a_write_of_one_packet_brings_the_length_that_it_named() -> None:
    side = make()
    assert refused(side, begin(side, 100, 0, 9, b"8 octets", ONLY)) == Syndrome.NAK_INVALID_REQUEST
    assert side.memory[:8] == bytes(8)


def test_a_write_beyond_its_region_is_refused_before_it_begins() -> None:
    side = make(memory_bytes=128)
    nak = refused(side, begin(side, 100, 0, 129, A))
    assert nak == Syndrome.NAK_REMOTE_ACCESS and side.memory == bytes(128)
    assert events(side) == [AsyncEventType.QP_ACCESS_ERR]


def test_a_region_that_goes_away_under_a_write_ends_it() -> None:
    side = make()
    answers(side, begin(side, 100, 0, 128, A))
    side.keys.deregister(side.region)
    assert refused(side, go_on(101, B, LAST)) == Syndrome.NAK_REMOTE_ACCESS


def test_the_key_of_the_write_before_serves_no_other() -> None:
    side = make()
    answers(side, begin(side, 100, 0, 128, A), go_on(101, B, LAST))
    assert refused(side, go_on(102, C, LAST)) == Syndrome.NAK_INVALID_REQUEST
    assert side.memory[:192] == A + B + bytes(64)


@pytest.mark.parametrize("flags", [MIDDLE, LAST], ids=["middle", "last"])
def test_a_write_does_not_go_on_in_a_send(flags: PacketFlag) -> None:
    side = make()
    side.receive(1, length=1000)
    assert refused(side, send(100, A, FIRST), go_on(101, B, flags)) == Syndrome.NAK_INVALID_REQUEST
    assert [wc.status for wc in side.received()] == [WCStatus.WR_FLUSH_ERR]


def test_there_is_no_mark_for_placed_bytes() -> None:
    side = make()
    bad = begin(side, 100, 0, 64, b"", ONLY | PacketFlag.PLACED)
    assert refused(side, bad) == Syndrome.NAK_INVALID_REQUEST


# -- what the requester says


def test_the_first_packet_of_a_write_names_the_length_of_all() -> None:
    side, peer = make_asking(link=PLAIN), Side(0xB, PLAIN, access=ALL_ACCESS)
    side.remote(1, WROpcode.RDMA_WRITE, peer, length=130)
    side.remote(2, WROpcode.RDMA_WRITE, peer, length=3)
    side.remote(3, WROpcode.RDMA_WRITE_WITH_IMM, peer)
    found = sent(side)
    assert [packet.length for packet in found if packet.flags & FIRST] == [130, 3, 0]
