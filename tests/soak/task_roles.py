"""The role of a program on asyncio: tasks that ask the server and each other."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import urds.aio
from tests.soak.messages import Head, Kind, MessageLog, Writer
from tests.soak.role import ANSWER_S, ASK_PORT, Stage

TASKS: Final = 4
_ANSWERED: Final = frozenset({Kind.ASK, Kind.END})


def play(stage: Stage) -> None:
    """Run tasks until it is over."""
    asyncio.run(_play(stage))


async def _play(stage: Stage) -> None:
    async with await urds.aio.bind((stage.address(), ASK_PORT)) as own:
        serving = asyncio.create_task(_serve(own, stage))
        # Half of them ask the server, the others this very process.
        targets = [stage.address("server" if number % 2 else None) for number in range(TASKS)]
        await asyncio.gather(*(_ask(stage, (target, ASK_PORT)) for target in targets))
        serving.cancel()


async def _serve(sock: urds.aio.Socket, stage: Stage) -> None:
    log = MessageLog(stage.counters)
    async for payload, source in sock:
        head = log.check(payload, source)
        if head is not None and head.kind in _ANSWERED:
            await sock.send_to(head.answer(), source)


async def _ask(stage: Stage, target: tuple[str, int]) -> None:
    while not stage.over.is_set():
        stage.counters.sockets += 1
        async with await urds.aio.bind((stage.address(), 0)) as sock:
            writer, end_s = Writer(), stage.end_of_life_s()
            while time.monotonic() < end_s and not stage.over.is_set():
                await sock.send_to(writer.next(Kind.ASK, stage.message_bytes()), target)
                stage.reset_now_and_then()
                await _answer(sock, writer, stage)
                await asyncio.sleep(stage.rest_s())
            await sock.send_to(writer.next(Kind.END, 0), target)
            await _answer(sock, writer, stage)


async def _answer(sock: urds.aio.Socket, writer: Writer, stage: Stage) -> None:
    """Wait for the answer that is due; a time limit cancels receives now and then."""
    counters = stage.counters
    end_s = time.monotonic() + ANSWER_S
    while time.monotonic() < end_s:
        try:
            async with asyncio.timeout(stage.random.choice((0.001, 1.0))):
                payload = await sock.recv()
        except TimeoutError:
            continue
        head = Head.parse(payload)
        counters.byte_count += len(payload)
        if head is None:
            counters.damaged += 1
        elif writer.is_answer(head):
            counters.messages += 1
            return
        else:
            counters.repeated += 1
    counters.unanswered += 1
