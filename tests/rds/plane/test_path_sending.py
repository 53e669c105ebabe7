"""The sending half of a path: numbers, repeats, the order on a stream, taking messages back."""

from itertools import pairwise

import pytest

from tests.rds.plane.path_world import (
    SOURCE,
    TARGET,
    Account,
    Frame,
    Side,
    map_message,
    parse_frames,
)
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    Hold,
)
from urds.rds.types import AckMode
from urds.rds.wire.header import HEADER_BYTES

RETRANSMITTED = HeaderFlag.RETRANSMITTED


def numbers(frames: list[Frame]) -> list[int]:
    return [frame.header.sequence for frame in frames]


def payloads(frames: list[Frame]) -> list[bytes]:
    return [frame.payload for frame in frames]


@pytest.mark.rule("wire-sequence-start")
def test_messages_are_numbered_from_the_first_number_on() -> None:
    side = Side(sequence_first=1 << 60)
    side.begin()
    side.send(b"a", b"", b"c")
    sent = side.messages()
    assert numbers(sent) == [(1 << 60) + step for step in range(3)]
    assert payloads(sent) == [b"a", b"", b"c"]
    assert {(frame.header.source_port, frame.header.target_port) for frame in sent} == {
        (SOURCE, TARGET)
    }
    assert {frame.header.flags for frame in sent} == {HeaderFlag(0)}


def test_a_map_opens_every_stream() -> None:
    side = Side()
    side.map_bytes = b"\x01" + bytes(8191)
    side.send(b"a")
    for _ in range(3):
        side.attach()
        first, second = side.frames()
        assert first.payload == side.map_bytes
        assert (first.header.flags, first.header.sequence) == (HeaderFlag.CONG_BITMAP, 0)
        assert (first.header.source_port, first.header.target_port) == (0, 0)
        assert second.payload == b"a"
        side.core.detach()


def test_an_extension_travels_in_the_header() -> None:
    side = Side()
    side.begin()
    extension = bytes(range(16))
    side.send(b"a", extension=extension)
    assert side.messages()[0].header.extension == extension


@pytest.mark.rule("wire-own-reliability")
def test_what_was_handed_over_is_repeated_whole_in_order_before_anything_new() -> None:
    side = Side()
    side.begin()
    side.send(b"first", b"second", b"third")
    side.write(HEADER_BYTES + 5 + 10)  # the second breaks off within its header
    side.core.detach()
    side.send(b"new")
    side.begin()
    side.core.detach()  # nothing but the map was asked for; the repeats were made all the same
    side.attach()
    _, *sent = side.frames()
    assert payloads(sent) == [b"first", b"second", b"third", b"new"]
    assert numbers(sent) == [1, 2, 3, 4]
    assert [bool(frame.header.flags & RETRANSMITTED) for frame in sent] == [True] * 4


def test_new_messages_keep_their_flag_clear_behind_repeats() -> None:
    side = Side()
    side.begin()
    side.send(b"old")
    side.write()
    side.core.detach()
    side.send(b"new")
    side.attach()
    _, old, new = side.frames()
    assert (old.header.flags, new.header.flags) == (RETRANSMITTED, HeaderFlag(0))


def test_three_breaks_within_the_repeats_lose_and_reorder_nothing() -> None:
    side = Side()
    side.begin()
    side.send(*(b"%04d" % number for number in range(100)))
    side.write()
    for data in (8240 + 1000, 8240 + 52 * 30 + 1, 8240):
        side.core.detach()
        side.attach()
        side.write(data)
    side.core.detach()
    side.attach()
    _, *sent = side.frames()
    assert payloads(sent) == [b"%04d" % number for number in range(100)]
    assert numbers(sent) == list(range(1, 101))


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("payload", [b"", b"x" * 64])
def test_small_messages_are_joined(payload: bytes, repeated: bool) -> None:
    """One sendmsg takes 1,024 buffers at most; more would end the stream for good."""
    side = Side()
    side.begin()
    side.send(*[payload] * 5000)
    if repeated:
        side.write()
        side.core.detach()
        side.attach()
    while buffers := side.core.poll_transmit():
        assert len(buffers) <= 4
        side.core.transmitted(sum(map(len, buffers)))


