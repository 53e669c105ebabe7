"""The receive side of a mailbox: queue, notices, congestion judgement, waiters.

*When a local port's bit in the congestion map changes.* The bit is checked at the end of a pass or
a tick, not per message: with Linux's rule, at once, eight fast senders to a small buffer cost more
bytes of maps than of messages. Far over its buffer a mailbox pauses the paths that fill it, because
its peer ignores the map.

*Notices* go ahead of messages: those of operations first, then congestion. A closed mailbox
collects none. Source: linux v6.12 net/rds/recv.c (rds_notify_queue_get);
docs/reference/rds.md 3.5.

All methods: lock held, unless they say otherwise.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from urds.common.errors import os_error
from urds.rds.plane.contract import (
    CongestionNotice,
    MailboxSettings,
    Notice,
    Operation,
    OperationNotice,
    OperationNotices,
    SocketAddress,
)
from urds.rds.plane.python.inbox import MANY_MESSAGES, Inbox, Item, Pausable
from urds.rds.plane.python.waiting import Waiters

if TYPE_CHECKING:
    from urds.rds.plane.python.state import Box, Host, State

NOTICES_MAX = 65_536  # of one mailbox; a peer that never requests them costs no more


class ReceiveSide(Inbox):
    """What a mailbox receives; see `Inbox` for the queue."""

    def __init__(self, state: State, mailbox: Box, host: Host, port: int) -> None:
        super().__init__(port=port)
        self._state = state
        self.mailbox = mailbox
        self._host = host
        self.waiters = Waiters()
        self.notices: deque[OperationNotice] = deque()
        self.notice_groups = 0  # of a congestion notice
        self.map_news = False  # a map came since an ENOBUFS: a poll wakes once

    def configure(self, settings: MailboxSettings) -> None:
        """Put settings in force."""
        self.resize(settings.receive_bytes_max)
        self.detailed = settings.timestamps or bool(settings.traces)
        if not settings.monitor:
            self.notice_groups = 0

    # -- taking

    def take(self, notices_max: int, *, peek: bool) -> Item | Notice | None:
        """Take (or peek at) notices or a message; None without any. Raises OSError once closed."""
        state = self._state
        if self.mailbox.closed:
            raise os_error(state.closed_reason)
        if self.notices:
            count = min(max(1, notices_max), len(self.notices))
            return OperationNotices(self.notices.popleft() for _ in range(count))
        if self.notice_groups:
            notice, self.notice_groups = CongestionNotice(self.notice_groups), 0
            return notice
        if not self.queue:
            return None
        if peek:
            state.counters.recv_delivered += 1  # Linux counts peeks as well
            return self.queue[0]
        item = self.pop()
        if self.pausing or self.receive_queued_bytes < self.clear_below_bytes:
            state.touched.add(self.mailbox)
        return item

    def has_notice(self) -> bool:
        """Return whether a notice waits."""
        return self.notice_groups != 0 or bool(self.notices)

    def is_readable(self) -> bool:
        """Return what the descriptor shows. Without the lock a hint."""
        return bool(self.queue) or self.has_notice() or self.map_news or self.mailbox.closed

    # -- arrivals

    def deliver(self, payload: bytes, source: SocketAddress, extension: bytes) -> None:
        """Queue and count a message that came without a stream."""
        state = self._state
        if self.detailed or extension:
            self.put((payload, source, extension, state.wall_ns(), state.clock_ns()))
        else:
            self.put((payload, source))
        state.counters.recv_queued += 1
        state.counters.recv_bytes_added_to_sock += len(payload)
        self.note_arrival(1)

    def note_arrival(self, messages: int) -> None:
        """Notify receivers; the mailbox is checked at the end of the pass."""
        if self.waiters.queue:
            self.waiters.tell(messages, self._state.wait_queue)
        if self.mailbox.descriptor is not None or self.receive_queued_bytes > self.buffer_bytes:
            self._state.touched.add(self.mailbox)

    def note_groups(self, groups: int) -> None:
        """Add port groups to the congestion notice."""
        self.notice_groups |= groups
        if self.notice_groups:
            self.note_arrival(1)

    def note_operation(self, operation: Operation) -> None:
        """Keep the notice of an ended operation."""
        assert operation.status is not None, "an operation ends with a status"
        if self.mailbox.closed or not operation.wants_notice:
            return
        if len(self.notices) >= NOTICES_MAX:
            self._state.counters.recv_drop_notices_full += 1
            return
        self.notices.append(OperationNotice(operation.token, operation.status))
        self.note_arrival(1)

    # -- congestion, and paths that pause

    def check(self, now_ns: int) -> bool:
        """Check congestion at the end of a pass; return whether the local map changed."""
        state, closed = self._state, self.mailbox.closed
        if not closed:
            self.check_congestion(now_ns)
        if self.look_again_ns() is not None:
            state.looks.add(self.mailbox)
            state.thread.want()
        if closed or self._host.congested.test(self.port) == self.congested:
            return False
        # Also if an interrupt kept an earlier change from the map.
        state.show_congestion(self._host.address, self.port, on=self.congested)
        return True

    def is_over_hard_bound(self) -> bool:
        """Return whether the mailbox is so full that its peers' streams must wait."""
        if self.receive_queued_bytes <= self.buffer_bytes and len(self.queue) <= MANY_MESSAGES:
            return False
        return self.hard_bytes() > self._hard_bound()

    def _hard_bound(self) -> int:
        limits = self._state.limits
        return limits.receive_hard_factor * self.buffer_bytes + limits.receive_hard_bytes

    def pause(self, path: Pausable) -> None:
        """Have a path resumed when the mailbox is at half of its hard bound."""
        self.pausing.add(path)
        self._state.counters.recv_paused += 1

    def resume_paths(self) -> None:
        """Have paths resumed if the mailbox is at half of its hard bound or closed."""
        if self.pausing and (self.hard_bytes() <= self._hard_bound() // 2 or self.mailbox.closed):
            self._state.resuming |= self.pausing
            self.pausing.clear()

    # -- the end

    def shut(self) -> None:
        """Drop the queue, wake all receivers: the mailbox is closed."""
        state = self._state
        state.counters.recv_drop_closed += self.message_count()
        self.queue.clear()
        self.notices.clear()
        self.receive_queued_bytes = 0
        self.over_since_ns = None  # a second check would never end
        if self.congested:
            self.congested = False
            state.show_congestion(self._host.address, self.port, on=False)
        self.waiters.tell_all(state.wait_queue)
