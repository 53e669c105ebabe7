"""What the requester sends again and when, and when it gives up."""

import sys
from dataclasses import replace

import pytest

from tests.sim.verbs_pair import MS, US, Pair
from tests.verbs.engine.verbs_sides import LOSSLESS, LOSSY, answer, done, make_asking, psns, sent
from urds.verbs.engine.numbers import (
    RNR_TIMER_NS,
    QPState,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.packets import PacketKind, Syndrome
from urds.verbs.engine.queue_pair import LinkTraits

PERIOD_NS = 4096 << 14
STREAM = replace(LOSSLESS, retries=False)
FLUSHED = WCStatus.WR_FLUSH_ERR
OK = WCStatus.SUCCESS


# -- repeats


def test_a_gap_over_there_sends_the_requester_back() -> None:
    side = make_asking()
    for wr_id in range(5):
        side.send(wr_id)
    sent(side)
    answer(side, 102, Syndrome.NAK_SEQUENCE, now_ns=US)
    assert done(side) == [(0, OK), (1, OK)]
    assert psns(side, US) == [102, 103, 104]


def test_ranges_leave_only_what_is_missing() -> None:
    side = make_asking()
    for wr_id in range(10):
        side.send(wr_id)
    sent(side)
    answer(side, 100, now_ns=US, selective=((103, 104), (106, 109)))
    assert done(side) == [(0, OK)]  # in order
    assert psns(side, US) == []  # not yet older than a round trip and its variation
    assert side.qp.poll_timeout() == 2 * US
    side.qp.handle_timeout(2 * US)
    assert psns(side, 2 * US) == [101, 102, 105]
    answer(side, 109, now_ns=3 * US)
    assert [wr_id for wr_id, _ in done(side)] == list(range(1, 10))


def test_a_packet_that_was_overtaken_a_little_is_not_lost() -> None:
    side = make_asking()
    for wr_id in range(3):
        side.send(wr_id)
    sent(side)
    answer(side, 99, now_ns=US, selective=((101, 102),))
    assert psns(side, US) == []


def test_lost_answers_of_a_read_are_asked_for_again() -> None:
    side, peer = make_asking(), make_asking()
    side.remote(1, WROpcode.RDMA_READ, peer, length=64 * 8)
    sent(side)
    for index in (0, 1, 4, 5, 6, 7):
        answer(side, 100 + index, now_ns=US, kind=PacketKind.READ_RESPONSE, payload=b"a" * 64)
    side.qp.handle_timeout(2 * US)
    (again,) = sent(side, 2 * US)
    assert (again.kind, again.psn, again.length) == (PacketKind.READ_REQUEST, 102, 128)
    assert again.address == peer.address + 128


def test_a_read_is_asked_again_within_its_portions() -> None:
    """A repeat that lies in two READ_REQUESTs is dropped by rxe, each time."""
    side, peer = make_asking(memory_bytes=64 * 200), make_asking()
    side.remote(1, WROpcode.RDMA_READ, peer, length=64 * 128)
    assert [(packet.psn, packet.length) for packet in sent(side)] == [(100, 4096), (164, 4096)]
    for psn in [*range(100, 160), *range(166, 228)]:
        answer(side, psn, now_ns=US, kind=PacketKind.READ_RESPONSE, payload=b"a" * 64)
    side.qp.handle_timeout(2 * US)
    again = sent(side, 2 * US)
    assert [(packet.psn, packet.length) for packet in again] == [(160, 256), (164, 128)]
    due_ns = side.qp.poll_timeout() or 0
    side.qp.handle_timeout(due_ns)
    assert [(packet.psn, packet.length) for packet in sent(side, due_ns)] == [
        (160, 256), (164, 128)
    ]  # fmt: skip


def test_silence_repeats_everything_with_growing_patience() -> None:
    side = make_asking()
    side.send(1, length=100)
    sent(side)
    assert side.qp.poll_timeout() == 20 * MS
    side.qp.handle_timeout(20 * MS - 1)
    assert psns(side) == []
    side.qp.handle_timeout(20 * MS)
    assert psns(side, 20 * MS) == [100, 101]
    assert side.qp.poll_timeout() == 60 * MS


def test_the_timer_follows_the_round_trip() -> None:
    side = make_asking()
    now_ns = 0
    for _ in range(20):
        side.send(1)
        sent(side, now_ns)
        now_ns += 3 * MS
        answer(side, 100 + now_ns // (3 * MS) - 1, now_ns=now_ns)
    side.send(2)
    sent(side, now_ns)
    due_ns = side.qp.poll_timeout()
    assert due_ns is not None and 3 * MS < due_ns - now_ns < 4 * MS


@pytest.mark.parametrize("retries", [0, 7])
def test_silence_ends_after_all_retries(retries: int) -> None:
    """`retry_cnt` repeats, one timeout apart, must all have failed."""
    side = make_asking(attr={"retry_cnt": retries})
    side.send(1)
    side.send(2)
    sent(side)
    for _ in range(100):
        due_ns = side.qp.poll_timeout()
        if due_ns is None:
            break
        now_ns = due_ns
        side.qp.handle_timeout(now_ns)
        sent(side, now_ns)
    assert done(side) == [(1, WCStatus.RETRY_EXC_ERR), (2, FLUSHED)]
    assert now_ns == PERIOD_NS * (retries + 1)


def test_timeout_zero_never_gives_up() -> None:
    side = make_asking(attr={"timeout": 0, "retry_cnt": 0})
    side.send(1)
    sent(side)
    for _ in range(50):
        now_ns = side.qp.poll_timeout()
        assert now_ns is not None
        side.qp.handle_timeout(now_ns)
        assert psns(side, now_ns) == [100]


def test_a_late_timer_is_no_silence_of_the_peer() -> None:
    """This side was stopped: the answer may be here, and the peer gets all its time still."""
    side = make_asking(attr={"retry_cnt": 1})
    side.send(1)
    sent(side)
    stopped_ns = 100 * PERIOD_NS
    side.qp.handle_timeout(stopped_ns)
    assert psns(side, stopped_ns) == [100]
    answer(side, 100, now_ns=stopped_ns + MS)
    assert done(side) == [(1, OK)]


# -- without loss: what is sent to a queue pair that is not there is lost all the same


@pytest.mark.parametrize("link", [LOSSLESS, STREAM], ids=["retries", "stream"])
@pytest.mark.parametrize("retries", [0, 7])
def test_without_loss_silence_ends_after_all_retries(link: LinkTraits, retries: int) -> None:
    side = make_asking(link=link, attr={"retry_cnt": retries})
    side.send(1, length=100)
    side.send(2)
    sent(side)
    for number in range(1, retries + 1):
        assert side.qp.poll_timeout() == number * PERIOD_NS
        side.qp.handle_timeout(number * PERIOD_NS)
        assert psns(side, number * PERIOD_NS) == ([100, 101, 102] if link.retries else [])
        assert done(side) == []
    side.qp.handle_timeout((retries + 1) * PERIOD_NS)
    assert done(side) == [(1, WCStatus.RETRY_EXC_ERR), (2, FLUSHED)]


def test_without_loss_a_short_timeout_leaves_a_busy_peer_20_ms() -> None:
    side = make_asking(link=LOSSLESS, attr={"timeout": 1, "retry_cnt": 1})
    side.send(1)
    sent(side)
    assert side.qp.poll_timeout() == 20 * MS
    side.qp.handle_timeout(20 * MS)
    assert psns(side, 20 * MS) == [100]
    side.qp.handle_timeout(40 * MS)
    assert done(side) == [(1, WCStatus.RETRY_EXC_ERR)]


def test_without_loss_every_answer_begins_the_time_anew() -> None:
    side = make_asking(link=LOSSLESS, attr={"retry_cnt": 0})
    for wr_id in range(3):
        side.send(wr_id)
    sent(side)
    for number in range(3):
        late_ns = number * (PERIOD_NS - 1)
        side.qp.handle_timeout(late_ns)
        answer(side, 100 + number, now_ns=late_ns)
    assert done(side) == [(0, OK), (1, OK), (2, OK)]
    assert side.qp.poll_timeout() is None


def test_without_loss_and_timeout_there_is_no_timer() -> None:
    side = make_asking(link=LOSSLESS, attr={"timeout": 0})
    side.send(1)
    sent(side)
    assert side.qp.poll_timeout() is None


def test_without_loss_a_receiver_that_is_not_ready_costs_no_retry() -> None:
    side = make_asking(link=LOSSLESS, attr={"retry_cnt": 0})
    side.send(1)
    sent(side)
    now_ns = 0
    for _ in range(100):
        answer(side, 100, Syndrome.RNR_NAK + 1, now_ns=now_ns)
        due_ns = side.qp.poll_timeout()
        assert due_ns is not None
        now_ns = due_ns
        side.qp.handle_timeout(now_ns)
        assert psns(side, now_ns) == [100]
    assert now_ns > PERIOD_NS
    answer(side, 100, now_ns=now_ns)
    assert done(side) == [(1, OK)]


def test_what_a_slow_peer_gets_twice_takes_effect_once() -> None:
    """The first of every kind waits in front of a peer that is stopped for five timeouts."""
    pair = Pair(lossless=True)
    held_ns = 5 * PERIOD_NS
    pair.on_packet = lambda packet, source: (
        [max(10 * US, held_ns - pair.now_ns)] if source is pair.a else None
    )
    pair.b.receive(9, 0, 64)
    pair.a.memory[:200] = bytes(range(200))
    pair.b.memory[512:1024] = b"read" * 128
    pair.a.remote(1, WROpcode.RDMA_WRITE, pair.b, at=64, length=200)
    pair.a.remote(2, WROpcode.RDMA_READ, pair.b, at=512, offset=1024, length=512)
    pair.a.remote(3, WROpcode.ATOMIC_FETCH_AND_ADD, pair.b, at=8, offset=8, length=8, compare_add=1)
    pair.a.send(4, length=8)
    pair.run()
    assert pair.now_ns < held_ns + PERIOD_NS
    assert sum(source == "a" for _, source, _ in pair.log) > 20  # it was repeated
    assert [(wc.wr_id, wc.status) for wc in pair.a.sent()] == [(n, OK) for n in (1, 2, 3, 4)]
    assert [wc.wr_id for wc in pair.b.received()] == [9]
    assert pair.b.memory[64:264] == bytes(range(200))
    assert pair.a.memory[1024:1536] == b"read" * 128
    assert int.from_bytes(pair.b.memory[8:16], sys.byteorder) == 1


# -- receiver not ready


def test_a_refused_packet_is_repeated_after_the_time_that_was_asked_for() -> None:
    side = make_asking()
    for wr_id in range(3):
        side.send(wr_id)
    sent(side)
    answer(side, 100)
    answer(side, 101, Syndrome.RNR_NAK + 12, now_ns=US)
    side.send(3)
    assert psns(side, US) == []
    due_ns = US + RNR_TIMER_NS[12]
    assert side.qp.poll_timeout() == due_ns and RNR_TIMER_NS[12] == 640 * US
    side.qp.handle_timeout(due_ns)
    assert psns(side, due_ns) == [101, 102, 103]


@pytest.mark.parametrize("link", [LOSSY, LOSSLESS])
def test_the_receiver_is_asked_so_often_and_not_more(link: LinkTraits) -> None:
    side = make_asking(link=link, attr={"rnr_retry": 2})
    side.send(1)
    side.send(2)
    now_ns, rejects = 0, 0
    while side.qp.state is QPState.RTS:
        assert psns(side, now_ns) == [100, 101]
        answer(side, 100, Syndrome.RNR_NAK + 1, now_ns=now_ns)
        answer(side, 100, Syndrome.RNR_NAK + 1, now_ns=now_ns)  # said twice, counted once
        rejects += 1
        now_ns = side.qp.poll_timeout() or 0
        side.qp.handle_timeout(now_ns)
    assert rejects == 3
    assert done(side) == [(1, WCStatus.RNR_RETRY_EXC_ERR), (2, FLUSHED)]


def test_who_waits_for_ever_asks_less_and_less_often() -> None:
    """A peer without receives costs no processor time; progress makes it fast again."""
    side = make_asking(attr={"rnr_retry": 7})
    side.send(1)
    side.send(2)
    now_ns, pauses_ns = 0, []
    for _ in range(20):
        psns(side, now_ns)
        answer(side, 100, Syndrome.RNR_NAK + 1, now_ns=now_ns)
        pauses_ns.append((side.qp.poll_timeout() or 0) - now_ns)
        now_ns += pauses_ns[-1]
        side.qp.handle_timeout(now_ns)
    assert pauses_ns[:4] == [10 * US, 20 * US, 40 * US, 80 * US]
    assert pauses_ns[-1] == 100_000 * US
    psns(side, now_ns)
    answer(side, 100, now_ns=now_ns)
    answer(side, 101, Syndrome.RNR_NAK + 1, now_ns=now_ns)
    assert (side.qp.poll_timeout() or 0) - now_ns == 10 * US


def test_seven_is_forever() -> None:
    side = make_asking(attr={"rnr_retry": 7})
    side.send(1)
    now_ns = 0
    for _ in range(100):
        assert psns(side, now_ns) == [100]
        answer(side, 100, Syndrome.RNR_NAK + 1, now_ns=now_ns)
        now_ns = side.qp.poll_timeout() or 0
        side.qp.handle_timeout(now_ns)
    answer(side, 100, now_ns=now_ns)
    assert done(side) == [(1, OK)]
