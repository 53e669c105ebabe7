"""Progress of the plane by an event loop: one object per loop and plane.

The loop watches the plane's descriptor and calls `Plane.progress` when it is readable, so a message
costs one wake-up of the loop and none of the progress thread. The object exists from the first call
that needs the loop to the close of the last socket that did, or to the end of the loop. It serves
speed alone: without it the progress thread reads and wakes the tasks.

Fairness. Calls that need not wait do not touch the loop, so a task could take messages for ever
while others starve. Each such call spends from the loop's budget, and a call that finds it spent
lets the loop run one iteration first.

Reading must not run ahead of the tasks that take, or queues grow without bound: while tasks take
messages and none waits for one, the loop leaves reading to them. A take that finds its queue empty
reads by itself.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from urds.rds.aio.sockets import Socket
    from urds.rds.runtime.backend import Mailbox, Plane, SocketAddress

# Of one iteration of the loop: a message costs 1 and its bytes 1 for each 8 KiB, which take about
# as long to copy as a call takes here. With 1 for each KiB a message of 256 KiB would cost an
# iteration of its own.
BUDGET: Final = 256
COST_SHIFT: Final = 13
_TICK_NS: Final = 1_000_000  # how long takers may be left to read by themselves


def _stay() -> None:
    """Have nothing to leave."""


class Sleeper(ABC):
    """One task that waits for a message or for room; await it in a `with` block of its own, once.

    Entering subscribes. Leaving before the await has ended passes the wake-up on, if there was one:
    a message for which only this task was told must not wait for the next message.
    """

    told = False
    _used = False
    _forgotten = False

    def __init__(
        self,
        progress: LoopProgress,
        mailbox: Mailbox,
        *,
        room: bool = False,
        address: SocketAddress | None = None,  # the task waits for room to it
    ) -> None:
        self._progress = progress
        self._loop = progress.loop
        self._mailbox = mailbox
        self._room = room
        self._address = address

    def __enter__(self) -> Self:
        self._leave = self._mailbox.subscribe(self.tell, room=self._room, address=self._address)
        self._progress.waiting += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._progress.waiting -= 1
        if self._used and self.told:
            # The subscription names this object: without the cycle it is freed now, and not at the
            # next garbage collection, which would be once in a few hundred waits.
            self._leave = _stay
        elif kind is GeneratorExit:
            # The task is being collected, perhaps inside a call that holds a lock of the plane.
            self._forgotten = True
        else:
            self._leave()

    def tell(self) -> None:
        """Wake the task; any thread."""
        self.told = True
        if self._forgotten or not self._wake():
            self._leave()  # pass it on: no task is there to use it

    @abstractmethod
    def _wake(self) -> bool:
        """Wake the task; return False if its loop does not run."""

    @abstractmethod
    def __await__(self) -> Generator[Any, None, None]:
        """Wait until told."""


class LoopProgress(ABC):
    """One loop's progress of one plane. Its methods run in the loop's thread, `leave` in any."""

    sleepers: type[Sleeper]  # how a task of this loop sleeps

    def __init__(self, plane: Plane, loop: Any) -> None:
        self.loop = loop
        self.plane = plane
        self.budget = BUDGET
        self.waiting = 0  # tasks that sleep
        self.flush_due = False
        self._progressed_ns = 0
        self._sockets: weakref.WeakSet[Socket] = weakref.WeakSet()
        self._process = os.getpid()

    def join(self, sock: Socket) -> None:
        """Serve a socket."""
        self._sockets.add(sock)
        if not self.running():
            self.flush_due = False
            self.start()

    def leave(self, sock: Socket) -> None:
        """Serve a socket no more; the last one ends the progress of this loop."""
        self._sockets.discard(sock)
        # In the child of a fork the loop's poll set is the parent's: it stays as it is.
        if not self._sockets and os.getpid() == self._process:
            self.stop()

    def look(self) -> None:
        """Make progress, because the plane's descriptor is readable."""
        taken = self.budget != BUDGET
        self.budget = BUDGET
        if taken and not self.waiting:
            now_ns = time.monotonic_ns()
            if now_ns - self._progressed_ns < _TICK_NS:
                return
            self._progressed_ns = now_ns
        self.plane.progress()

    def flush(self) -> None:
        """Send, at the end of an iteration of the loop, what its sends left to coalesce."""
        self.flush_due = False
        self.budget = BUDGET
        self.plane.progress()

    def flush_soon(self) -> bool:
        """Have `flush` called after this iteration; return False if this is another loop."""
        if not self.is_here():
            return False
        self.flush_due = True
        self.schedule_flush()
        return True

    @abstractmethod
    def is_here(self) -> bool:
        """Tell whether the calling task runs in this loop."""

    @abstractmethod
    def running(self) -> bool:
        """Tell whether the loop watches the plane."""

    @abstractmethod
    def start(self) -> None:
        """Watch the plane."""

    @abstractmethod
    def stop(self) -> None:
        """Watch it no more; any thread, and after the loop's end too."""

    @abstractmethod
    def schedule_flush(self) -> None:
        """Call `flush` when the tasks that are ready now have run."""

    @abstractmethod
    async def one_pass(self) -> None:
        """Let the loop run one iteration; a cancellation is delivered here."""

    @abstractmethod
    async def nap(self, nap_s: float) -> None:
        """Sleep for a while."""


# The loop keeps each one while it runs; a loop of the same identity may follow.
_running: weakref.WeakValueDictionary[tuple[int, int], LoopProgress] = weakref.WeakValueDictionary()


def running_progress(plane: Plane) -> LoopProgress:
    """Return the progress of the running loop. Raises RuntimeError outside of asyncio and trio."""
    loop, make = _running_loop()
    key = (id(loop), id(plane))
    progress = _running.get(key)
    if progress is None or progress.loop is not loop or progress.plane is not plane:
        progress = _running[key] = make(plane, loop)
    return progress


def _running_loop() -> tuple[object, Callable[[Plane, Any], LoopProgress]]:
    """Return the library that runs the calling task; one that was never imported runs none."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        from urds.rds.aio.on_trio import TrioProgress

        return trio.lowlevel.current_trio_token(), TrioProgress
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        from urds.rds.aio.on_asyncio import AsyncioProgress

        return asyncio.get_running_loop(), AsyncioProgress
    raise RuntimeError("urds.aio needs a running loop of asyncio or trio")
