"""`python -m tests.faults`: run the scenarios in full and print a table of what came of them.

Exit code 1 if a message was lost, doubled, reordered or damaged, or if a run got stuck; 130 after
Ctrl-C, which ends every process of the run and prints what was finished by then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from random import SystemRandom
from typing import Final

from tests.faults.processes import FaultRunError
from tests.faults.scale import FULL, SHORT
from tests.faults.scenarios import SCENARIOS, run_scenario
from tests.faults.verdict import Outcome
from tests.support import places
from urds.cli.output import BAD, GOOD, QUIET, Cell, Column, Exit, Output, Progress

_PLACES: Final = ("loopback", "netns4", "netns6")
_COLUMNS: Final = (
    Column("scenario", left=True),
    *(Column(title) for title in ("messages", "faults", "lost", "duplicated", "reordered")),
    *(Column(title) for title in ("gave up", "recovery ms", "worst ms", "seconds")),
)


class Session:
    """The runs of one command, and what came of them so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        given = arguments.seed
        self.seed: int = SystemRandom().randrange(1 << 32) if given is None else given
        self.outcomes: list[Outcome] = []
        self.failures = 0
        self._place: str = arguments.place
        self._scale = SHORT if arguments.short else FULL
        self._messages: int | None = arguments.messages
        self._output = Output(json_wanted=arguments.json)
        self._talks = not arguments.json

    def run(self, names: Sequence[str]) -> None:
        """Run scenarios, one after the other, and tell of each."""
        self._tell(f"Fault runs at {self._place}, seed {self.seed}.")
        for name in names:
            scenario = SCENARIOS[name]
            if reason := scenario.missing():
                self._tell(f"{name}: skipped: {reason}", QUIET)
                continue
            self._tell(f"{name}: {scenario.summary}")
            try:
                self._tell_outcome(self._run(name))
            except FaultRunError as failure:
                self.failures += 1
                print(f"faults: {name}: {failure}", file=sys.stderr)

    def conclude(self) -> None:
        """Print the table, or the document."""
        if not self._talks:
            runs = [asdict(outcome) for outcome in self.outcomes]
            self._output.document({"seed": self.seed, "runs": runs})
        elif self.outcomes:
            self._output.table("", _COLUMNS, [row(outcome) for outcome in self.outcomes])

    def _run(self, name: str) -> Outcome:
        with (
            closing(places.take(self._place)) as place,
            Progress(quiet=not self._talks) as progress,
        ):
            return run_scenario(
                name,
                place,
                self._scale,
                seed=self.seed,
                messages=self._messages,
                show=lambda done, text: progress.update(done, f"  {text}"),
            )

    def _tell_outcome(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.failures += not outcome.is_good
        if outcome.notes:
            notes = ", ".join(f"{name} {value}" for name, value in outcome.notes.items())
            self._tell(f"  {notes}", QUIET)
        for problem in outcome.problems:
            self._tell(f"  {problem}", BAD)
        words = (
            f"  {outcome.messages} messages: lost {outcome.lost}, duplicated {outcome.duplicated},"
            f" reordered {outcome.reordered}, damaged {outcome.damaged}"
        )
        self._tell(words, GOOD if outcome.is_good else BAD)

    def _tell(self, text: str, style: str | None = None) -> None:
        if self._talks:
            self._output.line(text, style)


def row(outcome: Outcome) -> Sequence[Cell]:
    """Return the line of the table."""
    return (
        outcome.scenario,
        *(outcome.messages, outcome.faults, outcome.lost, outcome.duplicated, outcome.reordered),
        outcome.gave_up,
        *(_milliseconds(outcome.recovery_median_s), _milliseconds(outcome.recovery_worst_s)),
        f"{outcome.seconds:.1f}",
    )


def main() -> Exit:
    """Run what the arguments name."""
    arguments = _arguments()
    if arguments.place != places.Loopback.name and (reason := places.missing()):
        print(f"faults: {arguments.place}: {reason}", file=sys.stderr)
        return Exit.FAILED
    session, code = Session(arguments), Exit.OK
    try:
        session.run(arguments.scenario or list(SCENARIOS))
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    session.conclude()
    return code or (Exit.FAILED if session.failures else Exit.OK)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "--scenario",
        action="append",
        choices=list(SCENARIOS),
        metavar="NAME",
        help=f"may be given more than once: {', '.join(SCENARIOS)}",
    )
    parser.add_argument("--messages", type=_count, help="of all ways of a scenario together")
    parser.add_argument("--seed", type=int, help="of the content and of the plan of the faults")
    parser.add_argument("--place", choices=_PLACES, default=_PLACES[0])
    parser.add_argument("--short", action="store_true", help="the sizes of `make test`")
    parser.add_argument("--json", action="store_true", help="print one document")
    return parser.parse_args()


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
