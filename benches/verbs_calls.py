"""What a program pays for the calls of verbs: `python -m benches.verbs_calls`.

A round trip is a SEND of 8 bytes there and one back between two processes: by kept records, by the
short form, and by waits; a SEQPACKET socket of Python does the same in the same run. One way and
writes are rates. The conditions stand above: processors, the floor of a cache line, copies.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benches.rsocket import conditions
from urds import verbs
from urds.cli.output import Column, Exit, Output
from urds.cli.parser import Command, check_ranges, json_option, option, run_alone
from urds.cli.processes import environment

_ROOT: Final = Path(__file__).resolve().parents[1]
_ROUND_TRIPS: Final = ("kept", "short", "wait")
_RECEIVES: Final = 512
_BATCH: Final = 16  # requests of one post, one way
_ONE_WAY_BYTES: Final = 64
_WRITE_SIZES: Final = (1 << 16, 1 << 20)
_MEMORY_BYTES: Final = 2 << 20
_RECV: Final = 1
_WARM_S: Final = 0.1
_NS: Final = 1e3
_ALL: Final = verbs.AccessFlag.LOCAL_WRITE | verbs.AccessFlag.REMOTE_WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsOptions:
    """What to measure."""

    device: str = option("--device", metavar="NAME", default="shm0", help="Device to measure.")
    count: int = option(
        "--count", default=5000, low=100, high=1_000_000, help="Operations of each row."
    )
    place: str | None = option(
        "--place", metavar="A,B", default=None,
        help="Processors of the two processes; without it the system chooses.",
    )  # fmt: skip
    json_wanted: bool = json_option()


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, in the unit that it names."""

    operation: str
    unit: str
    lowest_decile: float
    median: float


class Side:
    """One device with a queue pair and memory, and a line to the other side."""

    def __init__(self, device: str, line: socket.socket, place: int | None) -> None:
        if place is not None:
            os.sched_setaffinity(0, {place})
        self.line = line
        self.context = verbs.Context(device)
        self.pd = verbs.PD(self.context)
        self.cq = verbs.CQ(self.context, 4 * _RECEIVES)
        cap = verbs.QPCap(_RECEIVES, 2 * _RECEIVES, 1, 1, 128)
        init = verbs.QPInitAttr(scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=False)
        self.qp = verbs.QP(self.pd, init)
        self.view = self.context.adapter.allocate(_MEMORY_BYTES)
        self.mr = verbs.MR(self.pd, self.view, _ALL)
        self.receive = verbs.RecvWR(_RECV, [self.mr.sge(0, _ONE_WAY_BYTES)])

    def connect(self) -> tuple[int, int]:
        """Lead the queue pair to RTS; return address and key of the other side's memory."""
        own = (self.context.query_gid().raw.hex(), self.qp.qp_num, self.mr.buf, self.mr.rkey)
        self.line.send(repr(own).encode())
        gid, number, address, rkey = self.line.recv(4096).decode().strip("()").split(", ")
        route = verbs.AHAttr(gr=verbs.GlobalRoute(bytes.fromhex(gid.strip("'"))))
        attr = verbs.QPAttr(
            ah_attr=route, dest_qp_num=int(number), qp_access_flags=_ALL, rnr_retry=7
        )
        self.qp.to_rts(attr)
        for _ in range(_RECEIVES):
            self.qp.post_recv(self.receive)
        self.line.send(b"ready")
        self.line.recv(64)
        return int(address), int(rkey)

    def sender(self, way: str) -> Callable[[], None]:
        """Return the call that sends 8 bytes."""
        if way == "short":
            send, data, flags = self.qp.send, bytes(8), verbs.SendFlag(0)
            return lambda: send(data, 0, flags)
        post, wr = self.qp.post_send, verbs.SendWR(0, sg=[self.mr.sge(0, 8)])
        wr.send_flags = verbs.SendFlag(0)
        return lambda: post(wr)

    def taker(self, way: str) -> Callable[[], None]:
        """Return the call that takes one message and gives its receive back."""
        poll, post, receive = self.cq.poll, self.qp.post_recv, self.receive

        def polled() -> None:
            while not poll()[0]:
                pass
            post(receive)

        def waited() -> None:
            self.cq.wait_for()
            post(receive)

        return waited if way == "wait" else polled


def serve(device: str, count: int, descriptor: int, place: int | None) -> None:
    """Be the other side."""
    line = socket.socket(fileno=descriptor)
    side = Side(device, line, place)
    side.connect()
    for way in _ROUND_TRIPS:
        send, take = side.sender(way), side.taker(way)
        for _ in range(count):
            take()
            send()
    for _ in range(count):
        line.send(line.recv(64))
    left = _batches(count)
    while left:
        found = side.cq.poll(_RECEIVES)[0]
        if found:
            side.qp.post_recv([side.receive] * found)
            left -= found
    line.send(b"all")
    line.recv(64)


