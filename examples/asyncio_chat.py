"""A chat room with asyncio: one socket for the room, one for each client, no connections to keep.

The room sends each client's lines to all others. Each client receives the lines of all in the order
in which the room got them, for it sends them in that order. The code also runs under trio.
"""

import asyncio
from collections.abc import Sequence

import urds.aio

ROOM = ("127.0.0.61", 4000)
GUESTS = {
    "Ada": ("127.0.0.62", ["Good morning.", "Who else is here?"]),
    "Bob": ("127.0.0.63", ["Hello Ada!"]),
    "Eve": ("127.0.0.64", ["I only listen.", "Mostly."]),
}
LINES = sum(len(lines) for _, lines in GUESTS.values())


async def keep_room(room: urds.aio.Socket) -> None:
    guests: set[tuple[str, int]] = set()
    async for line, sender in room:
        guests.add(sender[:2])
        if not line:
            continue  # an empty message announces a client
        for guest in guests:
            await room.send_to(line, guest)


async def visit(name: str, address: str, lines: Sequence[str], *, all_here: asyncio.Barrier) -> int:
    heard = 0
    async with await urds.aio.bind((address, 0)) as sock:
        await sock.send_to(b"", ROOM)
        await all_here.wait()
        for line in lines:
            await sock.send_to(f"{name}: {line}".encode(), ROOM)
        while heard < LINES:
            heard_line, _ = await asyncio.wait_for(sock.recv_from(), 5)
            heard += 1
            if name == "Eve":
                print(heard_line.decode())
    return heard


async def main() -> None:
    all_here = asyncio.Barrier(len(GUESTS))
    async with await urds.aio.bind(ROOM) as room:
        keeper = asyncio.create_task(keep_room(room))
        visits = (
            visit(name, address, lines, all_here=all_here)
            for name, (address, lines) in GUESTS.items()
        )
        heard = await asyncio.gather(*visits)
        keeper.cancel()  # cancelling a receive loses no message
    print(f"{len(heard)} guests heard {sum(heard)} lines")


if __name__ == "__main__":
    asyncio.run(main())
