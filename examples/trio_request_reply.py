"""Requests and replies with trio, between two processes, with a time limit for each request.

The server answers slowly now and then. The client gives such a request up and drops its reply by
number when it arrives late: a cancelled receive took nothing, and what was sent does arrive.
"""

import subprocess
import sys

import trio

import urds.aio

SERVER = ("127.0.0.75", 4000)
CLIENT = ("127.0.0.76", 0)
REQUESTS = 200
LIMIT_S = 0.05


async def answer(sock: urds.aio.Socket, number: bytes, source: tuple[str, int]) -> None:
    """Square a number; every fiftieth takes longer than the client waits."""
    if int(number) % 50 == 49:
        await trio.sleep(2 * LIMIT_S)
    await sock.send_to(b"%d %d" % (int(number), int(number) ** 2), source)


async def serve() -> None:
    async with await urds.aio.bind(SERVER) as sock, trio.open_nursery() as nursery:
        print("ready", flush=True)
        async for payload, source in sock:
            if not payload:
                return
            nursery.start_soon(answer, sock, payload, source)


async def ask(sock: urds.aio.Socket, number: int) -> int | None:
    """Return the reply to a request, or None if it does not come in time."""
    await sock.send_to(b"%d" % number, SERVER)
    with trio.move_on_after(LIMIT_S):
        while True:
            asked, square = map(int, (await sock.recv()).split())
            if asked == number:
                return square
    return None


async def main() -> None:
    async with await urds.aio.bind(CLIENT) as sock:
        while await ask(sock, 0) is None:
            pass  # the first request makes the connection
        replies = [await ask(sock, number) for number in range(REQUESTS)]
        await sock.send_to(b"", SERVER)
    late = [number for number, square in enumerate(replies) if square is None]
    print(f"{REQUESTS - len(late)} replies, too late: {late}")
    assert set(range(49, REQUESTS, 50)) <= set(late)
    assert all(square in (None, number**2) for number, square in enumerate(replies))
    assert len(late) < REQUESTS // 2


if sys.argv[1:] == ["serve"]:
    trio.run(serve)
else:
    command = [sys.executable, __file__, "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        trio.run(main)
    assert server.returncode == 0
