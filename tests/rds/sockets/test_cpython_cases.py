"""What CPython's own tests ask of an AF_RDS socket, through `urds.install()`.

Written from a description of the cases BasicRDSTest and RDSTest of Lib/test/test_socket.py
(CPython 3.11): a server and a client bound to free ports, there of localhost, which other processes
may have.
"""

import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import urds
from tests.rds.sockets.hosts import host
from urds.rds.runtime.inprocess import InProcess

pytestmark = pytest.mark.each_carrier

BYTES = 8192
WAIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Pair:
    """A server, its address, and a client."""

    server: socket.socket
    client: socket.socket

    @property
    def address(self) -> tuple[str, int]:
        """Where the server is bound."""
        host, port = self.server.getsockname()
        return host, port


@pytest.fixture
def installed() -> Iterator[None]:
    """Have `socket.socket` give our sockets."""
    urds.install()
    yield
    urds.uninstall()


@pytest.fixture
def pair(installed: None, backend: InProcess) -> Iterator[Pair]:
    """Bind a server and a client to free ports; no kernel is asked for AF_RDS."""
    with (
        socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET, 0) as server,
        socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET, 0) as client,
    ):
        for sock in (server, client):
            sock.bind((host(1), 0))
            sock.settimeout(WAIT_S)
        yield Pair(server, client)


def test_constants_exist() -> None:
    assert (socket.AF_RDS, socket.PF_RDS) == (urds.AF_RDS, urds.PF_RDS)


@pytest.mark.usefixtures("installed", "backend")
@pytest.mark.rule("rds7-create")
def test_a_socket_opens_and_closes() -> None:
    with socket.socket(socket.PF_RDS, socket.SOCK_SEQPACKET, 0) as sock:
        assert isinstance(sock, urds.Socket)
        assert isinstance(sock, socket.socket)
        assert (sock.family, sock.type, sock.proto) == (socket.AF_RDS, socket.SOCK_SEQPACKET, 0)
    assert sock.fileno() == -1


@pytest.mark.usefixtures("installed", "backend")
@pytest.mark.rule("rds7-buffer-tuning", "rds7-generic-options")
def test_buffers_can_be_set() -> None:
    with socket.socket(socket.PF_RDS, socket.SOCK_SEQPACKET, 0) as sock:
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 16384)
            assert sock.getsockopt(socket.SOL_SOCKET, option) == 2 * 16384


@pytest.mark.rule("rds7-receive-address", "rds7-addresses")
def test_send_and_receive(pair: Pair) -> None:
    pair.client.sendto(b"spam", pair.address)
    assert pair.server.recvfrom(BYTES) == (b"spam", pair.client.getsockname())


@pytest.mark.rule("rds7-peek", "rds7-once")
def test_peek(pair: Pair) -> None:
    pair.client.sendto(b"spam", pair.address)
    first = pair.server.recvfrom(BYTES, socket.MSG_PEEK)
    assert pair.server.recvfrom(BYTES) == first == (b"spam", pair.client.getsockname())
    pair.server.settimeout(0)
    with pytest.raises(BlockingIOError):
        pair.server.recvfrom(BYTES)


@pytest.mark.rule("rds7-send-bound", "rds7-receive-bound")
def test_send_and_receive_with_messages(pair: Pair) -> None:
    payload = b"hello there" * 6
    pair.client.sendmsg([payload], (), 0, pair.address)
    received, ancillary, flags, source = pair.server.recvmsg(BYTES)
    assert (received, ancillary, flags, source) == (payload, [], 0, pair.client.getsockname())


@pytest.mark.rule("rds7-receive-order", "rds7-reliable-in-order")
def test_two_messages_arrive_as_two(pair: Pair) -> None:
    for payload in (b"bacon", b"egg"):
        pair.client.sendto(payload, pair.address)
    assert [pair.server.recvfrom(BYTES)[0] for _ in range(2)] == [b"bacon", b"egg"]


@pytest.mark.rule("rds7-poll-in")
def test_select(pair: Pair) -> None:
    pair.client.sendto(b"select", pair.address)
    ready, _, _ = select.select([pair.server], [], [], WAIT_S)
    assert ready == [pair.server]
    assert pair.server.recvfrom(BYTES) == (b"select", pair.client.getsockname())


@pytest.mark.usefixtures("installed", "backend")
def test_other_families_are_untouched() -> None:
    with socket.socket() as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        assert type(tcp) is type(udp) is socket.socket
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as accepted,
    ):
        assert type(accepted) is type(client) is socket.socket
    for end in socket.socketpair():
        end.close()
        assert type(end) is socket.socket


def test_uninstall_restores() -> None:
    before = socket.socket.__new__
    urds.install()
    urds.install()
    assert socket.socket.__new__ is not before
    urds.uninstall()
    urds.uninstall()
    assert "__new__" not in socket.socket.__dict__
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        assert type(udp) is socket.socket
