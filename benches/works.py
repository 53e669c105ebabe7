"""The works that are measured, and their goals.

Source of the goals: the project's own; docs/benchmarks.md has them all. A goal belongs to one data
plane or to both: the Python plane does not have the goals that only compiled code can reach.
"""

import os
from dataclasses import dataclass
from enum import Enum

from peers import PEER_COUNTS
from peers.base import BURST_MESSAGES, RUN_MESSAGES, Kind

SENDERS = 8
PYTHON, NATIVE = "python", "native"
_SMALL_BYTES = 64
ONE_WAY_BYTES = (64, 1 << 10, 64 << 10, 1 << 20)
_MEMORY_BYTES = (64, 1 << 10, 8 << 10, 64 << 10, 1 << 20)
_NODE_BYTES = (64, 8 << 10, 64 << 10)
_REUSED_BYTES = (64 << 10, 1 << 20)
_SUBJECTS = {
    Kind.REUSED_ONE_WAY: "urds_reused",
    Kind.LOOP_ONE_WAY: "urds_asyncio",
    Kind.LOOP_ROUND_TRIP: "urds_asyncio",
    Kind.BURSTS_ONE_WAY: "urds_bursts",
    Kind.MEMORY_ONE_WAY: "urds_memory",
    Kind.MEMORY_BURSTS: "urds_memory_bursts",
    Kind.MEMORY_ROUND_TRIP: "urds_memory_spins",
    Kind.NODE_ONE_WAY: "urds_node",
    Kind.NODE_ROUND_TRIP: "urds_node",
}


class Placement(Enum):
    """Where the two processes may run."""

    FREE = "free"  # wherever the scheduler puts them
    SAME = "same vCPU"
    TWO = "two vCPUs"


