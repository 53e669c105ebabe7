"""A process that echoes: prints its address, ends when its standard input does."""

import asyncio
import sys

from urds import aio


async def main(host: str) -> None:
    async with await aio.bind((host, 0)) as sock:
        print(sock.getsockname()[1], flush=True)

        async def echo() -> None:
            async for payload, source in sock:
                await sock.send_to(payload, source)

        echoing = asyncio.create_task(echo())
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        echoing.cancel()


asyncio.run(main(sys.argv[1]))
