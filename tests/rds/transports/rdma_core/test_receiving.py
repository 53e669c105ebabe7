"""What a core takes: fragments, repeats, maps, pings, and what it answers protocol errors with."""

import pytest

from tests.rds.transports.rdma_core.rdma_core_world import (
    ACK_REQUIRED,
    CONG_BITMAP,
    FRAGMENT,
    NO_FLAGS,
    REPEATED,
    RETRANSMITTED,
    SOURCE,
    TARGET,
    Side,
    ack_only,
    frames,
    map_frames,
    sequences,
)
from urds.rds.constants import HeaderFlag
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.transports.rdma.frames import LONG_FRAGMENT_BYTES, Frame, Outcome
from urds.rds.wire.extensions import Extension, emit
from urds.rds.wire.frame_format import FrameFormat
from urds.rds.wire.header import HEADER_BYTES, Header

LONG = bytes(range(256)) * 40


@pytest.fixture
def side() -> Side:
    side = Side()
    side.begin()
    return side


def test_a_message_of_one_frame(side: Side) -> None:
    assert side.receive(*frames(1, b"hello")) is None
    assert side.got == [(SOURCE, TARGET, b"hello", b"")]


def test_a_message_of_several_frames(side: Side) -> None:
    first, second, third = frames(1, LONG)
    assert side.receive(first, second) is None
    assert side.got == []
    assert side.core.acknowledge_sequence == 0
    assert side.receive(third) is None
    assert side.payloads() == [LONG]
    assert side.core.acknowledge_sequence == 1
    assert (side.rdma.ib_rx_total_frags, side.rdma.ib_rx_total_incs) == (3, 1)


def test_long_frames_where_both_sides_take_them() -> None:
    """A message of two and a bit; then the connection is one of short frames."""
    side, payload = Side(), LONG * 13
    side.begin(frame_format=FrameFormat.LONG)
    *sent, last = frames(1, payload, fragment_bytes=LONG_FRAGMENT_BYTES)
    assert len(sent) == 2
    assert side.receive(*sent) is None
    assert side.got == []
    assert side.receive(last) is None
    assert side.payloads() == [payload]
    side.reconnect()
    assert side.receive(*frames(2, LONG)) is None
    assert side.payloads() == [payload, LONG]


@pytest.mark.parametrize("frame_format", FrameFormat)
def test_fragments_of_the_other_size_are_a_protocol_error(frame_format: FrameFormat) -> None:
    side = Side()
    side.begin(frame_format=frame_format)
    long_frames = frame_format is not FrameFormat.SHORT
    other = FRAGMENT if long_frames else LONG_FRAGMENT_BYTES
    reason = side.receive(frames(1, LONG * 13, fragment_bytes=other)[0])
    due = LONG_FRAGMENT_BYTES if long_frames else FRAGMENT
    assert reason == f"fragment of {other} bytes, due {due}"


def packed(*payloads: bytes, sequence: int = 1) -> bytes:
    """Return a frame of several messages."""
    numbered = enumerate(payloads, sequence)
    return b"".join(frames(number, payload)[0] for number, payload in numbered)


@pytest.fixture
def packed_side() -> Side:
    """Return a side on a connection of packed frames, whose map has gone."""
    side = Side()
    side.begin(frame_format=FrameFormat.PACKED)
    return side


def test_several_messages_in_a_frame(packed_side: Side) -> None:
    side, payloads = packed_side, [b"hello", b"", bytes(1000), b"x"]
    assert side.receive(packed(*payloads)) is None
    assert side.payloads() == payloads
    assert side.core.acknowledge_sequence == 4
    assert (side.rdma.ib_rx_total_frags, side.rdma.ib_rx_total_incs) == (4, 4)


def test_a_map_and_messages_in_a_frame(packed_side: Side) -> None:
    [map_frame] = map_frames(bytes(8192), fragment_bytes=LONG_FRAGMENT_BYTES)
    assert packed_side.receive(map_frame + packed(b"a", b"b")) is None
    assert (packed_side.maps, packed_side.payloads()) == ([bytes(8192)], [b"a", b"b"])