@dataclass(frozen=True, slots=True)
class Work:
    """One table of the report."""

    kind: Kind
    payload_bytes: int
    placement: Placement = Placement.FREE
    senders: int = 1

    @property
    def title(self) -> str:
        """Return the title of the table."""
        size = size_name(self.payload_bytes)
        if self.placement is not Placement.FREE:
            size += f", {self.placement.value}"
        match self.kind:
            case Kind.ONE_WAY:
                return f"one way, {size}"
            case Kind.REUSED_ONE_WAY:
                return f"one way, {size}, from one buffer that is used again"
            case Kind.ROUND_TRIP:
                return f"round trip, {size}"
            case Kind.MANY_SENDERS:
                return f"{self.senders} senders to one socket, {size}"
            case Kind.LOOP_ONE_WAY:
                return f"asyncio and trio, one way, {size}"
            case Kind.LOOP_ROUND_TRIP:
                return f"asyncio and trio, round trip, {size}"
            case Kind.BURSTS_ONE_WAY:
                return f"one way, {size}, {BURST_MESSAGES} per call"
            case Kind.MEMORY_ONE_WAY:
                return f"within a host, one way, {size}"
            case Kind.MEMORY_BURSTS:
                return f"within a host, one way, {size}, {BURST_MESSAGES} per call"
            case Kind.MEMORY_ROUND_TRIP:
                return f"within a host, round trip, {size}"
            case Kind.NODE_ONE_WAY:
                return f"attached to a node, one way, {size}"
            case Kind.NODE_ROUND_TRIP:
                return f"attached to a node, round trip, {size}"
            case Kind.PEERS_RUNS:
                return f"1 to {PEER_COUNTS[-1]:,} peers, runs of {RUN_MESSAGES} to each, {size}"
            case Kind.PEERS_ASKED:
                return f"1 to {PEER_COUNTS[-1]:,} peers, a round trip with each in turn, {size}"

    @property
    def subject(self) -> str:
        """Return the name of the row whose figure is divided by that of each other row."""
        if self.kind.one_takes_turns:
            return f"urds_{PEER_COUNTS[-1]}"
        return _SUBJECTS.get(self.kind, "urds")

    @property
    def is_time(self) -> bool:
        """Tell whether the figure is a time, which should be small, or a rate."""
        return self.kind.asks or self.kind.one_takes_turns


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound for the subject's figure divided by a peer's: rates from below, times from above."""

    peer: str
    ratio: float
    plane: str | None = None  # the one it is for; None: both


def size_name(payload_bytes: int) -> str:
    """Return a size in words: 64 B, 64 KiB, 1 MiB."""
    for unit_bytes, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if payload_bytes >= unit_bytes and payload_bytes % unit_bytes == 0:
            return f"{payload_bytes // unit_bytes} {unit}"
    return f"{payload_bytes} B"


def works(sizes: tuple[int, ...] | None) -> list[Work]:
    """Return the tables; `sizes` replaces those of the one-way rows and of nothing else."""
    one_way = [Work(Kind.ONE_WAY, size) for size in sizes or ONE_WAY_BYTES]
    placements = (Placement.SAME, Placement.TWO)
    return [
        *one_way,
        Work(Kind.BURSTS_ONE_WAY, _SMALL_BYTES),
        *(Work(Kind.REUSED_ONE_WAY, size) for size in sizes or _REUSED_BYTES),
        *(Work(Kind.ROUND_TRIP, _SMALL_BYTES, placement) for placement in placements),
        Work(Kind.MANY_SENDERS, _SMALL_BYTES, senders=SENDERS),
        *(Work(Kind.MEMORY_ONE_WAY, size) for size in sizes or _MEMORY_BYTES),
        Work(Kind.MEMORY_BURSTS, _SMALL_BYTES),
        Work(Kind.MEMORY_ROUND_TRIP, _SMALL_BYTES, Placement.TWO),
        *(Work(Kind.NODE_ONE_WAY, size) for size in sizes or _NODE_BYTES),
        *(Work(Kind.NODE_ROUND_TRIP, _SMALL_BYTES, placement) for placement in placements),
        Work(Kind.LOOP_ONE_WAY, _SMALL_BYTES),
        *(Work(Kind.LOOP_ROUND_TRIP, _SMALL_BYTES, placement) for placement in placements),
        Work(Kind.PEERS_RUNS, _SMALL_BYTES),
        Work(Kind.PEERS_ASKED, _SMALL_BYTES, Placement.SAME),
    ]


_ONE_WAY_SMALL = (
    Goal("dealer_router", 1.0, PYTHON),
    Goal("dealer_router", 14, NATIVE),
    Goal("push_pull", 4, NATIVE),
)
_ONE_WAY_LARGE = {
    64 << 10: (
        Goal("tcp", 0.95, PYTHON),
        Goal("tcp", 2.5, NATIVE),
        Goal("dealer_router_nocopy", 2, NATIVE),
        Goal("push_pull_nocopy", 2, NATIVE),
    ),
    1 << 20: (
        Goal("tcp", 0.95, PYTHON),
        Goal("tcp", 1.4, NATIVE),
        Goal("dealer_router_nocopy", 1.5, NATIVE),
        Goal("push_pull_nocopy", 1.5, NATIVE),
    ),
}
_ROUND_TRIP = {
    Placement.SAME: (
        Goal("tcp", 5, PYTHON),
        Goal("tcp", 1.0, NATIVE),
        Goal("dealer_router", 0.35, NATIVE),
    ),
    Placement.TWO: (Goal("tcp", 0.9, NATIVE), Goal("dealer_router", 0.6, NATIVE)),
}
_OTHERS = {
    Kind.REUSED_ONE_WAY: (Goal("tcp", 0.9),),
    Kind.BURSTS_ONE_WAY: (Goal("push_pull", 8, NATIVE),),
    Kind.MEMORY_BURSTS: (Goal("push_pull_ipc", 8, NATIVE),),
    Kind.MANY_SENDERS: (Goal("dealer_router", 8, NATIVE),),
    Kind.LOOP_ONE_WAY: (Goal("dealer_router_asyncio", 20, NATIVE),),
    Kind.LOOP_ROUND_TRIP: (Goal("asyncio_streams", 1.0, NATIVE),),
    Kind.MEMORY_ROUND_TRIP: (Goal("seqpacket_spins", 0.35, NATIVE),),
    Kind.PEERS_RUNS: (Goal(f"urds_{PEER_COUNTS[0]}", 4),),
    Kind.PEERS_ASKED: (Goal(f"urds_{PEER_COUNTS[0]}", 1.3),),
}


_MEMORY_ONE_WAY = {
    64: (Goal("push_pull_ipc", 5, NATIVE),),
    1 << 20: (Goal("push_pull_ipc", 4, NATIVE),),
}
_NO_SLOWER = Goal("urds_memory_tcp", 1, NATIVE)  # at any size


_NODE_ONE_WAY = {
    64: (Goal("urds_alone_shm", 0.7, NATIVE),),
    8 << 10: (Goal("seqpacket", 1, NATIVE),),
    64 << 10: (Goal("seqpacket", 1, NATIVE),),
}


def goals_for(work: Work) -> tuple[Goal, ...]:
    """Return the goals of this work for both planes; none for a size that has no goal."""
    match work.kind:
        case Kind.ONE_WAY if work.payload_bytes == _SMALL_BYTES:
            return _ONE_WAY_SMALL
        case Kind.ONE_WAY:
            return _ONE_WAY_LARGE.get(work.payload_bytes, ())
        case Kind.ROUND_TRIP:
            return _ROUND_TRIP[work.placement]
        case Kind.MEMORY_ONE_WAY:
            return (*_MEMORY_ONE_WAY.get(work.payload_bytes, ()), _NO_SLOWER)
        case Kind.NODE_ONE_WAY:
            return _NODE_ONE_WAY.get(work.payload_bytes, ())
        case Kind.NODE_ROUND_TRIP:
            return ()  # its goal is a count of wake-ups
        case _:
            return _OTHERS[work.kind]


def processors(placement: Placement) -> tuple[frozenset[int], frozenset[int]] | None:
    """Return the vCPUs of receiver and senders, or None if the machine has too few."""
    allowed = sorted(os.sched_getaffinity(0))
    if placement is Placement.FREE:
        return frozenset(allowed), frozenset(allowed)
    if placement is Placement.SAME:
        return frozenset(allowed[:1]), frozenset(allowed[:1])
    if len(allowed) < 2:
        return None
    return frozenset(allowed[:1]), frozenset(allowed[1:2])


def placement_text(placement: Placement, *, some_spin: bool = False) -> str:
    """Return a table's note on where its processes ran, and which of them spun."""
    cpus = processors(placement)
    match placement:
        case Placement.FREE:
            where = "on any vCPU, as the scheduler puts them"
        case Placement.SAME if cpus is not None:
            where = f"all on vCPU {min(cpus[0])}"
        case Placement.TWO if cpus is not None:
            where = f"receiver on vCPU {min(cpus[0])}, sender on vCPU {min(cpus[1])}"
        case _:
            where = placement.value
    return f"{where}; {'what spins says so' if some_spin else 'no side spins'}"