def test_long_payloads_are_not_copied() -> None:
    side = Side()
    side.begin()
    payload = bytearray(8192)
    side.core.send(side.account, SOURCE, TARGET, payload)
    assert any(buffer is payload for buffer in side.core.poll_transmit())


def test_the_same_bytes_are_offered_until_they_are_taken() -> None:
    side = Side()
    side.begin()
    side.send(b"a" * 100, b"b" * 9000)
    whole = b"".join(side.core.poll_transmit())
    assert b"".join(side.core.poll_transmit()) == whole
    for taken in (0, 1, 147, 1, 50):
        side.core.transmitted(taken)
        whole = whole[taken:]
        assert b"".join(side.core.poll_transmit()) == whole


def test_a_hello_is_outside_the_numbers_and_passes_a_hold() -> None:
    side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    side.send(b"held")
    side.begin(Hold.HELLO)
    side.core.control(source_port=1, target_port=0, extension=bytes(16), hello=True)
    side.core.control(source_port=1, target_port=0, extension=b"\x05" * 16, hello=True)
    side.receiver.sequence_expected = 78
    side.receive(map_message())
    (hello,) = [frame for frame in side.frames() if frame.header.source_port == 1]
    assert (hello.header.sequence, hello.header.ack) == (0, 77)
    assert hello.header.extension == b"\x05" * 16, "the later one replaces what has not left"
    assert side.core.is_held()
    side.core.end_hold(None)
    assert numbers(side.messages()) == [1]


def test_controls_go_behind_repeats_and_ahead_of_new_messages() -> None:
    side = Side()
    side.begin()
    side.send(b"repeat")
    side.write()
    side.core.detach()
    side.send(b"new")
    side.attach()
    side.core.control(source_port=7, target_port=0, extension=bytes(16), hello=False)
    _, *sent = side.frames()
    assert [(frame.header.target_port, frame.header.sequence) for frame in sent] == [
        (TARGET, 1), (0, 2), (TARGET, 3),
    ]  # fmt: skip


def test_a_probe_takes_the_place_of_those_before_it() -> None:
    """Else each connection of a peer that acknowledges nothing would repeat all of them."""
    side = Side()
    for _ in range(5):
        side.attach()
        side.frames()
        side.core.control(source_port=1, target_port=0, extension=bytes(16), hello=False)
        side.send(b"message")
        side.frames()
        assert sum(message[3] == 1 for message in side.sender.unacked) == 1
        side.core.control(source_port=1, target_port=0, extension=bytes(16), hello=False)
        side.core.detach()
    assert len(side.sender.retransmits) == 5  # the messages
    assert len(side.sender.unsent) == 1
    assert side.sender.pending_bytes == HEADER_BYTES


@pytest.mark.parametrize("hold", [Hold.FIRST_FRAME, Hold.HELLO])
def test_a_held_stream_carries_nothing_but_maps(hold: Hold) -> None:
    side = Side()
    side.send(b"a")
    side.begin(hold)
    side.core.control(source_port=7, target_port=0, extension=bytes(16), hello=False)
    assert not side.core.wants_to_write()
    assert side.write() == b""
    side.core.map_due = True
    assert [frame.header.flags for frame in side.frames()] == [HeaderFlag.CONG_BITMAP]


def test_the_first_frame_ends_one_hold_and_only_release_ends_the_other() -> None:
    peer = Side()
    peer.attach()
    data = peer.write()
    for hold, frames in ((Hold.FIRST_FRAME, 1), (Hold.HELLO, 0)):
        side = Side()
        side.send(b"a")
        side.begin(hold)
        side.receive(data)
        assert len(side.frames()) == frames


