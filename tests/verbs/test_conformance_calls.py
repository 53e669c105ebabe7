"""Conformance: the calls of each message, which the compiled engine puts into the objects itself.

They have one behaviour whether the call is a method in Python or the engine's own.
"""

import threading
from itertools import pairwise
from typing import Any

import pytest

from tests.verbs.conformance import EVERYTHING, Memory, Pair, World, shows
from urds.verbs import (
    CQ,
    MW,
    QP,
    MWBind,
    MWBindInfo,
    MWType,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    SendFlag,
    SendWR,
    VerbsArgumentError,
    VerbsClosedError,
    VerbsPostError,
    WCOpcode,
    WCStatus,
    WROpcode,
)

CALLS = ("post_send", "post_recv", "send", "write")


def test_the_engine_gives_the_calls_where_nothing_is_to_be_refused(world: World) -> None:
    side = world.pair().left
    is_native = world.row in ("shm-native", "shm-mixed")
    assert side.context.adapter.has_public_calls is is_native
    assert (
        set(CALLS) <= vars(side.qp).keys() if is_native else not set(CALLS) & vars(side.qp).keys()
    )
    assert ("poll" in vars(side.scq)) is is_native


def test_what_a_subclass_overrides_stays_its_own(world: World) -> None:
    class Counting(QP):
        posted = 0

        def post_recv(self, wr: Any) -> None:
            self.posted += 1
            super().post_recv(wr)

    side = world.side()
    with Counting(side.pd, side.init_attr, side.attr) as qp:
        qp.post_recv(RecvWR(1))
        assert qp.posted == 1


@shows(WCStatus.SUCCESS)
@pytest.mark.parametrize("size", [0, 5, 80, 81, 5000, 40_000])
def test_the_short_form_sends_bytes_of_any_kind(world: World, size: int) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    content = bytes(place & 255 for place in range(size))
    for wr_id, data in enumerate((content, bytearray(content), memoryview(content))):
        right.receive(size, wr_id=wr_id)
        left.qp.send(data, wr_id)
        assert right.received()[0].byte_len == size
        assert right.mr.read(size) == content
        sent = left.sent()[0]
        assert (sent.wr_id, sent.status, sent.opcode) == (wr_id, WCStatus.SUCCESS, WCOpcode.SEND)


@shows(WCStatus.SUCCESS)
@pytest.mark.parametrize("size", [1, 255, 5000])
def test_the_short_form_writes_bytes(world: World, size: int) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    content = bytes((place * 3) & 255 for place in range(size))
    left.qp.write(content, right.mr.buf + 7, right.mr.rkey)
    left.qp.write(memoryview(bytearray(content)), right.mr.buf + 6000, right.mr.rkey, wr_id=9)
    assert [(wc.wr_id, wc.opcode) for wc in left.sent(2)] == [
        (0, WCOpcode.RDMA_WRITE),
        (9, WCOpcode.RDMA_WRITE),
    ]
    assert right.mr.read(size, 7) == right.mr.read(size, 6000) == content


@pytest.mark.parametrize("size", [0, 1, 30, 31, 100])
def test_a_short_form_may_be_inline(world: World, size: int) -> None:
    pair = world.pair(cap=QPCap(max_inline_data=100))
    left, right = pair.left, pair.right
    inline = SendFlag.INLINE | SendFlag.SIGNALED
    content = bytes(place + 1 for place in range(size))
    for wr_id, data in enumerate((content, memoryview(bytearray(content)))):
        right.receive(size)
        left.qp.send(data, wr_id, inline)
        right.received()
        assert right.mr.read(size) == content
        left.qp.write(data, right.mr.buf + 200, right.mr.rkey, 9, inline)
        assert [wc.status for wc in left.sent(2)] == [WCStatus.SUCCESS] * 2
        assert right.mr.read(size, 200) == content


def test_a_short_form_completes_only_if_it_asks_for_it(world: World) -> None:
    pair = world.pair()
    pair.right.receive(count=2)
    pair.left.qp.send(b"quiet", 1, SendFlag(0))
    pair.left.qp.send(b"loud", wr_id=2, flags=SendFlag.SIGNALED)
    assert [wc.wr_id for wc in pair.left.sent()] == [2]


def test_bytes_that_are_not_in_one_piece_are_refused(world: World) -> None:
    left = world.pair().left
    for call in (left.qp.send, lambda data: left.qp.write(data, 0, 0)):
        with pytest.raises(VerbsPostError, match=r"one piece") as caught:
            call(memoryview(bytes(10))[::2])
        assert (caught.value.bad_wr, caught.value.errno) == (0, 22)


@pytest.mark.parametrize("address", [-1, 1 << 64])
def test_a_short_form_refuses_an_address_beyond_64_bits(world: World, address: int) -> None:
    with pytest.raises(OverflowError):
        world.pair().left.qp.write(b"x", address, 1)


def test_a_list_is_posted_up_to_the_one_that_is_refused(world: World) -> None:
    pair = world.pair()
    pair.right.receive(count=4)
    good = [SendWR(number, sg=[pair.left.mr.sge(0, 4)]) for number in range(2)]
    bad = SendWR(7, num_sge=9)
    for given in ([*good, bad], iter([*good, bad]), [good[0], _chain(good[1], bad)]):
        with pytest.raises(VerbsPostError, match="work request 2 of the list") as caught:
            pair.left.qp.post_send(given)
        assert caught.value.bad_wr == 2
        assert isinstance(caught.value.__cause__, OSError)
        assert [wc.wr_id for wc in pair.left.sent(2)] == [0, 1]
        pair.right.received(2)
        pair.right.receive(count=2)


