"""Run the tests that need neither root nor a virtual machine: the code of `make test`.

    python -m tools.suite quick     a smoke of each system
    python -m tools.suite check     what computes, and the first seeds of each simulation
    python -m tools.suite test      every test on one plane, the other plane's own, Rust's
    python -m tools.suite beyond    what `test` leaves out: the other plane, all seeds, all examples

`test` and `beyond` together are `make test-all`, and no case is in both but those of hypothesis,
which get ten times the examples the second time. The compiled plane is the one under test where
it can be built. Each part writes a JUnit file to `.reports`; a part that ends with a failure does
not keep the others from running, and the exit code is the worst of all.

Each file of tests has addresses of its own, so files run beside each other (`--dist loadfile`), the
long ones first (`tests/support/order.py`); the tests marked `rates` compare what several senders
get of a machine, and run last, one by one.
"""

import argparse
import math
import os
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools import native

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / ".reports"
PYTHON, NATIVE = "python", "native"
SEEDS = 20  # of each simulation, in `make test`
WORKERS = 4  # on two cores: most tests wait for another process, a timer or a thread
COLLECTION_S = 60  # with less time left a part would hardly begin
MAXFAIL = 40  # a broken plane need not wait for all of its tests
LEFT_OUT = "not interop and not namespaces"
SMOKE = (
    "tests/cli/test_info.py",
    "tests/rds/transports/tcp/test_wire.py",
    "tests/rds/aio/test_two_transports.py",
    "tests/rds/transports/rdma/test_rules_operations.py",
    "tests/rds/sockets/test_cpython_cases.py",
    "tests/verbs/test_conformance_transfer.py",
    "tests/rsocket/test_socket_datagrams.py",
    "tests/rsocket/test_calls.py",
    "tests/dat/test_transfers.py",
    "tests/rds/wire/test_header.py",
    "tests/vectors",
)
# Tests of cores and values: they compute and open no socket.
UNIT = (
    "tests/common",
    *(f"tests/rds/{path.name}" for path in sorted((ROOT / "tests" / "rds").glob("test_*.py"))),
    "tests/rds/wire",
    "tests/rds/control",
    "tests/rds/runtime",
    "tests/rds/transports/rdma_core",
    *(f"tests/rds/plane/{one.name}" for one in sorted((ROOT / "tests/rds/plane").glob("test_*"))),
    "tests/verbs/engine",
    "tests/verbs/cm",
    "tests/verbs/providers",
    "tests/rsocket/dgram",
    "tests/rsocket/stream",
    "tests/rsocket/unit",
    "tests/rsocket/wire",
)
COMPUTING = (*UNIT, "tests/vectors", "tests/property", "tests/health", "tests/sim")
# Units of the planes, which run on both in `test`.
EACH_PLANE = ("tests/rds/plane", "tests/rds/runtime")
# Tests that use a plane, or an engine of verbs: on the other one they run in `beyond`.
SEES_A_PLANE = (
    "tests/rds/aio",
    "tests/rds/sockets",
    "tests/rds/transports",
    "tests/faults",
    "tests/cli",
    "tests/verbs",
    "tests/rsocket",
    "tests/dat",
)
# Tests of sockets and tasks that also run over nodes, other processes that have their addresses.
OVER_NODES = (
    "tests/rds/node/test_attached.py",
    "tests/rds/node/test_node_differences.py",
    "tests/rds/sockets",
    "tests/rds/aio",
    "tests/rds/fairness/test_over_a_node.py",
)
# Tests with seeds; of the folders above all seeds run on the other plane.
SEEDED = ("tests/sim", "tests/parity/test_random_crossings.py", "tests/parity/test_rdma_frames.py")
# What is short in `make test`.
LONGER = {"TEST_CANCELS": "1000", "TEST_REFILLED_MESSAGES": "12000"}
HYPOTHESIS = ("tests/property", "tests/verbs", "tests/dat")


@dataclass(frozen=True)
class Part:
    """One run of pytest."""

    name: str  # of its JUnit file
    plane: str
    paths: tuple[str, ...] = ("tests",)
    marks: str = LEFT_OUT
    options: tuple[str, ...] = ()
    workers: int = WORKERS
    limit_s: int = 1800  # its tests end then, and what they found is reported
    may_be_cut: bool = False  # more of the same: its end at the limit is no failure
    variables: dict[str, str] = field(default_factory=dict)


def quick(plane: str) -> Iterator[Part]:
    """Yield the smoke."""
    marks = f"{LEFT_OUT} and not slow and not rates"
    yield Part("quick", plane, SMOKE, marks, workers=2)


def check(plane: str) -> Iterator[Part]:
    """Yield what computes."""
    marks = f"{LEFT_OUT} and not slow and not rates"
    yield Part("check", plane, COMPUTING, marks, ("--seeds", ":10"), workers=2)


def test(plane: str) -> Iterator[Part]:
    """Yield every test on one plane, then what the other plane has of its own."""
    seeds = ("--seeds", f":{SEEDS}")
    yield Part("test", plane, marks=f"{LEFT_OUT} and not rates", options=seeds)
    if plane == NATIVE:
        yield Part("test-python", PYTHON, EACH_PLANE)
        files = marked("reference", *SEES_A_PLANE)
        yield Part("test-reference", PYTHON, files, f"{LEFT_OUT} and reference")
    files = marked("rates", "tests")
    yield Part("test-rates", plane, files, f"{LEFT_OUT} and rates", workers=0)