@pytest.mark.parametrize(
    ("behind", "reason"),
    [
        (b"x", "frame of 1 bytes, header 48"),
        (bytes(47), "frame of 47 bytes, header 48"),
        (frames(2, b"abc")[0][:-1], "fragment of 2 bytes, due 3"),
        (frames(2, bytes(70_000))[0][:60], "fragment of 12 bytes, due 65536"),
        (ack_only(0) + b"x", "1 bytes behind an acknowledgement"),
        (b"\1" + frames(2, b"abc")[0][1:], "header checksum"),
    ],
)  # fmt: skip
def test_what_is_wrong_behind_a_message_ends_the_connection(
    packed_side: Side, behind: bytes, reason: str
) -> None:
    found = packed_side.receive(packed(b"first") + behind)
    assert found is not None
    assert found.startswith(reason)
    assert packed_side.payloads() == [b"first"], "it has come whole"


def test_behind_a_last_fragment_comes_a_frame(packed_side: Side) -> None:
    first, last = frames(1, bytes(70_000), fragment_bytes=LONG_FRAGMENT_BYTES)
    due = 70_000 - LONG_FRAGMENT_BYTES
    reason = packed_side.receive(first, last + packed(b"x", sequence=2))
    assert reason == f"fragment of {due + HEADER_BYTES + 1} bytes, due {due}"


@pytest.mark.parametrize("frame_format", [FrameFormat.SHORT, FrameFormat.LONG])
def test_several_messages_where_they_were_not_agreed_on_are_a_protocol_error(
    frame_format: FrameFormat,
) -> None:
    side = Side()
    side.begin(frame_format=frame_format)
    assert side.receive(packed(b"a", b"b")) == "fragment of 50 bytes, due 1"


def test_a_repeat_within_a_frame_is_dropped(packed_side: Side) -> None:
    side = packed_side
    assert side.receive(packed(b"a", b"b")) is None
    again = frames(2, b"b", flags=REPEATED)[0]
    assert side.receive(again + packed(b"c", sequence=3)) is None
    assert side.payloads() == [b"a", b"b", b"c"]
    assert side.counters.recv_drop_old_seq == 1


def test_the_payload_is_copied(side: Side) -> None:
    data = bytearray(frames(1, b"hello")[0])
    assert side.core.handle_frame(memoryview(data)) is None
    data[HEADER_BYTES:] = b"XXXXX"
    assert side.payloads() == [b"hello"]


@pytest.mark.rule("wire-ib-fragment-order")
def test_an_ack_may_come_between_fragments(side: Side) -> None:
    side.send(b"a")
    side.take()
    first, second, third = frames(1, LONG)
    assert side.receive(first, ack_only(1), second, ack_only(1), third) is None
    assert side.payloads() == [LONG]
    assert side.rdma.ib_ack_received == 2
    assert not side.core.outgoing.holds()


@pytest.mark.rule("wire-ib-fragment-order", "wire-ib-fragment-header")
@pytest.mark.parametrize(
    "other",
    [
        frames(2, LONG)[1],
        frames(1, LONG + b"x")[1],
        frames(1, LONG, source_port=1)[1],
        frames(1, LONG, target_port=1)[1],
        frames(2, b"x")[0],
        map_frames(bytes(8192))[0],
    ],
    ids=["number", "length", "source", "target", "message", "map"],
)
def test_a_frame_of_something_else_between_fragments_is_a_protocol_error(
    side: Side, other: bytes
) -> None:
    assert side.receive(frames(1, LONG)[0]) is None
    assert side.receive(other) is not None
    assert side.got == []


@pytest.mark.parametrize("byte_count", [4095, 4097, 0])
def test_a_fragment_has_exactly_the_length_that_is_due(side: Side, byte_count: int) -> None:
    header = frames(1, LONG)[0][:HEADER_BYTES]
    assert side.receive(header + bytes(byte_count)) is not None


def test_the_last_fragment_too(side: Side) -> None:
    first, second, third = frames(1, LONG)
    assert side.receive(first, second) is None
    assert side.receive(third + b"x") is not None
    assert side.got == []


@pytest.mark.parametrize("byte_count", [0, 1, 47])
def test_a_frame_without_a_header_is_a_protocol_error(side: Side, byte_count: int) -> None:
    assert side.receive(bytes(byte_count)) is not None


