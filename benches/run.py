"""Measure urds and its peers side by side: two processes each, interleaved rounds, medians.

    make bench
    python benches/run.py --quick
    python benches/run.py --only urds,dealer_router,one_way --sizes 64 --rounds 7 --json out.json

docs/benchmarks.md says how it is done and what the tables mean.
"""

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pair import Pair, PairError
from peers import ALL, BY_NAME
from peers.base import Kind
from report import Row, machine, record, render
from works import Work, processors, works

_ROUNDS_MAX = 50
_CALIBRATIONS_MAX = 4
_GROWTH_MAX = 20.0  # of the count from one calibration to the next
_FIRST_BYTES = 8 << 20  # the first calibration moves no more
_TOTAL_BYTES_MAX = 2 << 30  # no measurement moves more
_MESSAGES_MAX = 2_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things may take."""

    rounds: int
    target_s: float  # of one measurement
    limit_s: float  # when a peer is cut


def main() -> int:
    """Measure what the options name; return 1 if a peer failed, 130 after Ctrl-C."""
    options = _options()
    chosen_kinds, chosen_peers = _chosen(options.only)
    rounds = options.rounds or (3 if options.quick else 5)
    pace = Pace(rounds, 0.05, 5.0) if options.quick else Pace(rounds, 0.4, 30.0)
    place = machine()
    width = max(map(len, place))
    print("\n".join(f"{name:<{width}}  {value}" for name, value in place.items()), flush=True)
    records, failed = [], False
    for work in works(options.sizes):
        names = [peer.name for peer in ALL if peer.fits(work.kind, work.payload_bytes)]
        names = [name for name in names if name in chosen_peers]
        if work.kind not in chosen_kinds or not names:
            continue
        rows = _measure(work, names, pace)
        print(f"\n{render(work, rows)}", flush=True)
        records.append(record(work, rows))
        failed |= any(row.failed for row in rows)
    if options.json:
        report = {"machine": place, "works": records}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(failed)


def _options() -> argparse.Namespace:
    names = [*BY_NAME, *(kind.value for kind in Kind)]
    parser = argparse.ArgumentParser(description="Measure urds and its peers side by side.")
    parser.add_argument("--rounds", type=_rounds, help="measurements of each row (5; --quick: 3)")
    parser.add_argument("--only", type=_names, default=(), help=f"of {', '.join(names)}")
    parser.add_argument("--sizes", type=_sizes, help="octets one way, such as 64,65536")
    parser.add_argument("--quick", action="store_true", help="short measurements, under 30 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds here too")
    return parser.parse_args()


def _rounds(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= _ROUNDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not in 1 to {_ROUNDS_MAX}")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = set(names) - BY_NAME.keys() - {kind.value for kind in Kind}
    if unknown:
        raise argparse.ArgumentTypeError(f"no peer and no work: {', '.join(sorted(unknown))}")
    return names


def _sizes(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    for one in sizes:
        if not one.isdigit() or not 1 <= int(one) <= 1 << 20:
            raise argparse.ArgumentTypeError(f"{one!r} is not in 1 to {1 << 20} octets")
    return tuple(map(int, sizes))


def _chosen(only: tuple[str, ...]) -> tuple[set[Kind], set[str]]:
    """Return kinds and peers; of the one that `only` does not speak of, all."""
    kinds = {kind for kind in Kind if kind.value in only} or set(Kind)
    return kinds, {name for name in only if name in BY_NAME} or set(BY_NAME)


def _measure(work: Work, names: list[str], pace: Pace) -> list[Row]:
    """Open all peers, find how many messages fill the target time, then go round and round.

    Rounds are interleaved: what the machine does beside hits all peers alike. Each round begins
    with another peer.
    """
    rows = {name: Row(name, problem=BY_NAME[name].missing() or "") for name in names}
    cpus = processors(work.placement)
    if cpus is None:
        for row in rows.values():
            row.problem = row.problem or "left out: this machine has one vCPU"
        return list(rows.values())
    with ExitStack() as stack:
        pairs: dict[str, Pair] = {}
        counts: dict[str, int] = {}
        for name, row in rows.items():
            if row.problem:
                continue
            try:
                pairs[name] = stack.enter_context(Pair(name, work, cpus, limit_s=pace.limit_s))
                counts[name] = _calibrate(pairs[name], work, pace)
                row.note = pairs[name].note
            except PairError as error:
                row.fail(str(error))
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
    return list(rows.values())


def _calibrate(pair: Pair, work: Work, pace: Pace) -> int:
    """Return how many messages take about the target time; this warms the pair up, too."""
    count_max = min(_MESSAGES_MAX, _TOTAL_BYTES_MAX // max(1, work.payload_bytes))
    count = max(8, min(400, _FIRST_BYTES // max(1, work.payload_bytes)))
    for _ in range(_CALIBRATIONS_MAX):
        elapsed_s = pair.measure(count).elapsed_ns / 1e9
        growth = min(_GROWTH_MAX, pace.target_s / max(elapsed_s, 1e-6))
        count = max(8, min(count_max, int(count * growth)))
        if 0.5 <= growth <= 2.0:
            break
    return count


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
