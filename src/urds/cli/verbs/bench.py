"""`urds verbs bench`: what a program pays for the calls of verbs over shared memory.

A round trip is a SEND of 8 bytes between two processes there and one back: by kept records, by the
short form, by waits, and by events of a channel; a SEQPACKET socket of Python does the same in the
same run. One way and writes are rates. Writes go into memory that no program reads meanwhile, to
one place or over a range; beside each stands a copy of the same sizes by Python, in turns with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

from urds import verbs
from urds.cli import conditions
from urds.cli.child import run_child
from urds.cli.output import Column, Exit, Output, Progress
from urds.cli.parser import Command, check_ranges, json_option, option
from urds.cli.processes import ctrl_c_held, environment

_DEVICE: Final = "shm0"  # the others connect by a manager, or lose packets
_ROUND_TRIPS: Final = ("kept", "short", "wait", "event")
_ROUND_TRIP_NAMES: Final = ("kept records", "the short form", "kept records, waiting", "events")
_RECEIVES: Final = 512
_BATCH: Final = 16  # requests of one post, one way
_ONE_WAY_BYTES: Final = 64
# Bytes of a write, and of the range that they go round in.
_WRITES: Final = tuple(
    (1 << size, 1 << span) for size, span in ((16, 16), (16, 20), (16, 24), (20, 20), (20, 24))
)
_SHORT_BYTES: Final = 256  # of a write that is copied to its place at once
_MEMORY_BYTES: Final = 1 << 24
_WRITE_ROUNDS: Final = 5
_RECV: Final = 1
_WARM_S: Final = 0.1
_STALLED_S: Final = 120  # one work takes far less; then the other side ends by SIGALRM
_NS: Final = 1e3
_ALL: Final = verbs.AccessFlag.LOCAL_WRITE | verbs.AccessFlag.REMOTE_WRITE
_SPINS: Final = "both programs of a round trip, the kernel's socket and rows that wait excepted"
# Of a compiled device. In us, near and far; of a write, times a copy of the same size.
_GOALS_US: Final = {"kept": (3.0, 3.0), "short": (2.0, 2.6)}
_WRITE_GOAL: Final = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsOptions:
    """What to measure."""

    count: int = option(
        "--count", default=5000, low=100, high=1_000_000, help="Operations of each row."
    )
    place: str | None = conditions.place_option()
    json_wanted: bool = json_option()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, in the unit that it names."""

    operation: str
    unit: str
    lowest_decile: float
    median: float
    of_copy: float | None = None  # the median divided by that of copies of Python
    goal: float | None = (
        None  # of `of_copy` at least where that is there, else of the median at most
    )

    @property
    def verdict(self) -> str:
        """Return the goal and whether the row keeps to it; nothing without one."""
        if self.goal is None:
            return ""
        if self.of_copy is not None:
            return f">= {self.goal:g}: {'reached' if self.of_copy >= self.goal else 'missed'}"
        return f"<= {self.goal:g}: {'reached' if self.median <= self.goal else 'missed'}"


class Side:
    """One device with a queue pair and memory, and a line to the other side."""

    def __init__(self, line: socket.socket, place: int | None) -> None:
        if place is not None:
            os.sched_setaffinity(0, {place})
        self.line = line
        self.context = verbs.Context(_DEVICE)
        self.pd = verbs.PD(self.context)
        self.channel = verbs.CompChannel(self.context)
        self.cq = verbs.CQ(self.context, 4 * _RECEIVES, channel=self.channel)
        cap = verbs.QPCap(_RECEIVES, 2 * _RECEIVES, 1, 1, 128)
        init = verbs.QPInitAttr(scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=False)
        self.qp = verbs.QP(self.pd, init)
        self.view = self.context.adapter.allocate(_MEMORY_BYTES)
        self.mr = verbs.MR(self.pd, self.view, _ALL)
        self.receive = verbs.RecvWR(_RECV, [self.mr.sge(0, _ONE_WAY_BYTES)])

    def connect(self) -> tuple[int, int]:
        """Lead the queue pair to RTS; return address and key of the other side's memory.

        Raises OSError: the other side has ended.
        """
        gid = self.context.query_gid().raw.hex()
        self.line.send(json.dumps([gid, self.qp.qp_num, self.mr.buf, self.mr.rkey]).encode())
        gid, number, address, rkey = json.loads(self.hear())
        attr = verbs.QPAttr(
            ah_attr=verbs.AHAttr(gr=verbs.GlobalRoute(bytes.fromhex(gid))),
            dest_qp_num=number,
            qp_access_flags=_ALL,
            rnr_retry=7,
        )
        self.qp.to_rts(attr)
        for _ in range(_RECEIVES):
            self.qp.post_recv(self.receive)
        self.line.send(b"ready")
        self.hear()
        return address, rkey

    def hear(self) -> bytes:
        """Return what the other side says. Raises OSError: it has ended."""
        said = self.line.recv(4096)
        if not said:
            raise OSError("the other process ended")
        return said

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

        def told() -> None:
            while not poll()[0]:
                self.cq.req_notify()
                if poll()[0]:
                    break
                self.channel.get_cq_event()
                self.cq.ack_events(1)
            post(receive)

        return {"wait": waited, "event": told}.get(way, polled)


