"""The completion queue, and what an engine has to tell once its pass is over.

Queue pairs push, the application polls. `arm` requests one event for the next completion that
qualifies; the race rule is: poll, arm, poll again. A completion that finds no room is lost, and the
first loss is an event: the owner then moves the queue pairs that use the queue to ERR.
Source: docs/reference/verbs-and-roce.md 12.

The engine calls no layer. What completes in a queue with a *sink*, and every event, stays in the
`Outbox` until the pass is over: no queue pair is at work while a sink or an owner is told, so both
may use any of them. Nothing here takes a lock; the adapter's lock guards it.
"""

import errno
from collections import deque
from collections.abc import Callable
from enum import Enum, auto

from urds.verbs.engine.numbers import AsyncEventType, WCStatus
from urds.verbs.engine.work import WC, Completed, EngineEvent, Event

Sink = Callable[[list[WC]], None]


class _Armed(Enum):
    NO = auto()
    SOLICITED = auto()
    ANY = auto()


class Outbox:
    """What one engine has to tell: queues whose sinks are due, and events, each oldest first.

    The adapter empties it at the end of each pass: `Adapter.finish_pass`.
    """

    __slots__ = ("events", "fed")

    def __init__(self) -> None:
        self.fed: list[CompletionQueue] = []
        self.events: list[Event] = []

    def feed_sinks(self) -> None:
        """Give each sink what has completed in its queue; one that raises is in no other's way."""
        while self.fed:
            self.fed.pop(0).drain()

    def take_events(self) -> list[Event]:
        """Return the events, and forget them."""
        events, self.events = self.events, []
        return events


class CompletionQueue:
    """Up to `capacity` completions, in the order in which they were pushed.

    With a `sink` nothing stays beyond the pass: the sink takes all that completed in it, in one
    list. Such a queue has room for whatever is posted, and is not armed.
    """

    def __init__(
        self, capacity: int, *, sink: Sink | None = None, outbox: Outbox | None = None
    ) -> None:
        """Make an empty queue. Raises OSError: EINVAL for a capacity below 1."""
        if capacity < 1:
            raise OSError(errno.EINVAL, f"completion queue of {capacity} entries, at least 1")
        self.capacity = capacity
        self.overrun = False
        self.lost_count = 0
        self._sink = sink
        self.outbox = Outbox() if outbox is None else outbox
        self._entries: deque[WC] = deque()
        self._armed = _Armed.NO

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, wc: WC) -> None:
        """Queue a completion; one that an event waits for makes it.

        A failure counts as solicited. Without room the completion is lost: see `overrun`.
        """
        entries = self._entries
        if self._sink is not None:
            if not entries:
                self.outbox.fed.append(self)
            entries.append(wc)
            return
        if len(entries) >= self.capacity:
            self._lose()
            return
        entries.append(wc)
        if self._armed is not _Armed.NO and (
            self._armed is _Armed.ANY or wc.solicited or wc.status is not WCStatus.SUCCESS
        ):
            self._armed = _Armed.NO
            self.outbox.events.append(Completed(self))

    def poll(self, count: int) -> list[WC]:
        """Take up to `count` completions, oldest first."""
        entries = self._entries
        return [entries.popleft() for _ in range(min(count, len(entries)))]

    def drain(self) -> None:
        """Give the sink what is queued, if anything is."""
        entries = self._entries
        if entries and self._sink is not None:
            completions = list(entries)
            entries.clear()
            self._sink(completions)

    def close(self) -> None:
        """End the public calls, which the reference has none of."""

    def discard(self, qpn: int) -> None:
        """Drop the completions of a queue pair that starts over or is gone.

        It may be connected anew, with requests that have the same wr_id. mlx5 does so at RESET and
        destroy, rxe leaves the completions. Source: rdma-core v44 providers/mlx5/verbs.c
        (mlx5_modify_qp, mlx5_destroy_qp), linux 02827b670851 drivers/infiniband/sw/rxe/rxe_qp.c
        (rxe_qp_reset).
        """
        kept = [wc for wc in self._entries if wc.qp_num != qpn]
        if len(kept) < len(self._entries):
            self._entries = deque(kept)

    def arm(self, solicited_only: bool = False) -> None:
        """Request one event for the next completion, or for the next solicited one.

        If both are requested before either came, any completion fires. Entries that are queued
        already fire nothing.
        """
        if not solicited_only:
            self._armed = _Armed.ANY
        elif self._armed is _Armed.NO:
            self._armed = _Armed.SOLICITED

    def resize(self, capacity: int) -> None:
        """Change the capacity. Raises OSError: EINVAL below 1 or below what is queued."""
        if capacity < max(1, len(self._entries)):
            raise OSError(
                errno.EINVAL,
                f"completion queue of {capacity} entries, at least 1 and the "
                f"{len(self._entries)} that are queued",
            )
        self.capacity = capacity

    def _lose(self) -> None:
        self.lost_count += 1
        if not self.overrun:
            self.overrun = True
            self.outbox.events.append(EngineEvent(AsyncEventType.CQ_ERR, self))
