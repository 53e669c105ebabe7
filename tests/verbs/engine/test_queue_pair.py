"""The queue pair as its owner sees it: states, posting, flushing, events, draining."""

import errno

import pytest

from tests.sim.verbs_pair import (
    INIT,
    MTU_BYTES,
    RTR,
    Pair,
    Side,
)
from urds.verbs.engine.numbers import (
    AsyncEventType,
    QPAttrMask,
    QPState,
    SendFlag,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.queue_pair import LinkTraits, QPAttr, QPCap
from urds.verbs.engine.receives import SharedReceiveQueue
from urds.verbs.engine.work import SGE, AddressVector, SendWR

LOSSY = LinkTraits(MTU_BYTES, lossless=False)
OK, FLUSHED = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
STATE = QPAttrMask.STATE


def make(**fields) -> Side:
    return Side(0xA, LOSSY, **fields)


def to(side: Side, state: QPState, mask: QPAttrMask = STATE, **fields) -> None:
    side.qp.modify(QPAttr(qp_state=state, **fields), mask, 0)


def events(side: Side) -> list[AsyncEventType]:
    told = side.qp.outbox.take_events()
    assert all(event.element is side.qp for event in told)
    return [event.event_type for event in told]


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


# -- posting


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


# -- end to end


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
