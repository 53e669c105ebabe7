"""RDMA as a transport, by the rules of rds(7) and of the wire specification.

Real sockets of one process on each device, at hosts of their own.
"""

import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from urds.rds.constants import MSG_DONTWAIT, SOL_RDS, SockOpt, Transport
from urds.rds.plane.contract import Carrier
from urds.rds.runtime.inprocess import InProcess
from urds.rds.transports.rdma.attempts import port_of

ARRIVAL_S = 10.0
SILENCE_S = 0.3
MESSAGES = 300
PER_BREAK = 60  # messages between two breaks

Bind = Callable[..., urds.Socket]


@pytest.fixture(params=["shm0", "tcp0"])
def backend(request: pytest.FixtureRequest) -> Iterator[InProcess]:
    """Give a fresh backend whose RDMA uses one device."""
    with backend_with(rdma_devices=[request.param], linger_s=0) as made:
        yield made


@pytest.fixture
def bind(backend: InProcess) -> Iterator[Bind]:
    """Make bound sockets; all are closed at the end."""
    made: list[urds.Socket] = []

    def new(number: int, transport: Transport = Transport.IB) -> urds.Socket:
        sock = urds.Socket()
        made.append(sock)
        sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, int(transport))
        sock.bind((host(number), 0))
        sock.settimeout(ARRIVAL_S)
        return sock

    yield new
    for sock in made:
        sock.close()


def is_silent(sock: urds.Socket) -> bool:
    """Tell whether no message comes for a while."""
    time.sleep(SILENCE_S)
    try:
        sock.recv(100, MSG_DONTWAIT)
    except BlockingIOError:
        return True
    return False


@pytest.mark.rule("rds7-transport-infiniband", "rds7-reliable-in-order")
def test_datagrams_go_over_rdma_in_order(backend: InProcess, bind: Bind) -> None:
    one, other = bind(1), bind(2)
    for number in range(MESSAGES):
        one.sendto(b"%d" % number, other.getsockname())
        assert other.recvfrom(100) == (b"%d" % number, one.getsockname())
    assert one.getsockopt(SOL_RDS, SockOpt.TRANSPORT) == Transport.IB
    assert backend.counters()["ib_rx_total_incs"] >= MESSAGES


@pytest.mark.rule("wire-ib-connection", "wire-single-transport")
def test_one_connection_carries_all_traffic_of_two_nodes(backend: InProcess, bind: Bind) -> None:
    here, there = [bind(1) for _ in range(3)], [bind(2) for _ in range(3)]
    for sender, receiver in zip(here + there, there + here, strict=True):
        sender.sendto(b"to you", receiver.getsockname())
        assert receiver.recvfrom(100) == (b"to you", sender.getsockname())
    rows = backend.snapshot().paths
    assert all(row.up and row.transport is Carrier.RDMA for row in rows)
    # One row for each end.
    ends = sorted((str(row.local), str(row.peer)) for row in rows)
    assert ends == [(host(1), host(2)), (host(2), host(1))]


@pytest.mark.rule("rds7-transport-reach")
def test_a_socket_reaches_only_hosts_that_its_transport_reaches(bind: Bind) -> None:
    """Ports are the host's: its sockets over TCP are reached as soon as the host is."""
    over_rdma, over_tcp = bind(1), bind(1, Transport.TCP)
    beyond = bind(2, Transport.TCP)
    over_rdma.sendto(b"over rdma", beyond.getsockname())
    over_tcp.sendto(b"over tcp", beyond.getsockname())
    assert beyond.recv(100) == b"over tcp"
    assert is_silent(beyond)
    bind(2)  # now the host is there over RDMA
    assert beyond.recv(100) == b"over rdma"


@pytest.mark.rule("wire-ib-port")
def test_a_node_listens_at_the_port_of_rds(backend: InProcess, bind: Bind) -> None:
    """Over tcp0 it is the same for IPv6, whose own is that of RDS over TCP there."""
    bind(1)
    node = backend._driver.rdma.node  # no public call tells
    assert node is not None
    [(device, listener)] = node.hosts[ip_address(host(1))].listeners
    assert listener.local == (host(1), 18634)
    assert port_of(ip_address("::1"), device) == (18634 if device.name == "tcp0" else 16385)


@pytest.mark.rule("wire-reconnect", "wire-ib-ack-seq", "wire-generation-transport", "rds7-once")
def test_a_connection_that_breaks_loses_and_doubles_nothing(backend: InProcess, bind: Bind) -> None:
    one, other = bind(1), bind(2)
    got: list[bytes] = []
    for first in range(0, MESSAGES, PER_BREAK):
        one.sendto(b"%d" % first, other.getsockname())
        got += [other.recv(100) for _ in range(first + 1 - len(got))]  # now there is a connection
        for number in range(first + 1, first + PER_BREAK):
            one.sendto(b"%d" % number, other.getsockname())
        assert backend.break_connections()
    got += [other.recv(100) for _ in range(MESSAGES - len(got))]
    assert got == [b"%d" % number for number in range(MESSAGES)]
    assert is_silent(other)
