"""Connecting: bind, listen, accept, connect in all its states, names."""

import errno
import select
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.rsocket.socket_pairs import DEVICES, HOST, WAIT_S, Pair, Task, error_of, using
from urds.rsocket.socket import Socket
from urds.rsocket.stream_socket import create_connection, create_server
from urds.rsocket.stream_socket import socket as rsocket_socket

OVER = (*DEVICES, "shm0,tcp0")


@pytest.mark.rule("rsocket-connect-cm")
def test_names_of_both_sides_agree(pair: Pair) -> None:
    assert pair.client.getpeername() == pair.listener.getsockname()
    assert pair.server.getpeername()[0] == pair.client.getsockname()[0]
    assert pair.client_address == pair.server.getpeername()
    assert pair.server.getsockname() == pair.listener.getsockname()


def test_one_device_alone_can_change_a_connected_socket(pair: Pair, device: str) -> None:
    """While it connects or listens all of them can: a wait for one device makes it progress."""
    assert len(pair.listener.contexts) == len(device.split(","))
    for one in pair.both:
        assert one.link is not None
        assert list(one.contexts) == [one.link.context]


def test_kind_and_class_are_those_of_socket_socket(pair: Pair) -> None:
    for one in pair.both:
        assert isinstance(one, socket.socket)
        assert (one.family, one.type, one.proto) == (socket.AF_INET, socket.SOCK_STREAM, 0)


def test_an_accepted_socket_waits_as_a_new_one(pair: Pair, device: str) -> None:
    """Source: Linux's TCP; the original inherits the listener's flag."""
    pair.listener.setblocking(False)
    with create_connection(pair.listener.getsockname(), WAIT_S):
        select.select([pair.listener], [], [], WAIT_S)
        accepted, _ = pair.listener.accept()
        with accepted:
            assert accepted.gettimeout() is None


def test_accept_without_a_connection(device: str) -> None:
    with create_server((HOST, 0)) as listener:
        listener.setblocking(False)
        assert error_of(listener.accept) == errno.EAGAIN
        listener.settimeout(0.01)
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.rule("rsocket-accept")
def test_accept_waits_for_a_connection(device: str) -> None:
    with create_server((HOST, 0)) as listener:
        listener.settimeout(WAIT_S)
        task = Task(listener.accept)
        with create_connection(listener.getsockname(), WAIT_S) as client:
            accepted, address = task.result()
            with accepted:
                assert address == client.getsockname()


def test_accept_of_what_does_not_listen(device: str) -> None:
    with Socket() as idle:
        assert error_of(idle.accept) == errno.EINVAL


def test_without_a_listener(device: str) -> None:
    with create_server((HOST, 0)) as listener:
        address = listener.getsockname()
    with Socket() as client:
        client.settimeout(WAIT_S)
        with pytest.raises(ConnectionRefusedError):
            client.connect(address)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def test_a_refused_socket_may_try_again(device: str) -> None:
    with create_server((HOST, 0)) as listener:
        address = listener.getsockname()
    with Socket() as client:
        client.settimeout(WAIT_S)
        assert client.connect_ex(address) == errno.ECONNREFUSED
        with create_server(address) as listener:
            client.connect(address)
            listener.accept()[0].close()


def test_a_bound_port_without_a_listener_refuses(device: str) -> None:
    with Socket() as bound, Socket() as client:
        bound.bind((HOST, 0))
        client.settimeout(WAIT_S)
        assert client.connect_ex(bound.getsockname()) == errno.ECONNREFUSED


def test_connecting_without_waiting(device: str) -> None:
    with create_server((HOST, 0)) as listener, Socket() as client:
        listener.settimeout(WAIT_S)
        client.setblocking(False)
        code = client.connect_ex(listener.getsockname())
        assert code in (0, errno.EINPROGRESS)
        assert select.select([], [client], [], WAIT_S)[1] == [client]
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        assert client.getpeername() == listener.getsockname()
        # Once success may be told, as by Linux; then the socket is connected.
        assert client.connect_ex(listener.getsockname()) in (0, errno.EISCONN)
        assert client.connect_ex(listener.getsockname()) == errno.EISCONN
        listener.accept()[0].close()


