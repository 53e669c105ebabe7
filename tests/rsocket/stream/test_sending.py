"""The sending half of the stream core: gathering, lending, room, blocks, order of completions."""

import pytest

from tests.rsocket.stream.stream_pair import Pair
from urds.rsocket.core.stream.records import PostKind, Shut, StreamSettings

WIDE = StreamSettings(is_receive_fixed=True, receive_bytes=1 << 20)
KIB = 1024


def data_lengths(pair: Pair) -> list[int]:
    return [len(post.data) for post in pair.left.data_posts()]


# -- gathering


@pytest.mark.rule("rsocket-small-not-cpu-bound")
def test_small_sends_gather_while_a_write_is_under_way() -> None:
    """The first goes at once, three more as one write when it completes."""
    pair = Pair(is_settled=True)
    for data in (b"a", b"bb", b"ccc", b"dddd"):
        assert pair.left.send(data) == len(data)
        pair.left.post()
    assert data_lengths(pair) == [1]
    pair.left.deliver()
    assert pair.left.post() == []
    pair.left.complete()
    pair.run()
    assert data_lengths(pair) == [1, 9]
    assert pair.right.read() == b"abbcccdddd"


def test_eight_writes_are_under_way_without_delay() -> None:
    pair = Pair(StreamSettings(no_delay=True), is_settled=True)
    for _ in range(10):
        pair.left.send(b"x")
        pair.left.post()
    assert data_lengths(pair) == [1] * 8
    pair.left.stream.sending.set_no_delay(False)
    pair.left.deliver()
    pair.left.complete(7)
    pair.left.post()
    assert data_lengths(pair) == [1] * 8
    pair.left.complete(1)
    pair.left.post()
    assert data_lengths(pair) == [1] * 8 + [2]


def test_what_gathers_to_16_kib_waits_no_longer() -> None:
    pair = Pair(WIDE, WIDE, is_settled=True)
    for _ in range(17):
        pair.left.send(bytes(1023))
        pair.left.post()
    assert data_lengths(pair) == [1023]
    pair.left.send(bytes(16))
    pair.left.post()
    assert pair.left.stream.sending.pending_bytes == 16384 - sum(data_lengths(pair)[1:])
    assert len(data_lengths(pair)) > 1


def test_gathered_bytes_are_copied_once_and_stay_in_order() -> None:
    """Blocks of 4, 8, 16 KiB; a long send gets one of its own."""
    pair = Pair(WIDE, WIDE, is_settled=True)
    lengths = [1, 3000, 2000, 1, 40_000, 5, 6000, 9000, 30_000, 2]
    sent = b"".join(bytes([n + 1]) * length for n, length in enumerate(lengths))
    position = 0
    for length in lengths:
        assert pair.left.send(sent[position : position + length]) == length
        position += length
    assert pair.left.stream.stats.bytes_copied_in == len(sent)
    pair.run()
    assert pair.right.read() == sent


def test_the_buffer_is_the_callers_own_after_a_copied_send() -> None:
    pair = Pair(is_settled=True)
    buffer = bytearray(b"first")
    for _ in range(2):
        pair.left.stream.send(memoryview(buffer), may_zero_copy=False)
        buffer[:] = b"other"
    pair.run()
    assert pair.right.read() == b"firstother"


@pytest.mark.rule("rsocket-send-steps", "rsocket-data-length")
def test_a_chunk_is_no_longer_than_it_may_be() -> None:
    pair = Pair(StreamSettings(chunk_max_bytes=10_000), WIDE, is_settled=True)
    pair.left.send(bytes(25_000))
    pair.run()
    assert data_lengths(pair) == [8334, 8333, 8333]


@pytest.mark.parametrize(
    ("byte_count", "chunks"),
    [
        (1 << 16, [1 << 16]),
        ((1 << 16) + 1, [32_769, 32_768]),  # not a whole chunk and a message for one byte
        (200_000, [50_000] * 4),
    ],
)
def test_chunks_are_equal(byte_count: int, chunks: list[int]) -> None:
    pair = Pair(StreamSettings(chunk_max_bytes=1 << 16), WIDE, is_settled=True)
    assert pair.left.send(bytes(byte_count), may_zero_copy=True) == byte_count
    pair.run()
    assert data_lengths(pair) == chunks


def test_chunks_are_equal_up_to_the_end_of_the_space() -> None:
    """12,032 bytes are announced: three messages, none of a few bytes at their end."""
    settings = StreamSettings(is_receive_fixed=True, receive_bytes=24_064)
    pair = Pair(StreamSettings(chunk_max_bytes=6000), settings)
    assert pair.left.send(bytes(30_000), may_zero_copy=True) == 12_032  # half of the ring
    pair.left.post()
    assert data_lengths(pair) == [4011, 4011, 4010]


