"""Credits and slots of the stream core: where data stop, what lets them go on, and wrapping."""

import pytest

from tests.rsocket.stream.stream_pair import Pair, Side
from tests.support.native_stream import NativeCore
from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.records import PostKind, StreamSettings
from urds.rsocket.wire.stream import Op, emit_imm_data

ORIGINAL = StreamSettings(is_urds=False)
SMALL = StreamSettings(receive_queue=16, no_delay=True)


def send_ones(side: Side, count: int) -> int:
    """Send bytes one by one, completing each, until one makes no write; return the writes."""
    for done in range(count):
        side.send(b"1")
        side.post()
        if side.posted_kinds() != [PostKind.DATA]:
            return done
        side.deliver()
        side.complete()
    return count


# -- where data stop


@pytest.mark.rule("rsocket-credit-count", "rsocket-credits-from-queue")
@pytest.mark.parametrize("receiver", [StreamSettings(), ORIGINAL], ids=["own", "original"])
@pytest.mark.parametrize("sender", [StreamSettings(), ORIGINAL], ids=["by_own", "by_original"])
def test_a_sender_stops_at_the_limit_and_goes_on_after_half(
    sender: StreamSettings, receiver: StreamSettings
) -> None:
    """384 messages of one byte without a reader; 191 read free nothing, 192 free 192."""
    pair = Pair(sender, receiver, is_settled=True)
    left, right = pair.left, pair.right
    assert send_ones(left, 500) == 384
    right.read(191)
    assert right.post() == []
    right.read(1)
    [update] = right.post()
    assert (update.kind, update.data) == (PostKind.CREDIT, b"")
    assert update.imm_data == emit_imm_data(Op.CREDIT, 192 + 384)
    right.deliver()
    right.complete()
    if sender.is_urds:  # the byte that found no credit has waited, and goes now
        left.post()
        left.deliver()
        left.complete()
        assert send_ones(left, 500) == 191
    else:
        assert send_ones(left, 500) == 192


def test_waiting_bytes_go_as_one_message_when_a_credit_comes() -> None:
    pair = Pair(StreamSettings(), SMALL, is_settled=True)
    left, right = pair.left, pair.right
    assert send_ones(left, 16) == 16
    for _ in range(100):
        assert left.send(b"2") == 1
    left.post()
    assert left.posted == []
    assert left.stream.stats.blocked_on_credit == 1
    right.read(8)
    pair.run()
    assert [len(post.data) for post in left.data_posts()][-1] == 100
    assert right.read() == b"1" * 8 + b"2" * 100


@pytest.mark.rule("rsocket-credit-return")
def test_a_message_counts_as_read_when_all_of_it_is() -> None:
    pair = Pair(SMALL, SMALL, is_settled=True)
    for _ in range(8):
        pair.left.send(b"ab")
        pair.run()
    pair.right.read(15)
    assert pair.right.post() == []
    pair.right.read(1)
    assert [post.imm_data for post in pair.right.post()] == [emit_imm_data(Op.CREDIT, 8 + 16)]


def test_a_message_without_a_credit_is_refused() -> None:
    pair = Pair(SMALL, SMALL, is_settled=True)
    for _ in range(16):
        pair.right.stream.receive_data(1)
    with pytest.raises(RemoteProtocolError, match="message 16 without a credit"):
        pair.right.stream.receive_data(1)


# -- the limit


def wrapped(pair: Pair, sequence: int) -> None:
    """Let both sides have exchanged `sequence` messages, all read.

    Reaches into the cores: 65,536 real messages take longer than a unit test may.
    """
    for side in (pair.left, pair.right):
        if isinstance(side.stream, NativeCore):
            side.stream.begin_at(sequence)
            continue
        sending, receive_ring = side.stream.sending, side.stream.receive_ring
        sending._sequence = sequence
        updates = receive_ring._updates
        updates.messages_read = receive_ring._messages_received = sequence
        updates.limit = sequence + updates._queue
        updates.threshold = sequence + updates._half


