"""Completion queues of an application, the channels where they report, and the base of channels.

The descriptor of a channel is readable while an event waits: for select, poll, epoll and event
loops. The rule for a wait without a race: poll the queue, arm it, poll again, then wait.
Source: docs/reference/verbs-and-roce.md 12, 18.

Where threads wait in the engine, the events of a `CompChannel` are queued there; its descriptor and
its tasks mirror that queue, from when they are first wanted on (ADR 53).

In asyncio an event wakes its waiters through the event loop, from whichever thread made it; no
descriptor is needed. Users of trio wait for `fileno()` to become readable. Either way the loop
sleeps outside of the device, which `Adapter.add_external_waiter` counts. In virtual time a wait
runs the simulated device until the event is there, yielding to other tasks between the steps.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from urds.verbs.context import Context, weak_call
from urds.verbs.engine.numbers import QPState
from urds.verbs.engine.work import WC
from urds.verbs.errors import (
    VerbsArgumentError,
    VerbsError,
    VerbsTimeoutError,
    demand_integer,
    demand_kind,
    demand_waiting_time,
    verbs_error,
)
from urds.verbs.resource import EventSource, Resource

if TYPE_CHECKING:
    import asyncio

_Event = TypeVar("_Event")
_Taken = TypeVar("_Taken")
_IDLE_S: Final = 0.001
_NS: Final = 1_000_000_000


class EventChannel(EventSource[_Event]):
    """Events of one device for tasks that wait in asyncio."""

    def __init__(self, context: Context) -> None:
        """Make a channel. Raises VerbsClosedError; TypeError: no context."""
        demand_kind(context, Context, f"{type(self).__name__}(): context")
        self.context = context
        self._listeners: list[Callable[[], None]] = []
        super().__init__(context.adapter.lock, context)

    # -- for those who make events, and for derived classes; lock held

    def post(self, event: _Event) -> None:
        """Queue an event."""
        self._add(event)
        self.wake()

    def wake(self) -> None:
        """Wake every waiting task."""
        for listener in list(self._listeners):
            listener()

    async def _wait_to_take(self, take: Callable[[], _Taken | None]) -> _Taken:
        """Wait in asyncio until `take`, called with the lock held at each event, gives something.

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
    _placed: ClassVar[tuple[str, ...]] = ("get_cq_event",)
    _is_attended = False

    def __init__(self, context: Context) -> None:
        """Make a channel. Raises VerbsClosedError; TypeError: no context."""
        self._native: Any = None  # the engine's, where threads wait there (ADR 53)
        super().__init__(context)
        with self._calling():
            self._native = context.adapter.completion_channel(weak_call(self, CompChannel._show))
            if self._native is not None:
                self._place(CompChannel, self._native)

    def fileno(self) -> int:
        """Return a descriptor that is readable while an event waits. Raises VerbsError: EMFILE.

        From the first call on the device makes progress by itself whenever no thread waits: see
        `Adapter.add_external_waiter`.
        """
        with self._calling():
            descriptor = self._descriptor.fileno()
            self._have_told()
            if not self._is_attended:
                self._is_attended = True
                self.context.adapter.add_external_waiter()
            return descriptor

    def get_cq_event(self, cq: "CQ | None" = None, timeout_s: float | None = None) -> "CQ":
        """Wait for an event, of `cq` if given, and return its queue.

        `timeout_s` 0 does not wait, `None` waits for ever. Each event is to be acknowledged with
        `CQ.ack_events`. Raises VerbsTimeoutError; VerbsClosedError if the channel or `cq` is
        closed, or meanwhile; TypeError and VerbsArgumentError for what is no time.
        """
        timeout_s = demand_waiting_time(timeout_s)
        if cq is not None:
            demand_kind(cq, CQ, "get_cq_event(): cq")
        if self._native is not None:
            native: CQ = self._native.public_get_cq_event(cq, timeout_s)
            return native

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
        with self._calling():
            self._have_told()
        return await self._wait_to_take(lambda: self._take(cq))

    def post(self, event: "CQ") -> None:
        """Queue an event; one that the engine tells is queued there. Lock held."""
        if self._native is None:
            super().post(event)
        else:
            self._show()
            self.wake()

    def forget(self, cq: "CQ") -> None:
        """Drop the events of a queue that is closed. Lock held."""
        if self._native is None:
            self._keep(lambda event: event is not cq)
        else:
            self._show()  # closed in the engine before

    # -- inside

    def _take(self, cq: "CQ | None") -> "CQ | None":
        """Take the oldest event, of `cq` if given, and count it as not acknowledged.

        Raises VerbsClosedError: the channel or `cq` is closed.
        """
        self._demand_open()
        if cq is not None:
            cq._demand_open()
        if self._native is not None:
            taken: CQ | None = self._native.take(cq)
            return taken
        if not self._has_event(cq):
            return None
        found = self._events[0] if cq is None else cq
        self._events.remove(found)
        self._descriptor.set(bool(self._events))
        found._unacked_events += 1
        return found

    def _have_told(self) -> None:
        """Have the engine tell each event, for threads that sleep outside of it. Lock held."""
        if self._native is not None:
            self._native.tell()
            self._show()

    def _show(self) -> None:
        """Make the descriptor show whether the engine has an event."""
        with self._lock:
            if self._is_open:
                self._descriptor.set(self._native.has_event)

    def _has_event(self, cq: "CQ | None") -> bool:
        return bool(self._events) if cq is None else cq in self._events

    def _release(self, *, forced: bool) -> None:
        super()._release(forced=forced)
        if self._native is not None:
            self._native.close()
        if self._is_attended:
            self._is_attended = False
            self.context.adapter.remove_external_waiter()


