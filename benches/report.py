"""The report: a table per work for people, the same as records for programs."""

import os
import platform
import statistics
import subprocess
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pair import Sample
from peers import BY_NAME, OURS
from peers.base import Kind
from works import Work, goal_for, processors

_ROOT = Path(__file__).resolve().parent.parent
_COMMAND_WAIT_S = 5.0
_LABEL_WIDTH = max(len(peer.label) for peer in BY_NAME.values())


@dataclass(slots=True)
class Row:
    """One peer at one work. Not frozen: rounds add to it."""

    peer: str
    samples: list[Sample] = field(default_factory=list)
    problem: str = ""  # why there are no samples, or no more of them
    failed: bool = False  # it was there and did not finish
    note: str = ""

    def fail(self, reason: str) -> None:
        """Take the figures out of the table and say why."""
        self.problem, self.failed = reason, True

    @property
    def measured(self) -> bool:
        """Tell whether the figures count: a peer that broke off has none."""
        return bool(self.samples) and not self.problem

    def median(self, field_name: str) -> float:
        """Return the median over the rounds of one field of the samples."""
        return float(statistics.median(getattr(sample, field_name) for sample in self.samples))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Our figure beside one peer's."""

    ratio: float
    goal: float | None
    reached: bool | None  # None without a goal


def figure(work: Work, row: Row) -> float:
    """Return what is compared: messages per second, or nanoseconds of the median round trip."""
    return row.median("p50_ns" if work.kind is Kind.ROUND_TRIP else "rate")


def compare(work: Work, rows: list[Row], row: Row) -> Comparison | None:
    """Return ours divided by the peer's figure, or None if one of the two is missing."""
    ours = next((one for one in rows if one.peer == OURS), None)
    if ours is None or row is ours or not (ours.measured and row.measured):
        return None
    ratio = figure(work, ours) / figure(work, row)
    goal = goal_for(work)
    if goal is None or goal.peer != row.peer:
        return Comparison(ratio, None, None)
    reached = ratio <= goal.ratio if work.kind is Kind.ROUND_TRIP else ratio >= goal.ratio
    return Comparison(ratio, goal.ratio, reached)


def machine() -> dict[str, str]:
    """Return what the figures depend on."""
    return {
        "cpu": f"{_cpu_model()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} vCPUs usable",
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "pyzmq": _version("pyzmq"),
        "urds": _version("urds", otherwise="no installed distribution"),
        "commit": _commit(),
        "load": f"{os.getloadavg()[0]:.2f} at the start",
    }


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


def render(work: Work, rows: list[Row]) -> str:
    """Return the table of one work."""
    rounds = max((len(row.samples) for row in rows), default=0)
    lines = [f"{work.title}  ({rounds} rounds, {_placement(work)})", _header(work)]
    for row in rows:
        label = f"  {BY_NAME[row.peer].label:<{_LABEL_WIDTH}}"
        if not row.measured:
            lines.append(f"{label}  {row.problem or 'not measured'}")
            continue
        lines.append((label + _figures(work, row) + _compared(work, rows, row)).rstrip())
    lines += [f"  {BY_NAME[row.peer].label}: {row.note}" for row in rows if row.note]
    return "\n".join(lines)


def _placement(work: Work) -> str:
    cpus = processors(work.placement)
    if cpus is None:
        return work.placement.value
    receiver, sender = (",".join(map(str, sorted(one))) for one in cpus)
    return f"{work.placement.value}: receiver on {receiver}, sender on {sender}"


def _header(work: Work) -> str:
    if work.kind is Kind.ROUND_TRIP:
        figures = f"{'p50 us':>12}{'lowest':>12}{'highest':>12}{'p99 us':>10}"
    else:
        figures = f"{'messages/s':>12}{'lowest':>12}{'highest':>12}{'MB/s':>10}"
    return f"  {'':<{_LABEL_WIDTH}}{figures}{'CPU us':>9}{'ours/peer':>11}  goal"


def _figures(work: Work, row: Row) -> str:
    cpu = f"{row.median('cpu_ns') / 1000:>9.2f}"
    if work.kind is Kind.ROUND_TRIP:
        times_us = [sample.p50_ns / 1000 for sample in row.samples]
        spread = f"{min(times_us):>12.1f}{max(times_us):>12.1f}"
        p99_us = row.median("p99_ns") / 1000
        return f"{figure(work, row) / 1000:>12.1f}{spread}{p99_us:>10.1f}{cpu}"
    rates = [sample.rate for sample in row.samples]
    rate = figure(work, row)
    spread = f"{min(rates):>12,.0f}{max(rates):>12,.0f}"
    return f"{rate:>12,.0f}{spread}{rate * work.payload_bytes / 1e6:>10,.1f}{cpu}"


def _compared(work: Work, rows: list[Row], row: Row) -> str:
    goal = goal_for(work)
    bound = ""
    if goal is not None and goal.peer == row.peer:
        sign = "<=" if work.kind is Kind.ROUND_TRIP else ">="
        bound = f"{sign} {goal.ratio:g}"
    compared = compare(work, rows, row)
    if compared is None:
        return f"{'-':>11}  {bound}"
    verdict = {None: "", True: ": reached", False: ": missed"}[compared.reached]
    return f"{compared.ratio:>10.2f}x  {bound}{verdict}"


def record(work: Work, rows: list[Row]) -> dict[str, Any]:
    """Return one work as JSON takes it, each round in full."""
    cpus = processors(work.placement)
    return {
        "kind": work.kind.value,
        "payload_bytes": work.payload_bytes,
        "senders": work.senders,
        "placement": work.placement.value,
        "cpus": None if cpus is None else {"receiver": sorted(cpus[0]), "sender": sorted(cpus[1])},
        "rows": [_row_record(work, rows, row) for row in rows],
    }


def _row_record(work: Work, rows: list[Row], row: Row) -> dict[str, Any]:
    compared = compare(work, rows, row)
    return {
        "peer": row.peer,
        "problem": row.problem,
        "note": row.note,
        "median": figure(work, row) if row.measured else None,
        "unit": "ns" if work.kind is Kind.ROUND_TRIP else "messages/s",
        "ours_by_peer": None if compared is None else compared.ratio,
        "goal": None if compared is None else compared.goal,
        "reached": None if compared is None else compared.reached,
        "rounds": [
            {
                "messages": sample.messages,
                "elapsed_ns": sample.elapsed_ns,
                "cpu_ns": sample.cpu_ns,
                "p50_ns": sample.p50_ns,
                "p99_ns": sample.p99_ns,
            }
            for sample in row.samples
        ],
    }
