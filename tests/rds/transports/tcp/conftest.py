"""Addresses and endings of the TCP tests; all is closed after each.

The hosts are addresses of 127.8.x, an x for each test; with `TEST_PLACES=netns4,netns6` they are
in two network namespaces, those with an even number in one and those with an odd one in the other.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from tests.rds.transports.tcp.kernel_peer import KernelPeer
from tests.rds.transports.tcp.nodes import Node
from tests.rds.transports.tcp.processes import NodeProcess
from tests.rds.transports.tcp.relay import HIGHER_PORT, LOWER_PORT, Relay
from tests.support import carriers, places
from tests.support.carriers import carrier  # noqa: F401 - pytest's
from urds.rds.constants import RDS_TCP_PORT
from urds.rds.control.paths import SourcePortRule


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have tests run over each carrier and at each place that they are to run at."""
    carriers.pytest_generate_tests(metafunc)
    places.generate_tests(metafunc, "lab")


@pytest.fixture(autouse=True)
def over_tcp(carrier: str | None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811 - above
    """Leave shared memory out of tests that are about TCP and name no carrier."""
    if carrier is None:
        monkeypatch.setenv("URDS_SHARED_MEMORY", "0")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """At other places than loopback leave out what is not about the way between hosts.

    That is what has no hosts, and what patches the code, to show what happens without a rule: a
    rule is needed everywhere if it is needed at one place.
    """
    if places.is_loopback():
        return
    here = Path(__file__).parent
    dropped = [item for item in items if item.path.parent == here and not _is_placed(item)]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in dropped]


def _is_placed(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    needs = signature(item.function).parameters
    return "lab" in needs and "monkeypatch" not in needs


class Lab:
    """The hosts of one test."""

    def __init__(self, place: places.Place, ending: ExitStack) -> None:
        self._place = place
        self._ending = ending

    def address(self, host: int) -> str:
        """Return an address of this test's range."""
        return self._place.address(host)

    def node(self, host: int, **settings: Any) -> Node:
        """Start a node."""
        with self.inside(host):
            node = Node(self.address(host), **settings)
        self._ending.callback(node.close)
        return node

    def node_again(self, ended: Node, **settings: Any) -> Node:
        """Start a node at the address of one that has ended."""
        return self.node(self._place.host(ended.address), **settings)

    def inside(self, host: int) -> AbstractContextManager[None]:
        """Make the sockets that this thread makes meanwhile those of a host."""
        return self._place.inside(self.address(host))

    def kernel(self, host: int, *, node: Node, **settings: Any) -> KernelPeer:
        """Start a kernel peer of `node`."""
        peer = KernelPeer(self.address(host), node.address, inside=self._place.inside, **settings)
        self._ending.callback(peer.close)
        return peer

    def connect(self, host: int, target: str, rule: SourcePortRule | None = None) -> socket.socket:
        """Connect to a node by TCP from any host, from the first free port of a rule."""
        ports = iter([0]) if rule is None else rule.ports(range_low=32768, range_high=60999)
        with self.inside(host):
            for port in ports:
                source = (self.address(host), port)
                try:
                    return socket.create_connection((target, RDS_TCP_PORT), 2.0, source)
                except OSError as failure:
                    if failure.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                        raise
        raise AssertionError("no port of the rule is free")

    def listen(self, host: int, port: int) -> socket.socket:
        """Listen by TCP at a host."""
        address = self.address(host)
        family = places.family_of(address)
        with self.inside(host):
            return socket.create_server((address, port), family=family, backlog=64)

    def take_udp_port(self, host: int, port: int) -> socket.socket:
        """Take a port of UDP at a host."""
        address = self.address(host)
        with self.inside(host):
            taken = socket.socket(places.family_of(address), socket.SOCK_DGRAM)
        taken.bind((address, port))
        return taken

    def process(self, host: int, **settings: Any) -> NodeProcess:
        """Start a node in a process of its own."""
        process = NodeProcess(
            self.address(host),
            prefix=self._place.prefix(host),
            drain_s=0.0,
            linger_s=0.0,
            **settings,
        )
        self._ending.callback(process.close)
        return process

    def own_pair(self, order: str, **settings: Any) -> tuple[Node, Node]:
        """Start two nodes; `order` is the first one's address, "lower" or "higher"."""
        return self.node(1 if order == "lower" else 3, **settings), self.node(2, **settings)

    def relayed(self, **settings: Any) -> tuple[Node, Node, Relay]:
        """Start a lower and a higher node with a relay between them."""
        relay = Relay(self.address(1), self.address(2), inside=self._place.inside)
        self._ending.callback(relay.close)
        lower = self.node(1, tcp_port=LOWER_PORT, **settings)
        return lower, self.node(2, tcp_port=HIGHER_PORT, **settings), relay

    def pair(self, order: str, *, kernel: dict[str, Any] | None = None, **settings: Any) -> Pair:
        """Start a node and a kernel; `order` is the node's, "lower" or "higher"."""
        node = self.node(1 if order == "lower" else 3, **settings)
        return node, self.kernel(2, node=node, **(kernel or {}))


Pair = tuple[Node, KernelPeer]


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Give a test its addresses, and end what it started."""
    with places.taken(request) as place, ExitStack() as ending:
        yield Lab(place, ending)