def marked(name: str, *folders: str) -> tuple[str, ...]:
    """Return the files that have a mark: pytest takes half a minute to look for it in all."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("test_*.py")]
    has = f"pytest.mark.{name}"
    return tuple(str(one.relative_to(ROOT)) for one in sorted(found) if has in one.read_text())


def beyond(plane: str) -> Iterator[Part]:
    """Yield the other plane in full, sockets over nodes, the other seeds, and more examples."""
    if plane == NATIVE:
        marks = f"{LEFT_OUT} and not rates and not reference"
        yield Part("beyond-python", PYTHON, SEES_A_PLANE, marks, variables=LONGER)
        attached = {"TEST_BACKEND": "attached", **LONGER}
        yield Part("beyond-attached", NATIVE, OVER_NODES, marks, variables=attached)
    seeds = ("--seeds", f"{SEEDS}:")
    yield Part("beyond-seeds", plane, SEEDED, options=seeds, may_be_cut=True)
    thorough = {"TEST_HYPOTHESIS": "thorough"}
    yield Part(
        "beyond-examples", plane, HYPOTHESIS, "hypothesis", variables=thorough, may_be_cut=True
    )


SUITES = {"quick": quick, "check": check, "test": test, "beyond": beyond}


def has_failed(report: Path) -> bool:
    """Return whether a test failed by a JUnit file, or whether there is none."""
    try:
        suites = ElementTree.parse(report).iter("testsuite")
    except (OSError, ElementTree.ParseError):
        return True
    return any(int(suite.get(name, 0)) > 0 for suite in suites for name in ("failures", "errors"))


def run(part: Part, pytest: list[str], end_s: float) -> int:
    """Run one part, until `end_s` of the monotonic clock at most.

    Returns pytest's exit code. Ended at a limit, it is 1; where there is only more of the same, it
    is 1 if a test had failed.
    """
    report = REPORTS / f"{part.name}.xml"
    command = [*pytest, "-m", part.marks, f"--junitxml={report}"]
    if part.workers:
        command += ["-n", str(part.workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    command += [f"--maxfail={MAXFAIL}", *part.options, *part.paths]
    print(f"{part.name}: {', '.join(part.paths)} on the {part.plane} plane", flush=True)
    started_s = time.monotonic()
    limit_s = min(part.limit_s, max(end_s - started_s, 0))
    if part.may_be_cut and limit_s < COLLECTION_S:
        print(f"{part.name}: no time is left for it", flush=True)
        return 0
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "URDS_IMPL": part.plane, **part.variables}
    )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        print(f"{part.name}: ended after {limit_s:.0f} s", flush=True)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        code = int(not part.may_be_cut or has_failed(report))
    print(f"{part.name}: {time.monotonic() - started_s:.0f} s", flush=True)
    return code


def prepare(suite: str, venv: Path) -> tuple[str, int]:
    """Build the compiled plane and test the crates; return the plane under test, an exit code."""
    if suite in ("quick", "check"):
        return (NATIVE if native.is_ready(venv) else PYTHON), 0
    compiling = None if native.is_ready(venv) else _compile_tests(venv)
    code = _native("build", "--optional")
    if compiling is not None:
        compiling.wait()
    ready = native.is_ready(venv)
    if not ready:
        # Its absence has been counted; Python's tests need not fail for it one by one.
        os.environ.pop("TEST_NATIVE_REQUIRED", None)
        print("Nothing is tested on the compiled plane: there is none.", flush=True)
    if suite == "test":
        (REPORTS / "rust.xml").unlink(missing_ok=True)
        # Sources that do not build as a module may still be tested.
        if ready or code:
            code = max(code, _native("test", "--optional", "--junit", str(REPORTS / "rust.xml")))
        if ready:
            code = max(code, _native("rules", "--optional"))
    return (NATIVE if ready else PYTHON), code


def _compile_tests(venv: Path) -> "subprocess.Popen[bytes]":
    """Begin to have pytest compile all tests: in a fresh checkout each of the workers would.

    Building the plane uses one processor most of the time.
    """
    return subprocess.Popen(
        [str(venv / "bin" / "python"), "-m", "pytest", "--collect-only", "-qq", "tests"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "URDS_IMPL": PYTHON, "TEST_NATIVE_REQUIRED": ""},
    )  # fmt: skip


def _native(*arguments: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "tools.native", *arguments], check=False, cwd=ROOT
    ).returncode


def main() -> int:
    """Run the suites; return the worst exit code."""
    parser = argparse.ArgumentParser(description="Run tests of this machine.")
    parser.add_argument("suites", choices=SUITES, nargs="+")
    parser.add_argument("--at", type=Path, default=ROOT / ".venv", help="the environment")
    parser.add_argument("--plane", choices=(PYTHON, NATIVE), help="the plane under test")
    parser.add_argument("--pytest", default="", help="options for pytest, in one word")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="end all tests after that")
    options = parser.parse_args()
    end_s = time.monotonic() + options.limit_s
    REPORTS.mkdir(exist_ok=True)
    pytest = [str(options.at / "bin" / "python"), "-m", "pytest", "-q"]
    pytest += shlex.split(options.pytest)
    worst = 0
    for suite in options.suites:
        for old in REPORTS.glob(f"{suite}*.xml"):
            old.unlink()
        plane, code = prepare(suite, options.at.absolute())
        worst = max(worst, code)
        for part in SUITES[suite](options.plane or plane):
            worst = max(worst, run(part, pytest, end_s))
    return worst


if __name__ == "__main__":
    sys.exit(main())
