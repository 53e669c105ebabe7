"""Queue pairs, shared receive queues and address handles, as an application uses them."""

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import urds.verbs.enums as e
from tests.verbs.objects_world import EVERYTHING, QKEY, Side, World, attributes_towards
from urds.verbs import (
    AH,
    CQ,
    QP,
    SGE,
    SRQ,
    WC,
    AddressVector,
    AHAttr,
    AsyncEventType,
    Context,
    GlobalRoute,
    MWBindInfo,
    QPAttr,
    QPAttrMask,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    ReceiveOrder,
    RecvWR,
    SendFlag,
    SendWR,
    SrqAttr,
    SRQAttrMask,
    SrqInitAttr,
    VerbsArgumentError,
    VerbsNotSupportedError,
    VerbsPostError,
    VerbsTimeoutError,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.providers.sim import SimNetwork


def statuses(completions: list[WC]) -> list[WCStatus]:
    return [wc.status for wc in completions]


# -- making and states


def test_a_queue_pair_is_born_in_reset_and_led_by_hand() -> None:
    world = World()
    qp, attributes = world.left.qp, attributes_towards(world.right)
    assert (qp.qp_state, qp.qp_type, qp.qp_num) == (QPState.RESET, QPType.RC, qp.engine.qpn)
    qp.to_init(attributes)
    assert qp.qp_state is QPState.INIT
    qp.to_rtr(attributes)
    assert qp.qp_state is QPState.RTR
    qp.to_rts(attributes)
    assert qp.qp_state is QPState.RTS
    qp.modify(QPAttr(qp_state=QPState.RESET), QPAttrMask.STATE)
    qp.to_rts(attributes)
    found, init = qp.query()
    assert (found.qp_state, found.cur_qp_state) == (QPState.RTS, QPState.RTS)
    assert found.dest_qp_num == world.right.qp.qp_num
    assert found.ah_attr == AddressVector(world.right.context.adapter.gid)
    assert found.cap == QPCap() and init == world.left.init_attr


@pytest.mark.parametrize(
    ("qp_type", "state"), [(QPType.RC, QPState.INIT), (QPType.UD, QPState.RTS)]
)
def test_with_attributes_it_is_led_at_once(qp_type: QPType, state: QPState) -> None:
    side = World(qp_type=qp_type).left
    qp = QP(side.pd, side.init_attr, QPAttr(qkey=QKEY, qp_access_flags=EVERYTHING))
    assert qp.qp_state is state


def test_a_modify_that_cannot_be_changes_nothing() -> None:
    world = World().connect()
    qp = world.left.qp
    for attr, mask, match in [
        (QPAttr(qp_state=QPState.INIT), QPAttrMask.STATE, "RTS to INIT: no such transition"),
        (QPAttr(qp_state=QPState.SQD), QPAttrMask.STATE | QPAttrMask.AV, "superfluous AV"),
        (QPAttr(), QPAttrMask.RQ_PSN, "superfluous RQ_PSN"),
    ]:
        if QPAttrMask.AV in mask:
            attr.ah_attr = world.right.route()
        with pytest.raises(VerbsArgumentError, match=match):
            qp.modify(attr, mask)
        assert qp.qp_state is QPState.RTS


def test_an_address_is_needed_for_rtr() -> None:
    world = World()
    for route, match in [
        (None, "is no address"),
        (AHAttr(), "needs a global route"),
        (AHAttr(gr=GlobalRoute(b"short")), "GID of 5 bytes"),
        (AHAttr(gr=GlobalRoute(bytes(16), sgid_index=1)), "only 1 and 0"),
        (AHAttr(gr=GlobalRoute(bytes(16)), udp_port=1 << 16), "from 0 to 65535"),
    ]:
        attributes = replace(attributes_towards(world.right), ah_attr=route)
        with pytest.raises(VerbsArgumentError, match=match):
            world.left.qp.to_rtr(attributes)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("max_send_wr", 16_384),
        ("max_recv_wr", 16_384),
        ("max_send_sge", 32),
        ("max_recv_sge", 32),
        ("max_inline_data", 65_536),
    ],
)
def test_capacities_beyond_the_device_are_refused(name: str, limit: int) -> None:
    side = World().left
    for value in (-1, limit + 1):
        init = replace(side.init_attr, cap=QPCap(**{name: value}))
        with pytest.raises(VerbsArgumentError, match=f"{name} {value}, from 0 to {limit}"):
            QP(side.pd, init)
    QP(side.pd, replace(side.init_attr, cap=QPCap(**{name: limit})))


