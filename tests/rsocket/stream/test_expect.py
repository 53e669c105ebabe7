"""Receives that bytes fill in place: what is copied, what is not, and every way to end early."""

import random
from dataclasses import replace

import pytest

from tests.rsocket.stream.stream_pair import Pair, Side
from urds.common.errors import LocalProtocolError
from urds.rsocket.core.stream.records import Memory, PostKind, Shut, StreamSettings
from urds.rsocket.wire.stream import Sge

KIB = 1024
BYTES = random.Random(0).randbytes(100_000)
ORIGINAL = StreamSettings(is_urds=False)
HOLDING = StreamSettings(held_wait_bytes=1 << 19)


def send_all(pair: Pair, data: bytes) -> None:
    """Send from left to right without reading."""
    taken = 0
    while taken < len(data):
        count = pair.left.send(data[taken:], may_zero_copy=pair.left.stream.settings.is_urds)
        pair.run()
        assert count, f"stopped at {taken} of {len(data)}"
        taken += count


def expected(side: Side, byte_count: int) -> tuple[Memory, int]:
    memory = side.host.allocate(byte_count)
    return memory, side.stream.receive_ring.expect(memory, byte_count)


def copy_ahead(side: Side, memory: Memory, offset: int, done: int = 0) -> int:
    """Read what is there of the bytes ahead into their place."""
    return done + side.stream.receive_ring.receive_into(memory.view[done:offset])


@pytest.mark.rule("rsocket-problem-copies")
@pytest.mark.parametrize("peer", [StreamSettings(), ORIGINAL], ids=["own", "original"])
def test_bytes_behind_what_is_published_arrive_in_place(peer: StreamSettings) -> None:
    """8 KiB are published: these are copied, all others are not."""
    pair = Pair(peer, is_settled=True)
    right = pair.right
    memory, offset = expected(right, 100_000)
    assert (offset, right.stream.receive_ring.expected_left) == (8 * KIB, 100_000 - 8 * KIB)
    done, taken = 0, 0
    while right.stream.receive_ring.expected_left:
        taken += pair.left.send(BYTES[taken:], may_zero_copy=peer.is_urds)
        pair.run()
        done = copy_ahead(right, memory, offset, done)
    assert done == offset
    assert right.stream.receive_ring.end_expect() == 100_000 - 8 * KIB
    assert memory.view == BYTES
    stats = right.stream.stats
    assert (stats.bytes_copied_out, stats.bytes_direct) == (8 * KIB, 100_000 - 8 * KIB)
    assert not right.stream.receive_ring.holds(memory)
    assert right.stream.receive_ring.readable_bytes == 0


def test_the_entry_tells_the_expected_memory() -> None:
    pair = Pair(is_settled=True)
    memory, offset = expected(pair.right, 100_000)
    [post] = pair.right.post()
    entry = Sge.parse(post.data, "little")
    assert entry == Sge(memory.address + offset, memory.rkey, 100_000 - offset)


def test_what_is_there_already_comes_first() -> None:
    """2,000 bytes are buffered and 6,192 published: both are ahead."""
    pair = Pair(is_settled=True)
    send_all(pair, BYTES[:2000])
    memory, offset = expected(pair.right, 50_000)
    assert offset == 8 * KIB
    pair.run()
    assert pair.left.send(BYTES[2000:60_000], may_zero_copy=True) == 48_000
    pair.run()
    assert copy_ahead(pair.right, memory, 50_000) == offset  # never more than what is ahead
    assert pair.right.stream.receive_ring.receive_into(memory.view) == 0
    assert pair.right.stream.receive_ring.expected_left == 0
    assert pair.right.stream.receive_ring.end_expect() == 50_000 - offset
    assert memory.view == BYTES[:50_000]


@pytest.mark.parametrize(
    ("byte_count", "is_direct"), [(8 * KIB + 16 * KIB - 1, False), (8 * KIB + 16 * KIB, True)]
)
def test_a_short_rest_is_not_expected(byte_count: int, is_direct: bool) -> None:
    pair = Pair(is_settled=True)
    _, offset = expected(pair.right, byte_count)
    assert (offset == 8 * KIB) is is_direct
    assert (offset == byte_count) is not is_direct
    assert (pair.right.stream.receive_ring.expected_left > 0) is is_direct
    assert pair.right.stream.receive_ring.end_expect() == 0


