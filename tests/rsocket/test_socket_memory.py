"""Mapped buffers, and large receives straight into memory of `allocate`."""

import errno
import gc
import random
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.rsocket.socket_pairs import (
    DEVICES,
    WAIT_S,
    Pair,
    Task,
    error_of,
    pair_over,
    receive_exactly,
)
from tests.support.waiting import wait_until
from urds.rsocket import allocate
from urds.rsocket.constants import ANY_OFFSET, PROT_NONE, PROT_WRITE, SOL_RDMA, RdmaOpt
from urds.rsocket.settings import configure
from urds.rsocket.socket import Socket
from urds.rsocket.stream_transfer import StreamTransfer

SLOTS = 8


OVER = DEVICES


@pytest.fixture
def mapping_pair(device: str, tmp_path) -> Iterator[Pair]:
    """Yield a pair whose sides offer slots: by the configuration file, as the original's do."""
    (tmp_path / "iomap_size").write_text(str(SLOTS))
    configure(directory=tmp_path)
    try:
        with pair_over(device) as made:
            yield made
    finally:
        configure(directory=None)


def show(source: Socket, sink: Socket) -> None:
    """Let the sink know what the source has mapped or written: bytes sent later say so."""
    source.sendall(b"!")
    assert sink.recv(1) == b"!"


@contextmanager
def offering(slots: int) -> Iterator[Pair]:
    """Yield a pair whose listener offers slots by option."""
    made = Pair.__new__(Pair)
    with Socket() as listener, Socket() as client:
        listener.setsockopt(SOL_RDMA, RdmaOpt.IOMAPSIZE, slots)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client.settimeout(20)
        client.connect(listener.getsockname())
        made.listener, made.client = listener, client
        made.server, _ = listener.accept()
        with made.server:
            made.server.settimeout(20)
            yield made


@pytest.mark.rule("rsocket-iomap-direct", "rsocket-iomap-table", "rsocket-iomap-write")
@pytest.mark.parametrize("byte_count", [1, 100, 20_000, 1 << 20])
def test_a_mapped_write_arrives_before_what_is_sent_later(
    mapping_pair: Pair, byte_count: int
) -> None:
    """docs/reference/rsocket.md 19, point 12."""
    owner, writer = mapping_pair.both
    buffer = bytearray(byte_count + 20)
    assert owner.map_buffer(buffer, 1000) == 1000
    show(owner, writer)
    data = random.Random(byte_count).randbytes(byte_count)
    assert writer.write_mapped(data, 1010) == byte_count
    show(writer, owner)
    assert buffer == bytes(10) + data + bytes(10)
    owner.unmap_buffer(buffer)


def test_an_offset_that_is_left_open_is_the_address(mapping_pair: Pair) -> None:
    owner, writer = mapping_pair.both
    buffer = bytearray(10)
    offset = owner.map_buffer(buffer)
    show(owner, writer)
    assert writer.write_mapped(b"abc", offset + 2) == 3
    show(writer, owner)
    assert buffer == b"\0\0abc\0\0\0\0\0"


def test_a_write_goes_on_in_the_next_mapping_and_stops_at_a_gap(mapping_pair: Pair) -> None:
    owner, writer = mapping_pair.both
    first, second = bytearray(4), bytearray(4)
    owner.map_buffer(first, 0)
    owner.map_buffer(second, 4)
    show(owner, writer)
    assert writer.write_mapped(b"abcdefghij", 2) == 6
    assert writer.write_mapped(b"x", 8) == 0
    show(writer, owner)
    assert (first, second) == (b"\0\0ab", b"cdef")


def test_nothing_is_mapped_without_a_slot(pair: Pair) -> None:
    assert error_of(pair.client.map_buffer, bytearray(1)) == errno.ENOMEM
    assert pair.server.write_mapped(b"x", 0) == 0


def test_slots_are_the_peers_and_come_back(device: str) -> None:
    with offering(2) as pair:
        owner = pair.client
        first, second, third = bytearray(1), bytearray(1), bytearray(1)
        owner.map_buffer(first)
        owner.map_buffer(second)
        assert error_of(owner.map_buffer, third) == errno.ENOMEM
        owner.unmap_buffer(first)
        owner.map_buffer(third)
        assert pair.server.getsockopt(SOL_RDMA, RdmaOpt.IOMAPSIZE) == 2
        # The listener's slots are the accepted side's: the client has none to offer.
        assert error_of(pair.server.map_buffer, bytearray(1)) == errno.ENOMEM


def test_what_cannot_be_mapped(mapping_pair: Pair) -> None:
    owner = mapping_pair.client
    assert error_of(owner.map_buffer, bytearray(1), 0, 1) == errno.EINVAL
    assert error_of(owner.map_buffer, bytearray(1), 0, 3) == errno.EINVAL
    assert error_of(owner.map_buffer, bytearray(1), -2) == errno.EINVAL
    assert error_of(owner.map_buffer, bytearray(2), (1 << 64) - 1) == errno.EINVAL
    assert error_of(owner.map_buffer, bytearray(0)) == errno.EINVAL
    with pytest.raises(TypeError):
        owner.map_buffer(b"readonly")
    with Socket() as idle:
        assert error_of(idle.map_buffer, bytearray(1)) == errno.EINVAL
        assert error_of(idle.write_mapped, b"x", 0) == errno.ENOTCONN


