"""One protocol of Dask, measured by itself: `dask_side.py SCHEME`; prints one JSON object.

Times are of this machine's clock, in nanoseconds. `dask_costs` runs it for both protocols in turns.
"""

import asyncio
import json
import logging
import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
from distributed import Client, LocalCluster
from distributed.comm import connect, listen

SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "64 MiB": 1 << 26}
WORKERS = (2, 4, 8)
_TASKS = 300
_ECHO_BYTES = 256 << 20  # of each size, at most so many echoes
_ECHOES_MAX = 500
_PART_BYTES = 256 << 10
_LOOK_S = 0.02


def main() -> None:
    scheme = sys.argv[1]
    logging.disable(logging.CRITICAL)
    found: dict[str, float] = echoes(scheme)
    for workers in WORKERS:
        found |= all_to_all(scheme, workers)
    print(json.dumps(found))


def echoes(scheme: str) -> dict[str, float]:
    """Return the time of an echo between two processes, for each size."""
    ours, its = multiprocessing.get_context("spawn").Pipe()
    other = multiprocessing.get_context("spawn").Process(target=_answer, args=(scheme, its))
    other.start()
    try:
        return asyncio.run(_ask(ours.recv()))
    finally:
        other.kill()
        other.join()


def _answer(scheme: str, pipe: Connection) -> None:
    async def echo(comm: object) -> None:
        while True:
            await comm.write(await comm.read())

    async def serve() -> None:
        async with listen(f"{scheme}://127.0.0.1:0", echo) as listener:
            pipe.send(listener.contact_address)
            await asyncio.sleep(3600)

    asyncio.run(serve())


async def _ask(address: str) -> dict[str, float]:
    comm = await connect(address)
    found = {}
    for name, size in SIZES.items():
        message = {"payload": bytes(size)}
        count = min(_ECHOES_MAX, max(3, _ECHO_BYTES // size))
        times = []
        for _ in range(count):
            began_ns = time.perf_counter_ns()
            await comm.write(message)
            await comm.read()
            times.append(time.perf_counter_ns() - began_ns)
        found[f"echo {name}"] = statistics.median(times)
    await comm.close()
    return found


def all_to_all(scheme: str, workers: int) -> dict[str, float]:
    """Return the time of a task, that of a shuffle, and connections and descriptors at its peak."""
    with (
        LocalCluster(
            protocol=scheme, n_workers=workers, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        addresses = list(client.scheduler_info()["workers"])
        pids = [os.getpid(), *client.run(os.getpid).values()]
        times = []
        for number in range(_TASKS if workers == WORKERS[0] else 0):
            began_ns = time.perf_counter_ns()
            client.submit(int, number, pure=False).result()
            times.append(time.perf_counter_ns() - began_ns)
        began_ns = time.perf_counter_ns()
        parts = [
            client.submit(bytes, _PART_BYTES, pure=False, workers=[address])
            for address in addresses
            for _ in addresses
        ]
        ends = [
            client.submit(_count, *parts, pure=False, workers=[address]) for address in addresses
        ]
        peak_connections = peak_descriptors = 0
        while not all(end.done() for end in ends):
            connections, descriptors = _held(pids)
            peak_connections = max(peak_connections, connections)
            peak_descriptors = max(peak_descriptors, descriptors)
            time.sleep(_LOOK_S)
        took_ns = time.perf_counter_ns() - began_ns
        assert client.gather(ends) == [len(parts) * _PART_BYTES] * workers
    found = {
        f"shuffle {workers}": took_ns,
        f"connections {workers}": peak_connections,
        f"descriptors {workers}": peak_descriptors,
    }
    return found | ({"task": statistics.median(times)} if times else {})


def _count(*parts: bytes) -> int:
    return sum(map(len, parts))


def _held(pids: list[int]) -> tuple[int, int]:
    """Return TCP connections, each once, and descriptors of all processes."""
    ends = set()
    descriptors = 0
    for pid in pids:
        process = psutil.Process(pid)
        descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
        for one in process.net_connections("tcp"):
            if one.status == psutil.CONN_ESTABLISHED:
                ends.add(frozenset((one.laddr, one.raddr)))
    return len(ends), descriptors


if __name__ == "__main__":
    main()
