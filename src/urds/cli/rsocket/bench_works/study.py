"""`urds rsocket bench study`: what a study of the original measured, row by row, beside ours.

Its figures are of librdmacm on 40 Gb/s InfiniBand (ConnectX-3) between two hosts, ours of two
processes of this one: docs/reference/rsocket.md 17. First its throughput and latency, then its four
problems: connections, copies, locks, waiting. Round trips are medians, and in brackets lowest
deciles, which other work on the machine changes less. The table is Markdown, and aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from urds.cli.conditions import processors_of, two_processors
from urds.cli.output import Column, Output, Progress, align
from urds.cli.rsocket.bench_works import breakdown, connections
from urds.cli.rsocket.bench_works.pair import pair
from urds.cli.rsocket.sockets import KERNEL

POLLING_US: Final = 200
_SIZES: Final = breakdown.SIZES  # 1 KiB, 64 KiB, 1 MiB
_STREAM_SIZES: Final = (1024, 4096, 16_384, 65_536, 262_144, 1 << 20, 4 << 20, 16 << 20)
_TWICE_FROM: Final = 65_536
_US: Final = 1.9
_SLEEPING: Final = {"sleeping": 1.2, "one": 1.0}  # of ours, times the kernel's
_DIP: Final = 0.9
_STREAM_STUDY: Final = {
    1024: "<39.4", 4096: "39.4", 16_384: "39.4", 65_536: "39.4", 262_144: "25.8", 1 << 20: "25.8",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """A row of the table: a figure of the study, and of each way; texts."""

    what: str
    study: str
    ways: dict[str, str]
    goal: str = ""


def measure(options: Any, output: Output, count: int) -> dict[str, Any]:
    """Measure all rows and print them; return them with what they are made of."""
    found = Found(options, count)
    with Progress(quiet=options.json_wanted) as progress:
        for done, work in enumerate(steps := found.steps()):
            progress.update(done / len(steps), work.__name__.strip("_").replace("_", " "))
            work()
    rows = list(found.rows())
    if not options.json_wanted:
        _print(output, rows, found.ways)
    return {"study": [asdict(row) for row in rows], "measured": found.measured}


class Found:
    """What was measured, by name and way; `rows` makes the table of it."""

    def __init__(self, options: Any, count: int) -> None:
        self.ways: tuple[str, ...] = options.ways
        self.measured: dict[str, Any] = {}
        self._options = options
        self._count = count
        self._two = processors_of(options.place) or two_processors()

    def steps(self) -> Sequence[Callable[[], None]]:
        """Return the works, in order."""
        return self._round_trips, self._streams, self._breakdowns, self._connections

    def _round_trips(self) -> None:
        one = (self._two[0], self._two[0])
        ways = {"polling": (self._two, POLLING_US), "sleeping": (self._two, 0), "one": (one, 0)}
        for name, (processors, polling_us) in ways.items():
            for way in self.ways:
                with pair(way, processors=processors, polling_us=polling_us) as both:
                    trips = both.do(
                        "round_trips",
                        request_bytes=1,
                        answer_bytes=1,
                        seconds=self._options.seconds,
                    )
                self.measured.setdefault(name, {})[way] = trips

    def _streams(self) -> None:
        for way in self.ways:
            rates = self.measured.setdefault("streams", {})[way] = {}
            with pair(way, processors=self._two) as both:
                for size in _STREAM_SIZES:
                    rates[size] = both.do("stream", size_bytes=size, seconds=self._options.seconds)

    def _breakdowns(self) -> None:
        conditions = {"processors": self._two, "polling_us": None}
        for way in self.ways[1:]:
            self.measured.setdefault("breakdown", {})[way] = [
                breakdown.look(way, size, self._options.seconds, conditions) for size in _SIZES
            ]

    def _connections(self) -> None:
        found = connections.measure(self._options, self._count)
        self.measured["connections"] = {row["way"]: row for row in found}

    # -- rows

    def rows(self) -> Iterator[StudyRow]:
        """Return the table."""
        yield from self._rows_of_round_trips()
        yield from self._rows_of_streams()
        yield from self._rows_of_connections()
        yield from self._rows_of_parts()

    def _rows_of_round_trips(self) -> Iterator[StudyRow]:
        two = f"processors {self._two[0]} and {self._two[1]}"
        ours = [way for way in self.ways if way != KERNEL]
        alone = f"processor {self._two[0]} alone"
        rows = (
            ("polling", f"1 B there and back, us: ours polls for {POLLING_US} us; {two}", f"{_US}"),
            ("sleeping", f"the same, both sleep; {two}", "-"),
            ("one", f"the same, both sleep; {alone}", "-"),
        )
        for name, what, study in rows:
            trips = self.measured[name]
            texts = {
                way: f"{found['median_us']:.2f} ({found['lowest_decile_us']:.2f})"
                for way, found in trips.items()
            }
            medians = {way: found["median_us"] for way, found in trips.items()}
            if name == "polling":
                goal, most_us = f"<= {_US}", _US
            else:
                goal, most_us = (
                    f"<= {_SLEEPING[name]:g} x kernel",
                    _SLEEPING[name] * medians[KERNEL],
                )
            is_reached = all(medians[way] <= most_us for way in ours)
            yield StudyRow(what=what, study=study, ways=texts, goal=_goal(goal, is_reached))

    def _rows_of_streams(self) -> Iterator[StudyRow]:
        streams = self.measured["streams"]
        ours = [way for way in self.ways if way != KERNEL]
        for size in _STREAM_SIZES:
            rates = {way: streams[way][size]["gb_per_s"] for way in self.ways}
            is_reached = all(rates[way] >= 2 * rates[KERNEL] for way in ours)
            yield StudyRow(
                what=f"stream of messages of {_name(size)}, Gb/s",
                study=_STREAM_STUDY.get(size, "-"), ways=_texts(rates, "{:.1f}"),
                goal=_goal(">= 2 x kernel", is_reached) if size >= _TWICE_FROM else "",
            )  # fmt: skip
        dips = {way: least(streams[way]) for way in self.ways}
        yield StudyRow(
            what="least that a size moves of what a smaller one does, to 4 MiB",
            study="0.65 above 64 KiB", ways=_texts(dips, "{:.2f}"),
            goal=_goal(f">= {_DIP}", all(dips[way] >= _DIP for way in ours)),
        )  # fmt: skip

    def _rows_of_connections(self) -> Iterator[StudyRow]:
        rows = self.measured["connections"]

        def texts(form: str) -> dict[str, str]:
            return {way: form.format(**row) for way, row in rows.items()}

        yield StudyRow(
            what=f"1. {self._count:,} connections: bytes each, client + server, then after an echo",
            study="a queue pair, a completion queue, 256 KiB of buffers for each",
            ways={
                way: f"{row['bytes_each']['client']:,.0f} + {row['bytes_each']['server']:,.0f},"
                f" {sum(row['bytes_each_used'].values()):,.0f}"
                for way, row in rows.items()
            },
        )
        yield StudyRow(
            what="descriptors of each, client + server", study="two or more",
            ways=texts("{descriptors_each[client]:.2f} + {descriptors_each[server]:.2f}"),
        )  # fmt: skip
        yield StudyRow(what="connects per second", study="-", ways=texts("{per_s:,.0f}"))
        yield StudyRow(
            what="64 B there and back on one, us: alone, and among all", study="-",
            ways=texts("{alone_us:.1f}, {among_idle_us:.1f}"),
        )  # fmt: skip

    def _rows_of_parts(self) -> Iterator[StudyRow]:
        def each(study: str, form: str, value: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
            parts = self.measured["breakdown"]
            ways = {way: ", ".join(form.format(value(one)) for one in parts[way]) for way in parts}
            return {"study": study, "ways": {KERNEL: "-", **ways}}

        def percent(row: str) -> dict[str, Any]:
            study = ", ".join(f"{share:.1f}" for share in breakdown.STUDY[row])
            return each(study, "{:.1f}", lambda one: float(one["percent"][row]))

        sizes = "at " + ", ".join(map(_name, _SIZES))
        yield StudyRow(
            what=f"2. bytes copied per byte, sender + receiver, {sizes}",
            **each("2, 2, 2", "{:.2f}", lambda one: float(sum(one["copies"].values()))),
        )
        yield StudyRow(what="copies, % of the sender's processor time", **percent("copy"))
        yield StudyRow(
            what="3. locks that a sender takes per message: of Python and of the compiled engine",
            **each("5 kinds for each socket", "{:.2f}", _locks),
        )
        yield StudyRow(what="locks, %", **percent("locks"))
        yield StudyRow(
            what="4. times that a sender sleeps per message",
            **each("-, -, each", "{:.3f}", lambda one: one["sleeps_per_message"]["client"]),
        )
        yield StudyRow(what="wake-ups (the kernel's part), %", **percent("wake-ups"))
        yield StudyRow(what="reading the clock, %", **percent("clock"))
        yield StudyRow(what="the rest: protocol, and the interpreter", **percent("protocol"))


def _locks(one: dict[str, Any]) -> float:
    counts = one["per_message"]["client"]
    return float(counts["locks"] + counts["engine"])


def least(rates: dict[int, dict[str, float]]) -> float:
    """Return the worst ratio of a size's rate to the best of the smaller ones."""
    best, least = 0.0, 1.0
    for size, figures in rates.items():
        if size > 4 << 20:
            break
        least = min(least, figures["gb_per_s"] / best) if best else least
        best = max(best, figures["gb_per_s"])
    return least


def _texts(figures: dict[str, float], form: str) -> dict[str, str]:
    return {way: form.format(figure) for way, figure in figures.items()}


def _goal(goal: str, is_reached: bool) -> str:
    return f"{goal}: {'reached' if is_reached else '**missed**'}"


def _name(size_bytes: int) -> str:
    unit, shift = ("MiB", 20) if size_bytes >= 1 << 20 else ("KiB", 10)
    return f"{size_bytes >> shift} {unit}"


def _print(output: Output, rows: Sequence[StudyRow], ways: Sequence[str]) -> None:
    cells = [[row.what, row.study, *(row.ways[way] for way in ways), row.goal] for row in rows]
    titles = ["", "study", *ways, "goal"]
    columns = [Column(title, left=True) for title in titles]
    heads, *lines = _markdown(columns, cells)
    output.line()
    for line in (heads, "|" + "---|" * len(titles), *lines):
        output.line(line)


def _markdown(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[str]:
    barred: list[Column] = [Column("|")]
    for column in columns:
        barred += [column, Column("|")]
    rows = [["|", *(part for cell in row for part in (cell, "|"))] for row in cells]
    return align(barred, rows)