def test_what_is_done_when_posted_waits_for_no_completion() -> None:
    """Small sends leave one by one, and room and slots are free; DISCONNECT still waits."""
    pair = Pair(StreamSettings(send_queue=5, send_bytes=4096), is_settled=True)
    stream = pair.left.stream
    for number in range(6):
        assert pair.left.send(bytes([number])) == 1
        pair.left.post()
        stream.handle_posted()
        stream.handle_posted()  # once is enough
        assert stream.unsent_bytes == 0
    assert data_lengths(pair) == [1] * 6
    assert not stream.is_drained
    stream.lifecycle.shut_down(Shut.RDWR)
    assert pair.left.post() != []
    stream.handle_posted()
    pair.left.deliver()
    pair.left.complete(6)
    assert not stream.wants_disconnect
    pair.left.complete(1)
    assert stream.wants_disconnect
    assert pair.right.read() == bytes(range(6))


def test_small_sends_gather_behind_those_that_landed_and_are_not_completed() -> None:
    """Eight short ones may be under way; long ones are none of them."""
    pair = Pair(StreamSettings(), WIDE, is_settled=True)
    stream = pair.left.stream

    def send(data: bytes) -> None:
        assert pair.left.send(data) == len(data)
        while pair.left.post():
            stream.handle_posted()

    send(b"a")
    stream.handle_posted()
    for _ in range(10):
        send(bytes(20_000))
    for _ in range(20):
        send(b"b" * 10)
    lengths = data_lengths(pair)
    assert [length for length in lengths if length < 20_000] == [1] + [10] * 7
    assert sum(lengths) == 1 + 200_000 + 70
    pair.run()
    assert data_lengths(pair)[len(lengths) :] == [130]


@pytest.mark.rule("rsocket-send-needs-both")
def test_bytes_do_not_overtake_those_that_wait_for_space() -> None:
    """Space has come and nothing is under way, but the older bytes have not been posted yet."""
    settings = StreamSettings(is_receive_fixed=True, receive_bytes=512)
    pair = Pair(StreamSettings(), settings, is_settled=True)
    pair.left.send(b"a" * 600)
    pair.run()
    assert pair.right.read() == b"a" * 512
    pair.right.post()
    pair.right.deliver()
    assert pair.left.send(b"b") == 1
    pair.run()
    assert pair.right.read() == b"a" * 88 + b"b"


# -- room


@pytest.mark.rule("rsocket-send-steps")
def test_copied_bytes_are_bounded_until_they_complete() -> None:
    settings = StreamSettings(send_bytes=10_000)
    pair = Pair(settings, WIDE, is_settled=True)
    assert pair.left.send(bytes(7000)) == 7000
    assert pair.left.stream.is_writable
    assert pair.left.send(bytes(7000)) == 3000
    assert not pair.left.stream.is_writable
    assert pair.left.send(b"x") == 0
    assert pair.left.stream.unsent_bytes == 10_000
    pair.left.post()
    pair.left.deliver()
    assert pair.left.send(b"x") == 0
    pair.left.complete(1)
    assert pair.left.stream.is_writable
    pair.run()
    assert pair.left.stream.unsent_bytes == 0
    assert len(pair.right.read()) == 10_000


@pytest.mark.parametrize(("left_over", "is_writable"), [(2047, False), (2048, True)])
def test_a_stream_is_writable_from_2048_bytes_of_room_on(left_over: int, is_writable: bool) -> None:
    pair = Pair(StreamSettings(send_bytes=10_000), is_settled=True)
    pair.left.send(bytes(10_000 - left_over))
    assert pair.left.stream.is_writable is is_writable


def test_an_empty_send_is_no_message() -> None:
    pair = Pair(is_settled=True)
    assert pair.left.send(b"") == 0
    assert pair.left.post() == []
    pair.left.send(b"x")
    pair.left.send(b"")
    pair.run()
    assert data_lengths(pair) == [1]


# -- lending


def test_a_long_send_goes_without_a_copy() -> None:
    """The post shows the caller's own memory; nothing is copied, and it is told when it is free."""
    pair = Pair(WIDE, WIDE, is_settled=True)
    data = bytearray(b"z" * 50_000)
    stream = pair.left.stream
    assert stream.send(memoryview(data), may_zero_copy=True) == 50_000
    [post] = pair.left.post()
    assert post.is_zero_copy and isinstance(post.data, memoryview) and post.data.obj is data
    assert (stream.sending.zero_copy_bytes, stream.stats.bytes_copied_in) == (50_000, 0)
    pair.left.deliver()
    assert stream.sending.zero_copy_bytes == 50_000
    pair.left.complete()
    assert stream.sending.zero_copy_bytes == 0


def test_a_send_below_16_kib_is_copied() -> None:
    pair = Pair(WIDE, WIDE, is_settled=True)
    pair.left.send(bytes(16 * KIB - 1), may_zero_copy=True)
    [post] = pair.left.post()
    assert not post.is_zero_copy
    assert pair.left.stream.stats.bytes_copied_in == 16 * KIB - 1


