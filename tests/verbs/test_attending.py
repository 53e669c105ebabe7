"""Threads that sleep outside of a device, on a descriptor: the device drives itself at once.

Without it the device's own thread leaves the driving to the last caller for a while. These tests
make that while an hour, and the bounded sleeps too, so that what no thread drives never comes.
"""

import asyncio
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import settled
from tests.verbs.pair import End, connect
from urds.common import progress
from urds.verbs import CompChannel, Context, RecvWR, SendWR
from urds.verbs.providers.base import Adapter, LoopAdapter
from urds.verbs.providers.shm import open_adapter
from urds.verbs.providers.sim import SimNetwork
from urds.verbs.providers.tcp import TcpAdapter
from urds.verbs.providers.udp import UdpAdapter

HOUR_S = 3600
PATIENCE_S = 10.0
ROUNDS = 200


@pytest.fixture(params=["shm", "tcp", "udp"])
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[End, End]]:
    """Yield two connected ends, where only their callers drive."""

    def opened() -> Adapter:
        if request.param == "shm":
            return open_adapter(directory=tmp_path / "meet")
        return TcpAdapter() if request.param == "tcp" else UdpAdapter()

    left, right = (End(Context(adapter=opened())) for _ in range(2))
    connect(left, right, ("127.0.0.1", 0))
    for end in (left, right):
        end.adapter.progress()
        assert isinstance(end.adapter, LoopAdapter)
        for name in ("nap_ns", "park_ns"):
            monkeypatch.setattr(end.adapter.loop, name, HOUR_S * 10**9)
    yield left, right
    monkeypatch.undo()  # closing waits in those steps
    left.context.close()
    right.context.close()


def notices(end: End) -> bool:
    """Tell whether a completion comes, without driving: an armed queue would be another test."""
    end_s = time.monotonic() + PATIENCE_S
    while not len(end.cq.engine):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.0005)
    return True


def driven(end: End) -> None:
    """Drive once: from here on the thread leaves it to its caller."""
    end.adapter.progress()
    end.cq.engine.poll(100)


def test_an_attended_device_takes_in_what_arrives(pair: tuple[End, End]) -> None:
    left, right = pair
    driven(right)
    time.sleep(0.02)  # the thread has gone to sleep for an hour by now
    with right.adapter.lock:
        right.adapter.add_external_waiter()
    for number in range(ROUNDS):
        right.qp.post_recv(RecvWR(number, [right.mr.sge(0, 8)]))
        driven(right)
        left.send(number, b"12345678")
        assert notices(right), number
        left.cq.wait_for(1, PATIENCE_S)


def test_who_waits_inside_of_an_attended_device_is_served(pair: tuple[End, End]) -> None:
    left, right = pair
    for end in pair:
        with end.adapter.lock:
            end.adapter.add_external_waiter()
    for number in range(ROUNDS):
        right.qp.post_recv(RecvWR(number, [right.mr.sge(0, 8)]))
        left.send(number, b"12345678")
        right.cq.wait_for(1, PATIENCE_S)
        left.cq.wait_for(1, PATIENCE_S)


def test_who_asks_late_takes_no_doorbell_from_who_leads(pair: tuple[End, End]) -> None:
    """Two threads found that the progress thread leads, and one of them leads by now."""
    left, right = pair
    adapter: Any = right.adapter
    if not adapter.has_native_waits:
        pytest.skip("no thread waits in the engine")
    engine = adapter.channel_engine
    engine.nap_ns = HOUR_S * 10**9
    with adapter.lock:
        adapter.add_external_waiter()
    right.qp.post_recv(RecvWR(0, [right.mr.sge(0, 8)]))
    waiter = threading.Thread(target=right.cq.wait_for, args=(1, PATIENCE_S), daemon=True)
    waiter.start()
    assert settled(lambda: engine.sleepers == 1)
    adapter.loop.yield_lead()
    sender: Any = left.adapter
    rung = sender.channel_counters().doorbells_rung
    left.send(0, b"12345678")
    assert sender.channel_counters().doorbells_rung == rung + 1
    waiter.join(PATIENCE_S)
    assert not waiter.is_alive()


def test_the_thread_takes_over_from_who_waited_inside(pair: tuple[End, End]) -> None:
    left, right = pair
    right.qp.post_recv(RecvWR(0, [right.mr.sge(0, 8)]))
    waiter = threading.Thread(target=right.adapter.wait, args=(lambda: False, 50_000_000))
    waiter.start()
    with right.adapter.lock:
        right.adapter.add_external_waiter()
    waiter.join(PATIENCE_S)
    left.send(0, b"12345678")
    assert notices(right)


def test_a_poller_takes_no_doorbell_from_the_thread(
    pair: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A doorbell that a poller hears before the sleeping thread wakes would wake no thread."""
    monkeypatch.setattr(progress, "LOOK_NS", 0)
    left, right = pair
    with right.adapter.lock:
        right.adapter.add_external_waiter()
    for number in range(ROUNDS):
        right.post_receives(2, 8)
        left.send(0, b"12345678")
        for _ in range(100_000):
            if right.cq.poll(1)[0]:
                break
        left.send(1, b"12345678")
        assert notices(right), number
        assert len(right.cq.wait_for(1, PATIENCE_S)) == 1
        left.cq.wait_for(2, PATIENCE_S)


# -- who attends


class Count:
    """Counts the sleepers of an adapter in place of it."""

    def __init__(self, adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = 0
        monkeypatch.setattr(adapter, "add_external_waiter", lambda: self.add(1))
        monkeypatch.setattr(adapter, "remove_external_waiter", lambda: self.add(-1))

    def add(self, change: int) -> None:
        self.now += change
        self.most = max(self.most, self.now)


def test_a_channel_attends_once_its_descriptor_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Context(adapter=SimNetwork().adapter("alone")) as context:
        count = Count(context.adapter, monkeypatch)
        channel, other = CompChannel(context), CompChannel(context)
        assert count.now == 0
        assert channel.fileno() == channel.fileno()
        assert count.now == 1
        channel.close()
        channel.close()
        other.close()
        assert (count.now, count.most) == (0, 1)


def test_a_task_that_waits_attends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(adapter=SimNetwork().adapter("alone")) as context:
        count = Count(context.adapter, monkeypatch)
        channel = CompChannel(context)

        async def wait_without_an_event() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(channel.event(), 0.02)

        asyncio.run(wait_without_an_event())
        assert (count.now, count.most) == (0, 1)


def test_a_channel_wakes_a_thread_in_its_own_set(pair: tuple[End, End]) -> None:
    left, right = pair
    channel = CompChannel(right.context)
    right.cq.channel = channel
    own = select.poll()
    own.register(channel.fileno(), select.POLLIN)
    for number in range(ROUNDS):
        right.qp.post_recv(RecvWR(number, [right.mr.sge(0, 8)]))
        right.cq.req_notify()
        driven(right)
        left.qp.post_send(SendWR(number, sg=[left.mr.sge(0, 8)]))
        assert own.poll(PATIENCE_S * 1000), number
        channel.get_cq_event(timeout_s=0)
        right.cq.ack_events(1)
        left.cq.wait_for(1, PATIENCE_S)
    right.cq.channel = None
    channel.close()
