"""Bytes that a send work request brings itself, and how their owner gets them back."""

import errno

import pytest

from tests.sim.verbs_pair import MTU_BYTES, Pair
from tests.verbs.engine.verbs_sides import LOSSLESS, answer, done, make_asking, sent
from urds.verbs.engine.numbers import SendFlag, WCStatus, WROpcode
from urds.verbs.engine.packets import Syndrome
from urds.verbs.engine.queue_pair import QPCap
from urds.verbs.engine.requests import SendRequest
from urds.verbs.engine.work import SendWR
from urds.verbs.providers.tcp.stream import OutQueue

TEXT = bytes(range(250)) * 2  # several packets
OWN = bytes, lambda data: memoryview(bytearray(data))


def post(side, wr: SendWR) -> SendRequest:
    request = side.qp.post_send(wr, 0)
    assert request is not None
    return request


@pytest.mark.parametrize("own", OWN)
def test_a_send_carries_its_own_bytes(own) -> None:
    pair = Pair()
    pair.b.receive(7, 0, 1000)
    post(pair.a, SendWR(1, WROpcode.SEND, data=own(TEXT)))
    pair.run()
    (received,) = pair.b.received()
    assert (received.wr_id, received.byte_len) == (7, len(TEXT))
    assert pair.b.memory[: len(TEXT)] == TEXT and done(pair.a) == [(1, WCStatus.SUCCESS)]


@pytest.mark.parametrize("own", OWN)
def test_a_write_carries_its_own_bytes_and_its_word(own) -> None:
    pair = Pair(lossless=True)
    pair.b.receive(7)
    wr = SendWR(1, WROpcode.RDMA_WRITE_WITH_IMM, data=own(TEXT), imm_data=0xCAFE)
    wr.set_wr_rdma(pair.b.region.rkey, pair.b.address + 16)
    post(pair.a, wr)
    pair.run()
    (received,) = pair.b.received()
    assert (received.byte_len, received.imm_data) == (len(TEXT), 0xCAFE)
    assert pair.b.memory[16 : 16 + len(TEXT)] == TEXT and not any(pair.b.memory[:16])


def test_bytes_replace_the_pieces() -> None:
    side = make_asking()
    post(side, SendWR(1, WROpcode.SEND, [side.sge(0, 100)], data=b"own"))
    assert [bytes(packet.payload) for packet in sent(side)] == [b"own"]


def test_no_bytes_are_none_at_all() -> None:
    side = make_asking()
    post(side, SendWR(1, WROpcode.SEND, [side.sge(0, 100)], data=b""))
    assert [len(packet.payload) for packet in sent(side)] == [0]


def test_inline_bytes_are_copied_by_the_post() -> None:
    side, data = make_asking(), bytearray(b"first")
    request = post(side, SendWR(1, send_flags=SendFlag.INLINE, data=memoryview(data)))
    data[:] = b"other"
    assert [bytes(packet.payload) for packet in sent(side)] == [b"first"] and not request.detach()


def test_inline_bytes_have_the_limit_of_inline_data() -> None:
    side = make_asking(cap=QPCap(max_inline_data=4))
    with pytest.raises(OSError, match="max_inline_data"):
        side.qp.post_send(SendWR(1, send_flags=SendFlag.INLINE, data=b"12345"), 0)


@pytest.mark.parametrize(
    "data",
    [
        memoryview(bytes(8)).cast("Q"),
        memoryview(bytes(8)).cast("b"),
        memoryview(bytes(8)).cast("B", (2, 4)),
        memoryview(bytes(8))[::2],
        bytearray(8),
        "text",
    ],
)
def test_what_is_no_row_of_bytes_is_refused(data) -> None:
    side = make_asking()
    with pytest.raises(OSError, match="bytes of") as caught:
        side.qp.post_send(SendWR(1, data=data), 0)
    assert caught.value.errno == errno.EINVAL and not side.qp.outstanding_requests


@pytest.mark.parametrize(
    "opcode",
    [
        WROpcode.RDMA_READ,
        WROpcode.ATOMIC_CMP_AND_SWP,
        WROpcode.ATOMIC_FETCH_AND_ADD,
        WROpcode.LOCAL_INV,
        WROpcode.BIND_MW,
    ],
)
def test_who_sends_no_bytes_brings_none(opcode: WROpcode) -> None:
    side = make_asking()
    with pytest.raises(OSError, match="data of its own") as caught:
        side.qp.post_send(SendWR(1, opcode, [side.sge(0, 8)], data=bytes(8)), 0)
    assert caught.value.errno == errno.EINVAL


# -- given back


def test_after_a_detach_the_memory_may_change() -> None:
    """What was sent may be asked for again, and what was not is still to be sent."""
    side, data = make_asking(), bytearray(TEXT)
    request = post(side, SendWR(1, data=memoryview(data)))
    assert bytes(side.qp.poll_transmit(0).payload) == TEXT[:MTU_BYTES]
    assert request.detach() == len(TEXT)
    data[:] = bytes(len(TEXT))
    assert b"".join(packet.payload for packet in sent(side)) == TEXT[MTU_BYTES:]
    answer(side, 100, Syndrome.NAK_SEQUENCE, 10**9)
    assert b"".join(packet.payload for packet in sent(side, 10**9)) == TEXT
    assert request.detach() == 0


def test_a_detached_view_can_be_resized_by_its_owner() -> None:
    side, data = make_asking(), bytearray(TEXT)
    with memoryview(data) as view:
        request = post(side, SendWR(1, data=view))
        sent(side)
        request.detach()
    data.clear()  # BufferError while a view exists


def test_what_the_provider_has_placed_needs_no_copy() -> None:
    side, peer = make_asking(link=LOSSLESS), make_asking()
    placed: list[bytes] = []

    def place(_qp, _rkey, _address, data: memoryview) -> bool:
        placed.append(bytes(data))
        return True

    side.qp.place_remote = place
    wr = SendWR(1, WROpcode.RDMA_WRITE_WITH_IMM, data=memoryview(TEXT))
    wr.set_wr_rdma(peer.region.rkey, peer.address)
    request = post(side, wr)
    sent(side)
    assert (placed, request.is_placed, request.detach()) == ([TEXT], True, 0)


def test_bytes_need_no_copy() -> None:
    assert post(make_asking(), SendWR(1, data=TEXT)).detach() == 0


def test_what_is_answered_needs_no_copy() -> None:
    side = make_asking()
    request = post(side, SendWR(1, data=memoryview(b"short")))
    sent(side)
    answer(side, 100)
    assert done(side) == [(1, WCStatus.SUCCESS)] and request.detach() == 0


def test_a_detach_reaches_who_keeps_views() -> None:
    side, calls = make_asking(), []
    side.qp.on_detach = lambda: calls.append(1)
    request = post(side, SendWR(1, data=memoryview(TEXT)))
    request.detach()
    request.detach()
    post(side, SendWR(2, data=TEXT)).detach()
    assert calls == [1]


def test_an_out_queue_owns_its_pieces_after_a_copy() -> None:
    queue, memory = OutQueue(), bytearray(b"payload")
    queue.pieces += [b"header", memoryview(memory)]
    queue.copy()
    memory[:] = b"-------"
    assert b"".join(queue.pieces) == b"headerpayload"
