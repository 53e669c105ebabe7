"""What a core sends: its order, its numbers, fragments, repeats, and what leaves again."""

from collections.abc import Iterable

import pytest

from tests.rds.transports.rdma_core.rdma_core_world import (
    ACK_REQUIRED,
    CONG_BITMAP,
    FRAGMENT,
    NO_FLAGS,
    REPEATED,
    SOURCE,
    TARGET,
    Account,
    Side,
    ack_only,
    frames,
    map_frames,
    messages_of,
    sequences,
    transfer,
)
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.transports.rdma.frames import Frame, Outcome, Work
from urds.rds.wire.frame_format import FrameFormat
from urds.rds.wire.header import HEADER_BYTES

LONG = bytes(range(256)) * 40  # 10240 bytes: three fragments


def test_nothing_is_posted_without_a_connection() -> None:
    side = Side()
    side.send(b"a")
    assert not side.core.wants_work()
    assert side.core.poll_work() is None


@pytest.mark.rule("wire-congestion-format")
def test_a_connection_begins_with_our_map_in_two_fragments() -> None:
    side = Side()
    side.map = b"\x01" * 4096 + b"\x02" * 4096
    side.send(b"a")
    side.core.attach(acknowledged=0, credits=0)
    first, second, message = side.take()
    for seen, payload in ((first, side.map[:4096]), (second, side.map[4096:])):
        assert seen.payload == payload
        assert seen.header.flags == CONG_BITMAP
        assert (seen.header.sequence, seen.header.payload_bytes) == (0, 8192)
        assert (seen.header.source_port, seen.header.target_port) == (0, 0)
    assert message.payload == b"a"
    assert side.counters.cong_update_queued == 1


@pytest.mark.rule("wire-sequence-excludes")
def test_a_map_that_changed_goes_before_messages_and_between_them() -> None:
    side = Side()
    side.begin()
    side.send(LONG, b"next")
    begun = side.take(1)
    side.map, side.core.map_due = b"\xff" * 8192, True
    rest = side.take()
    assert sequences(begun + rest) == [1, 1, 1, 0, 0, 2]
    assert rest[2].payload == b"\xff" * 4096


@pytest.mark.rule("wire-ib-fragments", "wire-ib-fragment-header", "wire-len")
def test_a_message_is_cut_into_fragments_with_the_whole_header() -> None:
    side = Side()
    side.begin()
    side.send(LONG)
    seen = side.take()
    assert [one.payload for one in seen] == [LONG[:4096], LONG[4096:8192], LONG[8192:]]
    assert {one.header for one in seen} == {seen[0].header}
    assert seen[0].header.payload_bytes == len(LONG)
    assert (seen[0].header.source_port, seen[0].header.target_port) == (SOURCE, TARGET)


@pytest.mark.parametrize(
    ("byte_count", "count"), [(0, 1), (1, 1), (FRAGMENT, 1), (FRAGMENT + 1, 2), (1 << 20, 256)]
)
def test_how_many_frames_a_message_takes(byte_count: int, count: int) -> None:
    side = Side()
    side.begin()
    side.send(bytes(byte_count))
    seen = side.take()
    assert len(seen) == count
    assert sum(len(one.payload) for one in seen) == byte_count


