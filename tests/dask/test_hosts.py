"""Dask between two hosts, network namespaces with a node each; needs root. In `make dask`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from tests.cli.commands import environment
from tests.support import places, planes
from tests.support.places import Namespaces
from tests.support.waiting import wait_until
from urds.rds.node import commands
from urds.rds.plane.choose import NATIVE

PORT = 8786
START_S = 60
JOB = """
import sys
from distributed import Client, wait

def part(number):
    return bytes([number]) * (1 << 20)

def mix(number, *parts):
    return sum(one[number] for one in parts)

with Client(sys.argv[1], timeout=60) as client:
    client.wait_for_workers(2, timeout=60)
    workers = sorted(client.scheduler_info()["workers"])
    parts = [client.submit(part, n, workers=[workers[n % 2]], pure=False) for n in range(12)]
    wait(parts, timeout=60)
    print("parts", flush=True)
    for round in range(6):
        mixed = [
            client.submit(mix, n, *parts, workers=[workers[n % 2]], pure=False) for n in range(12)
        ]
        assert client.gather(mixed) == [sum(range(12))] * 12
    assert sorted(client.scheduler_info()["workers"]) == workers
    print("right", flush=True)
"""


@dataclass
class Cluster:
    """Two hosts; a scheduler on the left one, a worker on each."""

    hosts: Namespaces
    folder: Path
    ending: ExitStack

    def place(self, host: int) -> str:
        """Return the socket of a host's node."""
        return str(self.folder / f"{host}.sock")

    def start(self, host: int, *words: str) -> "subprocess.Popen[str]":
        """Run a module at a host; it ends with the cluster."""
        # In a session of its own: a worker is a child of the process that this starts.
        with (self.folder / f"{host}-{words[0]}.log").open("w") as log:
            process = subprocess.Popen(
                [*self.hosts.prefix(host), sys.executable, "-m", *words],
                env=environment({"URDS_NODE": self.place(host)}), text=True, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
            )  # fmt: skip
        self.ending.callback(process.wait)
        self.ending.callback(os.killpg, process.pid, signal.SIGKILL)
        return process

    @property
    def scheduler(self) -> str:
        """Return its address."""
        return f"rds://{self.hosts.address(0)}:{PORT}"

    def node_worker(self, host: int) -> int:
        """Return the process that carries for a host's node."""
        return int(commands.status(self.place(host))["worker"])

    def answers(self, host: int) -> bool:
        """Tell whether a host's node is there."""
        try:
            return self.node_worker(host) > 0
        except OSError:
            return False


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Start it all."""
    if reason := places.missing():
        pytest.skip(reason)
    if planes.in_use() != NATIVE:
        pytest.skip("nodes are of the compiled plane")
    with ExitStack() as ending:
        hosts = Namespaces(ipv6=False)
        ending.callback(hosts.close)
        made = Cluster(hosts, tmp_path, ending)
        for host in (0, 1):
            made.start(host, "urds", "node", "--socket", made.place(host))
        for host in (0, 1):
            wait_until(lambda host=host: made.answers(host), START_S)
        made.start(
            0, "distributed.cli.dask_scheduler", "--protocol", "rds", "--host", hosts.address(0),
            "--port", str(PORT), "--no-dashboard",
        )  # fmt: skip
        for host in (0, 1):
            made.start(
                host, "distributed.cli.dask_worker", made.scheduler, "--nthreads", "1",
                "--no-dashboard",
            )  # fmt: skip
        yield made


def test_a_job_outlives_the_worker_of_a_node(cluster: Cluster) -> None:
    """Killed under its transfers, and started again by the supervisor: nothing is lost."""
    client = subprocess.Popen(
        [*cluster.hosts.prefix(0), sys.executable, "-c", JOB, cluster.scheduler],
        env=environment({"URDS_NODE": cluster.place(0)}), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with client:
        assert client.stdout.readline() == "parts\n"
        before = cluster.node_worker(1)
        os.kill(before, signal.SIGKILL)
        assert client.communicate(timeout=100)[0] == "right\n"
    wait_until(lambda: cluster.answers(1) and cluster.node_worker(1) != before, START_S)
