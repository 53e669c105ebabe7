"""rsockets in asyncio: streams, transports, and coroutines over a `Socket` that never waits.

    reader, writer = await open_connection("10.0.0.2", 7471)
    server = await start_server(serve, "0.0.0.0", 7471)

What asyncio has for kernel sockets, with the same names and rules. No thread is made and no
descriptor per socket: changes come in by calls into the loop, from the thread that makes the
device progress. A cancelled wait takes nothing: bytes and connections stay for the next call.

A simulated device progresses by no thread of its own: a task that waits lets it run, step by step,
between the passes of the loop.

Source: the asyncio documentation of Python 3.11, streams and low-level socket calls.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket as system
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

from urds.rsocket.aio.transport import Server, StreamTransport, loop_calls
from urds.rsocket.link.devices import DeviceContext, attended
from urds.rsocket.socket import Socket
from urds.rsocket.stream_socket import BACKLOG_DEFAULT

LIMIT_BYTES: Final = 1 << 16  # of a line, and half of what a reader buffers; as asyncio has it

_IDLE_S: Final = 0.001

Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]
Factory = Callable[[], asyncio.BaseProtocol]
Result = TypeVar("Result")


async def open_connection(
    host: str,
    port: int,
    *,
    limit: int = LIMIT_BYTES,
    family: int = 0,
    local_addr: tuple[str, int] | None = None,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and return a reader and a writer. Raises OSError, the last of all addresses tried."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await create_connection(
        lambda: protocol, host, port, family=family, local_addr=local_addr
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def start_server(
    client_connected: Connected,
    host: str | None = None,
    port: int = 0,
    *,
    limit: int = LIMIT_BYTES,
    family: int = 0,
    backlog: int = BACKLOG_DEFAULT,
    sock: Socket | None = None,
    start_serving: bool = True,
) -> Server:
    """Listen, and call `client_connected(reader, writer)` for each connection.

    A coroutine function becomes a task. `sock`: a socket that is bound, instead of an address.
    Raises OSError: EADDRINUSE, EADDRNOTAVAIL.
    """
    loop = asyncio.get_running_loop()

    def factory() -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(limit=limit, loop=loop)
        return asyncio.StreamReaderProtocol(reader, client_connected, loop=loop)

    return await create_server(
        factory,
        host,
        port,
        family=family,
        backlog=backlog,
        sock=sock,
        start_serving=start_serving,
    )


async def create_connection(
    protocol_factory: Factory,
    host: str,
    port: int,
    *,
    family: int = 0,
    local_addr: tuple[str, int] | None = None,
) -> tuple[StreamTransport, asyncio.BaseProtocol]:
    """Connect and return the transport and its protocol. Raises OSError."""
    failed: OSError | None = None
    for found_family, address in await _addresses(host, port, family, passive=False):
        socket = Socket(found_family, system.SOCK_STREAM)
        socket.setblocking(False)
        try:
            if local_addr is not None:
                socket.bind(local_addr)
            await sock_connect(socket, address)
            protocol = protocol_factory()
            return StreamTransport(socket, protocol, loop_calls()), protocol
        except OSError as error:
            socket.close()
            failed = error
        except BaseException:
            socket.close()
            raise
    assert failed is not None, "a name has an address"
    raise failed


async def create_server(
    protocol_factory: Factory,
    host: str | None = None,
    port: int = 0,
    *,
    family: int = 0,
    backlog: int = BACKLOG_DEFAULT,
    sock: Socket | None = None,
    start_serving: bool = True,
) -> Server:
    """Listen at all addresses of `host` (`None`: any) and serve each connection by a protocol.

    Raises OSError: EADDRINUSE, EADDRNOTAVAIL.
    """
    sockets: list[Socket] = [] if sock is None else [sock]
    try:
        if sock is None:
            # Port 0 means one port for all addresses: the first one's.
            for found_family, address in await _addresses(host, port, family, passive=True):
                socket = Socket(found_family, system.SOCK_STREAM)
                sockets.append(socket)
                socket.setsockopt(system.SOL_SOCKET, system.SO_REUSEADDR, 1)
                if found_family == system.AF_INET6:
                    socket.setsockopt(system.IPPROTO_IPV6, system.IPV6_V6ONLY, 1)
                socket.bind((address[0], port or address[1], *address[2:]))
                port = socket.getsockname()[1]
        for socket in sockets:
            socket.setblocking(False)
            socket.listen(backlog)
    except BaseException:
        for socket in sockets:
            socket.close()
        raise
    server = Server(sockets, protocol_factory)
    if start_serving:
        await server.start_serving()
    return server


# -- coroutines over a socket, as `loop.sock_recv` and its fellows


async def sock_recv(socket: Socket, bytes_max: int) -> bytes:
    """Wait for bytes and return at most `bytes_max`; none at the end of the stream."""
    return await _when_readable(socket, partial(socket.recv, bytes_max))


async def sock_recv_into(socket: Socket, buffer: Any) -> int:
    """Wait for bytes, put them into a buffer and return how many; 0 at the end."""
    return await _when_readable(socket, partial(socket.recv_into, buffer))


async def sock_recvfrom(socket: Socket, bytes_max: int) -> tuple[bytes, Any]:
    """Wait for a datagram and return it with its sender's address."""
    return await _when_readable(socket, partial(socket.recvfrom, bytes_max))


