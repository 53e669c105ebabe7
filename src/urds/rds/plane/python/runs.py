"""Neighbouring messages of one read, put into their inbox and counted in one step.

A signal handler's exception may come between any two calls. So a run is collected apart, and its
changes are stored right before the one call that puts it into the queue (`interrupts`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from urds.rds.plane.contract import SocketAddress
from urds.rds.plane.python.inbox import Inbox, Item

if TYPE_CHECKING:
    from urds.rds.plane.python.incoming import Incoming


class Run:
    """Neighbouring messages from one socket to one socket."""

    __slots__ = ("_inbox", "_incoming", "_items", "append", "byte_count", "plain", "source")

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._inbox: Inbox | None = None
        self._items: list[Item] = []
        self.append: Callable[[Item], None] = self._items.append
        self.plain = False
        self.source: SocketAddress = ("", 0)
        self.byte_count = 0

    def begin(self, target_port: int, source_port: int, expected: int) -> None:
        """Finish the previous run and look up both ends of the next."""
        self.finish_pass(expected)
        inbox = self._incoming.inboxes.get(target_port)
        self._inbox = inbox
        if inbox is None:  # a port without a socket: its sources cost nothing
            self.plain = True
            return
        self.source = self._incoming.sources[source_port]
        self.plain = not inbox.detailed

    def put_rare(self, payload: bytes, high: int, low: int, now_ns: int, expected: int) -> None:
        """Put in an empty message, or one with its extension and times; no run is open.

        `expected` is the number that follows it.
        """
        inbox, incoming = self._inbox, self._incoming
        if inbox is not None and not payload and self.plain and not high and not low:
            self._put_empty(inbox, 1, expected)
            return
        payload_bytes = len(payload)
        extension = (high << 64 | low).to_bytes(16, "big") if high or low else b""
        item = (payload, self.source, extension, incoming.wall_ns(), now_ns)
        incoming.count(inbox, 1, payload_bytes)
        if inbox is None:
            incoming.sequence_expected = expected
            return
        inbox.unplain = inbox.special = True
        inbox.detailed_messages += 1
        inbox.receive_queued_bytes += payload_bytes
        incoming.sequence_expected = expected
        inbox.queue.append(item)  # one step with the stores

    def extend(self, payloads: Sequence[bytes], expected: int) -> None:
        """Append messages of one length; `expected` is the number that follows the last."""
        inbox = self._inbox
        if inbox is not None and not payloads[0]:
            self._put_empty(inbox, len(payloads), expected)
        else:
            self._items.extend(zip(payloads, itertools.repeat(self.source)))

    def _put_empty(self, inbox: Inbox, messages: int, expected: int) -> None:
        new, last = inbox.empty_items(self.source, messages)
        self._incoming.count(inbox, messages, 0)
        if last is not None or len(new[-1]) == 3:
            inbox.unplain = inbox.special = True
        self._incoming.sequence_expected = expected
        if last is None:
            inbox.queue.extend(new)  # one step with the stores
        else:
            inbox.queue[-1] = last

    def finish_pass(self, expected: int) -> None:
        """Put the run into its inbox, update accounts and numbers.

        `expected` is the number that follows its last message.
        """
        items, data, inbox, incoming = self._items, self.byte_count, self._inbox, self._incoming
        if not items:
            return
        fresh: list[Item] = []
        self._items = fresh
        self.append, self.byte_count = fresh.append, 0
        incoming.count(inbox, len(items), data)
        if inbox is None:
            incoming.sequence_expected = expected
            return
        inbox.receive_queued_bytes += data
        incoming.sequence_expected = expected
        inbox.queue.extend(items)  # one step with the two stores