def test_what_a_queue_pair_is_made_of_must_fit() -> None:
    side = World().left
    foreign = CQ(Context(adapter=SimNetwork().adapter()), 4)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"scq": None}, "needs two completion queues"),
        ({"rcq": foreign}, "the CQ is another device's"),
        ({"qp_type": 77}, "of kind 77, known are RC, UD"),
    ]
    for change, match in cases:
        with pytest.raises(VerbsArgumentError, match=match):
            QP(side.pd, replace(side.init_attr, **change))


# -- capabilities


def poor(**without: Any) -> Side:
    adapter = SimNetwork().adapter("poor")
    adapter.attributes = replace(adapter.attributes, **without)
    return Side(Context(adapter=adapter))


@pytest.mark.parametrize(
    ("capability", "opcode"),
    [
        ("send_with_imm", WROpcode.SEND_WITH_IMM),
        ("rdma_with_imm", WROpcode.RDMA_WRITE_WITH_IMM),
        ("atomics", WROpcode.ATOMIC_CMP_AND_SWP),
        ("atomics", WROpcode.ATOMIC_FETCH_AND_ADD),
        ("masked_atomics", WROpcode.MASKED_ATOMIC_CMP_AND_SWP),
        ("masked_atomics", WROpcode.MASKED_ATOMIC_FETCH_AND_ADD),
        ("memory_windows", WROpcode.BIND_MW),
        ("memory_windows", WROpcode.LOCAL_INV),
        ("memory_windows", WROpcode.SEND_WITH_INV),
    ],
)
def test_an_opcode_that_the_device_has_not_got_is_refused(
    capability: str, opcode: WROpcode
) -> None:
    side = poor(**{capability: False})
    with pytest.raises(VerbsPostError, match=f"device poor has no capability `{capability}`") as no:
        side.qp.post_send([SendWR(opcode=opcode)])
    assert (no.value.errno, no.value.bad_wr) == (errno.EOPNOTSUPP, 0)


def test_kinds_and_ways_that_the_device_has_not_got_are_refused() -> None:
    side = poor(
        datagrams=False, raw_connect=False, receive_order=frozenset({ReceiveOrder.IN_ORDER})
    )
    for change, match in [
        ({"qp_type": QPType.UD}, "`datagrams`"),
        ({"receive_order": ReceiveOrder.ARRIVAL_ORDER}, "`receive_order ARRIVAL_ORDER`"),
    ]:
        with pytest.raises(VerbsNotSupportedError, match=match) as refused:
            QP(side.pd, replace(side.init_attr, **change))
        assert refused.value.errno == errno.EOPNOTSUPP
    with pytest.raises(VerbsNotSupportedError, match="`raw_connect`"):
        side.lead_to(side)
    assert side.qp.qp_state is QPState.INIT  # every test goes this far by hand


@pytest.mark.parametrize("name", ["UC", "RAW_PACKET", "XRC_SEND", "XRC_RECV", "DRIVER"])
def test_a_type_that_no_device_has_is_not_supported(name: str) -> None:
    """Programs skip what EOPNOTSUPP says; EINVAL would be their mistake."""
    side = World().left
    qp_type: Any = getattr(e, f"IBV_QPT_{name}")
    with pytest.raises(VerbsNotSupportedError, match=f"`qp_type {name}`") as refused:
        QP(side.pd, replace(side.init_attr, qp_type=qp_type))
    assert refused.value.errno == errno.EOPNOTSUPP


def test_a_message_beyond_the_device_is_refused() -> None:
    side = poor(max_msg_sz=16)
    with pytest.raises(VerbsPostError, match="message of 17 bytes, limit 16"):
        side.qp.post_send(SendWR(sg=[side.mr.sge(0, 9), side.mr.sge(0, 8)]))


# -- work