def test_release_forgets_what_the_peer_has() -> None:
    side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    side.begin()
    side.send(b"1", b"2", b"3")
    side.write()
    side.core.detach()
    side.begin(Hold.HELLO)
    side.core.end_hold(2)
    assert numbers(side.messages()) == [3]
    assert side.account.send_queued_bytes == 1


def test_a_peer_that_claims_more_than_it_was_handed_frees_nothing() -> None:
    side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    side.begin()
    side.send(b"1")
    side.write()
    side.core.detach()
    side.begin(Hold.HELLO)
    side.core.end_hold(99)
    assert numbers(side.messages()) == [1]


class TestCancel:
    """Cancelling takes messages out of all three queues and settles the account."""

    @pytest.mark.rule("rds7-cancel-removes", "rds7-cancel-transmitted")
    def test_unsent_leaves_no_hole_in_the_numbers(self) -> None:
        side = Side()
        side.begin()
        side.send(b"a")
        side.send(b"bb", target_port=9)
        side.send(b"c")
        assert side.sender.cancel(side.account, 9) == 1
        assert side.account.send_queued_bytes == 2
        sent = side.messages()
        assert (numbers(sent), payloads(sent)) == ([1, 2], [b"a", b"c"])

    @pytest.mark.rule("rds7-cancel-transmitted")
    def test_handed_over_is_not_repeated_and_leaves_a_hole(self) -> None:
        side = Side()
        side.begin()
        side.send(b"a", b"bb", b"c")
        side.write(HEADER_BYTES + 1 + HEADER_BYTES)
        side.sender.cancel(side.account, None)
        assert side.account.send_queued_bytes == 0
        # What was begun goes on to its end, for the sake of framing.
        assert side.write() == b"bb" + side_bytes(3, b"c")
        side.send(b"d")
        side.core.detach()
        side.attach()
        assert numbers(side.frames()[1:]) == [4]

    @pytest.mark.rule("rds7-cancel-transmitted")
    def test_repeats_are_dropped(self) -> None:
        side = Side()
        side.begin()
        side.send(b"a", b"b")
        side.write()
        side.core.detach()
        assert side.sender.cancel(side.account, TARGET) == 2
        assert side.sender.message_count() == 0
        side.send(b"c")
        side.attach()
        assert numbers(side.frames()[1:]) == [3]

    def test_the_messages_of_another_socket_stay(self) -> None:
        side, other = Side(), Account()
        side.core.send(other, 6, TARGET, b"other")
        side.send(b"mine")
        assert side.sender.cancel(side.account, None) == 1
        assert (other.send_queued_bytes, side.account.send_queued_bytes) == (5, 0)
        assert side.sender.message_count() == 1


def side_bytes(sequence: int, payload: bytes) -> bytes:
    """Return a message as a fresh side would write it with that number."""
    side = Side(sequence_first=sequence)
    side.begin()
    side.send(payload)
    return side.write()


class TestGivingUp:
    """Dropping a queue tells its owners; controls belong to none messages."""

    def test_everything_goes_and_is_counted(self) -> None:
        side = Side()
        side.begin()
        side.send(b"unacked")
        side.core.control(source_port=7, target_port=0, extension=bytes(16), hello=False)
        side.write()
        side.core.detach()
        side.send(b"unsent", b"")
        assert side.sender.drop_all() == 3
        assert (side.account.send_queued_bytes, side.account.given_up) == (0, 3)
        assert (side.sender.message_count(), side.sender.pending_bytes) == (0, 0)
        assert set(side.sender.freed) == {side.account}

    def test_a_new_life_of_the_peer_takes_only_what_the_old_one_was_handed(self) -> None:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.begin()
        side.send(b"handed")
        side.write()
        side.core.detach()
        side.send(b"kept")
        assert side.core.restart_peer() == 1
        side.attach()
        _, kept = side.frames()
        assert (kept.payload, kept.header.sequence) == (b"kept", 2)


