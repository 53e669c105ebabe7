"""Build, test and check the compiled plane below `native/`: the code of `make native`.

    python -m tools.native build               into .venv; exit 1 with the reason if it cannot
    python -m tools.native build --optional    the same for `make test`: says why not, exit 0
    python -m tools.native test --junit FILE   the tests of the Rust crates, `loom` and `fuzz`
    python -m tools.native lint                rustfmt, clippy
    python -m tools.native ready               exit 0 if .venv holds what the sources say
    python -m tools.native found               exit 0 if there is a cargo that can build it

A thing that a machine lacks (cargo, the registry of crates) is one line, and with `--optional` no
failure: the Python plane serves all. `TEST_NATIVE_REQUIRED=1` makes it one. Sources that do not
build, and tests that fail, are failures always. A build leaves a stamp with the digest of all its
sources, and a second one costs nothing. A module of other sources is removed from .venv, for it
would be tested in their place.
"""

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from tools.cargo import ROOT, WORKSPACE, Cargo, Unavailable, fetch, find

REPORTS = ROOT / ".reports"
NEXTEST = ROOT / "tools" / "nextest.toml"
RULES = WORKSPACE / "target" / "broken-rules"
MODELS = WORKSPACE / "loom"
TARGETS = WORKSPACE / "fuzz"
STAMP = ".installed-native"
# What maturin puts beside the module: the libraries for programs in C, and their header.
DATA = WORKSPACE / "urds_native.data"
BACKEND = WORKSPACE / "backend" / "native_backend.py"  # builds them, for pip as well
SUFFIXES = {".rs", ".toml", ".lock", ".py", ".pyi", ".h"}
BUILD_S_MAX = 900
TEST_S_MAX = 600
TARGETS_S_MAX = 600  # a minute of processor time with its build, a tenth of that without
MODELS_S_MAX = 600  # a minute of processor time with its build, a quarter of that without
LINT_S_MAX = 600
SHOWN_LINES = 40
INTERRUPTED = 128 + signal.SIGINT
# The module takes Python's symbols from the process that loads it, so a test program of it cannot
# be linked; Python's tests are its tests.
CRATES = ["--workspace", "--exclude", "urds-native"]


class Broken(Exception):
    """The sources do not build or a tool failed; its output has been printed."""


def main() -> int:
    """Carry out the command line; return the exit code."""
    options = _options()
    try:
        COMMANDS[options.command](options)
    except Unavailable as reason:
        print(f"{MISSING[options.command]}: {reason}.", flush=True)
        required = os.environ.get("TEST_NATIVE_REQUIRED") == "1"
        return 0 if options.optional and not required else 1
    except Broken as error:
        print(error)
        return 1
    except KeyboardInterrupt:
        print(f"\nInterrupted: {options.command} of the compiled plane was ended.", flush=True)
        return INTERRUPTED
    return 0


def _leave(number: int, _: object) -> NoReturn:
    """End by a signal as by Ctrl-C, with all processes of cargo, in a session of its own."""
    sys.exit(128 + number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build and test the compiled plane.")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--at", type=_absolute, default=ROOT / ".venv", help="the environment")
    parser.add_argument("--optional", action="store_true", help="what is missing is no failure")
    parser.add_argument("--junit", type=Path, default=REPORTS / "rust.xml", metavar="FILE")
    return parser.parse_args()


def _absolute(path: str) -> Path:
    """Return a path relative to this folder: cargo and maturin run elsewhere."""
    return Path(path).absolute()


def build(options: argparse.Namespace) -> None:
    """Have the `urds_native` of these sources in the environment."""
    if is_ready(options.at):
        if not options.optional:
            print(f"urds_native of these sources is in {options.at.name}.")
        return
    sources = digest(options.at)  # what changes meanwhile is for the next build
    try:
        cargo = find()
        _install_maturin(options.at)
        fetch(cargo, options.at)
        print("Building the compiled plane, urds_native: about a minute.", flush=True)
        started_s = time.monotonic()
        _run("libraries", cargo, options.at, libraries_command(), BUILD_S_MAX)
        maturin = [str(options.at / "bin" / "maturin"), "develop", "--release"]
        _run("build", cargo, options.at, [*maturin, "--locked", "--offline"], BUILD_S_MAX)
        _see_that_it_loads(options.at)
    except (Unavailable, Broken, KeyboardInterrupt, SystemExit):
        _remove(options.at)
        raise
    _stamp(options.at).write_text(sources, encoding="ascii")
    print(f"urds_native is in {options.at.name} ({time.monotonic() - started_s:.0f} s).")


def libraries_command(target: str = "") -> list[str]:
    """Return the command that has the libraries for programs in C in DATA.

    They are of this machine, or of the target of Rust's that is named.
    """
    return [sys.executable, str(BACKEND), "--offline", *(["--target", target] if target else [])]


