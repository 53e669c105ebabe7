"""Rounds: which peer is measured when, for how many messages, and how a failed peer is reported.

Rounds are interleaved: other load on the machine hits all peers alike. Each round begins with
another peer.
"""

import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from typing import Protocol

from pair import PairError, Sample
from peers.base import Kind
from results import MESSAGES_PER_S, NS, Line, Table, Verdict
from works import Goal, Work, placement_text

_CALIBRATIONS_MAX = 4
_GROWTH_MAX = 20.0  # of the count from one calibration to the next
_FIRST_MESSAGES = 400
_FIRST_BYTES = 8 << 20  # the first calibration moves no more
_TOTAL_BYTES_MAX = 2 << 30  # no measurement moves more
_MESSAGES_MAX = 2_000_000
_MESSAGES_MIN = 8


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits of time."""

    rounds: int
    target_s: float  # of one measurement
    limit_s: float  # when a peer is ended


class Measured(Protocol):
    """Both sides of one peer, open."""

    note: str

    def measure(self, count: int) -> Sample:
        """Exchange at least `count` messages. Raises PairError if that fails."""

    def close(self) -> None:
        """End both sides."""


Opener = Callable[[], AbstractContextManager[Measured]]


@dataclass(slots=True)
class Row:
    """One peer at one work. Not frozen: rounds add to it."""

    name: str
    label: str
    samples: list[Sample] = field(default_factory=list)
    problem: str = ""  # why there are no samples, or no more of them
    failed: bool = False  # it was there and did not finish
    note: str = ""

    def fail(self, reason: str) -> None:
        """Remove the figures from the table and give the reason."""
        self.problem, self.failed = reason, True

    def figures(self, work: Work) -> list[float]:
        """Return what each round gave, in the unit of the table; none of a peer that broke off."""
        if self.problem:
            return []
        if work.kind.one_takes_turns:
            return [sample.elapsed_ns / sample.messages for sample in self.samples]
        if work.kind.asks:
            return [float(sample.p50_ns) for sample in self.samples]
        return [sample.rate for sample in self.samples]


def measure(work: Work, rows: Mapping[str, Row], openers: Mapping[str, Opener], pace: Pace) -> None:
    """Open all that has an opener, find how many messages fill the target time, go round and round.

    Results and failures go into `rows`.
    """
    with ExitStack() as stack:
        pairs: dict[str, Measured] = {}
        counts: dict[str, int] = {}
        for name, opener in openers.items():
            try:
                pairs[name] = stack.enter_context(opener())
                counts[name] = _calibrate(pairs[name], work, pace)
                rows[name].note = pairs[name].note
            except PairError as error:
                rows[name].fail(str(error))
                if name in pairs:
                    pairs.pop(name).close()
        for turn in range(pace.rounds):
            order = [*pairs]
            first = turn % max(1, len(order))
            for name in order[first:] + order[:first]:
                try:
                    rows[name].samples.append(pairs[name].measure(counts[name]))
                except PairError as error:
                    rows[name].fail(str(error))
                    pairs.pop(name).close()


def _calibrate(pair: Measured, work: Work, pace: Pace) -> int:
    """Return how many messages take about the target time; this warms the pair up, too."""
    count_max = min(_MESSAGES_MAX, _TOTAL_BYTES_MAX // max(1, work.payload_bytes))
    first_bytes = _FIRST_BYTES // max(1, work.payload_bytes)
    count = max(_MESSAGES_MIN, min(_FIRST_MESSAGES, first_bytes))
    for _ in range(_CALIBRATIONS_MAX):
        sample = pair.measure(count)
        growth = min(_GROWTH_MAX, pace.target_s / max(sample.elapsed_ns / 1e9, 1e-6))
        count = max(_MESSAGES_MIN, min(count_max, int(sample.messages * growth)))
        if 0.5 <= growth <= 2.0:
            break
    return count


def tabulate(work: Work, rows: Mapping[str, Row], goals: tuple[Goal, ...], plane: str) -> Table:
    """Return the table of one work; `plane` is the data plane that ran."""
    subject = rows.get(work.subject)
    own = _median(subject.figures(work)) if subject else None
    return Table(
        kind=work.kind.value,
        title=work.title,
        unit=NS if work.is_time else MESSAGES_PER_S,
        payload_bytes=work.payload_bytes,
        rounds=max((len(row.samples) for row in rows.values()), default=0),
        placement=placement_text(work.placement, some_spin=work.kind is Kind.MEMORY_ROUND_TRIP),
        subject=subject.label if subject else "",
        lines=tuple(
            _line(work, row, None if row is subject else own, goals, plane) for row in rows.values()
        ),
    )


def _line(work: Work, row: Row, own: float | None, goals: tuple[Goal, ...], plane: str) -> Line:
    figures = row.figures(work)
    median = _median(figures)
    ratio = own / median if own is not None and median else None
    verdicts = tuple(
        Verdict(goal.plane, goal.ratio, work.is_time, _reached(goal, ratio, work.is_time, plane))
        for goal in goals
        if goal.peer == row.name
    )
    if median is None:
        problem = row.problem or "not measured"
        return Line(row.name, row.label, problem, row.note, verdicts=verdicts)
    p99_ns = statistics.median(one.p99_ns for one in row.samples) if work.kind.asks else None
    return Line(
        row.name,
        row.label,
        note=row.note,
        median=median,
        lowest=min(figures),
        highest=max(figures),
        p99_ns=p99_ns,
        cpu_ns=statistics.median(one.cpu_ns for one in row.samples),
        wake_ups=(
            statistics.median(one.wake_ups for one in row.samples)
            if work.kind.counts_wake_ups
            else None
        ),
        ratio=ratio,
        verdicts=verdicts,
        rounds=tuple(asdict(one) for one in row.samples),
    )


def _median(figures: list[float]) -> float | None:
    return statistics.median(figures) if figures else None


def _reached(goal: Goal, ratio: float | None, at_most: bool, plane: str) -> bool | None:
    if ratio is None or goal.plane not in (None, plane):
        return None
    return ratio <= goal.ratio if at_most else ratio >= goal.ratio
