"""Compare the working tree with another commit: processor time per message, both builds in turn.

    make bench-compare BASE=main~5
    python benches/compare.py HEAD~1 --only native --rounds 3
    python benches/compare.py 1a2b3c4 --only rds_one_way_64,verbs --json compare.json

Both builds get an environment below .bench-compare, with the compiled plane where there is cargo;
the base is a git worktree there. benches/compare_worker.py measures one row in fresh processes,
round by round, the builds alternating, so that other load hits both. A row is the median of its
rounds; its spread is the interquartile range in per cent of the median, of the build that scatters
more.

Exit codes: 0 no row is worse; 1 a row is worse by more than 3 % and by more than its spread;
2 an option is wrong, or a build or a row failed; 130 after Ctrl-C.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".bench-compare"
WORKER = Path(__file__).with_name("compare_worker.py")
WORSE_PERCENT = 3.0
ROW_S_MAX = 120
BUILD_S_MAX = 1200


@dataclass(frozen=True, slots=True)
class Row:
    """One work on one plane, and how many messages take some 0.4 s of processor time."""

    work: str
    plane: str
    messages: int

    @property
    def name(self) -> str:
        """Return the name in the table and for `--only`."""
        return f"{self.plane}/{self.work}"


# Rsockets, verbs and uDAPL are Python on either plane.
ROWS = (
    Row("rds_one_way_64", "python", 120_000),
    Row("rds_one_way_1k", "python", 70_000),
    Row("rds_one_way_64k", "python", 5_000),
    Row("rds_round_trip_64", "python", 7_000),
    Row("rds_asyncio_round_trip_64", "python", 3_000),
    Row("rds_one_way_64", "native", 800_000),
    Row("rds_one_way_1k", "native", 400_000),
    Row("rds_one_way_64k", "native", 20_000),
    Row("rds_round_trip_64", "native", 15_000),
    Row("rds_asyncio_round_trip_64", "native", 6_000),
    Row("rds_shm_one_way_64", "native", 800_000),
    Row("rds_shm_round_trip_64", "native", 20_000),
    Row("rds_rdma_one_way_64", "python", 4_000),
    Row("rds_rdma_one_way_64", "native", 200_000),
    Row("rsocket_stream_64", "python", 40_000),
    Row("rsocket_stream_64k", "python", 5_000),
    Row("verbs_send_64", "python", 8_000),
    Row("dat_send_64", "python", 3_000),
    Row("dat_recv_query", "python", 400_000),
)


@dataclass(frozen=True, slots=True)
class Build:
    """One of the two that are compared."""

    label: str
    source: Path
    venv: Path


@dataclass(slots=True)
class Figures:
    """The rounds of one row, in nanoseconds per message. Not frozen: rounds add to it."""

    base_ns: list[float] = field(default_factory=list)
    tree_ns: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Return the working tree's median in multiples of the base's."""
        return statistics.median(self.tree_ns) / statistics.median(self.base_ns)

    @property
    def spread_percent(self) -> float:
        """Return how far the rounds of one build scatter, of the build that scatters more."""
        return max(map(spread_percent, (self.base_ns, self.tree_ns)))

    @property
    def is_worse(self) -> bool:
        """Tell whether the working tree needs more, beyond the limit and the spread."""
        return (self.ratio - 1) * 100 > max(WORSE_PERCENT, self.spread_percent)


def spread_percent(rounds: Sequence[float]) -> float:
    """Return the interquartile range in per cent of the median; 0 of a single round."""
    if len(rounds) < 2:
        return 0.0
    first, _, third = statistics.quantiles(rounds, n=4, method="inclusive")
    return (third - first) / statistics.median(rounds) * 100


def parsed(line: str) -> float:
    """Return nanoseconds per message of the worker's line. Raises ValueError for another line."""
    try:
        answer = json.loads(line)
        return float(answer["spent_ns"] / answer["messages"])
    except (KeyError, TypeError, ZeroDivisionError, json.JSONDecodeError) as error:
        raise ValueError(f"the worker said {line.strip()[:200]!r}") from error


def chosen(only: str) -> list[Row]:
    """Return the rows that hold one of the words, separated by commas. Raises ValueError."""
    words = [word for word in only.split(",") if word]
    for word in words:
        if not any(word in row.name for row in ROWS):
            raise ValueError(f"--only {word}: no row has it; there are {', '.join(names())}")
    return [row for row in ROWS if not words or any(word in row.name for word in words)]


def names() -> list[str]:
    """Return the names of all rows."""
    return [row.name for row in ROWS]


def table(measured: dict[str, Figures]) -> str:
    """Return the table, aligned, and a sentence that sums it up."""
    lines = [("row", "base ns", "tree ns", "ratio", "spread", "")]
    for name, figures in measured.items():
        base_ns, tree_ns = statistics.median(figures.base_ns), statistics.median(figures.tree_ns)
        verdict = "WORSE" if figures.is_worse else ""
        lines.append(
            (name, f"{base_ns:,.0f}", f"{tree_ns:,.0f}", f"{figures.ratio:.3f}",
             f"{figures.spread_percent:.1f} %", verdict)
        )  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    worse = sum(figures.is_worse for figures in measured.values())
    said = f"{worse} of {len(measured)} rows worse" if worse else "no row worse"
    return "\n".join([*text, f"{said} (by more than {WORSE_PERCENT:g} % and its spread)"])


