"""The queue pair as its owner sees it: states, posting, flushing, events, draining."""

import errno

import pytest

from tests.sim.verbs_pair import (
    ALL_ACCESS,
    INIT,
    MS,
    MTU_BYTES,
    RTR,
    RTS,
    Pair,
    Side,
)
from urds.verbs.engine.keys import WindowBinding
from urds.verbs.engine.numbers import (
    AccessFlag,
    AsyncEventType,
    QPAttrMask,
    QPState,
    QPType,
    SendFlag,
    WCFlag,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.queue_pair import LinkTraits, QPAttr, QPCap
from urds.verbs.engine.receives import SharedReceiveQueue
from urds.verbs.engine.work import SGE, AddressVector, RecvWR, SendWR

LOSSY = LinkTraits(MTU_BYTES, lossless=False)
OK, FLUSHED = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
STATE = QPAttrMask.STATE


def make(**fields) -> Side:
    return Side(0xA, LOSSY, **fields)


def to(side: Side, state: QPState, mask: QPAttrMask = STATE, **fields) -> None:
    side.qp.modify(QPAttr(qp_state=state, **fields), mask, 0)


def events(side: Side) -> list[AsyncEventType]:
    found = []
    while (event := side.qp.poll_event()) is not None:
        assert event.element is side.qp
        found.append(event.event_type)
    return found


def statuses(wcs) -> list[tuple[int, WCStatus]]:
    return [(wc.wr_id, wc.status) for wc in wcs]


# -- states


def test_a_queue_pair_is_led_to_rts() -> None:
    side = make()
    assert side.qp.state is QPState.RESET
    side.lead(0xB)
    assert side.qp.state is QPState.RTS and side.qp.attr.qp_state is QPState.RTS
    assert side.qp.peer == AddressVector(bytes(16)) and side.qp.attr.dest_qp_num == 0xB


@pytest.mark.parametrize(
    ("bit", "name", "value"),
    [
        (QPAttrMask.RQ_PSN, "rq_psn", 1 << 24),
        (QPAttrMask.DEST_QPN, "dest_qp_num", -1),
        (QPAttrMask.MIN_RNR_TIMER, "min_rnr_timer", 32),
        (QPAttrMask.MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", 129),
        (QPAttrMask.PATH_MTU, "path_mtu", 6),
    ],
)
def test_values_out_of_range_are_refused_and_nothing_changes(bit, name, value) -> None:
    side = make()
    to(side, QPState.INIT, INIT)
    attr = QPAttr(qp_state=QPState.RTR, ah_attr=AddressVector(bytes(16)), dest_qp_num=5)
    setattr(attr, name, value)
    with pytest.raises(OSError, match=name) as raised:
        side.qp.modify(attr, RTR, 0)
    assert raised.value.errno == errno.EINVAL and bit in RTR
    assert side.qp.state is QPState.INIT and side.qp.attr.dest_qp_num == 0


def test_a_missing_attribute_is_refused() -> None:
    with pytest.raises(OSError, match="missing PORT"):
        to(make(), QPState.INIT, INIT & ~QPAttrMask.PORT)


def test_a_wrong_current_state_is_refused() -> None:
    side = make()
    side.lead(0xB)
    with pytest.raises(OSError, match="cur_qp_state"):
        to(side, QPState.RTS, STATE | QPAttrMask.CUR_STATE, cur_qp_state=QPState.SQD)
    to(side, QPState.RTS, STATE | QPAttrMask.CUR_STATE, cur_qp_state=QPState.RTS)


def test_the_path_mtu_bounds_the_packets() -> None:
    side = Side(0xA, LinkTraits(4096, lossless=False))
    side.lead(0xB, path_mtu=1)
    side.send(1, 0, 600)
    packets = []
    while (packet := side.qp.poll_transmit(0)) is not None:
        packets.append(len(packet.payload))
    assert packets == [256, 256, 88]


def test_reset_forgets_everything_without_a_word() -> None:
    pair = Pair()
    pair.a.receive(1, length=8)
    pair.a.send(2)
    to(pair.a, QPState.RESET)
    assert pair.a.sent() == pair.a.received() == [] and pair.a.qp.outstanding_requests == 0
    assert pair.a.qp.poll_transmit(0) is None and pair.a.qp.recv_query() == (0, 0)
    to(pair.b, QPState.RESET)
    pair.a.lead(0xB)
    pair.b.lead(0xA)
    pair.b.receive(3, length=8)
    pair.a.send(4, length=8)
    pair.run()
    assert statuses(pair.a.sent()) == [(4, OK)] and statuses(pair.b.received()) == [(3, OK)]


# -- posting


@pytest.mark.parametrize("state", [QPState.RESET, QPState.INIT, QPState.RTR])
def test_sends_need_rts(state: QPState) -> None:
    side = make()
    side.lead(0xB)
    side.qp.state = state
    with pytest.raises(OSError, match=state.name) as raised:
        side.send(1)
    assert raised.value.errno == errno.EINVAL


def test_receives_need_init() -> None:
    side = make()
    with pytest.raises(OSError, match="RESET"):
        side.qp.post_recv(RecvWR(1), 0)
    to(side, QPState.INIT, INIT)
    side.qp.post_recv(RecvWR(1), 0)
    assert side.qp.recv_query() == (1, 1)


CELL = [SGE(0, 8, 1)]
BAD = [
    (SendWR(opcode=99), "opcode"),
    (SendWR(sg=[SGE(0, 1, 1)] * 5), "max_send_sge"),
    (SendWR(sg=[SGE(0, -1, 1)]), "negative"),
    (SendWR(sg=[SGE(0, 1 << 31, 1), SGE(0, 1, 1)]), "limit 2147483648"),
    (SendWR(sg=[SGE(0, 300, 1)], send_flags=SendFlag.INLINE), "max_inline_data"),
    (SendWR(opcode=WROpcode.RDMA_READ, send_flags=SendFlag.INLINE), "inline"),
    (SendWR(sg=[SGE(0, 9, 77)], send_flags=SendFlag.INLINE), "inline data: local key 0x4d"),
    (SendWR(opcode=WROpcode.ATOMIC_FETCH_AND_ADD, sg=[SGE(0, 4, 1)]), "room of 4 bytes"),
    (SendWR(opcode=WROpcode.MASKED_ATOMIC_CMP_AND_SWP, sg=[SGE(0, 9, 1)]), "room of 9 bytes"),
    (SendWR(opcode=WROpcode.ATOMIC_FETCH_AND_ADD, sg=CELL, compare_add=-1), "compare_add -0x1"),
    (SendWR(opcode=WROpcode.ATOMIC_CMP_AND_SWP, sg=CELL, swap=1 << 64), "swap 0x1.* 64 bits"),
    (SendWR(opcode=WROpcode.MASKED_ATOMIC_CMP_AND_SWP, sg=CELL, swap_mask=-1), "swap_mask"),
    (SendWR(opcode=WROpcode.MASKED_ATOMIC_CMP_AND_SWP, sg=CELL, compare_mask=-1), "compare_mask"),
    (SendWR(opcode=WROpcode.MASKED_ATOMIC_FETCH_AND_ADD, sg=CELL, boundary=1 << 64), "boundary"),
    (SendWR(opcode=WROpcode.BIND_MW), "WindowBinding"),
]


@pytest.mark.parametrize(("wr", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_what_cannot_be_sent_is_refused_at_once(wr: SendWR, reason: str) -> None:
    side = make(cap=QPCap())
    side.lead(0xB)
    with pytest.raises(OSError, match=reason) as raised:
        side.qp.post_send(wr, 0)
    assert raised.value.errno == errno.EINVAL and side.qp.outstanding_requests == 0


def test_reads_need_max_rd_atomic() -> None:
    side = make()
    side.lead(0xB, max_rd_atomic=0)
    with pytest.raises(OSError, match="max_rd_atomic 0"):
        side.remote(1, WROpcode.RDMA_READ, side, length=8)


def test_a_receive_queue_is_bounded() -> None:
    side = make(cap=QPCap(max_recv_wr=1, max_recv_sge=1))
    side.lead(0xB)
    with pytest.raises(OSError, match="max_sge"):
        side.qp.post_recv(RecvWR(1, [side.sge(0, 1)] * 2), 0)
    side.receive(1)
    with pytest.raises(OSError, match="full") as raised:
        side.receive(2)
    assert raised.value.errno == errno.ENOMEM and side.qp.recv_query() == (1, 1)


def test_receives_of_a_shared_queue_are_posted_there() -> None:
    side = make(srq=SharedReceiveQueue(4, 4))
    side.lead(0xB)
    with pytest.raises(OSError, match="shared queue"):
        side.qp.post_recv(RecvWR(1), 0)


# -- end to end, on a link of both kinds


@pytest.mark.parametrize("lossless", [False, True])
def test_every_operation_works(lossless: bool) -> None:
    pair = Pair(lossless=lossless)
    a, b = pair.a, pair.b
    a.memory[:200] = b"s" * 200
    b.memory[1000:1200] = b"r" * 200
    window = b.keys.new_window(b.pd, kind=2)
    bind = WindowBinding(b.region, b.address + 2000, 100, AccessFlag.REMOTE_WRITE)
    b.send(70, opcode=WROpcode.BIND_MW, window=window, bind=bind)
    pair.run()
    for wr_id in range(5):
        b.receive(wr_id, 200 * wr_id, 200)
    a.send(10, 0, 200)
    a.send(11, 0, 1, opcode=WROpcode.SEND_WITH_IMM, imm_data=0x11)
    a.remote(12, WROpcode.RDMA_WRITE, b, at=1500, length=200)
    a.remote(13, WROpcode.RDMA_WRITE_WITH_IMM, b, at=1800, length=100, imm_data=0x13)
    a.remote(14, WROpcode.RDMA_READ, b, at=1000, offset=400, length=200)
    a.remote(15, WROpcode.ATOMIC_FETCH_AND_ADD, b, at=3000, offset=600, length=8, compare_add=9)
    a.remote(16, WROpcode.ATOMIC_CMP_AND_SWP, b, at=3000, offset=608, length=8, compare_add=9)
    a.send(17, 0, 50, opcode=WROpcode.RDMA_WRITE, rkey=window.rkey, remote_addr=b.address + 2000)
    a.send(18, opcode=WROpcode.SEND_WITH_INV, invalidate_rkey=window.rkey)
    pair.run()
    assert statuses(a.sent()) == [(wr_id, OK) for wr_id in range(10, 19)]
    received = b.received()
    assert statuses(received) == [(wr_id, OK) for wr_id in range(4)]
    assert [wc.imm_data for wc in received] == [0, 0x11, 0x13, window.rkey]
    assert received[3].wc_flags == WCFlag.WITH_INV and window.region is None
    assert b.memory[:200] == b.memory[1500:1700] == b"s" * 200
    assert a.memory[400:600] == b"r" * 200 and b.memory[2000:2050] == b"s" * 50
    assert a.memory[600:616] == bytes(8) + (9).to_bytes(8, "little")
    assert b.memory[3000:3008] == bytes(8)
    a.send(19, 0, 50, opcode=WROpcode.RDMA_WRITE, rkey=window.rkey, remote_addr=b.address + 2000)
    pair.run()
    assert statuses(a.sent()) == [(19, WCStatus.REM_ACCESS_ERR)]


@pytest.mark.parametrize("lossless", [False, True])
def test_a_late_receive_is_waited_for(lossless: bool) -> None:
    pair = Pair(lossless=lossless)
    for wr_id in range(3):
        pair.a.send(wr_id, 0, 100)
    pair.run(until_ns=3 * MS)
    assert pair.a.sent() == []
    for wr_id in range(3):
        pair.b.receive(wr_id, 0, 100)
    pair.run()
    assert statuses(pair.a.sent()) == statuses(pair.b.received()) == [(n, OK) for n in range(3)]


def test_a_refused_access_ends_both_sides() -> None:
    pair = Pair()
    pair.b.receive(9, length=8)
    pair.a.receive(8, length=8)
    pair.a.remote(1, WROpcode.RDMA_WRITE, pair.b, at=4096, length=1)
    pair.a.send(2)
    pair.run()
    assert statuses(pair.a.sent()) == [(1, WCStatus.REM_ACCESS_ERR), (2, FLUSHED)]
    assert statuses(pair.a.received()) == [(8, FLUSHED)]
    assert statuses(pair.b.received()) == [(9, FLUSHED)]
    assert events(pair.b) == [AsyncEventType.QP_ACCESS_ERR] and events(pair.a) == []


def test_a_lost_nak_is_sent_again() -> None:
    pair = Pair()
    lost = []
    pair.on_packet = lambda packet, side: (
        lost.append(packet) or [] if side is pair.b and len(lost) < 3 else None
    )
    pair.a.remote(1, WROpcode.RDMA_WRITE, pair.b, at=4096, length=1)
    pair.run()
    assert statuses(pair.a.sent()) == [(1, WCStatus.REM_ACCESS_ERR)] and len(lost) == 3


# -- the end


def test_err_flushes_both_queues_in_posting_order() -> None:
    side = make()
    side.lead(0xB)
    for wr_id in range(3):
        side.send(wr_id, send_flags=SendFlag(0))  # errors are told of unsignalled ones as well
        side.receive(10 + wr_id)
    side.qp.poll_transmit(0)
    to(side, QPState.ERR)
    assert statuses(side.sent()) == [(n, FLUSHED) for n in range(3)]
    assert statuses(side.received()) == [(10 + n, FLUSHED) for n in range(3)]
    assert side.qp.recv_query() == (0, 0) and events(side) == []
    side.send(5)
    side.receive(6)
    assert statuses(side.sent()) == [(5, FLUSHED)] and statuses(side.received()) == [(6, FLUSHED)]
    assert side.qp.recv_query() == (0, 0)
    to(side, QPState.ERR)
    assert side.sent() == side.received() == []


def test_err_flushes_a_started_receive_and_leaves_the_shared_queue() -> None:
    pair = Pair(b={"srq": SharedReceiveQueue(8, 4)})
    for wr_id in range(3):
        pair.b.receive(wr_id, 0, 200)
    pair.a.send(1, 0, 200)
    packet = pair.a.qp.poll_transmit(0)
    assert packet is not None
    pair.b.qp.receive_packet(packet, 0)
    assert pair.b.qp.recv_query() == (1, 1)
    to(pair.b, QPState.ERR)
    assert statuses(pair.b.received()) == [(0, FLUSHED)]
    assert pair.b.qp.recv_query() == (0, 0) and len(pair.b.srq) == 2
    assert AsyncEventType.QP_LAST_WQE_REACHED in events(pair.b)


def test_an_overrun_queue_may_end_the_queue_pair_from_inside() -> None:
    """The owner moves the queue pair to ERR within the push that overflows."""
    pair = Pair()
    pair.b.qp.recv_cq.resize(1)
    pair.b.qp.recv_cq.on_overflow = lambda: to(pair.b, QPState.ERR)
    for wr_id in range(4):
        pair.b.receive(wr_id)
        pair.a.send(wr_id)
    pair.run()
    assert pair.b.qp.state is QPState.ERR and statuses(pair.b.received()) == [(0, OK)]
    assert pair.b.qp.recv_query() == (0, 0)
    # Two were received, one of them without a word. The rest is not answered: patience ends.
    ends = [(0, OK), (1, OK), (2, WCStatus.RETRY_EXC_ERR), (3, FLUSHED)]
    assert statuses(pair.a.sent()) == ends


def test_a_callback_may_end_the_queue_pair_while_it_completes_sends() -> None:
    pair = Pair()
    taken = []

    def take(wc, solicited) -> bool:
        taken.append(wc)
        if len(taken) == 1:
            to(pair.a, QPState.ERR)
        return True

    pair.a.send_cq.on_push = take
    for wr_id in range(4):
        pair.b.receive(wr_id)
        pair.a.send(wr_id)
    pair.run()
    assert statuses(taken) == [(0, OK), (1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]


# -- draining


def test_sqd_lets_started_requests_end_and_tells_once() -> None:
    pair = Pair()
    pair.b.receive(1, 0, 500)
    pair.b.receive(2, 0, 500)
    pair.a.send(1, 0, 500)
    pair.a.send(2, 0, 500)
    assert pair.a.qp.poll_transmit(0) is not None  # the first packet of the first message is lost
    to(pair.a, QPState.SQD)
    assert events(pair.a) == []
    pair.run()
    assert statuses(pair.a.sent()) == [(1, OK)]
    assert events(pair.a) == [AsyncEventType.SQ_DRAINED]
    pair.a.send(3)  # may be posted, is not started
    pair.run()
    assert pair.a.qp.outstanding_requests == 2
    pair.b.receive(3)
    to(pair.a, QPState.RTS)
    pair.run()
    assert statuses(pair.a.sent()) == [(2, OK), (3, OK)] and events(pair.a) == []


def test_sqd_of_an_idle_queue_pair_is_drained_at_once() -> None:
    side = make()
    side.lead(0xB)
    to(side, QPState.SQD)
    assert events(side) == [AsyncEventType.SQ_DRAINED]
    to(side, QPState.SQD, STATE | QPAttrMask.TIMEOUT, timeout=10)
    assert events(side) == [] and side.qp.attr.timeout == 10


# -- notification


def test_a_solicited_send_wakes_who_asked_for_solicited_ones() -> None:
    pair = Pair()
    woken = []
    pair.b.recv_cq.on_event = lambda: woken.append(len(pair.b.recv_cq))
    pair.b.recv_cq.arm(solicited_only=True)
    for wr_id in range(3):
        pair.b.receive(wr_id)
    pair.a.send(1)
    pair.a.send(2, send_flags=SendFlag.SOLICITED)
    pair.a.send(3)
    pair.run()
    assert woken == [2]


def test_held_receives_stay_counted_until_they_are_released() -> None:
    """Case S18 of docs/reference/dat.md 23.3: finished by the transport, not yet delivered."""
    pair = Pair(b={"srq": SharedReceiveQueue(8, 4)})
    for wr_id in range(3):
        pair.b.receive(wr_id)
    pair.b.qp.hold_receives = True
    pair.a.send(1)
    pair.a.send(2)
    pair.run()
    assert pair.b.received() == [] and pair.b.qp.recv_query() == (2, 2)
    assert statuses(pair.a.sent()) == [(1, OK), (2, OK)]
    pair.b.qp.hold_receives = False
    assert statuses(pair.b.received()) == [(0, OK), (1, OK)] and pair.b.qp.recv_query() == (0, 0)


def test_held_receives_are_delivered_before_the_flush() -> None:
    pair = Pair()
    pair.b.receive(0)
    pair.b.receive(1)
    pair.b.qp.hold_receives = True
    pair.a.send(1)
    pair.run()
    to(pair.b, QPState.ERR)
    assert statuses(pair.b.received()) == [(0, OK), (1, FLUSHED)]


def test_the_access_flags_of_all_are_those_of_the_numbers() -> None:
    assert int(ALL_ACCESS) == 31 and int(RTS & RTR) == int(STATE)
    assert QPType.RC == 2
