"""rsockets in asyncio: streams, flow control, cancellation, servers, many connections."""

import asyncio
import contextlib
import errno
import resource
import socket as system
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.rsocket.polling_world import DEVICES, HOST, WAIT_S, World, drain, world
from urds.rsocket import aio
from urds.rsocket.socket import Socket


@pytest.fixture(params=DEVICES)
def here(request):
    with world(request.param) as made:
        yield made


@pytest.fixture
def descriptors() -> Iterator[Callable[[int], None]]:
    """Have this process be allowed so many descriptors: 1024 are usual, and more are possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def allow(count: int) -> None:
        if hard < count:
            pytest.skip(f"{hard} descriptors are allowed, not {count}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))

    yield allow
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def run(coroutine) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 3 * WAIT_S))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def serving(serve=echo):
    server = await aio.start_server(serve, HOST, 0)
    try:
        yield server, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def pair(here: World) -> tuple[Socket, Socket]:
    """Connect two sockets by the coroutines alone, in one task after the other."""
    listener, left = here.listener(), here.socket()
    for socket in (listener, left):
        socket.setblocking(False)
    accepting = asyncio.create_task(aio.sock_accept(listener))
    await aio.sock_connect(left, listener.getsockname())
    right, address = await accepting
    assert address == left.getsockname()
    here.keep(right)
    listener.close()
    return left, right


@pytest.mark.parametrize("size", [1, 64, 1 << 16, 3_000_001])
def test_an_echo(here: World, size: int) -> None:
    async def main() -> None:
        async with serving() as (_, port):
            reader, writer = await aio.open_connection(HOST, port)
            assert writer.get_extra_info("peername") == (HOST, port)
            words = bytes(range(256)) * (size // 256 + 1)
            words = words[:size]

            async def send() -> None:
                writer.write(words)
                await writer.drain()
                writer.write_eof()

            sending = asyncio.create_task(send())
            assert await reader.readexactly(size) == words
            await sending
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    run(main())


def test_no_threads_are_made(here: World) -> None:
    """Neither for a connect nor for an accept, and no descriptor per socket either."""

    async def main() -> None:
        async with serving() as (_, port):
            before = threading.active_count()
            streams = [await aio.open_connection(HOST, port) for _ in range(10)]
            assert threading.active_count() == before
            for reader, writer in streams:
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
                writer.close()
                await writer.wait_closed()

    run(main())


def test_a_peer_that_does_not_read_stops_the_writer(here: World) -> None:
    async def main() -> None:
        may_read = asyncio.Event()
        got = bytearray()

        async def serve(reader, writer):
            await may_read.wait()
            while data := await reader.read(1 << 16):
                got.extend(data)
            writer.close()

        async with serving(serve) as (_, port):
            _, writer = await aio.open_connection(HOST, port)
            sent = await _write_until_it_waits(writer)
            low, high = writer.transport.get_write_buffer_limits()
            assert high < writer.transport.get_write_buffer_size() <= high + (1 << 17)
            assert low < high
            may_read.set()
            await asyncio.wait_for(writer.drain(), WAIT_S)
            writer.close()
            await writer.wait_closed()
        assert len(got) == sent

    run(main())


def test_a_reader_that_pauses_loses_nothing(here: World) -> None:
    """More than the reader's limit: the transport stops reading and goes on later."""

    async def main() -> None:
        async with serving() as (_, port):
            reader, writer = await aio.open_connection(HOST, port, limit=1000)
            words = bytes(range(250)) * 4000
            sending = asyncio.create_task(_send_slowly(writer, words))
            await asyncio.sleep(0.05)
            got = b""
            while len(got) < len(words):
                got += await reader.read(70_000)
            assert got == words
            await sending
            writer.close()

    run(main())


async def _write_until_it_waits(writer: asyncio.StreamWriter) -> int:
    for written in range(1 << 16, 1 << 27, 1 << 16):
        writer.write(bytes(1 << 16))
        try:
            await asyncio.wait_for(writer.drain(), 0.3)
        except TimeoutError:
            return written
    raise AssertionError("a peer that does not read stops no other")


async def _send_slowly(writer: asyncio.StreamWriter, words: bytes) -> None:
    for begin in range(0, len(words), 50_000):
        writer.write(words[begin : begin + 50_000])
        await writer.drain()


