"""Completion channels: where completion queues report that something came.

The descriptor is readable while an event waits: for select, poll, epoll and event loops. The
race rule of waiters: poll the queue, arm it, poll again, then wait.
Source: docs/reference/verbs-and-roce.md 12.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from urds.common.readiness import EventDescriptor
from urds.verbs.context import Context
from urds.verbs.errors import VerbsTimeoutError
from urds.verbs.resource import Resource

if TYPE_CHECKING:
    from urds.verbs.cq import CQ


class CompChannel(Resource):
    """A completion channel of any number of completion queues. Closing it closes them first."""

    close_rank: ClassVar[int] = 7

    def __init__(self, context: Context) -> None:
        """Make a channel. Raises VerbsClosedError."""
        self.context = context
        self._events: deque[CQ] = deque()  # at most one per armed queue, so bounded by them
        self._descriptor = EventDescriptor()
        self._is_attended = False
        self._listeners: list[Callable[[], None]] = []
        super().__init__(context.adapter.lock, context)

    def fileno(self) -> int:
        """Return a descriptor that is readable while an event waits. Raises VerbsError: EMFILE.

        From the first call on the device makes progress by itself whenever no thread waits: see
        `Adapter.add_external_waiter`.
        """
        with self._calling():
            descriptor = self._descriptor.fileno()
            if not self._is_attended:
                self._is_attended = True
                self.context.adapter.add_external_waiter()
            return descriptor

    def get_cq_event(self, cq: "CQ | None" = None, timeout_s: float | None = None) -> "CQ":
        """Wait for an event, of `cq` if given, and return its queue.

        `timeout_s` 0 does not wait, `None` waits for ever. Each event is to be acknowledged with
        `CQ.ack_events`. Raises VerbsTimeoutError; VerbsClosedError if the channel or `cq` is
        closed, or meanwhile.
        """

        def is_ready() -> bool:
            return self.closed or self._has_event(cq) or (cq is not None and cq.closed)

        found = self.context.wait_to_take(is_ready, lambda: self.take(cq), timeout_s)
        if found is None:
            raise VerbsTimeoutError(f"no completion event in {timeout_s} s")
        return found

    async def event(self, cq: "CQ | None" = None) -> "CQ":
        """Wait in asyncio for an event, of `cq` if given, and return its queue.

        Several tasks may wait. A cancelled wait takes no event. Raises VerbsClosedError.
        """
        from urds.verbs import aio

        return await aio.event(self, cq)

    # -- for queues and for aio; lock held

    def post(self, cq: "CQ") -> None:
        """Queue an event of a completion queue."""
        self._events.append(cq)
        self._descriptor.set(True)
        self.wake()

    def take(self, cq: "CQ | None" = None) -> "CQ | None":
        """Take the oldest event, of `cq` if given, and count it as not acknowledged.

        Raises VerbsClosedError: the channel or `cq` is closed.
        """
        self._demand_open()
        if cq is not None:
            cq._demand_open()
        if not self._has_event(cq):
            return None
        found = self._events[0] if cq is None else cq
        self._events.remove(found)
        self._descriptor.set(bool(self._events))
        found.unacked_events += 1
        return found

    def forget(self, cq: "CQ") -> None:
        """Drop the events of a queue that is closed."""
        self._events = deque(event for event in self._events if event is not cq)
        self._descriptor.set(bool(self._events))

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` with the lock held at each event and at the end."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Remove a listener."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def wake(self) -> None:
        """Call every listener."""
        for listener in list(self._listeners):
            listener()

    # -- inside

    def _has_event(self, cq: "CQ | None") -> bool:
        return bool(self._events) if cq is None else cq in self._events

    def _release(self, *, forced: bool) -> None:
        self._events.clear()
        self._descriptor.close()
        if self._is_attended:
            self._is_attended = False
            self.context.adapter.remove_external_waiter()

    def _announce_end(self) -> None:
        self.wake()
        self.context.adapter.notify()
