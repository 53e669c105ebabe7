"""The receive queue of a bound socket, and when its port counts as congested.

A value machine. The queue holds `(payload, source)` and, where more was requested or sent,
`(payload, source, extension, wall_ns, arrived_ns)`; a plain pair goes to the application unchanged.

Messages without payload fill no buffer, so no congestion map stops their sender. Once many messages
are queued, a run of them from one source is one item, `(b"", source, count)`: else a queue of them
would be over its hard bound, its path would pause, and with it the acknowledgements that the local
program may wait for.

Congestion. Linux sets the port's bit as soon as the queue exceeds the buffer; with fast senders
that costs more bytes of maps than of messages. Here the bit is checked at the end of a pass, and
set when the queue is over its buffer at two checks a millisecond apart, or over four times at once.
It is cleared when less than half of the buffer is queued. Messages are never rejected. Source:
linux v6.12 net/rds/recv.c (rds_recv_rcvbuf_delta); docs/differences.md.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from itertools import chain, islice
from typing import Protocol

from urds.rds.plane.contract import SocketAddress

LOOK_AGAIN_NS = 1_000_000
AT_ONCE_FACTOR = 4
MANY_MESSAGES = 4096
# Overhead of a queued message for the hard bound, and that of its extension and times. Measured
# with CPython 3.11: 122 bytes and 126.
OVERHEAD_BYTES = 128
DETAIL_BYTES = 128
SOURCES_MAX = 1024  # a peer may send from 65,534 ports: 228 bytes each

_Plain = tuple[bytes, SocketAddress]
_Run = tuple[bytes, SocketAddress, int]
_Detailed = tuple[bytes, SocketAddress, bytes, int, int]
Item = _Plain | _Run | _Detailed


class Sources(dict[int, SocketAddress]):
    """The address of each port of a peer, created on first use; cleared when full."""

    def __init__(self, source_of: Callable[[int], SocketAddress]) -> None:
        super().__init__()
        self._source_of = source_of

    def __missing__(self, port: int) -> SocketAddress:
        """Create the address of a port."""
        if len(self) >= SOURCES_MAX:
            self.clear()
        source = self[port] = self._source_of(port)
        return source


class Pausable(Protocol):
    """A path that stops receiving while a queue is far too long."""

    def resume(self) -> None:
        """Receive messages again."""


class Inbox:
    """Queue, account and congestion state; `ReceiveSide` adds notices and waiters."""

    def __init__(self, *, port: int, buffer_bytes: int = 0) -> None:
        self.port = port
        self.queue: deque[Item] = deque()
        self.receive_queued_bytes = 0
        self.buffer_bytes = buffer_bytes
        self.detailed = False  # timestamps or traces are requested
        self.congested = False
        self.clear_below_bytes = 0  # a take that leaves less clears the local bit
        self.over_since_ns: int | None = None
        self.pausing: set[Pausable] = set()  # paths that wait for this queue to shrink
        self.detailed_messages = 0  # those with five members

    def resize(self, buffer_bytes: int) -> None:
        """Set the size of the buffer."""
        self.buffer_bytes = buffer_bytes
        self.clear_below_bytes = max(1, buffer_bytes // 2) if self.congested else 0

    def put(self, item: _Plain | _Detailed) -> None:
        """Queue and count one message."""
        joined = None if item[0] else self.joined(item)
        self.detailed_messages += len(item) == 5
        self.receive_queued_bytes += len(item[0])
        if joined is None:
            self.queue.append(item)
        else:
            self.queue[-1] = joined

    def joined(self, item: Item) -> _Run | None:
        """Return the last item with one more, if an empty message is only counted there."""
        if len(item) == 5 or len(self.queue) <= MANY_MESSAGES:
            return None
        last = self.queue[-1]
        if last[0] or len(last) == 5 or last[1] != item[1]:
            return None
        return b"", item[1], message_count(last) + 1

    def pop(self) -> Item:
        """Take the next message, of a run the first, out of the queue and the account."""
        queue = self.queue
        item = queue[0]
        if len(item) == 3:
            left = item[2] - 1
            queue[0] = (b"", item[1], left) if left > 1 else item[:2]
            return item
        payload_bytes = len(item[0])
        if len(item) == 5:
            self.detailed_messages -= 1
        self.receive_queued_bytes -= payload_bytes
        return queue.popleft()  # one step with the store (`interrupts`)

    def messages(self, first: int = 0) -> chain[Item]:
        """Yield an item for each message, runs expanded; without the first items."""
        return chain.from_iterable(
            itertools.repeat(item, message_count(item)) for item in islice(self.queue, first, None)
        )

    def message_count(self) -> int:
        """Return how many messages are queued."""
        return sum(map(message_count, self.queue))

    def check_congestion(self, now_ns: int) -> bool | None:
        """Check the queue; return the new state of the local bit if it changed, else None."""
        queued = self.receive_queued_bytes
        if self.congested:
            if queued < self.buffer_bytes // 2 or not queued:
                self.congested = False
                self.clear_below_bytes = 0
                self.over_since_ns = None
                return False
            return None
        if queued <= self.buffer_bytes:
            self.over_since_ns = None
            return None
        if self.over_since_ns is None:
            self.over_since_ns = now_ns
        waited_ns = now_ns - self.over_since_ns
        if waited_ns < LOOK_AGAIN_NS and queued <= AT_ONCE_FACTOR * self.buffer_bytes:
            return None
        clear_below_bytes = max(1, self.buffer_bytes // 2)
        # One step (`interrupts`): a congested queue without this bound would never be cleared.
        self.congested, self.clear_below_bytes = True, clear_below_bytes
        return True

    def look_again_ns(self) -> int | None:
        """Return the time of the next due `check_congestion`."""
        if self.congested or self.over_since_ns is None:
            return None
        return self.over_since_ns + LOOK_AGAIN_NS

    def hard_bytes(self) -> int:
        """Return the bytes that count against the hard bound."""
        overhead = OVERHEAD_BYTES * len(self.queue) + DETAIL_BYTES * self.detailed_messages
        return self.receive_queued_bytes + overhead


def message_count(item: Item) -> int:
    """Return how many messages an item of a queue stands for."""
    return item[2] if len(item) == 3 else 1