def test_the_next_message_goes_on_in_the_window() -> None:
    """Space that was read is published behind the expected memory, and is not read before it."""
    pair = Pair(is_settled=True)
    right = pair.right
    memory, offset = expected(right, 50_000)
    pair.run()
    send_all(pair, BYTES[:10_000])
    assert copy_ahead(right, memory, offset) == offset
    pair.run()
    send_all(pair, BYTES[10_000:54_000])
    assert right.stream.receive_ring.expected_left == 0
    assert right.stream.receive_ring.readable_bytes == 4000
    assert right.read() == b"" == right.stream.receive_ring.receive(10)
    assert right.stream.receive_ring.end_expect() == 50_000 - offset
    assert right.read() == BYTES[50_000:54_000]
    assert memory.view == BYTES[:50_000]


def test_only_one_receive_is_expected_at_a_time() -> None:
    pair = Pair(is_settled=True)
    expected(pair.right, 50_000)
    with pytest.raises(LocalProtocolError):
        expected(pair.right, 50_000)
    pair.right.stream.receive_ring.end_expect()
    expected(pair.right, 50_000)


# -- ending early


def test_the_end_of_the_stream_in_the_middle() -> None:
    """What arrived in place is read; the peer's memory is of no more interest."""
    pair = Pair(is_settled=True)
    right = pair.right
    memory, offset = expected(right, 50_000)
    pair.run()
    send_all(pair, BYTES[:30_000])
    pair.left.stream.lifecycle.shut_down(Shut.RDWR)
    pair.run()
    assert not right.stream.is_ended
    assert copy_ahead(right, memory, offset) == offset
    assert right.stream.is_ended
    assert right.stream.receive_ring.expected_left == 20_000
    assert right.stream.receive_ring.end_expect() == 30_000 - offset
    assert memory.view[:30_000] == BYTES[:30_000]
    assert right.stream.is_ended


def test_an_early_end_before_anything_is_published_leaves_nothing() -> None:
    pair = Pair(is_settled=True)
    memory, _ = expected(pair.right, 50_000)
    assert pair.right.stream.receive_ring.end_expect() == 0
    assert not pair.right.stream.receive_ring.holds(memory)
    pair.run()
    assert not pair.right.stream.receive_ring.holds(memory)
    send_all(pair, BYTES[: 8 * KIB])
    assert pair.right.read() == BYTES[: 8 * KIB]


def test_a_wait_that_ends_early_leaves_its_memory_in_the_window() -> None:
    """What arrives there afterwards is read with copies, in its turn, and then it is free."""
    pair = Pair(is_settled=True)
    right = pair.right
    memory, offset = expected(right, 50_000)
    pair.run()
    send_all(pair, BYTES[:20_000])
    assert copy_ahead(right, memory, offset) == offset
    pair.run()
    assert right.stream.receive_ring.end_expect() == 20_000 - offset
    assert right.stream.receive_ring.holds(memory)
    assert right.stream.receive_ring.readable_bytes == 0
    send_all(pair, BYTES[20_000:54_000])
    assert memory.view == BYTES[:50_000]
    assert right.stream.receive_ring.holds(memory)
    assert right.read(30_000) == BYTES[20_000:50_000]
    assert not right.stream.receive_ring.holds(memory)
    assert right.read() == BYTES[50_000:54_000]


def test_a_wait_that_ends_before_the_bytes_ahead_are_read() -> None:
    """What arrived in place does not count as read: everything is left to be copied, in order."""
    pair = Pair(is_settled=True)
    right = pair.right
    memory, _ = expected(right, 50_000)
    pair.run()
    send_all(pair, BYTES[:20_000])
    assert right.stream.receive_ring.receive_into(memory.view[:100]) == 100
    assert right.stream.receive_ring.end_expect() == 0
    assert right.stream.receive_ring.readable_bytes == 19_900
    assert right.read() == BYTES[100:20_000]
    assert right.stream.stats.bytes_direct == 0
    assert right.stream.receive_ring.holds(memory)  # 30,000 bytes of it are published
    send_all(pair, BYTES[20_000:50_000])
    assert right.read() == BYTES[20_000:50_000]
    assert not right.stream.receive_ring.holds(memory)


