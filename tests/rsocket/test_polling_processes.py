"""A peer in another process: what rpoll, Repoll and asyncio tell of its life and its death."""

import asyncio
import contextlib
import select
import time
from pathlib import Path

import pytest

from tests.rsocket.polling_world import DEVICES, WAIT_S, World, world
from tests.support.children import Child
from urds.rsocket import aio
from urds.rsocket.poll import rpoll
from urds.rsocket.repoll import Repoll

IN, OUT, HUP, ERR = select.POLLIN, select.POLLOUT, select.POLLHUP, select.POLLERR
MS = 1000
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=DEVICES)
def here(request):
    with world(request.param) as made:
        yield made


@contextlib.contextmanager
def peer(here: World, port: int):
    """Start the process; it is gone at the end."""
    environ = {"URDS_RSOCKET_DEVICES": here.device}
    child = Child("-m", "tests.rsocket.polling_peer", port, environ=environ)
    try:
        yield child
    finally:
        child.kill()


def test_a_peer_that_is_killed_hangs_up(here: World) -> None:
    listener = here.listener()
    reader, _ = here.pipe()
    with peer(here, listener.getsockname()[1]) as process, Repoll() as poll:
        assert rpoll([(listener, IN), (reader, IN)], WAIT_S * MS) == [(listener, IN)]
        accepted, _ = listener.accept()
        poll.register(accepted, IN, "peer")
        assert rpoll([(accepted, IN)], WAIT_S * MS) == [(accepted, IN)]
        assert accepted.recv(1) == b"x"
        assert process.hear() == "connected"
        assert poll.poll(0.01) == []
        process.kill()
        assert rpoll([(accepted, IN)], WAIT_S * MS)
        ((_, told),) = rpoll([(accepted, 0)], WAIT_S * MS)
        assert told == HUP | ERR
        assert poll.poll(WAIT_S) == [("peer", IN | HUP | ERR)]
        with pytest.raises(ConnectionResetError):
            accepted.recv(1)
        accepted.close()


def test_a_sleeper_hears_of_the_death(here: World) -> None:
    """Asleep when it happens, with an ordinary descriptor beside."""
    listener = here.listener()
    reader, _ = here.pipe()
    with peer(here, listener.getsockname()[1]) as process:
        accepted, _ = listener.accept()
        accepted.settimeout(WAIT_S)
        assert accepted.recv(1) == b"x"
        for asked in ([(accepted, 0)], [(accepted, 0), (reader, IN)]):
            assert rpoll(asked, 10) == []
        here.later(process.kill)
        ((_, told),) = rpoll([(accepted, 0), (reader, IN)], WAIT_S * MS)
        assert told & HUP
        accepted.close()


def test_a_peer_that_closes_in_order(here: World) -> None:
    listener = here.listener()
    with peer(here, listener.getsockname()[1]) as process:
        accepted, _ = listener.accept()
        accepted.settimeout(WAIT_S)
        assert accepted.recv(1) == b"x"
        process.say("close")
        ((_, told),) = rpoll([(accepted, IN)], WAIT_S * MS)
        assert told & IN and not told & ERR
        assert accepted.recv(1) == b""
        accepted.close()


def test_streams_of_asyncio_hear_of_the_death(here: World) -> None:
    async def run() -> None:
        ended = asyncio.get_running_loop().create_future()

        async def serve(reader, writer):
            assert await reader.readexactly(1) == b"x"
            begun.set_result(None)
            try:
                ended.set_result(await reader.read(1))
            except OSError as error:
                ended.set_result(error)
            writer.close()

        begun = asyncio.get_running_loop().create_future()
        server = await aio.start_server(serve, "127.0.0.1", 0)
        with peer(here, server.sockets[0].getsockname()[1]) as process:
            await asyncio.wait_for(begun, WAIT_S)
            process.kill()
            begin_s = time.monotonic()
            assert isinstance(await asyncio.wait_for(ended, WAIT_S), ConnectionResetError)
            assert time.monotonic() - begin_s < WAIT_S
        server.close()
        await asyncio.wait_for(server.wait_closed(), WAIT_S)

    asyncio.run(run())
