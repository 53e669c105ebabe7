"""The r* calls over integer descriptors, with the errno of section 11."""

import errno
import fcntl
import os
import socket
from collections.abc import Iterator

import pytest

from tests.rsocket.socket_pairs import HOST, WAIT_S, error_of
from urds.rsocket import Socket, calls
from urds.rsocket.calls import (
    raccept,
    rbind,
    rclose,
    rconnect,
    rfcntl,
    rgetpeername,
    rgetsockname,
    rgetsockopt,
    riomap,
    riounmap,
    riowrite,
    rlisten,
    rread,
    rreadv,
    rrecv,
    rrecvfrom,
    rrecvmsg,
    rsend,
    rsendmsg,
    rsendto,
    rsetsockopt,
    rshutdown,
    rsocket,
    rwrite,
    rwritev,
    socket_of,
)
from urds.rsocket.constants import PROT_WRITE, SOL_RDMA, RdmaOpt

OVER = ("shm0", "tcp0")


@pytest.fixture
def ends(device: str) -> Iterator[tuple[int, int]]:
    """Yield two connected descriptors."""
    listener = rsocket()
    rbind(listener, (HOST, 0))
    rlisten(listener, 5)
    client = rsocket()
    rconnect(client, rgetsockname(listener))
    server, address = raccept(listener)
    assert address == rgetsockname(client)
    yield client, server
    for number in (client, server, listener):
        if socket_of(number) is not None:
            rclose(number)


@pytest.mark.rule("rsocket-api")
def test_every_way_to_send_and_to_receive(ends: tuple[int, int]) -> None:
    client, server = ends
    name = rgetsockname(client)
    assert rsend(client, b"ab") == 2
    assert rrecv(server, 9) == b"ab"
    assert rwrite(client, b"cd") == 2
    assert rread(server, 1) == b"c"
    assert rread(server, 9) == b"d"
    assert rsendto(client, b"ef", None) == 2
    assert rrecvfrom(server, 9) == (b"ef", name)
    assert rsendmsg(client, [b"g", b"hi"]) == 3
    views = [bytearray(2), bytearray(1)]
    assert rrecvmsg(server, views, socket.MSG_WAITALL) == (3, [], 0, name)
    assert views == [b"gh", b"i"]
    assert rwritev(client, [b"jk", b"l"]) == 3
    views = [bytearray(1), bytearray(2)]
    taken = rreadv(server, views)
    assert (taken, views[0]) == (3, b"j")
    rshutdown(client, socket.SHUT_WR)
    assert rread(server, 1) == b""


@pytest.mark.rule("rsocket-iomap-interface")
def test_a_mapped_buffer_over_numbers(device: str) -> None:
    listener, client = rsocket(), rsocket()
    rsetsockopt(client, SOL_RDMA, RdmaOpt.IOMAPSIZE, 4)
    rbind(listener, (HOST, 0))
    rlisten(listener)
    rconnect(client, rgetsockname(listener))
    server, _ = raccept(listener)
    buffer = bytearray(10)
    assert riomap(server, buffer, PROT_WRITE, 0, 100) == 100
    rwrite(server, b"mapped")
    assert rrecv(client, 6, socket.MSG_WAITALL) == b"mapped"
    assert riowrite(client, b"direct", 102) == 6
    rwrite(client, b"written")
    assert rrecv(server, 7, socket.MSG_WAITALL) == b"written"
    assert buffer == b"\0\0direct\0\0"
    riounmap(server, buffer)
    for number in (client, server, listener):
        rclose(number)


def test_names(ends: tuple[int, int]) -> None:
    client, server = ends
    assert rgetpeername(client) == rgetsockname(server)


