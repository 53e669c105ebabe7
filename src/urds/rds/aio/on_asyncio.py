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
from contextlib import suppress
from typing import TYPE_CHECKING

from urds.rds.aio.progress import LoopProgress, Sleeper

if TYPE_CHECKING:
    from urds.rds.runtime.backend import Mailbox, Plane, SocketAddress


class AsyncioSleeper(Sleeper):
    """A task that waits for a future."""

    def __init__(
        self,
        progress: AsyncioProgress,
        mailbox: Mailbox,
        *,
        room: bool,
        address: SocketAddress | None,
    ) -> None:
        super().__init__(progress, mailbox, room=room, address=address)
        self._loop = progress.loop
        self._future: asyncio.Future[None] = progress.loop.create_future()

    def _wake(self, *, own_thread: bool) -> bool:
        """Wake the task; a stopped loop may run again, but another task must not wait for that."""
        try:
            if own_thread:
                self._set()
            else:
                self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:  # the loop is closed
            return False
        return self._loop.is_running()

    def _set(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def sleep(self) -> asyncio.Future[None]:
        """Return an object that waits until woken."""
        return self._future


class _Reader:
    """What the loop calls when the plane is readable; while it exists, the loop will read."""

    def __init__(self, progress: AsyncioProgress) -> None:
        self._progress = progress
        self._process = os.getpid()
        progress.plane.adopt()

    def __call__(self) -> None:
        self._progress.look()

    def __del__(self) -> None:
        if os.getpid() == self._process:
            self._progress.plane.abandon()


class AsyncioProgress(LoopProgress):
    """See `progress.LoopProgress`."""

    loop: AbstractEventLoop
    sleepers = AsyncioSleeper

    def __init__(self, plane: Plane, loop: AbstractEventLoop) -> None:
        super().__init__(plane, loop)
        self._reader: weakref.ref[_Reader] | None = None

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
        reader = _Reader(self)
        self._reader = weakref.ref(reader)
        self.loop.add_reader(self.plane.fileno(), reader)

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
        self._reader = None
        self.loop.remove_reader(self.plane.fileno())

    def schedule_flush(self) -> None:
        """Call `flush` in the next iteration of the loop."""
        self.loop.call_soon(self.flush)

    async def one_pass(self) -> None:
        """Let the loop run one iteration."""
        await asyncio.sleep(0)

    async def nap(self, nap_s: float) -> None:
        """Sleep for a while."""
        await asyncio.sleep(nap_s)
