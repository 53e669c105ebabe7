"""`urds rsocket bench`: rsockets beside plain TCP in the same run, and what limits them.

`rr` and `stream` print the lines of netperf's TCP_RR and TCP_STREAM; `curve`, `connections` and
`--breakdown` have modules of their own. Both ends are processes of this host, started anew for
each way: the kernel's TCP, then rsockets over each device. Bound to processors they are with
`--place` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from urds.cli.conditions import (
    look,
    look_again,
    place_option,
    processors_of,
    show,
    show_after,
)
from urds.cli.output import Column, Exit, Output, Progress, UsageError
from urds.cli.parser import Command, check_ranges, json_option, option
from urds.cli.rsocket.bench_works.end import SIZE_MAX
from urds.cli.rsocket.bench_works.pair import pair
from urds.cli.rsocket.sockets import KERNEL, device_names, device_option

KINDS: Final = ("rr", "stream", "curve", "connections", "study")
CONNECTIONS_MAX: Final = 100_000
_CONNECTIONS: Final = 1000
_STUDY_CONNECTIONS: Final = 10_000
_COUNTED_KINDS: Final = ("connections", "study")
_REQUEST_SIZES: Final = (1, 64, 1024)
_MESSAGE_SIZES: Final = (1024, 16_384, 65_536, 1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class RsocketBenchOptions:
    """What to measure."""

    kind: str | None = option(metavar="KIND", help="rr, stream, curve, connections or study.")
    connections: int | None = option(
        metavar="N",
        low=1,
        high=CONNECTIONS_MAX,
        help="How many connections; without it 1000, of study 10000.",
    )
    is_breakdown: bool = option("--breakdown", default=False, help="Say where the time goes.")
    sizes: Sequence[int] = option(
        "--size", metavar="BYTES", default=(), low=1, high=SIZE_MAX,
        help="Bytes of a message; may be repeated.",
    )  # fmt: skip
    seconds: float = option(
        "--seconds", metavar="S", default=0.5, low=0.01, high=60, help="How long each row takes."
    )
    place: str | None = place_option()
    polling_us: int | None = option(
        "--polling", metavar="US", low=0, high=1_000_000,
        help="How long rsockets poll before they sleep, 0 for not at all.",
    )  # fmt: skip
    device: str = device_option("shm,tcp")
    json_wanted: bool = json_option()

    @property
    def ways(self) -> tuple[str, ...]:
        """Return what is measured, the baseline first."""
        return (KERNEL, *device_names(self.device))

    @property
    def conditions(self) -> dict[str, Any]:
        """Return where both processes run, and how long they poll: arguments of `pair`."""
        return {"processors": processors_of(self.place), "polling_us": self.polling_us}

    def check(self) -> None:
        """Raise UsageError for wrong options."""
        if self.kind is not None and self.kind not in KINDS:
            raise UsageError(f"{self.kind}: must be one of {', '.join(KINDS)}")
        if self.connections is not None and self.kind not in _COUNTED_KINDS:
            raise UsageError(f"{self.connections}: only connections and study have a count")
        check_ranges(self)
        device_names(self.device)
        has_own = self.polling_us is not None or self.sizes or self.is_breakdown
        if self.kind == "study" and has_own:
            raise UsageError("study has its own sizes and polls as its rows say")
        is_unconditioned = self.conditions == {"processors": None, "polling_us": None}
        if self.kind == "connections" and not is_unconditioned:
            raise UsageError("--place and --polling are for rr, stream, curve and study")


def run(options: RsocketBenchOptions) -> Exit:
    """Measure and print the tables."""
    options.check()
    output = Output(json_wanted=options.json_wanted)
    conditions = look(options.conditions["processors"], spins=_who_spins(options))
    conditions["polling_us"] = _polling_us(options)
    found: dict[str, Any] = {"conditions": conditions}
    if not options.json_wanted:
        show(output, conditions)
    if options.is_breakdown:
        from urds.cli.rsocket.bench_works.breakdown import measure as break_down

        found["breakdown"] = break_down(options, output)
    if options.kind == "curve":
        from urds.cli.rsocket.bench_works.curve import measure as measure_curve

        found["curve"] = measure_curve(options, output)
    elif options.kind == "connections":
        from urds.cli.rsocket.bench_works import connections

        count = options.connections or _CONNECTIONS
        found["connections"] = connections.measure(options, count)
        if not options.json_wanted:
            connections.show(output, found["connections"])
    elif options.kind == "study":
        from urds.cli.rsocket.bench_works.study import measure as measure_study

        found |= measure_study(options, output, options.connections or _STUDY_CONNECTIONS)
    elif options.kind is not None or not options.is_breakdown:
        found |= _measure_lines(options, output)
    look_again(conditions)
    if options.json_wanted:
        output.document(found)
    else:
        show_after(output, conditions)
    return Exit.OK


def _polling_us(options: RsocketBenchOptions) -> int:
    from urds.rsocket import settings

    given = options.polling_us
    return settings.current().polling_time if given is None else given


def _who_spins(options: RsocketBenchOptions) -> str:
    if options.kind == "study":
        return "rsockets where a row says so, as long as it says; the kernel's TCP sleeps"
    polling_us = _polling_us(options)
    who = f"rsockets for {polling_us} us before they sleep" if polling_us else "no rsocket"
    return f"{who}; the kernel's TCP sleeps"


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
            with pair(way, **options.conditions) as both:
                for kind in wanted:
                    for size_bytes in sizes[kind]:
                        progress.update(done / steps, f"{way}, {kind}, {size_bytes} bytes")
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
        "TCP_RR: one request and one response at a time, bytes; a transaction is a round trip",
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
        "TCP_STREAM: messages one way until the receiver has them, bytes; median of five rounds",
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


COMMAND: Final = Command(
    about="""
    rr and stream print the lines of netperf's TCP_RR and TCP_STREAM (both without a KIND), curve
    the throughput from 1 byte to 16 MiB with its dips, copies and wake-ups, connections what many
    open connections cost. --breakdown says where a sender's processor time goes. study sets all
    that a study of the original measured beside it, as a table in Markdown. Both ends are processes
    of this host. What the figures depend on stands above them: processors, how long a cache line
    takes between them, what spins, the rate of a copy.
    """,
    examples=(
        ("urds rsocket bench", "rr and stream"),
        ("urds rsocket bench rr --size 1 --place 0,1 --polling 200", "one byte, polling"),
        ("urds rsocket bench curve --device shm --json", "the curve over shared memory"),
        ("urds rsocket bench connections 10000", "10,000 connections"),
        ("urds rsocket bench --breakdown --device shm", "where the time goes"),
        ("urds rsocket bench study --device shm --place 0,1", "the study's rows beside ours"),
    ),
    options=RsocketBenchOptions,
    run=run,
)
