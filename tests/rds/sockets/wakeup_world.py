"""A plane with real threads and paused moments, for scenarios that find lost wake-ups.

A `Pause` stops threads at a named call, before or after it: windows of nanoseconds become as wide
as the scenario needs. `World.closing` opens every pause and wakes all by force, so that even
a scenario with a broken rule ends.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.rds.sockets.wakeup_scene import STEP_S, Scene, Stop
from urds.rds.plane.python.plane import Plane


class Pause(Stop):
    """Stops the threads that `when` chooses at one call until `go`; tells that one came."""

    def __init__(self, bound_s: float) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()
        self._bound_s = bound_s

    def stop(self) -> None:
        self.reached.set()
        self.go.wait(10)

    def wait(self) -> None:
        self.reached.wait(self._bound_s)

    def go_on(self) -> None:
        self.go.set()


class World(Scene):
    """A scene of the Python plane, whose methods it stops."""

    def __init__(self, bound_s: float) -> None:
        super().__init__(bound_s, Plane)
        self._pauses: list[Pause] = []
        self._restore: list[Callable[[], None]] = []

    def stop(self, moment: str) -> Pause:
        if moment == "LeaderSleeps":
            leads = lambda *_, leading=False: leading  # noqa: E731 - of one call
            return self.pause(self.plane.passes, "serve_ready", when=leads)
        if moment == "FollowerWoke":
            return self.pause(self.plane.state.wait_queue, "sleep", after=True)
        assert moment == "ProgressThreadSleeps", moment
        # Long sleeps only: without a deadline the helper has decided that nothing is due.
        helper = self.plane.progress_thread
        return self.pause(helper, "_sleep", when=lambda timeout_ns: timeout_ns is None)

    def seats(self) -> int:
        wait_queue = self.plane.state.wait_queue
        with self.plane.state.lock:
            return len(wait_queue.followers) + (wait_queue.leader is not None)

    def has_tail(self) -> bool:
        return self.path().writer.batch_since_ns is not None

    def is_over(self) -> bool:
        return bool(self.plane.state.closed)

    def pause(
        self,
        owner: object,
        name: str,
        *,
        when: Callable[..., bool] = lambda *_, **__: True,
        after: bool = False,
        times: int = 1,
    ) -> Pause:
        """Stop the next `times` calls of a method, before or after their work."""
        pause = Pause(self.bound_s)
        self._pauses.append(pause)
        original, placed = getattr(owner, name), name in vars(owner)
        left = [times]

        def paused(*arguments: object, **named: object) -> object:
            stops = left[0] > 0 and when(*arguments, **named)
            if stops:
                left[0] -= 1
            if stops and not after:
                pause.stop()
            result = original(*arguments, **named)
            if stops and after:
                pause.stop()
            return result

        setattr(owner, name, paused)
        self._restore.append(
            lambda: setattr(owner, name, original) if placed else delattr(owner, name)
        )
        return pause

    def close(self) -> None:
        """End everything, also what a broken rule left asleep."""
        for restore in reversed(self._restore):
            with suppress(AttributeError):
                restore()
        for pause in self._pauses:
            pause.go.set()
        for remote in self.remotes:
            remote.close()
        self.plane.close(0)
        wait_queue = self.plane.state.wait_queue
        for _ in range(500):
            if not any(thread.is_alive() for thread in self.threads):
                break
            with self.plane.state.lock:  # a broken rule may have left them on no list
                sleepers = [
                    *wait_queue.followers,
                    *([wait_queue.leader] if wait_queue.leader else []),
                ]
                for waiter in sleepers:
                    wait_queue.notify(waiter)
            self.plane.passes.deliver()
            self.plane.wake()
            os.eventfd_write(wait_queue.kick, 1)
            time.sleep(STEP_S)
        for thread in self.threads:
            thread.join(1)
            assert not thread.is_alive(), "a thread of the scenario is still in the plane"
        self.plane.release()


@contextmanager
def world(bound_s: float) -> Iterator[World]:
    """Make a world; close it whatever happens."""
    made = World(bound_s)
    try:
        yield made
    finally:
        made.close()


Breakage = Callable[[pytest.MonkeyPatch], None]
