"""Dask over `rds://` beside `tcp://`: echoes of comms, tasks, all to all, connections at its peak.

Each round runs both protocols, one after the other, each in processes of its own (`dask_side`).
Processes of one host talk through shared memory, which is what a user gets.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from results import COUNT, MESSAGES_PER_S, NS, Line, Table, Verdict

KIND = "dask"
SCHEMES = ("rds", "tcp")
_SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "64 MiB": 1 << 26}
_WORKERS = (2, 4, 8)
_LATENCY_MAX = 1.2
_SIDE = Path(__file__).with_name("dask_side.py")
_PLACEMENT = "on any vCPU; no side spins"
_NS = 1_000_000_000


def measure(rounds: int, *, limit_s: float) -> tuple[list[Table], bool]:
    """Return the tables, and whether a protocol did not finish."""
    problem = "" if find_spec("distributed") else "distributed is not installed"
    failed = False
    found: dict[str, list[dict[str, float]]] = {scheme: [] for scheme in SCHEMES}
    for number in range(0 if problem else rounds):
        for scheme in SCHEMES[:: -1 if number % 2 else 1]:
            try:
                found[scheme].append(_run(scheme, limit_s))
            except (subprocess.SubprocessError, ValueError) as error:
                problem, failed = f"{scheme}: {type(error).__name__}", True
        if failed:
            break
    tables = [_table("Dask, a task there and back, 2 workers", "task", NS, found, problem)]
    for name, size in _SIZES.items():
        tables.append(
            _table(
                f"Dask, a comm's echoes of {name}", f"echo {name}", MESSAGES_PER_S, found, problem,
                payload_bytes=2 * size,
            )
        )  # fmt: skip
    for workers in _WORKERS:
        tables += [
            _table(f"Dask, all to all of {workers} workers, {what}", name, unit, found, problem)
            for what, name, unit in (
                (f"{workers**2} parts of 256 KiB to each", f"shuffle {workers}", NS),
                ("TCP connections at peak", f"connections {workers}", COUNT),
                ("descriptors at peak", f"descriptors {workers}", COUNT),
            )
        ]
    return tables, failed


def _run(scheme: str, limit_s: float) -> dict[str, float]:
    """Run one protocol. Raises SubprocessError, ValueError."""
    with subprocess.Popen(
        [sys.executable, str(_SIDE), scheme], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as side:  # fmt: skip
        try:
            out, _ = side.communicate(timeout=4 * limit_s)
        finally:
            if side.poll() is None:
                os.killpg(side.pid, signal.SIGKILL)
    found: dict[str, float] = json.loads(out)
    return found


def _table(
    title: str,
    name: str,
    unit: str,
    found: dict[str, list[dict[str, float]]],
    problem: str,
    *,
    payload_bytes: int = 0,
) -> Table:
    figures = {scheme: [one[name] for one in found[scheme]] for scheme in SCHEMES}
    if unit == MESSAGES_PER_S:
        figures = {scheme: [_NS / one for one in data] for scheme, data in figures.items()}
    if problem or not all(figures.values()):
        lines = [Line(one, f"{one}://", problem or "not measured") for one in SCHEMES]
    else:
        ours, other = (statistics.median(figures[scheme]) for scheme in SCHEMES)
        ratio = ours / other if other else None
        lines = [_line(scheme, figures[scheme], None) for scheme in SCHEMES]
        lines[1] = _line("tcp", figures["tcp"], ratio, _verdicts(name, ratio))
    return Table(
        kind=KIND,
        title=title,
        unit=unit,
        payload_bytes=payload_bytes,
        rounds=len(figures["rds"]),
        placement=_PLACEMENT,
        subject="rds://",
        lines=tuple(lines),
    )


def _verdicts(name: str, ratio: float | None) -> tuple[Verdict, ...]:
    """Return the goal of a figure: of a task's time at most 1.2, of bytes a second 1 at least."""
    if ratio is None or not name.startswith(("task", "echo")):
        return ()
    if name == "task":
        return (Verdict(None, _LATENCY_MAX, at_most=True, reached=ratio <= _LATENCY_MAX),)
    return (Verdict(None, 1, at_most=False, reached=ratio >= 1),)


def _line(
    scheme: str, data: list[float], ratio: float | None, verdicts: tuple[Verdict, ...] = ()
) -> Line:
    return Line(
        scheme,
        f"{scheme}://",
        median=statistics.median(data),
        lowest=min(data),
        highest=max(data),
        ratio=ratio,
        verdicts=verdicts,
        rounds=tuple({"figure": one} for one in data),
    )
