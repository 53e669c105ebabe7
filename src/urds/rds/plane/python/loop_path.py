"""A path between two addresses of this process: the sender delivers, nothing is in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from urds.common.types import IPAddress
from urds.rds.addresses import socket_address
from urds.rds.plane import loop_path
from urds.rds.plane.contract import Buffer

if TYPE_CHECKING:
    from urds.rds.plane.python.receive_side import ReceiveSide
    from urds.rds.plane.python.state import State


class LoopPath(loop_path.LoopPath):
    """It has no header, numbers or checks.

    A message in the inbox is acknowledged, so the send account never holds it. Congestion is the
    target's own map. A ping is answered at once. Source: linux v6.12 net/rds/loop.c; urds alone
    treats every address of 127/8 as a host of its own with congestion and a bounded queue
    (docs/differences.md).
    """

    def __init__(self, state: State, *, local: IPAddress, peer: IPAddress) -> None:
        super().__init__(local=local, peer=peer)
        self._state = state

    def deliver(
        self, sender: ReceiveSide, target_port: int, payload: Buffer, extension: bytes
    ) -> None:
        """Queue a message in its target; `sender` is the sending mailbox's own. Lock held."""
        counters = self._state.counters
        counters.send_queued += 1
        if not target_port:
            counters.recv_ping += 1
            counters.send_pong += 1
            sender.deliver(b"", socket_address(self.peer, 0), b"")
            return
        host = self._state.hosts.get(self.peer)
        target = host.mailboxes.get(target_port) if host else None
        if target is None:
            counters.recv_drop_no_sock += 1
            return
        source = socket_address(self.local, sender.port)
        target.receives.deliver(bytes(payload), source, extension)