@pytest.mark.parametrize(("byte_count", "count"), [(0, 1), (65_536, 1), (65_537, 2), (1 << 20, 16)])
def test_long_frames_where_both_sides_take_them(byte_count: int, count: int) -> None:
    side = Side()
    side.begin(frame_format=FrameFormat.LONG)
    payload = bytes(range(256)) * (byte_count // 256) + bytes(byte_count % 256)
    side.send(payload)
    seen = side.take()
    assert [len(one.payload) for one in seen[:-1]] == [65_536] * (count - 1)
    assert b"".join(one.payload for one in seen) == payload
    assert len(seen) == count


def test_a_message_that_broke_in_its_middle_is_cut_as_the_next_connection_agreed() -> None:
    side = Side()
    side.begin(frame_format=FrameFormat.LONG)
    side.send(bytes(200_000))
    assert [len(one.payload) for one in side.take(2)] == [65_536, 65_536]
    side.reconnect()
    assert [len(one.payload) for one in side.take()] == [FRAGMENT] * 48 + [200_000 % FRAGMENT]


# -- several messages in a frame


def packed_side() -> Side:
    """Return a side on a connection of packed frames, idle, whose map has gone."""
    side = Side()
    side.begin(frame_format=FrameFormat.PACKED)
    return side


def held(work: Iterable[Work]) -> list[list[bytes]]:
    """Return the payloads in each frame."""
    return [
        [seen.payload for seen in messages_of(frame.data)]
        for frame in work
        if isinstance(frame, Frame)
    ]


def test_the_first_of_a_burst_leaves_at_once_and_the_others_gather() -> None:
    side = packed_side()
    side.send(b"a")
    [first] = side.post()
    side.send(b"b", b"", b"c" * 100)
    assert side.post() == [], "they wait for the frame under way"
    side.core.handle_completed(first.wr_id, Outcome.DONE)
    [second] = side.post()
    assert held([first, second]) == [[b"a"], [b"b", b"", b"c" * 100]]
    assert isinstance(second, Frame)
    assert second.solicited


def test_each_message_of_a_frame_has_its_header_and_the_first_one_acknowledges() -> None:
    side = packed_side()
    assert side.receive(*frames(70, b"x")) is None
    side.send(b"a", b"bb", b"ccc")
    [frame] = side.post()
    assert isinstance(frame, Frame)
    seen = messages_of(frame.data)
    assert [one.header.sequence for one in seen] == [1, 2, 3]
    assert [one.header.ack for one in seen] == [70, 0, 0]
    assert [one.header.payload_bytes for one in seen] == [1, 2, 3]
    assert all(one.header.checksum for one in seen)


@pytest.mark.parametrize(("last", "count"), [(65_584 - 3 * 48 - 2, 1), (65_584 - 3 * 48 - 1, 2)])
def test_a_frame_takes_whole_messages_up_to_a_long_fragment(last: int, count: int) -> None:
    side = packed_side()
    side.send(b"a", b"b", bytes(last))
    work = side.post(1)
    assert len(held(work)[0]) == (3 if count == 1 else 2)
    side.core.handle_completed(work[0].wr_id, Outcome.DONE)
    assert len(work + side.post()) == count


def test_a_full_frame_waits_for_none() -> None:
    side = packed_side()
    side.send(b"a")
    side.post()
    side.send(*[bytes(1000)] * 62)
    assert side.post() == []
    side.send(bytes(1000))
    assert [len(one) for one in held(side.post())] == [62], "and the rest gathers again"


def test_a_message_of_several_fragments_shares_no_frame() -> None:
    side = packed_side()
    side.send(b"a", bytes(65_537), b"b")
    work = side.post()
    assert [[len(one) for one in frame] for frame in held(work)] == [[1], [65_536], [1]]
    side.core.handle_completed(work[-1].wr_id, Outcome.DONE)
    assert held(side.post()) == [[b"b"]]


def test_a_message_with_operations_begins_a_frame_and_waits_for_none() -> None:
    side = packed_side()
    side.send(b"a")
    [first] = side.post()
    side.send(b"b")
    side.send(b"c", operations=[transfer(10)])
    side.send(b"d")
    assert side.post() == [], "in their order"
    side.core.handle_completed(first.wr_id, Outcome.DONE)
    work = side.post()
    assert [type(one).__name__ for one in work] == ["Frame", "Piece", "Frame"]
    assert held(work) == [[b"b"], [b"c", b"d"]]


def test_an_acknowledgement_takes_gathered_messages_along() -> None:
    side = packed_side()
    side.send(b"a")
    side.post()
    side.send(b"b")
    assert side.receive(*frames(1, b"x", flags=ACK_REQUIRED)) is None
    [frame] = side.post()
    assert isinstance(frame, Frame)
    [seen] = messages_of(frame.data)
    assert (seen.payload, seen.header.ack) == (b"b", 1)


def test_repeats_do_not_wait_and_are_packed_too() -> None:
    side = packed_side()
    side.send(b"a", b"b")
    side.post()
    side.core.detach()
    side.core.attach(acknowledged=0, credits=0, frame_format=FrameFormat.PACKED)
    side.send(b"c")
    [frame] = side.post()
    assert isinstance(frame, Frame)
    seen = messages_of(frame.data)
    assert [one.payload for one in seen[1:]] == [b"a", b"b", b"c"], "behind the map"
    assert [one.header.flags for one in seen] == [CONG_BITMAP, REPEATED, REPEATED, NO_FLAGS]


def test_what_gathers_is_cancelled_and_leaves_no_bytes_behind() -> None:
    side, other = packed_side(), Account()
    side.send(b"a")
    [first] = side.post()
    side.send(bytes(60_000), account=other)
    side.send(b"b")
    assert side.core.cancel(other, None) == 1
    side.send(bytes(6000))
    assert side.post() == []
    side.core.handle_completed(first.wr_id, Outcome.DONE)
    assert [[len(one) for one in frame] for frame in held(side.post())] == [[1, 6000]]


def test_a_packed_frame_takes_one_credit() -> None:
    side = Side(CoreLimits(flow_control=True))
    side.core.offer(64)
    side.begin(credits=4, frame_format=FrameFormat.PACKED)
    side.core.handle_posted(1)
    for count in (2, 3):
        side.send(*[b"a"] * count)
        assert len(side.take()) == count
    side.send(b"b")
    assert not side.core.wants_work(), "the last credit is kept"


def test_the_last_fragment_is_solicited() -> None:
    side = Side()
    side.begin()
    side.send(LONG)
    posted = [work for work in side.post() if isinstance(work, Frame)]
    assert [frame.solicited for frame in posted] == [False, False, True]


@pytest.mark.rule("wire-ib-fragment-order")
def test_no_message_comes_between_the_fragments_of_another() -> None:
    side = Side()
    side.begin()
    side.send(LONG, LONG)
    side.take(1)
    side.send(b"c")
    assert side.receive(*frames(1, flags=ACK_REQUIRED), *map_frames(bytes(8192))) is None
    assert sequences(side.take()) == [1, 1, 2, 2, 2, 3]


def test_every_header_has_its_checksum() -> None:
    side = Side()
    side.core.attach(acknowledged=0, credits=0)
    side.send(LONG, b"")
    assert all(seen.header.checksum for seen in side.take())


@pytest.mark.rule("wire-sequence-start")
def test_numbers_begin_where_the_shell_says_and_rise_by_one() -> None:
    side = Side(sequence_first=70)
    side.begin()
    side.send(b"a", b"b")
    assert sequences(side.take()) == [70, 71]
    assert side.core.outgoing.sequence_next == 72


def test_a_cancelled_unsent_message_leaves_no_hole() -> None:
    side = Side()
    side.begin()
    side.send(b"a", target_port=1)
    side.send(b"b", target_port=2)
    side.send(b"c", target_port=1)
    assert side.core.cancel(side.account, 1) == 2
    assert [(seen.header.sequence, seen.payload) for seen in side.take()] == [(1, b"b")]
    assert side.account.send_queued_bytes == 1


def test_the_account_is_freed_by_the_acknowledgement() -> None:
    side = Side()
    side.begin()
    side.send(b"abc", b"de")
    assert side.account.send_queued_bytes == 5
    side.take()
    assert side.receive(ack_only(1)) is None
    assert side.account.send_queued_bytes == 2
    assert set(side.core.outgoing.freed) == {side.account}
    assert side.core.outgoing.message_count() == 1
    assert side.receive(ack_only(2)) is None
    assert not side.core.outgoing.holds()


def test_any_frame_acknowledges() -> None:
    side = Side()
    side.begin()
    side.send(b"a", b"b", b"c")
    side.take()
    assert side.receive(*frames(1, b"x", ack=1)) is None
    assert side.core.outgoing.message_count() == 2
    assert side.receive(map_frames(bytes(8192), ack=2)[0]) is None
    assert side.core.outgoing.message_count() == 1


@pytest.mark.parametrize("ack", [2, 1 << 63])
def test_an_acknowledgement_of_what_was_never_sent_is_a_protocol_error(ack: int) -> None:
    side = Side()
    side.begin()
    side.send(b"a", b"unsent")
    side.take(1)
    reason = side.receive(ack_only(ack))
    assert reason is not None
    assert reason.startswith("BAD_ACKNOWLEDGEMENT")
    assert side.counters.recv_drop_bad_ack == 1
    assert side.account.send_queued_bytes == 7


def test_an_acknowledgement_of_a_message_that_is_being_sent_is_a_protocol_error() -> None:
    side = Side()
    side.begin()
    side.send(LONG)
    side.take(2)
    assert side.receive(ack_only(1)) is not None


@pytest.mark.rule("wire-ib-ack-seq")
def test_what_the_private_data_acknowledges_is_not_repeated() -> None:
    side = Side()
    side.begin()
    side.send(b"a", b"b", b"c")
    side.take()
    side.reconnect(acknowledged=2)
    assert sequences(side.take()) == [3]
    assert side.account.send_queued_bytes == 1


def test_private_data_of_another_life_of_ours_frees_nothing() -> None:
    side = Side()
    side.send(b"a")
    side.begin(acknowledged=99)
    assert sequences(side.take()) == [1]


@pytest.mark.rule("wire-flags")
def test_repeats_go_first_with_their_old_numbers_and_flags() -> None:
    side = Side()
    side.begin()
    side.send(b"a", LONG, b"c")
    side.take()
    side.core.detach()
    side.send(b"new")
    side.begin()
    seen = side.take()
    assert sequences(seen) == [1, 2, 2, 2, 3, 4]
    assert [one.header.flags for one in seen] == [REPEATED] * 5 + [NO_FLAGS]
    assert b"".join(one.payload for one in seen) == b"a" + LONG + b"cnew"
    assert side.counters.send_retransmitted == 3


@pytest.mark.parametrize("breaks", [1, 2, 3])
def test_repeats_keep_their_order_however_often_it_breaks(breaks: int) -> None:
    side = Side()
    side.begin()
    side.send(*(b"%d" % number for number in range(1, 6)))
    side.take()
    for sent in range(breaks):
        side.reconnect()
        side.take(sent)
    side.reconnect()
    assert sequences(side.take()) == [1, 2, 3, 4, 5]


def test_a_message_that_broke_in_its_middle_is_cut_anew_from_its_header() -> None:
    side = Side()
    side.begin()
    side.send(LONG, b"next")
    side.take(2)
    side.reconnect()
    seen = side.take()
    assert sequences(seen) == [1, 1, 1, 2]
    assert [one.payload for one in seen[:3]] == [LONG[:4096], LONG[4096:8192], LONG[8192:]]
    assert [one.header.flags for one in seen] == [REPEATED] * 3 + [NO_FLAGS]


def test_a_map_that_broke_in_its_middle_is_made_anew() -> None:
    side = Side()
    side.core.attach(acknowledged=0, credits=0)
    side.take(1)
    side.core.detach()
    side.map = b"\x01" * 8192
    side.core.attach(acknowledged=0, credits=0)
    assert [seen.payload for seen in side.take()] == [b"\x01" * 4096] * 2


def test_the_first_message_asks_and_then_every_ninth() -> None:
    """Kernel parity: tests/vectors has numbers 1, 10, 19 and 28 of both kernels asking."""
    side = Side()
    side.begin()
    side.send(*[b"x"] * 30)
    seen = side.take()
    asking = [one.header.sequence for one in seen if one.header.flags == ACK_REQUIRED]
    assert asking == [1, 10, 19, 28]
    assert side.counters.send_ack_required == 4


def test_a_message_beyond_the_budget_of_bytes_asks() -> None:
    side = Side(CoreLimits(unacked_bytes_max=100))
    side.begin()
    side.send(b"first", bytes(60), bytes(60), bytes(10))
    seen = side.take()
    assert [bool(one.header.flags & ACK_REQUIRED) for one in seen] == [True, False, True, False]


def test_a_message_asks_if_its_account_is_half_full() -> None:
    side = Side()
    side.begin()
    side.send(b"first", b"a")
    side.send(b"b", ack_required=True)
    assert [one.header.flags for one in side.take()] == [ACK_REQUIRED, NO_FLAGS, ACK_REQUIRED]


def test_a_break_refills_the_budget() -> None:
    side = Side()
    side.begin()
    side.send(*[b"x"] * 8)
    side.take()
    side.reconnect(acknowledged=8)
    side.send(*[b"x"] * 9)
    flags = [one.header.flags for one in side.take()]
    assert flags == [NO_FLAGS] * 8 + [ACK_REQUIRED]


def test_a_message_cancelled_on_its_way_goes_out_to_its_end() -> None:
    side = Side()
    side.begin()
    side.send(LONG)
    side.take(1)
    assert side.core.cancel(side.account, None) == 1
    assert side.account.send_queued_bytes == 0
    assert not side.core.outgoing.holds()
    side.send(b"next")
    assert sequences(side.take()) == [1, 1, 2]
    assert side.receive(ack_only(1)) is None
    assert side.account.send_queued_bytes == 4
    side.reconnect()
    assert sequences(side.take()) == [2]


def test_a_cancelled_message_is_not_repeated() -> None:
    side = Side()
    side.begin()
    side.send(LONG, b"b")
    side.take(2)
    side.core.cancel(side.account, None)
    side.reconnect()
    assert side.take() == []
    assert side.core.outgoing.sequence_next == 2


def test_cancel_takes_repeats_of_this_owner_and_port_alone() -> None:
    side, other = Side(), Account()
    side.begin()
    side.send(b"a", target_port=1)
    side.send(b"b", target_port=2)
    side.send(b"c", target_port=1, account=other)
    side.take()
    side.core.detach()
    assert side.core.cancel(side.account, 1) == 1
    assert (side.account.send_queued_bytes, other.send_queued_bytes) == (1, 1)
    side.begin()
    assert [seen.payload for seen in side.take()] == [b"b", b"c"]


def test_drop_all_frees_the_accounts_and_says_how_many() -> None:
    side = Side()
    side.begin()
    side.send(b"a", b"b")
    side.take()
    side.core.detach()
    side.send(b"c")
    assert side.core.drop_all() == 3
    assert side.account.send_queued_bytes == 0
    assert side.account.given_up == 3
    assert set(side.core.outgoing.freed) == {side.account}
    assert side.core.outgoing.message_count() == 0


def test_drop_all_on_a_connection_keeps_the_framing() -> None:
    side = Side()
    side.begin()
    side.send(LONG, b"b")
    side.take(1)
    assert side.core.drop_all() == 2
    assert sequences(side.take()) == [1, 1]
    assert side.core.outgoing.message_count() == 0


def test_a_new_life_of_the_peer_drops_what_the_old_one_was_handed() -> None:
    side = Side()
    side.begin()
    assert side.receive(*frames(40, b"x")) is None
    side.send(b"a", LONG)
    side.take(2)
    side.core.detach()
    side.send(b"unsent")
    assert side.core.restart_peer() == 2
    assert side.core.acknowledge_sequence == 0
    side.begin()
    assert [(seen.header.sequence, seen.payload) for seen in side.take()] == [(3, b"unsent")]


def test_the_ring_bounds_what_is_posted() -> None:
    side = Side(CoreLimits(send_ring=4))
    side.begin()
    side.send(bytes(6 * FRAGMENT))
    posted = side.post()
    assert len(posted) == 4
    assert side.rdma.ib_tx_ring_full
    side.core.handle_completed(posted[1].wr_id, Outcome.DONE)  # and so the one before
    assert len(side.post()) == 2


def test_a_completion_of_an_older_connection_finds_nothing() -> None:
    side = Side(CoreLimits(send_ring=2))
    side.begin()
    side.send(b"a", b"b", b"c")
    old = side.post()
    side.core.detach()
    side.core.attach(acknowledged=0, credits=0)
    assert len(side.post()) == 2
    side.core.handle_completed(old[-1].wr_id, Outcome.FLUSHED)
    assert side.post() == []


def test_a_completion_of_what_was_never_posted_is_passed_over() -> None:
    side = Side(CoreLimits(send_ring=1))
    side.begin()
    side.send(b"a", b"b", b"c")
    posted = side.post()
    side.core.handle_completed(posted[0].wr_id + 1, Outcome.DONE)
    assert side.post() == []
    side.core.handle_completed(posted[0].wr_id, Outcome.DONE)
    assert len(side.post()) == 1
    side.core.handle_completed(posted[0].wr_id, Outcome.DONE)
    assert side.post() == []


def test_the_tables() -> None:
    side = Side()
    side.begin()
    side.send(b"ab", LONG, b"c")
    side.take(2)
    assert list(side.core.outgoing.sent_entries()) == [
        (1, 2, SOURCE, TARGET),
        (2, 10240, SOURCE, TARGET),
    ]
    assert list(side.core.outgoing.unsent_entries()) == [(0, 1, SOURCE, TARGET)]
    assert side.core.outgoing.message_count() == 3
    assert side.core.outgoing.holds(side.account)
    assert not side.core.outgoing.holds(Account())


def test_a_payload_that_is_a_view_is_sent_as_it_is() -> None:
    side = Side()
    side.begin()
    side.core.outgoing.queue(side.account, SOURCE, TARGET, memoryview(bytearray(LONG)), b"", ())
    assert b"".join(seen.payload for seen in side.take()) == LONG


def test_no_frame_is_longer_than_a_receive() -> None:
    side = Side()
    side.begin()
    side.send(LONG)
    assert max(len(work.data) for work in side.post()) == HEADER_BYTES + FRAGMENT
