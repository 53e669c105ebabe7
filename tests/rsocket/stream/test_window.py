"""The receiving half of the stream core: publishing, filling, reading, growing, hostile words."""

import random

import pytest

from tests.rsocket.stream.stream_pair import Pair, Side
from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.records import Memory, PostKind, StreamSettings
from urds.rsocket.wire.stream import ConnectData, Op, Sge, emit_imm_data

ORIGINAL = StreamSettings(is_urds=False)
FIXED = StreamSettings(is_receive_fixed=True, receive_bytes=1 << 17)  # 128 KiB
KIB = 1024


def entries(side: Side) -> list[Sge]:
    """Return all entries that a side has published, its own byte order little."""
    updates = [post for post in side.log if post.kind is PostKind.CREDIT and post.data]
    return [Sge.parse(post.data, "little") for post in updates]


def entry_spans(side: Side) -> list[tuple[int, int]]:
    """Return published entries as offset in the window and length."""
    base = ConnectData.parse(side.stream.connect_data).data_buffer.address
    return [(entry.address - base, entry.length) for entry in entries(side)]


def fill(pair: Pair, byte_count: int) -> None:
    """Send from left to right and let it land, whole."""
    data = random.Random(byte_count).randbytes(byte_count)
    taken = 0
    while taken < byte_count:
        count = pair.left.send(data[taken:], may_zero_copy=True)
        pair.run()
        assert count, f"stopped at {taken}"
        taken += count


# -- steps


@pytest.mark.rule("rsocket-problem-events")
def test_space_is_published_in_eighths_between_own_peers() -> None:
    """128 KiB, all of it filled; 16,383 bytes read publish nothing, one more an eighth."""
    pair = Pair(FIXED, FIXED, is_settled=True)
    fill(pair, 128 * KIB)
    pair.right.read(16 * KIB - 1)
    assert pair.right.post() == []
    pair.right.read(1)
    pair.run()
    assert entry_spans(pair.right) == [(64 * KIB, 64 * KIB), (0, 16 * KIB)]


def test_more_than_an_eighth_goes_as_one_entry() -> None:
    """Whole eighths, up to the end of the ring."""
    pair = Pair(FIXED, FIXED, is_settled=True)
    fill(pair, 128 * KIB)
    pair.right.read(40_000)
    pair.run()
    assert entry_spans(pair.right)[1:] == [(0, 32 * KIB)]
    fill(pair, 32 * KIB)
    pair.right.read()
    pair.run()
    assert entry_spans(pair.right)[2:] == [(32 * KIB, 96 * KIB), (0, 32 * KIB)]


@pytest.mark.rule("rsocket-double-buffer")
@pytest.mark.parametrize(
    "peer", [ORIGINAL, StreamSettings(table_entries=2)], ids=["original", "two"]
)
def test_space_is_published_in_halves_to_a_table_of_two(peer: StreamSettings) -> None:
    """65,535 bytes read publish nothing, one more a half; never more than a half at a time."""
    pair = Pair(peer, FIXED, is_settled=True)
    for _ in range(3):
        pair.left.send(bytes(64 * KIB))
        pair.run()
    assert pair.right.stream.receive_ring.readable_bytes == 128 * KIB
    pair.right.read(64 * KIB - 1)
    assert pair.right.post() == []
    pair.right.read(1)
    pair.right.read()
    pair.run()
    halves = [(64 * KIB, 64 * KIB), (0, 64 * KIB), (64 * KIB, 64 * KIB)]
    assert entry_spans(pair.right)[:3] == halves


@pytest.mark.rule("rsocket-double-buffer", "rsocket-credit-return")
def test_an_original_publishes_halves_by_its_own_rule() -> None:
    pair = Pair(StreamSettings(), ORIGINAL, is_settled=True)
    fill(pair, 128 * KIB)
    assert pair.left.send(bytes(64 * KIB), may_zero_copy=True) == 0
    assert pair.left.stream.stats.blocked_on_space == 1
    assert not pair.left.stream.is_writable
    pair.right.read(64 * KIB)
    pair.run()
    assert pair.left.stream.is_writable
    assert entry_spans(pair.right) == [(64 * KIB, 64 * KIB), (0, 64 * KIB)]