# -- the other side, a process of its own


def serve(count: int, descriptor: int, place: int | None) -> Exit:
    """Be the other side; end without a word where this one is gone, which says so itself."""
    with socket.socket(fileno=descriptor) as line:
        try:
            _serve(Side(line, place), count)
        except OSError:
            return Exit.FAILED
    return Exit.OK


def _serve(side: Side, count: int) -> None:
    signal.alarm(_STALLED_S)
    side.connect()
    for way in _ROUND_TRIPS:
        signal.alarm(_STALLED_S)
        send, take = side.sender(way), side.taker(way)
        for _ in range(count):
            take()
            send()
    for _ in range(count):
        side.line.send(side.hear())
    signal.alarm(_STALLED_S)
    left = _batches(count)
    while left:
        found = side.cq.poll(_RECEIVES)[0]
        if found:
            side.qp.post_recv([side.receive] * found)
            left -= found
    side.line.send(b"all")
    signal.alarm(0)
    side.line.recv(64)  # until the writes are done, or the other end is gone


# -- this side


def measure(
    options: CallsOptions, places: tuple[int, int] | None, *, is_far: bool, quiet: bool
) -> list[Row]:
    """Measure every row. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own, other = places or (None, None)
    descriptor = theirs.fileno()
    order = json.dumps([options.count, descriptor, other])
    with ExitStack() as stack:
        with ctrl_c_held():
            peer = subprocess.Popen(
                [sys.executable, "-m", "urds.cli.verbs.bench", order],
                pass_fds=[descriptor], env=environment(), start_new_session=True,
            )  # fmt: skip
            stack.enter_context(peer)
            stack.callback(peer.kill)
            stack.callback(ours.close)
        theirs.close()
        progress = stack.enter_context(Progress(quiet=quiet))
        side, rows = Side(ours, own), list[Row]()
        try:
            with side.context:
                address, rkey = side.connect()
                for row in _rows(side, options.count, address, rkey, is_far=is_far):
                    rows.append(row)
                    progress.update(len(rows) / _ROW_COUNT, row.operation)
        except ConnectionError as lost:  # of the line, not of standard output
            raise OSError("the other process ended") from lost
        return rows


_ROW_COUNT: Final = len(_ROUND_TRIPS) + 3 + len(_WRITES)


def _rows(side: Side, count: int, address: int, rkey: int, *, is_far: bool) -> Iterator[Row]:
    for way, name in zip(_ROUND_TRIPS, _ROUND_TRIP_NAMES, strict=True):
        goals = _GOALS_US.get(way)
        work = _exchange(side.sender(way), side.taker(way))
        yield _timed(f"SEND there and back, {name}", count, work, goals and goals[is_far])
    line = side.line
    work = _exchange(lambda: line.send(b"8"), lambda: line.recv(9))
    yield _timed("SEQPACKET socket there and back", count, work, None)
    yield _one_way(side, count)
    while side.cq.poll(_BATCH)[0]:
        pass  # of what came before
    for size, span in _WRITES:
        yield _writes(side, size, span, address, rkey, max(10, count // 50))
    wr = verbs.SendWR(3, verbs.WROpcode.RDMA_WRITE, [side.mr.sge(0, _SHORT_BYTES)])
    wr.set_wr_rdma(rkey, address)
    name = f"WRITE {_SHORT_BYTES} B and its completion"
    yield _timed(name, count, lambda: _complete(side, wr), None)


def _complete(side: Side, wr: verbs.SendWR) -> None:
    side.qp.post_send(wr)
    while not side.cq.poll()[0]:
        pass


def _exchange(send: Callable[[], Any], take: Callable[[], Any]) -> Callable[[], None]:
    def work() -> None:
        send()
        take()

    return work


def _timed(name: str, count: int, work: Callable[[], Any], goal: float | None) -> Row:
    times = []
    clock = time.perf_counter_ns
    for _ in range(count):
        before_ns = clock()
        work()
        times.append((clock() - before_ns) / _NS)
    return _row(name, "us", times[count // 10 :], goal=goal)


def _row(name: str, unit: str, figures: list[float], **more: float | None) -> Row:
    ordered = sorted(figures)
    return Row(
        operation=name, unit=unit, lowest_decile=ordered[len(ordered) // 10],
        median=statistics.median(ordered), **more,
    )  # fmt: skip


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
    side.hear()
    rate = _batches(count) / (time.perf_counter() - began_s) / 1e6
    return _row(f"SEND {_ONE_WAY_BYTES} B one way, {_BATCH} a post", "million/s", [rate])


def _writes(side: Side, size: int, span: int, address: int, rkey: int, count: int) -> Row:
    """Write and copy in turns."""
    requests = []
    for offset in range(0, span, size):
        wr = verbs.SendWR(3, verbs.WROpcode.RDMA_WRITE, [side.mr.sge(0, size)])
        wr.set_wr_rdma(rkey, address + offset)
        requests.append(wr)
    source, target = side.view[:size], memoryview(bytearray(b"\1" * span))
    places = [target[offset : offset + size] for offset in range(0, span, size)]
    end_s = time.monotonic() + _WARM_S  # the first ones ask for the memory, and are packets
    while time.monotonic() < end_s:
        _write_each(side, requests, size)
    rates, copies = list[float](), list[float]()
    while len(rates) < count or len(rates) < _WRITE_ROUNDS * len(requests):
        rates += _write_each(side, requests, size)
        copies += _copy_each(source, places)
    where = "to one place" if span == size else f"over {span >> 20} MiB"
    return _row(
        f"WRITE {size >> 10} KiB {where}", "GB/s", rates,
        of_copy=statistics.median(rates) / statistics.median(copies), goal=_WRITE_GOAL,
    )  # fmt: skip


def _write_each(side: Side, requests: list[verbs.SendWR], size: int) -> list[float]:
    rates = []
    post, poll, clock = side.qp.post_send, side.cq.poll, time.perf_counter_ns
    for wr in requests:
        before_ns = clock()
        post(wr)
        while not poll()[0]:
            pass
        rates.append(size / (clock() - before_ns))
    return rates


def _copy_each(source: memoryview, places: list[memoryview]) -> list[float]:
    rates, clock = [], time.perf_counter_ns
    for place in places:
        before_ns = clock()
        place[:] = source
        rates.append(len(place) / (clock() - before_ns))
    return rates


def run(options: CallsOptions) -> Exit:
    """Measure everything and print the table."""
    check_ranges(options)
    places = conditions.processors_of(options.place)
    output = Output(json_wanted=options.json_wanted)
    found = conditions.look(places, spins=_SPINS)
    if not options.json_wanted:
        conditions.show(output, found)
    is_far = conditions.is_far(found)
    rows = measure(options, places, is_far=is_far, quiet=options.json_wanted)
    conditions.look_again(found)
    if options.json_wanted:
        told = [{**asdict(row), "verdict": row.verdict} for row in rows]
        output.document({"device": _DEVICE, "conditions": found, "rows": told})
        return Exit.OK
    _print(output, rows)
    conditions.show_after(output, found)
    return Exit.OK


def _print(output: Output, rows: list[Row]) -> None:
    columns = [Column("operation", left=True), Column("unit", left=True)]
    columns += map(Column, ("lowest decile", "median", "x copy"))
    output.table(
        f"Calls of verbs on {_DEVICE}",
        [*columns, Column("goal", left=True)],
        (
            (
                row.operation, row.unit, f"{row.lowest_decile:.2f}", f"{row.median:.2f}",
                "" if row.of_copy is None else f"{row.of_copy:.2f}", row.verdict,
            )
            for row in rows
        ),
    )  # fmt: skip


COMMAND: Final = Command(
    about="""
    What a program pays for the calls of verbs, between this process and one that it starts: a SEND
    there and back by kept records, by the short form, by waits and by events, beside a SEQPACKET
    socket; one way; writes beside copies. What the figures depend on stands above them: processors,
    how long a cache line takes between them, what spins, the rate of a copy.
    """,
    examples=(
        ("urds verbs bench --place 0,1", "each process on its processor"),
        ("urds verbs bench --count 500 --json", "shorter, for a script"),
    ),
    options=CallsOptions,
    run=run,
)

if __name__ == "__main__":
    run_child(lambda: serve(*json.loads(sys.argv[1])))
