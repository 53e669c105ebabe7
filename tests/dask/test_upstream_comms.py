"""Upstream's checks of a comm backend, which take an address, with addresses of `rds://`.

They are part of Dask's sources and of no wheel: `make dask` names the folder that has them.
"""

import asyncio
import importlib.util
import os
from pathlib import Path

import pytest

pytest.importorskip("distributed")
FOLDER = os.environ.get("TEST_DASK_SOURCES", "")
if not FOLDER:
    pytest.skip("TEST_DASK_SOURCES names no checkout of Dask", allow_module_level=True)

from distributed import utils_test  # noqa: E402 - behind the skip
from distributed.comm import CommClosedError, connect, listen, parse_host_port  # noqa: E402 - behind the skip
from distributed.utils import get_ip, wait_for  # noqa: E402 - behind the skip
from distributed.utils_test import gen_test  # noqa: E402 - behind the skip

ADDRESS = "rds://127.9.1.1"  # no other process takes it by chance


def _load():
    # The certificates are beside the tests, where the wheel has none.
    sources = Path(FOLDER) / "distributed"
    utils_test.get_cert = lambda name: str(sources / "tests" / name)
    path = sources / "comm" / "tests" / "test_comms.py"
    spec = importlib.util.spec_from_file_location("upstream_test_comms", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


upstream = _load()


@gen_test()
async def test_client_and_server():
    await upstream.check_client_server(ADDRESS, upstream.tcp_eq("127.9.1.1"))


@gen_test()
async def test_client_and_server_at_a_port():
    await upstream.check_client_server(f"{ADDRESS}:3221", upstream.tcp_eq("127.9.1.1", 3221))


@pytest.mark.parametrize("address", ["rds://0.0.0.0", "rds://"])
def test_client_and_server_without_a_host(address):
    @gen_test()
    async def check():
        eq = upstream.tcp_eq
        await upstream.check_client_server(address, eq("0.0.0.0"), eq(get_ip()))

    check()


@gen_test()
async def test_closed_implicitly():
    await upstream.check_comm_closed_implicit(ADDRESS)


@gen_test()
async def test_closed_explicitly():
    await upstream.check_comm_closed_explicit(ADDRESS)


@gen_test()
async def test_connect_times_out():
    await upstream.check_connect_timeout(f"{ADDRESS}:44444")


@gen_test()
async def test_many_listeners():
    await upstream.check_many_listeners(ADDRESS)


@gen_test()
async def test_deserialize():
    await upstream.check_deserialize(ADDRESS)


@gen_test()
async def test_deserialize_roundtrip():
    await upstream.check_deserialize_roundtrip(ADDRESS)


@gen_test()
async def test_deserialize_eoferror():
    await upstream.check_deserialize_eoferror(ADDRESS)


@gen_test()
async def test_repr():
    await upstream.check_repr(*await upstream.get_comm_pair(ADDRESS))


@gen_test()
async def test_addresses():
    a, b = await upstream.get_comm_pair(ADDRESS)
    upstream_check = upstream.check_addresses(a, b)
    if upstream_check is not None:
        await upstream_check
    await a.close()
    await b.close()


@gen_test()
async def test_a_cancelled_read_closes():
    reader, writer = await upstream.get_comm_pair(ADDRESS)
    with pytest.raises(asyncio.TimeoutError):
        await wait_for(reader.read(), 0.01)
    assert reader.closed()
    with pytest.raises(CommClosedError):
        await writer.read()
    assert writer.closed()


@gen_test()
async def test_a_handshake_that_fails_does_not_call_the_handler():
    called = []
    async with listen(ADDRESS, called.append) as listener:
        host, port = parse_host_port(listener.contact_address.removeprefix("rds://"))
        from distributed.comm.registry import get_backend

        comm = await get_backend("rds").get_connector().connect(f"{host}:{port}")
        await comm.close()
        await asyncio.sleep(0.05)
    assert not called


@gen_test()
async def test_a_listener_that_stops_meanwhile_closes_what_came():
    listener = await listen(ADDRESS, upstream.echo)
    handle = listener._handle

    async def stop_first(link):
        listener.stop()
        await handle(link)

    listener._handle = stop_first
    with pytest.raises(CommClosedError):
        await wait_for(connect(listener.contact_address), timeout=5)


@gen_test()
async def test_a_hundred_clients_at_once():
    async def echo(comm):
        await comm.write(await comm.read())

    async def ask(number):
        comm = await connect(listener.contact_address)
        await comm.write(number)
        answer = await comm.read()
        await comm.close()
        return answer

    async with listen(ADDRESS, echo) as listener:
        assert await asyncio.gather(*map(ask, range(100))) == list(range(100))


@pytest.mark.parametrize("kind", [tuple, list])
def test_two_buffers_share_no_memory(kind):
    np = pytest.importorskip("numpy")

    @gen_test()
    async def check():
        from distributed.protocol import to_serialize

        a, b = await upstream.get_comm_pair(ADDRESS)
        sent = kind(to_serialize(np.arange(n, dtype="i8")) for n in (100_000, 50_000))
        writing = asyncio.create_task(a.write(sent))
        first, second = await b.read()
        await writing
        assert first.flags.writeable and second.flags.writeable
        assert not np.shares_memory(first, second)
        first[:] = 0
        assert (second == np.arange(50_000)).all()
        await a.close()
        await b.close()

    check()
