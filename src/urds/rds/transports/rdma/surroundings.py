"""What surrounds the core of a path: the mailboxes and maps of the plane, and the node's regions.

The lock of the cores is held; `core.Around` describes the methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from urds.rds.plane.contract import Mailbox, Operation
    from urds.rds.plane.message_transport import ExternalPath


class Surroundings:
    """Where a core's arrivals go, and whether more may come."""

    def __init__(
        self,
        outside: ExternalPath,
        note_key_used: Callable[[int, int], None],
        *,
        answers_pings: bool,
    ) -> None:
        self.is_paused = False  # a mailbox is over its hard bound: receive no more for now
        self._outside = outside
        self._note_key_used = note_key_used
        self._answers_pings = answers_pings

    def deliver(self, source_port: int, target_port: int, payload: bytes, extension: bytes) -> None:
        """Put a whole message into its mailbox; one far over its buffer pauses the path."""
        if not self._outside.deliver(source_port, target_port, payload, extension):
            self.is_paused = True

    def take_map(self, data: bytes) -> None:
        """Put the peer's congestion map in force; monitors are told of cleared ports alone.

        Source: linux v6.12 net/rds/ib_recv.c (rds_ib_cong_recv); docs/reference/rds.md 3.7.
        """
        self._outside.take_peer_map(data)

    def map_bytes(self) -> bytes:
        """Return the local map as it is now."""
        return self._outside.local_map()

    def may_answer_ping(self, port: int) -> bool:
        """Tell whether a pong may be sent: this node answers pings, and the target has room."""
        return self._answers_pings and not self._outside.peer_is_congested(port)

    def key_used(self, target_port: int, key: int) -> None:
        """Note that the peer's operation has used a region of the socket that its message is for.

        Another socket's regions are not the peer's to use up. Source: linux v6.12 net/rds/rdma.c
        (rds_rdma_unuse).
        """
        self._note_key_used(target_port, key)

    def operation_ended(self, owner: Mailbox, operation: Operation) -> None:
        """Tell the sender how its operation ended."""
        owner.note_operation(operation)
