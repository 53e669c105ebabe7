"""Addresses and endings of the TCP tests: 127.8.x.y, an x for each test; all is closed after it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.tcp.kernel_peer import KernelPeer
from tests.tcp.nodes import Node

_RANGES_PER_WORKER = 32  # of 256, for up to eight workers of pytest-xdist
_counted = itertools.count()


def _range() -> int:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return worker % 8 * _RANGES_PER_WORKER + next(_counted) % _RANGES_PER_WORKER


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

    def pair(self, order: str, *, kernel: dict[str, Any] | None = None, **settings: Any) -> Pair:
        """Start a node and a kernel; `order` is the node's, "lower" or "higher"."""
        node = self.node(1 if order == "lower" else 3, **settings)
        return node, self.kernel(2, node=node, **(kernel or {}))


Pair = tuple[Node, KernelPeer]


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Give a test its addresses, and end what it started."""
    with ExitStack() as ending:
        yield Lab(_range(), ending)
