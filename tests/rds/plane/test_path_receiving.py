"""The receiving half of a path: framing, bounds before memory, duplicates, what is for control."""

import tracemalloc

import pytest

from tests.rds.plane.path_world import MS, TARGET, Side, message, messages
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    DownReason,
    Hold,
    Limits,
)
from urds.rds.plane.python.inbox import SOURCES_MAX
from urds.rds.types import AckMode
from urds.rds.wire.header import HEADER_BYTES

RETRANSMITTED, ACK_REQUIRED = HeaderFlag.RETRANSMITTED, HeaderFlag.ACK_REQUIRED
MAP = HeaderFlag.CONG_BITMAP
SIZES = (0, 1, 100, 8191, 8192, 8193, 70_000, 200_000)
ACK_MESSAGES, ACK_BYTES = Limits().acknowledge_messages, Limits().acknowledge_bytes
ACK_DELAY_NS = Limits().acknowledge_delay_ns


class TestFraming:
    """Messages come out of bytes, however these are cut."""

    @pytest.mark.parametrize("step", [1, 7, 48, 49, 4096, 65536, 1 << 20])
    def test_any_step_gives_the_same_messages(self, step: int) -> None:
        sizes = SIZES if step > 40 else SIZES[:5]
        sent = [bytes([size % 251]) * size for size in sizes]
        data = b"".join(message(number, text) for number, text in enumerate(sent, 1))
        side = Side()
        for start in range(0, len(data), step):
            assert side.receive(data[start : start + step]) is None
        assert side.got() == sent
        assert side.receiver.frames == len(sent)
        assert side.inbox.receive_queued_bytes == sum(sizes)
        assert side.receiver.partial.remaining() == (0, 0)

    def test_what_is_missing_is_told(self) -> None:
        side = Side()
        data = message(1, b"x" * 10_000)
        side.receive(data[:20])
        assert side.receiver.partial.remaining() == (28, 0)
        side.receive(data[20:50])
        assert side.receiver.partial.remaining() == (0, 9998)
        side.receive(data[50:])
        assert side.receiver.partial.remaining() == (0, 0)

    @pytest.mark.parametrize("payload_bytes", [100, 20_000])
    @pytest.mark.parametrize("kept", [1, 47, 48, 49, 90])
    def test_a_partial_message_dies_with_its_stream(self, payload_bytes: int, kept: int) -> None:
        side = Side()
        side.begin()
        side.receive(message(1, b"x" * payload_bytes)[:kept])
        side.core.detach()
        side.attach()
        side.receive(message(1, b"y" * payload_bytes, flags=RETRANSMITTED))
        assert side.got() == [b"y" * payload_bytes]

    def test_the_source_is_the_address_of_the_sender(self) -> None:
        side = Side()
        side.receive(message(1, b"a", source_port=7) + message(2, b"b", source_port=8))
        assert [item[1] for item in side.inbox.queue] == [("peer", 7), ("peer", 8)]

    def test_the_addresses_of_senders_are_kept_up_to_a_bound_and_go_with_the_stream(self) -> None:
        side = Side()
        side.begin()
        side.receive(message(1, b"", source_port=2, target_port=TARGET + 1))
        assert not side.receiver.sources, "no socket, no address"
        for port in range(2, SOURCES_MAX + 2):
            side.receive(message(port, b"a", source_port=port))
        assert len(side.receiver.sources) == SOURCES_MAX
        side.receive(message(SOURCES_MAX + 2, b"a", source_port=SOURCES_MAX + 2))
        assert side.receiver.sources == {SOURCES_MAX + 2: ("peer", SOURCES_MAX + 2)}
        side.core.detach()
        assert not side.receiver.sources
        assert [item[1][1] for item in side.inbox.queue] == list(range(2, SOURCES_MAX + 3))

    def test_runs_of_messages_settle_each_mailbox(self) -> None:
        side = Side()
        data = b"".join(
            message(number, b"x" * number, target_port=TARGET if number % 3 else 9)
            for number in range(1, 10)
        )
        side.receive(data)
        assert len(side.got()) == 6
        assert side.counters.recv_drop_no_sock == 3
        assert side.counters.recv_queued == 6
        assert sum(side.receiver.touched.values()) == 6

    @pytest.mark.parametrize("payload_bytes", [10, 10_000])
    def test_an_extension_makes_an_item_detailed(self, payload_bytes: int) -> None:
        side = Side()
        data = message(1, bytes(payload_bytes), extension=bytes(range(16)))
        side.receive(data[:60], 5)
        side.receive(data[60:], 5)
        ((payload, _, extension, _, arrived_ns),) = side.inbox.queue
        assert (len(payload), extension, arrived_ns) == (payload_bytes, bytes(range(16)), 5)

    @pytest.mark.parametrize("flags", [0x02, 0x03, 0x05, 0x08, 0x09, 0x81])
    def test_only_exactly_the_map_flag_makes_a_map(self, flags: int) -> None:
        """Kernel parity: 0x03 and its like are data. Source: linux v6.1, v6.12, v7.2 (observed)."""
        side = Side()
        side.receive(message(1, b"data", flags=HeaderFlag(flags)))
        assert side.got() == [b"data"]
        assert side.receiver.peer_map is None


