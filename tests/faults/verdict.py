"""The judge: what was accepted against what was taken, over all lives of all hosts.

Lost is what the socket of a sender that lives on accepted for a socket that stayed open, and what
was never taken. What a killed process had queued, to send or to take, is not counted. In words of
the boards:

* no life of a receiver misses a message between two that it took from one life of a sender;
* a receiver that was there when a sender's life began takes that life's messages from index 0;
* where both live to the end, the last message that was accepted was taken;
* no message comes twice to one life of a receiver, and none to two lives of it in a row: what an
  earlier life was handed is given up, and the sender counts it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from tests.faults.board import Taken
from tests.faults.processes import HostLife
from tests.faults.run import Run
from tests.support.carriers import control_counter

_TOLD: Final = re.compile(r"^(\S+) restarted: (\d+) messages? sent to it may be lost$")
_REMARKS_MAX: Final = 12


@dataclass(slots=True)
class Count:
    """What went wrong with messages."""

    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    damaged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run showed."""

    scenario: str
    place: str
    seed: int
    messages: int  # taken, different ones
    faults: int
    lost: int
    duplicated: int
    reordered: int
    damaged: int
    gave_up: int  # messages, by the counters of hosts whose peer was killed
    recovery_worst_s: float | None  # None: no fault was followed by traffic
    recovery_median_s: float | None
    seconds: float
    notes: dict[str, Any] = field(default_factory=dict)  # what this scenario alone has to tell
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Tell whether nothing was lost, doubled, reordered or damaged, and all was told."""
        return not (self.lost or self.duplicated or self.reordered or self.damaged or self.problems)


def judge(run: Run, scenario: str, *, seconds: float, notes: dict[str, Any]) -> Outcome:
    """Judge a run that is finished, with its live processes still there."""
    count = Count()
    for source, target in run.ways:
        for life in run.lives[source]:
            count_way(count, life, run.lives[target])
    gave_up, problems = _told(run)
    problems += run.problems
    if run.stalled:
        unfinished = ", ".join(f"{one} to {other}" for one, other in run.state)
        problems.append(f"nothing moved for {run.terms.stall_s:g} s: {unfinished}")
    took_s = run.recovery.took_s
    return Outcome(
        scenario=scenario,
        place=run.terms.place.name,
        seed=run.terms.seed,
        messages=run.delivered,
        faults=run.faults,
        lost=count.lost,
        duplicated=count.duplicated,
        reordered=count.reordered,
        damaged=count.damaged,
        gave_up=gave_up + run.given_up_before,
        recovery_worst_s=round(max(took_s), 3) if took_s else None,
        recovery_median_s=round(median(took_s), 3) if took_s else None,
        seconds=round(seconds, 2),
        notes=notes,
        problems=problems,
    )


def count_way(count: Count, source: HostLife, targets: Sequence[HostLife]) -> None:
    """Add what went wrong between one life of a sender and all lives of a receiver."""
    before: Taken | None = None
    for target in targets:
        taken = target.board.taken(source.address, source.plan.life)
        count.duplicated += taken.duplicated
        count.reordered += taken.reordered
        count.damaged += taken.damaged
        count.lost += taken.missing
        if was_there(target, source):
            count.lost += max(0, taken.first)
        if taken.first >= 0:
            if before is not None:
                count.duplicated += max(0, before.next - taken.first)
            before = taken
    if source.is_alive and targets[-1].is_alive:
        accepted = source.board.sent(targets[-1].address).accepted
        count.lost += max(0, accepted - (before.next if before else 0))


def was_there(target: HostLife, source: HostLife) -> bool:
    """Tell whether a receiver's life had begun, and not ended, when a sender's life began."""
    are_first = source.plan.life == target.plan.life == 0  # all first ones start together
    has_begun = target.started_s <= source.started_s or are_first
    return has_begun and (target.ended_s is None or target.ended_s > source.started_s)


def _told(run: Run) -> tuple[int, list[str]]:
    """Return how many messages the live hosts gave up; and where counters and log differ."""
    total, problems = 0, []
    for host, lives in run.lives.items():
        if not lives[-1].is_alive:
            continue
        report = lives[-1].report()
        counted = report["counters"]["send_given_up"]
        matches = [match for line in report["told"] if (match := _TOLD.match(line))]
        told = sum(int(match[2]) for match in matches)
        total += counted
        if counted != told:
            problems.append(f"host {host} counts {counted} messages as given up and told of {told}")
        restarts = report["counters"][control_counter("peer_restarts")]
        seen = sum(_restarts_since(run.lives[peer], lives[-1]) for peer in run.peers_of(host))
        if restarts != seen:
            problems.append(f"host {host} counts {restarts} restarts of peers, not {seen}")
        problems += [f"host {host}: {text}" for text in report["remarks"][:_REMARKS_MAX]]
        if report["counters"]["control_faults"]:
            problems.append(f"host {host}: control_faults {report['counters']['control_faults']}")
    return total, problems


def _restarts_since(lives: Sequence[HostLife], observer: HostLife) -> int:
    """Return how many lives of a peer ended while the observer lived."""
    return sum(1 for life in lives if life.ended_s and life.ended_s > observer.started_s)
