"""How an asyncio loop hears of rsockets: by calls into the loop, without a descriptor per socket.

Changes come on the thread that makes the device progress. The first one to come while the loop
sleeps wakes it; those that follow until it looks are queued and cost no system call.

A simulated device progresses by no thread of its own: a task that waits lets it run, step by step,
between the passes of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary

from urds.rsocket.link.devices import DeviceContext, attended
from urds.rsocket.socket import Socket

Call = Callable[[], None]

_IDLE_S: Final = 0.001


class LoopCalls:
    """The calls that other threads want a loop to make. One per loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: deque[Call] = deque()
        self._is_told = False

    @property
    def is_here(self) -> bool:
        """Whether the caller is the loop's own thread."""
        return asyncio._get_running_loop() is self._loop

    def call_soon(self, call: Call) -> None:
        """Have the loop call; any thread. Nothing is called in a loop that is closed."""
        self._due.append(call)
        if self._is_told:
            return
        self._is_told = True
        with suppress(RuntimeError):  # the loop is closed: no task waits in it any more
            if self.is_here:
                self._loop.call_soon(self._call)
            else:
                self._loop.call_soon_threadsafe(self._call)

    def _call(self) -> None:
        self._is_told = False  # first: what comes from here on tells again
        try:
            for _ in range(len(self._due)):
                self._due.popleft()()
        finally:
            if self._due and not self._is_told:  # one has raised: the others come next
                self._is_told = True
                self._loop.call_soon(self._call)


_doors: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopCalls] = WeakKeyDictionary()


def loop_calls() -> LoopCalls:
    """Return the calls into the running loop."""
    loop = asyncio.get_running_loop()
    found = _doors.get(loop)
    if found is None:
        found = _doors[loop] = LoopCalls(loop)
    return found


async def until(socket: Socket, is_ready: Callable[[], bool]) -> None:
    """Wait for `is_ready`, asked again whenever the socket changes. Takes nothing by itself.

    It is asked on the thread that makes the change, and may hold the lock of the device. Raises
    the OSError that it raises: EBADF of a socket that is closed meanwhile.
    """
    if is_ready():
        return
    loop, calls = asyncio.get_running_loop(), loop_calls()
    woken: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    def note() -> None:
        try:
            is_over = is_ready()
        except OSError:  # the task shall have it
            is_over = True
        if is_over:
            calls.call_soon(wake)

    contexts = list(socket.contexts)
    socket.watchers.add(note)
    try:
        with attended(contexts):
            while not is_ready():
                await _slept(woken, contexts)
                woken = loop.create_future()
    finally:
        socket.watchers.remove(note)


async def _slept(woken: asyncio.Future[None], contexts: Iterable[DeviceContext]) -> None:
    simulated = [context.adapter for context in contexts if not context.adapter.has_own_time]
    if not simulated:
        await woken
    while not woken.done():
        before_ns = simulated[0].now_ns()
        for adapter in simulated:
            adapter.progress()
        # Where nothing can happen any more, only another task can make something happen.
        await asyncio.sleep(0 if simulated[0].now_ns() != before_ns else _IDLE_S)
