"""A run on this side: its tasks as threads, the table every second, the average at the end.

One thread per task, each waiting in its receive, so that it reads the connections itself. Measured
on two cores, four tasks of depth 8: twice the rate of one thread that polls the sockets of all,
because the plane's progress thread, which is later, reads a socket that is only polled. Processes
as in rds-stress would need an address each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from struct import Struct
from typing import Final, Self

import urds
from urds.cli.output import TITLE, Exit, Output, complain
from urds.cli.rds.stress import counters as stress_counters
from urds.cli.rds.stress.control import Control
from urds.cli.rds.stress.counters import NO_CPU, Counters, Usage
from urds.cli.rds.stress.task import Task
from urds.cli.rds.stress.wire import Parameters

_INTERVAL_S: Final = 1.0
_LOOK_S: Final = 0.1  # how soon a task's failure is seen
_JOIN_S: Final = 5.0
_DOTS: Final = 4
_RULE: Final = "-" * 45
_COUNTER: Final = Struct("=32sQ")
_COUNTERS_BYTES_MAX: Final = 1 << 16


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
            self._show_heading(first)
            for now in self._seconds(control, first):
                last = now
            elapsed_s = last.at_s - (first.at_s if self._is_active else begun_s)
            code = self._code(elapsed_s)
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
        is_shown = not self._output.json_wanted
        _print_part("Starting up" if is_shown else "")
        try:
            for dot in range(_DOTS):
                if dot == _DOTS // 2:
                    self._start_tasks()
                self._wait(control, time.monotonic() + self._display.start_up_s / _DOTS)
                _print_part("." if is_shown else "")
        finally:
            _print_part("\n" if is_shown else "")

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

    def _code(self, elapsed_s: float) -> Exit:
        """Report the result: a run that has a time and ends before it has failed."""
        return Exit.OK if elapsed_s + _INTERVAL_S >= self.parameters.run_s else Exit.FAILED

    def _moment(self) -> Moment:
        perfdata = self.parameters.show_perfdata
        usage = Usage.now() if self._display.report_cpu or perfdata else None
        return Moment(
            time.monotonic(),
            stress_counters.total(task.counted for task in self._tasks),
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

    def _show_heading(self, first: Moment) -> None:
        if self._output.json_wanted:
            return
        if self.parameters.show_perfdata:
            self._output.line(stress_counters.csv_heading(first.counters, stress_counters.TITLES))
        else:
            self._output.line(stress_counters.heading(), TITLE)

    def _show(self, earlier: Moment, now: Moment) -> None:
        if self.parameters.summary_only:
            return
        elapsed_s = now.at_s - earlier.at_s
        counted = now.counted.minus(earlier.counted)
        one = self._row(earlier, now)
        if self._output.json_wanted:
            self._output.record(stress_counters.as_json(one))
        elif self.parameters.show_perfdata:
            assert now.usage is not None and earlier.usage is not None, "perfdata shows it"
            counters = [
                (value - earlier.counters.get(name, 0)) / elapsed_s
                for name, value in now.counters.items()
            ]
            values = (*counters, *now.usage.columns(earlier.usage))
            self._output.line(stress_counters.csv_line(self.parameters, one, counted, values))
        else:
            self._output.line(stress_counters.line(one))
        self._show_keys()

    def _row(self, earlier: Moment, now: Moment) -> stress_counters.Row:
        cpu_percent = NO_CPU
        if self._display.report_cpu and now.usage and earlier.usage:
            cpu_percent = now.usage.busy_percent(earlier.usage)
        counted = now.counted.minus(earlier.counted)
        return stress_counters.row(self.parameters, counted, now.at_s - earlier.at_s, cpu_percent)

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
        if self._output.json_wanted:
            record = {"average": True, **stress_counters.as_json(one)}
            record["seconds"] = round(last.at_s - first.at_s, 3)
            if self._display.show_histogram:
                record["round_trips_by_power_of_2_usec"] = counted.buckets
            self._output.record(record)
            return
        if not self.parameters.summary_only:
            self._output.line(_RULE)
        self._output.line(f"{stress_counters.line(one)}  (average)")
        if self._display.show_histogram:
            for line in stress_counters.histogram(counted.buckets):
                self._output.line(line)


def _print_part(text: str) -> None:
    """Print a part of a line, to be seen at once."""
    print(text, end="", flush=True)
