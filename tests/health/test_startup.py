"""`import urds` is cheap: the standard library only, no heavy part of it, under 30 ms."""

import json
import subprocess
import sys

from tests.health.sources import ROOT

IMPORT_MS_MAX = 30
ATTEMPTS_MAX = 12
# Each of these costs milliseconds or a thread pool; what needs one imports it when used.
HEAVY = {
    "asyncio", "concurrent.futures", "ctypes", "email", "http", "json", "logging",
    "multiprocessing", "ssl", "subprocess", "tempfile", "tomllib", "trio", "unittest", "urllib",
}  # fmt: skip

PROGRAM = """
import json, sys, time
sys.path.insert(0, {source!r})
before = set(sys.modules)
started_ns = time.process_time_ns()
import urds
cost_ns = time.process_time_ns() - started_ns
print(json.dumps([cost_ns, sorted(set(sys.modules) - before - {{"json"}})]))
"""


def import_once() -> tuple[float, list[str]]:
    """Import `urds` in a fresh interpreter; return the processor time in ms and the new modules."""
    program = PROGRAM.format(source=str(ROOT / "src"))
    command = [sys.executable, "-I", "-S", "-c", program]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    cost_ns, names = json.loads(run.stdout)
    return cost_ns / 1e6, names


def test_import_takes_less_than_30_ms() -> None:
    """Takes the best of a dozen, in processor time: other work makes an import slow, never fast."""
    best_ms = import_once()[0]
    for _ in range(ATTEMPTS_MAX):
        if best_ms < IMPORT_MS_MAX:
            break
        best_ms = min(best_ms, import_once()[0])
    print(f"import urds: {best_ms:.1f} ms")
    assert best_ms < IMPORT_MS_MAX


def test_import_needs_the_standard_library_only() -> None:
    """Runs without site-packages, so a third-party import would fail by itself."""
    names = import_once()[1]
    foreign = {name.split(".")[0] for name in names} - {"urds"} - set(sys.stdlib_module_names)
    assert foreign == set()


def test_import_leaves_heavy_modules_alone() -> None:
    assert HEAVY & set(import_once()[1]) == set()
