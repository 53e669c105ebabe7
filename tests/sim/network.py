"""Who is reachable at which address, and how connections come to stand."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Protocol

from tests.sim.world import MS, Socket, World, stream_pair


class Node(Protocol):
    """What the network asks of a node."""

    alive: bool

    def handle_accepted(self, socket: Socket, source_port: int) -> None: ...


class Network:
    """One wire between all nodes; `down` refuses new connections."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.down = False
        self._nodes: dict[IPv4Address, Node] = {}

    def join(self, address: IPv4Address, node: Node) -> None:
        """Put a node at an address, in place of an earlier generation."""
        self._nodes[address] = node

    def connect(
        self,
        source: IPv4Address,
        target: IPv4Address,
        source_port: int,
        done: Callable[[Socket | None], None],
    ) -> None:
        """Connect; TCP answers before the target's program knows, as it does.

        The program accepts up to a millisecond later; either end may learn first.
        """
        world = self.world

        def arrive() -> None:
            node = self._nodes.get(target)
            here = self._nodes.get(source)
            if node is None or here is None or not node.alive or self.down:
                world.after(world.some(MS), lambda: done(None))
                return
            ours, theirs = stream_pair(world)
            world.after(world.some(MS), lambda: done(ours))

            def accept() -> None:
                if node.alive:
                    node.handle_accepted(theirs, source_port)
                else:
                    theirs.reset()

            world.after(world.some(MS), accept)

        world.after(world.some(MS), arrive)
