"""The progress loop after a signal handler has raised: at each step of a wait, it stays whole."""

import threading
import time
from collections.abc import Callable

import pytest

from tests.common.test_progress import World
from tests.support.cuts import through_all_steps
from tests.support.waiting import settled

WAIT_NS = 2_000_000
SOON_S = 2.0


def assert_whole(world: World, place: str) -> None:
    """Another thread gets the lock, no thread stays on the list, what is due is done."""
    done = threading.Event()

    def plan() -> None:
        with world.lock:
            world.loop.call_at(time.monotonic_ns() + 1_000_000, done.set)

    planner = threading.Thread(target=plan, daemon=True)
    planner.start()
    assert done.wait(SOON_S), f"what is due is not done after an exception in {place}"
    count = world.count
    world.far.send(b"x")
    assert settled(lambda: world.count > count), f"nothing is read after one in {place}"
    with world.lock:
        assert not world.loop._waiters, place


def wait_for_data(world: World) -> None:
    count, left = world.count, [b"y"]

    def is_ready() -> bool:
        if left:
            world.far.send(left.pop())  # with the lock held: no other thread has read it before
        return world.count > count

    world.loop.wait(is_ready, 1_000_000_000)


def wait_for_nothing(world: World) -> None:
    world.loop.wait(lambda: False, WAIT_NS)


def look(world: World) -> None:
    with world.lock:
        world.loop.call_at(time.monotonic_ns(), lambda: None)
        world.loop.defer(lambda: None)
    world.loop.progress()


def follow(world: World) -> None:
    """Wait beside a thread that leads."""
    over = threading.Event()
    leader = threading.Thread(target=world.loop.wait, args=(over.is_set, 1_000_000_000))
    leader.start()
    try:
        while world.loop.leader is None or world.loop.leader is world.loop._thread_leads:
            time.sleep(0.0001)
        world.loop.wait(lambda: False, WAIT_NS)
    finally:
        over.set()
        world.loop.call_soon(lambda: None)
        leader.join()


@pytest.mark.parametrize("act", [wait_for_data, wait_for_nothing, look, follow])
@pytest.mark.parametrize("is_attended", [False, True])
def test_a_raising_handler_leaves_a_loop_whole(
    act: Callable[[World], None], is_attended: bool
) -> None:
    """With and without an external waiter, for which the progress thread leads between waits."""
    world = World()
    if is_attended:
        with world.lock:
            world.loop.add_external_waiter()
    try:
        steps = through_all_steps(
            lambda: act(world),
            lambda place: assert_whole(world, place),
            within=["common/progress.py"],
        )
    finally:
        world.close()
    assert steps > 10
