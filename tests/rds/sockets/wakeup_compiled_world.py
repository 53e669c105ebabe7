"""A compiled plane with real threads and stopped moments, in a process of its own.

`urds_native` is the module built with the feature `broken-rules` (`tools.native rules`). It keeps
its switches for the whole process, so there is one scenario in each, and what a broken rule leaves
asleep ends with the process.
"""

import queue
import signal
import threading
from collections.abc import Callable
from typing import Any

import urds_native

from tests.rds.sockets.wakeup_scene import Scene, Stop
from urds.rds.plane.native import Mailbox, Plane


class Interrupted(Exception):
    """What a signal raises in the main thread."""


class Moment(Stop):
    """One of `native/crates/dataplane/src/rules.rs`."""

    def __init__(self, scene: Scene, name: str) -> None:
        self._scene, self._name = scene, name
        urds_native.stop_at(name)

    def is_reached(self) -> bool:
        return urds_native.seen(self._name)[1]

    def wait(self) -> None:
        assert self._scene.wait_for(self.is_reached), f"no thread came to {self._name}"

    def go_on(self) -> None:
        urds_native.go_on(self._name)


class CompiledScene(Scene):
    """A scene of the compiled plane.

    The scenario runs in a thread; `victim` has the main thread wait, which alone gets signals.
    """

    def __init__(self, bound_s: float) -> None:
        super().__init__(bound_s, Plane)
        self.tasks: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._is_over = False

    def stop(self, moment: str) -> Moment:
        return Moment(self, moment)

    def seats(self) -> int:
        return self.leads() + urds_native.seen("FollowerSleeps")[0]

    def has_tail(self) -> bool:
        return bool(self.plane.batches)

    def is_over(self) -> bool:
        return self._is_over

    def leads(self) -> int:
        """Count how often a leader sat down so far."""
        return urds_native.seen("LeaderSleeps")[0]

    def victim(self, mailbox: Mailbox) -> None:
        """Receive in the main thread."""
        before = self.seats()
        self.tasks.put(lambda: mailbox.receive(wait_ns=None))
        self.wait_for(lambda: self.seats() > before)

    def interrupt(self) -> Moment:
        """End the sleep of the victim by a signal, and stop it before it leaves the lists."""
        stop = self.stop("Interrupted")
        main = threading.main_thread().ident
        assert main is not None, "the main thread runs"

        def reached() -> bool:
            # One that comes before the system call ends nothing: once more.
            signal.pthread_kill(main, signal.SIGUSR1)
            return stop.is_reached()

        assert self.wait_for(reached), "the signal ended no sleep"
        return stop

    def close(self) -> None:
        """End what ended well."""
        self._is_over = True
        self.plane.close(0)
        self.plane.wake()
        for remote in self.remotes:
            remote.close()
