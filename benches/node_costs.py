"""What a node costs that is idle: its memory, that of many sockets, and the time of a bind.

Memory is what /proc says of supervisor, fork server and worker, libraries included: of an idle node
the proportional set, for they share pages, and the growth of the resident set for each of the
sockets that one program binds. Each round has a fresh node and program.
"""

import os
import resource
import statistics
import time
from contextlib import suppress
from pathlib import Path

from idle import LateError, Side
from peers.nodes import Node, UrdsAtNode
from results import BYTES, NS, Line, Table, Verdict

KIND = "node_costs"
SOCKETS = 10_000
_WARM_UP = 8
_PER_SOCKET = 4  # descriptors of the worker; the supervisor has three
_SPARE = 512
_SETTLE_S = 0.5
_NODE_BYTES_MAX = 60 << 20
_BIND_US_MAX = 1000
_CONFIG = f"[quota]\nsockets = {2 * SOCKETS}\n"
_ITEMS = {
    "idle": "idle node, all three processes",
    "of_supervisor": "each socket, supervisor",
    "of_worker": "each socket, worker",
    "of_program": "each socket, program",
}


def measure(rounds: int, *, limit_s: float) -> tuple[list[Table], bool]:
    """Return the tables, and whether a process did not finish."""
    problem, failed = UrdsAtNode.missing() or "", False
    found: dict[str, list[float]] = {name: [] for name in (*_ITEMS, "p50", "p99")}
    count = _sockets_possible()
    for number in range(0 if problem else rounds):
        try:
            for name, figure in _measure(count, number, limit_s).items():
                found[name].append(figure)
        except (LateError, OSError) as error:
            problem, failed = str(error), True
            break
    memory = Table(
        kind=KIND,
        title=f"memory of a node, bytes, with {count:,} sockets",
        unit=BYTES,
        payload_bytes=0,
        rounds=len(found["idle"]),
        placement="on any vCPU; no side spins",
        subject="",
        lines=tuple(_memory_line(name, found[name], problem) for name in _ITEMS),
        remarks=_remarks(count),
    )
    times = Table(
        kind=KIND,
        title=f"making and binding one of {count:,} sockets at a node",
        unit=NS,
        payload_bytes=0,
        rounds=len(found["p50"]),
        placement="on any vCPU; no side spins",
        subject="",
        lines=(_time_line(found, problem),),
    )
    return [memory, times], failed


def _sockets_possible() -> int:
    """Raise the limit of descriptors as far as it goes, and return how many sockets fit."""
    needed = SOCKETS * _PER_SOCKET + _SPARE
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= allowed < needed:
        with suppress(ValueError, OSError):  # root may raise it
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, needed))
            return SOCKETS
        return (allowed - _SPARE) // _PER_SOCKET
    return SOCKETS


def _remarks(count: int) -> tuple[str, ...]:
    if count == SOCKETS:
        return ()
    return (f"not {SOCKETS:,}: the limit of open descriptors (RLIMIT_NOFILE) has room for no more",)


def _measure(count: int, number: int, limit_s: float) -> dict[str, float]:
    node = Node(f"{KIND}-{number}", {}, _CONFIG)
    before = os.environ.get("URDS_NODE")
    os.environ["URDS_NODE"] = node.place
    try:
        time.sleep(_SETTLE_S)
        idle = sum(map(_proportional_bytes, node.pids))
        with Side(limit_s=limit_s, ours=UrdsAtNode) as program:
            program.ask("bind", 0, _WARM_UP)
            program.ask("mark")
            marks = [_resident_bytes(pid) for pid in node.pids]
            program.ask("bind", _WARM_UP, _WARM_UP + count)
            times = {f"p{percent}": program.ask("bind_ns", percent) for percent in (50, 99)}
            time.sleep(_SETTLE_S)
            grown = [
                (_resident_bytes(pid) - mark) / count
                for pid, mark in zip(node.pids, marks, strict=True)
            ]
            of_program = program.ask("look", 0, count)
    finally:
        os.environ.pop("URDS_NODE")
        if before is not None:
            os.environ["URDS_NODE"] = before
        node.end()
    supervisor, worker, _ = grown
    memory = {"of_supervisor": supervisor, "of_worker": worker, "of_program": of_program}
    return {"idle": idle, **memory, **times}


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def _proportional_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def _memory_line(name: str, data: list[float], problem: str) -> Line:
    reached = statistics.median(data) <= _NODE_BYTES_MAX if data and not problem else None
    goal = Verdict("native", _NODE_BYTES_MAX, at_most=True, reached=reached)
    return _line(name, _ITEMS[name], data, problem, (goal,) if name == "idle" else ())


def _time_line(found: dict[str, list[float]], problem: str) -> Line:
    data = found["p50"]
    reached = statistics.median(data) <= _BIND_US_MAX * 1000 if data and not problem else None
    goal = Verdict("native", _BIND_US_MAX, at_most=True, reached=reached)
    p99_ns = statistics.median(found["p99"]) if found["p99"] else None
    return _line("bind", "socket() and bind()", data, problem, (goal,), p99_ns)


def _line(
    name: str,
    label: str,
    data: list[float],
    problem: str,
    goals: tuple[Verdict, ...],
    p99_ns: float | None = None,
) -> Line:
    if problem or not data:
        return Line(name, label, problem or "not measured", verdicts=goals)
    return Line(
        name,
        label,
        median=statistics.median(data),
        lowest=min(data),
        highest=max(data),
        p99_ns=p99_ns,
        verdicts=goals,
        rounds=tuple({"figure": one} for one in data),
    )