@pytest.mark.rule("rsocket-send-needs-both")
def test_bytes_go_without_a_copy_only_as_far_as_the_peer_has_space() -> None:
    """8 KiB of window; then an uncopied send is refused until there is room for more."""
    pair = Pair(is_settled=True)
    data = bytes(100_000)
    left = pair.left.stream
    assert pair.left.send(data, may_zero_copy=True) == 8 * KIB
    assert left.is_writable
    assert pair.left.send(data, may_zero_copy=True) == 0
    assert not left.is_writable
    assert left.stats.bytes_copied_in == 0
    pair.run()
    assert not left.is_writable
    pair.right.read(2048)
    pair.run()
    assert left.is_writable
    assert pair.left.send(data, may_zero_copy=True) == 2048


def test_a_small_send_after_a_refused_one_makes_the_stream_writable() -> None:
    """Readiness speaks of a send like the last one."""
    pair = Pair(is_settled=True)
    assert pair.left.send(bytes(100_000), may_zero_copy=True) == 8 * KIB
    assert pair.left.send(bytes(100_000), may_zero_copy=True) == 0
    assert pair.left.send(b"small") == 5
    assert pair.left.stream.is_writable


def test_nothing_goes_without_a_copy_before_what_is_pending() -> None:
    """Bytes that gather are pushed out first, so that order stays."""
    pair = Pair(WIDE, WIDE, is_settled=True)
    pair.left.send(b"first")
    pair.left.send(b"second")
    uncopied = bytes(20_000)
    assert pair.left.send(uncopied, may_zero_copy=True) == 20_000
    pair.run()
    assert data_lengths(pair) == [5, 6, 20_000]
    assert pair.right.read() == b"firstsecond" + uncopied


def test_nothing_goes_without_a_copy_while_pending_bytes_cannot_go() -> None:
    settings = StreamSettings(is_receive_fixed=True, receive_bytes=512)
    pair = Pair(StreamSettings(), settings, is_settled=True)
    pair.left.send(bytes(1000))
    assert pair.left.send(bytes(20_000), may_zero_copy=True) == 0
    pair.run()
    pair.right.read()
    pair.run()
    assert pair.right.stream.receive_ring.readable_bytes == 488
    assert pair.left.send(bytes(20_000), may_zero_copy=True) == 24


def test_waiting_bytes_may_need_all_the_space_that_comes() -> None:
    """Then a refused lender is not told to try again."""
    settings = StreamSettings(is_receive_fixed=True, receive_bytes=512)
    pair = Pair(StreamSettings(), settings, is_settled=True)
    pair.left.send(bytes(1024))
    pair.run()
    assert pair.left.send(bytes(20_000), may_zero_copy=True) == 0
    pair.right.read()
    pair.right.post()
    pair.right.deliver()
    assert not pair.left.stream.is_writable
    pair.run()
    assert not pair.left.stream.is_writable
    pair.right.read()
    pair.run()
    assert pair.left.stream.is_writable


# -- completions


def test_completions_of_all_kinds_come_back_in_order() -> None:
    """Each gives back what its post took, whatever else is under way."""
    settings = StreamSettings(iomap_slots=4, keepalive_ns=10, no_delay=True)
    pair = Pair(settings, settings, is_settled=True)
    left, right = pair.left, pair.right
    mapped = left.host.allocate(100)
    right.stream.map_buffer(right.host.allocate(1000), 0)
    pair.run()
    left.stream.handle_timeout(0)
    left.stream.handle_timeout(10)
    right.send(bytes(6000))
    right.post()
    right.deliver()
    left.read()
    left.stream.map_buffer(mapped, 7)
    left.send(bytes(300))
    left.stream.write_mapped(memoryview(bytes(200)), 0, may_zero_copy=False)
    left.send(bytes(20_000), may_zero_copy=True)
    left.stream.lifecycle.shut_down(Shut.WR)
    kinds = [post.kind for post in left.post()]
    assert kinds == [
        PostKind.CREDIT,
        PostKind.IOMAP,
        PostKind.DATA,
        PostKind.DIRECT,
        PostKind.DATA,
        PostKind.CONTROL,
        PostKind.KEEPALIVE,
    ]
    sending = left.stream.sending
    assert (sending.data_slots, sending.control_slots) == (380 - 4, 4 - 3)
    uncopied = 8 * KIB - 300
    assert (sending.buffered_bytes, sending.zero_copy_bytes) == (500, uncopied)
    left.deliver()
    seen = []
    for _ in kinds:
        left.complete(1)
        seen.append((sending.data_slots, sending.control_slots, left.stream.unsent_bytes))
    assert seen == [
        (376, 2, 500 + uncopied),
        (377, 2, 500 + uncopied),
        (378, 2, 200 + uncopied),
        (379, 2, uncopied),
        (380, 2, 0),
        (380, 3, 0),
        (380, 4, 0),
    ]
    assert left.stream.is_drained


@pytest.mark.reference
def test_a_completion_without_a_post_is_our_own_mistake() -> None:
    pair = Pair(is_settled=True)
    with pytest.raises(AssertionError, match="without a post"):
        pair.left.stream.handle_sent()
