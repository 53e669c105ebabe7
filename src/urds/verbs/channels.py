"""Channels of events: the base of all, and the one where completion queues report.

The descriptor of a channel is readable while an event waits: for select, poll, epoll and event
loops. The race rule of who waits for completions: poll the queue, arm it, poll again, then wait.
Source: docs/reference/verbs-and-roce.md 12.

In asyncio an event wakes its waiters through the event loop, from whichever thread made it; no
descriptor is needed. Users of trio wait for `fileno()` to become readable. Either way the loop
sleeps outside of the device, which `Adapter.add_external_waiter` counts. In virtual time a wait
runs the simulated device until the event is there, yielding to other tasks between the steps.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar

from urds.common.readiness import EventDescriptor
from urds.verbs.context import Context
from urds.verbs.errors import VerbsTimeoutError
from urds.verbs.resource import Resource

if TYPE_CHECKING:
    import asyncio

    from urds.verbs.cq import CQ

_Event = TypeVar("_Event")
_IDLE_S: Final = 0.001


class EventChannel(Resource, Generic[_Event]):
    """Events in the order in which they came, a descriptor for them, and who waits in asyncio."""

    def __init__(self, context: Context) -> None:
        """Make a channel. Raises VerbsClosedError."""
        self.context = context
        self._events: deque[_Event] = deque()
        self._descriptor = EventDescriptor()
        self._listeners: list[Callable[[], None]] = []
        super().__init__(context.adapter.lock, context)

    def fileno(self) -> int:
        """Return a descriptor that is readable while an event waits. Raises VerbsError: EMFILE."""
        with self._calling():
            return self._descriptor.fileno()

    # -- for those who make events, and for derived classes; lock held

    def post(self, event: _Event) -> None:
        """Queue an event."""
        self._events.append(event)
        self._descriptor.set(True)
        self.wake()

    def wake(self) -> None:
        """Wake every waiting task."""
        for listener in list(self._listeners):
            listener()

    def _remove(self, event: _Event) -> None:
        self._events.remove(event)
        self._descriptor.set(bool(self._events))

    def _keep(self, is_kept: Callable[[_Event], bool]) -> None:
        """Drop the events that are not kept."""
        self._events = deque(event for event in self._events if is_kept(event))
        self._descriptor.set(bool(self._events))

    async def _wait_to_take(self, take: Callable[[], _Event | None]) -> _Event:
        """Wait in asyncio until `take`, called with the lock held, gives an event.

        Raises VerbsClosedError: the channel is closed, or meanwhile; and what `take` raises.
        """
        import asyncio  # slow to load, and many never need it

        loop, adapter = asyncio.get_running_loop(), self.context.adapter
        while True:
            woken: asyncio.Future[None] = loop.create_future()
            listener = _waker(woken)
            with self._calling():
                if (found := take()) is not None:
                    return found
                self._listeners.append(listener)
                adapter.add_external_waiter()
            try:
                if adapter.has_own_time:
                    await woken
                else:
                    await self._run_until(woken)
            finally:
                with self._lock:
                    adapter.remove_external_waiter()
                    self._listeners.remove(listener)

    async def _run_until(self, woken: "asyncio.Future[None]") -> None:
        """Run a simulated device step by step until `woken` is done."""
        from asyncio import sleep

        adapter = self.context.adapter
        while not woken.done():
            before_ns = adapter.now_ns()
            adapter.progress()
            # Without a next event, only another task can cause one.
            await sleep(0 if adapter.now_ns() != before_ns else _IDLE_S)

    def _release(self, *, forced: bool) -> None:
        self._events.clear()
        self._descriptor.close()

    def _announce_end(self) -> None:
        self.wake()
        self.context.adapter.notify()


def _waker(woken: "asyncio.Future[None]") -> Callable[[], None]:
    """Return a call, for any thread, that completes `woken` in its event loop."""
    loop = woken.get_loop()

    def complete() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(complete)
        except RuntimeError:  # the loop is closed
            return

    return wake


class CompChannel(EventChannel["CQ"]):
    """A completion channel of any number of completion queues. Closing it closes them first.

    At most one event per armed queue waits, so the queues bound them.
    """

    close_rank: ClassVar[int] = 7
    _is_attended = False

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

        found = self.context.wait_to_take(is_ready, lambda: self._take(cq), timeout_s)
        if found is None:
            raise VerbsTimeoutError(f"no completion event in {timeout_s} s")
        return found

    async def event(self, cq: "CQ | None" = None) -> "CQ":
        """Wait in asyncio for an event, of `cq` if given, and return its queue.

        Several tasks may wait. A cancelled wait takes no event. Raises VerbsClosedError.
        """
        return await self._wait_to_take(lambda: self._take(cq))

    def forget(self, cq: "CQ") -> None:
        """Drop the events of a queue that is closed. Lock held."""
        self._keep(lambda event: event is not cq)

    # -- inside

    def _take(self, cq: "CQ | None") -> "CQ | None":
        """Take the oldest event, of `cq` if given, and count it as not acknowledged.

        Raises VerbsClosedError: the channel or `cq` is closed.
        """
        self._demand_open()
        if cq is not None:
            cq._demand_open()
        if not self._has_event(cq):
            return None
        found = self._events[0] if cq is None else cq
        self._remove(found)
        found.unacked_events += 1
        return found

    def _has_event(self, cq: "CQ | None") -> bool:
        return bool(self._events) if cq is None else cq in self._events

    def _release(self, *, forced: bool) -> None:
        super()._release(forced=forced)
        if self._is_attended:
            self._is_attended = False
            self.context.adapter.remove_external_waiter()
