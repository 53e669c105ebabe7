"""Completion channels with threads at them, on each engine of `shm0`.

On the compiled one the events are queued and waited for in the engine. What a caller sees is the
same: events in order, each to one thread, a descriptor that shows them, an end of all waits.
"""

import asyncio
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.verbs.engine_pairs import BOUND_S, ENGINES, Pair, begin, connected, run_all
from tests.verbs.pair import End, connect
from tests.verbs.test_wakeups import has_native, native_adapter
from urds.verbs import (
    CQ,
    QP,
    CompChannel,
    Context,
    QPAttr,
    QPAttrMask,
    QPInitAttr,
    QPState,
    RecvWR,
    VerbsArgumentError,
    VerbsClosedError,
    VerbsTimeoutError,
)

THREADS = 4
ROUNDS = 50


@pytest.fixture(params=ENGINES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with connected(request.param, tmp_path) as made:
        made[1].cq.channel = CompChannel(made[1].context)
        yield made


def channel_of(end: End) -> CompChannel:
    assert end.cq.channel is not None
    return end.cq.channel


def receive(end: End, count: int = 1) -> None:
    for number in range(count):
        end.qp.post_recv(RecvWR(number, [end.mr.sge(0, 8)]))


class Flusher:
    """A queue whose completions a test makes by itself: receives that are flushed."""

    def __init__(self, end: End, channel: CompChannel) -> None:
        self.cq = CQ(end.context, 64, channel=channel)
        self._end = end

    def complete(self) -> None:
        """Have one more completion in the queue."""
        with QP(self._end.pd, QPInitAttr(scq=self.cq, rcq=self.cq), QPAttr()) as qp:
            qp.post_recv(RecvWR(1))
            qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE)
            # Before the queue pair goes, which drops what was not polled.
            assert len(self.cq) == 1
            self.cq.poll(1)


def is_readable(channel: CompChannel) -> bool:
    return bool(select.select([channel], [], [], 0)[0])


def test_events_there_and_back(pair: Pair) -> None:
    left, right = pair
    left.cq.channel = CompChannel(left.context)

    def serve() -> None:
        for _ in range(ROUNDS):
            take(right)
            right.send(0, b"12345678")

    def take(end: End) -> None:
        found = 0
        while not found:
            found = sum(wc.opcode.name == "RECV" for wc in end.cq.poll(16)[1])
            if found:
                break
            end.cq.req_notify()
            found = sum(wc.opcode.name == "RECV" for wc in end.cq.poll(16)[1])
            if not found:
                assert channel_of(end).get_cq_event(timeout_s=BOUND_S) is end.cq
                end.cq.ack_events(1)

    for end in pair:
        receive(end, ROUNDS)
    thread = begin(serve)
    for _ in range(ROUNDS):
        left.send(0, b"12345678")
        take(left)
    run_all([thread])
    assert (left.cq.unacked_events, right.cq.unacked_events) == (0, 0)


def test_events_come_in_the_order_of_their_completions(pair: Pair) -> None:
    channel = channel_of(pair[1])
    flushers = [Flusher(pair[1], channel) for _ in range(3)]
    for flusher in flushers:
        flusher.cq.req_notify()
    for place in (2, 0, 1):
        flushers[place].complete()
    flushers[2].cq.req_notify()
    flushers[2].complete()
    taken = [channel.get_cq_event(timeout_s=0) for _ in range(4)]
    assert taken == [flushers[place].cq for place in (2, 0, 1, 2)]
    assert [flusher.cq.unacked_events for flusher in flushers] == [1, 1, 2]
    flushers[2].cq.ack_events(2)
    with pytest.raises(VerbsArgumentError, match="1 events to acknowledge, 0 are open"):
        flushers[2].cq.ack_events(1)
    with pytest.raises(VerbsArgumentError, match="-1 events to acknowledge"):
        flushers[0].cq.ack_events(-1)


def test_who_wants_the_event_of_one_queue_leaves_the_others(pair: Pair) -> None:
    channel = channel_of(pair[1])
    first, second = (Flusher(pair[1], channel) for _ in range(2))
    for flusher in (first, second):
        flusher.cq.req_notify()
        flusher.complete()
    assert channel.get_cq_event(second.cq, timeout_s=0) is second.cq
    with pytest.raises(VerbsTimeoutError, match=r"no completion event in 0\.01 s"):
        channel.get_cq_event(second.cq, timeout_s=0.01)
    assert channel.get_cq_event() is first.cq