def test_a_reject_without_waiting_comes_by_poll_and_so_error(device: str) -> None:
    """docs/reference/rsocket.md 19, point 9: ECONNREFUSED by SO_ERROR, and poll says POLLOUT."""
    with create_server((HOST, 0)) as listener:
        address = listener.getsockname()
    with Socket() as client:
        client.setblocking(False)
        if client.connect_ex(address) == errno.ECONNREFUSED:
            return  # that was quick
        assert select.select([], [client], [], WAIT_S)[1] == [client]
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """Yield an address over `udp0` that takes a request and never answers."""
    with using("udp0"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silence:
        silence.bind((HOST, 0))
        yield silence.getsockname()


def test_a_connect_under_way_is_told_by_every_call(silent: tuple[str, int]) -> None:
    """Source: docs/reference/rsocket.md 2.4; where it says nothing, as in TCP."""
    with Socket() as client:
        client.setblocking(False)
        assert client.connect_ex(silent) == errno.EINPROGRESS
        assert client.connect_ex(silent) == errno.EALREADY
        assert error_of(client.connect, silent) == errno.EALREADY
        assert error_of(client.send, b"x") == errno.EAGAIN
        assert error_of(client.recv, 1) == errno.EAGAIN
        assert error_of(client.getpeername) == errno.ENOTCONN
        assert error_of(client.listen) == errno.EINVAL
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b"\x02"  # SYN_SENT
        assert select.select([client], [client], [], 0) == ([], [], [])


def test_a_connect_that_takes_too_long_goes_on(silent: tuple[str, int]) -> None:
    with Socket() as client:
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.connect(silent)
        assert client.connect_ex(silent) == errno.EAGAIN  # of a timeout, as in socket.socket
        with pytest.raises(TimeoutError):
            client.send(b"x")


def test_a_connect_ends_when_another_thread_closes(silent: tuple[str, int]) -> None:
    client = Socket()
    task = Task(lambda: client.connect(silent))
    while client.link is None:
        pass
    client.close()
    assert error_of(task.result) == errno.EBADF


def test_a_socket_connects_to_itself_in_one_thread(device: str) -> None:
    """docs/reference/rsocket.md 19, point 9: the original hung until it had service threads."""
    with (
        create_server((HOST, 0)) as listener,
        create_connection(listener.getsockname(), WAIT_S) as client,
    ):
        accepted, _ = listener.accept()
        with accepted:
            client.sendall(b"myself")
            assert accepted.recv(6, socket.MSG_WAITALL) == b"myself"


def test_a_connected_socket_neither_connects_nor_listens_nor_binds(pair: Pair) -> None:
    assert error_of(pair.client.connect, pair.listener.getsockname()) == errno.EISCONN
    assert error_of(pair.listener.connect, pair.listener.getsockname()) == errno.EISCONN
    assert error_of(pair.client.listen) == errno.EINVAL
    assert error_of(pair.client.bind, (HOST, 0)) == errno.EINVAL


def test_a_bound_name_is_kept(device: str) -> None:
    with create_server((HOST, 0)) as listener, Socket() as client:
        client.bind((HOST, 0))
        name = client.getsockname()
        assert name[1] != 0
        client.settimeout(WAIT_S)
        client.connect(listener.getsockname())
        accepted, address = listener.accept()
        with accepted:
            assert client.getsockname() == name
            assert address == name


def test_a_port_is_bound_once(device: str) -> None:
    with Socket() as first, Socket() as second:
        first.bind((HOST, 0))
        assert error_of(second.bind, first.getsockname()) == errno.EADDRINUSE
        first.listen()
        assert error_of(second.bind, first.getsockname()) == errno.EADDRINUSE


def test_an_address_of_another_host_is_refused(device: str) -> None:
    with Socket() as one:
        assert error_of(one.bind, ("192.0.2.1", 0)) == errno.EADDRNOTAVAIL


def test_a_listener_without_a_name_gets_one(device: str) -> None:
    with Socket() as listener:
        assert listener.getsockname() == ("0.0.0.0", 0)
        listener.listen()
        port = listener.getsockname()[1]
        with create_connection((HOST, port), WAIT_S):
            listener.accept()[0].close()


def test_ipv6(device: str) -> None:
    with (
        create_server(("::1", 0), family=socket.AF_INET6) as listener,
        Socket(socket.AF_INET6) as client,
    ):
        client.settimeout(WAIT_S)
        client.connect(listener.getsockname())
        accepted, address = listener.accept()
        with accepted:
            assert address[0] == "::1"
            assert len(address) == 4
            client.sendall(b"six")
            assert accepted.recv(3) == b"six"


def test_many_connect_at_once(device: str) -> None:
    with create_server((HOST, 0), backlog=16) as listener:
        clients = [create_connection(listener.getsockname(), WAIT_S) for _ in range(16)]
        servers = [listener.accept()[0] for _ in clients]
        for number, client in enumerate(clients):
            client.sendall(bytes([number]))
        told = {server.recv(1): server for server in servers}
        for number, client in enumerate(clients):
            told[bytes([number])].sendall(b"you are %d" % number)
            assert client.recv(100) == b"you are %d" % number
        for one in (*clients, *servers):
            one.close()


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("nowhere", TypeError),
        ((HOST,), TypeError),
        ((HOST, 1, 2, 3), TypeError),
        ((1, 2), TypeError),
        ((HOST, "80"), TypeError),
        ((HOST, 65536), OverflowError),
        (("no-such-host.invalid", 1), socket.gaierror),
    ],
)
def test_a_bad_address(address, error, device: str) -> None:
    with Socket() as one, pytest.raises(error):
        one.connect(address)


