"""A listening rsocket whose connections an asyncio loop serves."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Final, Self

from urds.rsocket.aio.transport import StreamTransport
from urds.rsocket.aio.waiting import LoopCalls, loop_calls
from urds.rsocket.socket import Socket
from urds.rsocket.waiting import attended, revents

ACCEPTS_MAX: Final = 64  # of one pass: then others come


class Server(asyncio.AbstractServer):
    """As `asyncio.Server`: made by `start_server`, closed by `close` or an `async with`."""

    def __init__(
        self, sockets: list[Socket], protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        """Serve listening sockets in the running loop, from `start_serving` on."""
        self._sockets = sockets
        self._factory = protocol_factory
        self._loop = asyncio.get_running_loop()
        self._loop_calls: LoopCalls = loop_calls()
        self._transports: set[StreamTransport] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._notes: dict[Socket, Callable[[], None]] = {}
        self._attending = ExitStack()
        self._is_closed = False
        self._forever: asyncio.Future[None] | None = None

    @property
    def sockets(self) -> tuple[Socket, ...]:
        """The listening sockets; none once it is closed."""
        return () if self._is_closed else tuple(self._sockets)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that serves."""
        return self._loop

    def is_serving(self) -> bool:
        """Tell whether connections are accepted."""
        return bool(self._notes) and not self._is_closed

    async def start_serving(self) -> None:
        """Accept connections from now on. Safe twice."""
        self._start()
        await asyncio.sleep(0)

    async def serve_forever(self) -> None:
        """Serve until the task is cancelled, then close."""
        if self._forever is not None:
            raise RuntimeError("the server serves for ever already")
        if self._is_closed:
            raise RuntimeError("the server is closed")
        self._start()
        self._forever = self._loop.create_future()
        try:
            await self._forever
        except asyncio.CancelledError:
            self.close()
            await self.wait_closed()
            raise
        finally:
            self._forever = None

    def close(self) -> None:
        """Accept no more. Connections that are served go on."""
        if self._is_closed:
            return
        self._is_closed = True
        for socket, note in self._notes.items():
            socket.watchers.remove(note)
        self._attending.close()
        for socket in self._sockets:
            socket.close()
        if self._forever is not None:
            self._forever.cancel()
        self._wake_if_done()

    def close_clients(self) -> None:
        """Close the connections that are served."""
        for transport in list(self._transports):
            transport.close()

    def abort_clients(self) -> None:
        """Break the connections off that are served."""
        for transport in list(self._transports):
            transport.abort()

    async def wait_closed(self) -> None:
        """Wait until it is closed and the last connection is over."""
        if self._is_closed and not self._transports:
            return
        waiting = self._loop.create_future()
        self._waiting.append(waiting)
        await waiting

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self.wait_closed()

    # -- accepting

    def _start(self) -> None:
        if self._notes or self._is_closed:
            return
        for socket in self._sockets:
            self._attending.enter_context(attended(socket.contexts))
            self._notes[socket] = self._watch(socket)

    def _watch(self, socket: Socket) -> Callable[[], None]:
        is_due = False

        def note() -> None:
            nonlocal is_due
            if not is_due and revents(socket, select.POLLIN) & select.POLLIN:
                is_due = True
                self._loop_calls.call_soon(look)

        def look() -> None:
            nonlocal is_due
            is_due = False  # first: what comes from here on schedules again
            if not self._is_closed and self._accept(socket):
                note()

        socket.watchers.add(note)
        note()
        return note

    def _accept(self, socket: Socket) -> bool:
        """Take the connections that wait; true if some are left."""
        for _ in range(ACCEPTS_MAX):
            if not socket.readiness().readable:
                return False
            try:
                connected, _ = socket.accept()
            except BlockingIOError:
                return False
            self._serve(connected)
        return True

    def _serve(self, connected: Any) -> None:
        protocol = self._factory()
        with suppress(OSError):  # over before it began: the protocol has heard of it
            self._transports.add(
                StreamTransport(connected, protocol, self._loop_calls, on_lost=self._forget)
            )

    def _forget(self, transport: StreamTransport) -> None:
        self._transports.discard(transport)
        self._wake_if_done()

    def _wake_if_done(self) -> None:
        if self._is_closed and not self._transports:
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)
            self._waiting.clear()
