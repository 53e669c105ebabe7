"""Mapped buffers of the stream core: slots, writes, order, stale entries, and no lost credit."""

import errno

import pytest

from tests.rsocket.stream.stream_pair import Pair, Side
from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.records import Memory, PostKind, Shut, StreamSettings
from urds.rsocket.wire.stream import ConnectData, IomapEntry, Op, emit_imm_data

KIB = 1024
FOUR = StreamSettings(iomap_slots=4)
FOUR_ORIGINAL = StreamSettings(iomap_slots=4, is_urds=False)


def mapped(pair: Pair, side: Side, byte_count: int, offset: int | None = None) -> Memory:
    memory = side.host.allocate(byte_count)
    assert side.stream.map_buffer(memory, offset) == (memory.address if offset is None else offset)
    pair.run()
    return memory


def write(side: Side, data: bytes, offset: int, *, may_zero_copy: bool = False) -> int:
    return side.stream.write_mapped(memoryview(data), offset, may_zero_copy=may_zero_copy)


@pytest.mark.rule("rsocket-iomap-table", "rsocket-iomap-index", "rsocket-iomap-entry")
@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("is_urds", [True, False], ids=["own", "original"])
def test_a_mapping_is_an_entry_in_the_peers_table(is_urds: bool, order: str) -> None:
    """Behind its entries, 24 bytes for a slot, in its byte order."""
    peer = StreamSettings(iomap_slots=4, is_urds=is_urds, byte_order=order)
    pair = Pair(FOUR, peer, is_settled=True)
    left = pair.left
    first, second = left.host.allocate(1000), left.host.allocate(10)
    left.stream.map_buffer(first, 5000)
    left.stream.map_buffer(second)
    posts = left.post()
    table = ConnectData.parse(pair.right.stream.connect_data).target_sgl
    start = table.address + 16 * table.length
    assert [post.kind for post in posts] == [PostKind.IOMAP] * 2
    assert [post.imm_data for post in posts] == [
        emit_imm_data(Op.IOMAP, 0),
        emit_imm_data(Op.IOMAP, 1),
    ]
    assert [post.address - start for post in posts] == [0, 24]
    assert {post.rkey for post in posts} == {table.key}
    assert [IomapEntry.parse(post.data, order) for post in posts] == [
        IomapEntry(5000, first.address, first.rkey, 1000),
        IomapEntry(second.address, second.address, second.rkey, 10),
    ]


@pytest.mark.rule("rsocket-iomap-direct", "rsocket-iomap-write")
def test_bytes_go_straight_into_the_peers_buffer() -> None:
    """No word, no credit, no message: the peer's software sees nothing of it."""
    pair = Pair(FOUR, FOUR, is_settled=True)
    memory = mapped(pair, pair.right, 100, offset=7000)
    before = pair.right.stream.stats.messages_received
    assert pair.right.stream.stats.iomap_sent == 1
    assert pair.left.stream.stats.iomap_received == 1
    assert pair.left.stream.iomap.is_mapped(7000) and pair.left.stream.iomap.is_mapped(7099)
    assert not pair.left.stream.iomap.is_mapped(6999) and not pair.left.stream.iomap.is_mapped(7100)
    assert write(pair.left, b"direct", 7010) == 6
    [post] = pair.left.post()
    assert (post.kind, post.imm_data) == (PostKind.DIRECT, None)
    assert (post.address, post.rkey) == (memory.address + 10, memory.rkey)
    pair.run()
    assert memory.view[10:16] == b"direct"
    assert pair.right.stream.stats.messages_received == before
    assert pair.left.stream.stats.bytes_mapped == 6


@pytest.mark.rule("rsocket-iomap-write")
def test_a_write_goes_on_in_the_next_mapping() -> None:
    """Two buffers, whose offsets meet; the end of the second is the end of the write."""
    pair = Pair(FOUR, FOUR, is_settled=True)
    high = mapped(pair, pair.right, 100, offset=1100)
    low = mapped(pair, pair.right, 100, offset=1000)
    data = bytes(range(200))
    assert write(pair.left, data, 1050) == 150
    assert [len(post.data) for post in pair.left.post()] == [50, 100]
    pair.run()
    assert bytes(low.view[50:]) + bytes(high.view) == data[:150]
    assert write(pair.left, data, 1200) == 0
    assert write(pair.left, data, 999) == 0


