"""`urds rsocket bench --breakdown`: the parts of a sender's processor time, beside the study's.

Source of the study's columns: docs/reference/rsocket.md 17, its profile of a sender by library, put
into the rows here: copy is libc, locks are libpthread and at 1 KiB the release of its fast locks,
clock is the vdso, wake-ups are the kernel, protocol is the rest.

Three runs of the same stream, each with processes of its own, for each measurement has its price:
getrusage alone; with locks and clocks counted; with copies counted, and then cProfile. A count is
multiplied by the cost of one, measured in that process; the device's copies are timed, for the
place of the bytes decides. Wake-ups are the kernel's part of the processor time: over shared memory
nothing else enters it. Protocol is the rest, and the profile names its part of the program.
"""

from __future__ import annotations

from typing import Any, Final

from urds.cli.output import Column, Output, Progress
from urds.cli.rsocket.bench_works.pair import Pair, pair
from urds.cli.rsocket.sockets import KERNEL

SIZES: Final = (1024, 65_536, 1 << 20)
ROWS: Final = ("copy", "locks", "clock", "wake-ups", "protocol")
# Percent of librdmacm's sender at 1 KiB, 64 KiB and 1 MiB. docs/reference/rsocket.md 17.
STUDY: Final = {
    "copy": (18.4, 43.7, 45.7),
    "locks": (33.2, 5.8, 5.1),
    "clock": (0.0, 8.4, 5.0),
    "wake-ups": (0.1, 0.1, 13.6),
    "protocol": (48.3, 41.9, 30.3),
}
_PROBED_MESSAGES: Final = {1024: 4000, 65_536: 600, 1 << 20: 60}
# Gb/s of the same sizes, on 40 Gb/s InfiniBand: the first is below the line rate.
STUDY_GB_PER_S: Final = ("<39.4", "39.4", "25.8")
_US: Final = 1e6

METHOD: Final = (
    "Method: processor time by getrusage, of all threads of the sender. locks, clock: how many per"
    " message (counted in runs of their own) times the cost of one, measured there without"
    " contention; one of the compiled engine is priced as one of Python, which is too much. copy:"
    " bytes copied by stream and compiled engine times what one costs, and the time of functions of"
    " a device of Python that do nothing else, by cProfile with the profiler's own time taken off."
    " wake-ups: the kernel's part of the processor time; over tcp0 it holds its work on the data as"
    " well. protocol: the rest. Which part of it: the same profile of the sending thread,"
    " without sleep."
)


def measure(options: Any, output: Output) -> dict[str, Any]:
    """Measure every device and print its tables; return the rows by device."""
    sizes = tuple(options.sizes) or SIZES
    devices = [way for way in options.ways if way != KERNEL]
    found: dict[str, Any] = {}
    with Progress(quiet=options.json_wanted) as progress:
        for number, device in enumerate(devices):
            found[device] = []
            for index, size_bytes in enumerate(sizes):
                done = (number + index / len(sizes)) / len(devices)
                progress.update(done, f"{device}, {size_bytes} bytes")
                found[device].append(look(device, size_bytes, options.seconds, options.conditions))
    if not options.json_wanted:
        for device, columns in found.items():
            _print_shares(output, device, columns)
            _print_counts(output, device, columns)
            _print_parts(output, device, columns)
        output.line()
        output.line(METHOD)
    return {"method": METHOD, "study_percent": STUDY, "devices": found}


def look(
    device: str, size_bytes: int, seconds: float, conditions: dict[str, Any]
) -> dict[str, Any]:
    """Measure messages of one size over one device; `conditions` are arguments of `pair`."""
    with pair(device, **conditions) as both:
        plain = both.do("stream", size_bytes=size_bytes, seconds=4 * seconds)
        copied = _copied(both, size_bytes)
        parts, device_copy_us = _profiled(both, size_bytes)
    with pair(device, is_counted=True, **conditions) as both:
        counts, costs = _counted(both, size_bytes, seconds)
    messages = plain["count"]
    user_us = plain["client_user_s"] * _US / messages
    system_us = plain["client_system_s"] * _US / messages
    spent_us = {
        "copy": device_copy_us
        + (copied["client"]["stream"] + copied["client"]["engine"])
        * (costs["byte_s"][str(size_bytes)] * _US),
        "locks": sum(counts["client"][kind] for kind in ("locks", "fences", "engine"))
        * (costs["lock_s"] * _US),
        "clock": counts["client"]["clocks"] * costs["clock_s"] * _US,
        "wake-ups": system_us,
    }
    spent_us["protocol"] = user_us + system_us - sum(spent_us.values())
    return {
        "size_bytes": size_bytes,
        "messages": messages,
        "gb_per_s": plain["gb_per_s"],
        "cpu_us": user_us + system_us,
        "percent": {row: 100 * spent_us[row] / (user_us + system_us) for row in ROWS},
        "per_message": counts,
        "copies": {side: sum(one.values()) / size_bytes for side, one in copied.items()},
        "sleeps_per_message": {
            side: plain[f"{side}_sleeps"] / messages for side in ("client", "server")
        },
        "doorbells_per_message": plain.get("client_doorbells_rung", 0) / messages,
        "costs_ns": {
            "lock": costs["lock_s"] * 1e9,
            "clock": costs["clock_s"] * 1e9,
            "copied byte": costs["byte_s"][str(size_bytes)] * 1e9,
        },
        "parts_percent": parts,
    }


