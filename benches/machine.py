"""What the figures depend on: processor, kernel, interpreter, versions, commit, load."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from peers.ours import plane

from urds.cli.conditions import look, look_again, words

_ROOT = Path(__file__).resolve().parent.parent
_COMMAND_WAIT_S = 5.0


def machine() -> dict[str, str]:
    """Return it as lines for the head of a report."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": f"{_cpu_model()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} vCPUs usable",
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "pyzmq": _version("pyzmq"),
        "trio": _version("trio"),
        "urds": f"{_version('urds', otherwise='from a checkout')}, {plane()} plane",
        "commit": _commit(),
        "load": f"{os.getloadavg()[0]:.2f} at the start",
    }


def conditions() -> dict[str, object]:
    """Measure what figures of this moment depend on; `urds.cli.conditions` explains it."""
    return look(None, spins="the rows that say so, and no other")


def told(found: dict[str, object]) -> dict[str, str]:
    """Return conditions as lines for the head of a report."""
    placed = "round trips on one vCPU and on two, others where the scheduler puts them"
    return {**words(found), "processes": placed}


def told_after(found: dict[str, object]) -> str:
    """Measure again and return what the end of a run was like, as a line."""
    look_again(found)
    return words({**found, **found["after"]})["cache line"]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _version(distribution: str, *, otherwise: str = "not installed") -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return otherwise


def _commit() -> str:
    """Return the commit, marked if the tree differs from it in what was measured."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + " (changed)" * bool(_git("status", "--porcelain", "src", "benches"))
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_ROOT), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=_COMMAND_WAIT_S
    )
    return done.stdout.strip()