def test_long_writes_go_without_a_copy() -> None:
    pair = Pair(FOUR, FOUR, is_settled=True)
    mapped(pair, pair.right, 1 << 20, offset=0)
    data = bytearray(600 * KIB)
    stream = pair.left.stream
    assert stream.write_mapped(memoryview(data), 0, may_zero_copy=True) == 600 * KIB
    posts = pair.left.post()
    assert [len(post.data) for post in posts] == [200 * KIB] * 3
    assert all(post.is_zero_copy and post.data.obj is data for post in posts)
    assert (stream.sending.zero_copy_bytes, stream.stats.bytes_copied_in) == (600 * KIB, 0)
    pair.run()
    assert stream.sending.zero_copy_bytes == 0


def test_copied_writes_are_bounded_like_sends() -> None:
    pair = Pair(StreamSettings(send_bytes=10_000, iomap_slots=4), FOUR, is_settled=True)
    mapped(pair, pair.right, 20_000, offset=0)
    assert pair.left.stream.can_write_mapped
    assert write(pair.left, bytes(20_000), 0) == 10_000
    assert not pair.left.stream.can_write_mapped
    assert write(pair.left, bytes(20_000), 10_000) == 0
    pair.run()
    assert pair.left.stream.can_write_mapped


def test_writes_take_no_more_slots_than_there_are() -> None:
    settings = StreamSettings(send_queue=20, chunk_max_bytes=1, iomap_slots=4)
    pair = Pair(settings, FOUR, is_settled=True)
    mapped(pair, pair.right, 100, offset=0)
    assert write(pair.left, bytes(100), 0) == 16
    assert not pair.left.stream.can_write_mapped
    pair.left.post()
    pair.left.deliver()
    pair.left.complete(1)
    assert write(pair.left, bytes(84), 16) == 1


def test_writes_arrive_before_what_is_sent_later() -> None:
    """The send is the peer's notice that the bytes are there."""
    pair = Pair(FOUR, FOUR, is_settled=True)
    memory = mapped(pair, pair.right, 100, offset=0)
    for number in range(5):
        assert write(pair.left, bytes([number]) * 100, 0) == 100
        assert pair.left.send(b"look") == 4
        while pair.right.stream.receive_ring.readable_bytes < 4 * (number + 1):
            if not pair.left.posted:
                pair.left.complete()
                pair.left.post()
            pair.left.deliver(1)
        assert bytes(memory.view) == bytes([number]) * 100


def test_a_mapping_is_known_before_what_is_sent_later() -> None:
    """Its update waits for a credit, and so does the byte behind it, though it came first."""
    peer = StreamSettings(receive_queue=16, iomap_slots=4)
    pair = Pair(StreamSettings(no_delay=True), peer, is_settled=True)
    left, right = pair.left, pair.right
    for _ in range(16):
        left.send(b"1")
        pair.run()
    left.stream.map_buffer(left.host.allocate(100), 0)
    left.send(b"2")
    assert left.post() == []
    right.read()
    right.post()
    right.deliver()
    assert [post.kind for post in left.post()] == [PostKind.IOMAP, PostKind.DATA]
    left.deliver()
    assert right.stream.iomap.is_mapped(0) and right.read() == b"2"


def test_data_do_not_overtake_a_mapping_that_waits() -> None:
    """A credit has come, and the update has not been posted yet."""
    peer = StreamSettings(receive_queue=16, iomap_slots=4)
    pair = Pair(StreamSettings(no_delay=True), peer, is_settled=True)
    left, right = pair.left, pair.right
    for _ in range(16):
        left.send(b"1")
        pair.run()
    left.stream.map_buffer(left.host.allocate(100), 0)
    right.read()
    right.post()
    right.deliver()
    left.send(b"2")
    assert [post.kind for post in left.post()] == [PostKind.IOMAP, PostKind.DATA]


# -- slots


def test_no_more_buffers_are_mapped_than_the_peer_offers() -> None:
    pair = Pair(StreamSettings(), StreamSettings(iomap_slots=2), is_settled=True)
    buffers = [mapped(pair, pair.left, 10) for _ in range(2)]
    with pytest.raises(OSError, match="the peer offers 2") as caught:
        pair.left.stream.map_buffer(pair.left.host.allocate(10))
    assert caught.value.errno == errno.ENOMEM
    pair.left.stream.unmap(buffers[0])
    mapped(pair, pair.left, 10)


