"""What the soak measures of its processes, and the verdict over it.

Memory, descriptors and threads come from outside, from /proc, so that a process that stands still
is measured too. Source: proc(5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, linear_regression, median
from typing import Final

MIB: Final = 1 << 20
SLOPE_MIB_PER_HOUR_MAX: Final = 1.0
JUDGED_SECONDS_MIN: Final = 600.0  # of the second half: less says nothing about an hour
DESCRIPTORS_MORE_MAX: Final = 2  # a connection that is being made has two for a moment


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process."""

    at_s: float  # since the start of the soak
    rss_bytes: int
    descriptors: int
    threads: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Trend:
    """What became of one process over the second half of its samples."""

    rss_first_mib: float
    rss_last_mib: float
    slope_mib_per_hour: float
    slope_error_mib_per_hour: float  # standard error: chance makes twice as much one time in twenty
    descriptors_first: int
    descriptors_last: int
    threads_first: int
    threads_last: int
    seconds: float

    @property
    def is_judged(self) -> bool:
        """Tell whether the time was long enough for a slope."""
        return self.seconds >= JUDGED_SECONDS_MIN

    @property
    def is_flat(self) -> bool:
        """Tell whether nothing grew; for a short run, that nothing is known."""
        return not self.is_judged or (
            self.slope_mib_per_hour - 2 * self.slope_error_mib_per_hour < SLOPE_MIB_PER_HOUR_MAX
            and self.descriptors_last <= self.descriptors_first + DESCRIPTORS_MORE_MAX
            and self.threads_last <= self.threads_first
        )


def look(pid: int, at_s: float, *, ticks_per_s: int) -> Sample | None:
    """Look at a process; None if it has ended."""
    place = Path(f"/proc/{pid}")
    try:
        status = dict(
            line.split(":", 1) for line in (place / "status").read_text("ascii").splitlines()
        )
        times = (place / "stat").read_text("ascii").rpartition(")")[2].split()
        descriptors = sum(1 for _ in (place / "fd").iterdir())
    except (OSError, ValueError):
        return None
    if "VmRSS" not in status:  # a zombie has no memory
        return None
    return Sample(
        at_s=at_s,
        rss_bytes=int(status["VmRSS"].split()[0]) << 10,
        descriptors=descriptors,
        threads=int(status["Threads"]),
        cpu_s=(int(times[11]) + int(times[12])) / ticks_per_s,
    )


def trend(samples: Sequence[Sample], *, window_s: float) -> Trend | None:
    """Return the trend over the second half; None with fewer than four windows in it.

    Of each window the lowest sample counts for memory: above it lie messages of 1 MiB under way.
    The slope is that of the least squares. Of the half's own two halves memory has the median;
    descriptors and threads, of which connections that are being made have more, the lowest.
    """
    half = samples[len(samples) // 2 :]
    windows: dict[int, Sample] = {}
    for one in half:
        lowest = windows.setdefault(int(one.at_s // window_s), one)
        if one.rss_bytes < lowest.rss_bytes:
            windows[int(one.at_s // window_s)] = one
    points = [(one.at_s / 3600, one.rss_bytes / MIB) for one in windows.values()]
    if len(points) < 4:
        return None
    slope, error = _slope(points)
    middle = len(half) // 2
    early, late = half[:middle], half[middle:]
    return Trend(
        rss_first_mib=median(mib for _, mib in points[: len(points) // 2]),
        rss_last_mib=median(mib for _, mib in points[len(points) // 2 :]),
        slope_mib_per_hour=slope,
        slope_error_mib_per_hour=error,
        descriptors_first=min(one.descriptors for one in early),
        descriptors_last=min(one.descriptors for one in late),
        threads_first=min(one.threads for one in early),
        threads_last=min(one.threads for one in late),
        seconds=half[-1].at_s - half[0].at_s,
    )


def _slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope of the least squares and its standard error."""
    slope, intercept = linear_regression(*zip(*points, strict=True))
    hours = [hour for hour, _ in points]
    spread = sum((hour - fmean(hours)) ** 2 for hour in hours)
    squares = sum((mib - intercept - slope * hour) ** 2 for hour, mib in points)
    return slope, sqrt(squares / (len(points) - 2) / spread)