class TestBounds:
    """A length is judged before memory is taken for it."""

    @pytest.mark.parametrize("payload_bytes", [2**20 + 1, 2**31, 2**32 - 1])
    def test_a_frame_beyond_the_bound_ends_the_stream_and_takes_no_memory(
        self, payload_bytes: int
    ) -> None:
        side = Side()
        header = bytearray(message(1))
        header[16:20] = payload_bytes.to_bytes(4, "big")
        tracemalloc.start()
        try:
            assert side.receive(bytes(header) + b"x" * 100) is DownReason.TOO_LONG
            assert tracemalloc.get_traced_memory()[1] < 65536
        finally:
            tracemalloc.stop()
        assert side.got() == []

    def test_the_bound_itself_passes(self) -> None:
        side = Side(limits=Limits(frame_bytes_max=1000))
        assert side.receive(message(1, bytes(1000))) is None
        assert side.receive(message(2, bytes(1001))) is DownReason.TOO_LONG
        assert len(side.got()) == 1

    def test_messages_before_a_protocol_error_are_delivered_and_counted(self) -> None:
        side = Side(limits=Limits(frame_bytes_max=1000))
        assert side.receive(messages([1, 2]) + message(3, bytes(1001))) is DownReason.TOO_LONG
        assert side.got() == [b"1", b"2"]
        assert side.inbox.receive_queued_bytes == 2
        assert side.receiver.touched == {side.inbox: 2}

    @pytest.mark.parametrize("payload_bytes", [0, 8191, 8193, 16_384])
    def test_a_map_of_another_length_is_a_protocol_error(self, payload_bytes: int) -> None:
        side = Side()
        data = message(0, bytes(payload_bytes), flags=MAP, source_port=0, target_port=0)
        results = [side.receive(data[start : start + 4096]) for start in range(0, len(data), 4096)]
        assert results[-1] is DownReason.BAD_MAP
        assert side.receiver.peer_map is None

    def test_a_map_is_kept_and_takes_no_number(self) -> None:
        side = Side()
        data = b"\x10" + bytes(8191)
        side.receive(messages([1]))
        side.receive(message(0, data, flags=MAP, source_port=0, target_port=0))
        side.receive(messages([2]))
        assert side.receiver.peer_map == data
        assert side.got() == [b"1", b"2"]

    def test_controls_are_kept_up_to_their_bound(self) -> None:
        side = Side(limits=Limits(control_events_max=3))
        side.receive(b"".join(message(number, b"z" * 100, target_port=0) for number in range(1, 6)))
        assert [control.sequence for control in side.receiver.controls] == [1, 2, 3]
        assert {len(control.payload) for control in side.receiver.controls} == {64}
        assert side.counters.recv_drop_control_full == 2