def test_the_length_is_judged_before_memory_is_taken() -> None:
    side = Side(CoreLimits(message_bytes_max=10_000))
    side.begin()
    assert side.receive(*frames(1, bytes(10_000))) is None
    assert side.receive(frames(2, bytes(10_001))[0]) is not None
    assert side.counters.recv_drop_too_long == 1
    assert side.rdma.ib_rx_total_incs == 1


@pytest.mark.rule("wire-checksum")
def test_a_wrong_checksum_is_a_protocol_error_and_none_passes(side: Side) -> None:
    data = bytearray(frames(1, b"a")[0])
    data[30:32] = b"\0\0"
    assert side.receive(bytes(data)) is None
    data[30:32] = b"\x12\x34"
    assert side.receive(bytes(data)) is not None
    assert side.counters.recv_drop_bad_checksum == 1
    assert side.payloads() == [b"a"]


@pytest.mark.rule("wire-own-reliability")
def test_a_repeat_below_the_expected_number_is_dropped_and_acknowledged(side: Side) -> None:
    assert side.receive(*frames(1, b"a"), *frames(2, b"b")) is None
    assert side.receive(*frames(1, b"a", flags=REPEATED)) is None
    assert side.payloads() == [b"a", b"b"]
    assert side.counters.recv_drop_old_seq == 1
    assert [seen.header.ack for seen in side.take()] == [2]


def test_a_repeat_that_is_news_is_taken(side: Side) -> None:
    assert side.receive(*frames(1, b"a"), *frames(2, b"b", flags=RETRANSMITTED)) is None
    assert side.payloads() == [b"a", b"b"]


def test_numbers_may_skip(side: Side) -> None:
    assert side.receive(*frames(1, b"a"), *frames(9, b"b")) is None
    assert side.core.acknowledge_sequence == 9


def test_a_low_number_without_the_flag_begins_anew(side: Side) -> None:
    assert side.receive(*frames(9, b"a"), *frames(1, b"b")) is None
    assert side.payloads() == [b"a", b"b"]
    assert side.core.incoming.sequence_expected == 2


def test_numbers_outlive_the_connection_and_the_partial_message_does_not(side: Side) -> None:
    assert side.receive(*frames(1, b"a"), frames(2, LONG)[0]) is None
    assert side.core.acknowledge_sequence == 1
    side.reconnect()
    assert side.receive(*frames(1, b"a", flags=REPEATED), *frames(2, LONG, flags=REPEATED)) is None
    assert side.payloads() == [b"a", LONG]


def test_our_private_data_acknowledges_what_came_and_no_frame_does_before_more_comes(
    side: Side,
) -> None:
    assert side.receive(*frames(7, b"a")) is None
    side.core.detach()
    assert side.core.acknowledge_sequence == 7
    side.core.attach(acknowledged=0, credits=0)
    side.send(b"x")
    assert {seen.header.ack for seen in side.take()} == {0}
    assert side.receive(*frames(8, b"b")) is None
    side.send(b"y")
    assert {seen.header.ack for seen in side.take()} == {8}


def test_a_new_life_of_the_peer_counts_afresh(side: Side) -> None:
    assert side.receive(*frames(9, b"a")) is None
    side.core.detach()
    side.core.restart_peer()
    side.begin()
    assert side.receive(*frames(3, b"b", flags=REPEATED)) is None
    assert side.payloads() == [b"a", b"b"]


@pytest.mark.rule("wire-congestion-format")
def test_a_map_is_taken_whole_and_has_no_number(side: Side) -> None:
    data = bytes(4096) + b"\x01" * 4096
    assert side.receive(*frames(5, b"a"), *map_frames(data), *map_frames(data)) is None
    assert side.maps == [data, data]
    assert side.core.acknowledge_sequence == 5


@pytest.mark.parametrize("byte_count", [0, 8191, 8193])
def test_a_map_of_another_length_is_counted_and_ignored(side: Side, byte_count: int) -> None:
    header = Header(flags=CONG_BITMAP, payload_bytes=byte_count, source_port=1).emit(checksum=True)
    payload = bytes(byte_count)
    starts = range(0, max(1, byte_count), FRAGMENT)
    assert side.receive(*(header + payload[at : at + FRAGMENT] for at in starts)) is None
    assert side.maps == []
    assert side.counters.recv_drop_bad_map == 1


