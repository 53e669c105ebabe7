"""Random cancellations of receives and sends: nothing lost, doubled or reordered.

A sender numbers its messages and repeats one only when its send was cancelled. If a cancelled
send were queued after all, its number would come twice; if a cancelled receive took a message,
its number would be missing. Small buffers and pauses have both ends wait in turn.
"""

import asyncio
import os
import random
import socket as system
from collections.abc import Awaitable, Callable

import anyio
import pytest

from tests.rds.aio.nodes import Node
from tests.support import carriers
from urds import aio

pytestmark = [pytest.mark.each_carrier("shm0"), pytest.mark.timeout(120)]

CANCELS = int(os.environ.get("TEST_CANCELS", "400"))  # in each run over TCP
CANCELS_OVER_RDMA = 400
TURNS_MAX = 4
BUFFER_BYTES = 4096
RESET_S = 0.05
PAYLOAD_BYTES_MAX = 700

# Runs a call, cancels it after so many turns of the loop, and tells whether that hit.
Cancelled = Callable[[Callable[[], Awaitable[None]], int], Awaitable[bool]]


class Exchange:
    """One sender, one receiver, one seed; ends when enough was cancelled and all has come."""

    def __init__(self, seed: int, source: aio.Socket, target: aio.Socket) -> None:
        self.random = random.Random(seed)
        self.source = source
        self.target = target
        self.sent = 0
        self.got: list[int] = []
        self.cancels = CANCELS_OVER_RDMA if carriers.is_rdma() else CANCELS
        self.cancelled_sends = 0
        self.cancelled_receives = 0
        for sock in (source, target):
            sock.setsockopt(system.SOL_SOCKET, system.SO_RCVBUF, BUFFER_BYTES)
            sock.setsockopt(system.SOL_SOCKET, system.SO_SNDBUF, BUFFER_BYTES)

    def enough(self) -> bool:
        return self.cancelled_sends + self.cancelled_receives >= self.cancels

    async def pause(self) -> None:
        """Now and then let the other end run dry, or full."""
        if self.random.random() < 0.1:
            await anyio.sleep(self.random.choice([0.0002, 0.002]))

    async def send(self, cancelled: Cancelled) -> None:
        address = self.target.getsockname()
        while not self.enough():
            padding = bytes(self.random.randrange(PAYLOAD_BYTES_MAX))
            payload = self.sent.to_bytes(4, "big") + padding
            receipt = aio.Receipt()

            async def one(payload: bytes = payload, receipt: aio.Receipt = receipt) -> None:
                await self.source.send_to(payload, address, receipt=receipt)

            hit = await cancelled(one, self.random.randrange(TURNS_MAX))
            assert receipt.sent is not hit
            self.sent += not hit
            self.cancelled_sends += hit
            await self.pause()

    async def receive(self, cancelled: Cancelled) -> None:
        async def one() -> None:
            payload = await self.target.recv()
            self.got.append(int.from_bytes(payload[:4], "big"))

        while not self.enough() or len(self.got) < self.sent:
            self.cancelled_receives += await cancelled(one, self.random.randrange(TURNS_MAX))
            await self.pause()

    async def check(self, cancelled: Cancelled) -> None:
        try:
            with anyio.fail_after(90):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self.send, cancelled)
                    tasks.start_soon(self.receive, cancelled)
            with anyio.move_on_after(0.02):  # a doubled last message
                self.got.append(int.from_bytes((await self.target.recv())[:4], "big"))
        finally:
            print(
                f"{self.sent} sent, {len(self.got)} received, cancelled"
                f" {self.cancelled_sends} sends and {self.cancelled_receives} receives"
            )
        assert self.got == list(range(self.sent))
        assert self.cancelled_sends > self.cancels // 20
        assert self.cancelled_receives > self.cancels // 20


async def cancelled_by_scope(call: Callable[[], Awaitable[None]], turns: int) -> bool:
    """Cancel a scope from another task."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                for _ in range(turns):
                    await anyio.sleep(0)
                scope.cancel()

            tasks.start_soon(cancel)
            ended = False
            await call()
            ended = True
            tasks.cancel_scope.cancel()
    return not ended


async def cancelled_by_task(call: Callable[[], Awaitable[None]], turns: int) -> bool:
    """Cancel the task that makes the call, as asyncio's own functions do."""

    async def run() -> None:
        await call()

    task = asyncio.create_task(run())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


@pytest.fixture
def seed() -> int:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return seed


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("link", ["within", "between"])
async def test_cancelled_scopes_lose_and_double_nothing(
    own: Node, other: Node, seed: int, link: str
) -> None:
    """Cancels under each of asyncio and trio, within a node and between two."""
    async with (
        await own.bind() as source,
        await (own if link == "within" else other).bind() as target,
    ):
        await Exchange(seed, source, target).check(cancelled_by_scope)


@pytest.mark.parametrize("link", ["within", "between", "resets"])
def test_cancelled_tasks_lose_and_double_nothing(
    own: Node, other: Node, seed: int, link: str
) -> None:
    """Cancels on each link; `resets` resets the connections meanwhile."""

    async def reset() -> None:
        while True:
            await asyncio.sleep(RESET_S)
            own.backend.break_connections()

    async def main() -> None:
        async with (
            await own.bind() as source,
            await (own if link == "within" else other).bind() as target,
        ):
            resetting = asyncio.create_task(reset() if link == "resets" else asyncio.sleep(0))
            await Exchange(seed, source, target).check(cancelled_by_task)
            resetting.cancel()
        assert link != "resets" or own.backend.counters()["conn_reset"]

    asyncio.run(main())
