"""asyncio: a task whose message came is run by the read that brought it, not an iteration later."""

import asyncio
import selectors
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from tests.rds.aio.nodes import Node
from tests.support import backends
from tests.support.waiting import BUSY_S
from urds import aio
from urds.rds.aio.on_asyncio import AsyncioProgress, PromptFuture

pytestmark = [
    pytest.mark.timeout(30),
    pytest.mark.skipif(backends.IS_ATTACHED, reason="a node is another process: it reads"),
]
ROUND_TRIPS = 300


class _Counting(selectors.DefaultSelector):
    """A selector that counts how often the loop looks at its descriptors."""

    looks = 0

    def select(self, timeout: float | None = None) -> Any:
        self.looks += 1
        return super().select(timeout)


@pytest.fixture
def looks() -> _Counting:
    return _Counting()


@pytest.fixture
def loop(looks: _Counting) -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.SelectorEventLoop(looks)
    yield made
    made.close()


async def pair(own: Node, other: Node) -> tuple[aio.Socket, aio.Socket]:
    """Return two connected sockets that have exchanged a message each."""
    one, two = await own.bind(), await other.bind()
    await one.send_to(b"first", two.getsockname())
    assert await two.recv() == b"first"
    await two.send_to(b"first", one.getsockname())
    assert await one.recv() == b"first"
    return one, two


def send_both(source: aio.Socket, payload: bytes, targets: Sequence[aio.Socket]) -> None:
    """Send a message to each, which one read brings."""
    source._socket.send_many([(payload, sock.getsockname()) for sock in targets])


def test_a_message_costs_one_look_at_the_descriptors(
    own: Node, other: Node, loop: asyncio.AbstractEventLoop, looks: _Counting
) -> None:
    async def main() -> float:
        one, two = await pair(own, other)

        async def answer() -> None:
            async for payload, source in two:
                await two.send_to(payload, source)

        answering = asyncio.ensure_future(answer())
        await asyncio.sleep(0.01)
        before = looks.looks
        for _ in range(ROUND_TRIPS):
            await one.send_to(b"x", two.getsockname())
            await one.recv()
        taken = looks.looks - before
        one.close()
        two.close()
        await answering
        return taken / ROUND_TRIPS

    # Two where nothing else happens, and four if each task waits for an iteration.
    assert loop.run_until_complete(main()) < 3


def test_a_task_that_ends_the_loop_takes_no_other_task_with_it(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Both are woken by one read, and the first one raises what ends the loop."""
    waits = [PromptFuture(loop=loop), PromptFuture(loop=loop)]

    class Reading:
        def progress(self) -> None:
            progress.woken.extend(waits)

    progress = AsyncioProgress(cast("Any", Reading()), loop)

    async def leave() -> None:
        await waits[0]
        raise SystemExit

    async def stay() -> str:
        await waits[1]
        return "here"

    leaving, staying = loop.create_task(leave()), loop.create_task(stay())
    loop.call_later(0.001, progress.make_progress)
    with pytest.raises(SystemExit):
        loop.run_until_complete(asyncio.shield(staying))
    assert loop.run_until_complete(asyncio.wait_for(staying, 1)) == "here"
    with pytest.raises(SystemExit):
        leaving.result()


def test_a_task_that_another_one_of_the_read_cancels_passes_its_message_on(
    own: Node, other: Node, loop: asyncio.AbstractEventLoop
) -> None:
    async def main() -> None:
        one, two = await pair(own, other)
        async with await own.bind() as also, one, two:
            for number in range(20):
                first = asyncio.ensure_future(also.recv())
                second = asyncio.ensure_future(also.recv())

                async def cancel(first: asyncio.Task[bytes] = first) -> None:
                    await one.recv()
                    first.cancel("by another")

                cancelling = asyncio.ensure_future(cancel())
                await asyncio.sleep(0.001)
                send_both(two, b"%d" % number, [one, also])
                assert await asyncio.wait_for(second, BUSY_S) == b"%d" % number
                with pytest.raises(asyncio.CancelledError, match="by another"):
                    await first
                await cancelling

    loop.run_until_complete(main())
