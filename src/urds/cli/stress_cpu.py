"""What the processors of this host did, as the kernel counts it.

rds-stress lets a process spin on each processor and counts what is left; reading the kernel's own
count takes nothing from what is measured. Source: proc(5), /proc/stat.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

PLACE: Final = Path("/proc/stat")
TITLES: Final = (*("user:percent", "system:percent", "idle:percent", "irq:percent", "intr:count"),)
_USER, _NICE, _SYSTEM, _IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = range(8)
_TIMES: Final = 8


@dataclass(frozen=True, slots=True)
class Usage:
    """The kernel's counts at one moment."""

    times: tuple[int, ...]  # ticks of all processors, by what they did
    interrupts: int

    @classmethod
    def now(cls) -> Self:
        """Read the counts. Raises OSError: this system has none."""
        return cls.parse(PLACE.read_text())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the counts from the text of /proc/stat."""
        rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
        times = [int(ticks) for ticks in rows["cpu"][:_TIMES]]
        times += [0] * (_TIMES - len(times))
        return cls(tuple(times), int(rows.get("intr", ["0"])[0]))

    def busy_percent(self, earlier: Self) -> float:
        """Return how much of the time since then the processors were not idle."""
        _, _, idle, _ = self._shares(earlier)
        return 100.0 - idle

    def columns(self, earlier: Self) -> tuple[float, ...]:
        """Return the values of `TITLES` since then."""
        return (*self._shares(earlier), float(self.interrupts - earlier.interrupts))

    def _shares(self, earlier: Self) -> tuple[float, float, float, float]:
        """Return percent of the time for user, system, idle and interrupts."""
        spent = [now - then for now, then in zip(self.times, earlier.times, strict=True)]
        scale = 100.0 / (sum(spent) or 1)
        return (
            (spent[_USER] + spent[_NICE]) * scale,
            spent[_SYSTEM] * scale,
            (spent[_IDLE] + spent[_IOWAIT]) * scale if sum(spent) else 100.0,
            (spent[_IRQ] + spent[_SOFTIRQ]) * scale,
        )