EVERY = [
    (rbind, (HOST, 0)),
    (rlisten,),
    (raccept,),
    (rconnect, (HOST, 1)),
    (rshutdown,),
    (rclose,),
    (rrecv, 1),
    (rrecvfrom, 1),
    (rrecvmsg, []),
    (rread, 1),
    (rreadv, []),
    (rsend, b"x"),
    (rsendto, b"x", None),
    (rsendto, b"x", (HOST, 1)),
    (rsendmsg, []),
    (rwrite, b"x"),
    (rwritev, []),
    (rgetpeername,),
    (rgetsockname,),
    (rsetsockopt, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (rgetsockopt, socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    (rfcntl, fcntl.F_GETFL),
    (riomap, bytearray(1)),
    (riounmap, bytearray(1)),
    (riowrite, b"x", 0),
]


@pytest.mark.rule("rsocket-api")
@pytest.mark.parametrize("row", EVERY, ids=lambda row: row[0].__name__)
def test_an_unknown_descriptor_is_ebadf(row) -> None:
    call, *arguments = row
    with open(os.devnull, "rb") as ordinary:
        for number in (ordinary.fileno(), -1, 1 << 30):
            assert error_of(call, number, *arguments) == errno.EBADF


def test_the_descriptor_of_a_socket_object_is_no_number_of_the_calls() -> None:
    with Socket() as made, pytest.raises(OSError, match=r"no number of rsocket\(\) or raccept"):
        rgetsockname(made.fileno())


def test_a_closed_descriptor_is_unknown(ends: tuple[int, int]) -> None:
    client, _ = ends
    assert socket_of(client) is not None
    rclose(client)
    assert socket_of(client) is None
    assert error_of(rclose, client) == errno.EBADF


def test_what_does_not_listen_accepts_with_ebadf(device: str) -> None:
    """Source: docs/reference/rsocket.md 11; `Socket.accept` says EINVAL as TCP does."""
    number = rsocket()
    assert error_of(raccept, number) == errno.EBADF
    rclose(number)


def test_an_unknown_kind_is_enotsup() -> None:
    assert error_of(rsocket, socket.AF_UNIX) == errno.ENOTSUP
    assert error_of(rsocket, socket.AF_INET, socket.SOCK_RAW) == errno.ENOTSUP


def test_flags_of_a_descriptor(ends: tuple[int, int]) -> None:
    client, _ = ends
    assert rfcntl(client, fcntl.F_GETFL) == os.O_RDWR
    assert rfcntl(client, fcntl.F_SETFL, os.O_NONBLOCK) == 0
    assert rfcntl(client, fcntl.F_GETFL) == os.O_RDWR | os.O_NONBLOCK
    assert error_of(rrecv, client, 1) == errno.EAGAIN
    assert rfcntl(client, fcntl.F_SETFL, 0) == 0
    assert rfcntl(client, fcntl.F_GETFL) == os.O_RDWR
    assert rfcntl(client, fcntl.F_GETFD) == 0
    assert rfcntl(client, fcntl.F_SETFD, fcntl.FD_CLOEXEC) == 0
    assert rfcntl(client, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
    assert error_of(rfcntl, client, fcntl.F_DUPFD, 0) == errno.ENOTSUP


def test_flags_of_the_type(device: str) -> None:
    number = rsocket(
        socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    )
    assert rfcntl(number, fcntl.F_GETFL) & os.O_NONBLOCK
    assert rfcntl(number, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
    rclose(number)


def test_an_accepted_descriptor_does_not_inherit_the_flag(device: str) -> None:
    listener = rsocket()
    rbind(listener, (HOST, 0))
    rlisten(listener)
    rfcntl(listener, fcntl.F_SETFL, os.O_NONBLOCK)
    assert error_of(raccept, listener) == errno.EAGAIN
    client = rsocket()
    rconnect(client, rgetsockname(listener))
    rfcntl(listener, fcntl.F_SETFL, 0)
    server, _ = raccept(listener)
    assert rfcntl(server, fcntl.F_GETFL) == os.O_RDWR
    for number in (client, server, listener):
        rclose(number)


def test_options(ends: tuple[int, int]) -> None:
    client, _ = ends
    rsetsockopt(client, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    assert rgetsockopt(client, socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert rgetsockopt(client, SOL_RDMA, RdmaOpt.SQSIZE) == 384
    assert error_of(rsetsockopt, client, SOL_RDMA, RdmaOpt.SQSIZE, 100) == errno.EINVAL
    assert error_of(rgetsockopt, client, SOL_RDMA, 99) == errno.ENOTSUP


def test_a_socket_closed_as_an_object_is_no_descriptor_any_more(device: str) -> None:
    number = rsocket()
    found = socket_of(number)
    assert found is not None
    found.close()
    assert socket_of(number) is None
    assert error_of(rread, number, 1) == errno.EBADF


def test_the_numbers_of_the_table_are_what_poll_takes(ends: tuple[int, int]) -> None:
    import select

    client, server = ends
    rwrite(client, b"x")
    assert select.select([server], [], [], WAIT_S)[0] == [server]
    assert calls.socket_of(server) is not None
