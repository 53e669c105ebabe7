"""Queue pairs, shared receive queues and address handles, as an application uses them."""

import errno
from dataclasses import replace
from typing import Any

import pytest

import urds.verbs.enums as e
from tests.verbs.objects_world import QKEY, Side, World, attributes_towards
from urds.verbs import (
    AH,
    QP,
    SRQ,
    WC,
    AHAttr,
    Context,
    GlobalRoute,
    MWBindInfo,
    QPAttr,
    QPAttrMask,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    VerbsArgumentError,
    VerbsNotSupportedError,
    VerbsPostError,
    WCFlag,
    WCStatus,
    WROpcode,
)
from urds.verbs.providers.sim import SimNetwork


def statuses(completions: list[WC]) -> list[WCStatus]:
    return [wc.status for wc in completions]


# -- making and states


def test_an_address_is_needed_for_rtr() -> None:
    world = World()
    for route, match in [
        (None, "is no address"),
        (AHAttr(), "needs a global route"),
        (AHAttr(gr=GlobalRoute(b"short")), "GID of 5 bytes"),
        (AHAttr(gr=GlobalRoute(bytes(16), sgid_index=1)), "only port 1 and GID index 0"),
        (AHAttr(gr=GlobalRoute(bytes(16)), udp_port=1 << 16), "from 0 to 65535"),
    ]:
        attributes = replace(attributes_towards(world.right), ah_attr=route)
        with pytest.raises(VerbsArgumentError, match=match):
            world.left.qp.to_rtr(attributes)


# -- capabilities


def poor(**without: Any) -> Side:
    adapter = SimNetwork().adapter("poor")
    adapter.attributes = replace(adapter.attributes, **without)
    return Side(Context(adapter=adapter))


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


def test_a_region_that_is_closed_under_way_fails_the_request() -> None:
    """The memory is touched only under the lock, and not once its region is gone."""
    world = World().connect()
    world.right.receive()
    world.right.mr.close()
    world.left.send(b"too late")
    assert statuses(world.right.cq.wait_for()) == [WCStatus.LOC_PROT_ERR]
    assert world.right.buffer == bytes(len(world.right.buffer))
    world.right.buffer.clear()  # no view is left


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


# -- datagrams


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
