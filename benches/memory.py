"""Memory of idle objects: a peer, a hosted address, a socket.

Each figure is the growth of the resident set of a process (`/proc/self/statm`, after a garbage
collection and malloc_trim) while a thousand of them are made, divided by their number. A peer is
made by a message to it and its answer. The kernel's memory of TCP connections is not in it.
"""

import statistics
from dataclasses import dataclass

from idle import COUNT, WARM_UP, LateError, Side
from peers.memory import UrdsOverMemory
from peers.ours import Urds
from results import BYTES, Line, Table, Verdict

KIND = "memory"
_ALL = (WARM_UP, WARM_UP + COUNT)
_STREAMS_AT_ONCE = 20
_EVERY = (0, WARM_UP + COUNT)
_REMARKS = (
    "the growth of a process's resident set while they are made, divided by their number,",
    "after a garbage collection and malloc_trim; the kernel's TCP connections are not in it",
)


@dataclass(frozen=True, slots=True)
class _Item:
    label: str
    goal: int | None  # bytes


_ITEMS = {
    "peer_connecting": _Item("idle peer, side that sends first", 16 << 10),
    "peer_accepting": _Item("idle peer, other side", 16 << 10),
    "shm_connecting": _Item("idle peer over a shm stream, side that sends first", 16 << 10),
    "shm_accepting": _Item("idle peer over a shm stream, other side", 16 << 10),
    "socket": _Item("idle socket", 8 << 10),
    "socket_polled": _Item("idle socket with a descriptor", None),
    "host": _Item("hosted address with a socket", None),
}


def measure(rounds: int, *, limit_s: float) -> tuple[Table, bool]:
    """Return the table, and whether a process did not finish. Every round has fresh processes."""
    found: dict[str, list[float]] = {name: [] for name in _ITEMS}
    missing, late = Urds.missing() or "", ""
    no_shm = UrdsOverMemory.missing() or ""
    for _ in range(0 if missing else rounds):
        try:
            round_bytes = _measure_peers(limit_s) | _measure_sockets(limit_s)
            if not no_shm:
                round_bytes |= _measure_shm(limit_s)
        except LateError as error:
            late = str(error)
            break
        for name, data in round_bytes.items():
            found[name].append(data)
    table = Table(
        kind=KIND,
        title=f"memory of what is idle, bytes each, {COUNT:,} of them",
        unit=BYTES,
        payload_bytes=0,
        rounds=len(found["socket"]),
        placement="on any vCPU; no side spins",
        subject="",
        lines=tuple(
            _line(name, found[name], missing or late or no_shm * name.startswith("shm"))
            for name in _ITEMS
        ),
        remarks=_REMARKS,
    )
    return table, bool(late)


def _line(name: str, data: list[float], problem: str) -> Line:
    item = _ITEMS[name]
    median = statistics.median(data) if data and not problem else None
    reached = None if median is None or item.goal is None else median <= item.goal
    verdicts = (Verdict(None, item.goal, at_most=True, reached=reached),) if item.goal else ()
    if median is None:
        return Line(name, item.label, problem or "not measured", verdicts=verdicts)
    return Line(
        name,
        item.label,
        median=median,
        lowest=min(data),
        highest=max(data),
        verdicts=verdicts,
        rounds=tuple({"bytes": round(one)} for one in data),
    )


def _measure_peers(limit_s: float) -> dict[str, float]:
    """Have one process host all addresses, and another exchange a message with each of them."""
    with Side(limit_s=limit_s) as hosting, Side(limit_s=limit_s) as visiting:
        hosting.ask("host", 0, WARM_UP)
        hosting.ask("mark")
        hosting.ask("host", *_ALL)
        hosted = hosting.ask("look", *_ALL)
        visiting.ask("bind", 0, 1)
        _exchange(visiting, hosting, 0, WARM_UP)
        hosting.ask("mark")
        visiting.ask("mark")
        _exchange(visiting, hosting, *_ALL)
        return {
            "host": hosted,
            "peer_connecting": visiting.ask("look", *_ALL),
            "peer_accepting": hosting.ask("look", *_ALL),
        }


def _measure_shm(limit_s: float) -> dict[str, float]:
    """Do the same over shared memory, and leave the peers idle until they free their rings."""
    hosting = Side(limit_s=limit_s, ours=UrdsOverMemory)
    visiting = Side(limit_s=limit_s, ours=UrdsOverMemory)
    with hosting, visiting:
        hosting.ask("host", *_EVERY)
        visiting.ask("bind", 0, 1)
        _exchange(visiting, hosting, 0, WARM_UP)
        hosting.ask("mark")
        visiting.ask("mark")
        # Some at a time: a peer that finds no thread free to answer uses TCP.
        for start in range(*_ALL, _STREAMS_AT_ONCE):
            _exchange(visiting, hosting, start, min(start + _STREAMS_AT_ONCE, _ALL[1]))
        if (streams := int(visiting.ask("shm_streams"))) < _ALL[1]:
            raise LateError(f"{streams} shm streams, not {_ALL[1]}")
        visiting.ask("rest")
        return {
            "shm_connecting": visiting.ask("look", *_ALL),
            "shm_accepting": hosting.ask("look", *_ALL),
        }


def _exchange(visiting: Side, hosting: Side, start: int, stop: int) -> None:
    visiting.ask("send", start, stop)
    hosting.ask("answer", start, stop)
    visiting.ask("collect", start, stop)


def _measure_sockets(limit_s: float) -> dict[str, float]:
    """Bind sockets at one address, then make the descriptors of all of them."""
    with Side(limit_s=limit_s) as holding:
        holding.ask("bind", 0, WARM_UP)
        holding.ask("poll", 0, WARM_UP)
        holding.ask("mark")
        holding.ask("bind", *_ALL)
        bound = holding.ask("look", *_ALL)
        holding.ask("poll", *_ALL)
        return {"socket": bound, "socket_polled": holding.ask("look", *_ALL)}