class Failed(Exception):
    """A build or a row failed; the text says which."""


def run(command: Sequence[str], *, cwd: Path, patience_s: int, **settings: str) -> str:
    """Run a command in a session of its own; return its output. Raises Failed."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("URDS_") and name not in {"PYTHONPATH", "VIRTUAL_ENV"}
    }
    process = subprocess.Popen(
        command, cwd=cwd, env=environment | settings, start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command)}: not done after {patience_s} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise Failed(f"{' '.join(command)}: exit code {process.returncode}\n{(out + err)[-2000:]}")
    return out


def say(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def builds(base: str) -> tuple[Build, Build]:
    """Return the base's build and the working tree's, made where they are not there yet."""
    git = ["git", "-C", str(ROOT)]
    commit = run([*git, "rev-parse", "--verify", f"{base}^{{commit}}"], cwd=ROOT, patience_s=10)
    commit = commit.strip()[:12]
    source = PLACE / f"{commit}"
    if not (source / "pyproject.toml").exists():
        run([*git, "worktree", "prune"], cwd=ROOT, patience_s=60)
        run([*git, "worktree", "add", "--detach", str(source), commit], cwd=ROOT, patience_s=60)
        crates = ROOT / "native" / "target"
        if crates.is_dir():  # unchanged crates need not be compiled again
            copy = PLACE / "target.part"  # a copy that was interrupted must not look whole
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(crates, copy, symlinks=True)
            copy.rename(source / "native" / "target")
    pair = (
        Build(f"base {commit}", source, PLACE / f"{commit}-venv"),
        Build("working tree", ROOT, PLACE / "tree-venv"),
    )
    for build in pair:
        say(f"Building {build.label}")
        at = ["--at", str(build.venv)]
        python = [sys.executable]
        environment = [*python, str(build.source / "tools" / "environment.py"), *at, "build"]
        run(environment, cwd=build.source, patience_s=BUILD_S_MAX)
        native = [*python, "-m", "tools.native", "build", "--optional", *at]
        run(native, cwd=build.source, patience_s=BUILD_S_MAX)
    return pair


def has_native(build: Build) -> bool:
    """Tell whether the compiled plane is in a build's environment."""
    try:
        run([str(build.venv / "bin" / "python"), "-c", "import urds_native"],
            cwd=build.source, patience_s=60)  # fmt: skip
    except Failed:
        return False
    return True


def measure(build: Build, row: Row) -> float:
    """Return what one round of a row takes, in nanoseconds per message."""
    command = [str(build.venv / "bin" / "python"), str(WORKER), row.work, str(row.messages)]
    out = run(command, cwd=PLACE, patience_s=ROW_S_MAX, URDS_IMPL=row.plane)
    source = re.search(r'"from": "(.*?)/src/urds/', out)
    if source is None or Path(source[1]) != build.source:
        raise Failed(f"{build.label} was not measured but {out.strip()}")
    return parsed(out)


def compare(pair: tuple[Build, Build], rows: Sequence[Row], rounds: int) -> dict[str, Figures]:
    """Measure all rows, round by round; the builds alternate in beginning."""
    measured = {row.name: Figures() for row in rows}
    for number in range(rounds):
        for row in rows:
            figures = measured[row.name]
            both = list(zip(pair, (figures.base_ns, figures.tree_ns), strict=True))
            for build, place in both if number % 2 == 0 else reversed(both):
                place.append(measure(build, row))
            shown = f"{figures.base_ns[-1]:,.0f} ns, {figures.tree_ns[-1]:,.0f} ns"
            say(f"round {number + 1} of {rounds}: {row.name}: {shown}")
    return measured


def main() -> int:
    """Carry out the command line; return the exit code."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=7, help="of each row; 7")
    parser.add_argument(
        "--only", default="", metavar="WORDS",
        help=f"rows whose name holds one of them: {', '.join(names())}",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds there")
    options = parser.parse_args()
    try:
        rows = chosen(options.only)
        if not 1 <= options.rounds <= 100:
            raise ValueError(f"--rounds {options.rounds}, from 1 to 100")
    except ValueError as error:
        parser.error(str(error))
    try:
        PLACE.mkdir(exist_ok=True)
        pair = builds(options.base)
        if not all(map(has_native, pair)):
            say("The compiled plane is not in both builds: its rows are left out")
            rows = [row for row in rows if row.plane != "native"]
        measured = compare(pair, rows, options.rounds)
    except (Failed, ValueError) as error:
        say(f"bench-compare: {error}")
        return 2
    except KeyboardInterrupt:
        say("\nInterrupted; all that was started has ended.")
        return 128 + signal.SIGINT
    print(table(measured))
    if options.json:
        options.json.write_text(json.dumps(document(pair, measured), indent=1) + "\n", "utf-8")
    return int(any(figures.is_worse for figures in measured.values()))


def document(pair: tuple[Build, Build], measured: dict[str, Figures]) -> dict[str, object]:
    """Return all figures as JSON has them."""
    rows = {
        name: asdict(figures)
        | {"ratio": round(figures.ratio, 4), "spread_percent": round(figures.spread_percent, 2)}
        | {"is_worse": figures.is_worse}
        for name, figures in measured.items()
    }
    return {"base": pair[0].label, "unit": "ns of processor time per message", "rows": rows}


if __name__ == "__main__":
    sys.exit(main())