def test_a_cancelled_read_loses_nothing(here: World) -> None:
    async def main() -> None:
        left, right = await pair(here)
        for number in range(30):
            reading = asyncio.create_task(aio.sock_recv(right, 10))
            await asyncio.sleep(0)
            if number % 2:
                left.send(b"%d." % number)
                await asyncio.sleep(0.001 * (number % 3))
            reading.cancel()
            got = b""
            with contextlib.suppress(asyncio.CancelledError):
                got = await reading
            if number % 2 and not got:
                got = await aio.sock_recv(right, 10)
            assert got == (b"%d." % number if number % 2 else b"")
        assert not right.watchers

    run(main())


def test_a_cancelled_accept_loses_no_connection(here: World) -> None:
    async def main() -> None:
        listener, client = here.listener(), here.socket()
        for socket in (listener, client):
            socket.setblocking(False)
        accepting = asyncio.create_task(aio.sock_accept(listener))
        await asyncio.sleep(0)
        await aio.sock_connect(client, listener.getsockname())
        accepting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await accepting
        if accepting.cancelled():
            accepted, _ = await aio.sock_accept(listener)
        else:
            accepted, _ = accepting.result()
        await aio.sock_sendall(accepted, b"x")
        assert await aio.sock_recv(client, 1) == b"x"
        accepted.close()

    run(main())


def test_the_coroutines_of_a_socket(here: World) -> None:
    async def main() -> None:
        left, right = await pair(here)
        words = bytes(range(256)) * 10_000
        sending = asyncio.create_task(aio.sock_sendall(left, words))
        got, room = bytearray(), bytearray(100_000)
        while len(got) < len(words):
            count = await aio.sock_recv_into(right, room)
            got += room[:count]
        await sending
        assert got == words
        left.close()
        assert await aio.sock_recv(right, 1) == b""
        right.close()

    run(main())


