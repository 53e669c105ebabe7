"""How long a receiver has nothing when a worker of its node is killed, or replaced by an upgrade.

A program of one node sends a message each millisecond to a program of another. After each thing
that happens to the receiver's node the longest time between two messages within a second counts;
the first row is the same where nothing happens, so what the machine does beside shows there.
"""

import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from idle import LateError
from peers.nodes import Node, UrdsAtNode
from peers.rds import PORT
from results import NS, Line, Table, Verdict

KIND = "node_pauses"
_SENDER, _RECEIVER = "127.0.66.1", "127.0.66.2"
_INTERVAL_S = 0.001
_WINDOW_S = 1.0
_NOTED_S = 0.002  # shorter pauses are not
_S = 1_000_000_000
# A node pauses from the third death in ten seconds on, so there is one in each turn.
_TURN = ("nothing", "upgrade", "nothing", "kill", "upgrade", "nothing")
_LABELS = {"nothing": "nothing happens", "kill": "worker killed", "upgrade": "upgrade"}
_GOALS_MS = {"kill": 500, "upgrade": 50}


def measure(rounds: int, *, limit_s: float) -> tuple[list[Table], bool]:
    """Return the table, of three turns for each round, and whether a process did not finish."""
    problem, failed = UrdsAtNode.missing() or "", False
    found: dict[str, list[float]] = {name: [] for name in _LABELS}
    if not problem:
        try:
            _measure(3 * rounds, limit_s, found)
        except (LateError, OSError) as error:
            problem, failed = str(error), True
    table = Table(
        kind=KIND,
        title="pause of a receiver at the end of a worker, 64 B each millisecond over two nodes",
        unit=NS,
        payload_bytes=64,
        rounds=len(found["kill"]),
        placement="on any vCPU; no side spins",
        subject="",
        lines=tuple(_line(name, found[name], problem) for name in _LABELS),
        remarks=("goals are of the longest pause",),
    )
    return [table], failed


def _line(name: str, data: list[float], problem: str) -> Line:
    if problem or not data:
        return Line(name, _LABELS[name], problem or "not measured")
    goals: tuple[Verdict, ...] = ()
    if (most_ms := _GOALS_MS.get(name)) is not None:
        reached = max(data) <= most_ms * 1_000_000
        goals = (Verdict("native", most_ms * 1000, at_most=True, reached=reached),)
    return Line(
        name,
        _LABELS[name],
        median=statistics.median(data),
        lowest=min(data),
        highest=max(data),
        verdicts=goals,
        rounds=tuple({"figure": one} for one in data),
    )


def _measure(turns: int, limit_s: float, found: dict[str, list[float]]) -> None:
    nodes = [Node(f"{KIND}-{name}", {}) for name in ("from", "to")]
    sides: list[_Side] = []
    try:
        sides = [_Side(_receive, nodes[1].place, limit_s), _Side(_send, nodes[0].place, limit_s)]
        time.sleep(_WINDOW_S)
        begun: list[tuple[str, float]] = []
        for name in _TURN * turns:
            begun.append((name, time.monotonic()))
            if name == "kill":
                os.kill(nodes[1].worker(), signal.SIGKILL)
            elif name == "upgrade":
                nodes[1].upgrade()
            time.sleep(_WINDOW_S)
        pauses = sides[0].end()
        sides[1].end()
    finally:
        for side in sides:
            side.kill()
        for node in nodes:
            node.end()
    begun.append(("", time.monotonic()))
    for (name, from_s), (_, to_s) in pairwise(begun):
        in_window = [after - before for before, after in pauses if from_s <= after <= to_s]
        found[name].append(max(in_window, default=_NOTED_S) * _S)


class _Side:
    """One program."""

    def __init__(
        self, target: Callable[[Connection, str], None], place: str, limit_s: float
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._limit_s = limit_s
        self._process: BaseProcess = context.Process(
            target=target, args=(theirs, place), daemon=True
        )
        self._process.start()
        theirs.close()
        self._hear()

    def end(self) -> list[tuple[float, float]]:
        """Have it end; return its pauses."""
        self._pipe.send("end")
        return self._hear()

    def _hear(self) -> list[tuple[float, float]]:
        if not self._pipe.poll(self._limit_s):
            raise LateError(f"cut after {self._limit_s:g} s")
        try:
            pauses: list[tuple[float, float]] = self._pipe.recv()
        except EOFError:
            raise LateError("a program ended") from None
        return pauses

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.join()


def _send(pipe: Connection, place: str) -> None:
    os.environ["URDS_NODE"] = place
    import urds

    with urds.Socket() as sock:
        sock.bind((_SENDER, PORT))
        pipe.send([])
        while not pipe.poll():
            sock.sendto(bytes(64), (_RECEIVER, PORT))
            time.sleep(_INTERVAL_S)
        pipe.send([])


def _receive(pipe: Connection, place: str) -> None:
    os.environ["URDS_NODE"] = place
    import urds

    pauses: list[tuple[float, float]] = []
    with urds.Socket() as sock:
        sock.bind((_RECEIVER, PORT))
        sock.settimeout(0.1)
        pipe.send([])
        last_s = time.monotonic()
        while not pipe.poll():
            try:
                sock.recv(100)
            except TimeoutError:
                continue
            now_s = time.monotonic()
            if now_s - last_s > _NOTED_S:
                pauses.append((last_s, now_s))
            last_s = now_s
        pipe.send(pauses)
