"""Bytes through sockets: sizes, flags, several buffers, ends."""

import errno
import io
import random
import socket
import struct
import time
from collections.abc import Callable

import pytest

from tests.rsocket.socket_pairs import (
    DEVICES,
    WAIT_S,
    Pair,
    Task,
    error_of,
    receive_exactly,
)
from tests.support.waiting import BUSY_S, wait_until
from urds.rsocket import allocate
from urds.rsocket.socket import Socket

OVER = DEVICES


def fill(source: Socket, chunk: bytes) -> int:
    """Send until there is no room; return how many bytes were taken."""
    sent = 0
    for _ in range(10_000):
        try:
            sent += source.send(chunk, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return sent
    raise AssertionError(f"{sent} bytes and still room")


@pytest.mark.rule("rsocket-send-steps", "rsocket-receive-steps")
@pytest.mark.parametrize("byte_count", [1, 64, 65, 4096, 65_536, 65_537, 1_000_003])
def test_sendall_and_waitall(pair: Pair, byte_count: int) -> None:
    data = random.Random(byte_count).randbytes(byte_count)
    for source, sink in (pair.both, pair.both[::-1]):
        task = Task(lambda source=source: source.sendall(data))
        assert sink.recv(byte_count, socket.MSG_WAITALL) == data
        task.result()


@pytest.mark.rule("rsocket-send-steps")
def test_a_send_that_may_wait_for_ever_takes_everything(pair: Pair) -> None:
    data = bytes(8 << 20)
    pair.client.settimeout(None)
    task = Task(lambda: pair.client.send(data))
    assert receive_exactly(pair.server, len(data)) == data
    assert task.result() == len(data)


def test_a_send_without_room_and_patience(pair: Pair) -> None:
    chunk = bytes(1 << 20)
    sent = fill(pair.client, chunk) + fill(pair.client, bytes(1000))
    pair.client.settimeout(0.01)
    with pytest.raises(TimeoutError):
        pair.client.send(chunk)
    assert len(receive_exactly(pair.server, sent)) == sent
    pair.client.settimeout(WAIT_S)
    assert pair.client.send(b"x") == 1


@pytest.mark.rule("rsocket-receive-steps")
def test_receiving_without_bytes(pair: Pair) -> None:
    assert error_of(pair.client.recv, 1, socket.MSG_DONTWAIT) == errno.EAGAIN
    pair.client.setblocking(False)
    assert error_of(pair.client.recv_into, bytearray(1)) == errno.EAGAIN
    pair.client.settimeout(0.01)
    with pytest.raises(TimeoutError, match="timed out"):
        pair.client.recv(1)
    assert pair.client.recv(0) == b""


def test_peek_leaves_bytes_there(pair: Pair) -> None:
    pair.client.sendall(b"abc")
    assert pair.server.recv(2, socket.MSG_PEEK) == b"ab"
    assert pair.server.recv(10, socket.MSG_PEEK) == b"abc"
    assert pair.server.recv(10) == b"abc"


def test_waitall_takes_less_at_the_end_and_at_the_timeout(pair: Pair) -> None:
    pair.client.sendall(b"abc")
    pair.server.settimeout(0.05)
    assert pair.server.recv(10, socket.MSG_WAITALL) == b"abc"
    pair.server.settimeout(WAIT_S)
    pair.client.sendall(b"de")
    pair.client.shutdown(socket.SHUT_WR)
    assert pair.server.recv(10, socket.MSG_WAITALL) == b"de"
    assert pair.server.recv(10, socket.MSG_WAITALL) == b""


def test_recv_into_counts_and_limits(pair: Pair) -> None:
    pair.client.sendall(b"abcdef")
    buffer = bytearray(b"......")
    assert pair.server.recv_into(buffer, 2) == 2
    assert buffer == b"ab...."
    assert pair.server.recv_into(memoryview(buffer)[2:]) == 4
    assert buffer == b"abcdef"
    with pytest.raises(ValueError):
        pair.server.recv_into(buffer, 7)
    with pytest.raises(ValueError):
        pair.server.recv(-1)
    with pytest.raises(TypeError):
        pair.server.recv_into(b"readonly")


def test_all_buffers_are_sent_and_filled(pair: Pair) -> None:
    """docs/reference/rsocket.md 19, point 14: the original fills the first only."""
    assert pair.client.sendmsg([b"ab", b"", bytearray(b"cde"), memoryview(b"f")]) == 6
    views = [bytearray(1), bytearray(0), bytearray(2), bytearray(3)]
    taken, ancillary, flags, address = pair.server.recvmsg_into(views, 0, socket.MSG_WAITALL)
    assert (taken, ancillary, flags, address) == (6, [], 0, pair.client.getsockname())
    assert views == [b"a", b"", b"bc", b"def"]


def test_several_buffers_wait_for_the_first_bytes_only(pair: Pair) -> None:
    pair.client.sendall(b"abc")
    views = [bytearray(2), bytearray(5)]
    assert pair.server.recvmsg_into(views)[0] == 3


def test_peeking_into_several_buffers(pair: Pair) -> None:
    pair.client.sendall(b"abc")
    views = [bytearray(2), bytearray(5)]
    assert pair.server.recvmsg_into(views, 0, socket.MSG_PEEK)[0] == 3
    assert views == [b"ab", b"c\0\0\0\0"]
    assert pair.server.recvmsg(10) == (b"abc", [], 0, pair.client.getsockname())


def test_room_for_control_messages_stays_empty(pair: Pair) -> None:
    assert pair.client.sendmsg([b"ab"], []) == 2
    name = pair.client.getsockname()
    assert pair.server.recvmsg(1, 64) == (b"a", [], 0, name)
    assert pair.server.recvmsg_into([bytearray(9)], 64) == (1, [], 0, name)
    for call in (lambda: pair.server.recvmsg(1, -1), lambda: pair.server.recvmsg_into([], -1)):
        with pytest.raises(ValueError, match="ancillary"):
            call()


def test_flags_that_mean_nothing_are_ignored(pair: Pair) -> None:
    assert pair.client.send(b"x", socket.MSG_NOSIGNAL | socket.MSG_MORE) == 1
    assert pair.server.recv(1, socket.MSG_NOSIGNAL) == b"x"


def test_any_buffer_is_sent(pair: Pair) -> None:
    for data in (b"ab", bytearray(b"ab"), memoryview(b"xabx")[1:3], memoryview(b"ab").cast("H")):
        assert pair.client.send(data) == 2
        assert pair.server.recv(2, socket.MSG_WAITALL) == b"ab"
    with pytest.raises(TypeError):
        pair.client.send("text")
    assert pair.client.send(b"") == 0


def test_the_senders_memory_is_free_again(pair: Pair) -> None:
    """Bytes written from the caller's memory may change as soon as send returns."""
    data = bytearray(b"a" * 300_000)
    task = Task(lambda: pair.server.recv(len(data), socket.MSG_WAITALL))
    pair.client.sendall(data)
    data[:] = bytes(len(data))
    del data[1:]
    assert task.result() == b"a" * 300_000


@pytest.mark.rule("rsocket-shutdown")
def test_half_close(pair: Pair) -> None:
    """docs/reference/rsocket.md 19, point 8."""
    pair.client.sendall(b"question")
    pair.client.shutdown(socket.SHUT_WR)
    assert receive_exactly(pair.server, 100) == b"question"
    with pytest.raises(BrokenPipeError):
        pair.client.send(b"more")
    pair.server.sendall(b"answer")
    pair.server.close()
    assert receive_exactly(pair.client, 100) == b"answer"


def test_shutdown_wants_a_direction(pair: Pair) -> None:
    assert error_of(pair.client.shutdown, 7) == errno.EINVAL


def test_no_linger_breaks_the_connection(pair: Pair) -> None:
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.client.close()
    with pytest.raises(ConnectionResetError):
        pair.server.recv(1)


def test_buffers_are_received_into_by_the_names_of_the_socket_module(pair: Pair) -> None:
    pair.client.sendall(b"abcd")
    room = bytearray(10)
    assert pair.server.recv_into(buffer=room, nbytes=2, flags=0) == 2
    assert pair.server.recvfrom_into(memoryview(room)[2:], nbytes=2)[0] == 2
    assert room == b"abcd" + bytes(6)


def break_behind(pair: Pair, byte_count: int) -> None:
    """Send bytes, and break the connection once they are there."""
    pair.client.sendall(b"x" * byte_count)
    wait_until(lambda: pair.server.readiness().readable)
    assert len(pair.server.recv(byte_count, socket.MSG_PEEK)) == byte_count
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.client.close()
    wait_until(lambda: pair.server.readiness().hung_up)


RECEIVES: dict[str, Callable[[Socket], int]] = {
    "recv": lambda server: len(server.recv(1000, socket.MSG_WAITALL)),
    "recv_into": lambda server: server.recv_into(bytearray(1000), 0, socket.MSG_WAITALL),
    "recvmsg_into": lambda server: server.recvmsg_into([bytearray(100), bytearray(100)])[0],
    "in place": lambda server: server.recv_into(allocate(1 << 20), 0, socket.MSG_WAITALL),
}


@pytest.mark.parametrize("receive", RECEIVES.values(), ids=RECEIVES)
def test_what_came_before_the_connection_broke_is_received(
    pair: Pair, receive: Callable[[Socket], int]
) -> None:
    """As from TCP: the bytes, then the error once, then the end."""
    break_behind(pair, 100)
    assert receive(pair.server) == 100
    assert error_of(receive, pair.server) == errno.ECONNRESET
    assert receive(pair.server) == 0


@pytest.mark.parametrize("receive", RECEIVES.values(), ids=RECEIVES)
def test_what_came_before_a_waiting_receive_saw_the_break_is_received(
    pair: Pair, receive: Callable[[Socket], int]
) -> None:
    task = Task(lambda: receive(pair.server))
    time.sleep(0.1)  # so that it waits, and then has taken the bytes before the break
    pair.client.sendall(b"x" * 100)
    time.sleep(0.1)
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.client.close()
    assert task.result() == 100
    assert error_of(receive, pair.server) == errno.ECONNRESET


def test_a_break_within_a_receive_in_place_is_told_by_the_next(pair: Pair) -> None:
    room = allocate(1 << 20)
    task = Task(lambda: pair.server.recv_into(room, 0, socket.MSG_WAITALL))
    wait_until(lambda: pair.server._transfer._is_expecting)
    pair.client.sendall(b"x" * 100_000)
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.2)  # the bytes are written into `room` meanwhile
    pair.client.close()
    assert task.result() == 100_000
    assert error_of(pair.server.recv_into, room, 0, socket.MSG_WAITALL) == errno.ECONNRESET
    assert pair.server.recv_into(room, 0, socket.MSG_WAITALL) == 0