def test_a_first_frame_that_comes_in_pieces_is_a_frame() -> None:
    """A map is 8240 bytes: on most networks it arrives in several segments."""
    peer, side = Side(), Side()
    side.send(b"held")
    side.begin(Hold.FIRST_FRAME)
    peer.attach()
    data = peer.write()
    side.receive(data[:1460])
    assert side.receiver.frames == 0 and side.core.is_held()
    side.receive(data[1460:])
    assert side.receiver.frames == 1
    assert [frame.payload for frame in side.frames()] == [b"held"]


class TestDuplicates:
    """Numbers skip forward; they fall back only when a new stream repeats old messages."""

    def test_gaps_are_no_error(self) -> None:
        side = Side()
        side.receive(messages([1, 5, 1 << 62]))
        assert len(side.got()) == 3

    def test_repeats_of_what_is_here_are_dropped_and_counted(self) -> None:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.begin()
        side.receive(messages(range(1, 6)))
        side.core.detach()
        side.attach()
        side.receive(messages(range(1, 8), flags=RETRANSMITTED))
        assert side.got() == [b"%d" % number for number in range(1, 8)]
        assert side.counters.recv_drop_old_seq == 5

    def test_a_long_repeat_is_dropped_too(self) -> None:
        side = Side()
        side.begin()
        data = message(1, bytes(20_000))
        side.receive(data)
        side.core.detach()
        side.attach()
        repeat = message(1, bytes(20_000), flags=RETRANSMITTED)
        side.receive(repeat[:1000])
        side.receive(repeat[1000:])
        assert len(side.got()) == 1
        assert side.counters.recv_drop_old_seq == 1

    def test_a_message_to_an_unbound_port_counts_as_received(self) -> None:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.begin()
        side.receive(message(1, b"a", target_port=9))
        assert side.receiver.sequence_expected == 2
        assert side.receiver.ack_pending_messages == 1


class TestChecksum:
    """Between urds nodes a header carries a checksum, and a wrong one ends the stream."""

    def test_what_a_side_writes_the_other_accepts(self) -> None:
        sender = Side(checksum=True, sequence_first=(1 << 63) - 5)
        receiver = Side(checksum=True)
        sender.send(b"", b"a", b"b" * 10_000)
        sender.send(b"c", extension=b"\xff" * 16)
        sender.attach()
        data = sender.write()
        assert receiver.receive(data) is None
        assert len(receiver.got()) == 4
        sender.core.detach()
        sender.attach()
        assert receiver.receive(sender.write()) is None

    def test_the_checksum_is_the_one_of_the_wire_format(self) -> None:
        """`message` computes it with `wire.checksum`, the path with its own arithmetic."""
        sender = Side(checksum=True, sequence_first=77)
        sender.begin()
        sender.send(b"abc", extension=bytes(range(16)))
        expected = message(77, b"abc", extension=bytes(range(16)), checksum=True)
        assert sender.write() == expected

    @pytest.mark.parametrize("byte", [0, 7, 15, 19, 21, 23, 30, 31, 32, 47])
    @pytest.mark.parametrize("payload_bytes", [3, 20_000])
    def test_one_flipped_bit_is_refused(self, byte: int, payload_bytes: int) -> None:
        side = Side(checksum=True)
        data = bytearray(message(300, bytes(payload_bytes), checksum=True))
        data[byte] ^= 1
        assert side.receive(bytes(data)) is DownReason.BAD_CHECKSUM
        assert side.got() == []

    def test_zero_means_not_checked(self) -> None:
        side = Side(checksum=True)
        assert side.receive(messages([1])) is None
        assert side.got() == [b"1"]

    def test_linux_is_not_checked(self) -> None:
        side = Side(ack_mode=AckMode.STREAM_ACKNOWLEDGED)
        assert (
            side.receive(message(1, b"a", checksum=False)[:30] + b"\xab\xcd" + bytes(16) + b"a")
            is None
        )
        assert side.got() == [b"a"]


