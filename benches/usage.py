"""What processes used: processor time, and how often they slept.

A wake-up is a voluntary context switch: the end of a sleep. Times of other processes are counted in
nanoseconds too: `utime` of /proc would be too coarse for a message.
"""

import os
import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """The sums since the processes began."""

    cpu_ns: int
    wake_ups: int


def of(pids: Iterable[int]) -> Usage:
    """Return what these processes used; one that has ended counts as 0."""
    cpu_ns = wake_ups = 0
    for pid in pids:
        if pid == os.getpid():
            cpu_ns += time.process_time_ns()
            wake_ups += resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
            continue
        for thread in _threads(pid):
            with suppress(OSError, StopIteration):
                cpu_ns += int((thread / "schedstat").read_text(encoding="ascii").split()[0])
                status = (thread / "status").read_text(encoding="utf-8", errors="replace")
                line = next(one for one in status.splitlines() if one.startswith("voluntary"))
                wake_ups += int(line.split()[1])
    return Usage(cpu_ns, wake_ups)


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
