"""`urds dat load`: many transactions, a full pipeline, or objects until a limit, in one process.

After the three tests of dapltest that need no second host: T (transactions), P (performance) and L
(limits). Both ends are interface adapters of this process, on the same device.
Source: docs/reference/dat.md 18.5.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from urds import dat
from urds.cli.dat.test_peer import (
    LOCAL_WAIT_S,
    TestFailure,
    check_adapter,
    connect_endpoints,
    ia_option,
)
from urds.cli.output import Exit, Output, UsageError, columns, complain
from urds.cli.parser import Command, check_ranges, json_option, option

_QUALS: Final = range(45_278, 1 << 16)  # from the first on; another run may have any
_MB: Final = 1e6
KINDS: Final = ("T", "P", "L")
OPERATIONS: Final = ("SR", "RR", "RW")
LIMITS: Final = ("pz", "cno", "evd", "ep", "rsp", "psp", "lmr", "rpost")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatLoadOptions:
    """Options of `urds dat load`: dapltest's letters where it has them."""

    kind: str = option(
        "-T", metavar="T|P|L", default="T", help="Transactions, performance or limits."
    )
    ia_name: str = ia_option()
    iterations: int = option("-i", default=100, low=1, high=1_000_000, help="Iterations.")
    endpoints: int = option("-w", default=1, low=1, high=256, help="T: endpoints of each side.")
    size_bytes: int = option(
        "-b", metavar="BYTES", default=4096, low=1, high=1 << 24, help="Bytes of each transfer."
    )
    pipeline: int = option("-p", default=16, low=1, high=1024, help="P: transfers under way.")
    operation: str = option("-o", metavar="RW|RR", default="RW", help="P: RDMA write or RDMA read.")
    attempts: int = option(
        "-m", default=1000, low=1, high=100_000, help="L: objects of each kind at most."
    )
    poll: bool = option("-q", default=False, help="Poll for completions instead of waiting.")
    json_wanted: bool = json_option()

    def check(self) -> None:
        """Raise UsageError for wrong options."""
        if self.kind not in KINDS:
            raise UsageError(f"-T {self.kind}: must be one of {', '.join(KINDS)}")
        if self.operation not in OPERATIONS[1:]:
            raise UsageError(f"-o {self.operation}: must be one of {', '.join(OPERATIONS[1:])}")
        check_adapter(self.ia_name)
        check_ranges(self)


@dataclass(slots=True)
class Counters:
    """The figures of one kind of transfer."""

    operation: str
    count: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Result:
    """The figures of a run; fields of other kinds are empty."""

    kind: str
    counters: list[Counters] = field(default_factory=list)
    seconds: float = 0.0
    latency_us: dict[str, dict[str, float]] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    all_released: bool = True


def run(options: DatLoadOptions) -> Exit:
    """Run the chosen test and print its figures.

    `Exit.FAILED` if a call or a transfer failed, or objects were not released.
    """
    options.check()
    measure, show = {
        "T": (_transactions, _print_transactions),
        "P": (_performance, _print_performance),
        "L": (_limits, _print_limits),
    }[options.kind]
    try:
        result = measure(options)
    except (dat.DatError, dat.DatCompletionError, TestFailure) as failure:
        complain("urds dat load", str(failure))
        return Exit.FAILED
    output = Output(json_wanted=options.json_wanted)
    output.document(asdict(result))
    show(output, result)
    return Exit.OK if result.all_released else Exit.FAILED


class _Side:
    """One adapter with its zone, its memory and its endpoints."""

    def __init__(self, ia: dat.InterfaceAdapter, options: DatLoadOptions) -> None:
        self.ia = ia
        self.poll = options.poll
        self.pz = ia.create_pz()
        self.memory = self.pz.register(bytearray(2 * options.size_bytes))
        depth = max(options.pipeline, 2)
        attr = dat.EpAttr(max_recv_dtos=depth, max_request_dtos=depth)
        self.eps = [
            self.pz.create_ep(
                ia.create_evd(2 * depth, dat.EvdFlag.DTO),
                ia.create_evd(2 * depth, dat.EvdFlag.DTO),
                ia.create_evd(8, dat.EvdFlag.CONNECTION),
                attr,
            )
            for _ in range(options.endpoints)
        ]

    def take(self, evd: dat.EventDispatcher | None) -> None:
        """Wait for a completion, or poll for it, and check it."""
        assert evd is not None, "endpoints are made with all of them"
        event = evd.wait(LOCAL_WAIT_S) if not self.poll else _polled(evd)
        assert isinstance(event, dat.DtoCompletionEvent), event
        event.raise_for_status()