def test_a_small_window_has_larger_parts() -> None:
    """8 KiB in quarters: an eighth would cost a message for each KiB."""
    settings = StreamSettings(is_receive_fixed=True, receive_bytes=8 * KIB)
    pair = Pair(FIXED, settings, is_settled=True)
    fill(pair, 8 * KIB)
    pair.right.read(2047)
    assert pair.right.post() == []
    pair.right.read(1)
    assert len(pair.right.post()) == 1


@pytest.mark.reference
@pytest.mark.parametrize("table_entries", [1, 2, 3, 5, 16])
def test_a_table_never_has_more_entries_than_it_holds(table_entries: int) -> None:
    """Reads an eighth at a time while nothing is filled again, then counts."""
    pair = Pair(StreamSettings(table_entries=table_entries), FIXED)
    table = ConnectData.parse(pair.left.stream.connect_data).target_sgl
    assert table.length == table_entries
    taken = 0
    for _ in range(200):
        taken += pair.left.send(bytes(16 * KIB), may_zero_copy=True)
        pair.run()
        pair.right.read(16 * KIB)
        assert len(pair.right.stream.receive_ring._unfilled) <= table_entries
        pair.run()
    assert taken > 100 * 16 * KIB
    slots = [
        (post.address - table.address) // 16
        for post in pair.right.log
        if post.kind is PostKind.CREDIT and post.data
    ]
    assert slots == [number % table_entries for number in range(1, len(slots) + 1)]


@pytest.mark.rule("rsocket-sgl-in-use")
def test_entries_wait_for_a_slot_of_a_table_of_one() -> None:
    """The second half goes when the first is full, not before."""
    pair = Pair(StreamSettings(table_entries=1), FIXED)
    pair.run()
    assert entries(pair.right) == []
    fill(pair, 64 * KIB - 1)
    assert entries(pair.right) == []
    fill(pair, 1)
    assert entry_spans(pair.right) == [(64 * KIB, 64 * KIB)]


# -- filling and reading


def test_a_ring_wraps_with_pieces_partly_filled() -> None:
    """Odd lengths, so that no piece ends where a message does."""
    pair = Pair(FIXED, StreamSettings(is_receive_fixed=True, receive_bytes=4096), is_settled=True)
    rng = random.Random(4)
    sent, got = bytearray(), bytearray()
    for _ in range(300):
        data = rng.randbytes(rng.randrange(1, 700))
        sent += data[: pair.left.send(data)]
        pair.run()
        got += pair.right.read(rng.randrange(1, 900))
        pair.run()
    got += pair.right.read()
    pair.run()
    got += pair.right.read()
    assert len(sent) > 20 * 4096
    assert got == sent


def test_one_write_fills_pieces_whose_memory_continues() -> None:
    """Both halves of the window are one space to a peer of ours."""
    pair = Pair(StreamSettings(), FIXED, is_settled=True)
    assert pair.left.send(bytes(100 * KIB), may_zero_copy=True) == 100 * KIB
    assert [len(post.data) for post in pair.left.post()] == [100 * KIB]
    pair.run()
    assert pair.right.stream.receive_ring.readable_bytes == 100 * KIB


@pytest.mark.rule("rsocket-fill-buffer-first")
def test_a_write_to_an_original_ends_with_its_piece() -> None:
    pair = Pair(StreamSettings(), ORIGINAL, is_settled=True)
    assert pair.left.send(bytes(100 * KIB), may_zero_copy=True) == 100 * KIB
    assert [len(post.data) for post in pair.left.post()] == [64 * KIB, 36 * KIB]