def test_an_expectation_may_follow_one_that_ended_early() -> None:
    """The memory of the first is ahead of the second, whose keys may be the same."""
    pair = Pair(is_settled=True)
    right = pair.right
    whole = right.host.allocate(100_000)
    halves = [
        Memory(whole.view[start : start + 50_000], whole.address + start, whole.rkey)
        for start in (0, 50_000)
    ]
    assert right.stream.receive_ring.expect(halves[0], 50_000) == 8 * KIB
    pair.run()
    right.stream.receive_ring.end_expect()
    room = right.host.allocate(100_000)
    second = Memory(room.view, room.address, room.rkey)
    assert right.stream.receive_ring.expect(second, 100_000) == 50_000
    pair.run()
    send_all(pair, BYTES)
    assert right.stream.receive_ring.receive_into(second.view[:50_000]) == 50_000
    assert right.stream.receive_ring.end_expect() == 50_000
    assert second.view == BYTES


def test_a_write_over_two_expectations_with_one_key_is_taken() -> None:
    """Neighbours of one registration are one space to the peer, which may write both at once."""
    pair = Pair(is_settled=True)
    right = pair.right
    whole = right.host.allocate(108_192)
    first = Memory(whole.view[:58_192], whole.address, whole.rkey)
    assert right.stream.receive_ring.expect(first, 58_192) == 8 * KIB
    pair.run()
    right.stream.receive_ring.end_expect()
    # Its first direct byte lies behind the first memory's last one.
    second = Memory(whole.view, whole.address, whole.rkey)
    assert right.stream.receive_ring.expect(second, 108_192) == 58_192
    pair.run()
    send_all(pair, BYTES[: 8 * KIB])
    assert pair.left.send(BYTES[8 * KIB :], may_zero_copy=True) == 100_000 - 8 * KIB
    [post] = pair.left.post()
    assert len(post.data) == 100_000 - 8 * KIB
    pair.run()
    assert right.stream.receive_ring.readable_bytes == 58_192
    assert right.stream.receive_ring.expected_left == 8192
    head = bytearray(58_192)
    assert right.stream.receive_ring.receive_into(memoryview(head)) == 58_192
    assert right.stream.receive_ring.end_expect() == 100_000 - 58_192
    assert bytes(head) + bytes(whole.view[58_192:100_000]) == BYTES


# -- together with credits and growth


def test_bytes_in_place_give_their_credits_back() -> None:
    settings = StreamSettings(receive_queue=16, no_delay=True)
    pair = Pair(StreamSettings(no_delay=True), settings, is_settled=True)
    right = pair.right
    memory, offset = expected(right, 50_000)
    pair.run()
    send_all(pair, BYTES[:offset])
    copy_ahead(right, memory, offset)
    for start in range(offset, 50_000, 1000):
        send_all(pair, BYTES[start : min(start + 1000, 50_000)])
    assert right.stream.receive_ring.expected_left == 0
    assert right.stream.receive_ring.end_expect() == 50_000 - offset
    assert memory.view == BYTES[:50_000]


def test_messages_in_place_are_not_read_before_those_ahead() -> None:
    """Their credits come back when the bytes ahead of them are read."""
    settings = StreamSettings(receive_queue=16, no_delay=True)
    pair = Pair(StreamSettings(no_delay=True), settings, is_settled=True)
    right = pair.right
    memory, offset = expected(right, 50_000)
    pair.run()
    send_all(pair, BYTES[:offset])
    for number in range(7):
        send_all(pair, BYTES[offset + number : offset + number + 1])
    assert right.post() == []
    copy_ahead(right, memory, offset)
    assert PostKind.CREDIT in [post.kind for post in right.post()]


def wait_for_all(pair: Pair, byte_count: int, waits: int) -> None:
    """Let a peer that is always ahead send as much as these waits take, and more."""
    right, data = pair.right, bytes(byte_count * (waits + 1))
    taken = 0
    for _ in range(waits):
        memory, offset = expected(right, byte_count)
        done = 0
        while right.stream.receive_ring.expected_left or done < offset:
            pair.run()
            taken += pair.left.send(data[taken:], may_zero_copy=True)
            pair.run()
            done = copy_ahead(right, memory, offset, done)
        assert done + right.stream.receive_ring.end_expect() == byte_count
        right.host.release(memory)


def test_short_waits_grow_the_window_until_it_covers_them() -> None:
    """A copy of 64 KiB costs less than a peer that has to wait for each place."""
    pair = Pair(StreamSettings(), StreamSettings(ring_max_bytes=1 << 17), is_settled=True)
    wait_for_all(pair, 64 * KIB, 20)
    stats = pair.right.stream.stats
    assert pair.right.stream.receive_ring._buffer.byte_count == 128 * KIB
    direct = stats.bytes_direct
    wait_for_all(pair, 64 * KIB, 5)
    assert stats.bytes_direct == direct


