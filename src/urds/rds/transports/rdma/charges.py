"""What the messages of a path are charged for: accounts of their senders, and the path's limit.

The lock of the cores is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urds.rds.plane.contract import Mailbox
    from urds.rds.plane.message_transport import ExternalPath
    from urds.rds.transports.rdma.sending import Outgoing


class Charges:
    """Keeps what the plane has charged in step with what a core has queued."""

    def __init__(self, outside: ExternalPath, outgoing: Outgoing, *, messages_max: int) -> None:
        self._outside = outside
        self._outgoing = outgoing
        self._messages_max = messages_max
        self._is_full = False  # at the limit of messages

    def update_full(self) -> None:
        """Tell the plane if the path has come to its limit of messages, or below it again."""
        is_full = self._outgoing.message_count() >= self._messages_max
        if is_full is not self._is_full:
            self._is_full = is_full
            self._outside.set_full(is_full)

    def refund_freed(self) -> None:
        """Refund freed messages to their owners, and report room on the path."""
        freed = self._outgoing.freed
        while freed:
            owner, (messages, freed_bytes) = freed.popitem()
            self._outside.refund(owner, messages=messages, payload_bytes=freed_bytes)
        if self._is_full:
            self.update_full()

    def refund_unqueued(self, sender: Mailbox) -> None:
        """Refund what was charged and not queued: a signal's handler came between."""
        messages, payload_bytes = self._outside.held(sender)
        for known, known_bytes in (
            self._outgoing.held(sender),
            self._outgoing.freed.get(sender, (0, 0)),
        ):
            messages, payload_bytes = messages - known, payload_bytes - known_bytes
        if messages:
            self._outside.refund(sender, messages=messages, payload_bytes=payload_bytes)
