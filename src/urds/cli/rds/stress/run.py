"""A run on this side: its tasks as threads, the table every second, the average at the end.

One thread per task, each waiting in its receive, so that it reads the connections itself. Measured
on two cores, four tasks of depth 8: twice the rate of one thread that polls the sockets of all,
because the plane's progress thread, which is later, reads a socket that is only polled. Processes
as in rds-stress would need an address each.
Source: rds-tools 2.0.7 rds-stress.c, its columns and formats; docs/reference/rds.md 5.6.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from pathlib import Path
from struct import Struct
from typing import Any, Final, Self

import urds
from urds.cli.output import TITLE, Exit, Output, complain
from urds.cli.rds.stress.task import Counters, Task, total
from urds.cli.rds.stress.wire import GO, VERSION_BYTES, Parameters, form_bytes

ANSWER_S: Final = 30.0  # the other side makes its tasks meanwhile
_OPTIONS_S: Final = 10.0
_INTERVAL_S: Final = 1.0
_LOOK_S: Final = 0.1  # how soon a task's failure is seen
_JOIN_S: Final = 5.0
_DOTS: Final = 4
_RULE: Final = "-" * 45
_COUNTER: Final = Struct("=32sQ")
_COUNTERS_BYTES_MAX: Final = 1 << 16


NO_CPU: Final = -1.0
# Use of the processors as the kernel counts it. Source: proc(5). rds-stress lets a process spin on
# each processor and counts what is left; reading takes nothing from what is measured.
_STAT: Final = Path("/proc/stat")
TITLES: Final = (*("user:percent", "system:percent", "idle:percent", "irq:percent", "intr:count"),)
_IDLE_COLUMN: Final = TITLES.index("idle:percent")
_TIMES: Final = 8  # user, nice, system, idle, iowait, irq, softirq, steal
HEADING: Final = "tsks   tx/s   rx/s  tx+rx K/s    mbi K/s    mbo K/s tx us/c   rtt us cpu %"
_CSV_COLUMNS: Final = (
    *("nr_tasks:count", "req_size:bytes", "ack_size:bytes", "rdma_size:bytes", "req_sent:count"),
    # rds-stress has one title for the two columns of RDMA, so that all others are off by one.
    *("thruput:kB/s", "thruput_rdma_in:kB/s", "thruput_rdma_out:kB/s"),
    *("tx_delay:microseconds", "rtt:microseconds", "cpu:percent"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """What this side prints, and from when on."""

    output: Output
    report_cpu: bool = False
    show_histogram: bool = False
    start_up_s: float = 4.0  # half until the tasks start, half until figures count
    outlier_usec: int | None = None  # round trips beyond are named


@dataclass(frozen=True, slots=True)
class Moment:
    """All counts at one time."""

    at_s: float
    counted: Counters
    usage: Usage | None
    counters: dict[str, int]  # of RDS; read where they are shown


class Control:
    """A connection between the two sides of a run.

    The active side sends its options in one piece, makes its tasks, sends a byte and waits for one;
    the passive side mirrors that. Nothing follows: the connection's end is the run's.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def close(self) -> None:
        """End the run for the other side."""
        self._connection.close()

    def send_options(self, parameters: Parameters) -> None:
        """Send the options to the passive side: in one write, for it may read in one."""
        self._connection.sendall(parameters.emit())

    def receive_options(self) -> Parameters:
        """Return the received options. Raises OSError: none came. WireError: they are wrong."""
        self._connection.settimeout(_OPTIONS_S)
        begun = self._receive(VERSION_BYTES)
        return Parameters.parse(begun + self._receive(form_bytes(begun) - VERSION_BYTES))

    def start_active(self) -> None:
        """Report that the tasks are ready, wait until the peer's are. Raises OSError."""
        self._connection.sendall(GO)
        self._connection.settimeout(ANSWER_S)
        self._receive(len(GO))

    def start_passive(self) -> None:
        """Wait until the peer's tasks are ready, report that these are. Raises OSError."""
        self._connection.settimeout(ANSWER_S)
        self._receive(len(GO))
        self._connection.sendall(GO)

    def is_over(self, wait_s: float) -> bool:
        """Tell whether the other side has ended, or sent a byte; wait so long for it."""
        return bool(select.select([self._connection], [], [], wait_s)[0])

    def local_address(self) -> IPv4Address:
        """Return our address of the connection: RDS takes the same."""
        return IPv4Address(self._connection.getsockname()[0])

    def _receive(self, byte_count: int) -> bytes:
        received = b""
        while len(received) < byte_count:
            try:
                piece = self._connection.recv(byte_count - len(received))
            except TimeoutError as late:
                raise TimeoutError(errno.ETIMEDOUT, "the other side says nothing") from late
            if not piece:
                raise ConnectionError(errno.ECONNRESET, "the other side closed the connection")
            received += piece
        return received


