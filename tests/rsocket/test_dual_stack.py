"""IPv4 clients of a socket that listens at `::`, and IPv4 addresses as IPv6 shows them."""

import errno
import socket
from socket import AF_INET6, IPPROTO_IPV6, IPV6_V6ONLY, SO_REUSEADDR, SOL_SOCKET

import pytest

from tests.rsocket.socket_pairs import DEVICES, HOST, WAIT_S, error_of, using
from urds.rsocket import Socket, create_connection, create_server

MAPPED = f"::ffff:{HOST}"


OVER = (*DEVICES, "shm0,tcp0")


def listener(*, v6_only: bool, host: str = "::") -> Socket:
    made = Socket(AF_INET6)
    made.settimeout(WAIT_S)
    made.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, v6_only)
    made.bind((host, 0))
    made.listen()
    return made


@pytest.mark.parametrize(
    ("host", "shown"), [(HOST, MAPPED), ("::1", "::1"), (MAPPED, MAPPED)], ids=str
)
def test_clients_of_both_kinds_connect(device: str, host: str, shown: str) -> None:
    with listener(v6_only=False) as server:
        port = server.getsockname()[1]
        with create_connection((host, port), WAIT_S) as client:
            accepted, peer = server.accept()
            with accepted:
                assert peer[0] == shown
                assert accepted.getsockname() == (shown, port, 0, 0)
                client.sendall(b"in")
                assert accepted.recv(10) == b"in"


def test_ipv6_alone_where_it_was_asked_for(device: str) -> None:
    with listener(v6_only=True) as server:
        port = server.getsockname()[1]
        assert error_of(create_connection, (HOST, port), WAIT_S) == errno.ECONNREFUSED
        with create_connection(("::1", port), WAIT_S):
            server.accept()[0].close()


def test_both_ports_are_free_again_after_the_close(device: str) -> None:
    with listener(v6_only=False) as server:
        port = server.getsockname()[1]
    for family, host in ((socket.AF_INET, "0.0.0.0"), (AF_INET6, "::")):
        create_server((host, port), family=family).close()


def test_a_device_that_cannot_listen_for_ipv4_is_named() -> None:
    """The port of IPv4 is another listener's on this device, which the kernel does not know."""
    with using("shm0"), Socket() as first, Socket(AF_INET6) as second:
        for one in (first, second):
            one.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        first.bind(("0.0.0.0", 0))
        first.listen()
        second.bind(("::", first.getsockname()[1]))
        with pytest.raises(OSError, match=r"IPV6_V6ONLY 0 .* IPv4 on shm0") as refused:
            second.listen()
        assert refused.value.errno == errno.EADDRINUSE
        first.close()
        second.listen()


def test_the_option_is_set_before_an_address_is() -> None:
    with using("shm0"), Socket(AF_INET6) as one:
        one.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)
        one.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
        one.bind(("::", 0))
        assert error_of(one.setsockopt, IPPROTO_IPV6, IPV6_V6ONLY, 1) == errno.EINVAL
        assert one.getsockopt(IPPROTO_IPV6, IPV6_V6ONLY) == 0


def test_an_ipv6_socket_has_mapped_addresses(device: str) -> None:
    with listener(v6_only=False, host=MAPPED) as server, Socket(AF_INET6) as client:
        assert server.getsockname()[0] == MAPPED
        # The udp device takes no wildcard of either version for a source.
        client.bind((MAPPED if device == "udp0" else "::", 0))
        client.settimeout(WAIT_S)
        client.connect(server.getsockname())
        accepted, peer = server.accept()
        accepted.close()
        assert peer == client.getsockname()
        assert client.getpeername() == server.getsockname()


def test_an_ipv6_socket_of_ipv6_alone_has_none() -> None:
    """With the errno of Linux's TCP."""
    with using("shm0"), Socket(AF_INET6) as one:
        one.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)
        assert error_of(one.bind, (MAPPED, 0)) == errno.EINVAL
        assert error_of(one.connect, (MAPPED, 1)) == errno.ENETUNREACH
