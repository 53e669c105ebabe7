"""Completion queues of an application. Source: docs/reference/verbs-and-roce.md 12, 18."""

from typing import Any, ClassVar

from urds.verbs.channels import CompChannel
from urds.verbs.context import Context, weak_call
from urds.verbs.engine.completions import CompletionQueue
from urds.verbs.engine.numbers import AsyncEventType, QPState
from urds.verbs.engine.work import WC
from urds.verbs.errors import VerbsArgumentError, VerbsTimeoutError
from urds.verbs.resource import Resource


class CQ(Resource):
    """A completion queue of `cqe` entries. Closing it closes the queue pairs that use it first.

    cq_context: any object of the caller's.  channel: where events go.  vector: 0.
    A completion that finds the queue full is lost: CQ_ERR comes as an asynchronous event, and
    every queue pair of this queue goes to ERR, since its outcome is unknown.
    """

    close_rank: ClassVar[int] = 5

    def __init__(
        self,
        context: Context,
        cqe: int,
        cq_context: Any = None,
        channel: CompChannel | None = None,
        vector: int = 0,
    ) -> None:
        """Make a queue. Raises VerbsArgumentError: `cqe` beyond `max_cqe`, another vector."""
        self.context = context
        self.cq_context = cq_context
        self.channel = channel
        self.unacked_events = 0
        self._demand_capacity(cqe)
        if not 0 <= vector < context.num_comp_vectors:
            raise VerbsArgumentError(f"vector {vector}, from 0 to {context.num_comp_vectors - 1}")
        if channel is not None and channel.context is not context:
            raise VerbsArgumentError("the completion channel is another device's")
        self.engine = CompletionQueue(cqe)
        self.engine.on_event = weak_call(self, CQ._handle_event)
        self.engine.on_overflow = weak_call(self, CQ._handle_overflow)
        parents = [context] if channel is None else [context, channel]
        super().__init__(context.adapter.lock, *parents)
        with self._lock:
            context.adopt(self.engine, self)

    @property
    def cqe(self) -> int:
        """Return how many completions have room."""
        return self.engine.capacity

    def __len__(self) -> int:
        """Return how many completions wait to be polled."""
        return len(self.engine)

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """Take up to `num_entries` completions, oldest first; return how many, and them.

        Never waits; where none is queued the device makes progress once.
        """
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
        VerbsArgumentError: the queue has no room for so many; VerbsClosedError.
        """
        if not 1 <= count <= self.cqe:
            raise VerbsArgumentError(f"{count} completions of a queue for {self.cqe}")

        def take() -> list[WC]:
            self._demand_open()
            return self.engine.poll(count)

        found = self.context.wait_to_take(
            lambda: self.closed or len(self.engine) >= count, take, timeout_s
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
        while not (found := self.poll(count)[1]):
            self.req_notify()
            if found := self.poll(count)[1]:
                break
            await self.channel.event(self)
            self.ack_events(1)
        return found

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
        with self._calling():
            if not 0 <= num_events <= self.unacked_events:
                raise VerbsArgumentError(
                    f"{num_events} events to acknowledge, {self.unacked_events} are open"
                )
            self.unacked_events -= num_events

    def resize(self, cqe: int) -> None:
        """Change the number of entries; none is lost.

        Raises VerbsArgumentError: fewer than are queued, or more than `max_cqe`.
        """
        self._demand_capacity(cqe)
        with self._calling():
            self.engine.resize(cqe)

    # -- inside

    def _demand_capacity(self, cqe: int) -> None:
        cqe_max = self.context.attributes.max_cqe
        if not 1 <= cqe <= cqe_max:
            raise VerbsArgumentError(f"completion queue of {cqe} entries, from 1 to {cqe_max}")

    def _handle_event(self) -> None:
        if self.channel is not None and not self.channel.closed:
            self.channel.post(self)

    def _handle_overflow(self) -> None:
        self.context.report(AsyncEventType.CQ_ERR, self)
        # A queue pair is executing: none can be modified before it has finished.
        self.context.adapter.call_soon(weak_call(self, CQ._break_queue_pairs))

    def _break_queue_pairs(self) -> None:
        adapter = self.context.adapter
        for child in self._children():
            engine = getattr(child, "engine", None)
            if engine is not None and engine.state is not QPState.RESET:
                engine.enter_error()
                adapter.progress_qp(engine)

    def _release(self, *, forced: bool) -> None:
        if self.channel is not None:
            self.channel.forget(self)
        self.context.forget(self.engine, self)
        self.engine.on_event = None

    def _announce_end(self) -> None:
        if self.channel is not None:
            self.channel.wake()
        self.context.adapter.notify()
