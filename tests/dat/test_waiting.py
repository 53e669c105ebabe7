"""Threads that wait on real adapters: what happens without a packet wakes them too.

A wake-up that is lost shows as a wait that lasts until its limit. Source: docs/reference/dat.md 5.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from tests.dat.devices import DEVICES
from urds import dat
from urds.dat import EvdFlag
from urds.dat.evd import EventDispatcher
from urds.dat.ia import InterfaceAdapter
from urds.dat.returns import Subtype

LIMIT_S = 20.0  # of a wait
SOON_S = 5.0  # a wake-up takes microseconds; this bounds a loaded machine
LOOPS_MAX = 10_000

pytestmark = pytest.mark.parametrize("device", DEVICES, indirect=True)


@pytest.fixture
def ia(device: str) -> Iterator[InterfaceAdapter]:
    with dat.open(device) as opened:
        yield opened


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def until_a_thread_waits(evd: EventDispatcher) -> None:
    """Return once a thread waits on an empty dispatcher: then a dequeue is refused."""
    for _ in range(LOOPS_MAX):
        try:
            assert evd.dequeue() is None
        except dat.DatInvalidState:
            return
        time.sleep(0.001)
    pytest.fail("no thread began to wait")


def wakes(
    pool: ThreadPoolExecutor,
    evd: EventDispatcher,
    act: Callable[[], object],
    *,
    threshold: int = 1,
) -> object:
    """Let a thread wait, act, and return what became of the wait, which must end soon."""
    waiting: Future[object] = pool.submit(evd.wait, LIMIT_S, threshold)
    until_a_thread_waits(evd)
    begin_s = time.monotonic()
    act()
    error = waiting.exception(LIMIT_S)
    assert time.monotonic() - begin_s < SOON_S
    return error or waiting.result()


def post_all(evd: EventDispatcher) -> None:
    """Post a hundred events."""
    for number in range(100):
        evd.post(number)


def test_a_software_event_of_another_thread_wakes_the_waiter(
    ia: InterfaceAdapter, pool: ThreadPoolExecutor
) -> None:
    evd = ia.create_evd(4, EvdFlag.SOFTWARE)
    for number in range(20):
        event = wakes(pool, evd, partial(evd.post, number))
        assert isinstance(event, dat.SoftwareEvent)
        assert event.pointer == number


def test_made_unwaitable_by_another_thread(ia: InterfaceAdapter, pool: ThreadPoolExecutor) -> None:
    evd = ia.create_evd(4, EvdFlag.SOFTWARE)
    error = wakes(pool, evd, lambda: dat.dat_evd_set_unwaitable(evd))
    assert isinstance(error, dat.DatInvalidState)
    assert error.subtype == Subtype.INVALID_STATE_EVD_UNWAITABLE


def test_an_asynchronous_dispatcher_that_dies_wakes_who_waits_for_more_than_it_holds(
    ia: InterfaceAdapter, pool: ThreadPoolExecutor
) -> None:
    evd = ia.async_evd
    assert isinstance(evd, EventDispatcher)

    def overflow() -> None:
        evd.resize(2)
        with ia.lock:
            for _ in range(3):
                ia.post_async(dat.EventNumber.ASYNC_IA_CATASTROPHIC, ia)

    error = wakes(pool, evd, overflow, threshold=4)
    assert isinstance(error, dat.DatInvalidState)
    assert error.subtype == Subtype.INVALID_STATE_EVD_ASYNC


def test_o4_an_abrupt_close_aborts_the_wait(ia: InterfaceAdapter, pool: ThreadPoolExecutor) -> None:
    evd = ia.create_evd(4, EvdFlag.SOFTWARE)
    assert isinstance(wakes(pool, evd, ia.close), dat.DatAbort)


def test_a_notification_point_of_many_dispatchers(
    ia: InterfaceAdapter, pool: ThreadPoolExecutor
) -> None:
    """Four threads post to four dispatchers; the threads that wait on the point see every event."""
    cno = ia.create_cno()
    evds = [ia.create_evd(100, EvdFlag.SOFTWARE, cno) for _ in range(4)]
    posting = [pool.submit(post_all, evd) for evd in evds]
    seen: list[list[object]] = [[] for _ in evds]
    for _ in range(LOOPS_MAX):
        for evd, events in zip(evds, seen, strict=True):
            events += [getattr(event, "pointer", None) for event in evd]
        if sum(map(len, seen)) == 400:
            break
        assert cno.wait(LIMIT_S) in evds
    assert seen == [list(range(100))] * 4
    assert [future.exception() for future in posting] == [None] * 4


def test_closing_wakes_who_waits_on_a_notification_point(
    ia: InterfaceAdapter, pool: ThreadPoolExecutor
) -> None:
    cno = ia.create_cno()
    begun = threading.Event()

    def wait() -> object:
        begun.set()
        return cno.wait(LIMIT_S)

    waiting = pool.submit(wait)
    assert begun.wait(LIMIT_S)
    begin_s = time.monotonic()
    ia.close()
    assert waiting.exception(LIMIT_S) is None or isinstance(
        waiting.exception(), dat.DatInvalidHandle
    )
    assert time.monotonic() - begin_s < SOON_S