def test_lists_and_chains_are_posted_in_order() -> None:
    world = World().connect()
    chain = RecvWR(0, [world.right.mr.sge(0, 8)])
    chain.next_wr = RecvWR(1, [world.right.mr.sge(8, 8)])
    world.right.qp.post_recv([chain, RecvWR(2, [world.right.mr.sge(16, 8)])])
    pieces = [world.left.mr.sge(number, 1) for number in range(3)]
    world.left.mr.write(b"abc")
    head = SendWR(10, sg=[pieces[0]])
    head.next_wr = SendWR(11, sg=[pieces[1]])
    world.left.qp.post_send(iter([head, SendWR(12, sg=[pieces[2]])]))
    assert [wc.wr_id for wc in world.left.cq.wait_for(3)] == [10, 11, 12]
    assert [wc.wr_id for wc in world.right.cq.wait_for(3)] == [0, 1, 2]
    assert world.right.buffer[:24:8] == b"abc"


def test_a_bad_request_names_its_place_and_those_before_it_are_posted() -> None:
    world = World(cap=QPCap(max_send_sge=1, max_recv_wr=2)).connect()
    piece = world.left.mr.sge(0, 4)
    good, bad = SendWR(1, sg=[piece]), SendWR(2, sg=[piece, piece])
    world.right.receive()
    with pytest.raises(VerbsPostError, match=r"work request 1 of the list: .*limit 1") as refused:
        world.left.qp.post_send([good, bad, SendWR(3)])
    assert (refused.value.errno, refused.value.bad_wr) == (errno.EINVAL, 1)
    assert [wc.wr_id for wc in world.left.cq.wait_for()] == [1]
    receives = [RecvWR(number) for number in range(4)]
    with pytest.raises(VerbsPostError, match=r"max_wr") as full:
        world.right.qp.post_recv(receives)
    assert (full.value.errno, full.value.bad_wr) == (errno.ENOMEM, 2)


def test_a_chain_that_leads_back_to_its_start_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """In ERR each request is flushed at once, so that no full queue stops the chain."""
    world = World().connect()
    ring = SendWR(1)
    ring.next_wr = ring
    with pytest.raises(VerbsPostError, match="queue is full"):
        world.left.qp.post_send(ring)
    world.left.qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE)
    monkeypatch.setattr("urds.verbs.qp.REQUESTS_MAX", 1000)
    with pytest.raises(VerbsPostError, match="more than 1000 work requests"):
        world.left.qp.post_send(ring)


@pytest.mark.parametrize("srq", [0, 4])
def test_a_number_of_pieces_is_checked_against_the_list(srq: int) -> None:
    """As pyverbs programs give it; without one the list alone counts."""
    world = World(srq=srq).connect()
    left, right = world.left, world.right
    target = right.qp if right.srq is None else right.srq
    target.post_recv(RecvWR(1, num_sge=1, sg=[right.mr.sge()]))
    left.qp.post_send(SendWR(1, WROpcode.SEND, num_sge=1, sg=[left.mr.sge(0, 4)]))
    assert statuses(left.cq.wait_for(1)) == [WCStatus.SUCCESS]
    with pytest.raises(VerbsPostError, match="num_sge 2, the list `sg` has 1"):
        target.post_recv(RecvWR(2, num_sge=2, sg=[right.mr.sge()]))
    with pytest.raises(VerbsPostError, match="num_sge 0, the list `sg` has 1"):
        left.qp.post_send(SendWR(2, num_sge=0, sg=[left.mr.sge(0, 4)]))


def test_posting_in_the_wrong_state_is_refused() -> None:
    side = World().left
    with pytest.raises(VerbsPostError, match="RESET"):
        side.receive()
    with pytest.raises(VerbsPostError, match="RESET"):
        side.send(b"x")


def test_inline_data_may_change_after_the_post() -> None:
    world = World().connect()
    world.right.receive()
    world.left.send(b"inline", flags=SendFlag.SIGNALED | SendFlag.INLINE)
    world.left.mr.write(bytes(world.left.mr.length))
    world.right.cq.wait_for()
    assert world.right.mr.read(6) == b"inline"


