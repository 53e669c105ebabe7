"""The requester, answer by answer: what it sends, repeats, completes and gives up."""

import pytest

from tests.verbs.engine.verbs_sides import LOSSLESS, answer, done, make_asking, psns, sent
from urds.verbs.engine.keys import WindowBinding
from urds.verbs.engine.numbers import (
    AccessFlag,
    QPState,
    SendFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.packets import PacketFlag, PacketKind, Syndrome
from urds.verbs.engine.work import SendWR

FLUSHED = WCStatus.WR_FLUSH_ERR
OK = WCStatus.SUCCESS


# -- packets


def test_a_message_is_cut_into_packets() -> None:
    side = make_asking()
    side.memory[:130] = bytes(range(130))
    side.send(1, 0, 130, send_flags=SendFlag.SIGNALED | SendFlag.SOLICITED)
    first, middle, last = sent(side)
    assert (first.psn, first.flags, first.offset) == (100, PacketFlag.FIRST, 0)
    assert (middle.psn, middle.flags, middle.offset) == (101, PacketFlag(0), 64)
    marks = PacketFlag.LAST | PacketFlag.ACK_REQUEST | PacketFlag.SOLICITED
    assert (last.psn, last.flags, last.offset, len(last.payload)) == (102, marks, 128, 2)
    assert {packet.msn for packet in (first, middle, last)} == {1}
    assert b"".join([first.payload, middle.payload, last.payload]) == bytes(range(130))


def test_the_payload_is_a_view_of_the_memory() -> None:
    side = make_asking()
    side.send(1, 0, 10)
    (packet,) = sent(side)
    assert isinstance(packet.payload, memoryview) and packet.payload.obj is side.memory


def test_an_empty_message_is_one_packet() -> None:
    side = make_asking()
    side.send(1)
    (packet,) = sent(side)
    assert not len(packet.payload) and packet.flags & (PacketFlag.FIRST | PacketFlag.LAST)


def test_each_packet_of_a_write_names_its_target() -> None:
    side, peer = make_asking(), make_asking()
    side.remote(1, WROpcode.RDMA_WRITE, peer, at=8, length=100)
    assert [packet.address - peer.address for packet in sent(side)] == [8, 72]


def test_only_what_takes_a_receive_has_a_number() -> None:
    side, peer = make_asking(), make_asking()
    side.send(1)
    side.remote(2, WROpcode.RDMA_WRITE, peer, length=1)
    side.remote(3, WROpcode.RDMA_WRITE_WITH_IMM, peer, length=1, imm_data=9)
    side.send(4, opcode=WROpcode.SEND_WITH_INV, invalidate_rkey=77)
    packets = sent(side)
    assert [packet.msn for packet in packets] == [1, 0, 2, 3]
    assert packets[2].flags & PacketFlag.IMMEDIATE and packets[2].immediate == 9
    assert packets[3].flags & PacketFlag.INVALIDATE and packets[3].immediate == 77


def test_a_posted_record_may_be_used_again_at_once() -> None:
    side = make_asking()
    wr = SendWR(1, WROpcode.SEND, [side.sge(0, 3)])
    side.qp.post_send(wr, 0)
    wr.wr_id, wr.sg = 2, []
    side.qp.post_send(wr, 0)
    assert [len(packet.payload) for packet in sent(side)] == [3, 0]
    answer(side, 101)
    assert done(side) == [(1, OK), (2, OK)]


def test_the_window_bounds_what_is_under_way() -> None:
    side = make_asking(memory_bytes=64 * 200)
    side.send(1, 0, 64 * 200)
    assert len(sent(side)) == 128
    answer(side, 163)
    assert len(sent(side)) == 64


def test_psns_wrap() -> None:
    side = make_asking(attr={"sq_psn": 0xFFFFFF})
    side.send(1, 0, 100)
    assert psns(side) == [0xFFFFFF, 0]
    answer(side, 0)
    assert done(side) == [(1, OK)]


# -- completions


def test_acks_of_what_was_never_sent_are_ignored() -> None:
    side = make_asking()
    side.send(1)
    sent(side)
    for psn in (101, 99, 0x800000, 0xFFFFFF):
        answer(side, psn)
        answer(side, psn, Syndrome.NAK_REMOTE_ACCESS)
        answer(side, psn, Syndrome.RNR_NAK)
        answer(side, psn, kind=PacketKind.READ_RESPONSE)
        answer(side, psn, kind=PacketKind.ATOMIC_RESPONSE)
    assert done(side) == [] and side.qp.state is QPState.RTS


@pytest.mark.parametrize("span", [((0, 0xFFFFFF),), ((101, 99),), ((0x900000, 0x8FFFFF),)])
def test_ranges_that_make_no_sense_do_no_harm(span: tuple[tuple[int, int], ...]) -> None:
    side = make_asking()
    side.send(1)
    side.send(2)
    sent(side)
    answer(side, 0x900000, selective=span)
    answer(side, 99, selective=span)
    assert side.qp.state is QPState.RTS


# -- reads and atomics


def test_a_read_asks_once_and_gathers_its_answers() -> None:
    side, peer = make_asking(), make_asking()
    side.remote(1, WROpcode.RDMA_READ, peer, at=16, offset=100, length=100)
    side.send(2)
    request, send = sent(side)
    assert (request.psn, request.length, request.address) == (100, 100, peer.address + 16)
    assert send.psn == 102  # two answers, two PSNs
    answer(side, 101, kind=PacketKind.READ_RESPONSE, offset=64, payload=b"b" * 36)
    answer(side, 102)  # does not stand in for the answer that is missing
    assert done(side) == []
    answer(side, 100, kind=PacketKind.READ_RESPONSE, payload=b"a" * 64)
    assert side.memory[100:200] == b"a" * 64 + b"b" * 36
    wc = side.sent()
    assert [(entry.wr_id, entry.opcode, entry.byte_len) for entry in wc] == [
        (1, WCOpcode.RDMA_READ, 100),
        (2, WCOpcode.SEND, 0),
    ]


def test_an_answer_of_a_wrong_size_is_no_answer() -> None:
    side, peer = make_asking(), make_asking()
    side.remote(1, WROpcode.RDMA_READ, peer, length=100)
    sent(side)
    answer(side, 100, kind=PacketKind.READ_RESPONSE, payload=b"a" * 63)
    answer(side, 101, kind=PacketKind.READ_RESPONSE, payload=b"a" * 64)
    answer(side, 101, kind=PacketKind.ATOMIC_RESPONSE)
    assert side.memory[:100] == bytes(100) and done(side) == []


def test_a_long_read_is_asked_in_portions() -> None:
    """A portion is 64 answers; two fit the window, and each spends one of max_rd_atomic."""
    side, peer = make_asking(memory_bytes=20_000), make_asking()
    side.remote(1, WROpcode.RDMA_READ, peer, length=64 * 200)
    assert [(packet.psn, packet.length) for packet in sent(side)] == [(100, 4096), (164, 4096)]
    for psn in range(100, 164):
        answer(side, psn, kind=PacketKind.READ_RESPONSE, payload=b"a" * 64)
    assert psns(side) == [228]
    alone = make_asking(memory_bytes=20_000, attr={"max_rd_atomic": 1})
    alone.remote(1, WROpcode.RDMA_READ, peer, length=64 * 200)
    assert psns(alone) == [100]


def test_the_result_of_an_atomic_is_stored() -> None:
    side, peer = make_asking(), make_asking()
    side.remote(1, WROpcode.ATOMIC_FETCH_AND_ADD, peer, at=8, length=8, compare_add=3)
    side.remote(2, WROpcode.ATOMIC_CMP_AND_SWP, peer, offset=8, length=8, compare_add=3, swap=4)
    add, swap = sent(side)
    assert (add.kind, add.compare_add, add.address) == (PacketKind.ATOMIC_ADD, 3, peer.address + 8)
    assert (swap.kind, swap.compare_add, swap.swap) == (PacketKind.ATOMIC_SWAP, 3, 4)
    answer(side, 100, kind=PacketKind.ATOMIC_RESPONSE, compare_add=1)
    answer(side, 101, kind=PacketKind.ATOMIC_RESPONSE, compare_add=(1 << 64) - 1)
    assert side.memory[:16] == (1).to_bytes(8, "little") + b"\xff" * 8
    assert [(wc.opcode, wc.byte_len) for wc in side.sent()] == [
        (WCOpcode.FETCH_ADD, 8),
        (WCOpcode.COMP_SWAP, 8),
    ]


def test_reads_beyond_max_rd_atomic_wait_and_so_does_what_follows() -> None:
    side, peer = make_asking(attr={"max_rd_atomic": 2}), make_asking()
    for wr_id in range(3):
        side.remote(wr_id, WROpcode.RDMA_READ, peer, length=8)
    side.send(3)
    assert psns(side) == [100, 101]
    answer(side, 100, kind=PacketKind.READ_RESPONSE, payload=bytes(8))
    assert psns(side) == [102, 103]


def test_a_fence_waits_for_reads_and_atomics_only() -> None:
    side, peer = make_asking(), make_asking()
    side.send(1)
    side.send(2, send_flags=SendFlag.FENCE | SendFlag.SIGNALED)
    side.remote(3, WROpcode.RDMA_READ, peer, length=8)
    side.send(4, send_flags=SendFlag.FENCE | SendFlag.SIGNALED)
    assert psns(side) == [100, 101, 102]
    answer(side, 101)
    assert psns(side) == []
    answer(side, 102, kind=PacketKind.READ_RESPONSE, payload=bytes(8))
    assert psns(side) == [103]


def test_a_link_without_loss_gives_a_read_one_psn() -> None:
    side, peer = make_asking(link=LOSSLESS), make_asking()
    side.remote(1, WROpcode.RDMA_READ, peer, length=64 * 200 % 4096)
    side.send(2)
    assert psns(side) == [100, 101]
    data = bytes(range(256))[:512]
    side.remote(3, WROpcode.RDMA_READ, peer, length=len(data))
    answer(side, 100, kind=PacketKind.READ_RESPONSE, payload=b"x" * 60, flags=PacketFlag.FIRST)
    assert done(side) == [] and side.qp.state is QPState.RTS


def test_a_wrong_answer_on_a_link_without_loss_is_a_bad_response() -> None:
    side, peer = make_asking(link=LOSSLESS), make_asking()
    side.remote(1, WROpcode.RDMA_READ, peer, length=10)
    sent(side)
    answer(side, 100, kind=PacketKind.READ_RESPONSE, payload=b"x" * 11, flags=PacketFlag.LAST)
    assert done(side) == [(1, WCStatus.BAD_RESP_ERR)] and side.memory[:1] == b"\0"


# -- windows


def test_windows_are_bound_and_invalidated_in_order() -> None:
    side = make_asking()
    window = side.keys.new_window(side.pd, kind=2)
    bind = WindowBinding(side.region, side.address, 16, AccessFlag.REMOTE_READ)
    side.send(1)
    side.send(2, opcode=WROpcode.BIND_MW, window=window, bind=bind)
    old_key = window.rkey
    sent(side)
    assert window.rkey != old_key and done(side) == []  # bound, but the send before it waits
    answer(side, 100)
    assert done(side) == [(1, OK), (2, OK)]
    side.send(3, opcode=WROpcode.LOCAL_INV, invalidate_rkey=window.rkey)
    assert sent(side) == [] and done(side) == [(3, OK)] and window.region is None


def test_a_failed_bind_waits_for_what_is_before_it() -> None:
    side = make_asking(access=AccessFlag.LOCAL_WRITE)
    window = side.keys.new_window(side.pd)
    bind = WindowBinding(side.region, side.address, 16, AccessFlag.REMOTE_READ)
    side.send(1)
    side.send(2, opcode=WROpcode.BIND_MW, window=window, bind=bind)
    side.send(3)
    assert psns(side) == [100] and done(side) == []
    answer(side, 100)
    assert done(side) == [(1, OK), (2, WCStatus.MW_BIND_ERR), (3, FLUSHED)]
    assert side.qp.state is QPState.ERR


# -- errors


def test_a_read_that_lost_its_answers_is_flushed_before_a_refused_request() -> None:
    side, peer = make_asking(), make_asking()
    side.remote(1, WROpcode.RDMA_READ, peer, length=8)
    side.send(2)
    sent(side)
    answer(side, 101, Syndrome.NAK_INVALID_REQUEST)
    assert done(side) == [(1, FLUSHED), (2, WCStatus.REM_INV_REQ_ERR)]


def test_a_read_into_memory_that_is_gone_is_a_protection_error() -> None:
    side, peer = make_asking(), make_asking()
    side.remote(1, WROpcode.RDMA_READ, peer, length=8)
    sent(side)
    side.keys.deregister(side.region)
    answer(side, 100, kind=PacketKind.READ_RESPONSE, payload=b"12345678")
    assert done(side) == [(1, WCStatus.LOC_PROT_ERR)] and side.memory[:8] == bytes(8)


# -- placed by the provider


def test_the_provider_may_place_a_write_itself() -> None:
    side, peer = make_asking(link=LOSSLESS), make_asking()
    placed: list[tuple[int, int, bytes]] = []

    def place(_qp, rkey: int, address: int, data: memoryview) -> bool:
        placed.append((rkey, address, bytes(data)))
        return True

    side.qp.place_remote = place
    side.memory[:200] = b"z" * 200
    side.remote(1, WROpcode.RDMA_WRITE_WITH_IMM, peer, at=4, length=200, imm_data=5)
    (packet,) = sent(side)
    assert packet.flags & PacketFlag.PLACED and packet.length == 200 and not len(packet.payload)
    assert packet.immediate == 5 and packet.msn == 1
    ((rkey, address, data),) = placed
    assert (address, rkey) == (peer.address + 4, peer.region.rkey)
    assert data == b"z" * 200


def test_no_write_is_placed_while_an_earlier_one_is_under_way() -> None:
    """The bytes of the earlier one would land later, over those of the later one."""
    side, peer = make_asking(link=LOSSLESS), make_asking()
    willing = [False, True, True]
    side.qp.place_remote = lambda *_: willing.pop(0)
    side.remote(1, WROpcode.RDMA_WRITE, peer, length=8)
    side.remote(2, WROpcode.RDMA_WRITE, peer, length=8)
    assert [bool(packet.flags & PacketFlag.PLACED) for packet in sent(side)] == [False, False]
    answer(side, 101)
    side.remote(3, WROpcode.RDMA_WRITE_WITH_IMM, peer, length=8)
    assert sent(side)[0].flags & PacketFlag.PLACED


def test_a_placed_write_has_no_packet_and_completes_in_its_turn() -> None:
    side, peer = make_asking(link=LOSSLESS), make_asking()
    side.qp.place_remote = lambda *_: True
    side.remote(1, WROpcode.RDMA_WRITE, peer, length=8)
    assert sent(side) == [] and done(side) == [(1, WCStatus.SUCCESS)]
    side.send(2, length=8)
    side.remote(3, WROpcode.RDMA_WRITE, peer, length=8)
    assert psns(side) == [100] and done(side) == []
    answer(side, 100)
    assert done(side) == [(2, WCStatus.SUCCESS), (3, WCStatus.SUCCESS)]
    side.send(4, length=8)
    assert psns(side) == [101]
