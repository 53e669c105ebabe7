"""Conformance: completion queues, their channels and their events."""

import errno
import select

import pytest

from tests.verbs.conformance import QKEY, REGION_BYTES, Pair, Side, World, shows
from urds.verbs import (
    CQ,
    AsyncEventType,
    CompChannel,
    QPState,
    QPType,
    SendFlag,
    VerbsArgumentError,
    VerbsClosedError,
    VerbsTimeoutError,
    WCStatus,
    WROpcode,
)

SOLICITED = SendFlag.SIGNALED | SendFlag.SOLICITED


def deliver(pair: Pair, flags: SendFlag = SendFlag.SIGNALED) -> None:
    """Send one message; its receive has completed when this returns."""
    before = len(pair.right.rcq)
    pair.right.receive(8)
    pair.left.post(flags=flags)
    assert pair.left.ended() == [WCStatus.SUCCESS]
    assert pair.right.context.adapter.wait(lambda: len(pair.right.rcq) > before, 2_000_000_000)


def has_event(side: Side) -> bool:
    """Tell whether the channel's descriptor shows an event."""
    return bool(select.select([side.channel], [], [], 0)[0])


@pytest.mark.parametrize("cqe", [-1, 0, (1 << 20) + 1])
def test_sizes_that_cannot_be_are_refused(world: World, cqe: int) -> None:
    context = world.context()
    with pytest.raises(VerbsArgumentError, match=f"of {cqe} entries"):
        CQ(context, cqe)
    queue = CQ(context, 4)
    with pytest.raises(VerbsArgumentError, match=f"of {cqe} entries"):
        queue.resize(cqe)
    assert queue.cqe == 4


def test_vectors_and_channels_that_cannot_be_are_refused(world: World) -> None:
    context = world.context()
    for vector in (-1, 1):
        with pytest.raises(VerbsArgumentError, match="vector"):
            CQ(context, 4, vector=vector)
    with pytest.raises(VerbsArgumentError, match="another device's"):
        CQ(context, 4, channel=CompChannel(world.context()))


def test_an_empty_queue_gives_nothing(world: World) -> None:
    side = world.side()
    assert side.rcq.poll(10) == (0, [])
    with pytest.raises(VerbsTimeoutError, match="0 of 1"):
        side.rcq.wait_for(1, 0.001)
    with pytest.raises(VerbsArgumentError):
        side.rcq.wait_for(0, 0)


def test_a_queue_is_resized_and_loses_nothing(world: World) -> None:
    pair = world.pair()
    for _ in range(3):
        deliver(pair)
    queue = pair.right.rcq
    with pytest.raises(VerbsArgumentError):
        queue.resize(2)
    for cqe in (3, 2000):
        queue.resize(cqe)
        assert (queue.cqe, len(queue)) == (cqe, 3)
    deliver(pair)
    assert queue.poll(10)[0] == 4


# -- events


def test_an_armed_queue_announces_one_completion(world: World) -> None:
    pair = world.pair()
    right = pair.right
    deliver(pair)
    assert not has_event(right)  # no caller has asked
    right.rcq.req_notify()
    assert not has_event(right)  # what is queued already announces nothing
    deliver(pair)
    deliver(pair)
    assert has_event(right)
    assert right.channel.get_cq_event(timeout_s=0) is right.rcq
    assert not has_event(right)
    with pytest.raises(VerbsTimeoutError):
        right.channel.get_cq_event(timeout_s=0)
    assert right.rcq.unacked_events == 1
    with pytest.raises(VerbsArgumentError):
        right.rcq.ack_events(2)
    right.rcq.ack_events(1)
    assert len(right.rcq) == 3


def test_an_event_wakes_who_waits(world: World) -> None:
    pair = world.pair()
    pair.right.rcq.req_notify()
    pair.right.receive(8)
    pair.left.post()
    assert pair.right.channel.get_cq_event(timeout_s=2) is pair.right.rcq
    assert pair.right.received()[0].status is WCStatus.SUCCESS


def test_solicited_events_pass_over_the_others(world: World) -> None:
    pair = world.pair()
    pair.right.rcq.req_notify(solicited_only=True)
    deliver(pair)
    assert not has_event(pair.right)
    deliver(pair, SOLICITED)
    assert has_event(pair.right)


