"""What the soak says: a line each minute, and the summary with its verdict at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from tests.soak.measures import MIB, Trend, trend
from tests.soak.messages import ERRORS, Counters
from tests.soak.processes import RoleProcess

_RESTARTED: Final = "restarted"


def totals(processes: Sequence[RoleProcess]) -> Counters:
    """Return the sum of all counts."""
    total = Counters()
    for process in processes:
        total.add(process.counters)
    return total


def progress(processes: Sequence[RoleProcess], elapsed_s: float) -> str:
    """Return one line: counts, then memory, descriptors and threads of each process."""
    total = totals(processes)
    looks = "  ".join(
        f"{one.plan.role} {last.rss_bytes / MIB:.1f} MiB {last.descriptors} fd {last.threads} th"
        for one in processes
        if one.plan.role != _RESTARTED and one.samples
        for last in one.samples[-1:]
    )
    restarts = sum(one.restarts for one in processes)
    failures = sum(one.failures for one in processes)
    clock = time.strftime("%H:%M:%S", time.gmtime())
    return (
        f"{clock} {elapsed_s / 60:5.1f} min  {total.messages:,} messages"
        f"  {total.byte_count / MIB:,.0f} MiB  {total.errors + failures} errors"
        f"  {total.resets} resets  {restarts} restarts"
        f"  {total.sockets} sockets | {looks}"
    )


def summary(
    processes: Sequence[RoleProcess], elapsed_s: float, *, window_s: float
) -> dict[str, Any]:
    """Return everything, for JSON: totals, and trends of the long-lived processes."""
    total = totals(processes)
    trends = {
        one.plan.role: found
        for one in processes
        if one.plan.role != _RESTARTED and (found := trend(one.samples, window_s=window_s))
    }
    failures = sum(one.failures for one in processes)
    return {
        "minutes": round(elapsed_s / 60, 2),
        **total.as_dict(),
        "errors": total.errors + failures,
        "failures": failures,
        "restarts": sum(one.restarts for one in processes),
        "cpu_share": round(sum(one.cpu_s for one in processes) / max(elapsed_s, 1e-9), 3),
        "processes": {role: _row(one) for role, one in trends.items()},
        "is_judged": bool(trends) and all(one.is_judged for one in trends.values()),
        "is_flat": all(one.is_flat for one in trends.values()),
    }


def is_good(found: dict[str, Any]) -> bool:
    """Return the verdict: messages came, no error, nothing grew."""
    return bool(found["messages"] and not found["errors"] and found["is_flat"])


def text(found: dict[str, Any]) -> str:
    """Return the summary for people."""
    lines = [
        f"{found['minutes']} minutes, {found['messages']:,} messages,"
        f" {found['byte_count'] / MIB:,.0f} MiB, {found['resets']} resets,"
        f" {found['restarts']} restarts, {found['sockets']} sockets opened,"
        f" {found['cpu_share']:.0%} of a core",
        ", ".join(f"{found[name]} {name}" for name in ERRORS)
        + f", {found['failures']} processes failed",
        f"not errors: {found['excused']} operations ended by resets,"
        f" {found['stale']} messages for earlier lives",
        "",
        f"{'process':14} {'MiB':>13} {'MiB/h':>13} {'descriptors':>12} {'threads':>8}",
    ]
    for role, row in found["processes"].items():
        lines.append(
            f"{role:14} {row['rss_mib'][0]:6.1f} {row['rss_mib'][1]:6.1f}"
            f" {_slope(row) if found['is_judged'] else '-':>13}"
            f" {row['descriptors'][0]:6} {row['descriptors'][1]:5}"
            f" {row['threads'][0]:4} {row['threads'][1]:3}"
        )
    lines += ["", f"verdict: {_verdict(found)}"]
    return "\n".join(lines)


def _verdict(found: dict[str, Any]) -> str:
    if not is_good(found):
        grew = "" if found["is_flat"] else ", something grew"
        return f"FAILED: {found['errors']} errors{grew}"
    if not found["is_judged"]:
        return "no errors; too short to judge growth"
    return "no errors, memory and descriptors flat"


def _slope(row: dict[str, Any]) -> str:
    return f"{row['slope_mib_per_hour']:.2f} ±{row['slope_error_mib_per_hour']:.2f}"


def _row(one: Trend) -> dict[str, Any]:
    return {
        "rss_mib": [round(one.rss_first_mib, 2), round(one.rss_last_mib, 2)],
        "slope_mib_per_hour": round(one.slope_mib_per_hour, 2),
        "slope_error_mib_per_hour": round(one.slope_error_mib_per_hour, 2),
        "descriptors": [one.descriptors_first, one.descriptors_last],
        "threads": [one.threads_first, one.threads_last],
        "is_flat": one.is_flat,
    }
