"""What a program pays for uDAPL: `python -m benches.dat`.

All through the calls with C's names. A round trip is a SEND of 8 bytes there and one back between
two processes; a WRITE is posted here and completes here. Each figure is of single operations, after
a tenth that warms up.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from urds import dat
from urds.cli.output import Column, Exit, Output
from urds.cli.parser import Command, check_ranges, json_option, option, run_alone
from urds.cli.processes import environment

_ROOT: Final = Path(__file__).resolve().parents[1]
_WAIT_S: Final = 30.0
_WAIT_US: Final = 30_000_000
_RECEIVES: Final = 8
_BYTES: Final = 8
_CALLS: Final = 500  # of one round, where a single one is shorter than two looks at the clock
_SUPPRESS: Final = dat.CompletionFlag.SUPPRESS

Take = Callable[[dat.EventDispatcher], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatBenchOptions:
    """What to measure."""

    devices: Sequence[str] = option(
        "--device", metavar="NAME", default=("shm0", "tcp0"),
        help="Adapter to measure; may be repeated.",
    )  # fmt: skip
    count: int = option(
        "--count", default=5000, low=10, high=1_000_000, help="Operations of each row."
    )
    json_wanted: bool = json_option()


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one device, in microseconds."""

    device: str
    operation: str
    count: int
    lowest_decile_us: float
    median_us: float


def polled(evd: dat.EventDispatcher) -> Any:
    """Take an event by asking until it is there."""
    dequeue = dat.dat_evd_dequeue
    while (event := dequeue(evd)[1]) is None:
        pass
    return event


def waited(evd: dat.EventDispatcher) -> Any:
    """Take an event by waiting."""
    return dat.dat_evd_wait(evd, _WAIT_US, 1)[1]


class End:
    """One adapter with an endpoint, and memory for receives, for what is sent and for writes."""

    def __init__(self, device: str) -> None:
        self.ia = dat.open(device)
        pz = self.ia.create_pz()
        recv, request = (self.ia.create_evd(64, dat.EvdFlag.DTO) for _ in range(2))
        connection = self.ia.create_evd(8, dat.EvdFlag.CONNECTION)
        attr = dat.EpAttr(max_recv_dtos=2 * _RECEIVES, max_request_dtos=32)
        self.ep = pz.create_ep(recv, request, connection, attr)
        self.recv, self.request = recv, request
        self.memory = pz.register(bytearray((_RECEIVES + 2) * 64))
        self.places = [[self.memory.triplet(64 * number, 64)] for number in range(_RECEIVES)]
        self.source = [self.memory.triplet(64 * _RECEIVES, _BYTES)]
        self.target = (64 * _RECEIVES + 64, _BYTES)
        for number in range(_RECEIVES):
            self.post(number)

    def post(self, number: int) -> None:
        """Post a receive again."""
        dat.dat_ep_post_recv(self.ep, 1, self.places[number], number, 0)

    def send(self) -> None:
        """Send a message."""
        dat.dat_ep_post_send(self.ep, 1, self.source, None, _SUPPRESS)

    def receive(self, take: Take) -> None:
        """Take a message. Raises DatCompletionError."""
        event = take(self.recv)
        event.raise_for_status()
        self.post(event.user_cookie)

    def settle(self) -> None:
        """Wait until it is connected. Raises OSError."""
        assert self.ep.connect_evd is not None, "made with one"
        event = self.ep.connect_evd.wait(_WAIT_S)
        if event.event_number is not dat.EventNumber.CONNECTION_ESTABLISHED:
            raise OSError(f"no connection: {event.event_number.name}")


def serve(device: str, count: int) -> None:
    """Be the other side: print where to connect and to write, answer, end with standard input."""
    end = End(device)
    requests = end.ia.create_evd(2, dat.EvdFlag.CR)
    point = end.ia.listen(evd=requests)
    remote = end.memory.remote_triplet(*end.target)
    print(point.conn_qual, remote.rmr_context, remote.target_address, flush=True)
    requests.wait(_WAIT_S).cr.accept(end.ep)
    end.settle()
    for take in (polled, waited):
        for _ in range(count):
            end.receive(take)
            end.send()
    sys.stdin.read()


def measure(device: str, count: int) -> list[Row]:
    """Measure one device. Raises OSError."""
    call = f"from benches.dat import serve; serve({device!r}, {count})"
    with subprocess.Popen(
        [sys.executable, "-c", call],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(_ROOT),
    ) as peer:  # fmt: skip
        try:
            assert peer.stdout is not None, "it is piped"
            conn_qual, context, address = map(int, peer.stdout.readline().split())
            end = End(device)
            with end.ia:
                end.ep.connect(end.ia.address, conn_qual, timeout_s=_WAIT_S)
                end.settle()
                return _rows(device, end, dat.RmrTriplet(context, address, _BYTES), count)
        finally:
            peer.kill()


def _rows(device: str, end: End, target: dat.RmrTriplet, count: int) -> list[Row]:
    def exchange(take: Take) -> Callable[[], None]:
        def work() -> None:
            end.send()
            end.receive(take)

        return work

    def write() -> None:
        dat.dat_ep_post_rdma_write(end.ep, 1, end.source, None, target, 0)
        polled(end.request).raise_for_status()

    def query() -> None:
        ask, ep = dat.dat_ep_recv_query, end.ep
        for _ in range(_CALLS):
            ask(ep)

    def look() -> None:
        dat.dat_evd_dequeue(end.recv)

    return [
        _row(device, "SEND there and back, polling", exchange(polled), count),
        _row(device, "SEND there and back, waiting", exchange(waited), count),
        _row(device, "WRITE and its completion, the peer asleep", write, count),
        _row(device, "dat_evd_dequeue of an empty queue", look, count),
        _row(device, "dat_ep_recv_query", query, max(10, count // _CALLS), _CALLS),
    ]


def _row(device: str, name: str, work: Callable[[], None], count: int, calls: int = 1) -> Row:
    times_us = []
    for _ in range(count):
        before_ns = time.perf_counter_ns()
        work()
        times_us.append((time.perf_counter_ns() - before_ns) / 1e3 / calls)
    ordered = sorted(times_us[count // 10 :])
    return Row(
        device, name, len(ordered) * calls, ordered[len(ordered) // 10], statistics.median(ordered)
    )


def run(options: DatBenchOptions) -> Exit:
    """Measure everything and print the table."""
    check_ranges(options)
    rows = [row for device in options.devices for row in measure(device, options.count)]
    output = Output(json_wanted=options.json_wanted)
    if options.json_wanted:
        output.document({"rows": [asdict(row) for row in rows]})
        return Exit.OK
    columns = [Column(title, left=True) for title in ("device", "operation")]
    columns += map(Column, ("operations", "lowest decile [us]", "median [us]"))
    output.table(
        "uDAPL, 8 bytes",
        columns,
        (
            (
                row.device, row.operation, row.count,
                f"{row.lowest_decile_us:.2f}", f"{row.median_us:.2f}",
            )
            for row in rows
        ),
    )  # fmt: skip
    return Exit.OK


COMMAND = Command(
    about="""
    What a program pays for uDAPL over each device: a message there and back between two processes,
    both polling and both waiting, a write, a look at an empty dispatcher, and dat_ep_recv_query.
    """,
    examples=(
        ("python -m benches.dat", "everything"),
        ("python -m benches.dat --device shm0 --count 500 --json", "shorter, for a script"),
    ),
    options=DatBenchOptions,
    run=run,
)

if __name__ == "__main__":
    sys.exit(
        run_alone("python -m benches.dat", "Measure the calls of uDAPL.", COMMAND, sys.argv[1:])
    )
