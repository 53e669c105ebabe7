"""Neighbouring messages of one read, and what an interrupt between two of them leaves behind.

An exception of a signal handler may come between any two steps. A message is therefore put into its
inbox first and counted after, so that the queue's length tells whether the last one was counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from urds.dataplane.base import SocketAddress
from urds.dataplane.reference.inbox import Inbox, Item

if TYPE_CHECKING:
    from urds.dataplane.reference.incoming import Incoming


class Run:
    """Neighbouring messages from one socket to one socket; their accounts are settled at once."""

    __slots__ = (
        "_counted",
        "_inbox",
        "_incoming",
        "append",
        "extend",
        "messages",
        "octets",
        "plain",
        "source",
    )

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._inbox: Inbox | None = None
        self._counted = 0  # length of its queue when the run began
        self.append: Callable[[Item], None] = _discard
        self.extend: Callable[[Iterable[Item]], None] = _discard
        self.plain = False
        self.source: SocketAddress = ("", 0)
        self.messages = self.octets = 0

    def begin(self, target_port: int, source_port: int) -> None:
        """Settle the run before and look up both ends of the next."""
        self.settle()
        inbox = self._incoming.inboxes.get(target_port)
        self._inbox = inbox
        if inbox is None:  # a port without a socket: its sources cost nothing
            self._counted, self.plain = 0, True
            self.append = self.extend = _discard
            return
        self.source = self._incoming.sources[source_port]
        self._counted, self.plain = len(inbox.queue), not inbox.detailed
        self.append, self.extend = inbox.queue.append, inbox.queue.extend

    def append_detailed(self, payload: bytes, high: int, low: int, now_ns: int) -> None:
        """Append a message with its extension and times."""
        extension = (high << 64 | low).to_bytes(16, "big") if high or low else b""
        self.append((payload, self.source, extension, self._incoming.wall_ns(), now_ns))

    def settle(self) -> None:
        """Count the run for its mailbox, for the acknowledgement and for the counters."""
        messages, octets, inbox = self.messages, self.octets, self._inbox
        if not messages:
            return
        if inbox is not None:
            inbox.receive_queued_bytes += octets
        self._counted += messages
        self.messages = self.octets = 0
        self._incoming.count(inbox, messages, octets)

    def count_last(self) -> int:
        """Count what was appended last and not counted; return how many."""
        inbox = self._inbox
        missed = 0 if inbox is None else len(inbox.queue) - self._counted - self.messages
        if inbox is not None and missed:
            self.messages += missed
            self.octets += missed * len(inbox.queue[-1][0])  # one, or several of one length
        return missed


def _discard(_: object) -> None:
    """Take messages for a port without a socket; the run counts them."""
