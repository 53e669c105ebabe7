"""Links whose stream is in the compiled engine, and pairs of which one end is Python's."""

import contextlib
import errno
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rsocket.ends import SETTINGS, Ends, send_all
from tests.rsocket.socket_pairs import HOST, WAIT_S, Pair, Task, error_of
from urds.rsocket.core.stream.records import Shut, StreamState
from urds.rsocket.link import devices
from urds.rsocket.link.devices import DeviceContext
from urds.rsocket.link.listener import StreamListener
from urds.rsocket.link.stream_link import LinkState
from urds.rsocket.settings import configure
from urds.rsocket.stream_socket import StreamSocket, create_server
from urds.rsocket.stream_transfer import allocate
from urds.verbs.providers.shm import ShmAdapter

pytest.importorskip("urds_native")
from urds.verbs.providers.shm.native_adapter import NativeShmAdapter

Opener = Callable[[], ShmAdapter]
OPENERS: list[tuple[Opener, Opener]] = [
    (NativeShmAdapter, NativeShmAdapter),
    (NativeShmAdapter, ShmAdapter),
    (ShmAdapter, NativeShmAdapter),
]


class OwnEnds(Ends):
    """Two ends on adapters that the test chooses."""

    def __init__(self, openers: tuple[Opener, Opener]) -> None:
        self.settings, self.host = SETTINGS, HOST
        self.adapters = [opener() for opener in openers]
        self.here, self.there = (DeviceContext(adapter) for adapter in self.adapters)
        self.listener = StreamListener((HOST, 0), 16, SETTINGS, [self.there])


