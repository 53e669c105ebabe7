"""Threads that wait for a device, on each engine of `shm0`: several, interrupted, closed, late."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.verbs.engine_pairs import BOUND_S, ENGINES, Pair, begin, connected, run_all
from urds.verbs import CQ, CompChannel, RecvWR, VerbsClosedError, VerbsTimeoutError

THREADS = 4


@pytest.fixture(params=ENGINES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with connected(request.param, tmp_path) as made:
        yield made


def send(pair: Pair, count: int = 1) -> None:
    for _ in range(count):
        pair[0].send(0, b"12345678")


def receive(pair: Pair, count: int) -> None:
    right = pair[1]
    for number in range(count):
        right.qp.post_recv(RecvWR(number, [right.mr.sge(0, 8)]))


def test_each_of_several_threads_takes_its_own_completions(pair: Pair) -> None:
    rounds = 25
    receive(pair, THREADS * rounds)
    taken: list[int] = []

    def wait() -> None:
        for _ in range(rounds):
            [wc] = pair[1].cq.wait_for(1, timeout_s=BOUND_S)
            taken.append(wc.wr_id)

    threads = [begin(wait) for _ in range(THREADS)]
    for _ in range(THREADS * rounds):
        send(pair)
        time.sleep(0.0002)  # so that they sleep in between
    run_all(threads)
    assert sorted(taken) == list(range(THREADS * rounds))


def test_who_waits_for_more_gets_it_though_others_wait_for_less(pair: Pair) -> None:
    receive(pair, 4)
    found: list[int] = []
    three = begin(lambda: found.append(len(pair[1].cq.wait_for(3, timeout_s=BOUND_S))))
    send(pair, 3)
    run_all([three])
    one = begin(lambda: found.append(len(pair[1].cq.wait_for(1, timeout_s=BOUND_S))))
    send(pair)
    run_all([one])
    assert found == [3, 1]


def test_an_event_wakes_a_thread_beside_one_that_waits_for_completions(pair: Pair) -> None:
    right = pair[1]
    channel = CompChannel(right.context)
    armed = CQ(right.context, 4, None, channel)
    said: list[str] = []

    def wait_for_event() -> None:
        try:
            channel.get_cq_event(armed, BOUND_S)
        except VerbsClosedError:
            said.append("closed")

    receive(pair, 1)
    threads = [
        begin(lambda: said.append(f"{len(right.cq.wait_for(1, timeout_s=BOUND_S))}")),
        begin(wait_for_event),
    ]
    send(pair)
    threads[0].join(BOUND_S)
    armed.close()
    run_all(threads)
    assert said == ["1", "closed"]


def test_a_queue_that_is_closed_ends_the_waits_for_it(pair: Pair) -> None:
    queue = CQ(pair[1].context, 4)
    said: list[type[BaseException]] = []

    def wait() -> None:
        try:
            queue.wait_for(1, timeout_s=BOUND_S)
        except VerbsClosedError as error:
            said.append(type(error))

    threads = [begin(wait) for _ in range(THREADS)]
    time.sleep(0.02)
    queue.close()
    run_all(threads)
    assert said == [VerbsClosedError] * THREADS


def test_a_device_that_is_closed_ends_the_waits_for_it(pair: Pair) -> None:
    said: list[type[BaseException]] = []

    def wait() -> None:
        try:
            pair[1].cq.wait_for(1)
        except VerbsClosedError as error:
            said.append(type(error))

    threads = [begin(wait) for _ in range(THREADS)]
    time.sleep(0.02)
    pair[1].context.close()
    run_all(threads)
    assert said == [VerbsClosedError] * THREADS


def test_a_wait_that_ends_without_all_takes_nothing(pair: Pair) -> None:
    receive(pair, 2)
    send(pair)
    with pytest.raises(VerbsTimeoutError):
        pair[1].cq.wait_for(2, timeout_s=0.02)
    with pytest.raises(VerbsTimeoutError):
        pair[1].cq.wait_for(2, timeout_s=0)
    assert len(pair[1].cq.wait_for(1, timeout_s=0)) == 1


def test_a_signal_runs_its_handler_and_the_wait_goes_on(pair: Pair) -> None:
    """The handler sends what the wait is for: it runs while the thread waits."""
    receive(pair, 1)

    def handle(_signal: int, _frame: FrameType | None) -> None:
        begin(lambda: send(pair))

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert len(pair[1].cq.wait_for(1, timeout_s=BOUND_S)) == 1
    finally:
        signal.signal(signal.SIGALRM, before)


class Interrupted(Exception):
    """Raised by a handler."""


def test_an_exception_of_a_handler_ends_the_wait_and_others_go_on(pair: Pair) -> None:
    receive(pair, 1)
    found: list[int] = []

    def handle(_signal: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handle)
    other = None
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        other = begin(lambda: found.append(len(pair[1].cq.wait_for(1, timeout_s=BOUND_S))))
        with pytest.raises(Interrupted):
            pair[1].cq.wait_for(4)
    finally:
        signal.signal(signal.SIGALRM, before)
    send(pair)
    run_all([other])
    assert found == [1]