def _probed_messages(size_bytes: int) -> int:
    return _PROBED_MESSAGES.get(size_bytes, max(20, min(4000, (64 << 20) // size_bytes)))


def _counted(
    both: Pair, size_bytes: int, seconds: float
) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """Return locks, fences and clocks per message of both sides, and the cost of each."""
    both.do("stream", size_bytes=size_bytes, seconds=seconds / 4)  # rings grow, caches warm up
    count = _probed_messages(size_bytes)
    before = both.on_both(call="sample")
    both.on_both(call="start", probe="counts")
    both.do("send_round", size_bytes=size_bytes, count=count)
    found = both.on_both(call="stop")
    after = both.on_both(call="sample")
    counts = {
        side: {name: value / count for name, value in one.items()}
        | {"engine": _more(before[side], after[side], "engine_locks") / count}
        for side, one in found.items()
    }
    return counts, both.do("call", call={"call": "costs", "bytes": [size_bytes]})


def _copied(both: Pair, size_bytes: int) -> dict[str, dict[str, float]]:
    """Return the bytes that each side copies per message: its stream, its device, its engine."""
    count = _probed_messages(size_bytes)
    before = both.on_both(call="sample")
    both.on_both(call="start", probe="copies")
    both.do("send_round", size_bytes=size_bytes, count=count)
    found = both.on_both(call="stop")
    after = both.on_both(call="sample")
    return {
        side: {
            "device": sum(data.values()) / count,
            "stream": sum(
                _more(before[side], after[side], name)
                for name in ("bytes_copied_in", "bytes_copied_out")
            )
            / count,
            "engine": _more(before[side], after[side], "engine_bytes") / count,
        }
        for side, data in found.items()
    }


def _more(before: dict[str, Any], after: dict[str, Any], name: str) -> float:
    return float(after.get(name, 0) - before.get(name, 0))


def _profiled(both: Pair, size_bytes: int) -> tuple[dict[str, float], float]:
    """Profile the sending thread.

    Returns the shares of the parts of the program in percent, and the microseconds per message in
    which the device copied.
    """
    count = _probed_messages(size_bytes)
    both.do("call", call={"call": "start", "probe": "profile"})
    both.do("send_round", size_bytes=size_bytes, count=count)
    found = both.do("call", call={"call": "stop"})
    total_s = sum(found["seconds"].values())
    shares = {part: 100 * spent_s / total_s for part, spent_s in found["seconds"].items()}
    return shares, found["copying_s"] * _US / count


# -- tables


def _name(size_bytes: int) -> str:
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift} {unit}"
    return str(size_bytes)


def _print_shares(output: Output, device: str, columns: list[dict[str, Any]]) -> None:
    known = {size: index for index, size in enumerate(SIZES)}
    titles = [Column("percent", 10, left=True)]
    titles += [Column(_name(one["size_bytes"])) for one in columns]
    compared = [one["size_bytes"] for one in columns if one["size_bytes"] in known]
    titles += [Column(f"study {_name(size)}") for size in compared]
    rows = [
        (
            row,
            *(f"{one['percent'][row]:.1f}" for one in columns),
            *(f"{STUDY[row][known[size]]:.1f}" for size in compared),
        )
        for row in ROWS
    ]
    rows.append(("CPU us", *(f"{one['cpu_us']:.1f}" for one in columns), *("-" for _ in compared)))
    rows.append(
        ("Gb/s", *(f"{one['gb_per_s']:.2f}" for one in columns),
         *(STUDY_GB_PER_S[known[size]] for size in compared))
    )  # fmt: skip
    output.table(f"Where a sender's processor time goes over {device}", titles, rows)


def _print_counts(output: Output, device: str, columns: list[dict[str, Any]]) -> None:
    titles = [Column("per message", 28, left=True)]
    titles += [
        Column(f"{_name(one['size_bytes'])} {side}")
        for one in columns
        for side in ("sender", "receiver")
    ]
    sides = [(one, side) for one in columns for side in ("client", "server")]
    rows = [
        (title, *(f"{one['per_message'][side][name]:.2f}" for one, side in sides))
        for name, title in (("clocks", "clock reads"), ("locks", "locks of Python"),
                            ("engine", "locks of the compiled engine"), ("fences", "memory fences"))
    ]  # fmt: skip
    rows.append(("sleeps", *(f"{one['sleeps_per_message'][side]:.3f}" for one, side in sides)))
    rows.append(
        ("bytes copied, of its own", *(f"{one['copies'][side]:.2f}" for one, side in sides))
    )
    output.table(f"Counted per message over {device}", titles, rows)


def _print_parts(output: Output, device: str, columns: list[dict[str, Any]]) -> None:
    names = sorted({name for one in columns for name in one["parts_percent"]})
    titles = [Column("percent", 24, left=True)]
    titles += [Column(_name(one["size_bytes"])) for one in columns]
    rows = [
        (name, *(f"{one['parts_percent'].get(name, 0.0):.1f}" for one in columns)) for name in names
    ]
    output.table(f"The sending thread by part of the program over {device}, profiled", titles, rows)