class TestStreamAcknowledgement:
    """Towards Linux: TCP's count of bytes frees, once the peer has sent a frame."""

    @staticmethod
    def side() -> Side:
        side = Side(ack_mode=AckMode.STREAM_ACKNOWLEDGED)
        side.begin()
        side.send(b"a" * 10, b"b" * 10)
        side.write()
        return side

    def test_nothing_is_freed_before_the_first_frame(self) -> None:
        side = self.side()
        side.core.handle_stream_acknowledged(1 << 30)
        assert side.account.send_queued_bytes == 20

    def test_a_message_is_free_with_its_last_byte(self) -> None:
        side = self.side()
        peer = Side()
        peer.attach()
        side.receive(peer.write())
        start = 8192 + HEADER_BYTES
        for data, left in (
            (start + 57, 20),
            (start + 58, 10),
            (start + 115, 10),
            (start + 116, 0),
        ):
            side.core.handle_stream_acknowledged(data)
            assert side.account.send_queued_bytes == left, data

    def test_a_new_stream_counts_from_its_own_beginning(self) -> None:
        side = self.side()
        side.core.detach()
        side.attach()
        peer = Side()
        peer.attach()
        side.receive(peer.write())
        side.write()
        side.core.handle_stream_acknowledged(8192 + HEADER_BYTES + 57)
        assert side.account.send_queued_bytes == 20
        side.core.handle_stream_acknowledged(8192 + HEADER_BYTES + 58)
        assert side.account.send_queued_bytes == 10

    @pytest.mark.parametrize("ack_mode", [AckMode.NOT_YET, AckMode.PEER_ACKNOWLEDGED])
    def test_other_peers_are_not_believed_by_bytes(self, ack_mode: AckMode) -> None:
        side = Side(ack_mode=ack_mode)
        side.begin()
        side.send(b"a")
        side.write()
        peer = Side()
        peer.attach()
        side.receive(peer.write())
        side.core.handle_stream_acknowledged(1 << 30)
        assert side.account.send_queued_bytes == 1


class TestFences:
    """A path that waits behind another one's fence lets nothing new out before it opens."""

    @staticmethod
    def gated() -> tuple[Side, Side]:
        """Return a path with one message handed over, one unsent, and another path behind it."""
        front, behind = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED), Side()
        front.begin()
        behind.begin()
        front.send(b"1")
        front.write()
        front.send(b"2")
        behind.core.hold_behind(front.sender.fence())
        front.send(b"3")
        behind.send(b"behind")
        return front, behind

    def test_it_opens_when_all_before_it_is_acknowledged(self) -> None:
        front, behind = self.gated()
        front.write()
        front.sender.handle_peer_acknowledged(1)
        assert behind.core.is_gated() and not behind.core.wants_to_write()
        assert behind.write() == b""
        front.sender.handle_peer_acknowledged(2)
        assert not behind.core.is_gated()
        assert payloads(behind.messages()) == [b"behind"]

    def test_it_stays_shut_over_a_break(self) -> None:
        front, behind = self.gated()
        front.write()
        front.core.detach()
        front.attach()
        front.write()
        assert behind.write() == b""
        front.sender.handle_peer_acknowledged(3)
        assert payloads(behind.messages()) == [b"behind"]

    def test_it_stays_shut_while_some_repeats_have_left_and_others_not(self) -> None:
        front, behind = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED), Side()
        front.begin()
        behind.begin()
        front.send(bytes(70_000))
        behind.core.hold_behind(front.sender.fence())
        front.send(bytes(70_000))
        behind.send(b"behind")
        front.write()
        front.core.detach()
        front.attach()
        front.core.poll_transmit()  # the map and the first of both
        front.sender.handle_peer_acknowledged(0)
        assert behind.write() == b""
        front.sender.handle_peer_acknowledged(1)
        assert payloads(behind.messages()) == [b"behind"]

    def test_repeats_of_the_gated_path_pass(self) -> None:
        front, _ = self.gated()
        old = Side()
        old.begin()
        old.send(b"old")
        old.write()
        old.core.detach()
        old.core.hold_behind(front.sender.fence())
        old.send(b"new")
        old.attach()
        assert payloads(old.messages()) == [b"old"]

    def test_cancelling_opens_it(self) -> None:
        front, behind = self.gated()
        front.sender.cancel(front.account, None)
        assert payloads(behind.messages()) == [b"behind"]

    def test_giving_up_opens_it(self) -> None:
        front, behind = self.gated()
        front.sender.drop_all()
        assert payloads(behind.messages()) == [b"behind"]

    def test_an_empty_path_holds_no_other(self) -> None:
        front, behind = Side(), Side()
        behind.begin()
        behind.core.hold_behind(front.sender.fence())
        behind.send(b"behind")
        assert payloads(behind.messages()) == [b"behind"]

    def test_a_fence_takes_no_number(self) -> None:
        front, _ = self.gated()
        assert numbers(front.messages()) == [2, 3]


