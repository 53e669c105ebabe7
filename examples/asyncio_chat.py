"""A chat room with asyncio: one socket serves everybody, and nobody keeps a connection.

The room repeats each line to all members. A member is known by the address it sent from; it joins
with an empty message, and is welcomed with one when everybody is there.
"""

import asyncio

import urds.aio

ROOM = ("127.0.0.71", 4000)
NAMES = {"127.0.0.72": "ann", "127.0.0.73": "bob", "127.0.0.74": "eve"}
LINES = ["hello", "how is everybody?", "bye"]


async def keep_room(sock: urds.aio.Socket) -> None:
    """Repeat what comes to all members, until the socket is closed."""
    members = []
    async for payload, source in sock:
        if payload:
            line = NAMES[source[0]].encode() + b": " + payload
        else:
            members.append(source)
            line = b""
        if len(members) == len(NAMES):
            for member in members:
                await sock.send_to(line, member)


async def listen(sock: urds.aio.Socket) -> list[str]:
    """Return all lines of all members."""
    return [(await sock.recv()).decode() for _ in range(len(LINES) * len(NAMES))]


async def chat(host: str) -> list[str]:
    """Join, say the lines, and return what was heard meanwhile."""
    async with await urds.aio.bind((host, 0)) as sock:
        sock.connect(ROOM)
        await sock.send(b"")
        assert await sock.recv() == b""
        listening = asyncio.create_task(listen(sock))
        for line in LINES:
            await sock.send(line.encode())
            await asyncio.sleep(0.01)
        return await asyncio.wait_for(listening, 5)


async def main() -> None:
    async with await urds.aio.bind(ROOM) as room:
        keeping = asyncio.create_task(keep_room(room))
        all_heard = await asyncio.gather(*(chat(host) for host in NAMES))
        room.close()
        await keeping
    print("\n".join(all_heard[0]))
    for heard in all_heard:
        for name in NAMES.values():
            own = [line for line in heard if line.startswith(name)]
            assert own == [f"{name}: {line}" for line in LINES], own


asyncio.run(main())