def test_a_slot_is_used_again_for_another_buffer() -> None:
    pair = Pair(FOUR, FOUR, is_settled=True)
    first = mapped(pair, pair.right, 10, offset=100)
    pair.right.stream.unmap(first)
    second = mapped(pair, pair.right, 10, offset=200)
    assert write(pair.left, b"x", 100) == 0
    assert write(pair.left, b"x", 200) == 1
    pair.run()
    assert second.view[0] == ord("x")


@pytest.mark.parametrize(
    ("byte_count", "offset"), [(1, -1), (2, (1 << 64) - 1), (0, 0)], ids=["low", "high", "empty"]
)
def test_a_mapping_out_of_range_is_refused(byte_count: int, offset: int) -> None:
    pair = Pair(FOUR, FOUR, is_settled=True)
    memory = Memory(memoryview(bytearray(byte_count)), 0x1000, 1)
    with pytest.raises(OSError) as caught:
        pair.left.stream.map_buffer(memory, offset)
    assert caught.value.errno == errno.EINVAL
    assert pair.left.post() == []


def test_no_slot_has_two_buffers() -> None:
    """Takes and returns slots in turns, and looks at the table the peer reads."""
    pair = Pair(FOUR, FOUR, is_settled=True)
    buffers = [mapped(pair, pair.right, 10, offset=number * 10) for number in range(4)]
    for number in (2, 0):
        pair.right.stream.unmap(buffers[number])
    mapped(pair, pair.right, 10, offset=100)
    pair.right.stream.unmap(buffers[3])
    for offset in (110, 120):
        mapped(pair, pair.right, 10, offset=offset)
    offsets = [offset for offset in range(0, 130, 10) if pair.left.stream.iomap.is_mapped(offset)]
    assert offsets == [10, 100, 110, 120]


def test_a_buffer_is_mapped_once() -> None:
    pair = Pair(FOUR, FOUR, is_settled=True)
    memory = mapped(pair, pair.left, 10)
    with pytest.raises(OSError, match="mapped already"):
        pair.left.stream.map_buffer(memory, 1)


def test_only_a_mapped_buffer_is_unmapped() -> None:
    pair = Pair(FOUR, FOUR, is_settled=True)
    memory = mapped(pair, pair.left, 10)
    pair.left.stream.unmap(memory)
    with pytest.raises(OSError) as caught:
        pair.left.stream.unmap(memory)
    assert caught.value.errno == errno.EINVAL


def test_nothing_is_mapped_without_a_connection() -> None:
    pair = Pair(FOUR, FOUR, is_settled=True)
    pair.left.stream.lifecycle.shut_down(Shut.RDWR)
    pair.run()
    with pytest.raises(OSError) as caught:
        pair.left.stream.map_buffer(pair.left.host.allocate(10))
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError) as caught:
        write(pair.left, b"x", 0)
    assert caught.value.errno == errno.EPIPE


# -- the end of a mapping


def test_a_peer_of_ours_is_told_that_a_mapping_ended() -> None:
    pair = Pair(FOUR, FOUR, is_settled=True)
    memory = mapped(pair, pair.right, 10, offset=0)
    pair.right.stream.unmap(memory)
    pair.run()
    assert not pair.left.stream.iomap.is_mapped(0)
    assert write(pair.left, b"x", 0) == 0


def test_an_original_is_not_told_and_writes_to_a_stale_entry() -> None:
    pair = Pair(FOUR_ORIGINAL, FOUR, is_settled=True)
    memory = mapped(pair, pair.right, 10, offset=0)
    pair.right.stream.unmap(memory)
    assert pair.right.post() == []
    assert write(pair.left, b"x", 0) == 1
    assert [post.rkey for post in pair.left.post()] == [memory.rkey]


def test_mapping_and_unmapping_without_a_credit_piles_up_nothing() -> None:
    """One update for a slot waits at most: the last word about it."""
    peer = StreamSettings(receive_queue=16, iomap_slots=2)
    pair = Pair(StreamSettings(no_delay=True), peer, is_settled=True)
    left = pair.left
    for _ in range(16):
        left.send(b"1")
        pair.run()
    memory = left.host.allocate(10)
    for offset in range(100):
        left.stream.map_buffer(memory, offset)
        left.stream.unmap(memory)
    left.stream.map_buffer(memory, 1000)
    assert left.post() == []
    pair.right.read()
    pair.run()
    assert [post.kind for post in left.log].count(PostKind.IOMAP) == 1
    assert pair.right.stream.iomap.is_mapped(1000)


