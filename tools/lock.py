"""Renew the locks: `requirements/*.txt`, each package with the hashes of all its files.

    make lock

The requirements are in `pyproject.toml` only (extras and dependency groups); this resolves them
with pip-tools on the oldest supported Python, so that every newer one can install them. Sets that
share an environment are resolved on top of each other and never disagree.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "requirements"
VENV = ROOT / ".venv-lock"
OLDEST = (3, 11)

# Name of the lock, the place of its requirements, the locks that share its environment.
SETS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("lock", "dependency-groups", "lock", ()),
    ("build", "dependency-groups", "build", ()),
    ("demo", "optional-dependencies", "cli", ("build",)),
    ("test", "dependency-groups", "test", ("build", "demo")),
    ("lint", "dependency-groups", "lint", ("build", "demo", "test")),
    ("native", "dependency-groups", "native", ("build", "demo", "test", "lint")),
    ("wheels", "dependency-groups", "wheels", ("build",)),
    ("news", "dependency-groups", "news", ()),
    ("bench", "optional-dependencies", "bench", ("build",)),
    ("fuzz", "optional-dependencies", "fuzz", ("build",)),
    ("dask", "dependency-groups", "dask", ("build", "demo", "test")),
)


def main() -> int:
    """Resolve every set; return 0, or 1 on an interpreter that is not the oldest supported."""
    if sys.version_info[:2] != OLDEST:
        print(f"Locks are made on Python {OLDEST[0]}.{OLDEST[1]}, the oldest supported one.")
        return 1
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wishes = {
        "optional-dependencies": project["project"]["optional-dependencies"],
        "dependency-groups": project["dependency-groups"],
    }
    _make_tool()
    for name, table, group, below in SETS:
        _resolve(name, wishes[table][group], below)
        print(f"requirements/{name}.txt")
    return 0


def _make_tool() -> None:
    """Install pip-tools from its own lock, or by name the first time."""
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    lock = LOCKS / "lock.txt"
    wish = ["--require-hashes", "--requirement", str(lock)] if lock.exists() else ["pip-tools"]
    subprocess.run([VENV / "bin" / "pip", "install", "--quiet", *wish], check=True)


def _resolve(name: str, wishes: list[str], below: tuple[str, ...]) -> None:
    lines = [*wishes, *(f"-c {LOCKS / lower}.txt" for lower in below)]
    # A wheel found beside the index would leave out the hashes of the other platforms.
    surroundings = {key: value for key, value in os.environ.items() if key != "PIP_FIND_LINKS"}
    with tempfile.NamedTemporaryFile("w", suffix=".in", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        command = [
            str(VENV / "bin" / "pip-compile"),
            "--quiet",
            "--generate-hashes",
            "--allow-unsafe",
        ]
        command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--strip-extras"]
        command += ["--no-emit-find-links", "--no-emit-trusted-host", "--upgrade"]
        command += ["--resolver=backtracking", "--output-file", str(LOCKS / f"{name}.txt")]
        command.append(file.name)
        subprocess.run(command, check=True, env=surroundings)


if __name__ == "__main__":
    sys.exit(main())
