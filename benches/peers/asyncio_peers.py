"""Alternatives for a program of asyncio: pyzmq's sockets for it, and its own streams."""

import asyncio
import struct
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from .base import Address, Kind
from .loops import LoopPeer
from .zmq import QUEUED_BYTES_MAX, QUEUED_MESSAGES_MAX

_LENGTH = struct.Struct("!I")


class _ZmqOnAsyncio(LoopPeer):
    """pyzmq's own sockets for asyncio; the subclass names the two types."""

    sender_type: ClassVar[str]
    receiver_type: ClassVar[str]

    # Any: pyzmq may not be installed.
    _socket: Any

    @classmethod
    def missing(cls) -> str | None:
        """Tell whether pyzmq is there."""
        return None if find_spec("zmq") else "not installed"

    async def _open(self, type_name: str) -> Any:
        zmq: Any = import_module("zmq")
        context: Any = import_module("zmq.asyncio").Context.instance()
        self._socket = context.socket(getattr(zmq, type_name))
        queued_max = QUEUED_BYTES_MAX // max(1, self.payload_bytes)
        self._socket.set_hwm(min(QUEUED_MESSAGES_MAX, queued_max))
        return self._socket

    def open_receiver(self, senders: int) -> Address:
        """Bind to a free port."""
        port = self.run(self._open(self.receiver_type)).bind_to_random_port("tcp://127.0.0.1")
        return f"tcp://127.0.0.1:{port}"

    def open_sender(self, address: Address, index: int) -> None:
        """Start to connect; libzmq goes on by itself."""
        self.run(self._open(self.sender_type)).connect(str(address))

    async def send_one(self) -> None:
        """Pass one message to libzmq; wait for room."""
        await self._socket.send(self.payload)

    async def receive_reply(self) -> None:
        """Receive the answer to the one message that is out."""
        await self._socket.recv()


class DealerRouterOnAsyncio(_ZmqOnAsyncio):
    """Many senders to one socket that knows the sender of each message."""

    name = "dealer_router_asyncio"
    label = "pyzmq.asyncio D/R"
    sender_type, receiver_type = "DEALER", "ROUTER"

    async def receive_one(self) -> int:
        """Receive one message with the identity of its sender."""
        _, body = await self._socket.recv_multipart()
        return len(body)

    async def return_one(self) -> None:
        """Return one message to its sender."""
        await self._socket.send_multipart(await self._socket.recv_multipart())


class PushPullOnAsyncio(_ZmqOnAsyncio):
    """One way only."""

    name = "push_pull_asyncio"
    label = "pyzmq.asyncio P/P"
    kinds = frozenset({Kind.LOOP_ONE_WAY})
    sender_type, receiver_type = "PUSH", "PULL"

    async def receive_one(self) -> int:
        """Receive one message."""
        return len(await self._socket.recv())

    async def return_one(self) -> None:
        """Refuse: a PULL socket has no way back."""
        raise NotImplementedError("PUSH/PULL is one way")


class Streams(LoopPeer):
    """asyncio's streams, four bytes of length before each message."""

    name = "asyncio_streams"
    label = "asyncio streams"

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter

    def open_receiver(self, senders: int) -> Address:
        """Listen at a free port."""
        return self.run(self._listen())

    async def _listen(self) -> int:
        self._accepted = asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._reader, self._writer = reader, writer
            self._accepted.set()

        self._server = await asyncio.start_server(accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def open_sender(self, address: Address, index: int) -> None:
        """Connect; asyncio sets TCP_NODELAY by itself."""
        self.run(self._connect(int(str(address))))

    async def _connect(self, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)

    def take(self, count: int) -> int:
        """Receive `count` messages, of the connection that is accepted first."""
        self.run(self._accepted.wait())
        return super().take(count)

    def echo(self, count: int) -> None:
        """Answer `count` messages, of the connection that is accepted first."""
        self.run(self._accepted.wait())
        super().echo(count)

    async def send_one(self) -> None:
        """Write one message; wait while the transport has too much."""
        self._writer.write(_LENGTH.pack(len(self.payload)) + self.payload)
        await self._writer.drain()

    async def finish(self) -> None:
        """Wait until the transport holds nothing: it writes only while the loop runs."""
        while self._writer.transport.get_write_buffer_size():
            await asyncio.sleep(0.0005)

    async def _receive(self) -> bytes:
        (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        return await self._reader.readexactly(length)

    async def receive_one(self) -> int:
        """Read one message; return its bytes."""
        return len(await self._receive())

    async def receive_reply(self) -> None:
        """Read the answer to the one message that is out."""
        await self._receive()

    async def return_one(self) -> None:
        """Read one message and write it back."""
        body = await self._receive()
        self._writer.write(_LENGTH.pack(len(body)) + body)
        await self._writer.drain()