def test_numbers_go_in_plainly() -> None:
    """Immediate data and atomics over the objects; each opcode's rules are the engine's tests."""
    world = World().connect()
    left, right = world.left, world.right
    right.mr.write((40).to_bytes(8, "little"), offset=8)
    add = SendWR(1, WROpcode.ATOMIC_FETCH_AND_ADD, [left.mr.sge(0, 8)])
    add.set_wr_atomic(right.mr.rkey, right.mr.buf + 8, 2)
    left.qp.post_send(add)
    [wc] = left.cq.wait_for()
    assert (wc.status, wc.opcode) == (WCStatus.SUCCESS, WCOpcode.FETCH_ADD)
    assert int.from_bytes(left.mr.read(8), "little") == 40
    assert int.from_bytes(right.mr.read(8, 8), "little") == 42
    right.receive(5)
    left.qp.post_send(SendWR(2, WROpcode.SEND_WITH_IMM, imm_data=0xDEADBEEF))
    [wc] = right.cq.wait_for()
    assert (wc.imm_data, wc.wc_flags) == (0xDEADBEEF, WCFlag.WITH_IMM)


def test_a_region_that_is_closed_under_way_fails_the_request() -> None:
    """The memory is touched only under the lock, and not once its region is gone."""
    world = World().connect()
    world.right.receive()
    world.right.mr.close()
    world.left.send(b"too late")
    assert statuses(world.right.cq.wait_for()) == [WCStatus.LOC_PROT_ERR]
    assert world.right.buffer == bytes(len(world.right.buffer))
    world.right.buffer.clear()  # no view is left


def test_error_flushes_both_queues() -> None:
    world = World().connect()
    left = world.left
    left.receive(1)
    left.send(b"x", 2)
    left.qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE)
    left.receive(3)
    found = left.cq.wait_for(3)
    assert set(statuses(found)) == {WCStatus.WR_FLUSH_ERR}
    assert {wc.wr_id for wc in found} == {1, 2, 3}


def test_a_binding_needs_its_record() -> None:
    world = World().connect()
    from urds.verbs import MW

    mw = MW(world.left.pd)
    with pytest.raises(VerbsPostError, match="without an MWBindInfo"):
        world.left.qp.post_send(SendWR(opcode=WROpcode.BIND_MW, window=mw))
    with pytest.raises(VerbsPostError, match="BIND_MW without a window"):
        world.left.qp.post_send(SendWR(opcode=WROpcode.BIND_MW))
    assert MWBindInfo(world.left.mr, 0, 0).binding().region is world.left.mr.engine


# -- shared receive queues


def test_a_shared_queue_serves_its_queue_pair() -> None:
    world = World(srq=4).connect()
    srq = world.right.srq
    assert srq is not None
    srq.post_recv([RecvWR(number, [world.right.mr.sge(number * 8, 8)]) for number in range(3)])
    world.left.send(b"first")
    world.left.send(b"second")
    assert [wc.wr_id for wc in world.right.cq.wait_for(2)] == [0, 1]
    assert (len(srq), srq.engine.attached) == (1, 1)
    with pytest.raises(VerbsPostError, match="shared queue"):
        world.right.receive()
    world.right.qp.close()
    assert (len(srq), srq.engine.attached) == (1, 0)


def test_the_limit_of_a_shared_queue_is_an_event() -> None:
    world = World(srq=8).connect()
    srq, context = world.right.srq, world.right.context
    assert srq is not None
    srq.post_recv([RecvWR(number, [world.right.mr.sge(0, 8)]) for number in range(3)])
    srq.modify(SrqAttr(srq_limit=2), SRQAttrMask.LIMIT)
    assert srq.query() == SrqAttr(max_wr=8, max_sge=2, srq_limit=2)
    world.left.send(b"1")
    world.right.cq.wait_for()
    with pytest.raises(VerbsTimeoutError):
        context.get_async_event(timeout_s=0)
    world.left.send(b"2")
    event = context.get_async_event()
    assert (event.event_type, event.element) == (AsyncEventType.SRQ_LIMIT_REACHED, srq)
    assert srq.query().srq_limit == 0


