"""Find cargo, see that it is new enough, and bring the crates of `native/` here.

A thing that a machine may lack is `Unavailable`, with a reason of one line: no cargo, an old one,
no registry in reach. An error in our own sources is not.
"""

import contextlib
import os
import re
import selectors
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKSPACE = ROOT / "native"
OLDEST = (1, 88)  # `rust-version` of native/Cargo.toml; tests/health holds them together
ANSWER_S_MAX = 20  # cargo with what it has on disk
# A registry without an answer counts as out of reach; a slow one prints its progress.
SILENCE_S_MAX = 14
FETCH_S_MAX = 300


class Unavailable(Exception):
    """The compiled plane needs something that is not on this machine; the text says what."""


@dataclass(frozen=True, slots=True)
class Cargo:
    """A cargo that can build the workspace."""

    path: Path
    version: str  # as it prints it, `1.95.0`

    def environment(self, venv: Path) -> dict[str, str]:
        """Return the environment of every call: it builds for the interpreter of `venv`.

        All calls share one, or pyo3 would be built anew for each.
        """
        own = {
            "PATH": f"{self.path.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "CARGO_TERM_COLOR": "never",
        }
        if (venv / "bin" / "python").exists():
            own["VIRTUAL_ENV"] = str(venv.resolve())
            own["PYO3_PYTHON"] = str(venv.resolve() / "bin" / "python")
        return {**os.environ, **own}

    def can(self, tool: str) -> bool:
        """Tell whether a component that not every toolchain has (`fmt`, `clippy`) is here."""
        return _answer([str(self.path), tool, "--version"]) is not None


def find() -> Cargo:
    """Return the cargo of this machine. Raises Unavailable: none, too old, or it does not run."""
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    known = [os.environ.get("CARGO"), shutil.which("cargo"), shutil.which(home / "bin" / "cargo")]
    path = next(filter(None, known), None)
    wish = f"Rust {OLDEST[0]}.{OLDEST[1]} or newer"
    if path is None:
        raise Unavailable(f"no cargo here; it needs {wish} (https://rustup.rs)")
    answer = _answer([path, "--version"])
    found = re.search(r"cargo (\d+)\.(\d+)\S*", answer or "")
    if found is None:
        raise Unavailable(f"{path} does not tell its version; it needs {wish}")
    version = found[0].removeprefix("cargo ")
    if (int(found[1]), int(found[2])) < OLDEST:
        raise Unavailable(f"cargo {version} is too old; it needs {wish}")
    return Cargo(Path(path), version)


def fetch(cargo: Cargo, venv: Path, workspace: Path = WORKSPACE) -> None:
    """Have all crates of a workspace's lock here. Raises Unavailable: the registry is out of reach.

    With all of them here it asks no registry.
    """
    command = [str(cargo.path), "fetch", "--locked"]
    environment = cargo.environment(venv)
    try:
        subprocess.run(
            [*command, "--offline"],
            cwd=workspace,
            env=environment,
            check=True,
            timeout=ANSWER_S_MAX,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except subprocess.CalledProcessError:
        # A retry would double the time until an unreachable registry is given up.
        hasty = {"CARGO_HTTP_TIMEOUT": "10", "CARGO_NET_RETRY": "0"}
        _download(command, workspace, {**environment, **hasty})
    except subprocess.TimeoutExpired:
        raise Unavailable("another cargo holds the cache of crates") from None


def _download(command: Sequence[str], workspace: Path, environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        command,
        cwd=workspace,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    said = b""
    end_s = time.monotonic() + FETCH_S_MAX
    try:
        with selectors.DefaultSelector() as selector, process.stderr as stream:
            selector.register(stream, selectors.EVENT_READ)
            while True:
                patience_s = min(SILENCE_S_MAX, end_s - time.monotonic())
                if patience_s <= 0 or not selector.select(patience_s):
                    raise Unavailable("the registry of crates is out of reach: it does not answer")
                data = os.read(stream.fileno(), 65536)
                if not data:
                    break
                said += data
        if process.wait(ANSWER_S_MAX) != 0:
            raise Unavailable(f"the crates could not be fetched: {_cause(said)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


def _cause(said: bytes) -> str:
    # Cargo ends with the chain of causes, the innermost last.
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    if any("offline mode" in line for line in lines):
        return "cargo is set offline, and its cache lacks some"
    return lines[-1] if lines else "cargo says nothing"


def _answer(command: list[str]) -> str | None:
    """Return what a command prints, or None if it fails, is not there or takes too long."""
    try:
        done = subprocess.run(
            command,
            cwd=WORKSPACE,
            check=True,
            timeout=ANSWER_S_MAX,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
