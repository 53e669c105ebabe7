"""Latency, bandwidth and rate of verbs, beside plain sockets in the same run.

Tables have perftest's columns. Each device and each kind of socket is measured between this process
and one of its own, one size after another, each for a while. Both sides wait in events; no
side spins; MB are 10^6 bytes. Latency of SEND is half a round trip; of WRITE it is the time until
the write has completed here, which the peer's device, not its program, answers.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from benches.verbs.connections import ConnectionFigures, measure_connections
from benches.verbs.ends import LAST, SIZE_MAX, End, StreamEnd, VerbsEnd, connected
from urds import verbs
from urds.cli import processes
from urds.cli.output import Column, Exit, Output, Progress, UsageError
from urds.cli.parser import check_ranges, json_option, option

SOCKETS: Final = ("tcp", "unix")
DEVICES: Final = ("shm0", "tcp0", "udp0")
SIZES: Final = (1, 64, 1024, 4096, 65_536, 1 << 20, SIZE_MAX)
_ITERATIONS_MIN: Final = 5
_ITERATIONS_MAX: Final = 20_000
_SERVER_END_S: Final = 10.0
_ROOT: Final = Path(__file__).resolve().parents[2]
_US: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbsBenchOptions:
    """What to measure."""

    devices: Sequence[str] = option(
        "--device", metavar="NAME", default=DEVICES,
        help="Device to measure; may be repeated. All of them without it.",
    )  # fmt: skip
    sizes: Sequence[int] = option(
        "--size", metavar="BYTES", default=SIZES, low=1, high=SIZE_MAX,
        help="Bytes of a message; may be repeated.",
    )  # fmt: skip
    seconds: float = option(
        "--seconds", metavar="S", default=0.3, low=0.01, high=60, help="How long each row takes."
    )
    connections: int = option(
        "--connections", default=200, low=1, high=10_000, help="How many connections are made."
    )
    json_wanted: bool = json_option()

    def check(self) -> None:
        """Raise UsageError for wrong options."""
        check_ranges(self)
        known = [device.name for device in verbs.get_device_list()]
        for name in self.devices:
            if name not in known:
                raise UsageError(f"--device {name}: there are {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class Latency:
    """One row of a latency table, in microseconds."""

    device: str
    operation: str
    size_bytes: int
    iterations: int
    min_us: float
    max_us: float
    typical_us: float
    mean_us: float
    stdev_us: float
    p99_us: float
    p999_us: float


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """One row of a bandwidth table."""

    device: str
    operation: str
    size_bytes: int
    iterations: int
    mb_per_s: float
    messages_per_s: float


class Measured:
    """All rows of a run."""

    def __init__(self) -> None:
        self.latencies: list[Latency] = []
        self.bandwidths: list[Bandwidth] = []
        self.connections: list[ConnectionFigures] = []


def run(options: VerbsBenchOptions) -> Exit:
    """Measure everything and print the tables."""
    options.check()
    output = Output(json_wanted=options.json_wanted)
    measured = Measured()
    kinds = [*SOCKETS, *options.devices]
    steps = len(kinds) * len(options.sizes) + len(options.devices)
    done = 0
    with Progress(quiet=options.json_wanted) as progress:
        for kind in kinds:
            with _peers(kind) as (end, peer, where):
                for size_bytes in options.sizes:
                    progress.update(done / steps, f"{kind}, {size_bytes} bytes")
                    _measure(kind, end, peer, where, size_bytes, options.seconds, measured)
                    done += 1
        for device in options.devices:
            progress.update(done / steps, f"{device}, connections")
            measured.connections.append(measure_connections(device, options.connections))
            done += 1
    _print(output, measured)
    return Exit.OK


class _Server:
    """The process on the other side."""

    def __init__(self, device: str) -> None:
        self._process = processes.start("benches.verbs.server", folders=[_ROOT])
        self.tell(device=device)

    def tell(self, **details: Any) -> None:
        """Send it a line."""
        assert self._process.stdin is not None, "it is piped"
        self._process.stdin.write(json.dumps(details) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Return its next answer. Raises OSError: it ended."""
        assert self._process.stdout is not None, "it is piped"
        line = self._process.stdout.readline()
        if not line:
            raise OSError(f"the bench's server ended with exit code {self._process.wait()}")
        return dict(json.loads(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # it may wait for us
            self._process.kill()
        self.close()

    def close(self) -> None:
        """Let it end; kill it if it does not."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_SERVER_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextmanager
def _peers(kind: str) -> Iterator[tuple[End, _Server, dict[str, Any]]]:
    """Yield our end, the server, and where its memory is (nothing for sockets)."""
    with ExitStack() as stack:
        with processes.ctrl_c_held():
            server = stack.enter_context(_Server(kind))
        found = server.hear()
        if kind in SOCKETS:
            family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
            sock = socket.socket(family)
            sock.connect(found["path"] if kind == "unix" else ("127.0.0.1", found["port"]))
            end = StreamEnd(sock)
            yield end, server, {}
            end.close()
        else:
            with verbs.Context(kind) as context:
                yield connected(context, found["port"]), server, server.hear()


def _measure(
    kind: str,
    end: End,
    server: _Server,
    where: dict[str, Any],
    size_bytes: int,
    seconds: float,
    measured: Measured,
) -> None:
    end.prepare(size_bytes)
    server.tell(work="ping-pong", size_bytes=size_bytes)
    times_us = [spent / 2 for spent in _times_us(lambda: _round_trip(end), seconds)]
    end.send(LAST)
    end.receive()
    end.flush()
    measured.latencies.append(_latency(kind, "SEND", size_bytes, times_us))
    server.tell(work="stream", size_bytes=size_bytes)
    count, spent_s = _stream(end, seconds)
    measured.bandwidths.append(_bandwidth(kind, "SEND", size_bytes, count, spent_s))
    if isinstance(end, VerbsEnd):
        _measure_writes(kind, end, where, size_bytes, seconds, measured)


def _measure_writes(
    kind: str,
    end: VerbsEnd,
    where: dict[str, Any],
    size_bytes: int,
    seconds: float,
    measured: Measured,
) -> None:
    rkey, address = where["rkey"], where["address"]

    def write_and_wait() -> None:
        end.write(rkey, address)
        end.flush()

    times_us = _times_us(write_and_wait, seconds)
    measured.latencies.append(_latency(kind, "WRITE", size_bytes, times_us))
    start_s, count = time.perf_counter(), 0
    for _ in _repeats(seconds):
        end.write(rkey, address)
        count += 1
    end.flush()
    spent_s = time.perf_counter() - start_s
    measured.bandwidths.append(_bandwidth(kind, "WRITE", size_bytes, count, spent_s))


def _round_trip(end: End) -> None:
    end.send()
    end.receive()


def _stream(end: End, seconds: float) -> tuple[int, float]:
    """Send without pause; return how many, and the time until the peer has the last one."""
    start_s, count = time.perf_counter(), 1
    for _ in _repeats(seconds):
        end.send()
        count += 1
    end.send(LAST)
    end.receive()
    spent_s = time.perf_counter() - start_s
    end.flush()
    return count, spent_s


def _times_us(work: Callable[[], object], seconds: float) -> list[float]:
    """Return what each repetition took, after a tenth that warms up."""
    times_us: list[float] = []
    for _ in _repeats(seconds):
        start_s = time.perf_counter()
        work()
        times_us.append((time.perf_counter() - start_s) * _US)
    return times_us[len(times_us) // 10 :]


def _repeats(seconds: float) -> Iterator[None]:
    """Yield until the time is over, but not more or less often than the limits say."""
    end_s = time.perf_counter() + seconds
    for count in range(_ITERATIONS_MAX):
        if count >= _ITERATIONS_MIN and time.perf_counter() >= end_s:
            return
        yield


def _latency(kind: str, operation: str, size_bytes: int, times_us: Sequence[float]) -> Latency:
    ordered = sorted(times_us)
    return Latency(
        kind, operation, size_bytes, len(ordered), ordered[0], ordered[-1],
        statistics.median(ordered), statistics.fmean(ordered), statistics.pstdev(ordered),
        ordered[int(len(ordered) * 0.99)], ordered[int(len(ordered) * 0.999)],
    )  # fmt: skip


def _bandwidth(kind: str, operation: str, size_bytes: int, count: int, spent_s: float) -> Bandwidth:
    rate = count / spent_s
    return Bandwidth(kind, operation, size_bytes, count, rate * size_bytes / 1e6, rate)


def _print(output: Output, measured: Measured) -> None:
    if output.json_wanted:
        output.document(
            {
                "latency": [asdict(row) for row in measured.latencies],
                "bandwidth": [asdict(row) for row in measured.bandwidths],
                "connections": [asdict(row) for row in measured.connections],
            }
        )
        return
    output.line("tcp and unix are plain Python sockets, the others devices of urds")
    for operation in ("SEND", "WRITE"):
        latencies = [row for row in measured.latencies if row.operation == operation]
        if latencies:
            _print_latencies(output, operation, latencies)
        bandwidths = [row for row in measured.bandwidths if row.operation == operation]
        if bandwidths:
            _print_bandwidths(output, operation, bandwidths)
    if measured.connections:
        _print_connections(output, measured.connections)


def _print_latencies(output: Output, operation: str, rows: list[Latency]) -> None:
    titles = ("#bytes", "#iterations", "t_min[us]", "t_max[us]", "t_typical[us]", "t_avg[us]")
    columns = [Column("device", left=True), *map(Column, titles)]
    columns += map(Column, ("t_stdev[us]", "99%[us]", "99.9%[us]"))
    output.table(
        f"{operation} latency",
        columns,
        (
            (
                row.device, row.size_bytes, row.iterations,
                *(f"{value:.2f}" for value in (
                    row.min_us, row.max_us, row.typical_us, row.mean_us, row.stdev_us,
                    row.p99_us, row.p999_us,
                )),
            )
            for row in sorted(rows, key=lambda row: row.size_bytes)
        ),
    )  # fmt: skip


def _print_bandwidths(output: Output, operation: str, rows: list[Bandwidth]) -> None:
    titles = ("#bytes", "#iterations", "BW average[MB/s]", "MsgRate[Mpps]")
    output.table(
        f"{operation} bandwidth",
        [Column("device", left=True), *map(Column, titles)],
        (
            (
                row.device, row.size_bytes, row.iterations,
                f"{row.mb_per_s:.2f}", f"{row.messages_per_s / 1e6:.6f}",
            )
            for row in sorted(rows, key=lambda row: row.size_bytes)
        ),
    )  # fmt: skip


def _print_connections(output: Output, rows: list[ConnectionFigures]) -> None:
    titles = ("connections", "us each", "connections/s", "bytes per QP")
    output.table(
        "Connections, both sides in one process",
        [Column("device", left=True), *map(Column, titles)],
        (
            (
                row.device, row.count, f"{1e6 / row.per_s:.1f}", f"{row.per_s:.1f}",
                row.bytes_per_qp,
            )
            for row in rows
        ),
    )  # fmt: skip
