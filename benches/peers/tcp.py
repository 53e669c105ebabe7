"""Raw TCP in Python, four bytes of length before each message: what one would write by hand.

Two variants to send: a system call per message, and 64 messages per call, which no program that
sends a message when it has one can do. The receiver reads all there is and splits it.
"""

import select
import socket
import struct
from typing import ClassVar

from .base import Address, Kind, Peer

_LENGTH = struct.Struct("!I")
_READ_BYTES = 4 << 20  # holds the largest message with room to read on
_ROOM_BYTES = 64 << 10  # below it the rest moves to the front of the buffer
_READ_EACH_BYTES = 64 << 10  # per connection and pass, where there are many
_ACCEPT_WAIT_S = 10.0


def _connect(address: Address) -> socket.socket:
    stream = socket.create_connection(("127.0.0.1", int(str(address))))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def _send_all(stream: socket.socket, parts: list[bytes]) -> None:
    """Send `parts` in one call; a blocking call falls short only when a signal ends it."""
    sent_bytes = stream.sendmsg(parts)
    if sent_bytes != sum(map(len, parts)):
        stream.sendall(memoryview(b"".join(parts))[sent_bytes:])


class Tcp(Peer):
    """One connection, one call per message."""

    name = "tcp"
    label = "raw TCP"
    kinds = frozenset({Kind.ONE_WAY, Kind.REUSED_ONE_WAY, Kind.ROUND_TRIP})
    messages_per_call: ClassVar[int] = 1

    def __init__(self, payload_bytes: int) -> None:
        super().__init__(payload_bytes)
        self._stream: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._view = memoryview(bytearray(_READ_BYTES))
        self._read_from = self._read_to = 0

    def open_receiver(self, senders: int) -> Address:
        """Listen at a free port; the sender is accepted at the first message."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_ACCEPT_WAIT_S)
        return int(self._listener.getsockname()[1])

    def open_sender(self, address: Address, index: int) -> None:
        """Connect."""
        self._stream = _connect(address)

    def _connected(self) -> socket.socket:
        if self._stream is None:
            assert self._listener is not None, "neither receiver nor sender"
            self._stream, _ = self._listener.accept()
            self._stream.setblocking(True)
            self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._stream

    def put(self, count: int) -> None:
        """Send `count` messages, as many per call as the class defines."""
        stream, payload, pack = self._connected(), self.payload, _LENGTH.pack
        per_call = self.messages_per_call
        if per_call == 1 and len(payload) <= 16 << 10:
            # One small buffer is cheaper than a list of two.
            for _ in range(count):
                stream.sendall(pack(len(payload)) + payload)
            return
        while count:
            now = min(per_call, count)
            parts: list[bytes] = []
            for _ in range(now):
                parts += (pack(len(payload)), payload)
            _send_all(stream, parts)
            count -= now

    def take(self, count: int) -> int:
        """Receive `count` messages; bytes of the next ones stay in the buffer."""
        stream, view, unpack = self._connected(), self._view, _LENGTH.unpack_from
        start, stop, taken_bytes = self._read_from, self._read_to, 0
        while count:
            while count and stop - start >= _LENGTH.size:
                end = start + _LENGTH.size + unpack(view, start)[0]
                if end > stop:
                    break
                taken_bytes += len(bytes(view[start + _LENGTH.size : end]))
                start = end
                count -= 1
            if not count:
                break
            if start == stop:
                start = stop = 0
            elif len(view) - stop < _ROOM_BYTES:
                view[: stop - start] = view[start:stop]
                start, stop = 0, stop - start
            read_bytes = stream.recv_into(view[stop:])
            if not read_bytes:
                raise ConnectionResetError("the sender closed the connection")
            stop += read_bytes
        self._read_from, self._read_to = start, stop
        return taken_bytes

    def _receive_one(self) -> bytes:
        """Read one message, knowing that no other can follow it."""
        stream, view, held_bytes = self._connected(), self._view, 0
        while True:
            read_bytes = stream.recv_into(view[held_bytes:])
            if not read_bytes:
                raise ConnectionResetError("the peer closed the connection")
            held_bytes += read_bytes
            if held_bytes >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(view)[0]
                if held_bytes >= end:
                    return bytes(view[_LENGTH.size : end])

    def ask_one(self) -> None:
        """Send one message and wait for the reply."""
        self._connected().sendall(_LENGTH.pack(len(self.payload)) + self.payload)
        self._receive_one()

    def echo_one(self) -> None:
        """Receive one message and send it back."""
        body = self._receive_one()
        self._connected().sendall(_LENGTH.pack(len(body)) + body)


class TcpBatch(Tcp):
    """One connection, 64 messages per call."""

    name = "tcp_batch"
    label = "raw TCP, 64 per call"
    kinds = frozenset({Kind.ONE_WAY, Kind.BURSTS_ONE_WAY})
    payload_bytes_max = 64 << 10  # 64 messages of 1 MiB in one call are no batch
    messages_per_call = 64


class TcpMany(Tcp):
    """Many connections to one process, which waits for all of them with epoll."""

    name = "tcp_epoll"
    label = "raw TCP, epoll"
    kinds = frozenset({Kind.MANY_SENDERS})

    def open_receiver(self, senders: int) -> Address:
        """Listen; the senders are accepted as they come."""
        address = super().open_receiver(senders)
        assert self._listener is not None
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._streams: dict[int, socket.socket] = {}
        self._rests: dict[int, bytes] = {}
        self._ready: list[int] = []  # lengths of messages cut out beyond those asked for
        return address

    def take(self, count: int) -> int:
        """Receive `count` messages, from any sender."""
        while len(self._ready) < count:
            for descriptor, _ in self._epoll.poll():
                if descriptor in self._streams:
                    self._read(descriptor)
                else:
                    self._accept()
        taken, self._ready = self._ready[:count], self._ready[count:]
        return sum(taken)

    def _accept(self) -> None:
        assert self._listener is not None
        stream, _ = self._listener.accept()
        self._streams[stream.fileno()] = stream
        self._rests[stream.fileno()] = b""
        self._epoll.register(stream.fileno(), select.EPOLLIN)

    def _read(self, descriptor: int) -> None:
        """Read the bytes of one sender and split them into messages."""
        data = self._streams[descriptor].recv(_READ_EACH_BYTES)
        if not data:
            raise ConnectionResetError("a sender closed its connection")
        data = self._rests[descriptor] + data
        start, unpack = 0, _LENGTH.unpack_from
        while len(data) - start >= _LENGTH.size:
            end = start + _LENGTH.size + unpack(data, start)[0]
            if end > len(data):
                break
            self._ready.append(len(data[start + _LENGTH.size : end]))
            start = end
        self._rests[descriptor] = data[start:]
