"""Build what a release consists of into dist/, and see each file work: the code of `make wheels`.

    python -m tools.wheels                            all of it
    python -m tools.wheels --only urds                without the compiled plane
    python -m tools.wheels --python /opt/py/bin/python3.13    try the wheels on this Python too

`urds` is a wheel of pure Python and a source distribution; `urds-native` is one wheel for each
system, by the stable ABI for CPython 3.11 and newer, and a source distribution. Zig links the
wheels against an old libc, so they run on older systems than this one.

A wheel for this machine is installed in a fresh environment of each Python found here, without an
index: the demo runs in short, first on the Python plane, then on the compiled one, and after it
`SUITE`, from the unpacked source distribution, so that nothing of the checkout is imported. The
source distribution of `urds` makes its own environment in another folder and runs `make quick`.

What cannot be built here is skipped, with its reason in one line. The exit code is 0 if everything
else was built and works; 1 if something is broken; 2 for a wrong option; 130 after Ctrl-C.
"""

import argparse
import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from tools import licences, native
from tools.cargo import ROOT, WORKSPACE, Cargo, Unavailable, fetch, find

DIST = ROOT / "dist"
LOG = ROOT / ".reports" / "wheels.log"
OLDEST, NEWEST = 11, 16  # minor versions of Python 3 that are looked for
BUILD_S_MAX = 1200
TRY_S_MAX = 300
QUICK_S_MAX = 600
ASK_S_MAX = 20
SHOWN_LINES = 15
INTERRUPTED = 128 + signal.SIGINT
# Tests that need little: cores, calls in one process, and the installed package by itself.
SUITE = (
    "tests/installed",
    "tests/rds/wire",
    "tests/rds/control",
    "tests/vectors",
    "tests/rsocket/test_calls.py",
    "tests/dat/test_transfers.py",
)
PYTEST = ("pytest", "iniconfig", "packaging", "pluggy", "pygments")  # with what it needs
TOOLS = (*PYTEST, "hypothesis", "sortedcontainers")
FIXTURES = "tests.rsocket.conftest"  # the only ones: other folders' need more packages
SUITE_SETTINGS = "[pytest]\naddopts = --import-mode=importlib -q -p no:cacheprovider\n"
OLDEST_GLIBC = "2.17"  # of manylinux2014
DEMO = ("demo", "--hosts", "3", "--seconds", "1", "--first", "127.91.0.2")


@dataclass(frozen=True, slots=True)
class System:
    """One kind of system that has a wheel of its own."""

    tag: str  # of the wheel: the oldest libc it runs on
    target: str  # Rust's name

    @property
    def name(self) -> str:
        """Return what the table calls its wheel."""
        return f"urds-native, {self.tag}, {self.target.partition('-')[0]}"

    @property
    def is_glibc(self) -> bool:
        """Tell whether its libc is glibc."""
        return self.target.endswith("-gnu")

    @property
    def runs_here(self) -> bool:
        """Tell whether this machine can load the wheel."""
        libc = "gnu" if platform.libc_ver()[0] == "glibc" else "musl"
        return self.target == f"{platform.machine()}-unknown-linux-{libc}"


SYSTEMS = (
    System("manylinux2014", "x86_64-unknown-linux-gnu"),
    System("musllinux_1_2", "x86_64-unknown-linux-musl"),
    System("manylinux2014", "aarch64-unknown-linux-gnu"),
    System("musllinux_1_2", "aarch64-unknown-linux-musl"),
)


@dataclass(slots=True)
class Row:
    """One line of the table at the end. Not frozen: the trials add to it."""

    product: str
    files: list[Path] = field(default_factory=list)
    works: list[str] = field(default_factory=list)  # what was seen to work
    skipped: str = ""
    broken: str = ""

    @property
    def result(self) -> str:
        """Return what became of it, in a few words."""
        if self.broken:
            return f"BROKEN: {self.broken}"
        if self.skipped:
            return f"skipped: {self.skipped}"
        return f"built, works: {'; '.join(self.works)}" if self.works else "built, not run here"


