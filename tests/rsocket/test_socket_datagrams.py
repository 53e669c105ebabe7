"""Datagram sockets with the calls of `socket.socket`, over each device and over UDP alone."""

import errno
import select
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.rsocket.socket_pairs import DEVICES, HOST, WAIT_S, Task, error_of
from urds.rsocket.calls import (
    rbind,
    rclose,
    rconnect,
    rgetsockname,
    rrecvfrom,
    rrecvmsg,
    rsend,
    rsendmsg,
    rsendto,
    rsocket,
)
from urds.rsocket.constants import SOL_RDMA, RdmaOpt
from urds.rsocket.socket import Socket

Two = tuple[Socket, Socket]


def datagram(family: int = socket.AF_INET) -> Socket:
    made = Socket(family, socket.SOCK_DGRAM)
    made.settimeout(WAIT_S)
    return made


OVER = (*DEVICES, "shm0,tcp0")


@pytest.fixture
def two(device: str) -> Iterator[Two]:
    with datagram() as first, datagram() as second:
        for one in (first, second):
            one.bind((HOST, 0))
        yield first, second


def test_its_class_and_kind(two: Two) -> None:
    assert isinstance(two[0], Socket)
    assert isinstance(two[0], socket.socket)
    assert (two[0].family, two[0].type) == (socket.AF_INET, socket.SOCK_DGRAM)
    assert "laddr=('127.0.0.1'" in repr(two[0])


def test_datagrams_keep_their_borders_and_their_source(two: Two) -> None:
    """The first goes by UDP, later ones by queue pairs: docs/reference/rsocket.md 19, point 13."""
    first, second = two
    for number in range(20):
        payload = bytes([number]) * (number * 60)
        assert first.sendto(payload, second.getsockname()) == len(payload)
        assert second.recvfrom(4096) == (payload, first.getsockname())
    assert second.sendto(b"back", first.getsockname()) == 4
    assert first.recvfrom(100) == (b"back", second.getsockname())


def test_what_exceeds_the_buffer_is_lost_and_said(two: Two) -> None:
    first, second = two
    for _ in range(4):
        first.sendto(b"abcdef", second.getsockname())
    assert second.recv(3) == b"abc"
    assert second.recvmsg(3) == (b"abc", [], socket.MSG_TRUNC, first.getsockname())
    assert second.recv_into(bytearray(4), 0, socket.MSG_TRUNC) == 6
    views = [bytearray(2), bytearray(3)]
    taken, _, flags, _ = second.recvmsg_into(views)
    assert (taken, flags, views) == (5, socket.MSG_TRUNC, [b"ab", b"cde"])


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        ("recv_into", b"read-only"),
        ("recvfrom_into", memoryview(bytearray(8)).toreadonly()),
        ("recv_into", memoryview(bytearray(8))[::2]),
        ("recvmsg_into", [bytearray(2), b"read-only"]),
    ],
)
def test_a_buffer_that_cannot_be_written_costs_no_datagram(
    two: Two, call: str, argument: object
) -> None:
    first, second = two
    first.sendto(b"abcdef", second.getsockname())
    assert second.recv(9, socket.MSG_PEEK) == b"abcdef"
    with pytest.raises(TypeError, match="read-write"):
        getattr(second, call)(argument)
    assert second.recv(9) == b"abcdef"


def test_peek_leaves_the_datagram(two: Two) -> None:
    first, second = two
    first.sendto(b"abc", second.getsockname())
    assert second.recv(2, socket.MSG_PEEK) == b"ab"
    assert second.recvfrom(9) == (b"abc", first.getsockname())


def test_buffers_are_gathered(two: Two) -> None:
    """docs/reference/rsocket.md 11: the original runs its stream code here."""
    first, second = two
    assert first.sendmsg([b"ab", b"", b"cd"], [], 0, second.getsockname()) == 4
    assert second.recv(9) == b"abcd"
    assert error_of(first.sendmsg, [b"x"], [(1, 1, b"")]) == errno.ENOTSUP
    first.sendto(b"x", second.getsockname())
    assert second.recvmsg(1, 10) == (b"x", [], 0, first.getsockname())


def test_a_connected_socket_has_a_target(two: Two) -> None:
    first, second = two
    assert error_of(first.send, b"x") == errno.EDESTADDRREQ
    assert error_of(first.getpeername) == errno.ENOTCONN
    first.connect(second.getsockname())
    assert first.getpeername() == second.getsockname()
    first.sendall(b"to you")
    assert second.recv(9) == b"to you"
    with datagram() as third:
        third.connect(second.getsockname())  # which gives it an address of its own
        third.send(b"me too")
        assert second.recvfrom(9) == (b"me too", third.getsockname())