class TestMovedMessages:
    """What was never sent goes on over another path; what was sent stays where it has a number."""

    @staticmethod
    def sides() -> tuple[Side, Side]:
        """Return a path with messages sent and unsent, and another with one of its own."""
        closing, staying = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED), Side()
        closing.begin()
        closing.send(b"sent")
        closing.write()
        closing.send(b"1", b"22")
        staying.send(b"before")
        return closing, staying

    def test_they_go_behind_what_is_there_in_their_order(self) -> None:
        closing, staying = self.sides()
        assert closing.sender.move_unsent(staying.sender) == 2
        assert closing.sender.move_unsent(staying.sender) == 0
        staying.send(b"after")
        staying.attach()
        frames = staying.messages()
        assert payloads(frames) == [b"before", b"1", b"22", b"after"]
        assert numbers(frames) == [1, 2, 3, 4]
        assert [one[0] for one in closing.sender.unacked] == [1]
        assert closing.messages() == []

    def test_bytes_go_with_them_and_the_account_does_not_change(self) -> None:
        closing, staying = self.sides()
        before = closing.account.send_queued_bytes
        closing.sender.move_unsent(staying.sender)
        assert closing.sender.pending_bytes == 0
        assert staying.sender.pending_bytes == 3 * HEADER_BYTES + 9
        assert closing.account.send_queued_bytes == before
        assert not closing.sender.freed
        staying.begin()
        staying.write()
        staying.sender.drop_all()
        assert closing.account.send_queued_bytes == len(b"sent")

    def test_pings_and_fences_stay(self) -> None:
        closing, staying = self.sides()
        behind = Side()
        behind.begin()
        behind.core.hold_behind(closing.sender.fence())
        behind.send(b"behind")
        closing.core.control(source_port=1, target_port=0, extension=bytes(16), hello=False)
        closing.sender.move_unsent(staying.sender)
        assert closing.sender.pending_bytes == HEADER_BYTES
        assert [frame.header.target_port for frame in closing.frames()] == [0]
        assert behind.write() == b""
        closing.sender.handle_peer_acknowledged(2)
        assert payloads(behind.messages()) == [b"behind"]

    def test_who_wants_them_acknowledged_wants_it_there(self) -> None:
        closing, staying = self.sides()
        closing.sender.ack_wanted = True
        closing.core.request_ack()
        closing.sender.move_unsent(staying.sender)
        assert staying.sender.ack_wanted and staying.sender.ack_request_due


def test_stream_positions_and_pending_bytes_agree_with_what_is_written() -> None:
    side = Side()
    side.attach()
    side.send(b"a", b"b" * 10_000, b"")
    assert side.sender.pending_bytes == 3 * HEADER_BYTES + 10_001
    data = side.write()
    assert side.sender.pending_bytes == 0
    assert side.sender.position == side.core.bytes_written == len(data)
    ends = [end for _, end, *_ in side.sender.unacked]
    sizes = [len(frame.payload) + HEADER_BYTES for frame in parse_frames(data)]
    assert [later - earlier for earlier, later in pairwise([sizes[0], *ends])] == sizes[1:]