class Broken(Exception):
    """A step failed; the text is its reason in a line, and the log has its output."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where things are built."""

    venv: Path  # with hatchling, maturin and zig
    dist: Path
    log: Path

    def run(
        self,
        command: Sequence[str | Path],
        *,
        at: Path = ROOT,
        limit_s: int = BUILD_S_MAX,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command, its output to the log, and return that. Raises Broken."""
        said = _said(list(map(str, command)), at, limit_s, {**_clean(), **(variables or {})})
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(map(str, command))}\n{said.text}\n")
        if said.code != 0:
            lines = [line.strip() for line in said.text.splitlines() if line.strip()]
            print("\n".join(f"    {line}" for line in lines[-SHOWN_LINES:]), flush=True)
            reason = f"ended after {limit_s} s" if said.late else f"exit code {said.code}"
            raise Broken(f"{' '.join(map(str, command[:4]))} ...: {reason}")
        return said.text


@dataclass(frozen=True, slots=True)
class _Said:
    code: int
    text: str
    late: bool


def _clean() -> dict[str, str]:
    """Return an environment in which nothing of the checkout is found."""
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "URDS_")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


def _said(command: list[str], at: Path, limit_s: int, environment: dict[str, str]) -> _Said:
    process = subprocess.Popen(
        command,
        cwd=at,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # what it starts ends with it
    )
    try:
        text, late = process.communicate(timeout=limit_s)[0], False
    except subprocess.TimeoutExpired as error:
        text, late = error.output or b"", True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return _Said(process.returncode or int(late), text.decode(errors="replace"), late)


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Print what is done, and how long it took."""
    print(f"{text} ...", flush=True)
    started_s = time.monotonic()
    yield
    print(f"    {time.monotonic() - started_s:.0f} s", flush=True)


def version() -> str:
    """Return the version that pyproject.toml states."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


# -- building


def build_urds(place: Place, kind: str) -> Path:
    """Build the wheel or the source distribution of `urds`. Raises Broken."""
    python = place.venv / "bin" / "python"
    pattern = {"wheel": f"urds-{version()}-*.whl", "sdist": f"urds-{version()}.tar.gz"}[kind]
    place.run([python, "-m", "hatchling", "build", "-d", place.dist, "-t", kind])
    return _only(place.dist, pattern)


def build_native(place: Place, cargo: Cargo, system: System) -> Path:
    """Build the wheel of `urds-native` for a system. Raises Broken."""
    command: list[str | Path] = [place.venv / "bin" / "maturin", "build", "--release", "--locked"]
    command += ["--offline", "--compatibility", system.tag, "--target", system.target]
    command += ["--interpreter", place.venv / "bin" / "python", "--out", place.dist]
    machine = system.target.partition("-")[0]
    _build_libraries(place, cargo, machine)
    variables = _for_cargo(place, cargo)
    if system.is_glibc:
        variables |= _for_old_glibc(place, machine)
    else:
        command.append("--zig")
    place.run(command, at=WORKSPACE, variables=variables)
    return _only(place.dist, f"urds_native-{version()}-*{system.tag}*_{machine}*.whl")


def _build_libraries(place: Place, cargo: Cargo, machine: str) -> None:
    """Build the libraries for programs in C, which go into the wheel. Raises Broken.

    Those of glibc serve programs of musl too: they use only names that both have.
    """
    target = f"{machine}-unknown-linux-gnu"
    if why_not(cargo, System("", target)):
        shutil.rmtree(native.DATA, ignore_errors=True)  # those of another machine
        return
    variables = {**_for_cargo(place, cargo), **_for_old_glibc(place, machine)}
    place.run(native.libraries_command(target), at=WORKSPACE, variables=variables)


def _for_old_glibc(place: Place, machine: str) -> dict[str, str]:
    """Return the variables by which Zig links for the oldest glibc."""
    name = f"{machine}-unknown-linux-gnu".upper().replace("-", "_")
    return {
        "URDS_ZIG": str(place.venv / "bin" / "python"),
        "URDS_ZIG_TARGET": f"{machine}-linux-gnu.{OLDEST_GLIBC}",
        f"CARGO_TARGET_{name}_LINKER": str(ROOT / "tools" / "zig-linker.sh"),
    }


def build_native_sdist(place: Place, cargo: Cargo) -> Path:
    """Build the source distribution of `urds-native`. Raises Broken."""
    command: list[str | Path] = [place.venv / "bin" / "maturin", "sdist", "--out", place.dist]
    place.run(command, at=WORKSPACE, variables=_for_cargo(place, cargo))
    return _only(place.dist, f"urds_native-{version()}.tar.gz")


def _for_cargo(place: Place, cargo: Cargo) -> dict[str, str]:
    environment = cargo.environment(place.venv)
    path = f"{place.venv / 'bin'}{os.pathsep}{environment['PATH']}"
    return {**environment, "PATH": path, "PYTHONPATH": ""}


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise Broken(f"{len(found)} files are named {pattern}, not 1")
    return found[0]


def why_not(cargo: Cargo, system: System) -> str:
    """Return why no wheel can be built for a system here; nothing if it can."""
    rustc = cargo.path.with_name("rustc")
    command = [str(rustc), "--print", "target-libdir", "--target", system.target]
    try:
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=ASK_S_MAX, cwd=WORKSPACE
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"rustc does not know {system.target} ({error})"
    if not any(Path(done.stdout.strip()).glob("libstd-*")):
        return (
            f"this Rust has no standard library for {system.target} "
            f"(rustup target add {system.target})"
        )
    if system.is_glibc and not system.runs_here:
        return "tools/zig-linker.sh takes the unwinder of this machine, which is of another kind"
    return ""


# -- trying


def interpreters(given: Sequence[str]) -> list[tuple[str, str]]:
    """Return version and path of every CPython found here, oldest first, each version once."""
    names = [*given, sys.executable]
    for minor in range(OLDEST, NEWEST + 1):
        names += filter(None, [shutil.which(f"python3.{minor}")])
    if pyenv := shutil.which("pyenv"):
        root = _answer([pyenv, "root"])
        names += map(str, sorted(Path(root).glob("versions/*/bin/python3"))) if root else []
    found: dict[str, str] = {}
    program = "import sys; print(sys.implementation.name, *sys.version_info[:2])"
    for name in names:
        match (_answer([name, "-I", "-c", program]) or "").split():
            case ["cpython", "3", found_minor] if int(found_minor) >= OLDEST:
                found.setdefault(found_minor, name)
    return [(f"3.{number}", found[number]) for number in sorted(found, key=int)]


def _answer(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=ASK_S_MAX, env=_clean()
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def pytest_lock() -> str:
    """Return the lines of the locks for what `SUITE` needs."""
    kept: dict[str, str] = {}
    for name in ("build", "demo", "test"):
        text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
        for block in re.findall(r"^\S+==(?:.*\\\n)+.*\n", text, re.MULTILINE):
            kept.setdefault(block.partition("==")[0], block)
    return "".join(kept[name] for name in TOOLS)


def try_wheels(place: Place, python: str, sdist: Path, work: Path, *, native: bool) -> str:
    """See the wheels in dist/ work in a fresh environment; return what worked. Raises Broken."""
    venv = work / "venv"
    place.run([python, "-m", "venv", venv], at=work)
    own = venv / "bin" / "python"
    pip: list[str | Path] = [
        own,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
    ]
    without_index = [*pip, "--no-index", "--find-links", place.dist]
    quiet = {"PIP_FIND_LINKS": "", "URDS_IMPL": "python"}
    # First without anything from an index; the tests need one for pytest.
    place.run([*without_index, f"urds=={version()}"], at=work, limit_s=TRY_S_MAX, variables=quiet)
    lock = work / "pytest.txt"
    lock.write_text(pytest_lock(), encoding="utf-8")
    place.run([*pip, "--require-hashes", "--requirement", lock], at=work, limit_s=TRY_S_MAX)
    settings = work / "suite.ini"
    settings.write_text(SUITE_SETTINGS, encoding="utf-8")
    source = unpacked(sdist, work)
    suite: list[str | Path] = [
        own,
        "-m",
        "pytest",
        "-c",
        settings,
        "--rootdir",
        source,
        "--noconftest",
        "-p",
        FIXTURES,
    ]
    suite += ["-o", f"pythonpath={source}"]
    seen = {}
    for plane in ("python", "native") if native else ("python",):
        quiet["URDS_IMPL"] = plane
        if plane == "native":
            place.run([*without_index, f"urds[native]=={version()}"], at=work, variables=quiet)
        place.run([venv / "bin" / "urds", *DEMO], at=work, limit_s=TRY_S_MAX, variables=quiet)
        quiet["TEST_INSTALLED"] = str(venv)
        tests = SUITE if plane == "native" or not native else SUITE[:1]
        said = place.run([*suite, *tests], at=source, limit_s=TRY_S_MAX, variables=quiet)
        seen[plane] = re.findall(r"(\d+) passed", said)[-1]
    return ", ".join(f"{plane}: demo and {count} tests" for plane, count in seen.items())


def try_sdist(place: Place, python: str, sdist: Path, work: Path) -> str:
    """Have the unpacked source distribution test itself. Raises Broken."""
    source = unpacked(sdist, work)
    said = place.run(
        ["make", "--no-print-directory", "quick", f"PYTHON={python}"],
        at=source,
        limit_s=QUICK_S_MAX,
    )
    return f"make quick, {re.findall(r'([0-9]+) passed', said)[-1]} tests"


def try_native_sdist(
    place: Place, cargo: Cargo, sdist: Path, work: Path, *, urds: Sequence[Path]
) -> str:
    """See that the source is locked and has the licences, and that the wheel of it works.

    `urds` has wheel and source distribution of that; without them the wheel is only built. pip
    builds it with what is here already. Raises Broken.
    """
    source = unpacked(sdist, work)
    command: list[str | Path] = [
        cargo.path,
        "metadata",
        "--locked",
        "--offline",
        "--format-version",
        "1",
        "-q",
    ]
    place.run(command, at=source)
    for name in ("LICENSE", licences.PAGE.name):
        if not (source / name).exists():
            raise Broken(f"{sdist.name} has no {name}")
    pip: list[str | Path] = [place.venv / "bin" / "python", "-m", "pip", "wheel", "--no-index"]
    pip.append("--no-cache-dir")  # it knows a file by its name: an earlier wheel would be taken
    dist = work / "dist"
    place.run(
        [*pip, "--no-build-isolation", "--no-deps", "--wheel-dir", dist, sdist],
        at=work,
        variables={**_for_cargo(place, cargo), "CARGO_NET_OFFLINE": "true"},
    )
    _only(dist, f"urds_native-{version()}-*.whl")
    if len(urds) < len(("wheel", "source")):
        return "locked, with licences; its wheel builds"
    wheel, source = urds
    shutil.copy(wheel, dist)
    seen = try_wheels(replace(place, dist=dist), sys.executable, source, work, native=True)
    return f"locked, with licences; its wheel: {seen}"


def unpacked(sdist: Path, work: Path) -> Path:
    """Unpack a source distribution into a folder; return the folder that it makes."""
    with tarfile.open(sdist) as archive:
        # The parameter `filter` is of CPython 3.11.4; before that this attribute means nothing.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(work)
    return work / sdist.name.removesuffix(".tar.gz")


# -- the whole


def table(rows: Sequence[Row]) -> str:
    """Return the table of files, sizes and results."""
    lines = [("file", "size", "result")]
    for row in rows:
        paths: list[Path | None] = [*row.files] or [None]
        for path in paths:
            size = f"{path.stat().st_size / 1024:,.0f} KiB" if path and path.exists() else ""
            lines.append((path.name if path else row.product, size, row.result))
    widths = [max(len(line[index]) for line in lines) for index in (0, 1)]
    return "\n".join(
        f"{name.ljust(widths[0])}  {size.rjust(widths[1])}  {result}"
        for name, size, result in lines
    )


def attempt(row: Row, text: str, work: Callable[[], None]) -> None:
    """Do one step of a row; what fails is its result, and later steps are left out."""
    if row.broken or row.skipped:
        return
    try:
        with step(text):
            work()
    except Broken as error:
        row.broken = str(error)
        print(f"    {row.broken}", flush=True)


def build_all(place: Place, only: str | None) -> dict[str, Row]:
    """Build every product; return the rows by their names."""
    rows: dict[str, Row] = {}

    def build(name: str, make: Callable[[], Path]) -> None:
        row = rows[name] = rows.get(name, Row(name))
        attempt(row, f"Building {name}", lambda: row.files.append(make()))

    if only != "urds-native":
        build("urds, wheel", lambda: build_urds(place, "wheel"))
    build("urds, source", lambda: build_urds(place, "sdist"))
    if only == "urds":
        return rows
    names = ["urds-native, source", *(system.name for system in SYSTEMS)]
    rows |= {name: Row(name) for name in names}
    try:
        cargo = find()
        fetch(cargo, place.venv)
        wrong = licences.differences(licences.packages(cargo))
    except Unavailable as reason:
        for name in names:
            rows[name].skipped = str(reason)
        return rows
    if wrong:
        for name in names:
            rows[name].broken = f"{licences.PAGE.name}: {wrong[0]}; python -m tools.licences"
    build(names[0], lambda: build_native_sdist(place, cargo))
    for system in SYSTEMS:
        rows[system.name].skipped = why_not(cargo, system)
        build(system.name, lambda system=system: build_native(place, cargo, system))  # type: ignore[misc]  # mypy infers no type for a default
    return rows


def try_all(place: Place, rows: dict[str, Row], pythons: Sequence[tuple[str, str]]) -> None:
    """See what was built for this machine work; the results go into the rows."""
    source = rows["urds, source"]
    if not source.files:
        return
    here = [rows[system.name] for system in SYSTEMS if system.runs_here and system.name in rows]
    native = [row for row in here if row.files]
    tried = [row for row in (rows.get("urds, wheel"), *native) if row is not None and row.files]
    for name, python in pythons:
        for row in tried[:1]:

            def on_this(python: str = python, name: str = name) -> None:
                with _folder() as work:
                    seen = try_wheels(place, python, source.files[0], work, native=bool(native))
                for one in tried:
                    one.works.append(f"Python {name}: {seen}")

            attempt(row, f"Trying the wheels on Python {name}", on_this)
            for one in tried[1:]:
                one.broken = one.broken or row.broken

    def itself() -> None:
        with _folder() as work:
            source.works.append(try_sdist(place, sys.executable, source.files[0], work))

    attempt(source, "Having the source distribution test itself", itself)
    other = rows.get("urds-native, source")
    if other is not None and other.files:

        def whole() -> None:
            with _folder() as work:
                urds = [
                    *(rows["urds, wheel"].files if "urds, wheel" in rows else ()),
                    source.files[0],
                ]
                seen = try_native_sdist(place, find(), other.files[0], work, urds=urds)
                other.works.append(seen)

        attempt(other, "Building a wheel from the source of urds-native, and trying it", whole)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="urds-wheels-") as name:
        yield Path(name).resolve()


def main() -> int:
    """Build and try everything; print the table; return the exit code."""
    parser = argparse.ArgumentParser(description="Build wheels and source distributions.")
    parser.add_argument("--at", type=Path, default=ROOT / ".venv-wheels", help="the environment")
    parser.add_argument("--dist", type=Path, default=DIST, help="where the files go")
    parser.add_argument("--only", choices=("urds", "urds-native"), help="build this alone")
    parser.add_argument("--python", action="append", default=[], help="try the wheels on it too")
    options = parser.parse_args()
    place = Place(options.at.absolute(), options.dist.absolute(), LOG)
    LOG.parent.mkdir(parents=True, exist_ok=True)
    LOG.unlink(missing_ok=True)
    place.dist.mkdir(parents=True, exist_ok=True)
    for old in [*place.dist.glob("urds-*"), *place.dist.glob("urds_native-*")]:
        old.unlink()
    try:
        rows = build_all(place, options.only)
        try_all(place, rows, interpreters(options.python))
    except KeyboardInterrupt:
        print("\nInterrupted: what was started is ended.", flush=True)
        return INTERRUPTED
    print(f"\n{table(list(rows.values()))}\n")
    broken = sum(bool(row.broken) for row in rows.values())
    skipped = sum(bool(row.skipped) for row in rows.values())
    log = LOG.relative_to(ROOT)
    print(f"{len(rows) - broken - skipped} built, {skipped} skipped, {broken} broken; log: {log}")
    return int(broken > 0)


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, _leave)
    sys.exit(main())
