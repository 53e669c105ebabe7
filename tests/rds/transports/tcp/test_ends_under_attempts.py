"""A worker of a node that ends at the moment when its connection to a kernel stands."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from time import monotonic_ns as now_ns

import pytest

from tests.rds.sockets.conftest import backend  # noqa: F401 - a fixture
from tests.rds.sockets.hosts import host
from tests.rds.transports.tcp.kernel_peer import KernelPeer, Release
from tests.support import backends
from urds import MSG_DONTWAIT, Socket
from urds.rds.runtime.inprocess import InProcess

pytestmark = pytest.mark.skipif(backends.IS_ATTACHED, reason="stops the control thread itself")
OURS, KERNEL = host(2), host(3)
COUNT = 4
FLUSH_NS = 1_000_000_000
END_S = 10.0


@contextmanager
def stepping(kernel: KernelPeer) -> Iterator[None]:
    """Have the kernel go on by itself."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            kernel.step()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


@pytest.mark.parametrize("release", Release, ids=lambda one: one.name)
@pytest.mark.parametrize("is_reported", [True, False], ids=["reported", "unreported"])
def test_what_a_kernel_sent_over_an_attempt_that_stands_is_delivered(
    backend: InProcess,  # noqa: F811 - the fixture
    is_reported: bool,
    release: Release,
) -> None:
    """TCP acknowledged it, so no kernel sends it again; the control thread has not seen it yet.

    It may have been told of it, and wait for the lock, or have ended before.
    """
    driver, kernel = backend.driver, KernelPeer(KERNEL, OURS, release=release)
    try:
        with Socket() as sock:
            sock.bind((OURS, 4000))
            with driver.lock:
                ours = driver.hosts[ip_address(OURS)]
                driver.make_route(sock.mailbox, ip_address(KERNEL))
            if not is_reported:
                driver.stopping = True
                driver.plane.wake()
                driver._thread.join(END_S)
                assert not driver._thread.is_alive()
            with driver.lock:
                ours.endpoint.connection(ip_address(KERNEL), now_ns()).handle_wanted(0, now_ns())
                driver.carry_out(ours)
                for number in range(COUNT):
                    kernel.send(b"%d" % number, source_port=5000, target_port=4000)
                kernel.run_until(lambda: kernel.up and not kernel.undelivered)
                driver.stopping = True
            with stepping(kernel):
                driver.end(at_exit=True, flush_ns=FLUSH_NS)
            got = [sock.recv(10, MSG_DONTWAIT) for _ in range(COUNT)]
    finally:
        kernel.close()
    assert got == [b"%d" % number for number in range(COUNT)]
