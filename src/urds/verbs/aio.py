"""Waiting for completions in asyncio: `await channel.event()`, `await cq.wait(n)`.

An event wakes its waiters through the event loop, from whichever thread made it; no descriptor is
needed. Users of trio wait for `channel.fileno()` to become readable. Either way the loop sleeps
outside of the device, which `Adapter.add_external_waiter` counts.

In virtual time a wait runs the simulated device until the event is there, yielding to other tasks
between the steps.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from urds.verbs.engine.work import WC
from urds.verbs.providers.base import Adapter

if TYPE_CHECKING:
    from urds.verbs.channels import CompChannel
    from urds.verbs.cq import CQ

_IDLE_S: Final = 0.001


async def event(channel: "CompChannel", cq: "CQ | None" = None) -> "CQ":
    """Wait for an event of the channel, of `cq` if given; take it and return its queue.

    A cancelled wait takes none. Raises VerbsClosedError: the channel is closed, or meanwhile.
    """
    loop, adapter = asyncio.get_running_loop(), channel.context.adapter
    while True:
        woken: asyncio.Future[None] = loop.create_future()

        def wake(woken: "asyncio.Future[None]" = woken) -> None:
            try:
                loop.call_soon_threadsafe(_set, woken)
            except RuntimeError:  # the loop is closed
                return

        with channel._calling():
            found = channel.take(cq)
            if found is not None:
                return found
            channel.listen(wake)
            adapter.add_external_waiter()
        try:
            if adapter.has_own_time:
                await woken
            else:
                await _run_until(woken, adapter)
        finally:
            with channel._lock:
                adapter.remove_external_waiter()
                channel.unlisten(wake)


async def completions(cq: "CQ", count: int = 1) -> list[WC]:
    """Wait until something is queued and take up to `count` completions, oldest first.

    Arms the queue and acknowledges its event. Raises VerbsClosedError.
    """
    assert cq.channel is not None, "CQ.wait makes a channel"
    while True:
        found = cq.poll(count)[1]
        if not found:
            cq.req_notify()
            found = cq.poll(count)[1]
        if found:
            return found
        await event(cq.channel, cq)
        cq.ack_events(1)


async def _run_until(woken: "asyncio.Future[None]", adapter: Adapter) -> None:
    """Run a simulated device step by step until `woken` is done."""
    while not woken.done():
        before_ns = adapter.now_ns()
        adapter.progress()
        # Without a next event, only another task can cause one.
        await asyncio.sleep(0 if adapter.now_ns() != before_ns else _IDLE_S)


def _set(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)