def test_unmap_wants_exactly_what_was_mapped(mapping_pair: Pair) -> None:
    owner = mapping_pair.client
    buffer = bytearray(10)
    owner.map_buffer(buffer)
    assert error_of(owner.unmap_buffer, memoryview(buffer)[:5]) == errno.EINVAL
    assert error_of(owner.unmap_buffer, bytearray(10)) == errno.EINVAL
    owner.unmap_buffer(buffer)
    assert error_of(owner.unmap_buffer, buffer) == errno.EINVAL
    gc.collect()  # the tracebacks of the refusals
    buffer.extend(b"free again")


def test_a_local_mapping_takes_no_slot(pair: Pair) -> None:
    buffer = bytearray(10)
    assert pair.client.map_buffer(buffer, 5, PROT_NONE) == 5
    assert pair.client.map_buffer(buffer, ANY_OFFSET, PROT_NONE) > 0
    pair.client.unmap_buffer(buffer)
    pair.client.unmap_buffer(buffer)


def test_a_mapping_that_ended_takes_no_bytes(mapping_pair: Pair) -> None:
    owner, writer = mapping_pair.both
    buffer = bytearray(10)
    owner.map_buffer(buffer, 0, PROT_WRITE)
    show(owner, writer)
    owner.unmap_buffer(buffer)
    show(owner, writer)
    assert writer.write_mapped(b"late", 0) == 0
    assert buffer == bytes(10)
    show(writer, owner)


def test_mapping_more_often_than_there_are_credits(mapping_pair: Pair) -> None:
    """docs/reference/rsocket.md 19, point 12: the original loses a credit with each mapping."""
    owner, writer = mapping_pair.both
    buffer = bytearray(1)
    for _ in range(1000):
        owner.map_buffer(buffer, 0)
        owner.unmap_buffer(buffer)
    show(owner, writer)


def test_datagrams_map_nothing(device: str) -> None:
    with Socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        assert error_of(one.map_buffer, bytearray(1)) == errno.EOPNOTSUPP
        assert error_of(one.unmap_buffer, bytearray(1)) == errno.EOPNOTSUPP
        assert error_of(one.write_mapped, b"x", 0) == errno.EOPNOTSUPP


# -- receives in place


@pytest.mark.parametrize("byte_count", [100, 16_384, 100_001, 3_000_000])
def test_a_whole_receive_into_allocated_memory(pair: Pair, byte_count: int) -> None:
    data = random.Random(byte_count).randbytes(byte_count)
    room = allocate(byte_count + 100)
    for _ in range(3):
        task = Task(lambda: pair.server.recv_into(room[50:], byte_count, socket.MSG_WAITALL))
        pair.client.sendall(data)
        assert task.result() == byte_count
        assert room[50 : 50 + byte_count] == data
        assert bytes(room[:50]) == bytes(50)
        assert bytes(room[50 + byte_count :]) == bytes(50)
    pair.client.sendall(b"after")
    assert receive_exactly(pair.server, 5) == b"after"


@pytest.mark.rule("rsocket-problem-copies")
def test_most_bytes_are_not_copied(pair: Pair) -> None:
    byte_count = 1 << 20
    room = allocate(byte_count)
    for _ in range(8):
        task = Task(lambda: pair.server.recv_into(room, 0, socket.MSG_WAITALL))
        for _ in range(
            500
        ):  # no longer: a ring of that size has room for all, and nothing is expected
            if pair.server._transfer._is_expecting:
                break
            time.sleep(0.0002)
        pair.client.sendall(bytes(byte_count))
        assert task.result() == byte_count
    stats = pair.server.stats
    assert stats.bytes_direct > 5 << 20
    assert stats.bytes_direct + stats.bytes_copied_out == 8 << 20


def test_a_receive_in_place_ends_with_the_stream(pair: Pair) -> None:
    room = allocate(1 << 20)
    task = Task(lambda: pair.server.recv_into(room, 0, socket.MSG_WAITALL))
    pair.client.sendall(b"x" * 100_000)
    pair.client.close()
    assert task.result() == 100_000
    assert bytes(room[:100_000]) == b"x" * 100_000
    assert pair.server.recv_into(room, 0, socket.MSG_WAITALL) == 0


def test_a_receive_in_place_that_is_too_late_leaves_nothing_out(pair: Pair) -> None:
    room = allocate(1 << 20)
    pair.server.settimeout(0.1)
    pair.client.sendall(b"a" * 50_000)
    taken = pair.server.recv_into(room, 0, socket.MSG_WAITALL)
    assert bytes(room[:taken]) == b"a" * taken
    pair.server.settimeout(20)
    pair.client.sendall(b"b" * 200_000)
    left = receive_exactly(pair.server, 250_000 - taken)
    assert left == b"a" * (50_000 - taken) + b"b" * 200_000


