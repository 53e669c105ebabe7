"""Wake-ups in the shm provider: threads that sleep are woken, each of them, and no others.

A lost wake-up hides behind the bounded sleep of the progress thread: here that is an hour.
"""

import threading
import time
from itertools import count
from pathlib import Path
from weakref import WeakSet

import pytest

from tests.support.clocks import give_time
from tests.verbs.shm_world import BASE, BUFFER_BYTES, PATIENCE_NS, Side, joined
from urds.verbs.engine.numbers import WCStatus, WROpcode
from urds.verbs.engine.work import RecvWR, SendWR
from urds.verbs.providers.shm import adapter


def without_net(*sides: Side) -> tuple[Side, ...]:
    """Have no bounded sleep hide a lost doorbell."""
    for side in sides:
        side.adapter.loop.nap_ns = 3600 * 10**9
    return sides


@pytest.fixture
def pair(pair: tuple[Side, Side]) -> tuple[Side, ...]:
    """Return two sides over shm, connected, without a net below them."""
    return without_net(*pair)


def test_both_ways_at_once_with_full_rings(place: Path) -> None:
    """Reads of a megabyte cross, more than the rings hold: neither side waits for ever."""
    left, right = without_net(*joined(place))
    for side, other in ((left, right), (right, left)):
        for _ in range(8):
            piece = side.piece(BUFFER_BYTES)
            side.post(
                SendWR(1, WROpcode.RDMA_READ, piece, rkey=other.region.rkey, remote_addr=BASE)
            )
    for side in (left, right):
        assert {wc.status for wc in side.poll(8)} == {WCStatus.SUCCESS}
    rooms = [side.adapter.channel_counters().waits_for_room for side in (left, right)]
    assert any(rooms)
    left.close()
    right.close()


def test_who_makes_room_rings(place: Path) -> None:
    """One message that the ring does not hold: no answer wakes the sender before its end."""
    left, right = without_net(*joined(place))
    for _ in range(20):
        with right.adapter.lock:
            right.qp.post_recv(RecvWR(0, right.piece(BUFFER_BYTES) * 2), right.adapter.now_ns())
        left.post(SendWR(0, WROpcode.SEND, left.piece(BUFFER_BYTES) * 2))
        assert right.poll()[0].status == left.poll()[0].status == WCStatus.SUCCESS
    assert left.adapter.channel_counters().waits_for_room > 0
    left.close()
    right.close()


def test_after_a_wait_the_device_goes_on_by_itself(place: Path) -> None:
    """A read is answered although no thread there waits any more."""
    left, right = without_net(*joined(place))
    for _ in range(3):
        right.adapter.wait(lambda: False, 20_000_000)
        piece = left.piece(100)
        left.post(SendWR(1, WROpcode.RDMA_READ, piece, rkey=right.region.rkey, remote_addr=BASE))
        assert left.poll()[0].status == WCStatus.SUCCESS
    left.close()
    right.close()


def test_no_doorbell_rings_for_a_running_thread(pair: tuple[Side, Side]) -> None:
    left, right = pair
    right.adapter.progress()
    for _ in range(100):
        right.receive(8)
        left.send(8)
        while not len(right.cq):
            right.adapter.progress()
        right.poll()
        while not len(left.cq):
            left.adapter.progress()
            right.adapter.progress()  # by its second look at nothing it acknowledges
        left.poll()
    rung = [side.adapter.channel_counters().doorbells_rung for side in (left, right)]
    assert max(rung) < 20, rung


def test_no_wake_up_is_lost(place: Path) -> None:
    left, right = without_net(*joined(place))
    count = 1500

    def echo() -> None:
        for _ in range(count):
            right.poll()
            right.receive(8)
            right.send(8)
            right.poll()

    right.receive(8)
    thread = threading.Thread(target=echo)
    thread.start()
    for _ in range(count):
        left.receive(8)
        left.send(8)
        left.poll(2)
    thread.join(20)
    assert not thread.is_alive()
    left.close()
    right.close()