def test_a_datagram_that_does_not_fit_is_emsgsize(two: Two) -> None:
    first, second = two
    most = first.link.payload_bytes_max
    assert error_of(first.sendto, bytes(most + 1), second.getsockname()) == errno.EMSGSIZE
    assert first.sendto(bytes(most), second.getsockname()) == most
    assert second.recv(4096) == bytes(most)


def test_waiting(two: Two) -> None:
    first, second = two
    assert error_of(second.recv, 1, socket.MSG_DONTWAIT) == errno.EAGAIN
    second.settimeout(0.02)
    with pytest.raises(TimeoutError):
        second.recv(1)
    second.settimeout(WAIT_S)
    task = Task(lambda: second.recv(9))
    time.sleep(0.02)
    first.sendto(b"awake", second.getsockname())
    assert task.result() == b"awake"


def test_a_wait_ends_when_another_thread_closes(two: Two) -> None:
    task = Task(lambda: two[0].recv(1))
    time.sleep(0.02)
    two[0].close()
    assert error_of(task.result) == errno.EBADF
    assert error_of(two[0].send, b"x") == errno.EBADF


def test_the_descriptor_shows_datagrams(two: Two) -> None:
    first, second = two
    assert select.select([second], [second], [], 0) == ([], [second], [])
    first.sendto(b"x", second.getsockname())
    assert select.select([second], [], [], WAIT_S)[0] == [second]
    second.recv(1)
    assert select.select([second], [], [], 0)[0] == []


def test_options_go_to_the_udp_socket(two: Two) -> None:
    first, second = two
    first.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    assert first.getsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST) == 1
    assert first.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert len(first.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)) == 8
    assert first.getsockopt(SOL_RDMA, RdmaOpt.SQSIZE) == 384
    assert error_of(first.setsockopt, SOL_RDMA, RdmaOpt.SQSIZE, 1) == errno.EINVAL
    assert error_of(second.setsockopt, 250, 1, 1) in (errno.ENOPROTOOPT, errno.EOPNOTSUPP)
    with datagram() as third:
        third.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, struct.pack("=i", 100_000))
        third.bind((HOST, 0))
        first.sendto(b"x", third.getsockname())
        assert third.recv(1) == b"x"


def test_what_streams_do_is_refused(two: Two) -> None:
    assert error_of(two[0].listen) == errno.EOPNOTSUPP
    assert error_of(two[0].accept) == errno.EOPNOTSUPP
    assert error_of(two[0].send, b"x", socket.MSG_OOB) == errno.EOPNOTSUPP


def test_a_name_before_and_after_bind(device: str) -> None:
    with datagram() as one:
        assert one.getsockname() == ("0.0.0.0", 0)
        one.bind((HOST, 0))
        assert one.getsockname()[1] != 0
        assert error_of(one.bind, (HOST, 0)) == errno.EINVAL
        with datagram() as other:
            assert error_of(other.bind, one.getsockname()) == errno.EADDRINUSE


def test_ipv6(device: str) -> None:
    with datagram(socket.AF_INET6) as first, datagram(socket.AF_INET6) as second:
        first.bind(("::1", 0))
        second.bind(("::1", 0))
        for _ in range(3):
            first.sendto(b"six", second.getsockname())
            assert second.recvfrom(9) == (b"six", first.getsockname())


@pytest.mark.rule("rsocket-dgram-no-bind")
def test_who_sends_need_not_be_bound(two: Two) -> None:
    with datagram() as third:
        for one in two:
            assert third.sendto(b"from anywhere", one.getsockname()) == 13
            payload, source = one.recvfrom(100)
            assert payload == b"from anywhere"
            assert one.sendto(b"back", source) == 4
            assert third.recvfrom(100) == (b"back", one.getsockname())


def test_the_calls_over_numbers(device: str) -> None:
    first = rsocket(socket.AF_INET, socket.SOCK_DGRAM)
    second = rsocket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        for one in (first, second):
            rbind(one, (HOST, 0))
        name = rgetsockname(second)
        assert error_of(rsend, first, b"x") == errno.EDESTADDRREQ
        assert rsendto(first, b"abc", name) == 3
        assert rrecvfrom(second, 9) == (b"abc", rgetsockname(first))
        assert rsendmsg(first, [b"a", b"b"], address=name) == 2
        view = bytearray(5)
        assert rrecvmsg(second, [view])[0] == 2
        rconnect(first, name)
        assert rsend(first, b"x") == 1
        assert rrecvfrom(second, 9)[0] == b"x"
    finally:
        rclose(first)
        rclose(second)


def test_a_forgotten_socket_warns(device: str) -> None:
    one = datagram()
    one.bind((HOST, 0))
    kept = [one]
    del one
    with pytest.warns(ResourceWarning, match="unclosed"):
        kept.clear()