async def sock_sendall(socket: Socket, data: Any) -> None:
    """Send everything. Cancelled, or after an error, it is not known how much was sent."""
    _demand_nonblocking(socket)
    view = memoryview(data).cast("B")
    while view:
        try:
            view = view[socket.send(view) :]
        except BlockingIOError:
            await until(socket, lambda: _is_writable(socket))


async def sock_sendto(socket: Socket, data: Any, address: Any) -> int:
    """Send a datagram and return its bytes."""
    _demand_nonblocking(socket)
    while True:
        try:
            return socket.sendto(data, address)
        except BlockingIOError:
            await until(socket, lambda: _is_writable(socket))


async def sock_connect(socket: Socket, address: Any) -> None:
    """Connect. A cancelled wait leaves the connect going on. Raises OSError, as `connect` does."""
    _demand_nonblocking(socket)
    try:
        socket.connect(address)
        return
    except BlockingIOError:
        pass
    await until(socket, lambda: _is_writable(socket))
    error = socket.getsockopt(system.SOL_SOCKET, system.SO_ERROR)
    if error:
        raise OSError(error, f"{os.strerror(error)}: connect to {address}")


async def sock_accept(socket: Socket) -> tuple[Socket, Any]:
    """Wait for a connection; return its socket, which never waits, and the peer's address."""
    connected, address = await _when_readable(socket, socket.accept)
    connected.setblocking(False)
    return connected, address


# -- inside


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


async def _when_readable(socket: Socket, call: Callable[[], Result]) -> Result:
    """Return what a call returns that receives or accepts, once it need not wait."""
    _demand_nonblocking(socket)
    while True:
        await until(socket, lambda: _is_readable(socket))
        try:
            return call()
        except BlockingIOError:
            continue  # another task was faster


def _is_readable(socket: Socket) -> bool:
    state = socket.readiness()
    return state.readable or state.hung_up or state.failed


def _is_writable(socket: Socket) -> bool:
    state = socket.readiness()
    return state.writable or state.hung_up or state.failed


def _demand_nonblocking(socket: Socket) -> None:
    if socket.gettimeout() != 0:
        raise ValueError("the socket must be non-blocking")


async def _addresses(
    host: str | None, port: int, family: int, *, passive: bool
) -> list[tuple[int, Any]]:
    """Return families and addresses; a thread is asked only for what is no number."""
    if host:
        try:
            version = ipaddress.ip_address(host.partition("%")[0]).version
        except ValueError:
            pass
        else:
            found = system.AF_INET if version == 4 else system.AF_INET6
            if family not in (0, found):
                raise OSError(errno.EAFNOSUPPORT, f"{host} is no address of family {family}")
            return [(found, (host, port))]
    infos = await asyncio.get_running_loop().getaddrinfo(
        host or None,
        port,
        family=family,
        type=system.SOCK_STREAM,
        flags=system.AI_PASSIVE if passive else 0,
    )
    return list(dict.fromkeys((int(info[0]), info[4]) for info in infos))