def test_a_call_without_the_lock_is_heard_by_who_is_about_to_sleep(
    pair: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = pair[0].adapter
    called, looks = threading.Event(), count()
    deadline = left.deadline_ns

    def look() -> int | None:
        at_ns = deadline()
        if not next(looks):
            left.call_soon(called.set)
        return at_ns

    with left.lock:
        monkeypatch.setattr(left, "deadline_ns", look)
        left.add_external_waiter()
        left.loop._ring()
    assert called.wait(2)


def test_waiters_in_several_threads_all_wake(pair: tuple[Side, Side]) -> None:
    left, right = pair
    seen: list[int] = []

    def wait_for(count: int) -> None:
        if right.adapter.wait(lambda: len(right.cq) >= count, PATIENCE_NS):
            seen.append(count)

    threads = [threading.Thread(target=wait_for, args=(count,)) for count in range(1, 6)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        right.receive(8)
        left.send(8)
    for thread in threads:
        thread.join(20)
    assert sorted(seen) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("waiter_count", [1, 2])
def test_a_waiter_sees_what_another_thread_did(pair: tuple[Side, Side], waiter_count: int) -> None:
    """Whether it sleeps where all arrives, or behind another waiter."""
    adapter = pair[0].adapter
    flags: list[int] = []
    over: list[int] = []
    threads = [
        threading.Thread(target=adapter.wait, args=(lambda: bool(over), PATIENCE_NS)),
        threading.Thread(target=adapter.wait, args=(lambda: bool(flags), PATIENCE_NS)),
    ][-waiter_count:]
    for thread in threads:
        thread.start()
        time.sleep(0.1)  # it sleeps by now
    with adapter.lock:
        flags.append(1)
        adapter.notify()
    threads[-1].join(10)
    assert not threads[-1].is_alive()
    with adapter.lock:
        over.append(1)
        adapter.notify()
    threads[0].join(10)
    assert not threads[0].is_alive()


def test_closing_wakes_who_waits(place: Path) -> None:
    (side,) = without_net(Side(place))
    answers: list[bool] = []
    threads = [
        threading.Thread(target=lambda: answers.append(side.adapter.wait(lambda: False, None)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    side.close()
    for thread in threads:
        thread.join(10)
    assert answers == [False] * 3


def test_a_wait_ends_in_time(pair: tuple[Side, Side]) -> None:
    assert pair[0].adapter.wait(lambda: False, 1_000_000) is False


def napping(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the naps of the thread that spins; those of others are none."""
    naps: list[float] = []
    own = threading.get_ident()

    def nap(duration_s: float) -> None:
        if threading.get_ident() == own:
            naps.append(duration_s)

    give_time(monkeypatch, adapter, sleep=nap)
    return naps


def test_a_thread_that_spins_without_success_gives_way_to_other_contexts(
    pair: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = pair
    # Of the openings in this process these two count: other tests have left theirs.
    monkeypatch.setattr(adapter, "_alive", WeakSet([left.adapter, right.adapter]))
    naps = napping(monkeypatch)
    for _ in range(3 * adapter.IDLE_PASSES):
        left.adapter.progress()
    assert len(naps) in (2, 3)  # greetings may still arrive
    naps.clear()
    right.close()
    for _ in range(3 * adapter.IDLE_PASSES):
        left.adapter.progress()
    assert naps == []


def test_a_thread_that_spins_with_success_does_not_give_way(
    pair: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = pair
    right.receive(8)
    left.send(8)
    right.poll()  # the channel is there, and the threads leave the driving to us
    left.poll()
    naps = napping(monkeypatch)
    for _ in range(3 * adapter.IDLE_PASSES):
        right.receive(8)
        left.send(8)
        # The device's own thread may be faster: then one turn finds nothing, but not many in a row.
        right.adapter.progress()
        left.adapter.progress()
    assert len(naps) <= 1, naps
