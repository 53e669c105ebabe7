"""Faults for jobs of Dask, to see what they survive: resets of connections; lost workers, counted.

Plug-ins of Dask for `rds://`, `tcp://` and others: `urds dask demo` and `examples/dask_survives.py`
use them. For Linux.
"""

from __future__ import annotations

import ctypes
import random
import socket
import struct
import threading
from pathlib import Path
from typing import Final

from distributed import SchedulerPlugin, WorkerPlugin

_ESTABLISHED: Final = "01"  # in /proc/net/tcp. Source: linux v6.12 include/net/tcp_states.h
_STATE_FIELD: Final = 3
_INODE_FIELD: Final = 9
_NOWHERE: Final = struct.pack("=H14x", socket.AF_UNSPEC)  # connect to it: Linux sends a RST


class Resets(WorkerPlugin):
    """Resets a random TCP connection of each worker's process, again and again.

    As a firewall does that forgets it, and without any privilege. A connection of the worker's
    heartbeats may be the one, or that to another worker, or to the scheduler.
    """

    name = "urds-resets"

    def __init__(self, every_s: float, count_file: Path) -> None:
        """Take the time between two resets of a worker, and a file of one byte for each.

        The file outlives the workers; it counts those of this host.
        """
        self.every_s, self.count_file = every_s, str(count_file)

    def setup(self, worker: object) -> None:
        """Begin, in a thread of the worker's process."""
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="urds-resets", daemon=True).start()

    def teardown(self, worker: object) -> None:
        """End."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self.every_s):
            if reset_one():
                with Path(self.count_file).open("ab") as file:
                    file.write(b".")


def reset_one() -> bool:
    """Reset a random established TCP connection of this process; False if there is none."""
    found = _connections()
    if not found:
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.connect(random.choice(found), _NOWHERE, len(_NOWHERE)) == 0)


def _connections() -> list[int]:
    """Return the descriptors of the established TCP connections of this process."""
    inodes = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        lines = _lines(Path(table))[1:]
        rows = (line.split() for line in lines)
        inodes |= {row[_INODE_FIELD] for row in rows if row[_STATE_FIELD] == _ESTABLISHED}
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:[") and target[len("socket:[") : -1] in inodes:
            found.append(int(entry.name))
    return found


def _lines(table: Path) -> list[str]:
    try:
        return table.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:  # a host without IPv6
        return []


class Losses(SchedulerPlugin):
    """Counts the workers that the scheduler lost."""

    name = "urds-losses"

    def __init__(self) -> None:
        self.count = 0

    def remove_worker(self, **_: object) -> None:
        """Count one."""
        self.count += 1
