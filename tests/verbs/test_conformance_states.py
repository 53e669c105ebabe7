"""Conformance: how queue pairs are made, asked and led through their states."""

import errno
from dataclasses import replace

import pytest

from tests.verbs.conformance import (
    EVERYTHING,
    QKEY,
    Pair,
    Side,
    World,
    refuses,
    shows,
    towards,
)
from urds.verbs import (
    QP,
    AccessFlag,
    AsyncEventType,
    QPAttr,
    QPAttrMask,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    ReceiveOrder,
    RecvWR,
    SendWR,
    VerbsArgumentError,
    VerbsNotSupportedError,
    VerbsPostError,
    VerbsTimeoutError,
    WCStatus,
)
from urds.verbs.providers.base import ConnectionEventKind

TO_INIT = QPAttrMask.STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.ACCESS_FLAGS
TO_RTR = (
    QPAttrMask.STATE | QPAttrMask.AV | QPAttrMask.PATH_MTU | QPAttrMask.DEST_QPN
    | QPAttrMask.RQ_PSN | QPAttrMask.MAX_DEST_RD_ATOMIC | QPAttrMask.MIN_RNR_TIMER
)  # fmt: skip
TO_RTS = (
    QPAttrMask.STATE | QPAttrMask.SQ_PSN | QPAttrMask.MAX_QP_RD_ATOMIC | QPAttrMask.RETRY_CNT
    | QPAttrMask.RNR_RETRY | QPAttrMask.TIMEOUT
)  # fmt: skip


def newborn(side: Side, qp_type: QPType = QPType.RC) -> QP:
    return QP(side.pd, replace(side.init_attr, qp_type=qp_type))


# -- making


@pytest.mark.parametrize("qp_type", list(QPType))
def test_a_queue_pair_is_born_in_reset(world: World, qp_type: QPType) -> None:
    side = world.side()
    if qp_type is QPType.UD and world.lacks("datagrams"):
        refuses(lambda: newborn(side, qp_type))
        return
    qp = newborn(side, qp_type)
    attr, init_attr = qp.query()
    assert (qp.qp_type, qp.qp_state, attr.qp_state) == (qp_type, QPState.RESET, QPState.RESET)
    assert init_attr.scq is side.scq
    assert 0 < qp.qp_num < 1 << 24
    assert qp.qp_num != side.qp.qp_num


@pytest.mark.parametrize("qp_type", list(QPType))
def test_with_attributes_it_is_led_at_once(world: World, qp_type: QPType) -> None:
    if qp_type is QPType.UD and world.lacks("datagrams"):
        refuses(lambda: world.side(qp_type=qp_type))
        return
    side = world.side(qp_type=qp_type)
    assert side.qp.qp_state is (QPState.INIT if qp_type is QPType.RC else QPState.RTS)


@pytest.mark.parametrize(
    "name", ["max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data"]
)
def test_capacities_have_limits(world: World, name: str) -> None:
    side = world.side()
    limits = {"max_send_wr": "max_qp_wr", "max_recv_wr": "max_qp_wr", "max_inline_data": name}
    limit = getattr(side.context.attributes, limits.get(name, "max_sge"))
    for value in (-1, limit + 1):
        with pytest.raises(VerbsArgumentError, match=f"{name} {value}, from 0 to {limit}"):
            QP(side.pd, replace(side.init_attr, cap=QPCap(**{name: value})))
    assert QP(side.pd, replace(side.init_attr, cap=QPCap(**{name: 1}))).query()[0].cap


def test_what_a_queue_pair_needs_must_be_there(world: World) -> None:
    side = world.side()
    for missing in ("scq", "rcq"):
        with pytest.raises(VerbsArgumentError, match="needs two completion queues"):
            QP(side.pd, replace(side.init_attr, **{missing: None}))
    with pytest.raises(VerbsArgumentError, match="known are RC, UD"):
        QP(side.pd, replace(side.init_attr, qp_type=77))


@pytest.mark.parametrize("receive_order", list(ReceiveOrder)[1:])
def test_receive_order_is_what_the_device_states(world: World, receive_order: ReceiveOrder) -> None:
    side = world.side()
    init_attr = replace(side.init_attr, receive_order=receive_order)
    if world.lacks_receive_order(receive_order):
        with pytest.raises(VerbsNotSupportedError) as caught:
            QP(side.pd, init_attr)
        assert caught.value.errno == errno.EOPNOTSUPP
        assert receive_order.name in caught.value.capability
        return
    pair = world.pair(receive_order=receive_order, srq=8)
    pair.right.receive(8, count=4)
    for number in range(4):
        pair.left.post(wr_id=number)
    assert pair.left.ended(4) == [WCStatus.SUCCESS] * 4
    assert [wc.wr_id for wc in pair.right.received(4)] == [0, 1, 2, 3]


