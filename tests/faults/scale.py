"""How long the faults of a run last and how many there are: in full, and for `make test`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of the scenarios."""

    messages: int  # of all ways together
    holes_s: tuple[float, ...]
    partitions_s: tuple[float, ...]  # each one way, then the other
    storm_silence_s: float  # at most
    restarts: int
    crowd: int  # receivers of one sender
    stall_s: float


FULL: Final = Scale(
    messages=100_000,
    holes_s=(1.0, 3.0, 10.0, 30.0, 60.0),
    partitions_s=(1.0, 5.0, 20.0),
    storm_silence_s=2.0,
    restarts=20,
    crowd=32,
    stall_s=180.0,  # TCP's own timer, doubled up to a minute of silence, comes back as late
)
SHORT: Final = Scale(
    messages=4000,
    holes_s=(1.0,),
    partitions_s=(0.5,),
    storm_silence_s=0.3,
    restarts=4,
    crowd=12,
    stall_s=40.0,
)
