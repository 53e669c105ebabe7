"""Find the libraries for programs in C, and a compiler for such programs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from urds.cli import programs

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "native" / "crates" / "liburds" / "include"
COMPILE_S_MAX = 60


def found(name: str = programs.LIBRARY) -> Path:
    """Return a library that `make native` built; skip where there is none."""
    try:
        path = programs.library().with_name(name)
    except programs.CannotRun as reason:
        if os.environ.get("TEST_NATIVE_REQUIRED") == "1":
            raise
        pytest.skip(str(reason))
    if not path.exists():
        pytest.skip(f"no {name} beside {programs.LIBRARY}")
    return path


def compiler(name: str = "cc") -> str:
    """Return a C compiler; skip where there is none."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} on this machine")
    return path


def of_compiler(name: str) -> Path:
    """Return a library of the C compiler's own; skip where it has none of that name."""
    asked = [compiler(), f"-print-file-name={name}"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=COMPILE_S_MAX, check=True)
    path = Path(done.stdout.strip())
    if not path.is_absolute():
        pytest.skip(f"no {name} on this machine")
    return path


def compiled(source: Path, program: Path, *more: str, by: str = "cc") -> Path:
    """Compile a program in C with every warning an error; return it."""
    flags = ["-Wall", "-Wextra", "-Werror", "-O2", "-pthread", f"-I{HEADER}"]
    command = [compiler(by), *flags, str(source), "-o", str(program), *more]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMPILE_S_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    return program
