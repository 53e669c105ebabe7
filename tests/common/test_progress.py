"""The progress loop alone: sparse scenarios, each a wake-up that could get lost; and its thread.

A lost wake-up shows as a wait that ends by its time limit, here two seconds; a round takes well
under a millisecond. Rounds are many because the losing order of events is rare.
"""

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.support.waiting import BUSY_S, ends_with, settled
from urds.common.progress import ProgressLoop, ProgressThread, progress_thread

LIMIT_NS = 2_000_000_000


class World:
    """A loop with one descriptor whose handler counts what it reads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.loop = ProgressLoop(self.lock)
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.count = 0
        self.on_data: Callable[[], None] = lambda: None
        with self.lock:
            self.loop.watch(self.near.fileno(), select.EPOLLIN, self.handle)

    def handle(self, _events: int) -> None:
        try:
            self.count += len(self.near.recv(100))
            self.on_data()
        except BlockingIOError:
            pass

    def has_taken(self, count: int) -> bool:
        return self.count >= count

    def close(self) -> None:
        self.loop.close()
        self.near.close()
        self.far.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def is_prompt(loop: ProgressLoop, ready: Callable[[], bool]) -> bool:
    """Wait; tell whether it ended by a wake-up and not by the limit, which also asks once more."""
    began = time.monotonic_ns()
    return loop.wait(ready, LIMIT_NS) and time.monotonic_ns() - began < LIMIT_NS // 2


@pytest.mark.parametrize("waiters", [1, 2, 5])
def test_all_waiters_hear_of_what_one_thread_took_in(world: World, waiters: int) -> None:
    """Also when the progress thread is the one that the kernel wakes."""
    rounds = 150
    late: list[int] = []

    def wait() -> None:
        for target in range(1, rounds + 1):
            if not is_prompt(world.loop, lambda: world.count >= target):  # noqa: B023  # asked before the loop goes on
                late.append(target)
                return

    threads = [threading.Thread(target=wait) for _ in range(waiters)]
    for thread in threads:
        thread.start()
    for index in range(rounds):
        world.far.send(b"x")
        if index % 10 == 0:
            time.sleep(0.005)  # the progress thread makes progress again
        while world.count <= index and not late:
            time.sleep(0.0002)
    for thread in threads:
        thread.join()
    assert late == []


def test_without_a_waiter_it_is_taken_in(world: World) -> None:
    world.far.send(b"x")
    deadline = time.monotonic() + 2
    while not world.count and time.monotonic() < deadline:
        time.sleep(0.001)
    assert world.count == 1


@pytest.mark.parametrize("how", ["soon", "timer", "tell"])
def test_a_sleeper_hears_of_another_threads_doing(world: World, how: str) -> None:
    for target in range(1, 60):

        def change() -> None:
            world.count += 1

        def do() -> None:
            with world.lock:
                if how == "soon":
                    world.loop.call_soon(change)
                elif how == "timer":
                    world.loop.call_at(time.monotonic_ns(), change)
                else:
                    change()
                    world.loop.tell()

        other = threading.Timer(0.001 * (target % 7), do)
        other.start()
        assert is_prompt(world.loop, partial(world.has_taken, target))
        other.join()


def test_an_earlier_timer_shortens_a_sleep(world: World) -> None:
    with world.lock:
        world.loop.call_at(time.monotonic_ns() + 60 * LIMIT_NS, lambda: None)
    rung: list[int] = []
    time.sleep(0.01)  # the thread sleeps towards the far timer
    with world.lock:
        world.loop.call_at(time.monotonic_ns() + 1_000_000, lambda: rung.append(1))
    deadline = time.monotonic() + 2
    while not rung and time.monotonic() < deadline:
        time.sleep(0.001)
    assert rung == [1]


def test_what_was_put_off_is_done_though_no_caller_asks_again(world: World) -> None:
    """The thread may still sleep in its pass when a driver gives up with something put off."""
    for _ in range(20):
        done = threading.Event()
        world.on_data = partial(world.loop.defer, done.set)
        time.sleep(0.01)
        sender = threading.Timer(0.005, world.far.send, (b"x",))
        sender.start()
        assert not world.loop.wait(lambda: False, 6_000_000)
        assert done.wait(2)
        sender.join()


def test_what_the_thread_put_off_is_done_while_a_thread_waits_for_it(world: World) -> None:
    """The kernel wakes the thread, which slept first; the waiter must not sleep on."""
    for _ in range(20):
        done = threading.Event()
        world.on_data = partial(world.loop.defer, done.set)
        time.sleep(0.01)
        sender = threading.Timer(0.005, world.far.send, (b"x",))
        sender.start()
        assert is_prompt(world.loop, done.is_set)
        sender.join()


class LateCalls(deque[Callable[[], None]]):
    """The calls of a loop; one comes, from who has no lock, once they were seen to be none."""

    def __init__(self, loop: ProgressLoop) -> None:
        super().__init__()
        self.called = threading.Event()
        self._late: Callable[[], None] | None = partial(loop.call_soon, self.called.set)

    def __bool__(self) -> bool:
        is_any = len(self) > 0
        late, self._late = self._late, None
        if late is not None:
            late()
        return is_any


def test_a_call_without_the_lock_is_heard_by_who_is_about_to_sleep(world: World) -> None:
    calls = LateCalls(world.loop)
    with world.lock:
        world.loop._soon = calls
        world.loop.add_external_waiter()
    world.far.send(b"x")  # the thread makes one more pass
    assert calls.called.wait(2)


def test_a_wait_inside_a_handler_only_asks(world: World) -> None:
    said: list[bool] = []
    with world.lock:
        world.loop.call_soon(lambda: said.append(world.loop.wait(lambda: False, LIMIT_NS)))
    assert world.loop.wait(lambda: bool(said), LIMIT_NS)
    assert said == [False]


def test_the_thread_makes_progress_for_a_sleeper_outside(world: World) -> None:
    world.loop.park_ns = 3600 * 10**9
    time.sleep(0.02)  # the thread makes progress
    world.loop.progress()
    world.far.send(b"x")
    time.sleep(0.02)  # and left it, seeing that another thread had it meanwhile
    taken = threading.Event()
    world.on_data = taken.set
    with world.lock:
        world.loop.add_external_waiter()
    world.far.send(b"x")
    assert taken.wait(5)


@pytest.mark.parametrize("who", ["thread", "caller"])
def test_a_handler_that_raises_does_not_end_progress(
    world: World, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _args: raised.set())

    def fail() -> None:
        world.on_data = lambda: None
        raise RuntimeError("of a handler")

    assert settled(lambda: world.loop.leader is not None)  # the thread leads
    if who == "thread":
        world.on_data = fail
        world.far.send(b"x")
        assert raised.wait(BUSY_S)
    else:
        with world.lock:  # before the thread can
            world.on_data = fail
            world.far.send(b"x")
            with pytest.raises(RuntimeError):
                world.loop.progress()
    with world.lock:
        due = threading.Event()
        world.loop.call_at(time.monotonic_ns(), due.set)
    assert due.wait(BUSY_S)
    world.far.send(b"x")
    assert settled(lambda: world.count == 2)


# -- the thread


def own_thread() -> ProgressThread:
    """Return one besides that of the process."""
    return ProgressThread()


def test_an_exception_is_reported_and_the_next_call_made(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, said, called = own_thread(), list[object](), threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda args: said.append(args.exc_value))
    problem = RuntimeError("of a handler")

    def fail() -> None:
        raise problem

    for call in (fail, called.set):
        thread.call_soon(call)
    assert called.wait(BUSY_S)
    assert said == [problem]


def test_the_thread_ends_with_its_last_work_and_begins_again() -> None:
    def held() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    thread, near_far = own_thread(), socket.socketpair()
    before = held()
    for _ in range(3):
        seen = threading.Event()
        thread.watch(near_far[0].fileno(), seen.set)
        timer = thread.call_at(time.monotonic_ns() + 3600 * 10**9, seen.set)
        near_far[1].send(b"x")
        assert seen.wait(BUSY_S)
        assert near_far[0].recv(10) == b"x"
        timer.cancel()
        thread.unwatch(near_far[0].fileno())
        assert ends_with(held, before)  # the progress thread of earlier tests may end meanwhile
    for end in near_far:
        end.close()


def test_a_thread_that_could_not_be_had_is_had_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    thread, called = own_thread(), threading.Event()
    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            thread.call_soon(called.set)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    thread.call_soon(lambda: None)
    assert called.wait(BUSY_S)


@pytest.mark.parametrize("begun", [False, True])
def test_a_signal_handler_that_raises_at_the_start_leaves_no_deaf_thread(
    monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    start = threading.Thread.start

    def interrupt(self: threading.Thread) -> None:
        if begun:
            start(self)
        raise KeyboardInterrupt

    def held() -> tuple[int]:
        return (threading.active_count(),)

    thread, called = own_thread(), threading.Event()
    before = held()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            thread.call_soon(called.set)
    thread.call_soon(lambda: None)
    assert called.wait(BUSY_S)
    assert ends_with(held, before)


def test_a_call_comes_at_its_time_and_not_before() -> None:
    thread, came_ns = own_thread(), list[int]()
    done = threading.Event()
    due_ns = time.monotonic_ns() + 20_000_000

    def note() -> None:
        came_ns.append(time.monotonic_ns())
        done.set()

    thread.call_at(due_ns + 3600 * 10**9, note).cancel()
    thread.call_at(due_ns, note)
    assert done.wait(BUSY_S)
    assert len(came_ns) == 1
    assert came_ns[0] >= due_ns


def test_the_child_of_a_fork_has_a_thread_of_its_own() -> None:
    done = threading.Event()
    progress_thread.call_soon(done.set)
    assert done.wait(BUSY_S)
    child = os.fork()
    if not child:
        heard = threading.Event()
        progress_thread.call_soon(heard.set)
        os._exit(0 if heard.wait(BUSY_S) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