@pytest.fixture(params=OPENERS, ids=["native", "from-native", "to-native"])
def both(request: pytest.FixtureRequest) -> Iterator[Ends]:
    made = OwnEnds(request.param)
    yield made
    made.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Yield a pair of sockets on one compiled device, which both threads of a test drive.

    Each side offers slots for mapped buffers.
    """
    (tmp_path / "iomap_size").write_text("8")
    configure(directory=tmp_path)
    adapter = NativeShmAdapter()
    with devices.use(adapter):
        made = Pair()
        yield made
        made.close()
    adapter.close()
    configure(directory=None)


def test_bytes_go_both_ways_whatever_the_engines(both: Ends) -> None:
    left, right = both.connect()
    rng = random.Random(1)
    for byte_count in (1, 80, 81, 4096, 70_000, 1 << 20, 3 << 20):
        data = rng.randbytes(byte_count)
        assert send_all(both, left, data, right) == data
        assert send_all(both, right, data, left) == data
    natives = [link.native is not None for link in (left, right)]
    assert natives == [isinstance(one, NativeShmAdapter) for one in both.adapters]


def test_each_side_sees_how_the_other_ends(both: Ends) -> None:
    left, right = both.connect()
    left.send(memoryview(b"last"))
    left.shut_down(Shut.WR)
    both.wait(lambda: right.stream is not None and not right.stream.lifecycle.can_read)
    assert right.receive(10) == b"last"
    assert right.is_ended and not left.is_ended
    right.send(memoryview(b"answer"))
    right.shut_down(Shut.RDWR)
    both.wait(lambda: left.stream is not None and left.stream.is_readable)
    assert left.receive(10) == b"answer"
    both.wait(lambda: left.state is right.state is LinkState.OVER)
    assert left.stream is not None
    assert left.stream.lifecycle.state is StreamState.OVER


def test_mapped_buffers_of_either_engine(both: Ends) -> None:
    settings = SETTINGS
    both.listener.settings = both.settings = type(settings)(iomap_slots=4)
    left, right = both.connect()
    assert left.stream is not None and right.stream is not None
    room = memoryview(bytearray(100_000))
    with both.there.adapter.lock:
        memory = both.there.register(room)
        right.stream.map_buffer(memory, 5000)
        right.post_pending()
    stream = left.stream
    both.wait(lambda: stream.iomap.is_mapped(5000))
    data = random.Random(2).randbytes(60_000)
    with both.here.adapter.lock:
        assert stream.write_mapped(memoryview(data), 5100, may_zero_copy=True) == len(data)
        left.post_pending()
    left.send(memoryview(b"done"))
    both.wait(lambda: right.readiness().readable)
    assert bytes(room[100 : 100 + len(data)]) == data
    assert not any(room[:100]) and not any(room[100 + len(data) :])
    with both.there.adapter.lock:
        right.stream.unmap(memory)
        right.post_pending()
        both.there.release(memory)
    both.wait(lambda: not stream.iomap.is_mapped(5000))


def test_memory_is_given_back(both: Ends) -> None:
    before = [one.memory_bytes for one in (both.here, both.there)]
    left, right = both.connect()
    send_all(both, left, bytes(3 << 20), right)
    assert right.stream is not None and right.stream.stats.ring_grown > 0
    for link in (left, right):
        link.close()
    both.wait(lambda: not (both.here.links or both.there.links))
    for one in (both.here, both.there):
        with one.adapter.lock:  # what drops the queue pair gives the memory back right behind it
            pass
    assert [one.memory_bytes for one in (both.here, both.there)] == before


def test_small_sends_go_at_once_until_the_peer_is_behind() -> None:
    """Of a burst eight go alone, the others share messages; all of them do with an idle peer."""
    both = OwnEnds((NativeShmAdapter, NativeShmAdapter))
    source, sink = both.connect()
    stream = source.stream
    assert stream is not None
    room = memoryview(bytearray(1 << 16))

    def is_taken() -> bool:
        sink.receive_into(room)
        return bool(stream.is_drained)

    both.wait(is_taken)
    before = stream.stats.messages_sent
    with both.here.adapter.lock, both.there.adapter.lock:  # nothing is taken meanwhile
        for _ in range(100):
            assert source.send(memoryview(b"x" * 100)) == 100
        assert stream.stats.messages_sent - before == 8
    both.wait(is_taken)
    assert stream.stats.messages_sent - before <= 12
    before = stream.stats.messages_sent
    for number in range(20):
        assert source.send(memoryview(b"x" * 100)) == 100
        assert stream.stats.messages_sent - before == number + 1
        both.wait(is_taken)
    both.close()


# -- the methods that are placed in a socket

PLACED = {"send", "sendall", "write_mapped", "recv", "recv_into"}


def test_methods_are_placed_and_do_what_those_of_the_class_do(pair: Pair) -> None:
    client, server = pair.both
    assert isinstance(client, StreamSocket) and isinstance(server, StreamSocket)
    assert set(client.__dict__) == set(server.__dict__) == PLACED
    assert client.send(b"hello") == 5
    assert server.recv(3) == b"hel"
    room = bytearray(10)
    assert server.recv_into(room) == 2
    assert room[:2] == b"lo"
    assert client.send(bytearray(b"abc"), socket.MSG_DONTWAIT) == 3
    assert server.recv(2, socket.MSG_PEEK) == b"ab"
    assert server.recv(3, socket.MSG_WAITALL) == b"abc"
    assert client.send(b"") == 0
    assert server.recv(0) == b""
    client.sendall(bytearray(b"all"))
    client.sendall(b"")
    client.sendall(b"of it", socket.MSG_NOSIGNAL)
    assert server.recv_into(room, 5) == 5
    assert room[:5] == b"allof"
    assert server.recv_into(room, 2, socket.MSG_WAITALL) == 2
    assert server.recv_into(room) == 1
    assert room[:2] == b"ti"


@pytest.mark.parametrize("flags", [0, socket.MSG_DONTWAIT])
def test_calls_that_may_not_wait_say_so(pair: Pair, flags: int) -> None:
    client, server = pair.both
    if not flags:
        server.setblocking(False)
        client.setblocking(False)
    assert error_of(server.recv, 10, flags) == errno.EAGAIN
    assert error_of(server.recv_into, bytearray(10), 0, flags) == errno.EAGAIN
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += client.send(bytes(10_000), flags)
    assert sent > 100_000
    got = 0
    while got < sent:
        try:
            got += len(server.recv(1 << 20, flags))
        except BlockingIOError:
            devices.wait(server.contexts, lambda: server.readiness().readable, WAIT_S)
    assert got == sent


def test_a_receive_of_all_goes_on_until_it_has_them_or_the_end_comes(pair: Pair) -> None:
    client, server = pair.both
    room = bytearray(6)
    task = Task(lambda: server.recv_into(room, 0, socket.MSG_WAITALL))
    client.sendall(b"abc")
    client.sendall(b"defghi")
    assert task.result() == 6
    assert room == b"abcdef"
    assert server.recv_into(memoryview(room)[:3], 3, socket.MSG_WAITALL | socket.MSG_PEEK) == 3
    assert room == b"ghidef"
    client.shutdown(socket.SHUT_WR)
    assert server.recv_into(bytearray(6), 0, socket.MSG_WAITALL) == 3
    assert server.recv_into(bytearray(6), 0, socket.MSG_WAITALL) == 0


def test_a_receive_of_all_that_may_not_wait_gives_what_is_there(pair: Pair) -> None:
    client, server = pair.both
    client.sendall(b"abc")
    server.setblocking(False)
    devices.wait(server.contexts, lambda: server.readiness().readable, WAIT_S)
    assert server.recv_into(bytearray(6), 0, socket.MSG_WAITALL) == 3
    assert error_of(server.recv_into, bytearray(6), 0, socket.MSG_WAITALL) == errno.EAGAIN


@pytest.mark.parametrize("length", [1 << 16, 5 << 20])
@pytest.mark.parametrize("is_allocated", [False, True])
def test_all_of_a_long_message_arrives_at_its_place(
    pair: Pair, length: int, is_allocated: bool
) -> None:
    client, server = pair.both
    client.settimeout(None)
    server.settimeout(None)
    data = random.Random(length).randbytes(length)
    room = allocate(length) if is_allocated else memoryview(bytearray(length))
    for _ in range(3):
        room[:] = bytes(length)
        task = Task(lambda: client.sendall(data))
        assert server.recv_into(room, 0, socket.MSG_WAITALL) == length
        assert room == data
        task.result()


def test_mapped_writes_of_a_placed_method_land_and_stop_where_nothing_is_mapped(pair: Pair) -> None:
    client, server = pair.both
    room = bytearray(200_000)
    server.map_buffer(room, 1000)
    server.sendall(b"mapped")
    assert client.recv(6) == b"mapped"
    data = random.Random(1).randbytes(150_000)
    for begin in (0, 50_000):  # the second one at once, where the first was not mapped yet
        assert client.write_mapped(memoryview(data), 1000 + begin) == len(data)
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        assert room[begin : begin + len(data)] == data
    assert client.write_mapped(data, 1000 + 200_000 - 10) == 10
    assert client.write_mapped(data, 1000 + 200_000) == 0
    assert client.write_mapped(b"", 1000) == 0
    assert error_of(client.write_mapped, data, 1000, socket.MSG_OOB) == errno.EOPNOTSUPP
    client.shutdown(socket.SHUT_WR)
    assert error_of(client.write_mapped, data, 1000) == errno.EPIPE


def test_a_call_with_a_timeout_waits_so_long(pair: Pair) -> None:
    server = pair.server
    server.settimeout(0.05)
    with pytest.raises(TimeoutError):
        server.recv(1)
    with pytest.raises(TimeoutError):
        server.recv_into(bytearray(1))


def test_what_is_wrong_with_arguments_is_told_as_by_the_class(pair: Pair) -> None:
    client, server = pair.both
    with pytest.raises(ValueError, match="negative buffersize in recv"):
        server.recv(-1)
    for none in ("4", 1.5):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            server.recv(none)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match="timeout must be 0 or more seconds, not -1"):
        server.settimeout(-1)
    with pytest.raises(TypeError):
        client.send("text")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TypeError):
        server.recv_into(b"constant")
    assert error_of(client.send, b"x", socket.MSG_OOB) == errno.EOPNOTSUPP
    assert error_of(server.recv, 1, socket.MSG_ERRQUEUE) == errno.EOPNOTSUPP


def test_waiting_calls_end_with_bytes_with_the_end_and_with_the_socket(pair: Pair) -> None:
    client, server = pair.both
    task = Task(lambda: server.recv(10))
    assert client.send(b"some") == 4
    assert task.result() == b"some"
    task = Task(lambda: server.recv_into(bytearray(4)))
    client.shutdown(socket.SHUT_WR)
    assert task.result() == 0
    task = Task(lambda: client.recv(1))
    client.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        task.result()


def test_a_closed_socket_has_no_placed_method_left(pair: Pair) -> None:
    client = pair.client
    send, receive = client.send, client.recv
    client.close()
    for call in (client.send, send):
        assert error_of(call, b"x") == errno.EBADF
    for call in (client.recv, receive):
        assert error_of(call, 1) == errno.EBADF


def test_shutdown_is_a_reason_not_to_send(pair: Pair) -> None:
    client, server = pair.both
    client.shutdown(socket.SHUT_WR)
    assert error_of(client.send, b"x") == errno.EPIPE
    assert server.recv(1) == b""
    assert server.send(b"still") == 5
    assert client.recv(10) == b"still"


class Counting(StreamSocket):
    """A socket whose class has a `send` of its own."""

    sends = 0

    def send(self, data: bytes, flags: int = 0, /) -> int:
        type(self).sends += 1
        return super().send(data, flags)


def test_what_a_class_overrides_is_not_replaced() -> None:
    adapter = NativeShmAdapter()
    with devices.use(adapter), create_server((HOST, 0)) as listener:
        client = Counting()
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with client, server:
            assert "send" not in client.__dict__ and "recv" in client.__dict__
            client.send(b"x")
            assert server.recv(1) == b"x"
    adapter.close()
    assert Counting.sends == 1


def test_many_threads_share_one_socket(pair: Pair) -> None:
    client, server = pair.both
    client.settimeout(None)
    server.settimeout(None)
    got, lock = [0], threading.Lock()

    def take() -> None:
        while data := server.recv(1000):
            with lock:
                got[0] += len(data)

    takers = [Task(take) for _ in range(3)]
    givers = [Task(lambda: client.sendall(bytes(200_000))) for _ in range(3)]
    for giver in givers:
        giver.result()
    client.shutdown(socket.SHUT_WR)
    for taker in takers:
        taker.result()
    assert got == [600_000]
