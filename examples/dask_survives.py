"""One Dask job, over `tcp://` and over `rds://`, while connections are reset all the time.

Each worker resets a TCP connection of its own process every 200 ms, as a firewall that forgets it
would; that needs no privilege. Dask takes a broken comm for a dead worker: over TCP the job loses
its workers and mostly fails. Over RDS the comms wait until RDS has connected again.

Needs `pip install 'urds[dask]'`. Exit code 0 if the job over RDS was right and lost no worker.
"""

import argparse
import ctypes
import logging
import os
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

# Processes of one host would talk through shared memory, where there is no connection to reset.
os.environ["URDS_SHARED_MEMORY"] = "0"
os.environ["URDS_NODE"] = "inprocess"

import dask
from dask.distributed import Client, LocalCluster, SchedulerPlugin, WorkerPlugin, wait

PART_BYTES = 200_000
ESTABLISHED = "01"
PATIENCE_S = 60


def connections() -> list[int]:
    """Return descriptors of the established TCP connections of this process."""
    inodes = {
        line.split()[9]
        for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == ESTABLISHED
    }
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in inodes:
            found.append(int(entry.name))
    return found


class Resets(WorkerPlugin):
    """Resets a random TCP connection of the worker's process again and again."""

    name = "resets"

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self.count = 0

    def setup(self, worker: object) -> None:
        """Begin, in a thread."""
        self.ended = threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def teardown(self, worker: object) -> None:
        """End."""
        self.ended.set()

    def run(self) -> None:
        """Reset one connection after the other."""
        libc = ctypes.CDLL(None)
        nowhere = struct.pack("=H14x", socket.AF_UNSPEC)  # connect to it: Linux sends a RST
        while not self.ended.wait(self.every_s):
            found = connections()
            if found:
                self.count += not libc.connect(random.choice(found), nowhere, len(nowhere))


class Losses(SchedulerPlugin):
    """Counts the workers that the scheduler gave up."""

    name = "losses"

    def __init__(self) -> None:
        self.count = 0

    def remove_worker(self, **_: object) -> None:
        """Count one."""
        self.count += 1


def part(number: int, turn: int) -> bytes:
    return random.Random(number * 1000 + turn).randbytes(PART_BYTES)


def mixed_here(number: int, parts: Sequence[bytes]) -> int:
    return sum(one[number] * (place + 1) for place, one in enumerate(parts))


def mix(number: int, *parts: bytes) -> int:
    time.sleep(0.05)
    return mixed_here(number, parts)


def resets_so_far(dask_worker: object) -> int:
    return dask_worker.plugins["resets"].count


def run(scheme: str, options: argparse.Namespace, losses: Losses) -> str:
    """Run the job; return what became of it."""
    with (
        LocalCluster(
            protocol=scheme,
            n_workers=options.workers,
            threads_per_worker=1,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster, timeout=PATIENCE_S) as client,
    ):
        cluster.scheduler.add_plugin(losses)
        client.register_plugin(Resets(options.every_ms / 1000))
        total = expected = 0
        began_s = time.monotonic()
        for turn in range(options.turns):
            numbers = range(3 * options.workers)
            parts = client.map(part, numbers, turn=turn, pure=False)
            mixed = [client.submit(mix, number, *parts, pure=False) for number in numbers]
            wait(mixed, timeout=PATIENCE_S)
            total += sum(client.gather(mixed))
            local = [part(number, turn) for number in numbers]
            expected += sum(mixed_here(number, local) for number in numbers)
            print(f"  {scheme}: turn {turn + 1} of {options.turns}, workers lost: {losses.count}")
        resets = sum(client.run(resets_so_far).values())
        took_s = time.monotonic() - began_s
        cluster.scheduler.remove_plugin(losses.name)  # the end is no loss
    verdict = "right" if total == expected else "WRONG"
    return f"result {verdict} after {took_s:.1f} s and {resets} resets"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--turns", type=int, default=6, help="rounds of all to all")
    parser.add_argument("--every-ms", type=int, default=200, help="between two resets of a worker")
    parser.add_argument("--only", choices=["tcp", "rds"], help="one protocol instead of both")
    options = parser.parse_args()
    dask.config.set({"distributed.comm.timeouts.connect": "20s"})
    logging.disable(logging.CRITICAL)  # of lost workers there are many lines
    right_and_whole = True
    outcomes = []
    for scheme in [options.only] if options.only else ["tcp", "rds"]:
        losses = Losses()
        try:
            text = run(scheme, options, losses)
        except Exception as failure:  # noqa: BLE001 - whatever Dask makes of it
            text = f"job lost ({type(failure).__name__})"
        outcomes.append(f"{scheme}://  {text}, workers lost: {losses.count}")
        if scheme == "rds":
            right_and_whole = "right" in text and not losses.count
    print("\n".join(outcomes))
    return 0 if right_and_whole else 1


if __name__ == "__main__":
    sys.exit(main())
