"""Each line about rsockets of docs/differences.md: `test_difference_` and its name."""

import errno
import os
import socket
import ssl
import struct
import threading
from contextlib import suppress

import pytest

from tests.rsocket.socket_pairs import HOST, WAIT_S, Pair, error_of, using
from urds import rsocket
from urds.rsocket import Socket, create_connection
from urds.rsocket.tls import TlsSocket

OVER = ("shm0", "tcp0")


def test_difference_rsocket_descriptor(pair: Pair) -> None:
    pair.client.sendall(b"x")
    number = pair.server.fileno()
    with suppress(BlockingIOError):
        os.write(number, b"not sent")
    for call in (pair.server.detach, pair.server.dup, lambda: pair.server.set_inheritable(True)):
        assert error_of(call) == errno.EOPNOTSUPP
    # A socket that was never asked for its number refuses as well.
    assert error_of(pair.client.detach) == errno.EOPNOTSUPP
    assert pair.server.get_inheritable() is False
    assert "fd=" not in repr(pair.server)
    assert error_of(pair.client.recv, 9, socket.MSG_DONTWAIT) == errno.EAGAIN


def test_difference_rsocket_fork(pair: Pair) -> None:
    pair.client.fileno()
    child = os.fork()
    if not child:
        code = 1
        with suppress(BaseException):
            code = 0 if error_of(pair.client.send, b"x") == errno.EBADF else 2
            pair.client.close()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pair.client.send(b"y")  # the child leaves the parent's connection alone
    assert pair.server.recv(1) == b"y"


def test_difference_rsocket_ancillary(pair: Pair) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0))]
    assert error_of(pair.client.sendmsg, [b"x"], rights) == errno.ENOTSUP
    pair.client.sendall(b"x")
    assert pair.server.recvmsg(1, 100)[1] == []


def test_difference_rsocket_addresses(pair: Pair) -> None:
    """As the original does; a kernel's stream says None for who sent."""
    for call in (
        lambda: pair.client.sendto(b"x", (HOST, 1)),
        lambda: pair.client.sendto(b"x", 0, (HOST, 1)),
        lambda: pair.client.sendmsg([b"x"], [], 0, (HOST, 1)),
    ):
        assert error_of(call) == errno.EISCONN
    pair.client.sendall(b"xy")
    name = pair.client.getsockname()
    assert pair.server.recvfrom(1) == (b"x", name)
    assert pair.server.recvfrom_into(bytearray(1)) == (1, name)


def test_difference_rsocket_reset(pair: Pair) -> None:
    pair.server.close()
    assert pair.client.recv(1) == b""
    for _ in range(2):
        assert error_of(pair.client.send, b"x") == errno.ECONNRESET


def test_difference_rsocket_oob(pair: Pair) -> None:
    assert error_of(pair.client.send, b"x", socket.MSG_OOB) == errno.EOPNOTSUPP
    for flag in (socket.MSG_OOB, socket.MSG_ERRQUEUE):
        assert error_of(pair.server.recv, 1, flag) == errno.EOPNOTSUPP


def test_difference_rsocket_options(pair: Pair) -> None:
    one, level = pair.client, socket.SOL_SOCKET
    assert error_of(one.setsockopt, level, socket.SO_REUSEPORT, 1) == errno.ENOTSUP
    seconds = struct.pack("@ll", 5, 0)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        assert error_of(one.setsockopt, level, option, seconds) == errno.ENOTSUP
    assert error_of(one.getsockopt, level, 0x7F) == errno.ENOTSUP


def test_difference_rsocket_tls(pair: Pair) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with pytest.raises(OSError, match=r"urds\.rsocket\.tls"):
        context.wrap_socket(pair.client, server_hostname="localhost")
    assert not issubclass(TlsSocket, ssl.SSLSocket)


def test_difference_rsocket_peers() -> None:
    """Over TCP a server of the kernel is met, which is no rsocket."""
    with using("tcp0"), socket.create_server((HOST, 0)) as kernel:

        def serve() -> None:
            connection, _ = kernel.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"220 hello\r\n")

        serving = threading.Thread(target=serve)
        serving.start()
        with pytest.raises(ConnectionAbortedError, match="the peer speaks no iWARP: b'220"):
            create_connection(kernel.getsockname(), WAIT_S)
        serving.join()


def test_difference_rsocket_install() -> None:
    class Own(socket.socket):
        pass

    rsocket.install()
    try:
        with Own() as own, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            assert not isinstance(own, Socket)
            assert not isinstance(datagrams, Socket)
        with socket.socket() as stream:
            assert isinstance(stream, Socket)
    finally:
        rsocket.uninstall()


def test_difference_rsocket_datagrams() -> None:
    for devices, most in (("shm0", 2040), ("udp0", 2040), ("shm0,tcp0", 1392)):
        with (
            using(devices),
            Socket(type=socket.SOCK_DGRAM) as one,
            Socket(type=socket.SOCK_DGRAM) as other,
        ):
            other.bind((HOST, 0))
            other.settimeout(WAIT_S)
            assert one.sendto(bytes(most), other.getsockname()) == most
            assert len(other.recv(3000)) == most
            assert error_of(one.sendto, bytes(most + 1), other.getsockname()) == errno.EMSGSIZE
