"""A bind that fails half-way leaves nothing behind."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from ipaddress import ip_address

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from tests.support.planes import chosen, in_use
from urds.rds.constants import RDS_TCP_PORT, SOL_RDS, SockOpt, Transport
from urds.rds.plane.choose import PYTHON
from urds.rds.runtime.inprocess import InProcess


@pytest.mark.parametrize("step", ["watch", "mailbox"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, ""), KeyboardInterrupt()], ids=repr)
def test_the_next_bind_finds_address_and_port_free(
    backend: InProcess, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    with urds.Socket() as sock:
        with monkeypatch.context() as patch:
            patch.setattr(backend.plane, step, fail)
            with pytest.raises(type(failure)):
                sock.bind((host(1), 4000))
        sock.bind((host(1), 4000))
        assert [row.port for row in backend.snapshot().mailboxes] == [4000]
        waited_for = backend._driver.watches.handlers.keys()
        # Doorbell, reports, listener; and the compiled plane listens for shm streams.
        assert len(waited_for) == (3 if in_use() == PYTHON else 4)
        if in_use() == PYTHON:
            assert waited_for == backend.plane.passes.poll_set._watched.keys()


def is_free(address: str) -> bool:
    """Tell whether another process could be the host of an address."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, RDS_TCP_PORT))
        except OSError:
            return False
    return True


def test_an_address_whose_first_bind_fails_is_free_for_other_processes() -> None:
    """Though this one goes on, with sockets at other addresses; and it may have it later."""
    with backend_with(rdma_devices=["missing0"]), urds.Socket() as other, urds.Socket() as sock:
        other.bind((host(1), 0))
        sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, Transport.IB)
        for address in (host(2), host(1)):
            with pytest.raises(OSError, match="missing0") as refused:
                sock.bind((address, 0))
            assert refused.value.errno == errno.ENOPROTOOPT
            assert is_free(address) == (address == host(2))
        with urds.Socket() as later:
            later.bind((host(2), 4000))
            other.sendto(b"there", (host(2), 4000))
            assert later.recv(10) == b"there"


def test_a_bind_after_the_end_listens_nowhere(
    backend: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come from a thread that ran into the end, whose listeners are closed already."""
    late: list[int | None] = []

    def bind(end: Callable[[], None] = backend._driver.rdma.end_connections) -> None:
        with urds.Socket() as sock, pytest.raises(OSError, match="closed") as refused:
            sock.bind((host(2), 0))
        late.append(refused.value.errno)
        end()

    with urds.Socket() as sock:
        sock.bind((host(1), 0))
    monkeypatch.setattr(backend._driver.rdma, "end_connections", bind)
    backend.close()
    bind(lambda: None)
    assert late == [errno.EBADF, errno.EBADF]
    assert is_free(host(2))


def test_a_send_that_comes_behind_the_close_leaves_no_mailbox_in_the_tables(
    backend: InProcess,
) -> None:
    """A thread may have been on its way to the control plane when another closed the socket."""
    driver = backend._driver
    with urds.Socket() as sock:
        sock.bind((host(1), 4000))
        mailbox = sock.mailbox
    for peer in (host(1), host(2)):
        with pytest.raises(OSError, match="closed"):
            driver.resolve(mailbox, ip_address(peer))
    assert not [peer for one in driver.hosts.values() for peer in one.peers.values()]


SCARCE = """
import errno, os, resource, sys, threading
import urds
from tests.rds.sockets.hosts import host
from urds.rds.runtime.process import process

def used():
    return len(os.listdir("/proc/self/fd"))

with urds.Socket() as sock:  # what is imported late is here then
    sock.bind((host(1), 4000))
    sock.sendto(b"own", (host(1), 4000))
process.use(None).close()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for free in range(12):
    before = used()
    taken = [os.dup(0) for _ in range(free + 1)]  # the last is one too many
    for one in taken:
        os.close(one)
    left = set()
    for _ in range(4):
        with urds.Socket() as sock:
            resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1], hard))
            try:
                sock.bind((host(1), 4000))
            except OSError as failure:
                assert failure.errno == errno.EMFILE, failure
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        backend = process._backend
        left.add((used() - before, sum(one.name == "urds-driver" for one in threading.enumerate())))
    assert len(left) == 1, (free, left)  # as much after four as after one
    assert backend is not None or left == {(0, 0)}, (free, left)
    with urds.Socket() as sock:
        sock.bind((host(1), 4000))
        sock.sendto(b"own", (host(1), 4000))
        assert sock.recv(10) == b"own"
    process.use(None).close()
    del backend
    assert used() == before, (free, used(), before)
    print(end=".")
"""


def test_a_first_bind_that_finds_no_descriptor_keeps_none() -> None:
    """A node that could be made stays for the next bind, with its descriptors and one thread."""
    done = subprocess.run(
        [sys.executable, "-c", SCARCE],
        env={**os.environ, **chosen()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stderr, done.stdout) == ("", "." * 12)
