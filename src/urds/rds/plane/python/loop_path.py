"""A path between two addresses of this process: the sender delivers, nothing is in flight.

It has no header, numbers or checks. A message in the inbox is acknowledged, so the send account
never holds it. Congestion is the target's own map. A ping is answered at once. Source: linux v6.12
net/rds/loop.c; urds alone treats every address of 127/8 as a host of its own with congestion and a
bounded queue (docs/differences.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from urds.common.types import IPAddress
from urds.rds.plane import loop_path
from urds.rds.plane.contract import Buffer, SocketAddress
from urds.rds.plane.python.host import socket_address

if TYPE_CHECKING:
    from urds.rds.plane.python.mailbox import Mailbox
    from urds.rds.plane.python.plane import Plane


class LoopPath(loop_path.LoopPath):
    """A path that delivers within the plane."""

    def __init__(self, plane: Plane, *, local: IPAddress, peer: IPAddress) -> None:
        super().__init__(local=local, peer=peer)
        self._plane = plane

    def deliver(
        self, sender: Mailbox, target_port: int, payload: Buffer, extension: bytes
    ) -> Mailbox | None:
        """Queue a message in its target; return the mailbox that got it. Plane's lock held."""
        plane = self._plane
        counters = plane.counters
        counters.send_queued += 1
        source = socket_address(self.local, sender.port)
        if not target_port:
            counters.recv_ping += 1
            counters.send_pong += 1
            return self._put(sender, b"", socket_address(self.peer, 0), b"")
        host = plane.hosts.get(self.peer)
        target = host.inboxes.get(target_port) if host else None
        if target is None:
            counters.recv_drop_no_sock += 1
            return None
        return self._put(target, bytes(payload), source, extension)

    def _put(
        self, target: Mailbox, payload: bytes, source: SocketAddress, extension: bytes
    ) -> Mailbox:
        plane = self._plane
        if target.detailed or extension:
            target.put((payload, source, extension, plane.wall_ns(), plane.clock_ns()))
        else:
            target.put((payload, source))
        target.receive_queued_bytes += len(payload)
        plane.counters.recv_queued += 1
        plane.counters.recv_bytes_added_to_sock += len(payload)
        plane.note_arrival(target, 1)
        return target