def test_a_long_wait_holds_the_window_back() -> None:
    """512 KiB: an eighth is copied of each at most, and the window does not outgrow it."""
    pair = Pair(StreamSettings(), HOLDING, is_settled=True)
    right = pair.right.stream
    wait_for_all(pair, 512 * KIB, 8)
    assert right.receive_ring._buffer.byte_count == 64 * KIB
    assert right.stats.bytes_copied_out <= 8 * 64 * KIB
    assert right.stats.bytes_copied_out + right.stats.bytes_direct == 8 * 512 * KIB


@pytest.mark.reference
@pytest.mark.parametrize(
    ("byte_count", "held"),
    [(1 << 20, 128 * KIB), (1 << 21, 256 * KIB), (1 << 24, 256 * KIB)],
)
def test_an_eighth_of_a_long_wait_is_kept_in_the_window(byte_count: int, held: int) -> None:
    pair = Pair(StreamSettings(), replace(HOLDING, is_receive_fixed=True, receive_bytes=1 << 20))
    pair.run()
    memory = Memory(memoryview(bytearray(0)), 0x1000, 1)
    assert pair.right.stream.receive_ring.expect(memory, byte_count) == 1 << 20
    for _ in range(1 << 4):
        pair.right.stream.receive_data(1 << 16)
        pair.right.stream.receive_ring.receive(1 << 16)
        pair.right.post()
    unfilled = pair.right.stream.receive_ring._unfilled
    sizes = [piece.byte_count for piece in unfilled if piece.buffer.memory is not memory]
    assert sizes == [held // 2] * 2


def test_a_window_that_is_large_already_is_held_back_too() -> None:
    """It grew to 512 KiB for a reader who did not expect; its last pieces are copied still."""
    pair = Pair(StreamSettings(), replace(HOLDING, ring_max_bytes=1 << 19), is_settled=True)
    right = pair.right.stream
    taken, data = 0, bytes(4 << 20)
    while right.receive_ring._buffer.byte_count < 1 << 19:
        taken += pair.left.send(data[taken:], may_zero_copy=True)
        pair.run()
        pair.right.read()
        pair.run()
    wait_for_all(pair, 512 * KIB, 2)
    copied = right.stats.bytes_copied_out
    wait_for_all(pair, 512 * KIB, 4)
    assert 0 < right.stats.bytes_copied_out - copied <= 4 * 64 * KIB


def test_a_reader_who_expects_no_more_gets_all_of_the_window_again() -> None:
    """Once the long wait is over and a byte more was read."""
    pair = Pair(StreamSettings(), replace(HOLDING, is_receive_fixed=True, receive_bytes=1 << 20))
    pair.run()
    wait_for_all(pair, 1 << 20, 3)
    receive_ring = pair.right.stream.receive_ring
    pair.right.read()
    pair.run()
    assert receive_ring._unfilled_bytes <= 128 * KIB
    assert pair.left.send(b"next") == 4
    pair.run()
    pair.right.read()
    pair.run()
    assert receive_ring._unfilled_bytes >= (1 << 20) - receive_ring._buffer.step


def test_a_window_that_was_held_back_goes_on_from_any_offset() -> None:
    """Parts of 37,500 bytes leave the ring where no step ends; it comes round all the same."""
    pair = Pair(StreamSettings(), replace(HOLDING, is_receive_fixed=True, receive_bytes=1 << 19))
    pair.run()
    wait_for_all(pair, 600_000, 3)
    right = pair.right.stream
    right.receive_ring.receive(1 << 20)
    pair.run()
    data, got = BYTES * 20, bytearray()
    taken = 0
    while len(got) < len(data):
        taken += pair.left.send(data[taken:], may_zero_copy=taken < len(data) - 20_000)
        pair.run()
        arrived = right.receive_ring.receive(1 << 20)
        assert arrived or taken < len(data)
        got += arrived
        pair.run()
    assert got == data


def test_after_the_end_nothing_is_expected() -> None:
    pair = Pair(is_settled=True)
    pair.left.stream.lifecycle.shut_down(Shut.WR)
    pair.run()
    _, offset = expected(pair.right, 50_000)
    assert offset == 50_000