def test_a_write_with_immediate_data_may_be_solicited(world: World) -> None:
    pair = world.pair()
    if world.lacks("rdma_with_imm"):
        return
    right = pair.right
    right.rcq.req_notify(solicited_only=True)
    for flags in (SendFlag.SIGNALED, SOLICITED):
        assert not has_event(right)
        right.receive(0)
        pair.left.post(WROpcode.RDMA_WRITE_WITH_IMM, 8, to=right.mr, flags=flags)
        assert pair.left.ended() == [WCStatus.SUCCESS]
        right.received()
    assert has_event(right)


def test_a_datagram_may_be_solicited(world: World) -> None:
    if world.lacks("datagrams"):
        return
    left, right = (world.side(qp_type=QPType.UD) for _ in range(2))
    right.rcq.req_notify(solicited_only=True)
    vector = right.route().vector()
    for flags in (SendFlag.SIGNALED, SOLICITED):
        assert not has_event(right)
        right.receive(64)
        left.post(ah=vector, remote_qpn=right.qp.qp_num, remote_qkey=QKEY, flags=flags)
        right.received()
    assert right.channel.get_cq_event(timeout_s=0) is right.rcq


def test_a_failure_counts_as_solicited(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    for side, queue in ((left, left.scq), (right, right.rcq)):
        queue.req_notify(solicited_only=True)
        assert not has_event(side)
    right.receive(8)
    left.post(WROpcode.RDMA_WRITE, 8, to=right.mr, at=REGION_BYTES)
    assert left.channel.get_cq_event(timeout_s=2) is left.scq
    assert right.channel.get_cq_event(timeout_s=2) is right.rcq


def test_a_channel_tells_its_queues_apart(world: World) -> None:
    pair = world.pair()
    left = pair.left
    pair.right.receive(8)
    for queue in (left.scq, left.rcq):
        queue.req_notify()
    left.post()
    assert left.channel.get_cq_event(timeout_s=2) is left.scq
    with pytest.raises(VerbsTimeoutError):
        left.channel.get_cq_event(left.rcq, timeout_s=0)
    left.receive(8)
    pair.right.post()
    assert left.channel.get_cq_event(left.rcq, timeout_s=2) is left.rcq


def test_no_event_is_lost_by_who_polls_arms_and_polls_again(world: World) -> None:
    """The race rule: whatever comes between arming and waiting has fired the event."""
    pair = world.pair()
    left, right = pair.left, pair.right
    right.receive(8, count=60)
    for number in range(60):
        left.post(wr_id=number)
    got = 0
    for _ in range(200):
        got += right.rcq.poll(4)[0]
        if got == 60:
            break
        right.rcq.req_notify()
        more = right.rcq.poll(4)[0]
        got += more
        if not more:
            right.rcq.ack_events(right.rcq.unacked_events)
            assert right.channel.get_cq_event(timeout_s=4) is right.rcq
    assert got == 60
    assert left.ended(60) == [WCStatus.SUCCESS] * 60


# -- overflow and end


@shows(AsyncEventType.CQ_ERR, WCStatus.WR_FLUSH_ERR)
def test_an_overflow_is_told_and_breaks_the_queue_pairs(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    right.rcq.resize(2)
    right.receive(8, count=5)
    for number in range(3):
        left.post(wr_id=number)
    right.event(AsyncEventType.CQ_ERR)
    adapter = right.context.adapter
    assert adapter.wait(lambda: right.qp.qp_state is QPState.ERR, 2_000_000_000)
    assert [wc.wr_id for wc in right.received(2)] == [0, 1]  # the oldest are kept
    assert left.context.adapter.wait(lambda: left.qp.qp_state is QPState.ERR, 8_000_000_000)
    right.no_event()  # told once
    left.post()
    assert WCStatus.WR_FLUSH_ERR in left.ended(len(left.scq) or 1)


def test_a_queue_in_use_closes_its_queue_pairs_first(world: World) -> None:
    pair = world.pair()
    pair.right.rcq.close()
    assert pair.right.qp.closed
    with pytest.raises(VerbsClosedError):
        pair.right.rcq.poll(1)
    assert pair.left.context.adapter.wait(
        lambda: pair.left.qp.qp_state is QPState.ERR, 8_000_000_000
    )


def test_the_channel_closes_its_queues(world: World) -> None:
    pair = world.pair()
    pair.right.channel.close()
    assert pair.right.rcq.closed
    assert pair.right.scq.closed
    with pytest.raises(VerbsClosedError) as caught:
        pair.right.channel.get_cq_event(timeout_s=0)
    assert caught.value.errno == errno.EBADF
