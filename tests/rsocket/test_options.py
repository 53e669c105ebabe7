"""Options of sockets over devices: what they do, who inherits them, when they are too late."""

import errno
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.rsocket.socket_pairs import (
    HOST,
    WAIT_S,
    Pair,
    Task,
    error_of,
    receive_exactly,
    using,
)
from urds.rsocket.constants import SOL_RDMA, RdmaOpt
from urds.rsocket.socket import Socket

OVER = ("shm0", "tcp0")


Option = tuple[int, int, int]
RECEIVE_10_000: Option = (socket.SOL_SOCKET, socket.SO_RCVBUF, 10_000)


@contextmanager
def connected(
    *options: Option, of_client: Option | None = None, late: bool = False
) -> Iterator[tuple[Socket, Socket]]:
    """Connect to a listener with options, set before it has an address or while it listens."""
    with Socket() as listener, Socket() as client:
        if late:
            listener.bind((HOST, 0))
            listener.listen()
        for option in options:
            listener.setsockopt(*option)
        if not late:
            listener.bind((HOST, 0))
            listener.listen()
        if of_client is not None:
            client.setsockopt(*of_client)
        client.settimeout(WAIT_S)
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            yield client, accepted


def test_values_are_taken_and_given_as_in_socket_socket(pair: Pair) -> None:
    one = pair.client
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, b"\1\0\0\0")
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 4) == b"\1\0\0\0"
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 2) == b"\1\0"
    with pytest.raises(OverflowError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1 << 31)
    with pytest.raises(TypeError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, "on")
    assert error_of(one.setsockopt, socket.SOL_SOCKET, socket.SO_KEEPALIVE, None, 4) == errno.EINVAL
    assert error_of(one.getsockopt, socket.SOL_SOCKET, socket.SO_KEEPALIVE, -1) == errno.EINVAL


@pytest.mark.parametrize("option", RdmaOpt)
def test_what_a_connection_is_made_of_cannot_change(pair: Pair, option: RdmaOpt) -> None:
    for one in (pair.client, pair.server, pair.listener):
        assert error_of(one.setsockopt, SOL_RDMA, option, 64) == errno.EINVAL


def test_accepted_sockets_have_the_listeners_options(device: str) -> None:
    with connected((SOL_RDMA, RdmaOpt.RQSIZE, 50), RECEIVE_10_000) as (client, accepted):
        assert accepted.getsockopt(SOL_RDMA, RdmaOpt.RQSIZE) == 50
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 20_000
        assert accepted.link.settings.receive_queue == 50
        assert client.getsockopt(SOL_RDMA, RdmaOpt.RQSIZE) == 384


def test_options_set_while_listening_are_those_of_later_connections(device: str) -> None:
    with connected(RECEIVE_10_000, late=True) as (_, accepted):
        assert accepted.link.settings.receive_bytes == 20_000
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 20_000


def test_a_small_receive_queue_bounds_what_is_under_way(device: str) -> None:
    """Stop at the credits, go on after reads: docs/reference/rsocket.md 19, point 5."""
    with connected((SOL_RDMA, RdmaOpt.RQSIZE, 16)) as (client, accepted):
        data = bytes(range(256)) * 20
        task = Task(lambda: [client.sendall(data[n : n + 1]) for n in range(len(data))])
        assert receive_exactly(accepted, len(data)) == data
        task.result()


def test_a_small_window_carries_large_bytes(device: str) -> None:
    small = (socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    with connected((socket.SOL_SOCKET, socket.SO_RCVBUF, 1), of_client=small) as (client, accepted):
        data = bytes(range(256)) * 1000
        task = Task(lambda: client.sendall(data))
        assert receive_exactly(accepted, len(data)) == data
        task.result()


def test_info_and_segment_of_a_connection(pair: Pair) -> None:
    data = pair.client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    assert data[0] == 1  # ESTABLISHED
    assert struct.unpack_from("=I", data, 80) == (384,)
    assert pair.listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b"\x0a"
    assert pair.client.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) > 0
    with Socket() as idle:
        assert idle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b"\x07"


def test_error_is_taken_once(pair: Pair) -> None:
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.client.close()
    end_s = time.monotonic() + WAIT_S
    while not pair.server.readiness().failed and time.monotonic() < end_s:
        time.sleep(0.001)
    assert pair.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
    assert pair.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert pair.server.recv(1) == b""


def test_keepalive_sends_signs_of_life(pair: Pair) -> None:
    pair.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    end_s = time.monotonic() + 5
    while not pair.client.stats.keepalives_sent and time.monotonic() < end_s:
        time.sleep(0.01)
    assert pair.client.stats.keepalives_sent
    pair.client.sendall(b"x")
    assert pair.server.recv(1) == b"x"


def test_no_delay_reaches_a_connection_that_is_there(pair: Pair) -> None:
    pair.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for number in range(100):
        pair.client.sendall(bytes([number]))
    assert receive_exactly(pair.server, 100) == bytes(range(100))


def test_a_file_sets_what_sockets_are_made_of(device: str, tmp_path, monkeypatch) -> None:
    from urds.rsocket import settings

    # The state is that of a process.
    monkeypatch.setattr(settings, "_process", settings._ProcessSettings())
    (tmp_path / "rqsize_default").write_text("99")
    settings.configure(directory=tmp_path)
    with Socket() as one:
        assert one.getsockopt(SOL_RDMA, RdmaOpt.RQSIZE) == 99


ANSWERED_AS_BY_TCP = [
    socket.SO_TYPE, socket.SO_DOMAIN, socket.SO_PROTOCOL, socket.SO_ACCEPTCONN,
    socket.SO_REUSEPORT, socket.SO_RCVTIMEO, socket.SO_SNDTIMEO,
]  # fmt: skip


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_what_cannot_be_set_is_read_as_of_a_tcp_socket(device: str, family: int) -> None:
    """Idle and listening; a timeout of Python is none of the kernel's."""
    with Socket(family) as ours, socket.socket(family) as kernel:
        for is_listening in (False, True):
            for one in (ours, kernel):
                one.settimeout(5)
                if is_listening:
                    one.listen()
            for option in ANSWERED_AS_BY_TCP:
                for size in (0, 2, 4, 16):
                    got = ours.getsockopt(socket.SOL_SOCKET, option, size)
                    assert got == kernel.getsockopt(socket.SOL_SOCKET, option, size)


def test_what_can_only_be_read_is_not_set() -> None:
    with using("shm0"), Socket() as one:
        for option in ANSWERED_AS_BY_TCP:
            assert error_of(one.setsockopt, socket.SOL_SOCKET, option, 1) == errno.ENOTSUP
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
