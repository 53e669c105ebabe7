"""The progress of an asyncio loop, or of any loop that has `add_reader`.

asyncio does not tell that a loop ends. What only the loop references is freed with it, so the
callback given to `add_reader` holds the promise to read, and its finaliser takes it back.
"""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import Context
from threading import get_ident
from typing import TYPE_CHECKING, Any

from urds.rds.aio.progress import LoopProgress, Sleeper

if TYPE_CHECKING:
    from urds.rds.runtime.backend import Plane


class AsyncioSleeper(Sleeper):
    """A task that waits for a future: this object, as `asyncio.isfuture` has it.

    A future of asyncio's own has its task run in the next iteration of the loop, which begins with
    another poll of all descriptors. This one runs it where the loop reads the plane.
    """

    _progress: AsyncioProgress
    _loop: AbstractEventLoop  # where asyncio looks for it
    _asyncio_future_blocking = False
    _step: Callable[[AsyncioSleeper], object] | None = None  # runs the task

    def _wake(self) -> bool:
        """Wake the task; a stopped loop may run again, but another task must not wait for that."""
        progress = self._progress
        if progress.reading_thread == get_ident():
            progress.woken.append(self)
        elif asyncio._get_running_loop() is self._loop:
            self.schedule()
        else:
            try:
                self._loop.call_soon_threadsafe(self.run)
            except RuntimeError:  # the loop is closed
                return False
            return self._loop.is_running()
        return True

    def run(self) -> None:
        """Run the task if it still waits; no task of its loop runs now."""
        step, self._step = self._step, None
        if step is not None:
            self._context.run(step, self)

    def schedule(self) -> None:
        """Have the loop run the task."""
        step, self._step = self._step, None
        if step is not None:
            self._loop.call_soon(step, self, context=self._context)

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until told."""
        if not self.told:
            self._asyncio_future_blocking = True
            yield self
        self._used = True

    def add_done_callback(
        self, callback: Callable[[AsyncioSleeper], object], *, context: Context
    ) -> None:
        """Note how to run the task, which waits from now on."""
        self._step, self._context = callback, context
        if self.told:  # by a signal handler, after the look of `__await__`
            self.schedule()

    def cancel(self, msg: object = None) -> bool:
        """Have the task run; it is the task that knows then that it is cancelled."""
        self.schedule()
        return False

    def done(self) -> bool:
        """Return whether the task runs, or is about to."""
        return self._step is None

    def result(self) -> None:
        """Return nothing: the task looks for itself."""


class _Reader:
    """What the loop calls when the plane is readable; while it exists, the loop will read.

    The descriptor is a copy of the plane's, which may be closed while the loop still watches, and
    its number another's.
    """

    def __init__(self, progress: AsyncioProgress, descriptor: int) -> None:
        self._progress = progress
        self._process = os.getpid()
        self.descriptor = descriptor
        progress.plane.adopt()

    def __call__(self) -> None:
        """Make progress, then run the tasks that it woke."""
        progress = self._progress
        woken = progress.woken
        progress.reading_thread = get_ident()
        try:
            progress.look()
            progress.reading_thread = None  # a task runs within no other
            while woken:
                woken.popleft().run()
        finally:
            progress.reading_thread = None
            while woken:  # behind one that ends the loop
                woken.popleft().schedule()

    def __del__(self) -> None:
        if os.getpid() == self._process:
            os.close(self.descriptor)
            self._progress.plane.abandon()


class AsyncioProgress(LoopProgress):
    """See `progress.LoopProgress`."""

    loop: AbstractEventLoop
    sleepers = AsyncioSleeper

    def __init__(self, plane: Plane, loop: AbstractEventLoop) -> None:
        super().__init__(plane, loop)
        self._reader: weakref.ref[_Reader] | None = None
        self.reading_thread: int | None = None  # while it reads the plane for the loop
        self.woken: deque[AsyncioSleeper] = deque()

    def is_here(self) -> bool:
        """Tell whether the calling task runs in this loop, not in a trio run that it hosts."""
        if asyncio._get_running_loop() is not self.loop:
            return False
        trio = sys.modules.get("trio")
        return trio is None or not trio.lowlevel.in_trio_task()

    def running(self) -> bool:
        """Tell whether the loop watches the plane."""
        return self._reader is not None and self._reader() is not None

    def start(self) -> None:
        """Watch the plane."""
        reader = _Reader(self, os.dup(self.plane.fileno()))
        self._reader = weakref.ref(reader)
        self.loop.add_reader(reader.descriptor, reader)

    def stop(self) -> None:
        """Watch it no more; any thread."""
        if not self.running() or self.loop.is_closed():
            return
        if self.is_here():
            self._remove_reader()
        else:
            with suppress(RuntimeError):  # closed meanwhile
                self.loop.call_soon_threadsafe(self._stop_if_unused)

    def _stop_if_unused(self) -> None:
        if not self._sockets:
            self._remove_reader()

    def _remove_reader(self) -> None:
        reader = None if self._reader is None else self._reader()
        self._reader = None
        if reader is not None:
            self.loop.remove_reader(reader.descriptor)

    def schedule_flush(self) -> None:
        """Call `flush` in the next iteration of the loop."""
        self.loop.call_soon(self.flush)

    async def one_pass(self) -> None:
        """Let the loop run one iteration."""
        await asyncio.sleep(0)

    async def nap(self, nap_s: float) -> None:
        """Sleep for a while."""
        await asyncio.sleep(nap_s)
