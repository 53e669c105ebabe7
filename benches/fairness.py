"""The shares of the peers of one socket, and of threads that compete for the interpreter.

Shares are the messages of each of 32 peers that send to one socket one after the other, whenever
they may. Rates and round trips are measured with and without a thread that computes, a pure Python
loop in the process of the receiver or of the sender, in rounds that are interleaved.
"""

import errno
import multiprocessing
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from pair import Answer, Order, Sample, obey, sample_of, uninterrupted, window_for
from peers import BY_NAME
from peers.base import Address, Kind, written_payload
from peers.ours import Urds, plane
from peers.rds import PORT
from results import MESSAGES_PER_S, NS, Line, Table, Verdict
from works import NATIVE

KIND = "fairness"
_SMALL_BYTES = 64
_PEERS = 32
_PEER_HOST = 100  # the first one, in the row of `_Flood`
_FLOOD_WARM_UP = 200  # messages of each peer
_FLOOD_MESSAGES = 200_000  # of all of them, in one round
_ROUND_TRIPS = 300
_CALIBRATION_MESSAGES = 30_000
_TARGET_S = 0.6  # long beside the 5 ms after which a thread is asked to yield
_END_WAIT_S = 2.0
_PLACEMENT = "on any vCPU, as the scheduler puts them; no side spins"
# Receiver and sender.
_WAYS = {
    (False, False): "",
    (True, False): ", receiver computes",
    (False, True): ", sender computes",
}
# Raw TCP, whose every call gives up the interpreter, sends some hundred messages a second here: too
# few for a rate in this time.
_CONTENDERS = {Kind.ONE_WAY: ("urds",), Kind.ROUND_TRIP: ("urds", "tcp")}

_SLOWED_MAX = 2.0  # the rate alone, divided by that beside a thread that computes

_BROKEN = ("cut", "a process")


class BrokenOffError(Exception):
    """A process did not answer; the text is for the table."""


@dataclass(frozen=True, slots=True)
class _Task:
    """An order for one side, with a thread that computes beside it or without."""

    kind: Kind
    order: Order
    computes: bool


@contextmanager
def _computing() -> Iterator[None]:
    """Have a thread compute that gives up the interpreter only on request."""
    ended: list[bool] = []

    def compute() -> None:
        number = 0
        while not ended:
            number += 1

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.append(True)
        thread.join()


class _Side:
    """The parent's hold on a process; it leaves none behind."""

    def __init__(self, role: Callable[..., None], *arguments: object, limit_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._limit_s = limit_s
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(role, theirs, *arguments), daemon=True)
        with uninterrupted():
            self._process.start()
        theirs.close()

    def answer(self) -> Any:
        """Return the next answer. Raises BrokenOffError if there is none in time."""
        try:
            if self.pipe.poll(self._limit_s):
                return self.pipe.recv()
        except (EOFError, ConnectionError):
            raise BrokenOffError(f"{_BROKEN[1]} ended, see its message above") from None
        raise BrokenOffError(f"{_BROKEN[0]} after {self._limit_s:g} s")

    def __enter__(self) -> "_Side":
        return self

    def __exit__(self, *_: object) -> None:
        self.pipe.close()
        self._process.join(_END_WAIT_S)
        self._process.kill()
        self._process.join(_END_WAIT_S)