class Run:
    """One side of a run. Entering it binds the sockets, leaving it closes them."""

    def __init__(self, parameters: Parameters, display: Display, *, is_active: bool) -> None:
        self.parameters: Final = parameters
        self.start_s: Final = display.start_up_s / 2  # until the tasks start
        self._display = display
        self._output = display.output
        self._is_active = is_active
        self._is_ending = threading.Event()
        self._failures: list[BaseException] = []
        self._tasks: list[Task] = []
        self._threads: list[threading.Thread] = []
        self._closing = ExitStack()
        self._reissued = 0

    def __enter__(self) -> Self:
        with ExitStack() as closing:
            for number in range(self.parameters.tasks):
                task = Task(
                    self.parameters,
                    number,
                    is_active=self._is_active,
                    outlier_usec=self._display.outlier_usec,
                )
                closing.callback(task.close)
                self._tasks.append(task)
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_tasks()
        self._closing.close()

    def carry_out(self, control: Control) -> Exit:
        """Run until the time is up, the other side ends, or Ctrl-C; print the average.

        Raises StressError, OSError: a task failed.
        """
        code, elapsed_s = Exit.INTERRUPTED, 0.0
        first = last = None
        begun_s = time.monotonic()
        try:
            self._start_up(control)
            first = last = self._moment()
            if self.parameters.show_perfdata:
                self._output.line(csv_heading(first.counters, TITLES))
            else:
                self._output.line(HEADING, TITLE)
            for now in self._seconds(control, first):
                last = now
            elapsed_s = last.at_s - (first.at_s if self._is_active else begun_s)
            # A run that has a time and ends before it has failed.
            is_whole = elapsed_s + _INTERVAL_S >= self.parameters.run_s
            code = Exit.OK if is_whole else Exit.FAILED
        except KeyboardInterrupt:
            pass
        control.close()  # ends the other side, too
        self._end_tasks()
        if self._failures:
            raise self._failures[0]
        if code is Exit.FAILED:  # printed last: tasks may log errors until they have ended
            text = f"the other side ended after {elapsed_s:.0f} of {self.parameters.run_s} s"
            complain("urds stress", text)
        if first is not None and last is not None:
            self._show_average(first, last if last.at_s > first.at_s else self._moment())
        return code

    # -- the tasks

    def _start_up(self, control: Control) -> None:
        """Start the tasks in the middle of the time before figures count."""
        self._print_part("Starting up")
        try:
            for dot in range(_DOTS):
                if dot == _DOTS // 2:
                    self._start_tasks()
                self._wait(control, time.monotonic() + self._display.start_up_s / _DOTS)
                self._print_part(".")
        finally:
            self._print_part("\n")

    def _print_part(self, text: str) -> None:
        """Print a part of a line, to be seen at once."""
        if not self._output.json_wanted:
            print(text, end="", flush=True)

    def _start_tasks(self) -> None:
        for task in self._tasks:
            thread = threading.Thread(target=self._run_task, args=(task,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run_task(self, task: Task) -> None:
        try:
            task.run(self._is_ending)
        except OSError as failure:
            self._failures.append(failure)
        finally:
            self._is_ending.set()

    def _end_tasks(self) -> None:
        self._is_ending.set()
        for thread in self._threads:
            thread.join(_JOIN_S)

    # -- time

    def _wait(self, control: Control, until_s: float) -> bool:
        """Wait until that time; False if the run is over before."""
        while (left_s := until_s - time.monotonic()) > 0:
            if self._is_ending.is_set() or control.is_over(min(left_s, _LOOK_S)):
                return False
        return True

    def _seconds(self, control: Control, first: Moment) -> Iterator[Moment]:
        """Show each second; yield its end."""
        earlier = first
        run_s = self.parameters.run_s if self._is_active else 0
        due_s = first.at_s
        while not run_s or due_s - first.at_s < run_s:
            due_s += _INTERVAL_S
            if not self._wait(control, due_s):
                return
            now = self._moment()
            self._show(earlier, now)
            yield now
            earlier = now

    def _moment(self) -> Moment:
        perfdata = self.parameters.show_perfdata
        usage = Usage.parse(_STAT.read_text()) if self._display.report_cpu or perfdata else None
        return Moment(
            time.monotonic(),
            total(task.counted for task in self._tasks),
            usage,
            self._counters() if perfdata else {},
        )

    def _counters(self) -> dict[str, int]:
        data = self._tasks[0].sock.getsockopt(
            urds.SOL_RDS, urds.RDS_INFO_COUNTERS, _COUNTERS_BYTES_MAX
        )
        rows = _COUNTER.iter_unpack(data)
        return {name.partition(b"\0")[0].decode(): value for name, value in rows}

    # -- output

    def _show(self, earlier: Moment, now: Moment) -> None:
        if self.parameters.summary_only:
            return
        elapsed_s = now.at_s - earlier.at_s
        counted = now.counted.minus(earlier.counted)
        one = self._row(earlier, now)
        self._output.record(as_json(one))
        if self.parameters.show_perfdata:
            assert now.usage is not None and earlier.usage is not None, "perfdata shows it"
            counters = [
                (value - earlier.counters.get(name, 0)) / elapsed_s
                for name, value in now.counters.items()
            ]
            values = (*counters, *now.usage.columns(earlier.usage))
            self._output.line(csv_line(self.parameters, one, counted, values))
        else:
            self._output.line(line(one))
        self._show_keys()

    def _row(self, earlier: Moment, now: Moment) -> Row:
        cpu_percent = NO_CPU
        if self._display.report_cpu and now.usage and earlier.usage:
            cpu_percent = now.usage.busy_percent(earlier.usage)
        counted = now.counted.minus(earlier.counted)
        return row(self.parameters, counted, now.at_s - earlier.at_s, cpu_percent)

    def _show_keys(self) -> None:
        """Print the keys that came again since the last time."""
        meters = [task.meter for task in self._tasks if task.meter and task.meter.reissued]
        reissued = sum(meter.reissued for meter in meters)
        if reissued == self._reissued or self._output.json_wanted:
            return
        self._reissued = reissued
        least_s = min(meter.distance_ns_min for meter in meters) / 1e9
        average_s = sum(meter.distance_ns_sum for meter in meters) / reissued / 1e9
        self._output.line(
            f" *** {reissued} R_Keys were re-issued; min distance={least_s:f} sec,"
            f" avg distance={average_s:f} sec"
        )

    def _show_average(self, first: Moment, last: Moment) -> None:
        one = self._row(first, last)
        counted = last.counted.minus(first.counted)
        record = {"average": True, **as_json(one), "seconds": round(last.at_s - first.at_s, 3)}
        if self._display.show_histogram:
            record["round_trips_by_power_of_2_usec"] = counted.buckets
        self._output.record(record)
        if not self.parameters.summary_only:
            self._output.line(_RULE)
        self._output.line(f"{line(one)}  (average)")
        if self._display.show_histogram:
            for text in histogram(counted.buckets):
                self._output.line(text)


# -- the lines of rds-stress


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
    sizes = {
        "Tasks": parameters.tasks, "Req size": parameters.request_bytes,
        "ACK size": parameters.ack_bytes, "RDMA size": parameters.rdma_bytes,
    }  # fmt: skip
    lines = [f"  {name:10} {value:<7}" for name, value in sizes.items()]
    return ["Options:", *lines, f"  {'RDMA opts':10} {rdma}", ""]


def as_json(one: Row) -> dict[str, Any]:
    """Return a line for `--json`; what was not asked for is null."""
    values = asdict(one)
    if one.cpu_percent < 0:
        values["cpu_percent"] = None
    return values


def _usec(sum_ns: int, count: int) -> float:
    return sum_ns / count / 1000 if count else 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """The kernel's counts at one moment."""

    times: tuple[int, ...]  # ticks of all processors, by what they did
    interrupts: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the counts from the text of /proc/stat."""
        rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
        return cls(tuple(map(int, rows["cpu"][:_TIMES])), int(rows.get("intr", ["0"])[0]))

    def busy_percent(self, earlier: Self) -> float:
        """Return how much of the time since then the processors were not idle."""
        return 100.0 - self.columns(earlier)[_IDLE_COLUMN]

    def columns(self, earlier: Self) -> tuple[float, ...]:
        """Return the values of `TITLES` since then."""
        spent = [now - then for now, then in zip(self.times, earlier.times, strict=True)]
        user, nice, system, idle, waiting, interrupt, soft_interrupt, _ = spent
        ticks = sum(spent)
        shares = (user + nice, system, idle + waiting if ticks else 1, interrupt + soft_interrupt)
        scale = 100.0 / (ticks or 1)
        return (*(share * scale for share in shares), float(self.interrupts - earlier.interrupts))
