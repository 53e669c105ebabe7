"""Addresses and endings of the TCP tests: 127.8.x.y, an x for each test; all is closed after it."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.carriers import carrier, pytest_generate_tests  # noqa: F401 - pytest's
from tests.tcp.kernel_peer import KernelPeer
from tests.tcp.nodes import Node
from tests.tcp.processes import NodeProcess
from tests.tcp.relay import HIGHER_PORT, LOWER_PORT, Relay
from urds.constants import RDS_TCP_PORT

_LOCK_PORT = RDS_TCP_PORT - 1
_counted = itertools.count(os.getpid())


def _take_range() -> tuple[int, socket.socket]:
    """Return a range that no other test uses now, in this run or in another one, and its lock."""
    for number in (next(_counted) % 256 for _ in range(256)):
        lock = socket.socket()
        try:
            lock.bind((f"127.8.{number}.255", _LOCK_PORT))
        except OSError:
            lock.close()
        else:
            return number, lock
    raise AssertionError("256 tests at once")


class Lab:
    """The hosts of one test."""

    def __init__(self, number: int, ending: ExitStack) -> None:
        self._number = number
        self._ending = ending

    def address(self, last: int) -> str:
        """Return an address of this test's range."""
        return f"127.8.{self._number}.{last}"

    def node(self, last: int, **settings: Any) -> Node:
        """Start a node."""
        node = Node(self.address(last), **settings)
        self._ending.callback(node.close)
        return node

    def kernel(self, last: int, *, node: Node, **settings: Any) -> KernelPeer:
        """Start a kernel peer of `node`."""
        peer = KernelPeer(self.address(last), node.address, **settings)
        self._ending.callback(peer.close)
        return peer

    def process(self, last: int, **settings: Any) -> NodeProcess:
        """Start a node in a process of its own."""
        process = NodeProcess(self.address(last), drain_s=0.0, linger_s=0.0, **settings)
        self._ending.callback(process.close)
        return process

    def own_pair(self, order: str, **settings: Any) -> tuple[Node, Node]:
        """Start two nodes; `order` is the first one's address, "lower" or "higher"."""
        return self.node(1 if order == "lower" else 3, **settings), self.node(2, **settings)

    def relayed(self, **settings: Any) -> tuple[Node, Node, Relay]:
        """Start a lower and a higher node with a relay between them."""
        relay = Relay(self.address(1), self.address(2))
        self._ending.callback(relay.close)
        lower = self.node(1, tcp_port=LOWER_PORT, **settings)
        return lower, self.node(2, tcp_port=HIGHER_PORT, **settings), relay

    def pair(self, order: str, *, kernel: dict[str, Any] | None = None, **settings: Any) -> Pair:
        """Start a node and a kernel; `order` is the node's, "lower" or "higher"."""
        node = self.node(1 if order == "lower" else 3, **settings)
        return node, self.kernel(2, node=node, **(kernel or {}))


Pair = tuple[Node, KernelPeer]


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Give a test its addresses, and end what it started."""
    number, lock = _take_range()
    with lock, ExitStack() as ending:
        yield Lab(number, ending)