def test_the_calls_of_the_loop_itself(here: World) -> None:
    """They go by the socket's descriptor; asyncio knows nothing of rsockets."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        listener, left = here.listener(), here.socket()
        for socket in (listener, left):
            socket.setblocking(False)
        accepting = asyncio.create_task(loop.sock_accept(listener))
        await loop.sock_connect(left, listener.getsockname())
        right, _ = await accepting
        words = bytes(range(256)) * 3000
        sending = asyncio.create_task(loop.sock_sendall(left, words))
        got = b""
        while len(got) < len(words):
            got += await loop.sock_recv(right, 1 << 16)
        await sending
        assert got == words
        right.close()

    run(main())


def test_a_close_ends_the_wait(here: World) -> None:
    async def main() -> None:
        left, right = await pair(here)
        reading = asyncio.create_task(aio.sock_recv(right, 1))
        await asyncio.sleep(0.01)
        right.close()
        with pytest.raises(OSError) as raised:
            await asyncio.wait_for(reading, WAIT_S)
        assert raised.value.errno == errno.EBADF
        left.close()

    run(main())


def test_without_a_listener(here: World) -> None:
    async def main() -> None:
        listener = here.listener()
        port = listener.getsockname()[1]
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await aio.open_connection(HOST, port)

    run(main())


def test_a_socket_that_would_wait_is_refused(here: World) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="non-blocking"):
            await aio.sock_recv(here.socket(), 1)

    run(main())


def test_the_end_of_one_direction(here: World) -> None:
    async def main() -> None:
        async def serve(reader, writer):
            writer.write(b"<" + await reader.read() + b">")
            writer.close()

        async with serving(serve) as (_, port):
            reader, writer = await aio.open_connection(HOST, port)
            assert writer.can_write_eof()
            writer.write(b"words")
            writer.write_eof()
            assert await reader.read() == b"<words>"
            writer.close()
            await writer.wait_closed()

    run(main())


def test_an_abort_breaks_the_connection(here: World) -> None:
    async def main() -> None:
        ended = asyncio.get_running_loop().create_future()

        async def serve(reader, writer):
            try:
                ended.set_result(await reader.read())
            except OSError as error:
                ended.set_result(error)
            writer.close()

        async with serving(serve) as (_, port):
            _, writer = await aio.open_connection(HOST, port)
            writer.transport.abort()
            assert await asyncio.wait_for(ended, WAIT_S) is not None

    run(main())


def test_a_protocol_with_its_own_buffer(here: World) -> None:
    class Counter(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.room = bytearray(1000)
            self.count = 0
            self.lost = asyncio.get_running_loop().create_future()

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.room

        def buffer_updated(self, nbytes: int) -> None:
            self.count += nbytes

        def connection_lost(self, exc) -> None:
            self.lost.set_result(exc)

    async def main() -> None:
        made: list[Counter] = []

        def factory() -> Counter:
            made.append(Counter())
            return made[0]

        server = await aio.create_server(factory, HOST, 0)
        _, writer = await aio.open_connection(HOST, server.sockets[0].getsockname()[1])
        writer.write(bytes(10_000))
        writer.close()
        await writer.wait_closed()
        while not made:
            await asyncio.sleep(0.001)
        assert await asyncio.wait_for(made[0].lost, WAIT_S) is None
        assert made[0].count == 10_000
        server.close()
        await server.wait_closed()

    run(main())


def test_serving_for_ever_ends_with_its_task(here: World) -> None:
    async def main() -> None:
        server = await aio.start_server(echo, HOST, 0, start_serving=False)
        assert not server.is_serving()
        forever = asyncio.create_task(server.serve_forever())
        await asyncio.sleep(0)
        assert server.is_serving()
        _, writer = await aio.open_connection(HOST, server.sockets[0].getsockname()[1])
        writer.close()
        await writer.wait_closed()
        forever.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forever
        assert not server.is_serving()
        assert server.sockets == ()

    run(main())


def test_a_thread_at_the_other_end(here: World) -> None:
    """The loop is woken by whichever thread drives the device."""

    async def main() -> None:
        got = asyncio.get_running_loop().create_future()

        async def serve(reader, writer):
            got.set_result(await reader.readexactly(100_000))
            writer.write(bytes(100_000))
            writer.close()

        async with serving(serve) as (_, port):
            socket = here.socket()

            def talk() -> None:
                socket.connect((HOST, port))
                socket.sendall(bytes(100_000))
                drain(socket, 100_000)

            await asyncio.to_thread(talk)
            assert len(await got) == 100_000

    run(main())


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_connections_in_one_loop(
    here: World, count: int, descriptors: Callable[[int], None]
) -> None:
    descriptors(3 * count)  # both ends are here

    async def main() -> None:
        async with serving() as (_, port):
            streams = [await aio.open_connection(HOST, port) for _ in range(count)]

            async def talk(number: int) -> None:
                reader, writer = streams[number]
                for index in range(3):
                    words = b"%d %d." % (number, index)
                    writer.write(words)
                    assert await reader.readexactly(len(words)) == words

            await asyncio.gather(*(talk(number) for number in range(count)))
            for _, writer in streams:
                writer.close()
            for _, writer in streams:
                await writer.wait_closed()

    run(main())


def test_a_listener_that_was_bound_before(here: World) -> None:
    async def main() -> None:
        socket = Socket(system.AF_INET, system.SOCK_STREAM)
        socket.bind((HOST, 0))
        server = await aio.start_server(echo, sock=socket)
        reader, writer = await aio.open_connection(HOST, socket.getsockname()[1])
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        writer.close()
        server.close()
        await server.wait_closed()

    run(main())


def test_a_protocol_that_raises_loses_its_transport_and_no_other_does(here: World) -> None:
    class Faulty(asyncio.Protocol):
        def __init__(self) -> None:
            self.lost = asyncio.get_running_loop().create_future()

        def data_received(self, data: bytes) -> None:
            raise RuntimeError("a mistake of the protocol")

        def connection_lost(self, exc: Exception | None) -> None:
            self.lost.set_result(exc)

    async def main() -> None:
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        async with serving() as (_, port):
            transport, protocol = await aio.create_connection(Faulty, HOST, port)
            reader, writer = await aio.open_connection(HOST, port)
            transport.write(b"x")
            writer.write(b"y")
            assert await reader.readexactly(1) == b"y"
            await asyncio.wait_for(protocol.lost, WAIT_S)
            assert transport.is_closing()
            writer.write(b"z")
            assert await reader.readexactly(1) == b"z"
            writer.close()
        # The echo at the other end tells of the break as well.
        assert "a mistake of the protocol" in [str(one["exception"]) for one in told]

    run(main())
