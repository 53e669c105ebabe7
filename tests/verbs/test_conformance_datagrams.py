"""Conformance: datagram queue pairs. A device without them refuses to make one."""

import errno
from typing import Any

import pytest

from tests.verbs.conformance import QKEY, Side, World, refuses, shows
from urds.verbs import (
    AH,
    AHAttr,
    GlobalRoute,
    QPAttr,
    QPAttrMask,
    QPState,
    QPType,
    SendFlag,
    VerbsArgumentError,
    VerbsPostError,
    VerbsTimeoutError,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.datagrams import OWN_QKEY_BIT
from urds.verbs.engine.numbers import GRH_BYTES


def sides(world: World) -> tuple[Side, Side] | None:
    """Return two sides with datagram queue pairs; without datagrams show the refusal."""
    if world.lacks("datagrams"):
        refuses(lambda: world.side(qp_type=QPType.UD))
        return None
    return world.side(qp_type=QPType.UD), world.side(qp_type=QPType.UD)


def send(left: Side, right: Side, data: bytes, qkey: int = QKEY, **fields: Any) -> None:
    """Send a datagram from left to right."""
    left.mr.write(data)
    ah = AH(left.pd, right.route())
    remote = {"remote_qpn": right.qp.qp_num, "remote_qkey": qkey}
    left.post(length=len(data), ah=ah.vector, **remote, **fields)


def nothing_comes(side: Side) -> None:
    """Show that no receive completes, though all that was sent before has arrived."""
    with pytest.raises(VerbsTimeoutError):
        side.rcq.wait_for(1, 0.02)


@shows(WROpcode.SEND, WCStatus.SUCCESS)
@pytest.mark.parametrize("size", [0, 1, 200, 1200])
def test_a_datagram_arrives_behind_its_header(world: World, size: int) -> None:
    if (found := sides(world)) is None:
        return
    left, right = found
    right.receive(GRH_BYTES + 1400)
    send(left, right, b"d" * size, wr_id=3)
    wc = right.received()[0]
    assert (wc.status, wc.opcode, wc.wc_flags) == (WCStatus.SUCCESS, WCOpcode.RECV, WCFlag.GRH)
    assert (wc.byte_len, wc.src_qp) == (GRH_BYTES + size, left.qp.qp_num)
    assert right.mr.read(size + 1, GRH_BYTES) == b"d" * size + b"\0"
    assert left.sent()[0].wr_id == 3


@shows(WROpcode.SEND_WITH_IMM)
def test_a_datagram_with_immediate_data(world: World) -> None:
    if (found := sides(world)) is None:
        return
    left, right = found
    right.receive(GRH_BYTES + 8)
    send(left, right, b"8 octets", opcode=WROpcode.SEND_WITH_IMM, imm_data=0xABCD_EF01)
    wc = right.received()[0]
    assert (wc.imm_data, wc.wc_flags) == (0xABCD_EF01, WCFlag.WITH_IMM | WCFlag.GRH)
    assert left.ended() == [WCStatus.SUCCESS]


def test_a_datagram_is_answered_by_the_handle_made_of_it(world: World) -> None:
    if (found := sides(world)) is None:
        return
    left, right = found
    right.receive(GRH_BYTES + 8)
    send(left, right, b"question")
    wc = right.received()[0]
    ah = AH(right.pd, wc=wc, grh=right.mr.read(GRH_BYTES))
    left.receive(GRH_BYTES + 8, offset=100)
    right.mr.write(b"answer!!")
    right.post(ah=ah.vector, remote_qpn=wc.src_qp, remote_qkey=QKEY)
    assert left.received()[0].src_qp == right.qp.qp_num
    assert left.mr.read(8, 100 + GRH_BYTES) == b"answer!!"


def test_inline_datagrams_may_change_after_the_post(world: World) -> None:
    if (found := sides(world)) is None:
        return
    left, right = found
    right.receive(GRH_BYTES + 8)
    send(left, right, b"original", flags=SendFlag.INLINE | SendFlag.SIGNALED)
    left.mr.write(b"changed!")
    right.received()
    assert right.mr.read(8, GRH_BYTES) == b"original"


def test_a_wrong_key_is_dropped_and_the_own_one_serves(world: World) -> None:
    if (found := sides(world)) is None:
        return
    left, right = found
    right.receive(GRH_BYTES + 8)
    send(left, right, b"unknown!", qkey=QKEY + 1)
    assert left.ended() == [WCStatus.SUCCESS]  # a datagram is complete when it is on its way
    nothing_comes(right)
    send(left, right, b"own key!", qkey=OWN_QKEY_BIT)
    assert right.received()[0].status is WCStatus.SUCCESS
    assert right.mr.read(8, GRH_BYTES) == b"own key!"


def test_a_datagram_without_a_receive_is_dropped(world: World) -> None:
    if (found := sides(world)) is None:
        return
    left, right = found
    send(left, right, b"too soon")
    assert left.ended() == [WCStatus.SUCCESS]
    nothing_comes(right)
    right.receive(GRH_BYTES + 8)
    nothing_comes(right)
    send(left, right, b"in time!")
    assert right.received()[0].status is WCStatus.SUCCESS


def test_a_datagram_to_an_unbound_port_is_lost(world: World) -> None:
    if (found := sides(world)) is None:
        return
    left, right = found
    vector = right.route().vector()
    right.context.close()
    left.post(ah=vector, remote_qpn=77, remote_qkey=QKEY)
    assert left.ended() == [WCStatus.SUCCESS]
    assert left.qp.qp_state is QPState.RTS


@shows(WCStatus.LOC_LEN_ERR)
def test_a_receive_that_is_too_small_fails_alone(world: World) -> None:
    """An unknown peer must not be able to end the queue pair."""
    if (found := sides(world)) is None:
        return
    left, right = found
    right.receive(GRH_BYTES + 7, wr_id=1)
    right.receive(GRH_BYTES + 8, offset=100, wr_id=2)
    for _ in range(2):
        send(left, right, b"8 octets")
    first, second = right.received(2)
    assert (first.wr_id, first.status) == (1, WCStatus.LOC_LEN_ERR)
    assert (second.wr_id, second.status) == (2, WCStatus.SUCCESS)
    assert right.mr.read(9, 100 + GRH_BYTES) == b"8 octets\0"


@shows(WCStatus.LOC_PROT_ERR, WCStatus.WR_FLUSH_ERR)
def test_a_send_that_fails_stops_sending_and_not_receiving(world: World) -> None:
    if (found := sides(world)) is None:
        return
    left, right = found
    vector = right.route().vector()
    bad = left.mr.sge(0, 8)
    bad = type(bad)(bad.addr, bad.length, bad.lkey ^ 1)
    left.post(sg=[bad], ah=vector, remote_qpn=right.qp.qp_num, remote_qkey=QKEY)
    assert left.ended() == [WCStatus.LOC_PROT_ERR]
    assert left.qp.qp_state is QPState.SQE
    left.post(ah=vector, remote_qpn=right.qp.qp_num, remote_qkey=QKEY)
    assert left.ended() == [WCStatus.WR_FLUSH_ERR]
    left.receive(GRH_BYTES + 8, offset=100)
    send(right, left, b"received")
    assert left.received()[0].status is WCStatus.SUCCESS
    left.modify(QPState.RTS)
    right.receive(GRH_BYTES + 8, offset=100)
    send(left, right, b"goes on!")
    assert right.received()[0].status is WCStatus.SUCCESS


def test_what_a_datagram_cannot_be_is_refused(world: World) -> None:
    if (found := sides(world)) is None:
        return
    left, right = found
    vector = right.route().vector()
    limit = left.qp.engine.link.mtu_bytes
    big = world.memory(left.pd, limit + 1).mr
    refused = [
        lambda opcode=opcode: left.post(opcode, ah=vector)
        for opcode in WROpcode
        if opcode not in (WROpcode.SEND, WROpcode.SEND_WITH_IMM)
    ]
    refused.append(lambda: left.post(sg=[big.sge()], ah=vector))
    refused.append(lambda: left.post(ah=None))
    for post in refused:
        with pytest.raises(VerbsPostError) as caught:
            post()
        assert caught.value.errno == errno.EINVAL
    assert left.scq.poll(1) == (0, [])


@pytest.mark.parametrize(
    "attr",
    [
        AHAttr(),
        AHAttr(gr=GlobalRoute(bytes(16)), is_global=0),
        AHAttr(gr=GlobalRoute(bytes(16)), port_num=2),
        AHAttr(gr=GlobalRoute(bytes(16), sgid_index=1)),
        AHAttr(gr=GlobalRoute(bytes(15))),
        AHAttr(gr=GlobalRoute("no address")),
        AHAttr(gr=GlobalRoute(bytes(16)), udp_port=1 << 16),
    ],
)
def test_addresses_that_cannot_be_are_refused(world: World, attr: AHAttr) -> None:
    with pytest.raises(VerbsArgumentError):
        AH(world.side().pd, attr)


def test_the_end_of_a_datagram_queue_pair_flushes_its_receives(world: World) -> None:
    if (found := sides(world)) is None:
        return
    left, _ = found
    left.receive(64, count=5)
    left.modify(QPState.ERR)
    completions = left.received(5)
    assert [wc.wr_id for wc in completions] == list(range(5))
    assert {wc.status for wc in completions} == {WCStatus.WR_FLUSH_ERR}
    left.modify(QPState.RESET)
    left.qp.to_rts(QPAttr(qkey=QKEY))
    left.qp.modify(QPAttr(qkey=QKEY + 1), QPAttrMask.QKEY)
    assert left.qp.query()[0].qkey == QKEY + 1