def rules(options: argparse.Namespace) -> None:
    """Have the module whose wake-up rules tests break, beside cargo's other output."""
    if not rules_missing(options.at):
        return
    cargo = find()
    fetch(cargo, options.at)
    print("Building the compiled plane whose rules can be broken: half a minute.", flush=True)
    shutil.rmtree(RULES, ignore_errors=True)
    target = WORKSPACE / "target"
    command = [str(cargo.path), "build", "--locked", "--offline", "--profile", "quick"]
    command += ["--target-dir", str(target), "-p", "urds-native", "--features", "broken-rules"]
    _run("rules", cargo, options.at, command, BUILD_S_MAX)
    RULES.mkdir(parents=True)
    shutil.copyfile(target / "quick" / "liburds_native.so", RULES / "urds_native.so")
    (RULES / STAMP).write_text(digest(options.at), encoding="ascii")


def rules_missing(venv: Path) -> str:
    """Return why there is no such module of these sources; nothing if there is one."""
    stamp = RULES / STAMP
    if stamp.exists() and stamp.read_text(encoding="ascii") == digest(venv):
        return ""
    return "no module of these sources can break rules: python -m tools.native rules"


def test(options: argparse.Namespace) -> None:
    """Run the tests of the crates and write their JUnit file.

    cargo-nextest writes it, with each test. Where it is not installed `cargo test` is one case.
    """
    options.junit.unlink(missing_ok=True)
    report = (
        WORKSPACE / "target" / "nextest" / "default" / "rust.xml"
    )  # native/.config/nextest.toml
    report.unlink(missing_ok=True)
    cargo = find()
    fetch(cargo, options.at)
    by_nextest = cargo.can("nextest")
    tool = ["nextest", "run", "--config-file", str(NEXTEST)] if by_nextest else ["test"]
    command = [str(cargo.path), *tool, "--locked", "--offline", "--no-fail-fast", *CRATES]
    print(f"Testing the Rust crates: cargo {tool[0]}.", flush=True)
    code, lines = _said(cargo, options.at, command, TEST_S_MAX)
    options.junit.parent.mkdir(parents=True, exist_ok=True)
    if report.exists():
        shutil.copyfile(report, options.junit)
    else:  # no nextest, nothing compiled, or it took too long
        _write_one_case(options.junit, lines if code else [])
    told = [line for line in lines if re.match(r"\s+Summary |test result: ", line)]
    shown = told or lines[-1:] if code == 0 else lines[-SHOWN_LINES:]
    print("\n".join(shown), flush=True)
    if code:
        raise Broken("Tests of the Rust crates failed.")
    _test_models(cargo, options.at)
    _test_fuzz(cargo, options.at)


def _test_models(cargo: Cargo, venv: Path) -> None:
    """Run `native/loom`: every order of two threads at what no lock guards.

    A workspace of its own, so its crates may be missing where all others are here.
    """
    try:
        fetch(cargo, venv, MODELS)
    except Unavailable as reason:
        print(f"Not run, every order of two threads (native/loom): {reason}.", flush=True)
        return
    print("Testing every order of two threads: native/loom.", flush=True)
    command = [str(cargo.path), "test", "--release", "--locked", "--offline"]
    command += ["--manifest-path", str(MODELS / "Cargo.toml")]
    _run("loom", cargo, venv, command, MODELS_S_MAX)


def _test_fuzz(cargo: Cargo, venv: Path) -> None:
    """Run the targets of `native/fuzz` on made-up bytes and on what was found: no nightly compiler.

    A workspace of its own, as `native/loom` is.
    """
    try:
        fetch(cargo, venv, TARGETS)
    except Unavailable as reason:
        print(f"Not run, what peers say at random (native/fuzz): {reason}.", flush=True)
        return
    print("Testing what peers say at random: native/fuzz.", flush=True)
    command = [str(cargo.path), "test", "--locked", "--offline", "--no-default-features"]
    command += ["--test", "made_up", "--manifest-path", str(TARGETS / "Cargo.toml")]
    _run("fuzz", cargo, venv, command, TARGETS_S_MAX)


def _write_one_case(path: Path, failure: Sequence[str]) -> None:
    case = ElementTree.Element("testcase", classname="rust", name="cargo test")
    if failure:
        said = "\n".join(failure[-SHOWN_LINES:])
        said = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "?", said)  # XML has no control characters
        ElementTree.SubElement(case, "failure").text = said
    suites = ElementTree.Element("testsuites")
    ElementTree.SubElement(suites, "testsuite", name="rust").append(case)
    ElementTree.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def lint(options: argparse.Namespace) -> None:
    """Run rustfmt and clippy."""
    cargo = find()
    here = [tool for tool in ("fmt", "clippy") if cargo.can(tool)]
    program, plain = str(cargo.path), ["--", "--color", "never"]
    if "fmt" in here:
        _run("fmt", cargo, options.at, [program, "fmt", "--all", "--check", *plain], LINT_S_MAX)
    if "clippy" in here:
        fetch(cargo, options.at)
        clippy = [program, "clippy", "--locked", "--offline", "--workspace", "--all-targets"]
        _run("clippy", cargo, options.at, [*clippy, "--", "-D", "warnings"], LINT_S_MAX)
    # A toolchain without them is whole; with them `lint` shows what is wrong.
    for tool in {"fmt", "clippy"}.difference(here):
        print(f"Not checked: this cargo has no {tool} (rustup component add).")


