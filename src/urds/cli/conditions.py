"""What figures of a run depend on: processors, a cache line, memory, a loop, what spins, load.

A cache line takes 0.03 to 0.05 us there and back between siblings of one core, 0.1 us within a
cache, 0.45 us across: a round trip is some multiple of that, so it stands beside the figures. So do
copies, for a stream moves bytes by copying them. A hypervisor may move processors meanwhile, and
give the other half of a core to others, which makes even a loop without memory take half as long
again: so the floor and the loop are measured again at the end.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

from urds.cli.output import TITLE, Output, UsageError
from urds.cli.parser import option
from urds.common import implementation

COPY_SIZES: Final = (1 << 16, 1 << 20, 1 << 24)
FAR_NS: Final = 200.0  # a floor above it is of processors without a common cache
_COPY_S: Final = 0.02
_ROUNDS: Final = 5
_LOOPS: Final = 2000
_LOOP_STEPS: Final = 40
_WIDTH: Final = 11  # of a name, in text


def place_option() -> Any:
    """Return the field of `--place`."""
    return option(
        "--place", metavar="A,B",
        help="Processors of the two processes: 0,1, or 0,0 for one of both; not bound without it.",
    )  # fmt: skip


def processors_of(text: str | None) -> tuple[int, int] | None:
    """Return the processors of `--place`. Raises UsageError for others than there are."""
    if text is None:
        return None
    usable = os.sched_getaffinity(0)
    numbers = [int(word) for word in text.split(",") if word.isdecimal()]
    if len(numbers) != 2 or not usable >= set(numbers) or text.count(",") != 1:
        raise UsageError(f"--place {text}: must be two of {sorted(usable)}, with a comma")
    return numbers[0], numbers[1]


def two_processors() -> tuple[int, int]:
    """Return two that this process may use, or twice the only one."""
    usable: Sequence[int] = sorted(os.sched_getaffinity(0))
    return usable[0], usable[min(1, len(usable) - 1)]


def look(processors: tuple[int, int] | None, *, spins: str) -> dict[str, Any]:
    """Measure and return the conditions of a run; `spins` says who does."""
    floor_ns, problem = _floor(processors)
    return {
        "processors": processors,
        "floor_ns": floor_ns,
        "floor_of": processors or two_processors(),
        "floor_problem": problem,
        "spins": spins,
        "load": os.getloadavg()[0],
        "copy_gb_per_s": {size: _copy_rate(size) for size in COPY_SIZES},
        "loop_ns": _loop_ns(),
    }


def look_again(found: dict[str, Any]) -> None:
    """Measure at the end of a run what may have changed meanwhile: `after` of the conditions."""
    floor_ns, _ = _floor(found["processors"])
    found["after"] = {"floor_ns": floor_ns, "load": os.getloadavg()[0], "loop_ns": _loop_ns()}


def is_far(found: dict[str, Any]) -> bool:
    """Tell whether a line has a long way, as far as is known: then goals are the wider ones."""
    floor_ns = found["floor_ns"]
    return floor_ns is None or floor_ns > FAR_NS


def _floor(processors: tuple[int, int] | None) -> tuple[float | None, str]:
    """Return how long a cache line takes there and back, or why that is not known."""
    first, second = processors or two_processors()
    if first == second:
        return None, "both ends are on one processor"
    if problem := implementation.missing():
        return None, problem
    try:
        return implementation.line_floor_ns(first, second), ""
    except (OSError, ValueError) as problem:
        return None, str(problem)


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


def _loop_ns() -> float:
    """Return how long a loop of multiplications takes, the median of many."""
    times, clock = [], time.perf_counter_ns
    for _ in range(_LOOPS):
        began_ns, total = clock(), 0
        for step in range(_LOOP_STEPS):
            total += step * step
        times.append(clock() - began_ns)
    return statistics.median(times)


def words(found: dict[str, Any]) -> dict[str, str]:
    """Return the conditions as lines by name."""
    places = found["processors"]
    where = f"one on processor {places[0]}, the other on {places[1]}" if places else "not bound"
    return {
        "processes": f"{where}; load {found['load']:.1f} before",
        "cache line": _floor_words(found),
        "what spins": found["spins"],
        "a copy": ", ".join(
            f"{rate:.0f} ({size >> 10} KiB)" for size, rate in found["copy_gb_per_s"].items()
        )
        + " Gb/s",
        "a loop": f"{found['loop_ns'] / 1000:.2f} us for {_LOOP_STEPS} multiplications of Python",
    }


def _floor_words(found: dict[str, Any]) -> str:
    if found["floor_ns"] is None:
        return f"not measured: {found['floor_problem']}"
    first, second = found["floor_of"]
    time_us = found["floor_ns"] / 1000
    return f"{time_us:.3f} us there and back between processors {first} and {second}"


def show(output: Output, found: dict[str, Any]) -> None:
    """Print the conditions above the figures."""
    output.line("Conditions", TITLE)
    for name, text in words(found).items():
        output.line(f"{name:<{_WIDTH}} {text}")


def show_after(output: Output, found: dict[str, Any]) -> None:
    """Print below the figures what has changed; `look_again` comes first."""
    floor_ns, load = found["after"]["floor_ns"], found["after"]["load"]
    floor = "" if floor_ns is None else f"cache line {floor_ns / 1000:.3f} us; "
    output.line()
    loop = f"a loop {found['after']['loop_ns'] / 1000:.2f} us; "
    output.line(f"{'afterwards':<{_WIDTH}} {floor}{loop}load {load:.1f}")