def test_two_threads_that_receive_in_place_share_the_bytes(pair: Pair) -> None:
    rooms = [allocate(100_000), allocate(100_000)]
    tasks = [
        Task(lambda room=room: pair.server.recv_into(room, 0, socket.MSG_WAITALL)) for room in rooms
    ]
    pair.client.sendall(b"z" * 200_000)
    pair.client.shutdown(socket.SHUT_WR)
    assert sum(task.result() for task in tasks) == 200_000


def test_allocated_memory_is_given_back(pair: Pair) -> None:
    context = pair.server.link.context
    gc.collect()
    pair.client.sendall(b"!")
    pair.server.recv(1)
    before = context.memory_bytes
    room = allocate(1 << 20)
    pair.client.setblocking(True)
    task = Task(partial(pair.server.recv_into, room, 0, socket.MSG_WAITALL))
    pair.client.sendall(bytes(1 << 20))
    task.result()
    mark = weakref.ref(room.obj)
    del room, task
    pair.client.sendall(b"?" * 100_000)
    receive_exactly(pair.server, 100_000)
    gc.collect()
    assert mark() is None
    pair.client.sendall(b"!")
    pair.server.recv(1)
    context.adapter.progress()
    assert context.memory_bytes - before < 1 << 20


def test_no_call_takes_bytes_from_a_receive_in_place(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops the receive behind its expectation, with bytes that it has still to copy."""
    one, room = pair.server, allocate(1 << 20)
    began, may_go_on = threading.Event(), threading.Event()
    receive_rest = StreamTransfer._receive_rest

    def stopped(self, *arguments, **words):
        if words.get("is_expecting"):
            began.set()
            assert may_go_on.wait(WAIT_S)
        return receive_rest(self, *arguments, **words)

    monkeypatch.setattr(StreamTransfer, "_receive_rest", stopped)
    pair.client.sendall(b"x" * 1000)
    assert one.recv(1000, socket.MSG_PEEK)
    task = Task(lambda: one.recv_into(room, 0, socket.MSG_WAITALL))
    assert began.wait(WAIT_S)
    assert error_of(one.recv, 10, socket.MSG_DONTWAIT) == errno.EAGAIN
    assert error_of(one.recv_into, bytearray(10), 0, socket.MSG_DONTWAIT) == errno.EAGAIN
    may_go_on.set()
    pair.client.sendall(b"y" * ((1 << 20) - 1000))
    assert task.result() == 1 << 20
    assert bytes(room) == b"x" * 1000 + b"y" * ((1 << 20) - 1000)


def test_a_connection_that_breaks_ends_a_receive_in_place(pair: Pair) -> None:
    task = Task(lambda: pair.server.recv_into(allocate(1 << 20), 0, socket.MSG_WAITALL))
    while not pair.server._transfer._is_expecting:
        time.sleep(0.001)
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.client.close()
    assert error_of(task.result) == errno.ECONNRESET


def test_a_closed_socket_has_nothing_mapped(mapping_pair: Pair) -> None:
    owner, writer = mapping_pair.both
    buffer = bytearray(10)
    owner.map_buffer(buffer, 0)
    show(owner, writer)
    owner.close()
    gc.collect()
    buffer.extend(b"free again")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_collected_socket_has_nothing_mapped(mapping_pair: Pair) -> None:
    context, buffer = mapping_pair.client.link.context, bytearray(10)
    before = set(context._regions)
    mapping_pair.client.map_buffer(buffer, 0)
    show(*mapping_pair.both)
    mapped = set(context._regions) - before
    assert mapped
    mapping_pair.client = mapping_pair.server  # so that it is collected
    gc.collect()
    wait_until(lambda: not mapped & set(context._regions))


def test_a_mapping_that_is_refused_leaves_the_buffer_alone(pair: Pair) -> None:
    buffer = bytearray(10)
    assert error_of(pair.client.map_buffer, buffer) == errno.ENOMEM
    gc.collect()
    buffer.extend(b"free again")


def test_there_is_no_empty_memory() -> None:
    with pytest.raises(ValueError):
        allocate(0)


def test_memory_that_a_late_receive_left_to_the_peer_may_be_received_into_again(pair: Pair) -> None:
    """The rest of it is still published: bytes that come there are read before others go there."""
    byte_count, first = 1 << 20, 600_000
    data = random.Random(5).randbytes(3 * byte_count)
    room = allocate(byte_count)
    pair.server.settimeout(0.2)
    task = Task(lambda: pair.client.sendall(data[:first]))
    got = pair.server.recv_into(room, 0, socket.MSG_WAITALL)
    task.result()
    received = bytearray(room[:got])
    assert got == first
    pair.server.settimeout(WAIT_S)
    pair.client.sendall(data[first : first + 1000])
    assert pair.server.recv(1, socket.MSG_PEEK)  # unread bytes lie in the memory now
    task = Task(lambda: pair.client.sendall(data[first + 1000 :]))
    while len(received) < len(data):
        part = room[: len(data) - len(received)]
        received += room[: pair.server.recv_into(part, 0, socket.MSG_WAITALL)]
    task.result()
    assert received == data