def test_a_shared_queue_is_resized_and_refuses_what_cannot_be() -> None:
    pd = World().left.pd
    srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=4, max_sge=1)))
    srq.post_recv([RecvWR(1), RecvWR(2)])
    rejected: list[tuple[Callable[[], object], str]] = [
        (lambda: srq.modify(SrqAttr(max_wr=1), SRQAttrMask.MAX_WR), "the 2 that wait"),
        (lambda: srq.modify(SrqAttr(max_wr=0), SRQAttrMask.MAX_WR), "max_wr 0, from 1"),
        (lambda: srq.modify(SrqAttr(srq_limit=5), SRQAttrMask.LIMIT), "from 0 to max_wr 4"),
        (lambda: srq.modify(SrqAttr(max_wr=3, srq_limit=4), 3), "from 0 to max_wr 3"),
        (lambda: srq.modify(SrqAttr(), 0), "mask 0x0"),
        (lambda: srq.modify(SrqAttr(), 4), "mask 0x4"),
        (lambda: SRQ(pd, SrqAttr(max_wr=1 << 21)), "max_wr 2097152, from 1 to 1048576"),
        (lambda: SRQ(pd, SrqAttr(max_sge=33)), "max_sge 33, from 1 to 32"),
    ]
    for call, match in rejected:
        with pytest.raises(VerbsArgumentError, match=match):
            call()
        assert srq.query() == SrqAttr(max_wr=4, max_sge=1)
    srq.modify(SrqAttr(max_wr=2), SRQAttrMask.MAX_WR)
    with pytest.raises(VerbsPostError, match="full: 2") as full:
        srq.post_recv(RecvWR(3))
    assert (full.value.errno, full.value.bad_wr) == (errno.ENOMEM, 0)
    with pytest.raises(VerbsPostError, match="pieces, limit 1"):
        srq.post_recv(RecvWR(3, [SGE(0, 1, 1)] * 2))


# -- datagrams


def test_a_datagram_is_answered_by_the_handle_made_of_it() -> None:
    world = World(qp_type=QPType.UD).connect()
    left, right = world.left, world.right
    right.receive(byte_count=128)
    world.send_datagram(b"who is there")
    [wc] = right.cq.wait_for()
    assert (wc.byte_len, wc.src_qp, wc.wc_flags) == (52, left.qp.qp_num, WCFlag.GRH)
    assert right.mr.read(12, 40) == b"who is there"
    left.cq.wait_for()
    with AH(right.pd, wc=wc, grh=right.mr.view) as sender:
        left.receive(9, 256, 128)
        answer = SendWR(sg=[right.mr.sge(40, 12)])
        answer.set_wr_ud(sender, wc.src_qp, QKEY)
        right.qp.post_send(answer)
    assert [wc.wr_id for wc in left.cq.wait_for()] == [9]


def test_a_handle_may_be_given_in_any_form() -> None:
    world = World(qp_type=QPType.UD).connect()
    handle = AH(world.left.pd, world.right.route())
    for number, form in enumerate((handle, world.right.route(), handle.vector)):
        world.right.receive(number, byte_count=64)
        wr = SendWR(ah=form, remote_qpn=world.right.qp.qp_num, remote_qkey=QKEY)  # type: ignore[arg-type]  # the point of the test
        world.left.qp.post_send(wr)
    assert [wc.wr_id for wc in world.right.cq.wait_for(3)] == [0, 1, 2]
    handle.close()
    for form in (handle, None, "10.0.0.1"):
        with pytest.raises(VerbsPostError):
            world.left.qp.post_send(SendWR(ah=form))  # type: ignore[arg-type]  # the point of the test


def test_a_handle_needs_to_know_where_to() -> None:
    side = World().left
    with_grh = WC(0, wc_flags=WCFlag.GRH)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "needs attr, or wc and grh"),
        ({"wc": with_grh}, "needs attr, or wc and grh"),
        ({"wc": WC(0), "grh": bytes(40)}, "no WCFlag.GRH"),
        ({"wc": with_grh, "grh": bytes(39)}, "GRH of 39 bytes"),
        ({"wc": with_grh, "grh": bytes(40)}, "GRH of version 0"),
    ]
    for arguments, match in cases:
        with pytest.raises(VerbsArgumentError, match=match):
            AH(side.pd, **arguments)


def test_init_attributes_may_be_used_again() -> None:
    side = World().left
    init = QPInitAttr(scq=side.cq, rcq=side.cq, qp_context="mine")
    first, second = QP(side.pd, init), QP(side.pd, init)
    assert first.qp_num != second.qp_num
    init.qp_context, init.cap.max_send_wr, init.srq = "next", 1, SRQ(side.pd)
    first.close()
    assert second.query()[1].qp_context == "mine"