def test_an_original_never_hears_of_a_mapping_that_ended_before_it_was_told() -> None:
    peer = StreamSettings(receive_queue=16, iomap_slots=2, is_urds=False)
    pair = Pair(StreamSettings(no_delay=True), peer, is_settled=True)
    for _ in range(16):
        pair.left.send(b"1")
        pair.run()
    memory = pair.left.host.allocate(10)
    pair.left.stream.map_buffer(memory, 0)
    pair.left.stream.unmap(memory)
    pair.right.read()
    pair.run()
    assert PostKind.IOMAP not in [post.kind for post in pair.left.log]


# -- credits


@pytest.mark.parametrize("is_urds", [True, False], ids=["by_own", "by_original"])
def test_mappings_cost_no_credit_for_ever(is_urds: bool) -> None:
    """100 mappings over 16 receives; then all 16 credits are there."""
    peer = StreamSettings(receive_queue=16, iomap_slots=2)
    pair = Pair(StreamSettings(is_urds=is_urds, no_delay=True), peer, is_settled=True)
    left = pair.left
    for _ in range(50):
        memory = mapped(pair, left, 10)
        left.stream.unmap(memory)
        pair.run()
    assert left.stream.stats.iomap_sent == (100 if is_urds else 50)
    for number in range(16 - left.stream.sending.credits, 16):
        assert left.send(b"1") == 1, number
        pair.run()
    assert left.stream.sending.credits == 0
    assert len(pair.right.read()) >= 16 - 7  # up to half less one may be owed
    pair.run()
    assert left.stream.sending.credits > 8


def test_mappings_of_ours_cost_an_original_nothing() -> None:
    """It would never give the credit back; but there must be one, so that it has a receive."""
    peer = StreamSettings(receive_queue=16, iomap_slots=2, is_urds=False)
    pair = Pair(StreamSettings(no_delay=True), peer, is_settled=True)
    left = pair.left
    for _ in range(50):
        memory = mapped(pair, left, 10)
        left.stream.unmap(memory)
    assert left.stream.sending.credits == 16
    for _ in range(16):
        left.send(b"1")
        pair.run()
    left.stream.map_buffer(memory)
    assert left.post() == []
    pair.right.read()
    pair.run()
    assert left.stream.sending.credits == 16


def test_two_originals_leak_a_credit_with_each_mapping() -> None:
    """As the original does: what ours must not, shown by the same means."""
    original = StreamSettings(receive_queue=16, iomap_slots=2, is_urds=False)
    pair = Pair(original, original, is_settled=True)
    for _ in range(16):
        memory = mapped(pair, pair.left, 10)
        pair.left.stream.unmap(memory)
    assert pair.left.stream.sending.credits == 0
    assert pair.left.send(b"x") == 0


# -- hostile entries


def entry_of(pair: Pair, slot: int, entry: IomapEntry) -> None:
    """Write into the iomap of the right side as a hostile peer may."""
    table = ConnectData.parse(pair.right.stream.connect_data).target_sgl
    start = table.length * 16 + slot * 24
    pair.right.host.memories[table.key].view[start : start + 24] = entry.emit("little")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (IomapEntry(0, (1 << 64) - 9, 1, 10), "buffer of iomap slot 3: 10 bytes"),
        (IomapEntry((1 << 64) - 9, 0, 1, 10), "offset of iomap slot 3: 10 bytes"),
    ],
)
def test_entries_that_cannot_be_are_refused(entry: IomapEntry, message: str) -> None:
    pair = Pair(FOUR, FOUR, is_settled=True)
    entry_of(pair, 3, entry)
    with pytest.raises(RemoteProtocolError, match=message):
        pair.right.stream.receive_data(emit_imm_data(Op.IOMAP, 3))


def test_a_slot_beyond_the_table_is_refused() -> None:
    pair = Pair(FOUR, FOUR, is_settled=True)
    with pytest.raises(RemoteProtocolError, match="slot 4 of 4"):
        pair.right.stream.receive_data(emit_imm_data(Op.IOMAP, 4))


def test_updates_without_a_credit_are_refused() -> None:
    """Their credits come back at once; 16 without a look at ours are what a peer may send."""
    pair = Pair(FOUR, StreamSettings(receive_queue=16, iomap_slots=4), is_settled=True)
    for _ in range(16):
        pair.right.stream.receive_data(emit_imm_data(Op.IOMAP, 0))
    with pytest.raises(RemoteProtocolError, match="message 16 without a credit"):
        pair.right.stream.receive_data(emit_imm_data(Op.IOMAP, 0))