def test_each_event_goes_to_one_of_several_threads(pair: Pair) -> None:
    channel = channel_of(pair[1])
    flushers = [Flusher(pair[1], channel) for _ in range(THREADS)]
    taken: list[CQ] = []
    threads = [
        begin(lambda: taken.append(channel.get_cq_event(timeout_s=BOUND_S))) for _ in range(THREADS)
    ]
    for flusher in flushers:
        time.sleep(0.01)  # so that they sleep
        flusher.cq.req_notify()
        flusher.complete()
    run_all(threads)
    assert set(taken) == {flusher.cq for flusher in flushers}
    assert [flusher.cq.unacked_events for flusher in flushers] == [1] * THREADS
    with pytest.raises(VerbsTimeoutError):
        channel.get_cq_event(timeout_s=0)


@pytest.mark.parametrize("what", ["queue", "channel", "context"])
def test_a_close_ends_the_waits(pair: Pair, what: str) -> None:
    end = pair[1]
    channel = channel_of(end)
    queue = CQ(end.context, 4, channel=channel)
    said: list[type[BaseException]] = []

    def wait() -> None:
        try:
            channel.get_cq_event(queue)
        except VerbsClosedError as error:
            said.append(type(error))

    threads = [begin(wait) for _ in range(THREADS)]
    time.sleep(0.02)  # so that they sleep
    {"queue": queue, "channel": channel, "context": end.context}[what].close()
    run_all(threads)
    assert said == [VerbsClosedError] * THREADS


def test_calls_that_were_kept_refuse_once_it_is_closed(pair: Pair) -> None:
    channel = channel_of(pair[1])
    queue = CQ(pair[1].context, 4, channel=channel)
    get_cq_event, notify, acknowledge = channel.get_cq_event, queue.req_notify, queue.ack_events
    queue.close()
    for call in (notify, lambda: acknowledge(0), lambda: get_cq_event(queue, 0)):
        with pytest.raises(VerbsClosedError, match="CQ is closed"):
            call()
    channel.close()
    with pytest.raises(VerbsClosedError, match="CompChannel is closed"):
        get_cq_event(timeout_s=0)


def test_an_event_of_a_queue_that_goes_or_leaves_is_dropped(pair: Pair) -> None:
    channel = channel_of(pair[1])
    gone, moved = (Flusher(pair[1], channel) for _ in range(2))
    other = CompChannel(pair[1].context)
    for flusher in (gone, moved):
        flusher.cq.req_notify()
        flusher.complete()
    gone.cq.close()
    assert channel.get_cq_event(timeout_s=0) is moved.cq
    moved.cq.channel = other
    moved.cq.req_notify()
    moved.complete()
    assert other.get_cq_event(timeout_s=0) is moved.cq
    with pytest.raises(VerbsTimeoutError):
        channel.get_cq_event(timeout_s=0)


def test_a_queue_takes_no_channel_of_another_device(pair: Pair) -> None:
    left, right = pair
    before = channel_of(right)
    with pytest.raises(VerbsArgumentError, match="another device's"):
        right.cq.channel = CompChannel(left.context)
    assert channel_of(right) is before


def test_a_descriptor_shows_what_a_thread_takes_and_leaves(pair: Pair) -> None:
    """The thread sleeps since before the descriptor was asked for."""
    channel = channel_of(pair[1])
    first, second = (Flusher(pair[1], channel) for _ in range(2))
    taken: list[CQ] = []
    thread = begin(lambda: taken.append(channel.get_cq_event(first.cq, BOUND_S)))
    time.sleep(0.02)  # so that it sleeps
    own = select.poll()
    own.register(channel.fileno(), select.POLLIN)
    first.cq.req_notify()
    first.complete()
    run_all([thread])
    assert taken == [first.cq]
    assert not is_readable(channel)
    second.cq.req_notify()
    second.complete()
    assert own.poll(BOUND_S * 1000)
    assert is_readable(channel)
    assert channel.get_cq_event(timeout_s=0) is second.cq
    assert not is_readable(channel)
    second.cq.req_notify()
    second.complete()
    assert own.poll(BOUND_S * 1000)
    second.cq.close()
    assert not is_readable(channel)


