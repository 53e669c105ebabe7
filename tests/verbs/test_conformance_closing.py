"""Conformance: closing anything at any time, under traffic of other threads as well."""

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.waiting import BUSY_S
from tests.verbs.conformance import Pair, Side, World
from urds.verbs import (
    CQ,
    QPState,
    RecvWR,
    VerbsClosedError,
    VerbsError,
    VerbsTimeoutError,
    WCStatus,
    WROpcode,
)
from urds.verbs.providers.base import ConnectionEventKind

ROUNDS_MAX = 50_000
RUN_S = 4.0
ENDS = {
    WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR, WCStatus.REM_ACCESS_ERR, WCStatus.REM_OP_ERR,
    WCStatus.LOC_PROT_ERR, WCStatus.RETRY_EXC_ERR,
}  # fmt: skip


class Traffic:
    """A thread that works at one side until it is told of an end."""

    def __init__(
        self, work: Callable[[int], None], *, rounds_max: int = ROUNDS_MAX, run_s: float = RUN_S
    ) -> None:
        self.work = work
        self.rounds_max = rounds_max
        self.run_s = run_s
        self.rounds = 0
        self.fault: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            while self.rounds < self.rounds_max and time.monotonic() < began + self.run_s:
                self.work(self.rounds)
                self.rounds += 1
        except VerbsClosedError:
            pass  # this is how it should hear of it
        except BaseException as fault:
            self.fault = fault


def sending(left: Side, right: Side, seen: list[WCStatus]) -> Callable[[int], None]:
    """Return work that sends and writes, and takes completions."""
    rkey, address, piece = right.mr.rkey, right.mr.buf, left.mr.sge(0, 512)

    def work(number: int) -> None:
        opcode = WROpcode.RDMA_WRITE if number % 3 else WROpcode.SEND
        try:
            left.post(opcode, sg=[piece], rkey=rkey, remote_addr=address)
        except VerbsError as error:
            if error.errno != errno.ENOMEM:
                raise
        seen.extend(wc.status for wc in left.scq.poll(32)[1])

    return work


def receiving(right: Side) -> Callable[[int], None]:
    """Return work that posts receives, into memory of their own: a send never waits for ever."""
    room = right.world.memory(right.pd, 512)

    def work(_number: int) -> None:
        try:
            right.qp.post_recv(RecvWR(0, [room.mr.sge()]))
        except VerbsError as error:
            if error.errno != errno.ENOMEM:
                raise
            time.sleep(0.0002)  # the queue is full: the sender's turn
        right.rcq.poll(32)

    return work


@contextmanager
def under_traffic(pair: Pair, seen: list[WCStatus]) -> Iterator[None]:
    """Let one thread send and another receive; both end well, whatever is closed meanwhile."""
    left, right = pair.left, pair.right
    threads = [
        Traffic(sending(left, right, seen)),
        # Receives must not run out before the test does: a send that waits for one hides the end.
        Traffic(receiving(right), rounds_max=sys.maxsize, run_s=4 * RUN_S),
    ]
    deadline = time.monotonic() + RUN_S
    while threads[0].rounds < 50 and time.monotonic() < deadline:
        time.sleep(0.001)
    try:
        yield
    finally:
        left.context.close()
        right.context.close()
        for each in threads:
            each.thread.join(RUN_S + 2)
            assert not each.thread.is_alive()
            assert each.fault is None, repr(each.fault)
        assert threads[0].rounds >= 50


def hears_the_end(side: Side) -> bool:
    """Wait until the queue pair has failed; time of the threads passes, virtual or not."""
    for _ in range(400):
        if side.context.adapter.wait(lambda: side.qp.qp_state is QPState.ERR, 20_000_000):
            return True
        time.sleep(0.002)
    return False


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["qp", "scq", "rcq", "channel", "mr", "pd", "context"])
def test_anything_is_closed_under_traffic(world: World, side: str, name: str) -> None:
    pair = world.pair()
    seen: list[WCStatus] = []
    near, far = (pair.left, pair.right) if side == "left" else (pair.right, pair.left)
    with under_traffic(pair, seen):
        getattr(near, name).close()
        assert near.qp.closed is (name != "mr")
        # A region that goes fails the next request that needs it, on whichever side.
        assert hears_the_end(far), far.told
    assert set(seen) <= ENDS
    failed = [index for index, status in enumerate(seen) if status is not WCStatus.SUCCESS]
    assert WCStatus.SUCCESS not in seen[failed[0] if failed else len(seen) :]


