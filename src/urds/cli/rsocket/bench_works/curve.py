"""`urds rsocket bench curve`: throughput from 1 byte to 16 MiB, its dips, copies and wake-ups.

A size lies below the curve if it moves less than a smaller size did; by more than a tenth it is a
dip. The best of the rounds counts: other load on the machine hits single rounds. librdmacm falls by
a third at half its receive buffer, 64 KiB, and stays there: docs/reference/rsocket.md 17. Sleeps
are voluntary context switches of both processes, so each is a wake-up; copies are the bytes that
user space copied per byte delivered: those of the streams, and in a round of its own those of the
device.
"""

from __future__ import annotations

from typing import Any, Final

from urds.cli.output import BAD, GOOD, Column, Output, Progress
from urds.cli.rsocket.bench_works.end import SIZE_MAX
from urds.cli.rsocket.bench_works.pair import Pair, pair
from urds.cli.rsocket.sockets import KERNEL

DIP: Final = 0.9  # of what a smaller size moved
SIZES: Final = tuple(
    sorted({1 << power for power in range(25)} | {3 << power for power in range(13, 23)} | {65_537})
)
# Gb/s of the study: 40 Gb/s InfiniBand, ConnectX-3, defaults of librdmacm.
# Source: docs/reference/rsocket.md 17.
STUDY: Final = "39.4 from 4 KiB to 64 KiB, 25.8 above"
_PROBED_BYTES: Final = 16 << 20
_MIB: Final = 1 << 20


def measure(options: Any, output: Output) -> dict[str, Any]:
    """Measure every way and print its curve; return rows and dips by way."""
    sizes = tuple(options.sizes) or SIZES
    found: dict[str, Any] = {}
    with Progress(quiet=options.json_wanted) as progress:
        for number, way in enumerate(options.ways):
            rows = []
            with pair(way, **options.conditions) as both:
                for index, size_bytes in enumerate(sorted(sizes)):
                    done = (number + index / len(sizes)) / len(options.ways)
                    progress.update(done, f"{way}, {size_bytes} bytes")
                    rows.append(_row(both, way, size_bytes, options.seconds))
            found[way] = {"rows": rows, "below": below(rows)}
    if not options.json_wanted:
        _print(output, found)
    return found


def _row(both: Pair, way: str, size_bytes: int, seconds: float) -> dict[str, Any]:
    figures = both.do("stream", size_bytes=size_bytes, seconds=seconds)
    byte_count = size_bytes * figures["count"]
    row = {
        "size_bytes": size_bytes,
        "count": figures["count"],
        "gb_per_s": figures["gb_per_s"],
        "gb_per_s_min": figures["gb_per_s_min"],
        "gb_per_s_max": figures["gb_per_s_max"],
        "sleeps_per_mib": (figures["client_sleeps"] + figures["server_sleeps"]) * _MIB / byte_count,
        "cpu_us": 1e6 * sum(
            figures[f"{side}_{kind}_s"] for side in ("client", "server")
            for kind in ("user", "system")
        ) / figures["count"],
    }  # fmt: skip
    if way != KERNEL:
        row["copies"] = _copies(both, size_bytes, figures)
    return row


def _copies(both: Pair, size_bytes: int, figures: dict[str, Any]) -> float:
    """Return the bytes copied per byte delivered.

    Streams and compiled engines count their own in the measured rounds; those of a device of Python
    are seen in a round of its own.
    """
    byte_count = size_bytes * figures["count"]
    by_streams = figures["client_bytes_copied_in"] + figures["server_bytes_copied_out"]
    count = max(1, min(2000, _PROBED_BYTES // size_bytes))
    both.on_both(call="start", probe="copies")
    both.do("send_round", size_bytes=size_bytes, count=count)
    found = both.on_both(call="stop")
    by_device = sum(sum(one.values()) for one in found.values())
    by_streams += sum(figures.get(f"{side}_engine_bytes", 0) for side in ("client", "server"))
    return float(by_streams / byte_count + by_device / (size_bytes * count))


def below(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sizes that move less than a smaller one; `is_dip` if by more than a tenth."""
    found, best = [], None
    for row in rows:
        if best is not None and row["gb_per_s_max"] < best["gb_per_s_max"]:
            share = row["gb_per_s_max"] / best["gb_per_s_max"]
            found.append(
                {
                    "size_bytes": row["size_bytes"],
                    "of_size_bytes": best["size_bytes"],
                    "share": share,
                    "is_dip": share < DIP,
                }
            )
        else:
            best = row
    return found


def _print(output: Output, found: dict[str, Any]) -> None:
    plain = {row["size_bytes"]: row["gb_per_s"] for row in found[KERNEL]["rows"]}
    columns = [
        Column("bytes", 8), Column("messages"), Column("Gb/s"), Column("lowest"),
        Column("highest"), Column("x kernel"), Column("copies"), Column("wake-ups/MiB"),
        Column("CPU us/message"), Column("", left=True),
    ]  # fmt: skip
    for way, curve in found.items():
        marks = {one["size_bytes"]: "dip" if one["is_dip"] else "below" for one in curve["below"]}
        output.table(
            f"Throughput over {way}, median of five rounds",
            columns,
            (
                (
                    row["size_bytes"], int(row["count"]),
                    *(f"{row[name]:.3f}" for name in ("gb_per_s", "gb_per_s_min", "gb_per_s_max")),
                    f"{row['gb_per_s'] / plain[row['size_bytes']]:.2f}",
                    f"{row['copies']:.2f}" if "copies" in row else "-",
                    f"{row['sleeps_per_mib']:.2f}", f"{row['cpu_us']:.1f}",
                    marks.get(row["size_bytes"], ""),
                )
                for row in curve["rows"]
            ),
        )  # fmt: skip
        _print_dips(output, way, curve["below"])
    output.line()
    output.line(f"The original on 40 Gb/s InfiniBand (the study): {STUDY} Gb/s.")


def _print_dips(output: Output, way: str, points: list[dict[str, Any]]) -> None:
    if not points:
        output.line(f"{way}: no size moves less than a smaller one", GOOD)
        return
    words = [
        f"{one['size_bytes']} ({one['share']:.2f} of {one['of_size_bytes']})" for one in points
    ]
    is_dip = any(one["is_dip"] for one in points)
    output.line(f"{way}, below a smaller size: {', '.join(words)}", BAD if is_dip else None)


assert max(SIZES) == SIZE_MAX, "the curve ends with the largest message"