def _polled(evd: dat.EventDispatcher) -> dat.Event:
    end_s = time.monotonic() + LOCAL_WAIT_S
    while time.monotonic() < end_s:
        if (event := evd.dequeue()) is not None:
            return event
    raise TestFailure(f"no event in {LOCAL_WAIT_S:g} s of polling")


def _connected(stack: ExitStack, options: DatLoadOptions) -> tuple[_Side, _Side]:
    client, server = (
        _Side(stack.enter_context(dat.open(options.ia_name)), options) for _ in range(2)
    )
    requests = server.ia.create_evd(options.endpoints, dat.EvdFlag.CR)
    with server.ia.listen(evd=requests) as point:
        for one, other in zip(client.eps, server.eps, strict=True):
            connect_endpoints(one, other, requests, point.conn_qual)
    return client, server


# -- T: transactions


def _transactions(options: DatLoadOptions) -> Result:
    """Do every operation on every endpoint, `iterations` times: both sides send."""
    result = Result("T", [Counters(name) for name in OPERATIONS])
    with ExitStack() as stack:
        client, server = _connected(stack, options)
        start_s = time.perf_counter()
        for _ in range(options.iterations):
            for one, other in zip(client.eps, server.eps, strict=True):
                for counted in result.counters:
                    _transact(counted, client, one, server, other, options.size_bytes)
        result.seconds = time.perf_counter() - start_s
    return result


def _transact(
    counted: Counters,
    client: _Side,
    one: dat.Endpoint,
    server: _Side,
    other: dat.Endpoint,
    size_bytes: int,
) -> None:
    start_s = time.perf_counter()
    if counted.operation == "SR":
        for sender, source, receiver, target in (
            (client, one, server, other),
            (server, other, client, one),
        ):
            target.post_recv([receiver.memory.triplet(0, size_bytes)])
            source.post_send([sender.memory.triplet(0, size_bytes)])
            sender.take(source.request_evd)
            receiver.take(target.recv_evd)
        count = 2
    else:
        _post(counted.operation, client, one, server, size_bytes)
        client.take(one.request_evd)
        count = 1
    counted.count += count
    counted.bytes += count * size_bytes
    counted.seconds += time.perf_counter() - start_s


def _post(operation: str, client: _Side, ep: dat.Endpoint, server: _Side, size_bytes: int) -> None:
    piece = [client.memory.triplet(0, size_bytes)]
    remote = server.memory.remote_triplet(size_bytes, size_bytes)
    if operation == "RW":
        ep.post_rdma_write(piece, remote)
    else:
        ep.post_rdma_read(piece, remote)


# -- P: performance


def _performance(options: DatLoadOptions) -> Result:
    """Keep the pipeline full, then post one at a time and measure post and reap."""
    result = Result("P", [Counters(options.operation)])
    with ExitStack() as stack:
        client, server = _connected(stack, options)
        ep, [counted] = client.eps[0], result.counters
        start_s, posted, reaped = time.perf_counter(), 0, 0
        while reaped < options.iterations:
            while posted < options.iterations and posted - reaped < options.pipeline:
                _post(options.operation, client, ep, server, options.size_bytes)
                posted += 1
            client.take(ep.request_evd)
            reaped += 1
        counted.seconds = time.perf_counter() - start_s
        counted.count, counted.bytes = reaped, reaped * options.size_bytes
        times_us: dict[str, list[float]] = {"latency": [], "post": [], "reap": []}
        for _ in range(options.iterations):
            begin_s = time.perf_counter()
            _post(options.operation, client, ep, server, options.size_bytes)
            posted_s = time.perf_counter()
            client.take(ep.request_evd)
            end_s = time.perf_counter()
            for name, spent_s in (
                ("latency", end_s - begin_s),
                ("post", posted_s - begin_s),
                ("reap", end_s - posted_s),
            ):
                times_us[name].append(spent_s * 1e6)
        result.latency_us = {
            name: {"mean": statistics.fmean(each), "max": max(each), "min": min(each)}
            for name, each in times_us.items()
        }
    return result


# -- L: limits


