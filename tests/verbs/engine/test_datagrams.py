"""Datagrams: sent once, received with the sender's address before them, or dropped silently."""

import errno

import pytest

from tests.sim.verbs_pair import MTU_BYTES, Side
from urds.common.errors import WireError
from urds.verbs.engine.datagrams import emit_grh, parse_grh
from urds.verbs.engine.numbers import (
    GRH_BYTES,
    AsyncEventType,
    QPAttrMask,
    QPState,
    QPType,
    SendFlag,
    WCFlag,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.packets import Packet, PacketFlag
from urds.verbs.engine.queue_pair import LinkTraits, QPAttr
from urds.verbs.engine.work import AddressVector, EngineEvent, SendWR

LOSSY = LinkTraits(MTU_BYTES, lossless=False)
QKEY = 0x1234
ORIGIN = AddressVector(b"\xfe\x80" + bytes(13) + b"\x01", 4791)
TARGET = AddressVector(bytes(15) + b"\x02", 5000)
OK = WCStatus.SUCCESS


def make(*, qkey: int = QKEY, **fields) -> Side:
    side = Side(0xD, LOSSY, qp_type=QPType.UD, **fields)
    init = QPAttrMask.STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.QKEY
    side.qp.modify(QPAttr(qp_state=QPState.INIT, qkey=qkey), init, 0)
    side.qp.modify(QPAttr(qp_state=QPState.RTR), QPAttrMask.STATE, 0)
    rts = QPAttrMask.STATE | QPAttrMask.SQ_PSN
    side.qp.modify(QPAttr(qp_state=QPState.RTS, sq_psn=0xFFFFFF), rts, 0)
    return side


def send(side: Side, wr_id: int, length: int = 0, **fields) -> None:
    fields = {"ah": TARGET, "remote_qpn": 0xE, "remote_qkey": QKEY} | fields
    side.send(wr_id, 0, length, **fields)


def sent(side: Side) -> list[Packet]:
    found = []
    while (packet := side.qp.poll_transmit(0)) is not None:
        found.append(packet)
    return found


def statuses(wcs) -> list[tuple[int, WCStatus]]:
    return [(wc.wr_id, wc.status) for wc in wcs]


def test_a_datagram_names_its_way_and_completes_when_it_is_sent() -> None:
    side = make()
    side.memory[:5] = b"hello"
    send(side, 1, 5)
    send(side, 2, opcode=WROpcode.SEND_WITH_IMM, imm_data=9, send_flags=SendFlag.SOLICITED)
    first, second = sent(side)
    assert (first.destination, first.target_qpn, first.qkey) == (TARGET, 0xE, QKEY)
    assert (first.source_qpn, first.psn, bytes(first.payload)) == (0xD, 0xFFFFFF, b"hello")
    assert second.psn == 0 and second.immediate == 9
    assert second.flags & PacketFlag.IMMEDIATE and second.flags & PacketFlag.SOLICITED
    assert statuses(side.sent()) == [(1, OK)]  # the other one is not signalled
    assert side.qp.outstanding_requests == 0


def test_a_datagram_may_bring_its_own_bytes() -> None:
    side, data = make(), bytearray(b"datagram")
    wr = SendWR(1, data=memoryview(data), ah=TARGET, remote_qpn=0xE, remote_qkey=QKEY)
    request = side.qp.post_send(wr, 0)
    assert request is not None and request.detach() == len(data)
    data[:] = bytes(len(data))
    assert [bytes(packet.payload) for packet in sent(side)] == [b"datagram"]
    assert statuses(side.sent()) == [(1, OK)]


def test_own_bytes_of_a_datagram_fit_its_link() -> None:
    side = make()
    with pytest.raises(OSError, match=f"limit {MTU_BYTES}"):
        side.qp.post_send(SendWR(1, data=bytes(MTU_BYTES + 1), ah=TARGET), 0)


def test_a_receive_begins_with_where_the_datagram_came_from() -> None:
    a, b = make(), make()
    b.qp.gid = TARGET.dgid
    b.receive(7, 0, 100)
    a.memory[:5] = b"hello"
    send(a, 1, 5, opcode=WROpcode.SEND_WITH_IMM, imm_data=3)
    b.qp.receive_packet(sent(a)[0], 0, ORIGIN)
    (wc,) = b.received()
    assert (wc.wr_id, wc.status, wc.byte_len, wc.src_qp) == (7, OK, GRH_BYTES + 5, 0xD)
    assert wc.wc_flags == WCFlag.GRH | WCFlag.WITH_IMM and wc.imm_data == 3
    assert parse_grh(b.memory[:GRH_BYTES]) == ORIGIN
    assert bytes(b.memory[24:40]) == TARGET.dgid and b.memory[40:45] == b"hello"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"length": MTU_BYTES + 1}, "65 bytes, limit 64"),
        ({"ah": None}, "address handle"),
        ({"opcode": WROpcode.RDMA_WRITE}, "RDMA_WRITE on a datagram"),
    ],
)
def test_what_cannot_be_a_datagram_is_refused_at_once(fields: dict, reason: str) -> None:
    with pytest.raises(OSError, match=reason) as raised:
        send(make(), 1, **fields)
    assert raised.value.errno == errno.EINVAL


def test_sqd_stops_sending() -> None:
    side = make()
    side.qp.modify(QPAttr(qp_state=QPState.SQD), QPAttrMask.STATE, 0)
    (event,) = side.qp.outbox.take_events()
    assert event == EngineEvent(AsyncEventType.SQ_DRAINED, side.qp)
    send(side, 1)
    assert sent(side) == []
    side.qp.modify(QPAttr(qp_state=QPState.RTS), QPAttrMask.STATE, 0)
    assert len(sent(side)) == 1


def test_bytes_that_are_no_grh_are_refused() -> None:
    with pytest.raises(WireError, match="39 bytes"):
        parse_grh(bytes(39))
    with pytest.raises(WireError, match="version 4"):
        parse_grh(b"\x40" + emit_grh(ORIGIN, bytes(16), 0)[1:])
