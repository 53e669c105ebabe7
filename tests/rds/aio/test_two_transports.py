"""Tasks of one loop with sockets over TCP and over RDMA: each is woken."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anyio
import pytest

from tests.rds.aio.nodes import fresh_host
from urds import aio
from urds.rds.constants import SOL_RDS, SockOpt, Transport
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.process import process
from urds.rds.settings import Settings

pytestmark = pytest.mark.anyio

TCP, IB = Transport.TCP, Transport.IB
COUNT = 200
WAIT_S = 20


@pytest.fixture
def nodes() -> Iterator[list[InProcess]]:
    """Give two nodes with a device: between the two there are connections."""
    values = {"rdma_devices": ["shm0"], "info_socket": False, "drain_s": 0}
    made = [InProcess(Settings.load(values, environ={})) for _ in range(2)]
    yield made
    for node in made:
        node.close()


def bound(node: InProcess, transport: Transport) -> aio.Socket:
    """Return a socket of a node that is bound over a transport."""
    before = process.use(node)
    try:
        sock = aio.open_socket()
        sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, transport)
        sock.bind((fresh_host(), 0))
        return sock
    finally:
        process.use(before)


async def echo(sock: aio.Socket) -> None:
    """Send back what comes."""
    for _ in range(COUNT):
        payload, source = await sock.recv_from()
        await sock.send_to(payload, source)


async def ask(sock: aio.Socket, target: aio.Socket) -> None:
    """Send numbers, one after the other, and have them back."""
    for number in range(COUNT):
        await sock.send_to(b"%d" % number, target.getsockname())
        assert await sock.recv_from() == (b"%d" % number, target.getsockname())


@pytest.mark.parametrize("order", [(TCP, IB), (IB, TCP)], ids=["tcp first", "rdma first"])
async def test_tasks_on_both_are_served_by_one_loop(
    nodes: list[InProcess], order: tuple[Transport, Transport]
) -> None:
    near, far = ([bound(node, one) for one in order] for node in nodes)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            for one, other in zip(near, far, strict=True):
                tasks.start_soon(echo, other)
                tasks.start_soon(ask, one, other)
    for sock, node in zip((*near, *far), (nodes[0], nodes[0], nodes[1], nodes[1]), strict=True):
        assert sock._progress is not None
        assert sock._progress.plane is node.plane, "else the helper reads"
        await sock.aclose()


@pytest.mark.parametrize("transport", [TCP, IB])
async def test_a_task_hears_of_the_end_of_its_socket(
    nodes: list[InProcess], transport: Transport
) -> None:
    """A close wakes it."""
    others = [bound(nodes[0], one) for one in (TCP, IB)]
    sock = bound(nodes[1], transport)
    began_s = time.monotonic()
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            with_error: list[OSError] = []

            async def wait() -> None:
                try:
                    await sock.recv()
                except OSError as refused:
                    with_error.append(refused)

            tasks.start_soon(wait)
            await anyio.sleep(0.05)
            sock.close()
    assert len(with_error) == 1
    assert time.monotonic() - began_s < WAIT_S
    for other in others:
        await other.aclose()