# -- leading


def test_a_queue_pair_is_led_by_hand(world: World) -> None:
    pair = world.pair(connected=False)
    if world.lacks("raw_connect"):
        with pytest.raises(VerbsNotSupportedError, match="raw_connect"):
            pair.left.qp.to_rtr(towards(pair.right))
        assert pair.left.qp.qp_state is QPState.INIT
        pair.connect()
    else:
        for near, far in ((pair.left, pair.right), (pair.right, pair.left)):
            near.qp.to_rtr(towards(far, rq_psn=0xFF_FFFE))
            assert near.qp.qp_state is QPState.RTR
            near.qp.to_rts(towards(far, sq_psn=0xFF_FFFE))
        attr, _ = pair.left.qp.query()
        assert (attr.dest_qp_num, attr.sq_psn) == (pair.right.qp.qp_num, 0xFF_FFFE)
        assert (attr.max_rd_atomic, attr.retry_cnt) == (8, 7)
    assert pair.left.qp.qp_state is QPState.RTS
    pair.right.receive(8, count=5)
    for number in range(5):
        pair.left.post(wr_id=number)
    assert pair.left.ended(5) == [WCStatus.SUCCESS] * 5


@pytest.mark.parametrize("mask", [TO_INIT, TO_RTR, TO_RTS], ids=["init", "rtr", "rts"])
def test_each_attribute_that_a_step_needs_is_needed(world: World, mask: QPAttrMask) -> None:
    """One bit missing or too many refuses the modify whole."""
    side, peer = world.side(), world.side()
    steps = [(QPState.INIT, TO_INIT), (QPState.RTR, TO_RTR), (QPState.RTS, TO_RTS)]
    qp = newborn(side)
    attr = towards(peer)
    state = next(state for state, needed in steps if needed is mask)
    if state is not QPState.INIT and world.lacks("raw_connect"):
        refuses(lambda: qp.modify(replace(attr, qp_state=state), mask))
        return
    for earlier, needed in steps[: [one for one, _ in steps].index(state)]:
        qp.modify(replace(attr, qp_state=earlier), needed)
    before, _ = qp.query()
    wrong = [mask & ~bit for bit in mask if bit is not QPAttrMask.STATE]
    for given in [*wrong, mask | QPAttrMask.CAP, mask | QPAttrMask(1 << 30)]:
        with pytest.raises(VerbsArgumentError):
            qp.modify(replace(attr, qp_state=state), given)
        assert qp.query()[0] == before
    qp.modify(replace(attr, qp_state=state), mask)
    assert qp.qp_state is state


@pytest.mark.parametrize(
    ("name", "value"),
    [("pkey_index", -1), ("port_num", 256), ("qp_access_flags", None)],
)
def test_values_that_cannot_be_are_refused(world: World, name: str, value: int | None) -> None:
    qp = newborn(world.side())
    attr = QPAttr(qp_state=QPState.INIT, qp_access_flags=EVERYTHING)
    if value is not None:
        with pytest.raises(VerbsArgumentError, match=name):
            qp.modify(replace(attr, **{name: value}), TO_INIT)
        assert qp.qp_state is QPState.RESET
    qp.modify(attr, TO_INIT)
    assert qp.qp_state is QPState.INIT


@pytest.mark.parametrize("state", [QPState.RTR, QPState.RTS, QPState.SQD, QPState.SQE])
def test_states_cannot_be_skipped(world: World, state: QPState) -> None:
    qp = newborn(world.side())
    if state in (QPState.RTR, QPState.RTS) and world.lacks("raw_connect"):
        refuses(lambda: qp.modify(QPAttr(qp_state=state), QPAttrMask.STATE))
    else:
        with pytest.raises(VerbsArgumentError, match="no such transition"):
            qp.modify(QPAttr(qp_state=state), QPAttrMask.STATE)
    assert qp.qp_state is QPState.RESET


# -- posting in each state


def test_posting_in_a_state_that_does_not_allow_it(world: World) -> None:
    pair = world.pair(connected=False)
    side = pair.left
    fresh = newborn(side)
    piece = side.mr.sge(0, 8)
    refused = [
        lambda: fresh.post_recv(RecvWR(0, [piece])),
        lambda: fresh.post_send(SendWR(0, sg=[piece])),
        lambda: side.qp.post_send(SendWR(0, sg=[piece])),
    ]
    if not world.lacks("raw_connect"):
        fresh.to_init(QPAttr(qp_access_flags=EVERYTHING))
        fresh.to_rtr(towards(pair.right))
        refused[0] = lambda: fresh.post_send(SendWR(0, sg=[piece]))
        refused[1] = refused[2]
    world.has_refused = False
    for post in refused:
        with pytest.raises(VerbsPostError, match="posted in state") as caught:
            post()
        assert caught.value.errno == errno.EINVAL
    side.qp.post_recv(RecvWR(1, [piece]))  # in INIT receives may be posted


