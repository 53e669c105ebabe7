"""A bind that fails half-way leaves nothing behind."""

import errno
import os
import subprocess
import sys
from ipaddress import ip_address

import pytest

import urds
from tests.rds.sockets.hosts import host
from tests.support.planes import chosen, in_use
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
