"""What the figures of a run depend on: processors, the floor of a cache line, memory, who polls.

A cache line takes 0.03 to 0.05 us there and back between siblings of one core, 0.1 us within a
cache, 0.45 us across: a round trip is some multiple of that, so it stands beside the figures. So
do copies of the same sizes, for a stream moves bytes by copying them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final

from urds.cli.output import TITLE, Output, UsageError

COPY_SIZES: Final = (1 << 16, 1 << 20, 1 << 24)
_COPY_S: Final = 0.02
_ROUNDS: Final = 5


def processors_of(text: str | None) -> tuple[int, int] | None:
    """Return the processors of client and server. Raises UsageError for others than there are."""
    if text is None:
        return None
    usable = os.sched_getaffinity(0)
    numbers = [int(word) for word in text.split(",") if word.isdecimal()]
    if len(numbers) != 2 or not usable >= set(numbers) or text.count(",") != 1:
        raise UsageError(f"--place {text}: must be two of {sorted(usable)}, with a comma")
    return numbers[0], numbers[1]


def look(processors: tuple[int, int] | None, polling_us: int | None) -> dict[str, Any]:
    """Measure and return the conditions of a run."""
    from urds.rsocket import settings

    found = settings.current().polling_time if polling_us is None else polling_us
    return {
        "processors": processors,
        "floor_ns": _floor_ns(processors),
        "polling_us": found,
        "load": os.getloadavg()[0],
        "copy_gb_per_s": {size: _copy_rate(size) for size in COPY_SIZES},
    }


def _floor_ns(processors: tuple[int, int] | None) -> float | None:
    """Return how long a cache line takes there and back, if that can be measured."""
    first, second = processors or _first_two(sorted(os.sched_getaffinity(0)))
    if first == second:
        return None
    try:
        import urds_native
    except ImportError:
        return None
    measure = getattr(urds_native, "line_floor_ns", None)
    return None if measure is None else float(measure(first, second))


def _first_two(usable: Sequence[int]) -> tuple[int, int]:
    return usable[0], usable[-1] if len(usable) == 1 else usable[1]


def _copy_rate(size_bytes: int) -> float:
    """Return the rate of a copy from one written memory to another, the best of some, in Gb/s."""
    source, target = memoryview(bytearray(size_bytes)), memoryview(bytearray(size_bytes))
    source[:] = b"\1" * size_bytes
    rates = []
    for _ in range(_ROUNDS):
        count, began_s = 0, time.perf_counter()
        while (spent_s := time.perf_counter() - began_s) < _COPY_S or not count:
            target[:] = source
            count += 1
        rates.append(count * size_bytes * 8 / spent_s / 1e9)
    return max(rates)


def show(output: Output, found: dict[str, Any]) -> None:
    """Print the conditions above the figures."""
    places = found["processors"]
    where = f"client on processor {places[0]}, server on {places[1]}" if places else "not bound"
    floor_ns = found["floor_ns"]
    floor = "not measured" if floor_ns is None else f"{floor_ns / 1000:.2f} us there and back"
    polling_us = found["polling_us"]
    who = f"rsockets for {polling_us} us before they sleep" if polling_us else "none"
    copies = ", ".join(
        f"{rate:.0f} ({size >> 10} KiB)" for size, rate in found["copy_gb_per_s"].items()
    )
    output.line("Conditions", TITLE)
    output.line(f"processes   {where}; load {found['load']:.1f} before")
    output.line(f"cache line  {floor}")
    output.line(f"polling     {who}; the kernel's TCP sleeps")
    output.line(f"a copy      {copies} Gb/s")