def test_an_original_doubles_its_chunks_and_ends_them_with_the_piece() -> None:
    """2, 4, 8, 16, 32 KiB; the last is the rest of the half."""
    pair = Pair(ORIGINAL, FIXED, is_settled=True)
    assert pair.left.send(bytes(128 * KIB)) == 128 * KIB
    chunks = [2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 2 * KIB, 64 * KIB]
    assert [len(post.data) for post in pair.left.post()] == chunks


@pytest.mark.parametrize("is_peek", [False, True], ids=["read", "peek"])
def test_reading_crosses_stretches_of_memory(is_peek: bool) -> None:
    """The bytes lie at the end of the ring and at its beginning."""
    pair = Pair(FIXED, StreamSettings(is_receive_fixed=True, receive_bytes=4096), is_settled=True)
    fill(pair, 3000)
    pair.right.read()
    pair.run()
    data = random.Random(1).randbytes(3000)
    assert pair.left.send(data) == 3000
    pair.run()
    right = pair.right.stream
    assert right.receive_ring.receive(3000, peek=True) == data
    assert pair.right.read(2999, peek=True) == data[:2999]
    assert right.receive_ring.receive(10, peek=True) == data[:10]
    assert right.receive_ring.readable_bytes == 3000
    assert right.receive_ring.receive(5000) == data if is_peek else pair.right.read() == data
    assert right.receive_ring.readable_bytes == 0
    assert right.receive_ring.receive(10) == b"" == pair.right.read(10)


@pytest.mark.rule("rsocket-credit-return")
def test_peeking_frees_nothing() -> None:
    pair = Pair(FIXED, FIXED, is_settled=True)
    fill(pair, 128 * KIB)
    pair.right.read(128 * KIB, peek=True)
    assert pair.right.post() == []
    assert pair.right.stream.stats.bytes_copied_out == 0


# -- growing


def exchange(pair: Pair, byte_count: int, *, read_bytes: int = 1 << 24) -> None:
    """Send from left to right, lent, and read as it comes."""
    data, taken = bytes(byte_count), 0
    while taken < byte_count:
        taken += pair.left.send(data[taken:], may_zero_copy=True)
        pair.run()
        pair.right.read(read_bytes)
        pair.run()


@pytest.mark.rule("rsocket-problem-events")
def test_a_window_doubles_while_peer_and_reader_wait_for_it() -> None:
    """8 KiB to 64 KiB; each smaller one but the first goes back at once, being empty."""
    settings = StreamSettings(ring_max_bytes=64 * KIB)
    pair = Pair(settings, settings, is_settled=True)
    host = pair.right.host
    region_bytes = host.held_bytes
    exchange(pair, 300_000)
    assert pair.right.stream.stats.ring_grown == 3
    assert [memory.view.nbytes for memory in host.released] == [16 * KIB, 32 * KIB]
    assert host.held_bytes == region_bytes + 64 * KIB
    pair.right.stream.close()
    assert host.memories == {}


def test_a_window_does_not_grow_without_a_reader() -> None:
    pair = Pair(is_settled=True)
    for _ in range(100):
        pair.left.send(bytes(16 * KIB), may_zero_copy=True)
        pair.run()
    assert pair.right.stream.receive_ring.readable_bytes == 8 * KIB
    assert pair.right.stream.stats.ring_grown == 0


def test_a_window_does_not_grow_for_a_reader_slower_than_the_peer() -> None:
    """Something is always left to read, so the window is not what it waits for."""
    pair = Pair(is_settled=True)
    for _ in range(200):
        pair.left.send(bytes(16 * KIB), may_zero_copy=True)
        pair.run()
        pair.right.read(4 * KIB)
        pair.run()
    assert pair.right.stream.stats.bytes_copied_out > 20 * 8 * KIB
    assert pair.right.stream.stats.ring_grown == 0


def test_small_messages_do_not_grow_a_window() -> None:
    pair = Pair(is_settled=True)
    for _ in range(500):
        pair.left.send(bytes(100))
        pair.run()
        pair.right.read()
        pair.run()
    assert pair.right.stream.stats.ring_grown == 0


