"""Each line of docs/differences.md about nodes has a test here: `test_difference_` and its name."""

import errno

import pytest

import urds
from tests.rds.sockets.conftest import fresh_addresses  # noqa: F401 - a fixture
from tests.rds.sockets.hosts import host
from tests.support import backends
from tests.support.errnos import refused
from tests.support.waiting import wait_until
from urds.rds.constants import SOL_RDS, InfoOpt, SockOpt, Transport
from urds.rds.node import commands
from urds.rds.runtime.process import process

pytestmark = pytest.mark.skipif(
    not backends.IS_ATTACHED or bool(backends.missing()),
    reason="a node with the compiled plane: TEST_BACKEND=attached URDS_IMPL=native",
)


def test_difference_rdma_of_nodes() -> None:
    with backends.made(drain_s=0) as backend:
        before = process.use(backend)
        try:
            with urds.Socket() as sock:
                sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, int(Transport.IB))
                assert refused(sock.bind, (host(1), 4000)) == errno.ENOPROTOOPT
            with urds.Socket() as sock:
                sock.bind((host(1), 4000))
                code = refused(sock.getsockopt, SOL_RDS, InfoOpt.IB_CONNECTIONS, 1 << 16)
                assert code == errno.ENOPROTOOPT
        finally:
            process.use(before)


def test_difference_over_quota() -> None:
    """`test_attached` shows how it ends."""
    with backends.at_own_node("[quota]\nmemory = '1MiB'\n") as backend:
        before = process.use(backend)
        try:
            with urds.Socket() as near, urds.Socket() as far:
                far.setsockopt(1, 8, 32 << 20)
                near.bind((host(1), 0))
                far.bind((host(2), 4000))
                for _ in range(400):
                    near.sendto(bytes(8000), far.getsockname())

                def is_refused() -> bool:
                    try:
                        near.sendto(b"", far.getsockname())
                    except OSError as failure:
                        return failure.errno == errno.ENOBUFS
                    return False

                wait_until(is_refused)
        finally:
            process.use(before)


def test_difference_peers_of_a_socket() -> None:
    with backends.at_own_node("[quota]\nroutes = 3\n") as backend:
        before = process.use(backend)
        try:
            with urds.Socket() as sock:
                sock.bind((host(1), 0))
                for number in range(2, 5):
                    sock.sendto(b"", (host(number), 4000))
                assert refused(sock.sendto, b"", (host(5), 4000)) == errno.EUSERS
                sock.sendto(b"", (host(4), 4000))
            with urds.Socket() as sock:
                sock.bind((host(1), 0))
                sock.sendto(b"", (host(5), 4000))
            assert [one["refused"] for one in commands.status(backend.place)["users"]] == [1]
        finally:
            process.use(before)
