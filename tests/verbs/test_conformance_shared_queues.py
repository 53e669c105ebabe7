"""Conformance: shared receive queues, their limit, and the marks of receive buffers."""

import errno
from dataclasses import replace

import pytest

from tests.verbs.conformance import Pair, Side, World, shows
from urds.verbs import (
    QP,
    SRQ,
    AsyncEventType,
    QPState,
    QPType,
    RecvWR,
    SrqAttr,
    SRQAttrMask,
    VerbsArgumentError,
    VerbsPostError,
    VerbsTimeoutError,
    WCStatus,
)

MAX_WR, LIMIT = SRQAttrMask.MAX_WR, SRQAttrMask.LIMIT


def shared(side: Side) -> SRQ:
    assert side.srq is not None
    return side.srq


def two_senders(world: World) -> tuple[Side, Side, list[QP]]:
    """Return a sender, a receiver with a shared queue, and the sender's two queue pairs.

    The list ends with the receiver's first, which lives as long as it is referenced.
    """
    pair = world.pair(srq=32)
    left, right = pair.left, pair.right
    first, served = left.qp, right.qp
    left.qp = QP(left.pd, replace(left.init_attr), left.attr)
    right.qp = QP(right.pd, right.init_attr, right.attr)
    left.told.clear()
    right.told.clear()
    Pair(left, right).connect()
    return left, right, [first, left.qp, served]


def test_two_queue_pairs_take_from_one_queue_in_its_order(world: World) -> None:
    left, right, pairs = two_senders(world)
    right.receive(8, count=20)
    for number in range(20):
        left.mr.write(number.to_bytes(8, "big"), offset=8 * number)
        left.post(offset=8 * number, wr_id=number, qp=pairs[number % 2])
        assert right.received()[0].wr_id == number
    assert left.ended(20) == [WCStatus.SUCCESS] * 20
    taken = [int.from_bytes(right.mr.read(8, 8 * number), "big") for number in range(20)]
    assert taken == list(range(20))
    assert len(shared(right)) == 0


def test_a_queue_pair_with_a_shared_queue_has_none_of_its_own(world: World) -> None:
    side = world.side(srq=4)
    with pytest.raises(VerbsPostError, match="shared queue") as caught:
        side.qp.post_recv(RecvWR(0, [side.mr.sge(0, 8)]))
    assert caught.value.errno == errno.EINVAL


def test_a_message_waits_until_the_shared_queue_has_a_receive(world: World) -> None:
    left, right, pairs = two_senders(world)
    for number, qp in enumerate(pairs[:2]):
        left.post(wr_id=number, qp=qp)
    with pytest.raises(VerbsTimeoutError):
        left.scq.wait_for(1, 0.01)
    right.receive(8, count=2)
    assert {wc.wr_id for wc in left.sent(2)} == {0, 1}
    assert [wc.wr_id for wc in right.received(2)] == [0, 1]


def test_a_full_queue_and_long_lists_are_refused(world: World) -> None:
    side = world.side(srq=3)
    side.receive(8, count=3)
    with pytest.raises(VerbsPostError) as caught:
        side.receive(8)
    assert caught.value.errno == errno.ENOMEM
    shared(side).modify(SrqAttr(max_wr=4), MAX_WR)
    with pytest.raises(VerbsPostError) as caught:
        shared(side).post_recv(RecvWR(0, [side.mr.sge(0, 8)] * 3))
    assert caught.value.errno == errno.EINVAL
    side.receive(8)


@pytest.mark.parametrize("attr", [SrqAttr(0), SrqAttr(-1), SrqAttr(1 << 21), SrqAttr(4, 0)])
def test_capacities_that_cannot_be_are_refused(world: World, attr: SrqAttr) -> None:
    with pytest.raises(VerbsArgumentError):
        SRQ(world.side().pd, attr)