def test_a_window_that_was_full_once_does_not_grow_for_small_messages() -> None:
    """Its first half is full before the second is published: too early to tell."""
    pair = Pair()
    pair.left.send(bytes(4 * KIB))
    pair.left.post()
    pair.left.deliver()
    pair.right.read()
    for _ in range(200):
        pair.left.send(bytes(100))
        pair.run()
        pair.right.read()
        pair.run()
    assert pair.right.stream.stats.ring_grown == 0


def test_a_fixed_window_does_not_grow() -> None:
    pair = Pair(FIXED, FIXED, is_settled=True)
    exchange(pair, 1_000_000)
    assert pair.right.stream.stats.ring_grown == 0


def test_a_left_window_goes_back_when_its_last_piece_was_filled_and_read() -> None:
    """Half of 16 KiB is published anew, and not filled, when the window doubles to 32."""
    pair = Pair(is_settled=True)
    host, stats = pair.right.host, pair.right.stream.stats
    exchange(pair, 8 * KIB)
    assert stats.ring_grown == 1
    fill(pair, 8 * KIB)
    pair.right.read()
    pair.run()
    [second] = (memory for memory in host.memories.values() if memory.view.nbytes == 16 * KIB)
    fill(pair, 16 * KIB)
    pair.right.read(8 * KIB)
    pair.run()
    pair.right.read(8 * KIB)
    pair.run()
    assert stats.ring_grown == 2
    fill(pair, 8 * KIB)
    pair.right.read(8 * KIB - 1)
    assert host.released == []
    pair.right.read(1)
    assert host.released == [second]
    fill(pair, 32 * KIB)
    assert pair.right.stream.receive_ring.readable_bytes == 32 * KIB


def test_without_memory_a_window_stays_as_it_is() -> None:
    pair = Pair(is_settled=True)
    pair.right.host.limit_bytes = pair.right.host.held_bytes
    exchange(pair, 100_000)
    stats = pair.right.stream.stats
    assert stats.ring_grown == 0
    # Asked again after twice the window at the earliest: memory may be free again.
    assert 1 <= stats.ring_growth_failed <= 100_000 // (16 * KIB)
    assert stats.bytes_received == 100_000


# -- hostile words


@pytest.mark.parametrize(
    ("imm_data", "message"),
    [
        (0, "message of 0 bytes, published are 8192"),
        (8193, "message of 8193 bytes, published are 8192"),
        ((1 << 29) - 1, "published are 8192"),
        (1 << 29, "operation 1, which is reserved"),
        (2 << 29, "operation 2"),
        (3 << 29, "operation 3"),
        (5 << 29, "operation 5"),
        (emit_imm_data(Op.CONTROL, 3), "control message 3"),
        (emit_imm_data(Op.CREDIT, 383), "leaves 383 credits"),
        (emit_imm_data(Op.CREDIT, 385), "leaves 385 credits"),
        (emit_imm_data(Op.CREDIT, 384 | 1 << 28), "announced entry 2 is empty"),
        (emit_imm_data(Op.IOMAP, 0), "update of iomap slot 0 of 0"),
        pytest.param(1 << 32, "not in 0 to", marks=pytest.mark.reference),
        pytest.param(-1, "not in 0 to", marks=pytest.mark.reference),
    ],
)
def test_words_that_cannot_be_are_refused(imm_data: int, message: str) -> None:
    pair = Pair(is_settled=True)
    with pytest.raises(RemoteProtocolError, match=message):
        pair.right.stream.receive_data(imm_data)


def test_a_message_over_memory_that_does_not_continue_is_refused() -> None:
    """The last bytes of the ring and its first ones are no neighbours."""
    pair = Pair(FIXED, StreamSettings(is_receive_fixed=True, receive_bytes=8 * KIB))
    pair.run()
    fill(pair, 4 * KIB)
    pair.right.read()
    pair.run()
    assert entry_spans(pair.right) == [(4 * KIB, 4 * KIB), (0, 4 * KIB)]
    with pytest.raises(RemoteProtocolError, match="1 bytes beyond its piece"):
        pair.right.stream.receive_data(4 * KIB + 1)


