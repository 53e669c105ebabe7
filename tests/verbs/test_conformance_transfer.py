"""Conformance: what reliable queue pairs carry, over every provider."""

import errno

import pytest

from tests.verbs.conformance import QKEY, REGION_BYTES, Pair, World, refuses, shows
from urds.verbs import (
    QP,
    SGE,
    QPAttr,
    QPCap,
    RecvWR,
    SendFlag,
    SendWR,
    VerbsPostError,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.numbers import MESSAGE_BYTES_MAX

SIZES = (0, 1, 255, 4096, 4097, 40_001)


def pattern(count: int, seed: int = 0) -> bytes:
    return bytes((place * 7 + seed) & 255 for place in range(count))


# -- send


@shows(WROpcode.SEND, WCStatus.SUCCESS)
def test_a_message_of_any_size_arrives(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    for wr_id, size in enumerate(SIZES):
        left.mr.write(pattern(size, wr_id))
        right.receive(size, wr_id=wr_id)
        left.post(length=size, wr_id=wr_id)
        wc = right.received()[0]
        assert (wc.wr_id, wc.status, wc.opcode) == (wr_id, WCStatus.SUCCESS, WCOpcode.RECV)
        assert (wc.byte_len, wc.qp_num) == (size, right.qp.qp_num)
        assert right.mr.read(size) == pattern(size, wr_id)
        sent = left.sent()[0]
        assert (sent.wr_id, sent.opcode, sent.qp_num) == (wr_id, WCOpcode.SEND, left.qp.qp_num)


def test_messages_go_both_ways_at_once_and_in_order(world: World) -> None:
    pair = world.pair()
    for side in (pair.left, pair.right):
        side.receive(100, offset=20_000, count=60)
    for number in range(60):
        for side in (pair.left, pair.right):
            side.mr.write(pattern(100, number), offset=number * 100)
            side.post(length=100, offset=number * 100, wr_id=number)
    for side in (pair.left, pair.right):
        assert [wc.wr_id for wc in side.received(60)] == list(range(60))
        assert [wc.wr_id for wc in side.sent(60)] == list(range(60))
        assert side.mr.read(6000, 20_000) == b"".join(pattern(100, one) for one in range(60))


def test_a_message_is_gathered_and_scattered(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    left.mr.write(pattern(10_000))
    right.qp.post_recv(RecvWR(0, [right.mr.sge(0, 1), right.mr.sge(100, 4998), right.mr.sge(9000)]))
    left.post(sg=[left.mr.sge(0, 4000), left.mr.sge(0, 0), left.mr.sge(4000, 6000)])
    assert right.received()[0].byte_len == 10_000
    got = right.mr.read(1) + right.mr.read(4998, 100) + right.mr.read(5001, 9000)
    assert got == pattern(10_000)
    assert left.ended() == [WCStatus.SUCCESS]


@shows(WROpcode.SEND_WITH_IMM)
def test_a_message_with_immediate_data(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    if world.lacks("send_with_imm"):
        refuses(lambda: left.post(WROpcode.SEND_WITH_IMM, imm_data=1))
        return
    for size, number in ((0, 0), (5, 0xFFFF_FFFF), (9000, 0x0102_0304)):
        right.receive(size)
        left.post(WROpcode.SEND_WITH_IMM, size, imm_data=number)
        wc = right.received()[0]
        assert (wc.imm_data, wc.byte_len) == (number, size)
        assert wc.wc_flags == WCFlag.WITH_IMM
        assert wc.opcode is WCOpcode.RECV
        assert left.sent()[0].opcode is WCOpcode.SEND


# -- one-sided


@shows(WROpcode.RDMA_WRITE)
def test_a_write_of_any_size_lands_where_it_should_and_nowhere_else(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    left.mr.write(pattern(REGION_BYTES))
    for wr_id, size in enumerate(SIZES):
        right.mr.write(bytes(REGION_BYTES))
        left.post(WROpcode.RDMA_WRITE, size, to=right.mr, at=1000, wr_id=wr_id)
        wc = left.sent()[0]
        assert (wc.status, wc.opcode) == (WCStatus.SUCCESS, WCOpcode.RDMA_WRITE)
        rest = REGION_BYTES - 1000 - size
        assert right.mr.read() == bytes(1000) + pattern(size) + bytes(rest)
    assert right.rcq.poll(1) == (0, [])


@shows(WROpcode.RDMA_WRITE_WITH_IMM)
def test_a_write_with_immediate_data_takes_a_receive_and_not_its_memory(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    if world.lacks("rdma_with_imm"):
        refuses(lambda: left.post(WROpcode.RDMA_WRITE_WITH_IMM, to=right.mr))
        return
    for size in SIZES:
        left.mr.write(pattern(size))
        right.mr.write(bytes(REGION_BYTES))
        right.receive(64)
        left.post(WROpcode.RDMA_WRITE_WITH_IMM, size, to=right.mr, at=64, imm_data=size + 1)
        wc = right.received()[0]
        assert (wc.opcode, wc.byte_len) == (WCOpcode.RECV_RDMA_WITH_IMM, size)
        assert (wc.imm_data, wc.wc_flags) == (size + 1, WCFlag.WITH_IMM)
        assert right.mr.read(64 + size) == bytes(64) + pattern(size)
        assert left.sent()[0].opcode is WCOpcode.RDMA_WRITE


@shows(WROpcode.RDMA_READ)
def test_a_read_of_any_size_fetches(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    right.mr.write(pattern(REGION_BYTES))
    for wr_id, size in enumerate(SIZES):
        left.mr.write(bytes(REGION_BYTES))
        left.post(WROpcode.RDMA_READ, size, offset=10, to=right.mr, at=500, wr_id=wr_id)
        wc = left.sent()[0]
        assert (wc.status, wc.opcode) == (WCStatus.SUCCESS, WCOpcode.RDMA_READ)
        assert wc.byte_len == size
        rest = REGION_BYTES - 10 - size
        assert left.mr.read() == bytes(10) + right.mr.read(size, 500) + bytes(rest)


def test_more_reads_than_may_be_outstanding_all_come(world: World) -> None:
    pair = world.pair(connected=False).connect(responder_resources=2, initiator_depth=2)
    left, right = pair.left, pair.right
    right.mr.write(pattern(4000))
    for index in range(40):
        where = index * 100
        left.post(WROpcode.RDMA_READ, 100, offset=where, to=right.mr, at=where, wr_id=index)
    assert [wc.wr_id for wc in left.sent(40)] == list(range(40))
    assert left.mr.read(4000) == pattern(4000)


def test_reads_that_were_not_agreed_are_refused(world: World) -> None:
    pair = world.pair(connected=False).connect(responder_resources=0, initiator_depth=0)
    with pytest.raises(VerbsPostError, match="max_rd_atomic 0"):
        pair.left.post(WROpcode.RDMA_READ, to=pair.right.mr)
    pair.right.receive(8)
    pair.left.post()
    assert pair.left.ended() == [WCStatus.SUCCESS]


def test_no_bytes_need_no_key(world: World) -> None:
    pair = world.pair()
    for opcode in (WROpcode.RDMA_WRITE, WROpcode.RDMA_READ):
        pair.left.post(opcode, 0, rkey=0xDEAD_BEEF, remote_addr=(1 << 64) - 1)
        assert pair.left.ended() == [WCStatus.SUCCESS]


# -- how requests are carried out


def test_inline_data_are_copied_when_they_are_posted(world: World) -> None:
    """They wait behind a fence while their memory changes."""
    pair = world.pair()
    left, right = pair.left, pair.right
    fenced = SendFlag.INLINE | SendFlag.SIGNALED | SendFlag.FENCE
    right.receive(200)
    left.mr.write(pattern(200))
    with left.context.adapter.lock:
        left.post(WROpcode.RDMA_READ, 8, offset=1000, to=right.mr)
        left.post(length=200, flags=fenced)
        left.post(WROpcode.RDMA_WRITE, 100, to=right.mr, at=300, flags=fenced)
        left.mr.write(bytes(200))
    assert left.ended(3) == [WCStatus.SUCCESS] * 3
    right.received()
    assert right.mr.read(200) == pattern(200)
    assert right.mr.read(100, 300) == pattern(100)


def test_inline_data_have_a_limit_and_reads_are_never_inline(world: World) -> None:
    pair = world.pair(cap=QPCap(max_inline_data=16))
    inline = SendFlag.INLINE | SendFlag.SIGNALED
    with pytest.raises(VerbsPostError, match="17 bytes inline, limit 16"):
        pair.left.post(length=17, flags=inline)
    with pytest.raises(VerbsPostError, match="RDMA_READ cannot be inline"):
        pair.left.post(WROpcode.RDMA_READ, 8, to=pair.right.mr, flags=inline)


def test_a_fence_waits_for_the_reads_before_it(world: World) -> None:
    """Without the fence the bytes that go back would be those from before the read."""
    pair = world.pair()
    left, right = pair.left, pair.right
    right.mr.write(pattern(30_000))
    for index in range(4):
        left.post(WROpcode.RDMA_READ, 30_000, to=right.mr, wr_id=index)
    fenced = SendFlag.FENCE | SendFlag.SIGNALED
    left.post(WROpcode.RDMA_WRITE, 30_000, to=right.mr, at=30_000, flags=fenced, wr_id=4)
    assert [wc.wr_id for wc in left.sent(5)] == list(range(5))
    assert right.mr.read(30_000, 30_000) == pattern(30_000)


def test_only_signalled_requests_complete(world: World) -> None:
    pair = world.pair()
    pair.right.receive(8, count=6)
    for number in range(6):
        flags = SendFlag.SIGNALED if number % 3 == 2 else SendFlag(0)
        pair.left.post(flags=flags, wr_id=number)
    assert [wc.wr_id for wc in pair.left.sent(2)] == [2, 5]
    pair.right.received(6)
    assert pair.left.scq.poll(10) == (0, [])


def test_a_queue_pair_may_signal_all(world: World) -> None:
    pair = world.pair(sq_sig_all=True)
    pair.right.receive(8, count=3)
    for number in range(3):
        pair.left.post(flags=SendFlag(0), wr_id=number)
    assert [wc.wr_id for wc in pair.left.sent(3)] == [0, 1, 2]


def test_unsignalled_requests_make_room_when_they_are_done(world: World) -> None:
    pair = world.pair(cap=QPCap(max_send_wr=4, max_recv_wr=32))
    pair.right.receive(8, count=20)
    for number in range(20):
        flags = SendFlag.SIGNALED if number % 4 == 3 else SendFlag(0)
        pair.left.post(flags=flags, wr_id=number)
        if number % 4 == 3:
            assert pair.left.sent()[0].wr_id == number


# -- limits of queues and lists


def test_a_full_send_queue_refuses_and_goes_on(world: World) -> None:
    pair = world.pair(cap=QPCap(max_send_wr=3, max_recv_wr=8))
    left, right = pair.left, pair.right
    for number in range(3):  # there is no receive: they stay
        left.post(wr_id=number)
    with pytest.raises(VerbsPostError, match="send queue is full") as caught:
        left.post()
    assert caught.value.errno == errno.ENOMEM
    right.receive(8, count=4)
    assert [wc.wr_id for wc in left.sent(3)] == [0, 1, 2]
    left.post(wr_id=3)
    assert left.sent()[0].wr_id == 3


def test_a_full_receive_queue_refuses(world: World) -> None:
    pair = world.pair(cap=QPCap(max_recv_wr=3))
    pair.right.receive(8, count=3)
    with pytest.raises(VerbsPostError) as caught:
        pair.right.receive(8)
    assert caught.value.errno == errno.ENOMEM
    pair.left.post()
    assert pair.right.received()[0].wr_id == 0
    pair.right.receive(8)


def test_lists_of_pieces_have_a_limit(world: World) -> None:
    pair = world.pair(cap=QPCap(max_send_sge=2, max_recv_sge=1))
    left = pair.left
    piece = left.mr.sge(0, 4)
    refused = (
        lambda: left.post(sg=[piece] * 3),
        lambda: left.qp.post_recv(RecvWR(0, [piece] * 2)),
        lambda: left.post(sg=[SGE(left.mr.buf, MESSAGE_BYTES_MAX, left.mr.lkey), piece]),
        lambda: left.post(sg=[SGE(left.mr.buf, -1, left.mr.lkey)]),
    )
    for post in refused:
        with pytest.raises(VerbsPostError) as caught:
            post()
        assert caught.value.errno == errno.EINVAL
    pair.right.receive(8)
    left.post(sg=[piece] * 2)
    assert left.ended() == [WCStatus.SUCCESS]


def test_a_list_stops_at_the_request_that_is_refused(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    right.receive(8, count=4)
    good, bad = left.mr.sge(0, 8), left.mr.sge(0, 8)
    requests = [SendWR(1, sg=[good]), SendWR(2, sg=[good]), SendWR(3, sg=[bad] * 9)]
    with pytest.raises(VerbsPostError) as caught:
        left.qp.post_send([*requests, SendWR(4, sg=[good])])
    assert caught.value.bad_wr == 2
    assert [wc.wr_id for wc in left.sent(2)] == [1, 2]
    right.received(2)
    assert right.rcq.poll(1) == (0, [])


def test_an_unknown_opcode_is_refused(world: World) -> None:
    pair = world.pair()
    with pytest.raises(VerbsPostError) as caught:
        pair.left.qp.post_send(SendWR(0, 99))  # type: ignore[arg-type]  # what a program may do
    assert caught.value.errno == errno.EINVAL


# -- several queue pairs


def test_queue_pairs_of_one_device_talk_to_each_other(world: World) -> None:
    context = world.context()
    left, right = world.side(), world.side()
    assert left.context is not context
    near = Pair(left, right).connect()
    near.right.receive(8)
    near.left.post()
    near.right.received()
    own = QP(left.pd, left.init_attr, QPAttr(qp_access_flags=left.attr.qp_access_flags, qkey=QKEY))
    assert own.qp_num != left.qp.qp_num


def test_many_queue_pairs_share_queues_and_keep_their_messages_apart(world: World) -> None:
    """All queue pairs of a side complete into its two queues; the number tells them apart."""
    pair = world.pair()
    left, right = pair.left, pair.right
    pairs = [(left.qp, right.qp)]
    for _ in range(7):
        left.qp = QP(left.pd, left.init_attr, left.attr)
        right.qp = QP(right.pd, right.init_attr, right.attr)
        left.told.clear()
        right.told.clear()
        pair.connect()
        pairs.append((left.qp, right.qp))
    for index, (near, far) in enumerate(pairs):
        for turn in range(3):
            slot = (index * 3 + turn) * 16
            far.post_recv(RecvWR(slot, [right.mr.sge(slot, 16)]))
            left.mr.write(pattern(16, slot), offset=slot)
            left.post(length=16, offset=slot, wr_id=slot, qp=near)
    numbers = {far.qp_num: index for index, (_, far) in enumerate(pairs)}
    for wc in right.received(24):
        assert wc.wr_id // 48 == numbers[wc.qp_num]
        assert right.mr.read(16, wc.wr_id) == pattern(16, wc.wr_id)
    assert set(left.ended(24)) == {WCStatus.SUCCESS}
