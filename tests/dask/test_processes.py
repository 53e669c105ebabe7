"""Dask's own processes over `rds://`: kills, stops, addresses, resets. In `make dask`."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from distributed import Client, LocalCluster, Scheduler, Worker, wait
from distributed.comm import CommClosedError, connect, get_address_host, listen
from distributed.utils_test import gen_test

ROOT = Path(__file__).resolve().parents[2]
LISTENER = """
import asyncio, sys
from distributed.comm import listen

async def main():
    async def echo(comm):
        while True:
            await comm.write(await comm.read())

    async with listen(sys.argv[1], echo) as listener:
        print(listener.contact_address, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


class Process:
    """Another process that listens and answers with what it got."""

    def __init__(self, address="rds://127.0.0.1:0", **environ):
        self.process = subprocess.Popen(
            [sys.executable, "-c", LISTENER, address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environ},
        )
        self.address = self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def test_a_process_that_is_killed_is_noticed_without_a_word():
    """Its pings are 6 s apart: what tells is the kernel."""

    @gen_test(timeout=30)
    async def check():
        with Process() as other:
            comm = await connect(other.address)
            await comm.write("x")
            assert await comm.read() == "x"
            assert comm.same_host
            reading = asyncio.ensure_future(comm.read())
            await asyncio.sleep(0)
            other.process.kill()
            with pytest.raises(CommClosedError, match="process of the peer has ended"):
                await reading
            assert comm.closed()

    check()


def test_a_process_of_another_host_is_given_up_when_it_is_silent(monkeypatch):
    monkeypatch.setattr("urds.dask.endpoint.can_watch", lambda *_: False)

    @gen_test(timeout=30, config={"distributed.comm.timeouts.tcp": "1s"})
    async def check():
        with Process() as other:
            comm = await connect(other.address)
            await comm.write("x")
            assert await comm.read() == "x"
            other.process.kill()
            with pytest.raises(CommClosedError, match="silent"):
                await comm.read()

    check()


def test_a_process_that_is_stopped_is_waited_for():
    @gen_test(timeout=30)
    async def check():
        with Process() as stopped, Process() as other:
            comm, beside = await connect(stopped.address), await connect(other.address)
            os.kill(stopped.process.pid, signal.SIGSTOP)
            await comm.write("late")
            for number in range(100):
                await beside.write(number)
                assert await beside.read() == number
            assert not comm.closed()
            os.kill(stopped.process.pid, signal.SIGCONT)
            assert await comm.read() == "late"
            await comm.close()
            await beside.close()

    check()


def test_each_process_has_an_address_of_its_own():
    with Process() as first, Process() as second, Process() as third:
        hosts = {get_address_host(one.address) for one in (first, second, third)}
    assert len(hosts) == 3
    assert all(host.startswith("127.") for host in hosts)


def test_an_address_that_another_process_has_is_refused_with_advice():
    with Process("rds://127.9.8.7:4711", URDS_NODE="inprocess") as first:
        assert first.address == "rds://127.9.8.7:4711"
        with Process("rds://127.9.8.7:4712", URDS_NODE="inprocess") as second:
            assert second.address == ""
            assert "urds node" in second.process.stderr.read()


def test_a_loop_that_ended_with_comms_open_leaves_its_port():
    """Its comm and listener were never closed; the next loop has the port and the descriptors."""

    async def begin():
        listener = await listen("rds://127.9.8.6:7391", print)
        return listener, await connect(listener.contact_address)

    for _ in range(2):
        loop = asyncio.new_event_loop()
        kept = loop.run_until_complete(begin())
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False
        loop.close()
    assert kept


@gen_test(timeout=60)
async def test_a_worker_without_a_host_listens_towards_its_scheduler():
    async with (
        Scheduler(protocol="rds://", host="127.0.0.1", dashboard_address=":0") as scheduler,
        Worker(scheduler.address) as worker,
    ):
        assert get_address_host(worker.address) == get_address_host(scheduler.address)
        assert get_address_host(worker.address).startswith("127.")


@gen_test(timeout=30)
async def test_unencrypted_comms_are_refused_where_encryption_is_required():
    with pytest.raises(RuntimeError, match="encryption required"):
        await connect("rds://127.0.0.1:1234", require_encryption=True)
    with pytest.raises(RuntimeError, match="encryption required"):
        listen("rds://127.0.0.1", print, require_encryption=True)


@gen_test(timeout=30)
@pytest.mark.parametrize("address", ["rds://127.0.0.1", "rds://:80"])
async def test_no_address_to_connect_to(address):
    with pytest.raises(ValueError, match=r"no address|missing port"):
        await connect(address)


def test_a_cluster_of_processes_works_and_closes():
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            protocol="rds",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        addresses = list(client.scheduler_info()["workers"])
        assert len({get_address_host(one) for one in addresses}) == 2
        parts = client.map(bytes, [1 << 20] * 8)
        assert client.submit(lambda *a: sum(map(len, a)), *parts).result() == 8 << 20


def test_workers_beside_a_stopped_one_do_all_their_tasks():
    """Also while the scheduler has more for the stopped one than its window holds."""
    with (
        LocalCluster(
            n_workers=3,
            threads_per_worker=1,
            protocol="rds",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        pids = client.run(os.getpid)
        stopped, *others = pids
        parts = [client.submit(bytes, 1 << 20, workers=[one], pure=False) for one in others]
        wait(parts)
        os.kill(pids[stopped], signal.SIGSTOP)
        try:
            long = [
                client.submit(len, bytes(1 << 20), workers=[stopped], pure=False) for _ in range(12)
            ]
            numbers = range(100)
            done = [
                client.submit(lambda number, *_: number, n, *parts, workers=[one], pure=False)
                for n in numbers
                for one in others
            ]
            assert sum(client.gather(done)) == 2 * sum(numbers)
            assert not any(one.done() for one in long)
        finally:
            os.kill(pids[stopped], signal.SIGCONT)
        assert client.gather(long) == [1 << 20] * 12
        assert client.run(os.getpid) == pids  # none was given up


def test_a_job_outlives_resets():
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "examples" / "dask_survives.py")),
            *("rds", "4"),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "workers lost 0, resets " in done.stdout and "resets 0" not in done.stdout
