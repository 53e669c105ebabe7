"""urds in tasks of asyncio and trio: one that sends, one that receives or answers.

An order of the parent is one run of the loop; between two orders the loop is idle. Each peer awaits
each message, as a program does that has one message at a time.
"""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Coroutine
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from .base import Kind, Peer
from .ours import Urds

_T = TypeVar("_T")
_LOOP_KINDS = frozenset({Kind.LOOP_ONE_WAY, Kind.LOOP_ROUND_TRIP})


class LoopPeer(Peer):
    """A side whose calls are coroutines, in a loop of asyncio that it keeps from start to end."""

    kinds = _LOOP_KINDS

    def __init__(self, payload_bytes: int) -> None:
        super().__init__(payload_bytes)
        self._runner: asyncio.Runner | None = None

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run `coroutine` to its end."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(coroutine)

    @abstractmethod
    async def send_one(self) -> None:
        """Send one message; wait for room."""

    @abstractmethod
    async def receive_one(self) -> int:
        """Receive one message; return its bytes."""

    @abstractmethod
    async def receive_reply(self) -> None:
        """Receive the answer to the one message that is out."""

    @abstractmethod
    async def return_one(self) -> None:
        """Receive one message and send it back."""

    async def finish(self) -> None:
        """Wait until sent messages are with a thread or kernel that sends on by itself."""

    def put(self, count: int) -> None:
        """Send `count` messages in one run of the loop."""

        async def send_all() -> None:
            send_one = self.send_one
            for _ in range(count):
                await send_one()
            await self.finish()

        self.run(send_all())

    def take(self, count: int) -> int:
        """Receive `count` messages in one run of the loop."""

        async def receive_all() -> int:
            receive_one, taken_bytes = self.receive_one, 0
            for _ in range(count):
                taken_bytes += await receive_one()
            return taken_bytes

        return self.run(receive_all())

    def echo(self, count: int) -> None:
        """Answer `count` messages in one run of the loop."""

        async def return_all() -> None:
            for _ in range(count):
                await self.return_one()

        self.run(return_all())

    def ask(self, count: int) -> list[int]:
        """Send `count` requests in one run of the loop; return what each took in nanoseconds."""

        async def ask_all() -> list[int]:
            clock, taken_ns = time.perf_counter_ns, []
            for _ in range(count):
                start_ns = clock()
                await self.send_one()
                await self.receive_reply()
                taken_ns.append(clock() - start_ns)
            return taken_ns

        return self.run(ask_all())

    def ask_one(self) -> None:
        """Send one message and wait for the reply."""
        self.ask(1)

    def echo_one(self) -> None:
        """Receive one message and send it back."""
        self.echo(1)


class UrdsOnAsyncio(LoopPeer, Urds):
    """`urds.aio` under asyncio."""

    name = "urds_asyncio"
    label = "urds, asyncio"
    kinds = _LOOP_KINDS
    row = 2

    def bind(self, local: tuple[str, int]) -> None:
        """Give the bound socket to `urds.aio`."""
        super().bind(local)
        self.socket = import_module("urds.aio").Socket(self.socket)

    async def send_one(self) -> None:
        """Send one message; wait for room."""
        await self.socket.send_to(self.payload, self._target)

    async def receive_one(self) -> int:
        """Receive one message and its source; return its bytes."""
        body, _ = await self.socket.recv_from()
        return len(body)

    async def receive_reply(self) -> None:
        """Receive the answer to the one message that is out."""
        await self.socket.recv_from()

    async def return_one(self) -> None:
        """Receive one message and send it back."""
        body, source = await self.socket.recv_from()
        await self.socket.send_to(body, source)


class UrdsOnTrio(UrdsOnAsyncio):
    """`urds.aio` under trio; each order is a trio run of its own."""

    name = "urds_trio"
    label = "urds, trio"
    row = 3

    @classmethod
    def missing(cls) -> str | None:
        """Tell whether trio is there."""
        return super().missing() or (None if find_spec("trio") else "trio is not installed")

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run `coroutine` to its end."""

        async def main() -> _T:
            return await coroutine

        result: _T = import_module("trio").run(main)
        return result
