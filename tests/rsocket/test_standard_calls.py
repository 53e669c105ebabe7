"""`create_connection` and `create_server` with the arguments that the standard library gives."""

import errno
import http.client
import socket
import threading
from contextlib import ExitStack

import pytest

from tests.rsocket.socket_pairs import HOST, WAIT_S, error_of
from urds.rsocket import Socket, create_connection, create_server

OVER = ("shm0", "tcp0", "shm0,tcp0")
pytestmark = pytest.mark.usefixtures("device")


def test_the_default_of_the_socket_module_is_the_default_timeout() -> None:
    default = socket._GLOBAL_DEFAULT_TIMEOUT  # type: ignore[attr-defined]  # not in the stubs
    with create_server((HOST, 0)) as listener:
        socket.setdefaulttimeout(WAIT_S)
        try:
            with create_connection(listener.getsockname(), default) as client:
                assert client.gettimeout() == WAIT_S
        finally:
            socket.setdefaulttimeout(None)
        with create_connection(listener.getsockname(), None) as client:
            assert client.gettimeout() is None


def test_an_address_that_has_a_listener_is_named() -> None:
    with create_server((HOST, 0)) as listener:
        address = listener.getsockname()
        with pytest.raises(OSError, match=rf"in use: listen at .*{address[1]}") as refused:
            create_server(address)
        assert refused.value.errno == errno.EADDRINUSE


def test_http_client_connects_by_it() -> None:
    with create_server((HOST, 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                while next(lines).strip():
                    pass
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        server = threading.Thread(target=serve)
        server.start()
        client = http.client.HTTPConnection(*listener.getsockname())
        client._create_connection = create_connection  # type: ignore[attr-defined]  # as above
        client.request("GET", "/")
        assert client.getresponse().read() == b"ok"
        client.close()
        server.join()


def closed_port() -> int:
    with create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def test_an_error_names_the_address() -> None:
    port = closed_port()
    with pytest.raises(ConnectionRefusedError) as refused:
        create_connection((HOST, port), WAIT_S)
    told = f"Connection refused: connect to {HOST}:{port}"
    assert refused.value.strerror in (told, f"{told}: no listener there")
    with pytest.raises(ConnectionRefusedError, match=rf"connect to \[::1\]:{port}"):
        create_connection(("::1", port), WAIT_S)


def test_all_errors_are_raised_if_asked_for() -> None:
    port = closed_port()
    with pytest.raises(ExceptionGroup) as refused:
        create_connection((HOST, port), WAIT_S, all_errors=True)
    (only,) = refused.value.exceptions
    assert isinstance(only, ConnectionRefusedError)


def test_a_source_address_is_bound() -> None:
    with create_server((HOST, 0)) as listener:
        source = (HOST, closed_port())
        with create_connection(listener.getsockname(), WAIT_S, source):
            accepted, peer = listener.accept()
            accepted.close()
            assert peer == source


def test_a_server_has_both_versions_of_ip_if_asked_for() -> None:
    with create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        port = listener.getsockname()[1]
        for host in (HOST, "::1"):
            with create_connection((host, port), WAIT_S):
                listener.accept()[0].close()
    with create_server(("::", 0), family=socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
        assert error_of(create_connection, (HOST, port), WAIT_S) == errno.ECONNREFUSED
    with pytest.raises(ValueError, match="IPv6"):
        create_server((HOST, 0), dualstack_ipv6=True)


def test_a_backlog_may_be_none_or_a_number() -> None:
    for backlog in (None, 0, 5):
        with (
            create_server((HOST, 0), backlog=backlog) as listener,
            create_connection(listener.getsockname(), WAIT_S),
        ):
            listener.accept()[0].close()


@pytest.mark.parametrize("backlog", [-1, 0, 1, 2])
def test_one_more_than_the_backlog_waits_to_be_accepted(backlog: int) -> None:
    """So many connect to a TCP listener of Linux before it accepts."""
    with ExitStack() as opened:
        listener = opened.enter_context(create_server((HOST, 0), backlog=backlog))
        for _ in range(max(backlog, 0) + 1):
            opened.enter_context(create_connection(listener.getsockname(), WAIT_S))


def test_a_port_is_not_shared() -> None:
    assert error_of(lambda: create_server((HOST, 0), reuse_port=True)) == errno.ENOTSUP


def test_numbers_beyond_an_int_of_c_are_refused_as_by_the_kernels_sockets() -> None:
    with Socket() as one:
        for call in (one.listen, one.shutdown):
            with pytest.raises(OverflowError):
                call(1 << 31)
    with Socket(socket.AF_INET6) as one, pytest.raises(OverflowError):
        one.bind(("::1", 0, 1 << 20))
