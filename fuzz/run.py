"""Fuzz the targets with atheris, one process per target.

    make fuzz
    .venv-fuzz/bin/python fuzz/run.py --seconds 3600 --jobs 2 header
    .venv-fuzz/bin/python fuzz/run.py --keep

A finding ends its target with a report; the bytes that caused it lie in `fuzz/findings/`. New
bytes that reached new code are collected in `fuzz/working/TARGET/`; `--keep` minimises them into
`fuzz/corpus/`, which is what `make test` runs. With `--plain` no atheris is needed: seeds and
corpus are changed at random, for Pythons that it does not support.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 300
BYTES_MAX = 16384
RUN_S_MAX = 10  # one input that takes longer is a finding
_EXECUTIONS = re.compile(r"(?:stat::number_of_executed_units: |^executions: )(\d+)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the process of one target ended."""

    name: str
    code: int
    executions: int
    cpu_s: float

    def __str__(self) -> str:
        found = "finding, see above" if self.code else "nothing found"
        return f"{self.name}: {found}, {self.executions} executions, {self.cpu_s:.0f} s of CPU time"


def main() -> int:
    """Run the targets named, all by default; return 1 if one of them found something."""
    parser = argparse.ArgumentParser(description="Fuzz parsers and machines.")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="time for each target")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--plain", action="store_true", help="random changes, without atheris")
    parser.add_argument("--keep", action="store_true", help="minimise what was collected, run none")
    parser.add_argument("--one", choices=("run", "merge", "inner"), help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="fuzz/targets.py has them")
    options, others = parser.parse_known_args()
    sys.path[0] = str(ROOT)  # `fuzz` is a package for tests and for us
    if options.one == "merge":
        return _merge_one(options.targets[0], options.targets[1])
    if options.one == "inner":  # started by libFuzzer, with arguments of its own
        return _fuzz(options.targets[0], [*others, *options.targets[1:]])
    if others:
        parser.error(f"unknown: {' '.join(others)}")
    if options.one:
        run = _run_plain if options.plain else _run
        return run(options.targets[0], options.seconds)
    # Here, not above: a target's own process must import the parsers under instrumentation.
    from fuzz.targets import TARGETS

    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}: one of {', '.join(TARGETS)}")
    work = _merge if options.keep else _start
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(lambda name: work(name, options), options.targets or TARGETS)
        found = [print(outcome, flush=True) or outcome.code for outcome in outcomes]
    return bool(any(found))


# -- the parent process


def _start(name: str, options: argparse.Namespace) -> Outcome:
    arguments = ["--seconds", str(options.seconds), *["--plain"] * options.plain]
    return _child(name, "run", *arguments, name)


def _merge(name: str, options: argparse.Namespace) -> Outcome:
    """Keep the fewest collected inputs of a target that reach the same code."""
    from fuzz import keeping

    with tempfile.TemporaryDirectory() as folder:
        outcome = _child(name, "merge", name, folder)
        inputs = [path.read_bytes() for path in Path(folder).iterdir()]
    if not outcome.code:
        print(f"{name}: {keeping.keep(name, inputs)} of {len(inputs)} kept", flush=True)
    return outcome


def _child(name: str, work: str, *arguments: str) -> Outcome:
    """Run one target in a process of its own; pass its output on."""
    command = [sys.executable, __file__, "--one", work, *arguments]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace")
    executions = 0
    assert child.stderr is not None
    with child.stderr as lines:
        for line in lines:
            sys.stderr.write(line)
            said = _EXECUTIONS.search(line)
            executions = int(said[1]) if said else executions
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return Outcome(name, child.returncode, executions, usage.ru_utime + usage.ru_stime)


# -- the process of one target


def _run(name: str, seconds: int) -> int:
    from fuzz import keeping

    limits = [f"-max_total_time={seconds}", f"-max_len={BYTES_MAX}", f"-timeout={RUN_S_MAX}"]
    artifacts = f"-artifact_prefix={keeping.FINDINGS}/{name}-"
    return _fuzz(name, [*limits, "-print_final_stats=1", artifacts, str(keeping.WORKING / name)])


def _merge_one(name: str, folder: str) -> int:
    """Have libFuzzer put into a folder what is worth keeping; it starts `--one inner` for that."""
    from fuzz import keeping

    return _fuzz(name, ["-merge=1", f"-max_len={BYTES_MAX}", folder, str(keeping.WORKING / name)])


def _fuzz(name: str, arguments: list[str]) -> int:
    """Run libFuzzer with its own arguments."""
    import atheris

    with atheris.instrument_imports(include=["urds"]):
        from fuzz import keeping
        from fuzz.targets import SEEDS, TARGETS
        from urds.common.errors import WireError
    target = TARGETS[name]
    keeping.prepare(name, SEEDS[name])

    def try_bytes(data: bytes) -> None:
        try:
            target(data)
        except WireError:
            return

    # By these words libFuzzer starts the process again, where it wants one of its own.
    itself = f"{sys.executable} {__file__} --one inner {name}"
    atheris.Setup([itself, *arguments], try_bytes)
    atheris.Fuzz()
    return 0


def _run_plain(name: str, seconds: int) -> int:
    """Change seeds and corpus at random until time is over or something is found."""
    from fuzz import keeping
    from fuzz.mutation import mutate
    from fuzz.targets import SEEDS, TARGETS
    from urds.common.errors import WireError

    folder = keeping.prepare(name, SEEDS[name])
    seeds = [path.read_bytes() for path in sorted(folder.iterdir())]
    rng = random.Random()  # another search each time
    end_s, runs, slow = time.monotonic() + seconds, 0, 0
    while (began_s := time.monotonic()) < end_s:
        data = mutate(rng.choice(seeds), seeds, rng)
        try:
            TARGETS[name](data)
        except WireError:
            pass
        finally:
            is_slow = time.monotonic() - began_s > RUN_S_MAX
            slow += is_slow
            if is_slow or sys.exc_info()[0] is not None:
                place = keeping.FINDINGS / f"{name}-{sha256(data).hexdigest()[:16]}"
                place.write_bytes(data)
                print(f"{name}: {place.name}, {time.monotonic() - began_s:.1f} s", flush=True)
        runs += 1
    print(f"executions: {runs}", file=sys.stderr, flush=True)
    return bool(slow)


if __name__ == "__main__":
    sys.exit(main())