@pytest.mark.rule("rsocket-credit-more")
@pytest.mark.parametrize("receiver", [SMALL, ORIGINAL], ids=["own", "original"])
@pytest.mark.parametrize("sender", [SMALL, ORIGINAL], ids=["by_own", "by_original"])
def test_sequences_wrap_at_65536(sender: StreamSettings, receiver: StreamSettings) -> None:
    """An original adds two numbers of 16 bits, so its limit may be above them; ours tell 16."""
    pair = Pair(sender, receiver, is_settled=True)
    start, queue = 65536 - 300, receiver.receive_queue
    wrapped(pair, start)
    for number in range(600):
        assert pair.left.send(b"%d" % (number % 10)) == 1
        pair.run()
        assert pair.right.read() == b"%d" % (number % 10)
    updates = [post.imm_data for post in pair.right.log if post.kind is PostKind.CREDIT]
    limits = [imm_data & 0x0FFF_FFFF for imm_data in updates[1:]]
    reads = range(start + queue // 2, start + 600, queue // 2)
    if receiver.is_urds:
        assert limits == [(read + queue) % 65536 for read in reads]
    else:
        assert limits == [read % 65536 + queue for read in reads] == [65812, 468, 660]


@pytest.mark.rule("rsocket-credit-more")
def test_a_limit_is_judged_around_the_wrap() -> None:
    """At message 65,530 with 16 receives: 6 less is all used up, 10 more is all free."""
    pair = Pair(SMALL, SMALL, is_settled=True)
    wrapped(pair, 65530)
    left = pair.left.stream
    for _ in range(16):
        pair.left.send(b"x")
        pair.left.post()
        pair.left.deliver()
        pair.left.complete()
    assert left.sending.credits == 0
    left.receive_data(emit_imm_data(Op.CREDIT, (65546 + 5) % 65536))
    assert left.sending.credits == 5
    with pytest.raises(RemoteProtocolError, match="limit 14 at message 10 leaves 4 credits"):
        left.receive_data(emit_imm_data(Op.CREDIT, (65546 + 4) % 65536))
    left.receive_data(emit_imm_data(Op.CREDIT, (65546 + 16) % 65536))
    with pytest.raises(RemoteProtocolError, match="leaves 17 credits, not 16 to 16"):
        left.receive_data(emit_imm_data(Op.CREDIT, (65546 + 17) % 65536))


def test_the_largest_queue_uses_the_whole_circle() -> None:
    """65,534 receives: a limit just behind the sequence means almost all of them."""
    pair = Pair(StreamSettings(), StreamSettings(receive_queue=0xFFFE), is_settled=True)
    left = pair.left.stream
    assert left.sending.credits == 0xFFFE
    pair.left.send(b"x")
    pair.run()
    left.receive_data(emit_imm_data(Op.CREDIT, 0xFFFE))
    assert left.sending.credits == 0xFFFD
    left.receive_data(emit_imm_data(Op.CREDIT, 0xFFFF))
    assert left.sending.credits == 0xFFFE


def test_bit_16_of_an_originals_limit_means_nothing() -> None:
    pair = Pair(StreamSettings(), ORIGINAL, is_settled=True)
    pair.left.stream.receive_data(emit_imm_data(Op.CREDIT, 0x1_0000 | 384))
    assert pair.left.stream.sending.credits == 384


def test_unknown_bits_of_our_own_update_are_refused() -> None:
    pair = Pair(is_settled=True)
    with pytest.raises(RemoteProtocolError, match="argument 0x10180"):
        pair.left.stream.receive_data(emit_imm_data(Op.CREDIT, 0x1_0000 | 384))


# -- slots


@pytest.mark.rule("rsocket-control-reserve")
def test_a_fifth_control_message_waits() -> None:
    """Four updates are under way; the fifth leaves when the first of them completes."""
    settings = StreamSettings(receive_queue=16, no_delay=True)
    pair = Pair(settings, settings, is_settled=True)
    left, right = pair.left, pair.right
    updates = 0
    for _ in range(6):
        assert send_ones(left, 8) == 8
        right.read(8)
        updates += len(right.post())
        right.deliver()
        if updates == 4:
            break
    assert (updates, len(right.landed)) == (4, 4)
    send_ones(left, 8)
    right.read(8)
    assert right.post() == []
    right.complete(1)
    assert [post.kind for post in right.post()] == [PostKind.CREDIT]
    right.read()
    assert right.post() == []


@pytest.mark.rule("rsocket-control-reserve")
def test_data_leave_the_control_slots_alone() -> None:
    """Of 20 slots data take 16; a credit update still goes, and a completion lets data go on."""
    left_settings = StreamSettings(send_queue=20, chunk_max_bytes=1024)
    pair = Pair(left_settings, StreamSettings(is_receive_fixed=True), is_settled=True)
    left, right = pair.left, pair.right
    assert left.send(bytes(1 << 16), may_zero_copy=True) == 16 * 1024
    assert left.send(bytes(1 << 16), may_zero_copy=True) == 0
    assert left.stream.stats.blocked_on_slots == 1
    right.send(bytes(6000))
    right.post()
    right.deliver()
    left.read()
    assert [post.kind for post in left.post()] == [PostKind.CREDIT] + 16 * [PostKind.DATA]
    left.deliver()
    left.complete(2)
    assert left.send(bytes(1 << 16), may_zero_copy=True) == 1024


@pytest.mark.rule("rsocket-control-reserve")
@pytest.mark.parametrize("settings", [StreamSettings(), ORIGINAL], ids=["own", "original"])
def test_two_full_directions_come_loose(settings: StreamSettings) -> None:
    """Two senders and no reader; then both read, and every byte arrives."""
    pair = Pair(settings, settings, is_settled=True)
    sides = (pair.left, pair.right)
    sent = {side: bytearray() for side in sides}
    for _ in range(200):
        for side in sides:
            data = bytes([len(sent[side]) % 251]) * 3000
            sent[side] += data[: side.send(data)]
        pair.run()
    assert all(side.send(b"x") == 0 for side in sides)
    assert not any(side.post() for side in sides)
    got = {side: bytearray() for side in sides}
    for _ in range(1000):
        for side in sides:
            got[side] += side.read(1000)
        pair.run()
    assert got[pair.left] == sent[pair.right] and got[pair.right] == sent[pair.left]


@pytest.mark.rule("rsocket-credit-more", "rsocket-credit-check-sgl")
def test_one_update_brings_credits_and_an_entry() -> None:
    """Half of the credits is used up by the same bytes that make an eighth free."""
    settings = StreamSettings(receive_queue=16, is_receive_fixed=True, receive_bytes=1 << 15)
    pair = Pair(StreamSettings(no_delay=True), settings, is_settled=True)
    for _ in range(8):
        pair.left.send(bytes(512))
        pair.run()
    pair.right.read()
    [update] = pair.right.post()
    assert update.imm_data == emit_imm_data(Op.CREDIT, 8 + 16 | 1 << 28)
    assert len(update.data) == 16
