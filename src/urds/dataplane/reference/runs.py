"""Neighbouring messages of one read, and what an interrupt between two of them leaves behind.

An exception of a signal handler may come between any two steps. A message is therefore put into its
inbox first and counted after, so that the queue's length tells whether the last one was counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from urds.dataplane.base import SocketAddress
from urds.dataplane.reference.inbox import Inbox, Item, message_count

if TYPE_CHECKING:
    from urds.dataplane.reference.incoming import Incoming


class Run:
    """Neighbouring messages from one socket to one socket; their accounts are settled at once."""

    __slots__ = (
        "_inbox",
        "_incoming",
        "_items",
        "_last_count",
        "append",
        "messages",
        "octets",
        "plain",
        "source",
    )

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._inbox: Inbox | None = None
        # Of its queue, when the run began or was settled: its length, and what its last item was.
        self._items = self._last_count = 0
        self.append: Callable[[Item], None] = _discard
        self.plain = False
        self.source: SocketAddress = ("", 0)
        self.messages = self.octets = 0

    def begin(self, target_port: int, source_port: int) -> None:
        """Settle the run before and look up both ends of the next."""
        self.settle()
        inbox = self._incoming.inboxes.get(target_port)
        self._inbox = inbox
        if inbox is None:  # a port without a socket: its sources cost nothing
            self.plain, self.append = True, _discard
            return
        self.source = self._incoming.sources[source_port]
        self.plain, self.append = not inbox.detailed, inbox.queue.append
        self._note_length(inbox)

    def append_rare(self, payload: bytes, high: int, low: int, now_ns: int) -> None:
        """Append a message without payload, or one with its extension and times."""
        inbox = self._inbox
        if inbox is None:
            return
        if self.plain and not high and not low:
            inbox.put((payload, self.source))
            return
        extension = (high << 64 | low).to_bytes(16, "big") if high or low else b""
        inbox.put((payload, self.source, extension, self._incoming.wall_ns(), now_ns))

    def extend(self, payloads: Sequence[bytes]) -> None:
        """Append messages of one length."""
        inbox = self._inbox
        if inbox is None:
            return
        if payloads[0]:
            inbox.queue.extend(zip(payloads, repeat(self.source)))
        else:
            inbox.put_empty(self.source, len(payloads))

    def settle(self) -> None:
        """Count the run for its mailbox, for the acknowledgement and for the counters."""
        messages, octets, inbox = self.messages, self.octets, self._inbox
        if not messages:
            return
        if inbox is not None:
            inbox.receive_queued_bytes += octets
            self._note_length(inbox)
        self.messages = self.octets = 0
        self._incoming.count(inbox, messages, octets)

    def count_last(self) -> int:
        """Count what was appended last and not counted; return how many."""
        inbox = self._inbox
        if inbox is None:
            return 0
        came = sum(1 for _ in inbox.messages(max(0, self._items - 1))) - self._last_count
        missed = came - self.messages
        if missed:
            self.messages += missed
            self.octets += missed * len(inbox.queue[-1][0])  # one, or several of one length
        return missed

    def _note_length(self, inbox: Inbox) -> None:
        """Note what is queued and counted: a message that comes may only count up the last item."""
        queue = inbox.queue
        self._items, self._last_count = len(queue), message_count(queue[-1]) if queue else 0


def _discard(_: object) -> None:
    """Take messages for a port without a socket; the run counts them."""