class TestOutsideTheNumbers:
    """Hellos, their answers and acknowledgements carry number 0 and touch no other number."""

    def test_a_hello_leaves_the_expected_number_alone(self) -> None:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.begin()
        side.receive(messages([100]))
        side.receive(message(0, source_port=1, target_port=0, ack=0))
        side.receive(message(0, source_port=0, target_port=1))
        side.receive(messages([101]))
        assert side.receiver.sequence_expected == 102
        ports = [(item.source_port, item.target_port) for item in side.receiver.controls]
        assert ports == [(1, 0), (0, 1)]

    @pytest.mark.rule("rds7-ack-purges")
    def test_an_acknowledgement_is_nobodys_message(self) -> None:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.begin()
        side.send(b"a")
        side.write()
        side.receive(message(0, ack=1, source_port=0, target_port=0))
        assert side.account.send_queued_bytes == 0
        assert side.counters.ack_received == 1
        assert not side.receiver.controls

    def test_a_numbered_ping_is_dropped_when_repeated(self) -> None:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.begin()
        side.receive(message(5, source_port=9, target_port=0))
        side.receive(message(5, source_port=9, target_port=0, flags=RETRANSMITTED))
        assert len(side.receiver.controls) == 1


class TestAcknowledging:
    """When a urds node is told what lies in our inboxes, and that Linux is never told."""

    @staticmethod
    def side(ack_mode: AckMode = AckMode.PEER_ACKNOWLEDGED) -> Side:
        side = Side(ack_mode=ack_mode)
        side.attach()
        side.write()
        return side

    @pytest.mark.parametrize(
        ("count", "payload_bytes", "due"),
        [
            (ACK_MESSAGES - 1, 0, False),
            (ACK_MESSAGES, 0, True),
            (3, -(-ACK_BYTES // 4), False),
            (4, -(-ACK_BYTES // 4), True),
            (1, ACK_BYTES, True),
        ],
    )
    def test_it_is_due_at_the_most_messages_or_bytes(
        self, count: int, payload_bytes: int, due: bool
    ) -> None:
        side = self.side()
        for number in range(1, count + 1):
            side.receive(message(number, bytes(payload_bytes)))
        assert side.receiver.ack_due is due
        (*frames,) = side.frames()
        assert [frame.header.ack for frame in frames] == [count] * due

    @pytest.mark.rule("wire-ack-required")
    @pytest.mark.parametrize("payload_bytes", [3, 20_000])
    @pytest.mark.parametrize("flags", [ACK_REQUIRED, ACK_REQUIRED | RETRANSMITTED])
    def test_it_is_due_when_required(self, flags: HeaderFlag, payload_bytes: int) -> None:
        side = self.side()
        data = message(9, bytes(payload_bytes), flags=flags)
        side.receive(data[:60])
        side.receive(data[60:])
        (frame,) = side.frames()
        assert frame.header.ack == 9
        assert side.counters.recv_ack_required == 1

    @pytest.mark.rule("wire-ack-required")
    def test_a_dropped_repeat_is_acknowledged_when_required(self) -> None:
        side = self.side()
        side.receive(messages([9]))
        side.receive(message(9, flags=ACK_REQUIRED | RETRANSMITTED))
        assert [frame.header.ack for frame in side.frames()] == [9]

    def test_it_is_due_after_the_delay(self) -> None:
        side, due_ns = self.side(), 5 * MS + ACK_DELAY_NS
        assert side.core.ack_at_ns is None
        side.receive(messages([1]), now_ns=5 * MS)
        side.receive(messages([2]), now_ns=5 * MS + 500)
        assert side.core.ack_at_ns == due_ns
        side.core.handle_timeout(due_ns - 1)
        assert side.write() == b""
        side.core.handle_timeout(due_ns)
        assert [frame.header.ack for frame in side.frames()] == [2]
        assert side.core.ack_at_ns is None

    @pytest.mark.rule("rds7-ack-piggyback", "wire-ack-field")
    def test_a_message_carries_it_and_resets_every_counter(self) -> None:
        side = self.side()
        last = ACK_MESSAGES - 1
        side.receive(messages(range(1, last + 1)), now_ns=MS)
        side.send(b"reply")
        (frame,) = side.frames()
        assert (frame.payload, frame.header.ack) == (b"reply", last)
        assert side.core.ack_at_ns is None
        side.receive(messages(range(last + 1, 2 * last)), now_ns=MS)
        assert not side.receiver.ack_due

    @pytest.mark.rule("wire-ack-only", "wire-sequence-excludes")
    def test_alone_it_is_a_bare_header(self) -> None:
        side = self.side()
        side.receive(message(9, flags=ACK_REQUIRED))
        (frame,) = side.frames()
        assert frame == (frame.header, b"")
        assert (frame.header.sequence, frame.header.flags) == (0, HeaderFlag(0))
        assert (frame.header.source_port, frame.header.target_port) == (0, 0)
        assert frame.header.extension == bytes(16)

    @pytest.mark.rule("wire-ack-limit")
    def test_at_most_one_is_written_for_any_number_of_requests(self) -> None:
        side = self.side()
        for number in range(1, 50):
            side.receive(message(number, flags=ACK_REQUIRED))
        assert [frame.header.ack for frame in side.frames()] == [49]

    def test_it_stays_due_until_it_is_bytes(self) -> None:
        side = self.side()
        side.send(b"x" * 70_000)
        side.core.poll_transmit()
        side.core.transmitted(100)  # the stream is full: more than 64 KiB wait
        side.receive(message(1, flags=ACK_REQUIRED))
        side.core.poll_transmit()
        assert side.receiver.ack_due
        assert side.core.wants_to_write()
        left = side.write()
        assert left.endswith(message(0, ack=1, source_port=0, target_port=0))
        assert not side.receiver.ack_due

    def test_only_whole_messages_are_acknowledged(self) -> None:
        side = self.side()
        side.receive(messages([1]) + message(2, bytes(20_000))[:19_000], now_ns=0)
        side.core.handle_timeout(ACK_DELAY_NS)
        assert [frame.header.ack for frame in side.frames()] == [1]

    @pytest.mark.parametrize("ack_mode", [AckMode.STREAM_ACKNOWLEDGED, AckMode.NOT_YET])
    def test_linux_and_unknown_peers_get_none(self, ack_mode: AckMode) -> None:
        side = self.side(ack_mode)
        for number in range(1, 600):
            side.receive(message(number, flags=ACK_REQUIRED), now_ns=MS)
        assert side.core.ack_at_ns is None
        assert side.write() == b""
        side.send(b"data")
        assert [frame.header.ack for frame in side.frames()] == [0]

    def test_an_agreement_tells_what_came_before_it(self) -> None:
        side = self.side(AckMode.NOT_YET)
        side.receive(messages([1, 2]))
        side.core.agree(ack_mode=AckMode.PEER_ACKNOWLEDGED, checksum=False)
        assert [frame.header.ack for frame in side.frames()] == [2]

    def test_more_than_was_handed_over_is_a_protocol_error(self) -> None:
        side = self.side()
        side.send(b"a", b"b")
        side.write()
        assert side.receive(message(1, ack=2)) is None
        assert side.account.send_queued_bytes == 0
        assert side.receive(message(2, ack=3)) is DownReason.BAD_ACKNOWLEDGEMENT

    def test_a_message_that_has_no_number_yet_cannot_be_acknowledged(self) -> None:
        side = self.side()
        side.send(b"a")
        assert side.receive(message(1, ack=1)) is DownReason.BAD_ACKNOWLEDGEMENT
        assert side.account.send_queued_bytes == 1


def test_a_header_of_exactly_the_read_is_no_end() -> None:
    side = Side()
    data = message(1, b"abc")
    side.receive(data[:HEADER_BYTES])
    side.receive(data[HEADER_BYTES:])
    assert side.got() == [b"abc"]
