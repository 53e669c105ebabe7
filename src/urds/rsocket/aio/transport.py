"""An asyncio transport over a stream rsocket, and a server whose connections have such ones.

Everything runs in the loop's own thread but `_note`, by which the socket tells of changes. Calls
of the socket tell too, and may make the device progress: what comes during one of them is not
scheduled, but looked at after it.

The loop hears of rsockets by calls into it, without a descriptor per socket. Changes come on the
thread that makes the device progress. The first one to come while the loop sleeps wakes it; those
that follow until it looks are queued and cost no system call.
"""

from __future__ import annotations

import asyncio
import select
import socket as system
import struct
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Final, Self, cast
from weakref import WeakKeyDictionary

from urds.rsocket.link.devices import attended
from urds.rsocket.poll import revents
from urds.rsocket.socket import Socket

Call = Callable[[], None]

READ_BYTES: Final = 1 << 18  # of one pass: then others come
WRITE_HIGH_BYTES: Final = 1 << 16  # as asyncio has it
_LINGER_NONE: Final = struct.pack("ii", 1, 0)


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


_loop_calls: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopCalls] = WeakKeyDictionary()


def loop_calls() -> LoopCalls:
    """Return the calls into the running loop."""
    loop = asyncio.get_running_loop()
    found = _loop_calls.get(loop)
    if found is None:
        found = _loop_calls[loop] = LoopCalls(loop)
    return found


