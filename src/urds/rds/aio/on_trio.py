"""The progress of a trio run: two system tasks, which trio cancels after the main task.

One waits for the plane's descriptor. The other sleeps until a send wants the end of the run's pass;
the sender reschedules it, which costs no system call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import trio
from trio.lowlevel import Abort, Task

from urds.rds.aio.progress import LoopProgress, Sleeper

if TYPE_CHECKING:
    from urds.rds.runtime.backend import Plane


class _Bed:
    """Where one task sleeps until `wake`; only within the trio run."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._woken = False

    def wake(self) -> None:
        """Wake the sleeper, or keep it from sleeping."""
        task, self._task = self._task, None
        self._woken = True
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def sleep(self) -> None:
        """Wait for `wake`; always a checkpoint."""
        if self._woken:
            await trio.lowlevel.checkpoint()
        else:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        self._woken = False

    def _abort(self, _: Any) -> Abort:
        self._task = None
        return Abort.SUCCEEDED


class TrioSleeper(Sleeper):
    """A task that waits to be rescheduled."""

    _progress: TrioProgress
    _loop: trio.lowlevel.TrioToken

    def __enter__(self) -> Self:
        self._bed = _Bed()
        return super().__enter__()

    def _wake(self) -> bool:
        try:
            if threading.get_ident() == self._progress.thread and trio.lowlevel.in_trio_run():
                self._bed.wake()
            else:
                self._loop.run_sync_soon(self._bed.wake)
        except trio.RunFinishedError:
            return False
        return True

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until told."""
        yield from self._bed.sleep().__await__()
        self._used = True


class TrioProgress(LoopProgress):
    """See `progress.LoopProgress`."""

    loop: trio.lowlevel.TrioToken
    sleepers = TrioSleeper

    def __init__(self, plane: Plane, loop: trio.lowlevel.TrioToken) -> None:
        super().__init__(plane, loop)
        self.thread = threading.get_ident()
        self._wanted = False
        self._alive = False
        self._descriptor = -1
        self._scope = trio.CancelScope()
        self._flusher = _Bed()

    def is_here(self) -> bool:
        """Tell whether the calling task runs in this trio run."""
        in_task = trio.lowlevel.in_trio_task()
        return in_task and trio.lowlevel.current_trio_token() is self.loop

    def running(self) -> bool:
        """Tell whether the run watches the plane."""
        return self._wanted

    def start(self) -> None:
        """Watch the plane."""
        if not self._alive:
            # A copy: the plane may close its own, whose number another one has then.
            self._descriptor = os.dup(self.plane.fileno())
            self._alive = True
            self.plane.adopt()
            trio.lowlevel.spawn_system_task(self._run, name="urds progress")
        self._wanted = True

    async def _run(self) -> None:
        try:
            while self._wanted:
                with trio.CancelScope() as self._scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._look_always)
                        nursery.start_soon(self._flush_always)
        finally:
            self._wanted = self._alive = False
            os.close(self._descriptor)
            self.plane.abandon()

    async def _look_always(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            self.look()

    async def _flush_always(self) -> None:
        while True:
            await self._flusher.sleep()
            self.flush()

    def stop(self) -> None:
        """Watch it no more; any thread."""
        if not self._wanted:
            return
        if self.is_here():
            self._stop_if_unused()
        else:
            with suppress(trio.RunFinishedError):
                self.loop.run_sync_soon(self._stop_if_unused)

    def _stop_if_unused(self) -> None:
        if not self._sockets:
            self._wanted = False
            self._scope.cancel()

    def schedule_flush(self) -> None:
        """Call `flush` among the tasks of the next batch."""
        self._flusher.wake()

    async def one_pass(self) -> None:
        """Let the run make a pass."""
        await trio.lowlevel.checkpoint()

    async def nap(self, nap_s: float) -> None:
        """Sleep for a while."""
        await trio.sleep(nap_s)
