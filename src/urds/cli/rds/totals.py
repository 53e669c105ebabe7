"""Sums over the reports of processes and their growth: the summary of `urds info`, and --watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from urds.cli.output import TITLE, Exit, Output, columns
from urds.common.types import IPAddress
from urds.rds.runtime.processes import Report

_Number = TypeVar("_Number", int, float)

# Key in a snapshot and in JSON, and what its messages wait for.
_QUEUES: Final = {
    "receive_queue": "to be received",
    "send_queue": "to be sent",
    "retransmit_queue": "to be acknowledged",
}
_LEVELS: Final = frozenset({"connected_peers", "connected_peers_max"})  # at no rate
_GROWING: Final = ("send_queued", "recv_queued", "connects", "progress_thread_passes")


def of_peer(report: Report, peer: IPAddress) -> Report:
    """Return a report without the connections to other peers, and their messages."""
    snapshot = report.snapshot
    kept: dict[str, Any] = {
        name: [row for row in getattr(snapshot, name) if row.peer == peer]
        for name in ("paths", *_QUEUES)
    }
    return replace(report, snapshot=replace(snapshot, **kept))


def sum_counters(reports: Sequence[Report]) -> dict[str, int]:
    """Add the counters up, in the order of the longest list: others may lack RDMA's."""
    sums: dict[str, int] = {}
    for report in sorted(reports, key=lambda one: len(one.counters), reverse=True):
        for name, value in report.counters.items():
            sums[name] = sums.get(name, 0) + value
    return sums


def totals(reports: Sequence[Report]) -> dict[str, Any]:
    """Return how many processes, sockets and connections there are, and what is queued."""
    snapshots = [report.snapshot for report in reports]
    paths = [row for snapshot in snapshots for row in snapshot.paths if row.is_listed]
    queues = {}
    for name in _QUEUES:
        rows = (row for snapshot in snapshots for row in getattr(snapshot, name))
        sizes = [row.payload_bytes for row in rows]
        queues[name] = {"messages": len(sizes), "bytes": sum(sizes)}
    return {
        "processes": len(reports),
        "sockets": sum(len(snapshot.mailboxes) for snapshot in snapshots),
        "connections": len(paths),
        "connections_up": sum(row.up for row in paths),
        **queues,
    }


def headlines(found: Mapping[str, Any]) -> list[str]:
    """Return totals as lines."""
    queues = [(found[name], text) for name, text in _QUEUES.items()]
    return [
        f"processes {found['processes']}, sockets {found['sockets']},"
        f" connections {found['connections']}, of them up {found['connections_up']}",
        "messages "
        + ", ".join(f"{text} {one['messages']} ({one['bytes']} bytes)" for one, text in queues),
    ]


def largest(counts: Mapping[str, _Number], top: int) -> dict[str, _Number]:
    """Return the largest counts, the largest first."""
    return dict(sorted(counts.items(), key=lambda one: -one[1])[:top])


@dataclass(frozen=True, slots=True)
class _Moment:
    """What the processes had at one time."""

    at_s: float
    reports: Sequence[Report]

    def rates(self, earlier: _Moment) -> dict[str, float]:
        """Return what each counter grew by in a second; of a process that is new, from 0.

        A process that had no socket for a while begins anew: then some are less than before.
        """
        before = {report.pid: report.counters for report in earlier.reports}
        grown: dict[str, int] = {}
        for report in self.reports:
            known = before.get(report.pid, {})
            if any(report.counters.get(name, 0) < known.get(name, 0) for name in _GROWING):
                known = {}
            for name, value in report.counters.items():
                grown[name] = grown.get(name, 0) + value - known.get(name, 0)
        elapsed_s = self.at_s - earlier.at_s
        rates = {name: round(count / elapsed_s, 1) for name, count in grown.items() if count}
        return {name: rate for name, rate in rates.items() if name not in _LEVELS}


def watch(
    ask: Callable[[], Sequence[Report]], output: Output, interval_s: float, top: int | None
) -> Exit:
    """Print totals and rates after each interval; at Ctrl-C those since the start."""
    first = last = _Moment(time.monotonic(), ask())
    try:
        while True:
            time.sleep(interval_s)
            earlier, last = last, _Moment(time.monotonic(), ask())
            _show(output, earlier, last, top)
    except KeyboardInterrupt:
        if last is not first:
            _show(output, first, last, top, average=True)
        return Exit.INTERRUPTED


def _show(
    output: Output, earlier: _Moment, now: _Moment, top: int | None, *, average: bool = False
) -> None:
    rates, sums = now.rates(earlier), sum_counters(now.reports)
    if top is not None:
        rates = largest(rates, top)
    found, seconds = totals(now.reports), round(now.at_s - earlier.at_s, 3)
    output.record({"average": average, "seconds": seconds, **found, "per_second": rates})
    title = f"since the start, {seconds:.1f} s" if average else time.strftime("%H:%M:%S")
    output.line()
    output.line(f"{title}:", TITLE)
    for line in headlines(found):
        output.line(line)
    if rates:
        rows = [(name, sums[name], f"{rate:.1f}") for name, rate in rates.items()]
        output.table("", columns("CounterName:34|Value:16|PerSecond:12"), rows)
