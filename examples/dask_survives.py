"""A Dask job over `rds://` whose connections are reset all the time, and that does not notice.

`Resets` resets a TCP connection of each worker every 200 ms, as a firewall that forgets it would.
Dask takes a broken comm for a dead worker: with `tcp` as the argument the same program loses its
workers, and mostly ends with an exception. `urds dask demo` compares the two.

Needs `pip install 'urds[dask]'`. Exit code 0 if the result was right and no worker was lost.
"""

import os
import sys
import tempfile
from pathlib import Path

# Processes of one host would talk through shared memory, where there is no connection to reset.
os.environ["URDS_SHARED_MEMORY"] = "0"
os.environ["URDS_NODE"] = "inprocess"

from dask.distributed import Client, LocalCluster

from urds.dask.faults import Losses, Resets

PARTS = 12
PART_BYTES = 500_000
RESET_EVERY_S = 0.2


def part(number: int, round_number: int) -> bytes:
    return bytes([(number + round_number) % 251]) * PART_BYTES


def mix(number: int, parts: list[bytes]) -> int:
    return sum(one[number] for one in parts)


def main() -> int:
    scheme = sys.argv[1] if len(sys.argv) > 1 else "rds"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    losses = Losses()
    with (
        tempfile.NamedTemporaryFile() as count_file,
        LocalCluster(
            protocol=scheme, n_workers=3, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        cluster.scheduler.add_plugin(losses)
        client.register_plugin(Resets(RESET_EVERY_S, Path(count_file.name)))
        is_right = True
        for round_number in range(rounds):
            parts = client.map(part, range(PARTS), round_number=round_number)
            mixed = client.map(mix, range(PARTS), parts=parts)  # each task needs every part
            local = [part(number, round_number) for number in range(PARTS)]
            is_right &= client.gather(mixed) == [mix(number, local) for number in range(PARTS)]
        resets, lost = Path(count_file.name).stat().st_size, losses.count
    verdict = "right" if is_right else "WRONG"
    print(f"{scheme}://  result {verdict}, workers lost {lost}, resets {resets}")
    return 0 if is_right and not lost else 1


if __name__ == "__main__":
    sys.exit(main())
