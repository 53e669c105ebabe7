"""Conformance: how requests fail, with which status, what is flushed, and who hears of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.verbs.conformance import (
    REGION_BYTES,
    Pair,
    Side,
    World,
    broke_in_order,
    shows,
)
from urds.verbs import (
    PD,
    SGE,
    AccessFlag,
    AsyncEventType,
    QPState,
    RecvWR,
    SendFlag,
    VerbsTimeoutError,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.packets import PacketKind, emit_packet, parse_packet
from urds.verbs.providers.base import ConnectionEventKind
from urds.verbs.providers.sim import SimNetwork

ONE_SIDED = (WROpcode.RDMA_WRITE, WROpcode.RDMA_READ)
BROKEN = (ConnectionEventKind.BROKEN, ConnectionEventKind.DISCONNECTED)


def is_over(pair: Pair) -> None:
    """Show that both queue pairs ended with the failure, and that both owners were told."""
    for side in (pair.left, pair.right):
        side.until(*BROKEN)
        assert side.qp.qp_state is QPState.ERR


def posts_after(left: Side, fail: Callable[[], None], status: WCStatus) -> None:
    """Post good requests behind one that fails; show how all of them end."""
    with left.context.adapter.lock:  # so that all are posted before any of them ends
        fail()
        for number in (11, 12, 13):
            left.post(wr_id=number)
    completions = left.sent(4)
    assert [wc.wr_id for wc in completions] == [10, 11, 12, 13]
    broke_in_order([wc.status for wc in completions], status)


# -- the remote side refuses


@shows(WCStatus.REM_ACCESS_ERR, WCStatus.WR_FLUSH_ERR, AsyncEventType.QP_ACCESS_ERR)
@pytest.mark.parametrize("opcode", ONE_SIDED)
@pytest.mark.parametrize("fault", ["key", "stale", "before", "behind", "across", "wraps", "right"])
def test_memory_that_a_key_does_not_open_is_refused(
    world: World, opcode: WROpcode, fault: str
) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    right.receive(8, offset=1000, count=5)
    mr, at, rkey = right.mr, 0, right.mr.rkey
    if fault == "key":
        rkey ^= 0x0001_0000
    elif fault == "stale":
        mr = world.memory(right.pd).mr
        rkey = mr.rkey
        mr.rereg(address=mr.buf)
    elif fault == "right":
        mr = world.memory(right.pd, access=AccessFlag.LOCAL_WRITE).mr
        rkey = mr.rkey
    else:
        at = {"before": -1, "behind": REGION_BYTES, "across": REGION_BYTES - 63, "wraps": 0}[fault]
    address = (1 << 64) - 32 if fault == "wraps" else mr.buf + at
    left.mr.write(b"x" * 64)
    posts_after(
        left,
        lambda: left.post(opcode, 64, rkey=rkey, remote_addr=address, wr_id=10),
        WCStatus.REM_ACCESS_ERR,
    )
    assert [wc.status for wc in right.received(5)] == [WCStatus.WR_FLUSH_ERR] * 5
    right.event(AsyncEventType.QP_ACCESS_ERR)
    is_over(pair)
    assert right.mr.read() == bytes(REGION_BYTES)


@shows(WCStatus.REM_INV_REQ_ERR, AsyncEventType.QP_REQ_ERR)
@pytest.mark.parametrize("opcode", ONE_SIDED)
def test_what_the_queue_pair_does_not_allow_is_no_valid_request(
    world: World, opcode: WROpcode
) -> None:
    """The key would open the memory; the rights of the queue pair come first."""
    pair = world.pair(access=AccessFlag.LOCAL_WRITE)
    left, right = pair.left, pair.right
    posts_after(left, lambda: left.post(opcode, 8, to=right.mr, wr_id=10), WCStatus.REM_INV_REQ_ERR)
    right.event(AsyncEventType.QP_REQ_ERR)
    is_over(pair)


@shows(WCStatus.LOC_LEN_ERR, WCStatus.REM_INV_REQ_ERR)
def test_a_receive_that_is_too_small_fails_on_both_sides(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    right.receive(63, wr_id=7)
    right.receive(64, wr_id=8)
    left.post(length=64)
    assert left.ended() == [WCStatus.REM_INV_REQ_ERR]
    completions = right.received(2)
    assert [wc.wr_id for wc in completions] == [7, 8]
    broke_in_order([wc.status for wc in completions], WCStatus.LOC_LEN_ERR)
    is_over(pair)


@shows(WCStatus.REM_OP_ERR, WCStatus.LOC_PROT_ERR)
@pytest.mark.parametrize("fault", ["key", "range", "read only", "domain"])
def test_a_receive_whose_memory_cannot_be_used_is_the_receivers_fault(
    world: World, fault: str
) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    piece = right.mr.sge(0, 64)
    if fault == "key":
        piece = replace(piece, lkey=piece.lkey ^ 1)
    elif fault == "range":
        piece = replace(piece, addr=piece.addr + REGION_BYTES - 63)
    elif fault == "read only":
        piece = world.memory(right.pd, access=AccessFlag.REMOTE_READ).mr.sge(0, 64)
    else:
        piece = world.memory(PD(right.context)).mr.sge(0, 64)
    right.qp.post_recv(RecvWR(7, [piece]))
    left.post(length=64)
    assert left.ended() == [WCStatus.REM_OP_ERR]
    assert [wc.status for wc in right.received()] == [WCStatus.LOC_PROT_ERR]
    is_over(pair)


# -- this side cannot


@shows(WCStatus.LOC_PROT_ERR)
@pytest.mark.parametrize("opcode", [WROpcode.SEND, *ONE_SIDED])
@pytest.mark.parametrize("fault", ["key", "range", "domain"])
def test_local_memory_that_cannot_be_used_fails_the_request(
    world: World, opcode: WROpcode, fault: str
) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    right.receive(64, offset=100)
    piece = left.mr.sge(0, 64)
    if fault == "key":
        piece = replace(piece, lkey=0x0BAD_0000)
    elif fault == "range":
        piece = replace(piece, addr=piece.addr - 1)
    else:
        piece = world.memory(PD(left.context)).mr.sge(0, 64)
    posts_after(
        left, lambda: left.post(opcode, sg=[piece], to=right.mr, wr_id=10), WCStatus.LOC_PROT_ERR
    )
    is_over(pair)
    assert right.mr.read(164) == bytes(164)


@shows(WCStatus.LOC_PROT_ERR)
def test_a_read_needs_the_right_to_write_its_result(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    target = world.memory(left.pd, access=AccessFlag.REMOTE_READ)
    left.post(WROpcode.RDMA_READ, sg=[target.mr.sge(0, 64)], to=right.mr)
    assert left.ended() == [WCStatus.LOC_PROT_ERR]
    assert target.mr.read(64) == bytes(64)


def test_a_region_that_goes_under_way_fails_what_needs_it(world: World) -> None:
    """The request waits behind a fence; its memory is gone when its turn comes."""
    pair = world.pair()
    left, right = pair.left, pair.right
    memory = world.memory(left.pd)
    right.receive(64)
    with left.context.adapter.lock:
        left.post(WROpcode.RDMA_READ, 64, to=right.mr)
        left.post(sg=[memory.mr.sge(0, 64)], flags=SendFlag.FENCE | SendFlag.SIGNALED)
        memory.mr.close()
    assert left.ended(2) == [WCStatus.SUCCESS, WCStatus.LOC_PROT_ERR]
    assert right.received()[0].status is WCStatus.WR_FLUSH_ERR


# -- receivers that are not ready


def test_a_message_waits_for_a_receive(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    for number in range(5):
        left.post(wr_id=number)
    with pytest.raises(VerbsTimeoutError):
        left.scq.wait_for(1, 0.01)
    right.receive(8, count=5)
    assert [wc.wr_id for wc in left.sent(5)] == list(range(5))
    assert [wc.wr_id for wc in right.received(5)] == list(range(5))
    assert left.qp.qp_state is QPState.RTS


@shows(WCStatus.RNR_RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR)
def test_a_message_does_not_wait_for_ever_where_that_was_agreed(world: World) -> None:
    pair = world.pair(rnr_retry=2)
    left = pair.left
    with left.context.adapter.lock:
        for number in range(3):
            left.post(wr_id=number)
    broke_in_order(left.ended(3), WCStatus.RNR_RETRY_EXC_ERR)
    is_over(pair)


def test_retries_are_counted_anew_after_progress(world: World) -> None:
    """Five messages each wait once or twice: together more often than one may."""
    pair = world.pair(rnr_retry=6)
    left, right = pair.left, pair.right
    for number in range(5):
        left.post(wr_id=number)
        with pytest.raises(VerbsTimeoutError):
            left.scq.wait_for(1, 0.002)
        right.receive(8, wr_id=number)
        assert left.ended() == [WCStatus.SUCCESS]


# -- peers that are gone or lie


@shows(WCStatus.RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR)
def test_a_silent_peer_is_given_up_after_the_agreed_retries(world: World) -> None:
    """A device that only its connection manager connects hears the end of the peer itself."""
    pair = world.pair(connected=False)
    if world.lacks("raw_connect"):
        pair.connect()
        pair.left.receive(8)
        pair.right.context.close()
        assert pair.left.received()[0].status is WCStatus.WR_FLUSH_ERR
        pair.left.until(*BROKEN)
        return
    left, right = pair.left, pair.right
    pair.by_hand(timeout=8, retry_cnt=2)  # 1 ms, 20 without loss, three times
    right.modify(QPState.RESET)  # what comes for it is dropped without a word
    with left.context.adapter.lock:
        for number in range(3):
            left.post(wr_id=number)
    broke_in_order(left.ended(3), WCStatus.RETRY_EXC_ERR)
    assert left.qp.qp_state is QPState.ERR


@shows(WCStatus.BAD_RESP_ERR)
@pytest.mark.parametrize("world", ["sim"], indirect=True)
def test_an_answer_that_cannot_be_one_fails_the_read(world: World) -> None:
    """Only a script can make it: on a link without loss no answer is wrong at random."""
    world.network = SimNetwork(seed=1, lossless=True)
    pair = world.pair()
    left, right = pair.left, pair.right

    def falsify(data: bytes, source: object, target: object) -> list[tuple[int, bytes]] | None:
        packet = parse_packet(data, checksum=True)
        if packet.kind is not PacketKind.READ_RESPONSE:
            return None
        packet.offset += 8
        return [(1000, b"".join(emit_packet(packet, checksum=True)))]

    world.network.on_packet = falsify
    left.mr.write(b"before" * 4)
    left.post(WROpcode.RDMA_READ, 24, to=right.mr)
    assert left.ended() == [WCStatus.BAD_RESP_ERR]
    assert left.mr.read(24) == b"before" * 4


# -- flushing


@shows(WCStatus.WR_FLUSH_ERR)
def test_everything_posted_is_flushed_in_order_once(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    for number in range(20):
        left.receive(8, wr_id=100 + number)
        left.post(wr_id=number)  # the peer has no receive
    left.modify(QPState.ERR)
    assert [wc.wr_id for wc in left.sent(20)] == list(range(20))
    completions = left.received(20)
    assert [wc.wr_id for wc in completions] == list(range(100, 120))
    assert {wc.status for wc in completions} == {WCStatus.WR_FLUSH_ERR}
    right.until(*BROKEN)
    assert left.scq.poll(1) == left.rcq.poll(1) == (0, [])


def test_work_posted_after_the_end_is_flushed_at_once(world: World) -> None:
    pair = world.pair()
    left = pair.left
    left.modify(QPState.ERR)
    left.post(wr_id=1)
    left.receive(8, wr_id=2)
    assert [(wc.wr_id, wc.status) for wc in left.sent()] == [(1, WCStatus.WR_FLUSH_ERR)]
    assert [(wc.wr_id, wc.status) for wc in left.received()] == [(2, WCStatus.WR_FLUSH_ERR)]


def test_requests_executed_before_a_failure_succeed(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    with left.context.adapter.lock:
        for number in range(5):
            left.post(WROpcode.RDMA_WRITE, 8, to=right.mr, wr_id=number)
        left.post(WROpcode.RDMA_WRITE, 8, to=right.mr, at=REGION_BYTES, wr_id=5)
        left.post(WROpcode.RDMA_WRITE, 8, to=right.mr, wr_id=6)
    assert left.ended(5) == [WCStatus.SUCCESS] * 5
    broke_in_order(left.ended(2), WCStatus.REM_ACCESS_ERR)


def test_unsignalled_requests_complete_when_they_fail(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    with left.context.adapter.lock:
        for number, at in enumerate((0, REGION_BYTES, 0)):
            left.post(WROpcode.RDMA_WRITE, 8, to=right.mr, at=at, wr_id=number, flags=SendFlag(0))
    completions = left.sent(2)
    assert [wc.wr_id for wc in completions] == [1, 2]
    broke_in_order([wc.status for wc in completions], WCStatus.REM_ACCESS_ERR)


def test_one_pair_that_fails_disturbs_no_other(world: World) -> None:
    good = world.pair()
    bad = Pair(Side(world, good.left.context), Side(world, good.right.context)).connect()
    bad.left.post(WROpcode.RDMA_WRITE, sg=[SGE(0, 8, 0)], to=bad.right.mr)
    bad.left.ended()
    is_over(bad)
    good.right.receive(8)
    good.left.post()
    assert good.left.ended() == [WCStatus.SUCCESS]
    assert good.right.received()[0].status is WCStatus.SUCCESS
