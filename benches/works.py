"""What is measured, and the goals that it must reach.

Source of the goals: the first release's own, in pure Python; docs/benchmarks.md has them all.
"""

import os
from dataclasses import dataclass
from enum import Enum

from peers.base import Kind

SENDERS = 8
_SMALL_BYTES = 64
ONE_WAY_BYTES = (64, 1 << 10, 64 << 10, 1 << 20)


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
        """Return what the table is called."""
        size = size_name(self.payload_bytes)
        if self.kind is Kind.MANY_SENDERS:
            return f"{self.senders} senders to one socket, {size}"
        return f"{self.kind.value.replace('_', ' ')}, {size}"


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound for our median divided by a peer's: rates from below, times from above."""

    peer: str
    ratio: float


def size_name(payload_bytes: int) -> str:
    """Return a size as people say it: 64 B, 64 KiB, 1 MiB."""
    for unit_bytes, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if payload_bytes >= unit_bytes and payload_bytes % unit_bytes == 0:
            return f"{payload_bytes // unit_bytes} {unit}"
    return f"{payload_bytes} B"


def works(sizes: tuple[int, ...] | None) -> list[Work]:
    """Return the tables; `sizes` replaces those of the one-way rows and of nothing else."""
    one_way = [Work(Kind.ONE_WAY, size) for size in sizes or ONE_WAY_BYTES]
    placements = [Placement.SAME, Placement.TWO]
    round_trips = [Work(Kind.ROUND_TRIP, _SMALL_BYTES, placement) for placement in placements]
    return [*one_way, *round_trips, Work(Kind.MANY_SENDERS, _SMALL_BYTES, senders=SENDERS)]


def goal_for(work: Work) -> Goal | None:
    """Return the goal of this work, or None where there is none."""
    if work.kind is Kind.ONE_WAY and work.payload_bytes == _SMALL_BYTES:
        return Goal("dealer_router", 1.5)
    if work.kind is Kind.ONE_WAY and work.payload_bytes >= 64 << 10:
        return Goal("tcp", 0.95)
    if work.kind is Kind.ROUND_TRIP and work.placement is Placement.SAME:
        return Goal("tcp", 1.5)
    return None


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
