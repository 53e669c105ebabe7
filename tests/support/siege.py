"""What an attack does to honest processes beside it: their round trips, and the victim's memory.

Shared by the programs that print such figures, `tests.rds.transports.tcp.siege_figures` and
`tests.rds.transports.rdma.siege_figures`. Nothing here asserts a speed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

MIB = 1 << 20
_AT_ONCE = 200
_BEGIN_S = 0.3  # an attack is under way before anything is measured


class Process(Protocol):
    """The process that is attacked, as its parent sees it."""

    @property
    def rss_bytes(self) -> int:
        """Return the memory that it has in use."""

    @property
    def descriptor_count(self) -> int:
        """Return how many descriptors it has open."""


class Besieged(Protocol):
    """A victim, and a neighbour that talks with it."""

    name: str

    @property
    def victim(self) -> Process:
        """Return the process that is attacked."""

    def others_are_well(self, count: int) -> list[int]:
        """Exchange messages between the honest ones; return the ns that each round trip took."""


class Asker(Protocol):
    """A socket, or a mailbox."""

    def sendto(self, payload: bytes, address: tuple[str, int], /) -> int:
        """Send one message."""

    def recvfrom(self, payload_bytes_max: int, /) -> tuple[bytes, tuple[str, int]]:
        """Receive one message and its source."""


def round_trips(asker: Asker, echo: tuple[str, int], count: int, payload_bytes: int) -> list[int]:
    """Exchange messages with an echo; return how many ns each round trip took."""
    took_ns = []
    for number in range(count):
        payload = str(number).encode().ljust(payload_bytes, b".")
        began_ns = time.perf_counter_ns()
        asker.sendto(payload, echo)
        answer, source = asker.recvfrom(1 << 20)
        assert (answer, source[:2]) == (payload, echo)
        took_ns.append(time.perf_counter_ns() - began_ns)
    return took_ns


@dataclass(frozen=True, slots=True)
class Figures:
    """What was seen during one attack."""

    median_ns: int
    late_ns: int  # the 99th of a hundred
    worst_ns: int
    grown_bytes: int  # memory of the victim
    descriptors: int  # that the victim has more than before
    load: float  # of the machine, over the minute before

    def line(self, alone: Figures | None) -> str:
        """Return what to print, with the ratios to the round trips of an undisturbed pair."""
        ratio = ""
        if alone is not None:
            ratio = (
                f" ({self.median_ns / alone.median_ns:.1f}x, {self.late_ns / alone.late_ns:.1f}x)"
            )
        return (
            f"median {self.median_ns / 1e3:.0f} us, 99th {self.late_ns / 1e3:.0f} us{ratio}, "
            f"worst {self.worst_ns / 1e6:.1f} ms, memory {self.grown_bytes / MIB:+.1f} MiB, "
            f"descriptors {self.descriptors:+}, load {self.load:.1f}"
        )


def figures_of(took_ns: Sequence[int], *, grown_bytes: int = 0, descriptors: int = 0) -> Figures:
    """Return the figures of a run of round trips."""
    ordered = sorted(took_ns)
    return Figures(
        median_ns=ordered[len(ordered) // 2],
        late_ns=ordered[len(ordered) * 99 // 100],
        worst_ns=ordered[-1],
        grown_bytes=grown_bytes,
        descriptors=descriptors,
        load=os.getloadavg()[0],
    )


def measured(
    siege: Besieged, attack: AbstractContextManager[object] | None, *, measure_s: float
) -> Figures:
    """Return the neighbour's round trips while an attack goes on, and what the victim grew by."""
    before = siege.victim.rss_bytes, siege.victim.descriptor_count
    with attack or nullcontext():
        time.sleep(_BEGIN_S)
        took_ns = []
        end_s = time.monotonic() + measure_s
        while time.monotonic() < end_s:
            took_ns += siege.others_are_well(_AT_ONCE)
        return figures_of(
            took_ns,
            grown_bytes=siege.victim.rss_bytes - before[0],
            descriptors=siege.victim.descriptor_count - before[1],
        )


def during(
    siege: Besieged,
    what: str,
    attack: AbstractContextManager[object] | None = None,
    *,
    measure_s: float = 3.0,
    alone: Figures | None = None,
    after: Callable[[], None] = lambda: None,
) -> Figures:
    """Measure the neighbour's round trips while an attack goes on, and print them."""
    figures = measured(siege, attack, measure_s=measure_s)
    print(f"{siege.name} {what}: {figures.line(alone)}", flush=True)
    after()
    return figures