def test_another_flag_beside_makes_it_no_map(side: Side) -> None:
    """Kernel parity: the comparison is exact; ports 0 and 0 belong to none."""
    flags = CONG_BITMAP | ACK_REQUIRED
    assert side.receive(*frames(1, bytes(8192), flags=flags, source_port=0, target_port=0)) is None
    assert side.maps == side.got == []
    assert side.counters.recv_drop_bad_map == side.counters.recv_ping == 0


@pytest.mark.rule("wire-ping", "wire-pong")
def test_a_ping_is_answered_by_a_pong_with_a_number(side: Side) -> None:
    assert side.receive(*frames(1, target_port=0)) is None
    pong = side.take()[0]
    assert (pong.header.sequence, pong.header.payload_bytes, pong.header.ack) == (1, 0, 1)
    assert (pong.header.source_port, pong.header.target_port) == (0, SOURCE)
    assert (side.counters.recv_ping, side.counters.send_pong) == (1, 1)
    assert side.got == []


def test_a_ping_with_a_payload_is_answered_without(side: Side) -> None:
    assert side.receive(*frames(1, LONG, target_port=0)) is None
    assert [seen.payload for seen in side.take()] == [b""]


def test_no_pong_if_pings_are_not_answered(side: Side) -> None:
    side.answers_pings = False
    assert side.receive(*frames(1, target_port=0)) is None
    assert side.take() == []
    assert side.counters.recv_ping == 1


def test_pongs_are_bounded() -> None:
    side = Side(CoreLimits(messages_max=3))
    side.begin()
    assert side.receive(*(frames(number, target_port=0)[0] for number in range(1, 6))) is None
    assert side.core.outgoing.message_count() == 3
    assert side.counters.recv_drop_control_full == 2


def test_a_pong_is_delivered_and_repeated_like_a_message(side: Side) -> None:
    assert side.receive(*frames(1, source_port=0)) is None
    assert side.got == [(0, TARGET, b"", b"")]
    assert side.receive(*frames(2, target_port=0)) is None
    side.take()
    side.reconnect()
    assert [seen.header.flags for seen in side.take()] == [REPEATED]
    assert not side.core.outgoing.holds()  # no socket's


@pytest.mark.rule("wire-rdma-trailing", "wire-rdma-use-once")
def test_a_key_is_told_before_its_message_lies_in_the_inbox(side: Side) -> None:
    extension = emit([Extension(2, (0x1300,))])
    assert side.receive(*frames(1, b"done", extension=extension)) is None
    assert side.events == [0x1300, b"done"]
    assert side.got[0][3] == extension


def test_a_key_of_a_dropped_repeat_is_not_told_again(side: Side) -> None:
    data = frames(1, b"done", extension=emit([Extension(2, (0x1300,))]), flags=REPEATED)
    assert side.receive(*data, *data) is None
    assert side.keys == [0x1300]


def test_other_extensions_are_for_the_inbox_alone(side: Side) -> None:
    extension = emit([Extension(3, (0x1300, 16))])
    assert side.receive(*frames(1, b"take", extension=extension)) is None
    assert side.keys == []
    assert side.got == [(SOURCE, TARGET, b"take", extension)]


def test_an_extension_space_that_is_no_list_is_delivered(side: Side) -> None:
    extension = b"\0" * 11 + b"urds!"
    assert side.receive(*frames(1, b"a", extension=extension)) is None
    assert side.got == [(SOURCE, TARGET, b"a", extension)]


# -- acknowledgements that we owe


@pytest.mark.rule("wire-ack-required", "wire-ack-only")
def test_what_asks_is_acknowledged_by_a_frame_of_its_own(side: Side) -> None:
    assert side.receive(*frames(4, b"a", flags=ACK_REQUIRED)) is None
    (work,) = side.post()
    assert isinstance(work, Frame)
    assert work.data == ack_only(4)
    assert work.solicited
    assert side.counters.recv_ack_required == 1
    assert side.rdma.ib_ack_sent == 1