def _run(role: Callable[..., None], pipe: Connection, *arguments: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its sides
    with suppress(EOFError, BrokenPipeError):  # the parent has closed the pipe
        role(pipe, *arguments)


def measure(rounds: int, *, limit_s: float) -> tuple[list[Table], bool]:
    """Return the tables, and whether a process did not finish."""
    tables = [_measure_shares(rounds, limit_s), *_measure_beside(rounds, limit_s)]
    lines = [line for table in tables for line in table.lines]
    return tables, any(line.problem.startswith(_BROKEN) for line in lines)


# -- beside a thread that computes


def _be_peer(pipe: Connection, name: str, address: Address | None) -> None:
    """Be the receiver, or with an address the sender, of one contender."""
    peer = BY_NAME[name](_SMALL_BYTES)
    if address is None:
        pipe.send(peer.open_receiver(1))
    else:
        peer.open_sender(address, 0)
        pipe.send(None)
    while True:
        task = pipe.recv()
        with _computing() if task.computes else nullcontext():
            pipe.send(obey(peer, task.kind, address is None, task.order))


def _exchange(sides: tuple[_Side, _Side], kind: Kind, count: int, way: Sequence[bool]) -> Sample:
    order = Order(count, window_for(kind, count))
    for side, computes in zip(sides, way, strict=True):
        side.pipe.send(_Task(kind, order, computes))
    answers = [side.answer() for side in sides]
    assert all(isinstance(one, Answer) for one in answers)
    return sample_of(kind, order, answers)


def _measure_beside(rounds: int, limit_s: float) -> Iterator[Table]:
    """Yield the tables of both kinds of work, for each contender."""
    for kind, title in ((Kind.ONE_WAY, "one way"), (Kind.ROUND_TRIP, "round trip")):
        lines: list[Line] = []
        for name in _CONTENDERS[kind]:
            problem = BY_NAME[name].missing()
            if problem is None:
                try:
                    lines += _lines_of(name, kind, rounds, limit_s)
                    continue
                except BrokenOffError as error:
                    problem = str(error)
            lines.append(Line(name, BY_NAME[name].label, problem))
        yield Table(
            kind=KIND,
            title=f"{title} beside a thread that computes, {_SMALL_BYTES} B",
            unit=MESSAGES_PER_S if kind is Kind.ONE_WAY else NS,
            payload_bytes=_SMALL_BYTES,
            rounds=rounds,
            placement=_PLACEMENT,
            subject="the same peer where no thread computes",
            lines=tuple(lines),
            remarks=("what computes is a loop of Python in the process of that side",),
        )


def _lines_of(name: str, kind: Kind, rounds: int, limit_s: float) -> list[Line]:
    found: dict[tuple[bool, bool], list[Sample]] = {way: [] for way in _WAYS}
    with _Side(_be_peer, name, None, limit_s=limit_s) as receiver:
        address = receiver.answer()
        with _Side(_be_peer, name, address, limit_s=limit_s) as sender:
            sender.answer()
            sides = (receiver, sender)
            count = _ROUND_TRIPS
            if kind is Kind.ONE_WAY:
                for _ in range(2):  # the first one connects, too
                    sample = _exchange(sides, kind, _CALIBRATION_MESSAGES, (False, False))
                count = max(_CALIBRATION_MESSAGES, int(sample.rate * _TARGET_S))
            for _ in range(rounds):
                for way, samples in found.items():
                    samples.append(_exchange(sides, kind, count, way))
    alone = _figures(kind, found[False, False])
    return [_line(name, kind, way, samples, alone) for way, samples in found.items()]


def _figures(kind: Kind, samples: list[Sample]) -> list[float]:
    return [float(one.p50_ns) if kind.asks else one.rate for one in samples]


def _line(
    name: str, kind: Kind, way: tuple[bool, bool], samples: list[Sample], alone: list[float]
) -> Line:
    figures = _figures(kind, samples)
    median = statistics.median(figures)
    ratio = statistics.median(alone) / median if any(way) else None
    return Line(
        name=name + _WAYS[way].replace(", ", "_").replace(" ", "_"),
        label=BY_NAME[name].label + _WAYS[way],
        median=median,
        lowest=min(figures),
        highest=max(figures),
        p99_ns=statistics.median(one.p99_ns for one in samples) if kind.asks else None,
        cpu_ns=statistics.median(one.cpu_ns for one in samples),
        ratio=ratio,
        verdicts=_verdicts(kind, ratio),
    )


def _verdicts(kind: Kind, ratio: float | None) -> tuple[Verdict, ...]:
    """Return the goal of a rate beside a thread that computes; the Python plane has none."""
    if ratio is None or kind.asks:
        return ()
    reached = ratio <= _SLOWED_MAX if plane() == NATIVE else None
    return (Verdict(NATIVE, _SLOWED_MAX, at_most=True, reached=reached),)


# -- shares


def _measure_shares(rounds: int, limit_s: float) -> Table:
    """Return the table of 32 peers and one socket; its row is the rates of single peers."""
    problem, rates = Urds.missing() or "", list[list[float]]()
    try:
        rates = [] if problem else _rates_of_peers(rounds, limit_s)
    except BrokenOffError as error:
        problem = str(error)
    remarks: tuple[str, ...] = ("median, lowest and highest are of the peers, in the median round",)
    lines = [Line("urds", Urds.label, problem or "not measured")]
    if rates:
        rates.sort(key=lambda one: one[0] / statistics.mean(one))
        middle = rates[len(rates) // 2]
        even = statistics.mean(middle)
        shares = f"{middle[0] / even:.2f} and {middle[-1] / even:.2f}"
        worst = f"{rates[0][0] / statistics.mean(rates[0]):.2f}"
        remarks += (f"shares of the lowest and the highest peer: {shares} of an even one",)
        remarks += (f"lowest share of any round: {worst}",)
        median = statistics.median(middle)
        lines = [Line("urds", Urds.label, "", "", median, middle[0], middle[-1])]
    return Table(
        kind=KIND,
        title=f"{_PEERS} peers that send in turn to one socket, {_SMALL_BYTES} B",
        unit=MESSAGES_PER_S,
        payload_bytes=_SMALL_BYTES,
        rounds=len(rates),
        placement=_PLACEMENT,
        subject="",
        lines=tuple(lines),
        remarks=remarks,
    )


def _rates_of_peers(rounds: int, limit_s: float) -> list[list[float]]:
    """Return for each round the messages per second of each peer, the lowest first."""
    with _Side(_be_flooded, _FLOOD_MESSAGES, limit_s=limit_s) as receiver:
        address = receiver.answer()
        with _Side(_be_flood, address, limit_s=limit_s):
            found = []
            for _ in range(rounds):
                receiver.pipe.send(None)
                counts, elapsed_ns = receiver.answer()
                found.append([one * 1e9 / elapsed_ns for one in counts])
            return found


class _Flood(Urds):
    """Sockets of many hosts in one process, and the one that they send to."""

    row = 60

    def bind_peers(self) -> list[Any]:
        """Bind a socket at each of the hosts."""
        sockets = []
        for host in range(_PEER_HOST, _PEER_HOST + _PEERS):
            self.bind((f"{self.network()}.{host}", PORT))
            sockets.append(self.socket)
        return sockets


def _be_flood(pipe: Connection, address: tuple[str, int]) -> None:
    """Have each socket send, one after the other, until the parent ends the process."""
    sockets, payload = _Flood(_SMALL_BYTES).bind_peers(), written_payload(_SMALL_BYTES)
    for one in sockets:
        one.setblocking(False)
    while not pipe.poll(0):
        sent = 0
        for _ in range(100):
            sent += sum(_sent(one, payload, address) for one in sockets)
        if not sent:
            time.sleep(0.0001)


def _sent(sock: Any, payload: bytes, address: tuple[str, int]) -> int:
    try:
        return int(sock.sendto(payload, address) == len(payload))
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
            raise
        return 0


def _be_flooded(pipe: Connection, count: int) -> None:
    """Answer each request with what each peer had of so many messages, and the time it took."""
    peer = _Flood(_SMALL_BYTES)
    pipe.send(peer.open_receiver(_PEERS))
    pipe.recv()
    recvfrom = peer.socket.recvfrom
    warm: Counter[str] = Counter()
    while len(warm) < _PEERS or min(warm.values()) < _FLOOD_WARM_UP:
        warm[recvfrom(_SMALL_BYTES)[1][0]] += 1
    while True:
        shares: Counter[str] = Counter()
        start_ns = time.perf_counter_ns()
        for _ in range(count):
            shares[recvfrom(_SMALL_BYTES)[1][0]] += 1
        pipe.send((sorted(shares.values()), time.perf_counter_ns() - start_ns))
        pipe.recv()
