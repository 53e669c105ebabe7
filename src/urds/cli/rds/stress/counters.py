"""The counts of a run of `urds stress`, and the lines of rds-stress made of them.

Tasks count into a `Counters` each, which the thread that prints reads without a lock: a line may be
off by the message that is being counted.
Source: rds-tools 2.0.7 rds-stress.c, its columns and formats; docs/reference/rds.md 5.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self

from urds.cli.rds.stress.wire import Parameters

BUCKETS: Final = 16  # of round trips by powers of two of microseconds; the last has the rest
NO_CPU: Final = -1.0
_NS_PER_USEC: Final = 1000
# Use of the processors as the kernel counts it. Source: proc(5). rds-stress lets a process spin on
# each processor and counts what is left; reading takes nothing from what is measured.
_STAT: Final = Path("/proc/stat")
TITLES: Final = (*("user:percent", "system:percent", "idle:percent", "irq:percent", "intr:count"),)
_USER, _NICE, _SYSTEM, _IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = range(8)
_TIMES: Final = 8
_COLUMNS: Final = "tsks   tx/s   rx/s  tx+rx K/s    mbi K/s    mbo K/s tx us/c   rtt us cpu %"
_CSV_COLUMNS: Final = (
    *("nr_tasks:count", "req_size:bytes", "ack_size:bytes", "rdma_size:bytes", "req_sent:count"),
    # rds-stress has one title for the two columns of RDMA, so that all others are off by one.
    *("thruput:kB/s", "thruput_rdma_in:kB/s", "thruput_rdma_out:kB/s"),
    *("tx_delay:microseconds", "rtt:microseconds", "cpu:percent"),
)


@dataclass(slots=True)
class Counters:
    """Counts of one task, or sums and differences of some."""

    requests_sent: int = 0
    requests_received: int = 0
    acks_sent: int = 0
    acks_received: int = 0
    rdma_in: int = 0  # operations of either side that brought bytes here
    rdma_out: int = 0
    sending_ns: int = 0  # in the calls that sent requests
    round_trips_ns: int = 0  # from request to ack
    buckets: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def add_round_trip(self, round_trip_ns: int) -> None:
        """Count an ack and its time."""
        self.acks_received += 1
        self.round_trips_ns += round_trip_ns
        usec = round_trip_ns // _NS_PER_USEC
        self.buckets[min(max(usec.bit_length() - 1, 0), BUCKETS - 1)] += 1

    def minus(self, earlier: Self) -> Self:
        """Return what was counted since."""
        return self._combined(earlier, -1)

    def plus(self, other: Self) -> Self:
        """Return the sum."""
        return self._combined(other, 1)

    def _combined(self, other: Self, sign: int) -> Self:
        buckets = [one + sign * two for one, two in zip(self.buckets, other.buckets, strict=True)]
        combined = type(self)(buckets=buckets)
        for one in fields(self):
            if one.name != "buckets":
                value = getattr(self, one.name) + sign * getattr(other, one.name)
                setattr(combined, one.name, value)
        return combined


def total(all_counters: Iterable[Counters]) -> Counters:
    """Return the sum of the tasks."""
    whole = Counters()
    for one in all_counters:
        whole = whole.plus(one)
    return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table: one second, or the average of all."""

    tasks: int
    requests_sent_per_s: int
    requests_received_per_s: int
    kib_per_s: float  # requests and acks, both ways
    rdma_in_kib_per_s: float
    rdma_out_kib_per_s: float
    send_usec: float  # of a request, on average
    round_trip_usec: float
    cpu_percent: float  # of all processors of this host; below 0: not asked for


def row(parameters: Parameters, counted: Counters, elapsed_s: float, cpu_percent: float) -> Row:
    """Return the line for what was counted in some time."""
    requests = counted.requests_sent + counted.requests_received
    acks = counted.acks_sent + counted.acks_received
    moved_bytes = requests * parameters.request_bytes + acks * parameters.ack_bytes
    # As rds-stress: one operation counts for the bytes of one piece, however many it has.
    rdma_kib = parameters.rdma_bytes / 1024 / elapsed_s
    return Row(
        tasks=parameters.tasks,
        requests_sent_per_s=round(counted.requests_sent / elapsed_s),
        requests_received_per_s=round(counted.requests_received / elapsed_s),
        kib_per_s=moved_bytes / 1024 / elapsed_s,
        rdma_in_kib_per_s=counted.rdma_in * rdma_kib,
        rdma_out_kib_per_s=counted.rdma_out * rdma_kib,
        send_usec=_usec(counted.sending_ns, counted.requests_sent),
        round_trip_usec=_usec(counted.round_trips_ns, counted.acks_received),
        cpu_percent=cpu_percent,
    )