def _limits(options: DatLoadOptions) -> Result:
    """Make objects of each kind until one is refused or `attempts` are there; free them all."""
    result = Result("L")
    with dat.open(options.ia_name) as ia:
        for name in LIMITS:
            before = len(ia.children)
            with ExitStack() as stack:
                result.limits[name] = _fill(_maker(name, ia, stack), options.attempts)
            result.all_released &= len(ia.children) == before
    return result


def _fill(make: Callable[[], object], attempts: int) -> int:
    for count in range(attempts):
        try:
            make()
        except dat.DatError:
            return count
    return attempts


def _maker(name: str, ia: dat.InterfaceAdapter, stack: ExitStack) -> Callable[[], object]:
    """Return a call that makes one more object of this kind; all are freed with `stack`."""

    def kept(made: Any) -> Any:
        return stack.enter_context(made)

    if name == "pz":
        return lambda: kept(ia.create_pz())
    if name == "cno":
        return lambda: kept(ia.create_cno())
    if name == "evd":
        return lambda: kept(ia.create_evd(1, dat.EvdFlag.DTO))
    pz = kept(ia.create_pz())
    if name == "lmr":
        return lambda: kept(pz.register(bytearray(64)))
    transfers = kept(ia.create_evd(4, dat.EvdFlag.DTO))
    connections = kept(ia.create_evd(4, dat.EvdFlag.CONNECTION))
    requests = kept(ia.create_evd(4, dat.EvdFlag.CR))
    if name == "psp":
        return lambda: kept(ia.listen(evd=requests))
    attr = dat.EpAttr(max_recv_dtos=ia.attr.max_dto_per_ep, max_request_dtos=4)

    def make_ep() -> dat.Endpoint:
        ep: dat.Endpoint = kept(pz.create_ep(transfers, transfers, connections, attr))
        return ep

    if name == "rsp":
        # Beyond the last port they are folded into those that are taken: refused, at last.
        quals = itertools.count(_QUALS.start)

        def make_rsp() -> dat.ReservedServicePoint:
            ep = make_ep()
            while True:
                qual = next(quals)
                try:
                    rsp: dat.ReservedServicePoint = kept(ia.reserve(qual, ep, requests))
                except dat.DatConnQualInUse:
                    if qual not in _QUALS:
                        raise
                else:
                    return rsp

        return make_rsp
    if name == "rpost":
        ep = make_ep()
        return lambda: ep.post_recv([])
    return make_ep


# -- printing


def _print_transactions(output: Output, result: Result) -> None:
    requests = sum(counted.count for counted in result.counters)
    output.line(
        f"{requests} transfers in {result.seconds:.2f} s: "
        f"{requests / result.seconds:.1f} per second"
    )
    names = {"SR": "send/receive", "RR": "RDMA read", "RW": "RDMA write"}
    output.table(
        "Transactions",
        columns("operation:<|count|MB|MB/s"),
        (
            (
                names[counted.operation],
                counted.count,
                f"{counted.bytes / _MB:.2f}",
                f"{counted.bytes / _MB / counted.seconds:.2f}",
            )
            for counted in result.counters
        ),
    )


def _print_performance(output: Output, result: Result) -> None:
    [counted] = result.counters
    output.line(
        f"{counted.operation}: {counted.count} in {counted.seconds:.3f} s, "
        f"{counted.count / counted.seconds:.1f} per second, "
        f"{counted.bytes / _MB / counted.seconds:.2f} MB/s with a full pipeline"
    )
    output.table(
        "",
        columns("one at a time, us:<|mean|max|min"),
        (
            (name, *(f"{each[key]:.1f}" for key in ("mean", "max", "min")))
            for name, each in result.latency_us.items()
        ),
    )


def _print_limits(output: Output, result: Result) -> None:
    output.table("Objects until one was refused", columns("object:<|made"), result.limits.items())
    output.line("all released" if result.all_released else "not all were released")


COMMAND: Final = Command(
    about="""
    After dapltest's tests of the same letters, both ends in this process. T does sends, RDMA reads
    and writes on every endpoint; P keeps a pipeline of one operation full, then measures it alone;
    L makes objects of each kind until one is rejected, and frees them. The exit code is 1 if not
    all were freed.
    """,
    examples=(
        ("urds dat load -T T -w 8", "transactions on eight endpoints"),
        ("urds dat load -T P -o RR -b 65536", "RDMA reads of 64 KiB"),
        ("urds dat load -T L -m 200 --json", "limits, for a script"),
    ),
    options=DatLoadOptions,
    run=run,
)
