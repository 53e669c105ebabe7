"""Which transport a bind attaches: SO_RDS_TRANSPORT, else the setting; and what that settles.

Source of what is expected: linux v6.12 net/rds/bind.c, net/rds/af_rds.c;
docs/reference/rds.md 2.7, 3.1, 3.2.
"""

import errno
from collections.abc import Iterator

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from tests.support.errnos import refused
from urds.rds.constants import SOL_RDS, SockOpt, Transport
from urds.rds.runtime.inprocess import InProcess

DEVICES = ["shm0"]
NOT_OURS = "198.51.100.1"
NONE = -1
CHOICES = [
    ("tcp", None, Transport.TCP),
    ("ib", None, Transport.IB),
    ("tcp", Transport.IB, Transport.IB),
    ("ib", Transport.TCP, Transport.TCP),
]


@pytest.fixture
def node() -> Iterator[InProcess]:
    """Give a backend with one RDMA device."""
    with backend_with(rdma_devices=DEVICES, transport="tcp") as made:
        yield made


def choosing(transport: int) -> urds.Socket:
    """Return a socket that chose a transport."""
    sock = urds.Socket()
    sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, transport)
    return sock


def attached(sock: urds.Socket) -> int:
    """Return the transport of a socket."""
    number: int = sock.getsockopt(SOL_RDS, SockOpt.TRANSPORT)
    return number


@pytest.mark.rule("rds7-bind-attaches-transport")
@pytest.mark.parametrize(("setting", "chosen", "expected"), CHOICES)
def test_a_bind_attaches_what_was_chosen(
    setting: str, chosen: Transport | None, expected: Transport
) -> None:
    with backend_with(rdma_devices=DEVICES, transport=setting) as backend, urds.Socket() as sock:
        assert attached(sock) == NONE
        if chosen is not None:
            sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, chosen)
            assert attached(sock) == chosen
        sock.bind((host(1), 4000))
        assert attached(sock) == expected
        assert backend.transport_of(sock.mailbox) is expected


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("first", [Transport.TCP, Transport.IB])
@pytest.mark.parametrize("second", [Transport.TCP, Transport.IB, 77])
def test_a_second_choice_is_refused(first: Transport, second: int) -> None:
    again = (SOL_RDS, SockOpt.TRANSPORT, second)
    with choosing(first) as sock:
        assert refused(sock.setsockopt, *again) == errno.EOPNOTSUPP
        sock.bind((host(1), 4000))
        assert refused(sock.setsockopt, *again) == errno.EOPNOTSUPP
        assert attached(sock) == first


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("transport", [Transport.TCP, Transport.IB])
def test_a_port_in_use_takes_the_choice_away(transport: Transport) -> None:
    """The next bind takes the setting's transport; ports are those of the address, of both."""
    other = Transport.IB if transport is Transport.TCP else Transport.TCP
    with choosing(other) as holder, choosing(transport) as sock:
        holder.bind((host(1), 4000))
        assert refused(sock.bind, (host(1), 4000)) == errno.EADDRINUSE
        assert attached(sock) == NONE
        sock.bind((host(1), 4001))
        assert attached(sock) == Transport.TCP


@pytest.mark.usefixtures("node")
def test_an_address_of_another_process_takes_the_choice_away() -> None:
    with choosing(Transport.IB) as holder, choosing(Transport.IB) as sock:
        holder.bind((host(1), 4000))
        with backend_with(rdma_devices=DEVICES):
            assert refused(sock.bind, (host(1), 4001)) == errno.EADDRINUSE
        assert attached(sock) == NONE


@pytest.mark.rule("rds7-bind-no-transport")
@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("transport", [Transport.TCP, Transport.IB])
def test_an_address_that_the_chosen_transport_has_not(transport: Transport) -> None:
    """Without a choice it is EADDRNOTAVAIL: the address is what is wrong then."""
    with choosing(transport) as sock, urds.Socket() as undecided:
        assert refused(sock.bind, (NOT_OURS, 4000)) == errno.ENOPROTOOPT
        assert attached(sock) == transport
        assert refused(undecided.bind, (NOT_OURS, 4000)) == errno.EADDRNOTAVAIL
        assert attached(undecided) == NONE
        sock.bind((host(1), 4000))


@pytest.mark.parametrize("devices", [["missing0"], ["shm0", "missing0"], []], ids=str)
@pytest.mark.parametrize("chosen", [True, False], ids=["option", "setting"])
def test_without_its_devices_there_is_no_rdma(chosen: bool, devices: list[str]) -> None:
    settings = {"rdma_devices": devices, "transport": "tcp" if chosen else "ib"}
    with backend_with(**settings), urds.Socket() as sock, urds.Socket() as other:
        if chosen:
            sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, Transport.IB)
        with pytest.raises(OSError, match="rdma_devices") as failure:
            sock.bind((host(1), 4000))
        assert failure.value.errno == errno.ENOPROTOOPT
        other.setsockopt(SOL_RDS, SockOpt.TRANSPORT, Transport.TCP)
        other.bind((host(1), 4000))


@pytest.mark.usefixtures("node")
def test_the_number_needs_its_four_bytes() -> None:
    with choosing(Transport.IB) as sock:
        number = sock.getsockopt(SOL_RDS, SockOpt.TRANSPORT, 16)
        assert number == bytes(4)
        assert refused(sock.getsockopt, SOL_RDS, SockOpt.TRANSPORT, 3) == errno.EINVAL
    with urds.Socket() as sock:
        assert refused(sock.setsockopt, SOL_RDS, SockOpt.TRANSPORT, bytes(3)) == errno.EINVAL
        assert refused(sock.setsockopt, SOL_RDS, SockOpt.TRANSPORT, bytes(5)) == errno.EINVAL
        assert attached(sock) == NONE