def ready(options: argparse.Namespace) -> None:
    """Raise Unavailable unless the environment holds a module of these sources."""
    if not is_ready(options.at):
        raise Unavailable("none of these sources is installed; try: make native")


def found(options: argparse.Namespace) -> None:
    """Raise Unavailable unless a cargo is here that can build it."""
    find()


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    command.__name__: command for command in (build, rules, test, lint, ready, found)
}
# The beginning of the line with the reason why nothing was done.
MISSING = {
    "build": "No compiled plane, so Python carries all",
    "rules": "No rule of the compiled plane is broken on purpose",
    "test": "No test of the Rust crates",
    "lint": "The Rust is not checked",
    "ready": "No compiled plane",
    "found": "No compiled plane",
}


def digest(venv: Path) -> str:
    """Return the digest of all that a build for an environment is made from."""
    interpreter = venv / "pyvenv.cfg"
    whole = hashlib.sha256(interpreter.read_bytes() if interpreter.exists() else b"")
    for path in sorted(WORKSPACE.rglob("*")):
        place = path.relative_to(WORKSPACE)
        is_made = place.parts[0] in {"target", DATA.name}
        if path.suffix in SUFFIXES and not is_made and path.is_file():
            whole.update(f"{place} {path.stat().st_size}\n".encode() + path.read_bytes())
    return whole.hexdigest()


def is_ready(venv: Path) -> bool:
    """Tell whether an environment holds a module of these sources."""
    stamp = _stamp(venv)
    return stamp.exists() and stamp.read_text(encoding="ascii") == digest(venv)


def _stamp(venv: Path) -> Path:
    return venv / STAMP


def _install_maturin(venv: Path) -> None:
    tool = [sys.executable, str(ROOT / "tools" / "environment.py"), "--at", str(venv), "--brief"]
    # The index is given up after one try of some seconds, as the registry of crates is.
    hasty = ["--timeout-s", "5", "--retries", "0", "--patience-s", "60"]
    done = subprocess.run([*tool, *hasty, "build", "native"], check=False, capture_output=True)
    if done.returncode != 0:
        said = done.stdout.decode(errors="replace").strip() or "failed"
        raise Unavailable(f"maturin, which builds it, could not be installed: {said.rstrip('.')}")


def _see_that_it_loads(venv: Path) -> None:
    command = [str(venv / "bin" / "python"), "-c", "import urds_native"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise Broken(f"urds_native was built and does not load: {done.stderr.strip()[-500:]}")


def _remove(venv: Path) -> None:
    """Remove a module of other sources: it would be found and tested for these."""
    _stamp(venv).unlink(missing_ok=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    if any(venv.glob("lib/python*/site-packages/urds_native*")):
        subprocess.run(
            [*pip, "uninstall", "--yes", "--quiet", "urds-native"],
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )


def _run(name: str, cargo: Cargo, venv: Path, command: Sequence[str], patience_s: int) -> None:
    """Run a command in silence; raise Broken with its last words if it fails."""
    code, lines = _said(cargo, venv, command, patience_s)
    if code == 0:
        return
    if any("linker" in line and "not found" in line for line in lines):
        raise Unavailable("cargo finds no C linker (Debian, Ubuntu: apt install gcc libc6-dev)")
    REPORTS.mkdir(exist_ok=True)
    log = REPORTS / f"native-{name}.log"
    log.write_text("\n".join(lines), encoding="utf-8")
    shown = "\n".join(lines[-SHOWN_LINES:])
    raise Broken(f"{shown}\n{name} of the compiled plane failed; {log.relative_to(ROOT)} has all.")


def _said(
    cargo: Cargo, venv: Path, command: Sequence[str], patience_s: int
) -> tuple[int, list[str]]:
    """Run a command in the workspace; return its exit code and both of its outputs."""
    process = subprocess.Popen(
        command,
        cwd=WORKSPACE,
        env=cargo.environment(venv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # what cargo starts must end with it
    )
    late = []
    try:
        said, _ = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired as error:
        said = error.output or b""
        late = [f"ended after {patience_s} s"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    code = 1 if late else process.returncode
    return code, said.decode(errors="replace").splitlines() + late


if __name__ == "__main__":
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, _leave)
    sys.exit(main())