def test_what_does_not_ask_is_not_acknowledged(side: Side) -> None:
    assert side.receive(*frames(1, b"a")) is None
    assert side.take() == []


def test_a_message_that_asks_is_acknowledged_when_it_is_whole(side: Side) -> None:
    first, second, third = frames(1, LONG, flags=ACK_REQUIRED)
    assert side.receive(first, second) is None
    assert side.take() == []
    assert side.receive(third) is None
    assert [seen.header.ack for seen in side.take()] == [1]


@pytest.mark.rule("wire-ack-field")
def test_a_message_of_ours_carries_the_acknowledgement(side: Side) -> None:
    side.send(b"reply")
    assert side.receive(*frames(1, b"a", flags=ACK_REQUIRED)) is None
    seen = side.take()
    assert [(one.header.sequence, one.header.ack) for one in seen] == [(1, 1)]
    assert side.rdma.ib_ack_sent == 0
    assert side.rdma.ib_ack_send_piggybacked == 1


def test_a_map_carries_it_as_well(side: Side) -> None:
    side.core.map_due = True
    assert side.receive(*frames(1, b"a", flags=ACK_REQUIRED)) is None
    assert [seen.header.ack for seen in side.take()] == [1, 1]


@pytest.mark.rule("wire-ack-limit")
def test_one_acknowledgement_is_on_its_way_at_a_time(side: Side) -> None:
    assert side.receive(*frames(1, b"a", flags=ACK_REQUIRED)) is None
    (first,) = side.post()
    assert side.receive(*frames(2, b"b", flags=ACK_REQUIRED)) is None
    assert side.receive(*frames(3, b"c", flags=ACK_REQUIRED)) is None
    assert side.post() == []
    assert side.rdma.ib_ack_send_delayed
    side.core.handle_completed(first.wr_id, Outcome.DONE)
    assert [seen.header.ack for seen in side.take()] == [3]


def test_a_break_forgets_the_acknowledgement_on_its_way(side: Side) -> None:
    assert side.receive(*frames(1, b"a", flags=ACK_REQUIRED)) is None
    side.post()
    side.reconnect()
    assert side.receive(*frames(2, b"b", flags=ACK_REQUIRED)) is None
    assert len(side.take()) == 1


def test_a_break_forgets_what_was_asked(side: Side) -> None:
    assert side.receive(*frames(1, b"a", flags=ACK_REQUIRED)) is None
    side.reconnect()
    assert side.take() == []
    assert side.rdma.ib_ack_send_piggybacked == 0


def test_at_the_end_what_is_owed_is_acknowledged(side: Side) -> None:
    side.core.acknowledge()
    assert side.take() == []
    assert side.receive(*frames(1, b"a"), *frames(2, b"b")) is None
    side.core.acknowledge()
    assert [seen.header.ack for seen in side.take()] == [2]
    side.core.acknowledge()
    assert side.take() == []


@pytest.mark.parametrize("flags", [NO_FLAGS, ACK_REQUIRED])
def test_an_ack_alone_is_never_answered(side: Side, flags: HeaderFlag) -> None:
    assert side.receive(Header(flags=flags).emit(checksum=True)) is None
    assert side.take() == []
    assert side.got == []


def test_bytes_behind_an_ack_alone_are_a_protocol_error(side: Side) -> None:
    assert side.receive(ack_only(0) + b"x") is not None


def test_frames_after_the_connection_are_passed_over(side: Side) -> None:
    side.core.detach()
    assert side.receive(*frames(1, b"a")) is None
    assert side.got == []


def test_a_delivery_that_fails_leaves_the_message_unreceived(side: Side) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    side.deliver, deliver = fail, side.deliver
    with pytest.raises(MemoryError):
        side.receive(*frames(1, LONG))
    assert side.core.acknowledge_sequence == 0
    side.deliver = deliver
    side.reconnect()
    assert side.receive(*frames(1, LONG, flags=REPEATED)) is None
    assert side.payloads() == [LONG]


def test_a_connection_counts_as_reset_when_it_goes(side: Side) -> None:
    side.core.detach()
    side.core.detach()
    assert side.counters.conn_reset == 1
    assert sequences(side.take()) == []
