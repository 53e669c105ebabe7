"""The other process of the conformance suite: listens, lends its memory, answers, or floods.

Run as `python -m tests.verbs.conformance_peer PROVIDER DIRECTORY ROLE HOST`; prints its port.
The private data of either side name its memory. ROLE "echo" sends back what comes; "flood" sends,
writes, reads and adds for ever; both until the connection is over.
"""

import sys
from pathlib import Path

from tests.verbs.conformance import Pair, Side, World
from urds.verbs import SendFlag, VerbsError, WCStatus, WROpcode
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
    VerbsConnectionEvent,
)

LIFE_NS = 30_000_000_000
SLOT_BYTES = 512
SLOTS = 64
CELL = 60_000  # where the other side adds
ENDS = {ConnectionEventKind.BROKEN, ConnectionEventKind.DISCONNECTED, ConnectionEventKind.ERROR}


def naming(side: Side) -> bytes:
    """Return private data that name a side's memory."""
    return side.mr.rkey.to_bytes(4, "big") + side.mr.buf.to_bytes(8, "big")


def named(data: bytes) -> dict[str, int]:
    """Return the remote memory that private data name."""
    return {"rkey": int.from_bytes(data[:4], "big"), "remote_addr": int.from_bytes(data[4:], "big")}


def is_over(side: Side) -> bool:
    """Tell whether the connection has ended."""
    return any(event.kind in ENDS for event in side.told)


def echo(side: Side) -> None:
    """Send back what comes, until the end."""
    adapter = side.context.adapter
    while not is_over(side):
        adapter.wait(lambda: len(side.rcq) > 0 or is_over(side), LIFE_NS)
        for wc in side.rcq.poll(32)[1]:
            if wc.status is WCStatus.SUCCESS:
                offset = wc.wr_id * SLOT_BYTES
                sg = [side.mr.sge(offset, wc.byte_len)]
                side.post(sg=sg, flags=SendFlag(0), wr_id=wc.wr_id)
                side.receive(SLOT_BYTES, offset=offset, wr_id=wc.wr_id)


def flood(side: Side, remote: dict[str, int]) -> None:
    """Use the other side's memory in every way, until the end."""
    adapter = side.context.adapter
    number = 0
    while not is_over(side):
        far = {**remote, "remote_addr": remote["remote_addr"] + 8 * (number % 1000)}
        opcode = (
            WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD,
        )[number % 4]  # fmt: skip
        try:
            side.post(opcode, 8, offset=40_000, wr_id=number, compare_add=1, **far)
            number += 1
        except VerbsError:
            adapter.wait(lambda: len(side.scq) > 0 or is_over(side), LIFE_NS)
        side.scq.poll(64)
        for wc in side.rcq.poll(64)[1]:
            if wc.status is WCStatus.SUCCESS:
                side.receive(SLOT_BYTES, offset=wc.wr_id * SLOT_BYTES, wr_id=wc.wr_id)


def main(provider: str, directory: str, role: str, host: str) -> None:
    """Serve one connection."""
    world = World(provider, Path(directory), host=host)
    side = world.side()
    pair = Pair(side, side)
    for slot in range(SLOTS):
        side.receive(SLOT_BYTES, offset=slot * SLOT_BYTES, wr_id=slot)
    remote: dict[str, int] = {}

    def answer(event: VerbsConnectionEvent) -> None:
        remote.update(named(event.parameters.private_data))
        side.connection = event.connection
        event.connection.on_event = side.take
        event.connection.accept(pair.right.qp.engine, ConnectParameters(naming(side)))

    adapter = side.context.adapter
    with adapter.lock:
        listener = adapter.listen(
            world.address(side.context), PortSpace.TCP, backlog=8, on_event=answer
        )
    print(listener.local[1], flush=True)
    adapter.wait(lambda: bool(side.told), LIFE_NS)
    if role == "echo":
        echo(side)
    else:
        flood(side, remote)
    world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