class CQ(Resource):
    """A completion queue of `cqe` entries. Closing it closes the queue pairs that use it first.

    cq_context: any object of the caller's.  channel: where events go.  vector: 0.
    A completion that finds the queue full is lost: CQ_ERR comes as an asynchronous event, and
    every queue pair of this queue goes to ERR, since its outcome is unknown.
    """

    close_rank: ClassVar[int] = 5
    _placed: ClassVar[tuple[str, ...]] = ("poll", "req_notify", "ack_events")

    def __init__(
        self,
        context: Context,
        cqe: int,
        cq_context: Any = None,
        channel: CompChannel | None = None,
        vector: int = 0,
    ) -> None:
        """Make a queue.

        Raises VerbsArgumentError: `cqe` beyond `max_cqe`, another vector; TypeError: no context, no
        channel, no number.
        """
        demand_kind(context, Context, "CQ(): context")
        demand_integer(vector, "CQ(): vector")
        self.context = context
        self.cq_context = cq_context
        self._channel: CompChannel | None = None
        self._unacked_events = 0
        self._demand_capacity(cqe)
        if not 0 <= vector < context.num_comp_vectors:
            raise VerbsArgumentError(f"vector {vector}, from 0 to {context.num_comp_vectors - 1}")
        self._demand_own(channel)
        self.engine = context.adapter.completion_queue(cqe)
        self._native: Any = self.engine if context.adapter.has_native_waits else None
        parents = [context] if channel is None else [context, channel]
        super().__init__(context.adapter.lock, *parents)
        with self._lock:
            context.adopt(self.engine, self)
            if context.adapter.has_public_calls:
                self._place(CQ, self.engine)
            self.channel = channel

    @property
    def channel(self) -> CompChannel | None:
        """The channel where events go; may be set. Raises VerbsArgumentError: another device's."""
        return self._channel

    @channel.setter
    def channel(self, channel: CompChannel | None) -> None:
        self._demand_own(channel)
        self._channel = channel
        if self._native is not None:
            self._native.join(None if channel is None else channel._native, self)

    def _demand_own(self, channel: CompChannel | None) -> None:
        if channel is None:
            return
        demand_kind(channel, CompChannel, "CQ(): channel")
        if channel.context is not self.context:
            raise VerbsArgumentError("the completion channel is another device's")

    @property
    def unacked_events(self) -> int:
        """Return how many events were taken from the channel and not acknowledged."""
        if self._native is None:
            return self._unacked_events
        return int(self._native.unacked_events)

    @property
    def cqe(self) -> int:
        """Return how many completions have room."""
        return self.engine.capacity

    def __len__(self) -> int:
        """Return how many completions wait to be polled."""
        return len(self.engine)

    def __bool__(self) -> bool:
        """Return true: a queue is there even while nothing waits in it."""
        return True

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """Take up to `num_entries` completions, oldest first; return how many, and them.

        Never waits; where none is queued the device makes progress once. From any thread.
        """
        demand_integer(num_entries, "poll(): num_entries")
        with self._lock:
            self._demand_open()
            completions = self.engine.poll(num_entries)
        if not completions:
            self.context.adapter.progress()
            with self._lock:
                completions = self.engine.poll(num_entries)
        return len(completions), completions

    def wait_for(self, count: int = 1, timeout_s: float | None = None) -> list[WC]:
        """Wait until `count` completions are queued and take them; blocks, without the channel.

        `timeout_s` `None` waits for ever. Raises VerbsTimeoutError, and takes nothing then;
        VerbsArgumentError: the queue has no room for so many, or no time; TypeError;
        VerbsClosedError.
        """
        demand_integer(count, "wait_for(): count")
        timeout_s = demand_waiting_time(timeout_s)
        if not 1 <= count <= self.cqe:
            raise VerbsArgumentError(f"{count} completions of a queue for {self.cqe}")

        if self._native is not None:
            found = self._wait_outside(count, timeout_s)
        else:
            found = self.context.wait_to_take(
                lambda: self.closed or len(self.engine) >= count,
                lambda: self._take(count),
                timeout_s,
            )
        if found is None:
            raise VerbsTimeoutError(f"{len(self.engine)} of {count} completions in {timeout_s} s")
        return found

    async def wait(self, count: int = 1) -> list[WC]:
        """Wait in asyncio until something is queued; take up to `count` completions.

        Uses the queue's channel, and makes one if there is none. A cancelled wait takes nothing.
        Raises VerbsClosedError.
        """
        with self._calling():
            if self.channel is None:
                self.channel = CompChannel(self.context)
                self.channel._add_child(self)
                self._parents = (*self._parents, self.channel)
        if found := self.poll(count)[1]:
            return found
        channel = self.channel

        def take() -> list[WC] | None:
            # Another task may have taken the event that this one asked for.
            if channel._take(self) is not None:
                self.ack_events(1)
            found = self.engine.poll(count)
            if not found:
                self.engine.arm(False)
                found = self.engine.poll(count)
            return found or None

        with channel._calling():
            channel._have_told()
        return await channel._wait_to_take(take)

    def req_notify(self, solicited_only: bool = False) -> None:
        """Request one event for the next completion, or for the next solicited or failed one.

        What is queued already causes no event: poll again after this call.
        """
        with self._calling():
            self.engine.arm(solicited_only)

    def ack_events(self, num_events: int) -> None:
        """Acknowledge events taken from the channel. Closing acknowledges the rest.

        Raises VerbsArgumentError: more than `unacked_events`.
        """
        demand_integer(num_events, "ack_events(): num_events")
        with self._calling():
            if self._native is not None:
                self._native.public_ack_events(num_events)
                return
            if not 0 <= num_events <= self._unacked_events:
                raise VerbsArgumentError(
                    f"{num_events} events to acknowledge, {self._unacked_events} are open"
                )
            self._unacked_events -= num_events

    def resize(self, cqe: int) -> None:
        """Change the number of entries; none is lost.

        Raises VerbsArgumentError: fewer than are queued, or more than `max_cqe`.
        """
        self._demand_capacity(cqe)
        with self._calling():
            self.engine.resize(cqe)

    # -- for the context; lock held

    def post_event(self) -> None:
        """Tell the channel that an armed queue has got what it was armed for."""
        if self.channel is not None and not self.channel.closed:
            self.channel.post(self)

    def break_queue_pairs(self) -> None:
        """Take every queue pair of this queue to ERR: a completion was lost."""
        adapter = self.context.adapter
        for child in self._children():
            engine = getattr(child, "engine", None)
            if engine is not None and engine.state is not QPState.RESET:
                engine.enter_error()
                adapter.progress_qp(engine)

    # -- inside

    def _take(self, count: int) -> list[WC]:
        self._demand_open()
        return self.engine.poll(count)

    def _wait_outside(self, count: int, timeout_s: float | None) -> list[WC] | None:
        """Wait in the engine; `None` when the time is over."""
        until_ns = None
        if timeout_s is not None:
            until_ns = self.context.adapter.now_ns() + max(0, int(timeout_s * _NS))
        self._demand_open()
        try:
            found: list[WC] | None = self._native.wait_for(count, until_ns)
        except OSError as error:
            raise error if isinstance(error, VerbsError) else verbs_error(error) from error
        return found

    def _demand_capacity(self, cqe: int) -> None:
        demand_integer(cqe, "CQ(): cqe")
        cqe_max = self.context.attributes.max_cqe
        if not 1 <= cqe <= cqe_max:
            raise VerbsArgumentError(f"completion queue of {cqe} entries, from 1 to {cqe_max}")

    def _release(self, *, forced: bool) -> None:
        if self.context.adapter.has_public_calls:
            self.engine.close()
        if self.channel is not None:
            self.channel.forget(self)
        self.context.forget(self.engine, self)

    def _announce_end(self) -> None:
        if self.channel is not None:
            self.channel.wake()
        self.context.adapter.notify()