def heading() -> str:
    """Return the titles of the table."""
    return _COLUMNS


def line(one: Row) -> str:
    """Return a line of the table."""
    return (
        f"{one.tasks:4} {one.requests_sent_per_s:6} {one.requests_received_per_s:6}"
        f" {one.kib_per_s:10.2f} {one.rdma_in_kib_per_s:10.2f} {one.rdma_out_kib_per_s:10.2f}"
        f" {one.send_usec:7.2f} {one.round_trip_usec:8.2f} {one.cpu_percent:5.2f}"
    )


def csv_heading(counters: Iterable[str], processor: Iterable[str]) -> str:
    """Return the titles of `--show-perfdata`: its own, those of RDS counters, the processor's."""
    titles = [f"{name}:{'bytes' if '_bytes' in name else 'count'}" for name in counters]
    return "::" + ",".join((*_CSV_COLUMNS, *titles, *processor))


def csv_line(parameters: Parameters, one: Row, counted: Counters, others: Iterable[float]) -> str:
    """Return a line of `--show-perfdata`."""
    sizes = (parameters.request_bytes, parameters.ack_bytes, parameters.rdma_bytes)
    measured = (
        *(one.kib_per_s, one.rdma_in_kib_per_s, one.rdma_out_kib_per_s),
        *(one.send_usec, one.round_trip_usec, max(one.cpu_percent, 0.0)),
        *others,
    )
    cells = [*map(str, (one.tasks, *sizes, counted.requests_sent))]
    return "::" + ",".join(cells + [f"{value:f}" for value in measured])


def histogram(buckets: Sequence[int]) -> list[str]:
    """Return the lines of `--show-histogram`."""
    count = sum(buckets)
    lines = ["", "RTT histogram", "RTT (us)        \t\t    Count"]
    for power, found in enumerate(buckets):
        share = found / count * 100 if count else 0.0
        lines.append(f"[{1 << power:6} - {2 << power:6}] \t\t {found:8} \t\t ({share:.2f}%)")
    return lines


def parameter_lines(parameters: Parameters) -> list[str]:
    """Return the lines of `--show-params`."""
    named = {
        "use_once": parameters.rdma_use_once,
        "use_get_mr": parameters.rdma_use_get_mr,
        "use_fence": parameters.rdma_use_fence,
        "cache_mrs": parameters.rdma_cache_mrs,
        f"align={parameters.rdma_alignment}": parameters.rdma_alignment,
    }
    rdma = " ".join(name for name, wanted in named.items() if wanted) or "(defaults)"
    return [
        "Options:",
        f"  {'Tasks':10} {parameters.tasks:<7}",
        f"  {'Req size':10} {parameters.request_bytes:<7}",
        f"  {'ACK size':10} {parameters.ack_bytes:<7}",
        f"  {'RDMA size':10} {parameters.rdma_bytes:<7}",
        f"  {'RDMA opts':10} {rdma}",
        "",
    ]


def as_json(one: Row) -> dict[str, Any]:
    """Return a line for `--json`; what was not asked for is null."""
    values = asdict(one)
    if one.cpu_percent < 0:
        values["cpu_percent"] = None
    return values


def _usec(sum_ns: int, count: int) -> float:
    return sum_ns / count / _NS_PER_USEC if count else 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """The kernel's counts at one moment."""

    times: tuple[int, ...]  # ticks of all processors, by what they did
    interrupts: int

    @classmethod
    def now(cls) -> Self:
        """Read the counts. Raises OSError: this system has none."""
        return cls.parse(_STAT.read_text())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the counts from the text of /proc/stat."""
        rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
        times = [int(ticks) for ticks in rows["cpu"][:_TIMES]]
        times += [0] * (_TIMES - len(times))
        return cls(tuple(times), int(rows.get("intr", ["0"])[0]))

    def busy_percent(self, earlier: Self) -> float:
        """Return how much of the time since then the processors were not idle."""
        _, _, idle, _ = self._shares(earlier)
        return 100.0 - idle

    def columns(self, earlier: Self) -> tuple[float, ...]:
        """Return the values of `TITLES` since then."""
        return (*self._shares(earlier), float(self.interrupts - earlier.interrupts))

    def _shares(self, earlier: Self) -> tuple[float, float, float, float]:
        """Return percent of the time for user, system, idle and interrupts."""
        spent = [now - then for now, then in zip(self.times, earlier.times, strict=True)]
        scale = 100.0 / (sum(spent) or 1)
        return (
            (spent[_USER] + spent[_NICE]) * scale,
            spent[_SYSTEM] * scale,
            (spent[_IDLE] + spent[_IOWAIT]) * scale if sum(spent) else 100.0,
            (spent[_IRQ] + spent[_SOFTIRQ]) * scale,
        )
