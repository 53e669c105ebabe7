"""A node and a peer that behaves as a kernel on the wire, while the node's worker is upgraded."""

import itertools
import threading

import pytest

from tests.rds.node.test_attached import attached, bound, upgrade
from tests.rds.sockets.conftest import fresh_addresses  # noqa: F401 - a fixture
from tests.rds.sockets.hosts import host
from tests.rds.transports.tcp.kernel_peer import KernelPeer, Release
from tests.support import backends
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(
    not backends.IS_ATTACHED or bool(backends.missing()),
    reason="a node with the compiled plane: TEST_BACKEND=attached URDS_IMPL=native",
)
UPGRADES, BETWEEN = 5, 300  # messages from the kernel between two of them
QUEUED, BURST = 200, 50  # so there is always something under way from the kernel
BYTES = 1000
WAIT_S = 60.0


class Kernel(threading.Thread):
    """Runs the peer and has it send numbers without end, until `enough` is set."""

    def __init__(self, peer: KernelPeer) -> None:
        super().__init__(daemon=True)
        self.peer, self.sent = peer, 0
        self.enough, self.stop = threading.Event(), threading.Event()

    def run(self) -> None:
        """Step until it is stopped."""
        while not self.stop.is_set():
            if self.peer.undelivered < QUEUED and not self.enough.is_set():
                for _ in range(BURST):
                    payload = (b"%d " % self.sent).ljust(BYTES)
                    self.peer.send(payload, source_port=5000, target_port=4000)
                    self.sent += 1
            if self.peer.undelivered and not self.peer.up:
                self.peer.seek()  # as each send does
            self.peer.step()
        self.peer.close()


@pytest.mark.parametrize("release", Release, ids=lambda one: one.name)
@pytest.mark.parametrize("number", [1, 3], ids=["lower", "higher"])
def test_upgrades_under_traffic_lose_and_double_nothing(number: int, release: Release) -> None:
    """The kernel's address is below ours, or above it."""
    with attached() as backend:
        sock = bound(backend, 2)
        kernel = Kernel(KernelPeer(host(number), host(2), release=release))
        kernel.start()
        got, sent = list[int](), itertools.count()

        def receive() -> None:
            while (payload := sock.recv(BYTES + 1)) != b"end":
                got.append(int(payload))
                sock.sendto(b"%d" % next(sent), (host(number), 5000))

        reader = threading.Thread(target=receive, daemon=True)
        reader.start()
        try:
            for done in range(UPGRADES):
                wanted = BETWEEN * (done + 1)
                wait_until(lambda wanted=wanted: len(got) > wanted, WAIT_S)
                upgrade(backend)
            kernel.enough.set()
            wait_until(lambda: len(got) >= kernel.sent, WAIT_S)
            sock.sendto(b"end", sock.getsockname())
            reader.join(WAIT_S)
            wait_until(lambda: len(kernel.peer.received) >= len(got), WAIT_S)
            payloads = kernel.peer.payloads
        finally:
            kernel.stop.set()
            kernel.join(WAIT_S)
        assert got == list(range(kernel.sent))
        assert payloads == [b"%d" % one for one in range(kernel.sent)]
        sock.close()