def test_a_queue_is_resized(world: World) -> None:
    side = world.side(srq=8)
    srq = shared(side)
    side.receive(8, count=5)
    for attr, mask in (
        (SrqAttr(4), MAX_WR),
        (SrqAttr(0), MAX_WR),
        (SrqAttr(8, srq_limit=9), LIMIT),
        (SrqAttr(20, srq_limit=21), MAX_WR | LIMIT),
        (SrqAttr(8), 4),
        (SrqAttr(8), 0),
    ):
        with pytest.raises(VerbsArgumentError):
            srq.modify(attr, mask)
        assert (srq.query().max_wr, len(srq)) == (8, 5)
    srq.modify(SrqAttr(5), MAX_WR)
    assert srq.query().max_wr == 5


@shows(AsyncEventType.SRQ_LIMIT_REACHED)
def test_the_limit_is_told_once_per_arming(world: World) -> None:
    pair = world.pair(srq=16)
    left, right = pair.left, pair.right
    srq = shared(right)
    right.receive(8, count=6)
    srq.modify(SrqAttr(srq_limit=4), LIMIT)
    assert srq.query().srq_limit == 4
    for _ in range(2):
        left.post()
        right.received()
        right.no_event()
    left.post()  # three are left
    assert right.event(AsyncEventType.SRQ_LIMIT_REACHED).element is srq
    assert srq.query().srq_limit == 0
    left.post()
    right.received(2)
    right.no_event()
    srq.modify(SrqAttr(srq_limit=3), LIMIT)  # below it already
    right.event(AsyncEventType.SRQ_LIMIT_REACHED)
    assert left.ended(4) == [WCStatus.SUCCESS] * 4


@shows(AsyncEventType.QP_LAST_WQE_REACHED)
def test_a_failed_queue_pair_leaves_the_shared_receives_to_the_others(world: World) -> None:
    left, right, pairs = two_senders(world)
    right.receive(8, count=3)
    right.modify(QPState.ERR)  # the second one
    assert right.event(AsyncEventType.QP_LAST_WQE_REACHED).element is right.qp
    assert right.rcq.poll(1) == (0, [])
    assert len(shared(right)) == 3
    left.post(qp=pairs[0])
    assert left.ended() == [WCStatus.SUCCESS]
    assert right.received()[0].wr_id == 0


@shows(AsyncEventType.QP_RECV_SOFT_WATERMARK, AsyncEventType.QP_RECV_HARD_WATERMARK)
def test_marks_of_held_receive_buffers(world: World) -> None:
    """Above the soft mark an event comes, above the hard one the queue pair breaks off."""
    pair = world.pair(srq=16)
    left, right = pair.left, pair.right
    right.receive(8, count=8)
    engine = right.qp.engine
    with right.context.adapter.lock:
        engine.hold_receives = True
        engine.set_recv_watermarks(1, 3)
    for number in range(4):
        left.post(wr_id=number)
    right.event(AsyncEventType.QP_RECV_SOFT_WATERMARK)
    right.event(AsyncEventType.QP_RECV_HARD_WATERMARK)
    assert right.qp.qp_state is QPState.ERR
    assert left.ended(3) == [WCStatus.SUCCESS] * 3  # they were received before


def test_closing_a_shared_queue_closes_its_queue_pairs(world: World) -> None:
    pair = world.pair(srq=4)
    shared(pair.right).close()
    assert pair.right.qp.closed
    assert pair.left.context.adapter.wait(
        lambda: pair.left.qp.qp_state is QPState.ERR, 8_000_000_000
    )


def test_datagrams_use_shared_queues(world: World) -> None:
    if world.lacks("datagrams"):
        return
    left, right = world.side(qp_type=QPType.UD), world.side(qp_type=QPType.UD, srq=4)
    right.receive(100, count=2)
    left.mr.write(b"datagram")
    for _ in range(2):
        left.post(
            ah=right.route().vector(), remote_qpn=right.qp.qp_num, remote_qkey=right.attr.qkey
        )
    assert [wc.wr_id for wc in right.received(2)] == [0, 1]
    assert right.mr.read(8, 140) == b"datagram"
