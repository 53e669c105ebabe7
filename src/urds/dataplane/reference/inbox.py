"""The receive queue of a bound socket, and when its port counts as congested.

A value machine. The queue holds `(payload, source)` and, where more was asked for or sent,
`(payload, source, extension, wall_ns, arrived_ns)`; a plain pair goes to the application as it is.

Congestion. Linux sets the port's bit as soon as the queue exceeds the buffer; with fast senders
that costs more octets of maps than of messages. Here the bit is judged at the end of a pass, and
set when the queue is over its buffer at two looks a millisecond apart, or over four times at once.
It is cleared when less than half of the buffer is queued. Messages are never refused.
Source: linux v6.12 net/rds/recv.c (rds_recv_rcvbuf_delta); docs/differences.md.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from urds.dataplane.base import SocketAddress

LOOK_AGAIN_NS = 1_000_000
AT_ONCE_FACTOR = 4
MANY_MESSAGES = 4096
OVERHEAD_BYTES = 96  # what a queued message costs beside its payload, for the hard bound

Item = tuple[bytes, SocketAddress] | tuple[bytes, SocketAddress, bytes, int, int]


class Pausable(Protocol):
    """A path that takes in nothing more while a queue is far too long."""

    def resume(self) -> None:
        """Take in messages again."""


class Inbox:
    """Queue, account and congestion state; the shell adds waiting and the descriptor."""

    def __init__(self, *, port: int, buffer_bytes: int) -> None:
        self.port = port
        self.queue: deque[Item] = deque()
        self.receive_queued_bytes = 0
        self.buffer_bytes = buffer_bytes
        self.detailed = False  # timestamps or traces are wanted
        self.congested = False
        self.clear_below_bytes = 0  # a take that leaves less has our bit cleared
        self.over_since_ns: int | None = None
        self.pausing: set[Pausable] = set()  # paths that wait for this queue to shrink
        self.special = False  # the next take has more to do than to take

    def judge_congestion(self, now_ns: int) -> bool | None:
        """Look at the queue; return the new state of our bit if it changed, else None."""
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
        self.congested = True
        self.clear_below_bytes = max(1, self.buffer_bytes // 2)
        return True

    def look_again_ns(self) -> int | None:
        """Return when `judge_congestion` wants to be asked again."""
        if self.congested or self.over_since_ns is None:
            return None
        return self.over_since_ns + LOOK_AGAIN_NS

    def may_be_too_full(self) -> bool:
        """Tell cheaply whether the hard bound is worth a look."""
        return self.receive_queued_bytes > self.buffer_bytes or len(self.queue) > MANY_MESSAGES

    def hard_bytes(self) -> int:
        """Return what the queue weighs against the hard bound."""
        return self.receive_queued_bytes + OVERHEAD_BYTES * len(self.queue)
