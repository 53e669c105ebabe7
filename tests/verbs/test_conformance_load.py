"""Conformance under load: many queue pairs, many threads, few receives, bad ways between."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from tests.verbs.conformance import ROWS, Pair, Side, World
from tests.verbs.relay import Relay
from urds.verbs import (
    PD,
    QP,
    QPCap,
    QPState,
    ReceiveOrder,
    RecvWR,
    SendFlag,
    SendWR,
    VerbsClosedError,
    VerbsError,
    WCStatus,
    WROpcode,
)
from urds.verbs.providers.sim import SimNetwork

MANY = 1000
FENCED = SendFlag.FENCE | SendFlag.SIGNALED
ADD = WROpcode.ATOMIC_FETCH_AND_ADD


def test_a_thousand_queue_pairs_are_made_and_the_last_one_works(world: World) -> None:
    pair = world.pair(connected=False)
    side = pair.left
    made = [QP(side.pd, side.init_attr, side.attr) for _ in range(MANY)]
    assert len({qp.qp_num for qp in made}) == MANY
    assert {qp.qp_state for qp in made} == {QPState.INIT}
    side.qp = made[-1]
    pair.connect()
    pair.right.receive(8)
    side.post()
    assert side.ended() == [WCStatus.SUCCESS]
    for qp in made:
        qp.close()


@pytest.mark.parametrize("world", ["shm", "udp", "tcp"], indirect=True)
def test_threads_share_a_queue_pair_and_its_queues(world: World) -> None:
    """Three post, two take completions: each request completes once, each thread's in order."""
    each = 300
    pair = world.pair(cap=QPCap(max_send_wr=64, max_recv_wr=1000))
    left, right = pair.left, pair.right
    right.receive(8, count=3 * each)
    got: list[list[int]] = [[], []]
    faults: list[BaseException] = []
    is_over = threading.Event()

    def post(thread: int) -> None:
        try:
            piece = left.mr.sge(0, 8)
            for number in range(each):
                while not is_over.is_set():
                    try:
                        left.qp.post_send(SendWR(thread * 1000 + number, sg=[piece]))
                        break
                    except VerbsError:  # the queue is full
                        left.context.adapter.wait(lambda: False, 200_000)
        except BaseException as fault:
            faults.append(fault)

    def take(place: int) -> None:
        try:
            while sum(map(len, got)) < 3 * each and not is_over.is_set():
                with left.context.adapter.lock:  # so that the order of the list is the queue's
                    got[place].extend(wc.wr_id for wc in left.scq.poll(16)[1])
                left.context.adapter.wait(lambda: len(left.scq) > 0, 2_000_000)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=post, args=(one,), daemon=True) for one in range(3)]
    threads += [threading.Thread(target=take, args=(one,), daemon=True) for one in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(8)
    is_over.set()
    assert faults == []
    assert Counter(got[0] + got[1]).most_common(1)[0][1] == 1
    assert len(got[0]) + len(got[1]) == 3 * each
    for taken in got:
        for one in range(3):
            numbers = [number for number in taken if number // 1000 == one]
            assert numbers == sorted(numbers)
    assert len(right.received(3 * each)) == 3 * each


def test_many_senders_and_few_receives(world: World) -> None:
    """A storm of refusals: four queue pairs send into a shared queue with one receive at a time."""
    pair = world.pair(srq=4)
    left, right = pair.left, pair.right
    pairs, held = [left.qp], [right.qp]
    for _ in range(3):
        left.qp, right.qp = (QP(side.pd, side.init_attr, side.attr) for side in (left, right))
        left.told.clear()
        right.told.clear()
        pair.connect()
        pairs.append(left.qp)
        held.append(right.qp)
    for number in range(10):
        for index, qp in enumerate(pairs):
            left.post(wr_id=index * 100 + number, qp=qp)
    for number in range(40):
        right.receive(8, wr_id=number)
        assert right.received()[0].wr_id == number
    completions = left.sent(40)
    assert {wc.status for wc in completions} == {WCStatus.SUCCESS}
    for index in range(4):
        numbers = [wc.wr_id for wc in completions if wc.wr_id // 100 == index]
        assert numbers == [index * 100 + number for number in range(10)]


@pytest.mark.parametrize("world", ["shm", "udp", "tcp"], indirect=True)
def test_a_fork_leaves_the_device_to_the_parent(world: World) -> None:
    pair = world.pair()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(10):
        pair.right.receive(8)
        pair.left.post()
        assert pair.left.ended() == [WCStatus.SUCCESS]
        pair.right.received()


@pytest.mark.parametrize("world", [row for row in ROWS if row != "sim"], indirect=True)
def test_a_forked_child_is_refused_by_the_objects_of_its_parent(world: World) -> None:
    """At once: what it posts would never end, and it would wait for ever."""
    side = world.pair().left
    qp, queue, context = side.qp, side.scq, side.context
    child = os.fork()
    if not child:
        code = 1
        try:
            # Looked up here: the methods of before the fork may be the engine's own.
            calls: list[Callable[[], object]] = [
                partial(qp.post_send, SendWR()), partial(qp.send, b""), qp.query,
                partial(qp.post_recv, RecvWR()), queue.poll, queue.wait_for,
                partial(side.mr.read, 1), context.get_async_event, partial(PD, context),
            ]  # fmt: skip
            for call in calls:
                with pytest.raises(VerbsClosedError, match="of the parent process is closed"):
                    call()
            side.context.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    side.qp.query()


# -- bad ways


@pytest.mark.parametrize("world", ["sim"], indirect=True)
@pytest.mark.parametrize("receive_order", list(ReceiveOrder), ids=lambda one: one.name)
@pytest.mark.parametrize("seed", range(6))
def test_a_bad_link_changes_nothing_of_the_outcome(
    world: World, receive_order: ReceiveOrder, seed: int
) -> None:
    """Loses, repeats, reorders and breaks packets: every request happens once, in order."""
    world.network = SimNetwork(
        seed, mtu_bytes=512, loss=0.05, duplicate=0.05, reorder=0.1, corrupt=0.02, jitter_ns=9000
    )
    pair = world.pair(receive_order=receive_order)
    mixed_work(pair, Random(seed))


def mixed_work(pair: Pair, rng: Random) -> None:
    """Write, add, send and read back at random; compare with what memory should be.

    Writes are fenced: a read without one may find what a later write has left.
    """
    left, right = pair.left, pair.right
    model, total, sent = bytearray(8192), 0, []
    cell = world_cell(right)
    reads: list[tuple[int, int, bytes]] = []
    for number in range(60):
        kind = rng.randrange(4)
        offset, size = rng.randrange(7000), rng.randrange(1, 1100)
        if kind == 0:
            data = rng.randbytes(min(size, 512))
            left.mr.write(data, offset=number * 512)
            left.post(
                WROpcode.RDMA_WRITE, len(data), offset=number * 512, to=right.mr, at=offset,
                flags=FENCED, wr_id=number,
            )  # fmt: skip
            model[offset : offset + len(data)] = data
        elif kind == 1:
            left.post(ADD, 8, offset=60_000, to=right.mr, at=cell, compare_add=3, wr_id=number)
            total += 3
        elif kind == 2:
            right.qp.post_recv(RecvWR(number, [right.mr.sge(50_000, 64)]))
            left.post(length=32, offset=number * 512, wr_id=number)
            sent.append(number)
        else:
            place, size = 32_768 + number * 400, min(size, 400)
            left.post(WROpcode.RDMA_READ, size, offset=place, to=right.mr, at=offset, wr_id=number)
            reads.append((place, size, bytes(model[offset : offset + size])))
    completions = left.sent(60)
    assert [wc.wr_id for wc in completions] == list(range(60))
    assert {wc.status for wc in completions} == {WCStatus.SUCCESS}
    assert right.mr.read(8192) == model
    assert int.from_bytes(right.mr.read(8, cell), sys.byteorder) == total
    if sent:
        assert [wc.wr_id for wc in right.received(len(sent))] == sent
    for place, size, data in reads:
        assert left.mr.read(size, place) == data


def world_cell(side: Side) -> int:
    """Return the offset of an aligned cell that nothing else uses."""
    return 48_000 + -(side.mr.buf + 48_000) % 8


@pytest.mark.parametrize("seed", range(3))
def test_mixed_work_on_a_good_link(world: World, seed: int) -> None:
    if world.lacks("atomics"):
        return
    mixed_work(world.pair(), Random(seed))


@pytest.mark.parametrize("world", ["udp"], indirect=True)
@pytest.mark.parametrize("seed", range(3))
def test_a_relay_that_loses_and_reorders_changes_nothing(world: World, seed: int) -> None:
    """Real sockets and real time; the relay knows nothing of connections."""
    pair = world.pair(connected=False)
    relays: list[Relay] = []

    def between(port: int) -> int:
        relays.append(Relay(port, seed, loss=0.02, hold=0.2))
        return relays[0].port

    try:
        pair.connect(between=between)
        mixed_work(pair, Random(seed))
        assert relays[0].reordered
    finally:
        for relay in relays:
            relay.close()