def test_memory_under_another_key_does_not_continue() -> None:
    """Addresses that meet are not enough."""
    pair = Pair(is_settled=True)
    right = pair.right.stream
    receive_ring = ConnectData.parse(right.connect_data).data_buffer
    foreign = Memory(memoryview(bytearray(1 << 16)), receive_ring.address, receive_ring.key + 1)
    assert right.receive_ring.expect(foreign, 1 << 16) == 8 * KIB  # just behind the window
    pair.right.post()
    with pytest.raises(RemoteProtocolError, match="1 bytes beyond its piece"):
        right.receive_data(8 * KIB + 1)


def write_entry(pair: Pair, slot: int, entry: Sge) -> None:
    """Write into the table of the right side as a hostile peer may."""
    table = ConnectData.parse(pair.right.stream.connect_data).target_sgl
    start = slot * 16
    pair.right.host.memories[table.key].view[start : start + 16] = entry.emit("little")


def test_an_entry_that_wraps_around_is_refused() -> None:
    pair = Pair(is_settled=True)
    write_entry(pair, 2, Sge((1 << 64) - 100, 1, 101))
    with pytest.raises(RemoteProtocolError, match="entry 2: 101 bytes"):
        pair.right.stream.receive_data(emit_imm_data(Op.CREDIT, 384 | 1 << 28))


def test_more_entries_than_the_table_holds_are_refused() -> None:
    """Two spaces wait already; three entries more fill the table of four and go beyond."""
    pair = Pair(FIXED, StreamSettings(table_entries=4), is_settled=True)
    imm_data = emit_imm_data(Op.CREDIT, 384 | 1 << 28)
    for number in range(3):
        write_entry(pair, (2 + number) % 4, Sge(number << 20, 99, 10))
        pair.right.stream.receive_data(imm_data)
    write_entry(pair, 1, Sge(1 << 40, 99, 10))
    with pytest.raises(RemoteProtocolError, match="entry 5 of a table that holds 4"):
        pair.right.stream.receive_data(imm_data)


def test_entries_under_different_keys_are_two_spaces() -> None:
    pair = Pair(is_settled=True)
    for slot, entry in ((2, Sge(1 << 40, 8, 100)), (3, Sge((1 << 40) + 100, 9, 100))):
        write_entry(pair, slot, entry)
        pair.right.stream.receive_data(emit_imm_data(Op.CREDIT, 384 | 1 << 28))
    assert pair.right.send(bytes(20_000), may_zero_copy=True) == 8 * KIB + 200
    spans = [(post.rkey, len(post.data)) for post in pair.right.post()]
    assert spans[1:] == [(8, 100), (9, 100)]


@pytest.mark.rule("rsocket-credit-check-sgl", "rsocket-credit-zero")
def test_an_entry_of_an_original_may_be_seen_a_word_early() -> None:
    """Its update without an entry is handled when the entry of the next one has landed."""
    pair = Pair(ORIGINAL, StreamSettings(), is_settled=True)
    imm_data = emit_imm_data(Op.CREDIT, 384)
    write_entry(pair, 2, Sge(0x5000, 9, 100))
    pair.right.stream.receive_data(imm_data)
    assert pair.right.stream.stats.entries_received == 2
    pair.right.stream.receive_data(imm_data)
    assert pair.right.stream.stats.entries_received == 2
    write_entry(pair, 3, Sge(0x6000, 9, 100))
    pair.right.stream.receive_data(imm_data)
    assert pair.right.stream.stats.entries_received == 3


@pytest.mark.rule("rsocket-sgl-in-use")
def test_a_taken_entry_is_zeroed() -> None:
    pair = Pair(is_settled=True)
    table = ConnectData.parse(pair.right.stream.connect_data).target_sgl
    assert pair.left.stream.stats.entries_sent == pair.right.stream.stats.entries_received == 1
    assert bytes(pair.right.host.memories[table.key].view[:256]) == bytes(256)