def test_receives_posted_before_the_connection_stay(world: World) -> None:
    pair = world.pair(connected=False)
    pair.right.receive(8, count=3)
    pair.connect()
    for number in range(3):
        pair.left.post(wr_id=number)
    assert [wc.wr_id for wc in pair.right.received(3)] == [0, 1, 2]


def test_reset_forgets_everything_and_the_queue_pair_serves_again(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    left.receive(8, count=4)
    for number in range(3):
        left.post(wr_id=number)  # there is no receive
    for side in (left, right):
        side.modify(QPState.RESET)
        assert side.qp.qp_state is QPState.RESET
        side.until(ConnectionEventKind.BROKEN, ConnectionEventKind.DISCONNECTED)
        side.told.clear()
    assert left.scq.poll(4) == left.rcq.poll(4) == (0, [])
    pair.connect()
    right.qp.post_recv(RecvWR(9, [right.mr.sge(0, 8)]))
    left.post(wr_id=8)
    assert [wc.wr_id for wc in left.sent()] == [8]
    assert [wc.wr_id for wc in right.received()] == [9]


@shows(AsyncEventType.COMM_EST)
def test_the_first_message_in_rtr_is_told(world: World) -> None:
    pair = world.pair(connected=False)
    if world.lacks("raw_connect"):
        with pytest.raises(VerbsNotSupportedError):
            pair.by_hand()
        return
    pair.right.receive(8, count=2)
    pair.right.qp.to_rtr(towards(pair.left))
    pair.left.qp.to_rts(towards(pair.right))
    pair.left.post()
    assert pair.left.ended() == [WCStatus.SUCCESS]
    pair.right.event(AsyncEventType.COMM_EST)
    pair.left.post()
    assert pair.left.ended() == [WCStatus.SUCCESS]
    pair.right.no_event()


@shows(AsyncEventType.SQ_DRAINED)
def test_draining_holds_new_requests_back_until_the_queue_pair_goes_on(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    right.receive(8, count=2)
    left.post(wr_id=1)
    left.modify(QPState.SQD)
    assert left.sent()[0].wr_id == 1
    left.event(AsyncEventType.SQ_DRAINED)
    left.post(wr_id=2)
    with pytest.raises(VerbsTimeoutError):
        left.scq.wait_for(1, 0.01)
    left.modify(QPState.RTS)
    assert left.sent()[0].wr_id == 2
    assert [wc.wr_id for wc in right.received(2)] == [0, 1]


def test_rights_change_while_the_queue_pair_runs(world: World) -> None:
    pair = world.pair()
    attr = QPAttr(qp_access_flags=AccessFlag.LOCAL_WRITE)
    pair.right.qp.modify(attr, QPAttrMask.ACCESS_FLAGS)
    assert pair.right.qp.query()[0].qp_access_flags == AccessFlag.LOCAL_WRITE
    pair.left.mr.write(b"no")
    pair.left.post(opcode=0, length=2, to=pair.right.mr)
    assert pair.left.ended() == [WCStatus.REM_INV_REQ_ERR]
    assert pair.right.mr.read(2) == bytes(2)


def test_a_queue_pair_has_one_connection(world: World) -> None:
    pair = world.pair()
    with pytest.raises(OSError) as caught:
        Pair(pair.left, world.side()).connect()
    assert caught.value.errno == errno.EINVAL
    pair.right.receive(8)
    pair.left.post()
    assert pair.left.ended() == [WCStatus.SUCCESS]


def test_init_attributes_may_be_used_again(world: World) -> None:
    side = world.side()
    init_attr = QPInitAttr(scq=side.scq, rcq=side.rcq)
    first, second = QP(side.pd, init_attr), QP(side.pd, init_attr, QPAttr(qkey=QKEY))
    assert first.qp_state is QPState.RESET
    assert second.qp_state is QPState.INIT


@pytest.mark.parametrize("end", ["reset", "close"])
def test_completions_not_polled_go_with_the_life_of_their_queue_pair(
    world: World, end: str
) -> None:
    """As most adapters have it: another life may use the same number and wr_id."""
    side = world.side()
    stays = QP(side.pd, side.init_attr, QPAttr())
    for qp, wr_id in ((side.qp, 7), (stays, 8)):
        qp.post_recv(RecvWR(wr_id, [side.mr.sge(0, 8)]))
        qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE)
    assert len(side.rcq) == 2
    if end == "reset":
        side.modify(QPState.RESET)
    else:
        side.qp.close()
    assert [wc.wr_id for wc in side.rcq.poll(4)[1]] == [8], "the other one's stays"
