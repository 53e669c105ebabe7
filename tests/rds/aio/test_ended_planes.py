"""A loop that watches a plane which has ended: its descriptor's number may be another's by then."""

import asyncio
import gc
import os
from collections.abc import Callable

import pytest

from tests.rds.sockets.conftest import has_thread, own_process  # noqa: F401 - a fixture
from tests.rds.sockets.hosts import host
from tests.support import backends
from tests.support.waiting import wait_until
from urds import aio

WAIT_S = 10.0
PIPES = 64  # one of them has the number of what the plane closed

pytestmark = [
    pytest.mark.skipif(backends.IS_ATTACHED, reason="the plane of a node's sockets does not end"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


async def watching() -> aio.Socket:
    """Return a socket whose plane the loop watches."""
    sock = await aio.bind((host(1), 0))
    await sock.send_to(b"to itself", sock.getsockname())
    assert await sock.recv(100) == b"to itself"
    return sock


async def read_pipes() -> None:
    """See that the loop reads each of many new pipes."""
    loop = asyncio.get_running_loop()
    for _ in range(PIPES):
        reading, writing = os.pipe()
        read = asyncio.Event()
        loop.add_reader(reading, read.set)
        os.write(writing, b"x")
        await asyncio.wait_for(read.wait(), WAIT_S)
        loop.remove_reader(reading)
        os.close(writing)
        # `reading` stays open: the next pipe has another number.
        _left.append(reading)


_left: list[int] = []


async def forget() -> None:
    """Have a socket collected that was not closed."""
    await watching()
    gc.collect()
    await asyncio.to_thread(wait_until, lambda: not has_thread())


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed outside", "forgotten"])
def test_a_descriptor_of_the_number_of_an_ended_plane_is_read(
    own_process: Callable[..., None],  # noqa: F811 - the fixture
    is_closed: bool,
) -> None:
    own_process(idle_s=0.05)
    wait_until(lambda: not has_thread())  # of tests before this one
    with asyncio.Runner() as runner:
        if is_closed:
            runner.run(watching()).close()  # the loop does not run, and hears of it later
            wait_until(lambda: not has_thread())
        else:
            runner.run(forget())
        try:
            runner.run(read_pipes())
            runner.run(again())
        finally:
            for descriptor in _left:
                os.close(descriptor)
            _left.clear()


async def again() -> None:
    """See that the loop reads the next plane."""
    sock = await watching()
    sock.close()