def test_linger_waits_until_everything_has_left(pair: Pair) -> None:
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
    data = bytes(100_000)
    pair.client.sendall(data)

    def read_late() -> bytes:
        time.sleep(0.2)
        return receive_exactly(pair.server, len(data) + 1)

    link = pair.client.link
    task = Task(read_late)
    began_s = time.monotonic()
    pair.client.close()
    assert time.monotonic() - began_s > 0.1
    assert link not in link.context.leaving
    assert task.result() == data


def test_linger_waits_no_longer_than_it_says(pair: Pair) -> None:
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1))
    pair.client.sendall(bytes(100_000))
    began_s = time.monotonic()
    pair.client.close()
    assert 0.9 < time.monotonic() - began_s < BUSY_S


def test_a_closed_listener_leaves_its_connections(pair: Pair) -> None:
    pair.listener.close()
    pair.client.sendall(b"x")
    assert pair.server.recv(1) == b"x"


def test_files(pair: Pair) -> None:
    with pair.client.makefile("wb") as writer, pair.server.makefile("r", newline="\n") as reader:
        writer.write(b"one\ntwo\n")
        writer.flush()
        assert reader.readline() == "one\n"
        assert reader.readline() == "two\n"


def test_a_file_keeps_its_socket(pair: Pair) -> None:
    reader = pair.server.makefile("rb")
    pair.server.close()
    pair.client.sendall(b"still here")
    pair.client.close()
    assert reader.read() == b"still here"
    assert pair.server.fileno() != -1
    reader.close()
    assert pair.server.fileno() == -1


def test_sendfile(pair: Pair) -> None:
    data = random.Random(1).randbytes(300_000)
    task = Task(lambda: receive_exactly(pair.server, len(data) - 10))
    assert pair.client.sendfile(io.BytesIO(data), 10) == len(data) - 10
    assert task.result() == data[10:]


def test_both_directions_full_and_then_read(pair: Pair) -> None:
    """docs/reference/rsocket.md 19, point 6: two senders that are not read, then both read."""
    data = random.Random(2).randbytes(6 << 20)
    senders = [Task(lambda one=one: one.sendall(data)) for one in pair.both]
    readers = [Task(lambda one=one: receive_exactly(one, len(data))) for one in pair.both]
    assert [task.result() for task in readers] == [data, data]
    for sender in senders:
        sender.result()


def test_single_bytes_beyond_the_receive_queue(pair: Pair) -> None:
    """docs/reference/rsocket.md 19, point 5."""
    for number in range(1000):
        try:
            pair.client.send(bytes([number % 251]), socket.MSG_DONTWAIT)
        except BlockingIOError:
            break
    else:
        number = 1000
    assert receive_exactly(pair.server, number) == bytes(n % 251 for n in range(number))