class StreamTransport(asyncio.Transport):
    """A connected socket, its protocol and what waits to be sent."""

    def __init__(
        self,
        socket: Socket,
        protocol: asyncio.BaseProtocol,
        loop_calls: LoopCalls,
        *,
        on_lost: Callable[[StreamTransport], None] | None = None,
    ) -> None:
        """Begin to serve `protocol`; `on_lost` is called when all is over."""
        super().__init__({"socket": socket, "peername": _peer(socket)})
        socket.setblocking(False)
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._loop_calls = loop_calls
        self._on_lost = on_lost
        self._pending: deque[memoryview] = deque()
        self._pending_bytes = 0
        self._is_reading = True
        self._is_ended = False  # the peer sends no more
        self._is_eof_wanted = False
        self._is_closing = False
        self._is_lost = False
        self._is_scheduled = False
        self._is_calling = False  # the socket
        self._was_noted = False  # during that
        self._is_paused = False  # the protocol writes no more
        self._high_bytes, self._low_bytes = WRITE_HIGH_BYTES, WRITE_HIGH_BYTES // 4
        self._attending = ExitStack()
        self.set_protocol(protocol)
        protocol.connection_made(self)
        socket.watchers.add(self._note)
        self._attending.enter_context(attended(socket.contexts))
        self._schedule()

    # -- what the socket tells

    def _note(self) -> None:
        """React to a change, on any thread; the lock of the device may be held."""
        if self._is_scheduled:
            return
        if self._is_calling and self._loop_calls.is_here:
            self._was_noted = True
        elif self._has_work():
            self._schedule()

    def _has_work(self) -> bool:
        """Tell whether a look would do anything: most changes are about something else."""
        try:
            state = None if self._is_lost else self._socket.readiness()
        except OSError:  # closed
            state = None
        if state is None:
            return False
        can_read = state.readable and self._is_reading and not self._is_ended
        return can_read or (state.writable and bool(self._pending))

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._loop_calls.call_soon(self._look)

    def _look(self) -> None:
        self._is_scheduled = False  # first: what comes from here on schedules again
        if self._is_lost:
            return
        state = self._socket.readiness()
        self._is_calling, is_well = True, False
        try:
            if self._pending and state.writable:
                self._flush()
            if state.readable and self._is_reading and not self._is_ended and not self._is_lost:
                self._read()
            is_well = True
        finally:
            self._is_calling = False
            if not is_well:  # as in asyncio a protocol that raises loses its transport
                self.abort()
        self._look_again()

    def _look_again(self) -> None:
        """Come back if the last call left something to do, or passed over a note."""
        self._was_noted = False
        if not self._is_scheduled and self._has_work():
            self._schedule()

    # -- reading

    def _read(self) -> None:
        try:
            if self._buffered is None:
                data = self._socket.recv(READ_BYTES)
                count = len(data)
            else:
                data = b""
                count = self._socket.recv_into(self._buffered.get_buffer(-1))
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if not count:
            self._end_reading()
        elif self._buffered is None:
            self._protocol.data_received(data)
        else:
            self._buffered.buffer_updated(count)

    def _end_reading(self) -> None:
        self._is_ended = True
        if not self._protocol.eof_received():
            self.close()

    def is_reading(self) -> bool:
        """Tell whether what comes is given to the protocol."""
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        """Leave what comes where it is, until `resume_reading`."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Give what comes to the protocol again."""
        if not self._is_reading and not self._is_closing:
            self._is_reading = True
            self._schedule()

    # -- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, or keep them until there is room. Never waits."""
        if self._is_eof_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._is_lost or not data:
            return
        view = memoryview(data).cast("B")
        if not self._pending:
            view = view[self._send(view) :]
        if view:
            # What cannot change need not be copied.
            self._keep(view if isinstance(data, bytes) else memoryview(bytes(view)))
        if self._was_noted or self._pending:
            self._look_again()

    def _keep(self, view: memoryview) -> None:
        """Keep bytes for which there is no room; pause the protocol if they are many."""
        self._pending.append(view)
        self._pending_bytes += len(view)
        if self._pending_bytes > self._high_bytes and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def _send(self, view: memoryview) -> int:
        """Return how many bytes were taken: all, if the connection is lost by that."""
        was_calling, self._is_calling = self._is_calling, True
        try:
            return self._socket.send(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._lose(error)
            return len(view)
        finally:
            self._is_calling = was_calling

    def _flush(self) -> None:
        while self._pending:
            view = self._pending[0]
            sent = self._send(view)
            if self._is_lost:
                return
            self._pending_bytes -= sent
            if sent < len(view):
                self._pending[0] = view[sent:]
                break
            self._pending.popleft()
        if self._is_paused and self._pending_bytes <= self._low_bytes:
            self._is_paused = False
            self._protocol.resume_writing()
        if not self._pending:
            self._finish_writing()

    def _finish_writing(self) -> None:
        """Do what waited for the last byte."""
        if self._is_closing:
            self._lose(None)
        elif self._is_eof_wanted:
            try:
                self._socket.shutdown(system.SHUT_WR)
            except OSError as error:
                self._lose(error)

    def can_write_eof(self) -> bool:
        """Return True: a stream ends in each direction by itself."""
        return True

    def write_eof(self) -> None:
        """End our direction once everything was sent."""
        if self._is_eof_wanted or self._is_closing:
            return
        self._is_eof_wanted = True
        if not self._pending:
            self._finish_writing()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait for room."""
        return self._pending_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return where the protocol may go on writing, and where it is to pause."""
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set from how many bytes on the protocol is paused, and where it may go on.

        Raises ValueError unless 0 <= low <= high.
        """
        if high is None:
            high = WRITE_HIGH_BYTES if low is None else 4 * low
        low = high // 4 if low is None else low
        if not 0 <= low <= high:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_bytes, self._low_bytes = high, low

    # -- protocol and end

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Serve another protocol from now on."""
        # Which of its kinds it is, it says itself; both have the calls that are made of it.
        self._protocol = cast(asyncio.Protocol, protocol)
        is_buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._buffered = cast(asyncio.BufferedProtocol, protocol) if is_buffered else None

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that is served."""
        return self._protocol

    def is_closing(self) -> bool:
        """Tell whether the transport is closed or about to be."""
        return self._is_closing

    def close(self) -> None:
        """Read no more, and close when what waits was sent."""
        if self._is_closing:
            return
        self._is_closing = True
        self._is_reading = False
        if not self._pending:
            self._lose(None)

    def abort(self) -> None:
        """Close at once: what waits is lost, and the peer sees the connection break."""
        if not self._is_lost:
            self._socket.setsockopt(system.SOL_SOCKET, system.SO_LINGER, _LINGER_NONE)
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        """Be over; the protocol hears of it in a pass of its own."""
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._is_reading = False
        self._pending.clear()
        self._pending_bytes = 0
        self._socket.watchers.remove(self._note)
        self._loop.call_soon(self._tell_lost, error)

    def _tell_lost(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()
            self._attending.close()
            if self._on_lost is not None:
                self._on_lost(self)

    def __repr__(self) -> str:
        state = "closed" if self._is_lost else "closing" if self._is_closing else "open"
        return f"<StreamTransport {state} {self._socket!r}>"


def _peer(socket: Socket) -> Any:
    try:
        return socket.getpeername()
    except OSError:
        return None


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