def test_two_tasks_wait_for_completions_of_one_queue(pair: Pair) -> None:
    left, right = pair
    channel_of(right)
    receive(right, 2)

    async def main() -> list[int]:
        tasks = [asyncio.create_task(right.cq.wait()) for _ in range(2)]
        await asyncio.sleep(0.02)  # so that both wait
        left.send(0, b"12345678")
        left.send(1, b"12345678")
        found = await asyncio.wait_for(asyncio.gather(*tasks), BOUND_S)
        return [len(one) for one in found]

    assert asyncio.run(main()) == [1, 1]


def test_a_thread_and_a_task_take_events_of_one_channel(pair: Pair) -> None:
    left, right = pair
    channel = channel_of(right)
    receive(right, 2)
    other = Flusher(right, channel)
    taken: list[CQ] = []
    thread = begin(lambda: taken.append(channel.get_cq_event(other.cq, BOUND_S)))

    async def main() -> None:
        right.cq.req_notify()
        waiting = asyncio.create_task(channel.event(right.cq))
        await asyncio.sleep(0.02)  # so that the task waits
        left.send(0, b"12345678")
        assert await asyncio.wait_for(waiting, BOUND_S) is right.cq

    asyncio.run(main())
    other.cq.req_notify()
    other.complete()
    run_all([thread])
    assert taken == [other.cq]


def test_a_subclass_keeps_its_own_calls(pair: Pair) -> None:
    calls: list[str] = []

    class Counting(CompChannel):
        def get_cq_event(self, cq: CQ | None = None, timeout_s: float | None = None) -> CQ:
            calls.append("get")
            return super().get_cq_event(cq, timeout_s)

    class CountingQueue(CQ):
        def ack_events(self, num_events: int) -> None:
            calls.append("ack")
            super().ack_events(num_events)

    channel = Counting(pair[1].context)
    queue = CountingQueue(pair[1].context, 4, channel=channel)
    pair[1].cq.channel = channel
    pair[1].cq.req_notify()
    receive(pair[1])
    pair[0].send(0, b"12345678")
    assert channel.get_cq_event(timeout_s=BOUND_S) is pair[1].cq
    queue.ack_events(0)
    assert calls == ["get", "ack"]


def test_a_forked_child_takes_nothing_from_its_parent(pair: Pair) -> None:
    channel = channel_of(pair[1])
    flusher = Flusher(pair[1], channel)
    flusher.cq.req_notify()
    flusher.complete()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            channel.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert channel.get_cq_event(timeout_s=0) is flusher.cq


def test_no_pass_of_python_stands_between_a_message_and_its_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiled engine alone: a thread that waits there is given the event by the engine."""
    if not has_native():
        pytest.skip("no compiled engine")
    from urds.verbs.providers.shm.native_adapter import NativeShmAdapter
    from urds.verbs.providers.shm.native_loop import NativeLoop

    passes: list[str] = []

    def counted(kind: type[Any], name: str) -> None:
        before = getattr(kind, name)

        def call(self: Any) -> None:
            passes.append(name)
            before(self)

        monkeypatch.setattr(kind, name, call)

    counted(NativeShmAdapter, "_handle_pass")
    counted(NativeLoop, "run_due")
    left, right = (End(Context(adapter=native_adapter(tmp_path / "meet"))) for _ in range(2))
    connect(left, right, ("127.0.0.1", 0))
    channel = right.cq.channel = CompChannel(right.context)
    receive(right, ROUNDS)
    taken: list[CQ] = []
    least = ROUNDS
    for _ in range(ROUNDS):
        right.cq.req_notify()
        thread = begin(lambda: taken.append(channel.get_cq_event(timeout_s=BOUND_S)))
        time.sleep(0.002)
        passes.clear()
        left.send(0, b"12345678")
        run_all([thread])
        least = min(least, len(passes))  # a timer may be due meanwhile
        right.cq.poll(16)
        left.cq.wait_for(1, BOUND_S)
    assert (least, taken) == (0, [right.cq] * ROUNDS)
    left.context.close()
    right.context.close()