@pytest.mark.parametrize(
    "kind",
    [
        (socket.AF_UNIX, socket.SOCK_STREAM, 0),
        (socket.AF_INET, socket.SOCK_RAW, 0),
        (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_UDP),
        (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_TCP),
    ],
)
def test_an_unknown_kind_is_enotsup(kind) -> None:
    assert error_of(rsocket_socket, *kind) == errno.ENOTSUP


def test_a_closed_socket_is_ebadf(pair: Pair) -> None:
    pair.client.close()
    for call, *arguments in (
        (pair.client.send, b"x"),
        (pair.client.recv, 1),
        (pair.client.getsockname,),
        (pair.client.getpeername,),
        (pair.client.connect, (HOST, 1)),
        (pair.client.listen,),
        (pair.client.accept,),
        (pair.client.shutdown, 2),
        (pair.client.settimeout, 1),
        (pair.client.setsockopt, 1, 2, 1),
        (pair.client.getsockopt, 1, 2),
        (pair.client.readiness,),
    ):
        assert error_of(call, *arguments) == errno.EBADF, call
    assert pair.client.fileno() == -1
    assert "[closed]" in repr(pair.client)
    pair.client.close()


def test_what_is_not_connected_is_enotconn(device: str) -> None:
    with Socket() as one, closing(create_server((HOST, 0))) as listener:
        for idle in (one, listener):
            for call, *arguments in (
                (idle.send, b"x"),
                (idle.recv, 1),
                (idle.getpeername,),
                (idle.shutdown, 1),
            ):
                assert error_of(call, *arguments) == errno.ENOTCONN, call


def test_accept_ends_when_another_thread_closes(device: str) -> None:
    listener = create_server((HOST, 0))
    task = Task(listener.accept)
    listener.close()
    assert error_of(task.result) == errno.EBADF