def measure(options: CallsOptions, places: tuple[int, int] | None) -> list[Row]:
    """Measure one device. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own, other = places or (None, None)
    descriptor = theirs.fileno()
    call = f"from benches.verbs_calls import serve; serve({options.device!r}, {options.count}, "
    with subprocess.Popen(
        [sys.executable, "-c", f"{call}{descriptor}, {other})"],
        pass_fds=[descriptor], env=environment(_ROOT),
    ) as peer:  # fmt: skip
        theirs.close()
        try:
            side = Side(options.device, ours, own)
            with side.context:
                address, rkey = side.connect()
                return list(_rows(side, options.count, address, rkey))
        finally:
            peer.kill()


def _rows(side: Side, count: int, address: int, rkey: int) -> Iterator[Row]:
    names = ("kept records", "the short form", "kept records, waiting")
    for way, name in zip(_ROUND_TRIPS, names, strict=True):
        send, take = side.sender(way), side.taker(way)
        yield _timed(f"SEND there and back, {name}", count, _exchange(send, take))
    line = side.line
    work = _exchange(lambda: line.send(b"8"), lambda: line.recv(9))
    yield _timed("SEQPACKET socket there and back", count, work)
    yield _one_way(side, count)
    for size in _WRITE_SIZES:
        yield _writes(side, size, address, rkey, max(10, count // 50))


def _exchange(send: Callable[[], Any], take: Callable[[], Any]) -> Callable[[], None]:
    def work() -> None:
        send()
        take()

    return work


def _timed(name: str, count: int, work: Callable[[], Any]) -> Row:
    times = []
    clock = time.perf_counter_ns
    for _ in range(count):
        before_ns = clock()
        work()
        times.append((clock() - before_ns) / _NS)
    ordered = sorted(times[count // 10 :])
    return Row(name, "us", ordered[len(ordered) // 10], statistics.median(ordered))


def _batches(count: int) -> int:
    return max(1, 10 * count // _BATCH) * _BATCH


def _one_way(side: Side, count: int) -> Row:
    quiet = verbs.SendWR(0, sg=[side.mr.sge(0, _ONE_WAY_BYTES)], send_flags=verbs.SendFlag(0))
    loud = verbs.SendWR(2, sg=[side.mr.sge(0, _ONE_WAY_BYTES)])
    batch, post, open_batches = [*[quiet] * (_BATCH - 1), loud], side.qp.post_send, 0
    began_s = time.perf_counter()
    for _ in range(_batches(count) // _BATCH):
        while open_batches * _BATCH > _RECEIVES // 2:
            open_batches -= side.cq.poll(_BATCH)[0]
        post(batch)
        open_batches += 1
    side.line.recv(64)
    rate = _batches(count) / (time.perf_counter() - began_s) / 1e6
    return Row(f"SEND {_ONE_WAY_BYTES} B one way, {_BATCH} a post", "million/s", rate, rate)


def _writes(side: Side, size: int, address: int, rkey: int, count: int) -> Row:
    wr = verbs.SendWR(3, verbs.WROpcode.RDMA_WRITE, [side.mr.sge(0, size)])
    wr.set_wr_rdma(rkey, address)
    while side.cq.poll(_BATCH)[0]:
        pass  # of what came before
    rates = []
    end_s = time.monotonic() + _WARM_S  # the first ones ask for the memory, and are packets
    while time.monotonic() < end_s or len(rates) < count:
        if time.monotonic() < end_s:
            rates.clear()
        before_ns = time.perf_counter_ns()
        side.qp.post_send(wr)
        while not side.cq.poll()[0]:
            pass
        rates.append(size / (time.perf_counter_ns() - before_ns))
    ordered = sorted(rates[count // 10 :])
    median = statistics.median(ordered)
    return Row(f"WRITE {size >> 10} KiB", "GB/s", ordered[len(ordered) // 10], median)


def run(options: CallsOptions) -> Exit:
    """Measure everything and print the table."""
    check_ranges(options)
    places = conditions.processors_of(options.place)
    found = conditions.look(places, None)
    rows = measure(options, places)
    output = Output(json_wanted=options.json_wanted)
    if options.json_wanted:
        output.document({"conditions": found, "rows": [asdict(row) for row in rows]})
        return Exit.OK
    conditions.show(output, found)
    output.table(
        f"verbs on {options.device}",
        [Column("operation", left=True), Column("unit", left=True), *map(Column, _FIGURES)],
        (
            (row.operation, row.unit, f"{row.lowest_decile:.2f}", f"{row.median:.2f}")
            for row in rows
        ),
    )
    return Exit.OK


_FIGURES: Final = ("lowest decile", "median")
COMMAND = Command(
    about="""
    What a program pays for the calls of verbs: a SEND there and back between two processes by kept
    records, by the short form and by waits, beside a SEQPACKET socket; one way; writes.
    """,
    examples=(
        ("python -m benches.verbs_calls --place 0,1", "each process on its processor"),
        ("python -m benches.verbs_calls --count 500 --json", "shorter, for a script"),
    ),
    options=CallsOptions,
    run=run,
)

if __name__ == "__main__":
    sys.exit(
        run_alone(
            "python -m benches.verbs_calls", "Measure the calls of verbs.", COMMAND, sys.argv[1:]
        )
    )