@pytest.mark.parametrize(
    ("waits", "closes"),
    [("scq", "scq"), ("scq", "context"), ("channel", "channel"), ("context", "context")],
)
def test_closing_ends_a_wait(world: World, waits: str, closes: str) -> None:
    """In virtual time no thread can wait in another thread while nothing happens."""
    side = world.side()
    call: Callable[[float], object] = {
        "scq": lambda wait_s: side.scq.wait_for(1, wait_s),
        "channel": lambda wait_s: side.channel.get_cq_event(timeout_s=wait_s),
        "context": side.context.get_async_event,
    }[waits]
    if world.is_simulated:
        side.context.close()
        with pytest.raises(VerbsClosedError):
            call(1)
        return
    heard: list[BaseException] = []
    is_waiting = threading.Event()

    def wait() -> None:
        is_waiting.set()
        try:
            call(20)
        except VerbsError as error:
            heard.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert is_waiting.wait(BUSY_S)
    time.sleep(0.01)
    getattr(side, closes).close()
    thread.join(BUSY_S)
    assert [type(error) for error in heard] == [VerbsClosedError]


def test_a_queue_pair_that_closes_within_a_post_is_closed_to_it(world: World) -> None:
    side = world.pair().left

    def requests() -> Iterator[RecvWR]:
        yield RecvWR(1, [side.mr.sge(0, 16)])
        side.qp.close()
        yield RecvWR(2, [side.mr.sge(0, 16)])

    with pytest.raises(VerbsClosedError):
        side.qp.post_recv(requests())


def test_closing_twice_and_in_any_order(world: World) -> None:
    names = ("qp", "mr", "pd", "scq", "rcq", "channel", "context")
    for shift in range(len(names)):
        pair = world.pair()
        pair.left.post(wr_id=1)
        pair.right.receive(8)
        for name in names[shift:] + names[:shift]:
            for side in (pair.left, pair.right):
                getattr(side, name).close()
                getattr(side, name).close()
                assert getattr(side, name).closed


def test_a_closed_device_leaves_no_thread_and_no_descriptor(world: World) -> None:
    def left_over() -> tuple[int, int]:
        threads = [one for one in threading.enumerate() if one.name.startswith("urds-verbs")]
        return len(threads), len(os.listdir("/proc/self/fd"))

    before = left_over()
    for _ in range(5):
        pair = world.pair()
        pair.left.channel.fileno()
        pair.left.context.fileno()
        pair.right.receive(8)
        pair.left.post()
        pair.left.sent()
        pair.left.context.close()
        pair.right.context.close()
        del pair
    deadline = time.monotonic() + 3
    while left_over() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left_over() <= before


@pytest.mark.parametrize("is_asked", [True, False], ids=["disconnected", "closed"])
def test_the_peer_hears_the_end_and_its_work_is_flushed(world: World, is_asked: bool) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    right.receive(8, count=5)
    if is_asked:
        assert left.connection is not None
        with left.context.adapter.lock:
            left.connection.disconnect()
    else:
        left.context.close()
    completions = right.received(5)
    assert [wc.wr_id for wc in completions] == list(range(5))
    assert {wc.status for wc in completions} == {WCStatus.WR_FLUSH_ERR}
    kinds = {ConnectionEventKind.DISCONNECTED}
    if not is_asked:
        kinds.add(ConnectionEventKind.BROKEN)
    right.until(*kinds)


@pytest.mark.parametrize("world", ["shm"], indirect=True)
def test_a_device_closes_though_packets_of_a_peer_are_unread(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread must not turn in a circle with the lock between goodbye and end."""
    pair = world.pair()
    loop: Any = pair.right.context.adapter.loop  # type: ignore[attr-defined]  # to widen the gap
    close = loop.close

    def close_late() -> None:
        for number in range(100):
            pair.left.post(wr_id=number)
        time.sleep(0.05)
        close()

    monkeypatch.setattr(loop, "close", close_late)
    closer = threading.Thread(target=pair.right.context.close, daemon=True)
    closer.start()
    closer.join(BUSY_S)
    assert not closer.is_alive()


def test_a_queue_that_goes_out_of_sight_is_closed(world: World) -> None:
    """It is not referenced: its events and completions end with it, and no others."""
    pair = world.pair()
    queue: CQ | None = CQ(pair.right.context, 4, channel=pair.right.channel)
    assert queue is not None
    queue.req_notify()
    queue = None
    with pytest.raises(VerbsTimeoutError):
        pair.right.channel.get_cq_event(timeout_s=0)
    pair.right.receive(8)
    pair.left.post()
    assert pair.right.received()[0].status is WCStatus.SUCCESS
