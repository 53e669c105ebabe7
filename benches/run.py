"""Measure urds and its peers side by side: two processes each, interleaved rounds, medians.

docs/benchmarks.md explains the method and the tables.
"""

import argparse
import os
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import dask_costs
import fairness
import memory
import node_costs
import node_pauses
from machine import conditions, machine, told, told_after
from measuring import Pace, Row, measure, tabulate
from pair import Pair
from peers import ALL, BY_NAME
from peers.base import Kind
from peers.memory import FOLDER_VARIABLE
from peers.ours import plane
from results import Report, Table
from tables import render
from works import Work, goals_for, processors, works

_ROUNDS_MAX = 50
_INTERRUPTED = 130
_EXAMPLES = """\
examples:
  run.py                                          all tables, about ten minutes
  run.py --quick                                  all tables, two minutes, figures scatter
  run.py --only urds,dealer_router,one_way --sizes 64 --rounds 7
  run.py --only peers_asked,memory
  run.py --only dask                              Dask over rds:// and tcp://
  run.py --json out.json --plots plots            keep every round, and draw

exit codes: 0 all that was there was measured; 1 a peer that was there did not finish; 2 the
options are wrong; 130 Ctrl-C. A peer that is not installed has a row that says so.
"""


def main() -> int:
    """Measure what the options name; return the exit code."""
    options = _options()
    kinds, peers = _chosen(options.only)
    rounds = options.rounds or (3 if options.quick else 5)
    pace = Pace(rounds, 0.05, 30.0) if options.quick else Pace(rounds, 0.4, 60.0)
    # Before the first line: while classes are made, Python 3.11 turns Ctrl-C into another error.
    BY_NAME["urds"].missing()
    found = conditions()
    place = {**machine(), **told(found)}
    width = max(map(len, place))
    print("\n".join(f"{name:<{width}}  {value}" for name, value in place.items()), flush=True)
    tables: list[Table] = []
    failed = False
    for work in works(options.sizes):
        names = [peer.name for peer in ALL if peer.fits(work.kind, work.payload_bytes)]
        names = [name for name in names if name in peers]
        if work.kind.value in kinds and names:
            table, broken = _measure(work, names, pace)
            failed |= broken
            tables.append(_show(table))
    if memory.KIND in kinds:
        table, broken = memory.measure(min(pace.rounds, 3), limit_s=pace.limit_s)
        failed |= broken
        tables.append(_show(table))
    if node_costs.KIND in kinds:
        of_nodes, broken = node_costs.measure(min(pace.rounds, 3), limit_s=pace.limit_s)
        failed |= broken
        tables += map(_show, of_nodes)
    if node_pauses.KIND in kinds:
        of_pauses, broken = node_pauses.measure(pace.rounds, limit_s=pace.limit_s)
        failed |= broken
        tables += map(_show, of_pauses)
    if fairness.KIND in kinds:
        of_fairness, broken = fairness.measure(pace.rounds, limit_s=pace.limit_s)
        failed |= broken
        tables += map(_show, of_fairness)
    if dask_costs.KIND in kinds:
        of_dask, broken = dask_costs.measure(min(pace.rounds, 3), limit_s=pace.limit_s)
        failed |= broken
        tables += map(_show, of_dask)
    place["cache line at the end"] = told_after(found)
    print(f"\ncache line at the end  {place['cache line at the end']}", flush=True)
    report = Report("Side by side on one machine", place, tuple(tables))
    if options.json:
        report.write(options.json)
    if options.plots:
        from plots import draw

        draw(report.tables, options.plots)
    return int(failed)


def _show(table: Table) -> Table:
    print(f"\n{render(table)}", flush=True)
    return table


def _options() -> argparse.Namespace:
    names = ", ".join([*_kind_names(), *BY_NAME])
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=_rounds, help="measurements of each row (5; --quick: 3)")
    parser.add_argument("--only", type=_names, default=(), metavar="A,B", help=f"of {names}")
    parser.add_argument("--sizes", type=_sizes, metavar="A,B", help="bytes one way: 64,65536")
    parser.add_argument("--quick", action="store_true", help="short measurements, two minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds here too")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw SVG here; needs matplotlib")
    options = parser.parse_args()
    if options.plots and not find_spec("matplotlib"):
        parser.error("--plots needs matplotlib, which is not installed; `make bench` has it")
    return options


def _kind_names() -> list[str]:
    others = (memory, node_costs, node_pauses, fairness, dask_costs)
    return [*(kind.value for kind in Kind), *(one.KIND for one in others)]


def _rounds(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= _ROUNDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not in 1 to {_ROUNDS_MAX}")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = set(names) - BY_NAME.keys() - set(_kind_names())
    if unknown:
        raise argparse.ArgumentTypeError(f"no peer and no work: {', '.join(sorted(unknown))}")
    return names


def _sizes(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    for one in sizes:
        if not one.isdigit() or not 1 <= int(one) <= 1 << 20:
            raise argparse.ArgumentTypeError(f"{one!r} is not in 1 to {1 << 20} bytes")
    return tuple(map(int, sizes))


def _chosen(only: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """Return kinds and peers; all of the one that `only` does not name."""
    kinds = set(only) & set(_kind_names())
    return kinds or set(_kind_names()), set(only) & BY_NAME.keys() or set(BY_NAME)


def _measure(work: Work, names: list[str], pace: Pace) -> tuple[Table, bool]:
    """Return the table of one work, and whether a peer that was there did not finish."""
    rows = {
        name: Row(name, BY_NAME[name].label, problem=BY_NAME[name].missing() or "")
        for name in names
    }
    cpus = processors(work.placement)
    for row in rows.values() if cpus is None else ():
        row.problem = row.problem or "left out: this machine has one vCPU"
    openers = {
        name: partial(Pair, name, work, cpus, limit_s=pace.limit_s)
        for name, row in rows.items()
        if cpus is not None and not row.problem
    }
    measure(work, rows, openers, pace)
    table = tabulate(work, rows, goals_for(work), plane())
    return table, any(row.failed for row in rows.values())


if __name__ == "__main__":
    try:
        with TemporaryDirectory(prefix="urds-bench-") as folder:
            os.environ[FOLDER_VARIABLE] = folder
            sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; all processes are ended", file=sys.stderr)
        sys.exit(_INTERRUPTED)
