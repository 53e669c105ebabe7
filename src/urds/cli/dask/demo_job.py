"""The job of `urds dask demo`, over one protocol, in a process of its own.

The plan comes as JSON on the command line. What happens leaves as one JSON object a line:
`progress` again and again, then `done`, `lost` or `failed`. The process ends when its cluster is
closed.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dask
from distributed import Client, LocalCluster, wait

from urds.dask.faults import Losses, Resets

PART_BYTES: Final = 200_000
PARTS_OF_WORKER: Final = 3
_MIX_S: Final = 0.05  # of work, beside the transfers
_TELL_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run."""

    scheme: str
    workers: int
    rounds: int
    reset_every_s: float  # 0 for none
    patience_s: float  # for the whole job

    @property
    def numbers(self) -> range:
        """Number the parts of a round; each is mixed with all others."""
        return range(PARTS_OF_WORKER * self.workers)


def part(number: int, round_number: int) -> bytes:
    """Return a part: its content follows from its numbers."""
    return random.Random(number * 1000 + round_number).randbytes(PART_BYTES)


def mixed(number: int, parts: Sequence[bytes]) -> int:
    """Mix a bit of all parts."""
    return sum(one[number] * (place + 1) for place, one in enumerate(parts))


def mix(number: int, *parts: bytes) -> int:
    """Do so as a task."""
    time.sleep(_MIX_S)
    return mixed(number, parts)


def expected(plan: Plan) -> int:
    """Return the result of the job, worked out in this process."""
    total = 0
    for round_number in range(plan.rounds):
        parts = [part(number, round_number) for number in plan.numbers]
        total += sum(mixed(number, parts) for number in plan.numbers)
    return total


class Job:
    """The job, and a thread that tells how far it is."""

    def __init__(self, plan: Plan, count_file: Path) -> None:
        self.plan, self._count_file = plan, count_file
        self.losses = Losses()
        self.began_s = time.monotonic()
        self._done = 0
        self._futures: list[Any] = []
        self._ended = threading.Event()

    def run(self, cluster: LocalCluster, client: Client) -> int:
        """Return the result. Raises whatever Dask makes of a lost worker."""
        plan = self.plan
        cluster.scheduler.add_plugin(self.losses)
        if plan.reset_every_s:
            client.register_plugin(Resets(plan.reset_every_s, self._count_file))
        self.began_s = time.monotonic()
        threading.Thread(target=self._tell, daemon=True).start()
        total = 0
        for round_number in range(plan.rounds):
            parts = client.map(part, plan.numbers, round_number=round_number, pure=False)
            self._futures = [
                client.submit(mix, number, *parts, pure=False) for number in plan.numbers
            ]
            wait(self._futures, timeout=self._left_s())
            total += sum(client.gather(self._futures))
            self._done += len(self._futures)
            self._futures = []
        return total

    def end(self, event: str, **details: object) -> None:
        """Tell the last words; losses after them are the end of the cluster and do not count."""
        self._ended.set()
        tell(event, **self.state(), **details)

    def state(self) -> dict[str, object]:
        """Return how far it is."""
        done = self._done + sum(future.status == "finished" for future in self._futures)
        return {
            "tasks": done,
            "workers_lost": self.losses.count,
            "resets": self._count_file.stat().st_size,
            "seconds": round(time.monotonic() - self.began_s, 3),
        }

    def _left_s(self) -> float:
        return max(0.1, self.plan.patience_s - (time.monotonic() - self.began_s))

    def _tell(self) -> None:
        while not self._ended.wait(_TELL_S):
            tell("progress", **self.state())


def tell(event: str, **details: object) -> None:
    """Report to the command."""
    # One write: two threads report.
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()


def run(plan: Plan, count_file: Path) -> None:
    """Run the job and report."""
    job = Job(plan, count_file)
    with (
        LocalCluster(
            protocol=plan.scheme, n_workers=plan.workers, threads_per_worker=1,
            dashboard_address=None, silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        try:
            result = job.run(cluster, client)
        except Exception as failure:  # noqa: BLE001 - Dask has many kinds for a lost worker
            job.end("lost", reason=type(failure).__name__)
        else:
            job.end("done", is_right=result == expected(plan))


def main() -> int:
    """Run the plan of the command line."""
    plan = Plan(**json.loads(sys.argv[1]))
    dask.config.set({"distributed.comm.timeouts.connect": f"{plan.patience_s}s"})
    logging.disable(logging.CRITICAL)  # a lost worker leaves many lines
    with tempfile.NamedTemporaryFile(prefix="urds-dask-demo-") as count_file:
        try:
            run(plan, Path(count_file.name))
        except Exception as failure:  # noqa: BLE001 - told, with its text, to the command
            tell("failed", reason=f"{type(failure).__name__}: {failure}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
