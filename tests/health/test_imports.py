"""Which module may import which: `[tool.importlinter]` in pyproject.toml, and what that cannot say.

By hand here: modules of the standard library in cores, packages behind an extra, `logging`.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.health.sources import PACKAGE, ROOT, Import, Module, imports, modules
from tools.structure import cycles

# A core is a value machine: bytes, calls and `now_ns` go in, bytes and events come out.
# The Python plane has one inside; the rest of it is the shell with locks and sockets.
CORES = (
    *("rds.wire", "rds.control", "verbs.engine", "verbs.cm"),
    *("rsocket.wire", "rsocket.core"),
    *(f"dask.{part}" for part in ("wire", "stream", "session", "hub")),
    *(f"rds.plane.python.{part}" for part in ("path", "receiver", "sender", "inbox")),
    *(f"rds.transports.rdma.{part}" for part in ("core", "sending", "receiving", "credits")),
    *(f"rds.transports.rdma.{part}" for part in ("frames", "counters")),
)
NOT_IN_A_CORE = {
    "socket", "select", "selectors", "asyncio", "threading", "time", "random", "os", "logging",
}  # fmt: skip

# The type checker's own names for the standard library's protocols; no module at run time.
STUBS = "_typeshed"

# Extras, each behind the package that needs it; anything else third-party is a mistake.
EXTRAS: dict[str, tuple[str, ...]] = {
    "rich": ("cli",),
    "rich_argparse": ("cli",),
    "argcomplete": ("cli",),
    "trio": ("rds.aio",),
    "dask": ("dask.comm", "cli.dask"),
    "distributed": ("dask.comm", "dask.backend", "dask.local", "dask.faults", "cli.dask"),
    "urds_native": (
        "common.implementation",
        "rds.plane.choose",
        "rds.plane.native",
        "rds.plane.attached",
        "verbs.providers.shm.couriers",
        "verbs.providers.shm.native_adapter",
        "verbs.records",
    ),
}
# The queue of log lines, the log of a process of our own, the command line, and what runs in the
# loop of Dask, as its own comms do.
MAY_LOG = ("common.logs", "common.event_log", "cli", "dask.comm")


def lint_imports(path: Path) -> "subprocess.CompletedProcess[str]":
    """Run import-linter over the package in `path`."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(path)}, check=False,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def wrong(module: Module) -> list[str]:
    """Return imports from outside the package that a module may not have, as readable lines."""
    return [
        f"{module.place}:{item.line}: {module.name} may not import {item.target}"
        for item in imports(module)
        if not _allowed(module, item)
    ]


def _allowed(module: Module, item: Import) -> bool:
    top = item.target.split(".")[0]
    if top == "urds" or (top == STUBS and item.for_types_only):
        return True
    if top == "logging" and not _is_in(module.name, MAY_LOG):
        return False  # a lock may be held, and a handler is code of the program
    if top in sys.stdlib_module_names:
        in_core = top in NOT_IN_A_CORE and not item.for_types_only
        return not (in_core and _is_in(module.name, CORES))
    return _is_in(module.name, EXTRAS.get(top, ()))


def _is_in(name: str, packages: Iterable[str]) -> bool:
    inner = name.removeprefix("urds.")
    return any(inner == package or inner.startswith(package + ".") for package in packages)


def test_import_linter_finds_nothing() -> None:
    done = lint_imports(ROOT / "src")
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_import_against_the_layers_and_a_new_cycle_are_found(tmp_path: Path) -> None:
    """Adds both to a copy of the package; the cycle is made of an import for types alone."""
    copy = shutil.copytree(PACKAGE, tmp_path / "urds", ignore=shutil.ignore_patterns("*.pyc"))
    with (copy / "common" / "errors.py").open("a") as file:
        file.write("\nfrom urds.verbs import engine\n")
    with (copy / "rds" / "wire" / "header.py").open("a") as file:
        file.write("\nif TYPE_CHECKING:\n    from urds.rds.wire import info\n")
    with (copy / "rds" / "wire" / "info.py").open("a") as file:
        file.write("\nfrom urds.rds.wire import header\n")
    done = lint_imports(tmp_path)
    said = " ".join(done.stdout.split())
    assert done.returncode == 1, said
    assert "urds.common is not allowed to import urds.verbs" in said
    assert "urds.rds.wire: 1 imports close cycles, not 0." in said


def test_imports_from_outside_stand_where_they_may() -> None:
    assert [line for module in modules() for line in wrong(module)] == []


def test_a_wrong_import_from_outside_is_found() -> None:
    """Shows that the check can fail: a core that reads the clock, a stray package, a log."""
    text = "import time\nimport numpy\nimport logging\nimport struct\nimport urds\n"
    place = PACKAGE / "rds/control/state.py"
    module = Module("urds.rds.control.state", place, text, ast.parse(text))
    assert [line.rsplit(" ", 1)[1] for line in wrong(module)] == ["time", "numpy", "logging"]


def test_each_package_that_a_rule_names_is_there() -> None:
    known = {module.name for module in modules()}
    named = {*CORES, *MAY_LOG, *(package for packages in EXTRAS.values() for package in packages)}
    assert {name for name in named if f"urds.{name}" not in known} == set()


def test_a_cycle_is_found_with_all_its_files() -> None:
    arrows = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert cycles(arrows) == [["a", "b", "c"], ["d", "e"]]
    assert cycles({"a": {"b"}, "b": set()}) == []


def test_layers_ask_an_adapter_for_what_is_the_engine_s() -> None:
    """Keys, queue pairs and completion queues are made by adapters alone."""
    made = {"QueuePair", "CompletionQueue"}
    found = [
        f"{module.place}:{node.lineno}: {ast.unparse(node)[:60]}"
        for module in modules()
        if not module.name.startswith(("urds.verbs.engine.", "urds.verbs.providers."))
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Attribute) and ast.unparse(node).endswith("adapter.keys"))
        or (isinstance(node, ast.Call) and ast.unparse(node.func) in made)
    ]
    assert found == []
