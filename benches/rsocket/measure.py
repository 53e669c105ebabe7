"""`urds rsocket bench`: rsockets beside plain TCP in the same run, and what limits them.

`rr` and `stream` print the lines of netperf's TCP_RR and TCP_STREAM; `curve`, `connections` and
`--breakdown` have modules of their own. Both ends are processes of this host, started anew for
each way: the kernel's TCP, then rsockets over each device. Nobody is bound to a processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from urds.cli.exits import Exit, UsageError
from urds.cli.output import Column, Output, Progress
from urds.cli.rsocket_bench_end import SIZE_MAX
from urds.cli.rsocket_bench_pair import pair
from urds.cli.rsocket_ways import KERNEL, device_names

KINDS: Final = ("rr", "stream", "curve", "connections")
CONNECTIONS_MAX: Final = 100_000
_CONNECTIONS: Final = 1000
_REQUEST_SIZES: Final = (1, 64, 1024)
_MESSAGE_SIZES: Final = (1024, 16_384, 65_536, 1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class RsocketBenchOptions:
    """What to measure."""

    kind: str | None = None
    connections: int | None = None
    sizes: Sequence[int] = ()
    seconds: float = 0.5  # of each figure
    device: str = "shm,tcp"
    is_breakdown: bool = False
    json_wanted: bool = False

    @property
    def ways(self) -> tuple[str, ...]:
        """Return what is measured, the baseline first."""
        return (KERNEL, *device_names(self.device))

    def check(self) -> None:
        """Raise UsageError for what cannot be."""
        if self.kind is not None and self.kind not in KINDS:
            raise UsageError(f"{self.kind}: one of {', '.join(KINDS)}")
        if self.connections is not None and self.kind != "connections":
            raise UsageError(f"{self.connections}: only connections has a count")
        if self.connections is not None and not 1 <= self.connections <= CONNECTIONS_MAX:
            raise UsageError(f"{self.connections} connections, from 1 to {CONNECTIONS_MAX}")
        for size in self.sizes:
            if not 1 <= size <= SIZE_MAX:
                raise UsageError(f"--size {size}, from 1 to {SIZE_MAX}")
        if not 0.01 <= self.seconds <= 60:
            raise UsageError(f"--seconds {self.seconds:g}, from 0.01 to 60")
        device_names(self.device)


def run(options: RsocketBenchOptions) -> Exit:
    """Measure and print the tables."""
    options.check()
    output = Output(json_wanted=options.json_wanted)
    found: dict[str, Any] = {}
    if options.is_breakdown:
        from urds.cli.rsocket_bench_breakdown import measure as break_down

        found["breakdown"] = break_down(options, output)
    if options.kind == "curve":
        from urds.cli.rsocket_bench_curve import measure as measure_curve

        found["curve"] = measure_curve(options, output)
    elif options.kind == "connections":
        from urds.cli.rsocket_bench_connections import measure as measure_connections

        count = options.connections or _CONNECTIONS
        found["connections"] = measure_connections(options, output, count)
    elif options.kind is not None or not options.is_breakdown:
        found |= _measure_lines(options, output)
    if options.json_wanted:
        output.document(found)
    return Exit.OK


def _measure_lines(options: RsocketBenchOptions, output: Output) -> dict[str, Any]:
    """Measure `rr` and `stream`, or the one that is wanted."""
    wanted = [options.kind] if options.kind else ["rr", "stream"]
    found: dict[str, Any] = {kind: [] for kind in wanted}
    sizes = {
        "rr": options.sizes or _REQUEST_SIZES,
        "stream": options.sizes or _MESSAGE_SIZES,
    }
    steps, done = len(options.ways) * sum(len(sizes[kind]) for kind in wanted), 0
    with Progress(quiet=options.json_wanted) as progress:
        for way in options.ways:
            with pair(way) as both:
                for kind in wanted:
                    for size_bytes in sizes[kind]:
                        progress.update(done / steps, f"{way}, {kind}, {size_bytes} octets")
                        done += 1
                        if kind == "rr":
                            figures = both.do(
                                "round_trips",
                                request_bytes=size_bytes,
                                answer_bytes=size_bytes,
                                seconds=options.seconds,
                            )
                        else:
                            figures = both.do(
                                "stream", size_bytes=size_bytes, seconds=options.seconds
                            )
                        found[kind].append({"way": way, "size_bytes": size_bytes, **figures})
    if not options.json_wanted:
        if "rr" in found:
            _print_rr(output, found["rr"])
        if "stream" in found:
            _print_stream(output, found["stream"])
    return found


def _print_rr(output: Output, rows: list[dict[str, Any]]) -> None:
    plain = {row["size_bytes"]: row["per_s"] for row in rows if row["way"] == KERNEL}
    columns = [
        Column("way", 6, left=True), Column("request"), Column("response"), Column("elapsed s"),
        Column("trans/s"), Column("median us"), Column("p99 us"), Column("x kernel"),
    ]  # fmt: skip
    output.table(
        "TCP_RR: one request and one response at a time, octets; a transaction is a round trip",
        columns,
        (
            (
                row["way"], row["size_bytes"], row["size_bytes"], f"{row['seconds']:.2f}",
                f"{row['per_s']:.2f}", f"{row['median_us']:.1f}", f"{row['p99_us']:.1f}",
                f"{row['per_s'] / plain[row['size_bytes']]:.2f}",
            )
            for row in sorted(rows, key=lambda row: row["size_bytes"])
        ),
    )  # fmt: skip


def _print_stream(output: Output, rows: list[dict[str, Any]]) -> None:
    plain = {row["size_bytes"]: row["gb_per_s"] for row in rows if row["way"] == KERNEL}
    columns = [
        Column("way", 6, left=True), Column("recv socket"), Column("send socket"),
        Column("message"), Column("elapsed s"), Column("10^6bits/s"), Column("lowest"),
        Column("highest"), Column("x kernel"),
    ]  # fmt: skip
    output.table(
        "TCP_STREAM: messages one way until the receiver has them, octets; median of five rounds",
        columns,
        (
            (
                row["way"], int(row["server_buffer_bytes_in"]), int(row["client_buffer_bytes_out"]),
                row["size_bytes"], f"{row['seconds']:.2f}",
                *(f"{row[f'gb_per_s{which}'] * 1000:.2f}" for which in ("", "_min", "_max")),
                f"{row['gb_per_s'] / plain[row['size_bytes']]:.2f}",
            )
            for row in sorted(rows, key=lambda row: row["size_bytes"])
        ),
    )  # fmt: skip