def _chain(*requests: SendWR) -> SendWR:
    for one, following in pairwise(requests):
        one.next_wr = following
    return requests[0]


def test_a_chain_that_leads_back_to_its_start_ends_when_the_queue_is_full(world: World) -> None:
    side = world.pair().left
    receive = RecvWR(1)
    receive.next_wr = receive
    with pytest.raises(VerbsPostError, match="full") as caught:
        side.qp.post_recv(receive)
    assert caught.value.bad_wr == 128


def test_what_is_no_request_is_refused_as_python_does(world: World) -> None:
    side = world.pair().left
    posts: tuple[Any, ...] = (side.qp.post_send, side.qp.post_recv)
    for post in posts:
        with pytest.raises(TypeError):
            post(7)
        for other in ([7], [None]):
            with pytest.raises(TypeError, match="a work request of the list must be"):
                post(other)
        post([])


def test_a_poll_takes_so_many_by_place_or_by_name(world: World) -> None:
    pair = world.pair()
    pair.right.receive(count=3)
    for number in range(3):
        pair.left.qp.send(b"x", number)
    pair.right.received(3)
    deadline = threading.Event()
    while len(pair.left.scq) < 3 and not deadline.wait(0.001):
        assert pair.left.scq.poll(0) == (0, [])
    count, first = pair.left.scq.poll(num_entries=2)
    assert (count, [wc.wr_id for wc in first]) == (2, [0, 1])
    count, rest = pair.left.scq.poll(16)
    assert (count, [wc.wr_id for wc in rest]) == (1, [2])
    assert pair.left.scq.poll() == (0, [])


def test_closed_objects_refuse_also_by_a_method_that_was_kept(world: World) -> None:
    side = world.pair().left
    post_send, post_recv, send, write = (getattr(side.qp, name) for name in CALLS)
    poll = side.scq.poll
    side.qp.close()
    for call in (
        lambda: post_send(SendWR()), lambda: post_recv(RecvWR()), lambda: send(b""),
        lambda: write(b"", 0, 0), lambda: side.qp.post_send(SendWR()), lambda: side.qp.send(b""),
        lambda: side.qp.post_recv([]), lambda: side.qp.write(b"", 0, 0),
    ):  # fmt: skip
        with pytest.raises(VerbsClosedError, match="QP is closed"):
            call()
    side.scq.close()
    for ask in (poll, side.scq.poll):
        with pytest.raises(VerbsClosedError, match="CQ is closed"):
            ask()


def test_a_thread_that_waits_hears_what_another_one_polled_in(world: World) -> None:
    if world.is_simulated:
        pytest.skip("a waiting thread runs the virtual time itself")
    pair = world.pair()
    other = CQ(pair.right.context, 16)
    found: list[int] = []

    def wait() -> None:
        found.extend(wc.wr_id for wc in pair.right.rcq.wait_for(1, 8))

    pair.right.receive(wr_id=5)
    waiting = threading.Thread(target=wait)
    waiting.start()
    pair.left.qp.send(b"news")
    while waiting.is_alive():
        other.poll()
        pair.left.scq.poll()
    waiting.join()
    assert found == [5]


@shows(WROpcode.BIND_MW)
def test_a_window_is_bound_by_a_posted_request(world: World) -> None:
    pair = world.pair()
    left = pair.left
    if not left.context.attributes.memory_windows:
        pytest.skip("the device has no windows")
    window = MW(left.pd, MWType.TYPE_1)
    memory: Memory = world.memory(left.pd)
    info = MWBindInfo(memory.mr, memory.mr.buf, 16, EVERYTHING)
    with pytest.raises(VerbsPostError, match="MWBindInfo"):
        left.qp.post_send(SendWR(1, WROpcode.BIND_MW, window=window))
    left.post(WROpcode.BIND_MW, 0, wr_id=2, window=window, bind=info)
    assert left.sent()[0].status is WCStatus.SUCCESS
    left.qp.bind_mw(window, MWBind(info, wr_id=3))
    left.sent()
    window.close()
    with pytest.raises(VerbsPostError, match="closed"):
        left.qp.post_send(SendWR(4, WROpcode.BIND_MW, window=window, bind=info))


def test_a_datagram_needs_an_address(world: World) -> None:
    if not world.side().context.attributes.datagrams:
        pytest.skip("the device has no datagrams")
    side = world.side(qp_type=QPType.UD)
    with pytest.raises(VerbsPostError, match="is no address"):
        side.qp.post_send(SendWR(1))
    with pytest.raises(VerbsPostError, match="is no address") as caught:
        side.qp.post_send([SendWR(1, ah=7)])  # type: ignore[arg-type]  # on purpose
    assert isinstance(caught.value.__cause__, VerbsArgumentError)


def test_a_request_with_an_address_goes_its_connected_way(world: World) -> None:
    pair: Pair = world.pair()
    pair.right.receive()
    left = pair.left
    left.qp.post_send(SendWR(1, sg=[left.mr.sge(0, 4)], ah=left.route()))  # type: ignore[arg-type]  # of the stand-in
    assert left.sent()[0].status is WCStatus.SUCCESS
    assert QPInitAttr().qp_type is QPType.RC
