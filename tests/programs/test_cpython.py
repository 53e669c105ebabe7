"""CPython's own tests of AF_RDS, of every CPython here that has its test package: 8 run, 0 skipped.

Its `test_socket` makes an RDS socket when it is imported, and skips the cases without one; it binds
127.0.0.1.
"""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.programs.conftest import Apart

CASES = "test.test_socket.BasicRDSTest test.test_socket.RDSTest"
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
ASK_S_MAX = 20


def interpreters() -> list[str]:
    """Return every CPython with a test package: those in PATH, and those of pyenv."""
    found = [path for one in VERSIONS if (path := shutil.which(f"python{one}"))]
    found += [path for path in ("/usr/bin/python3",) if Path(path).exists()]
    pyenv = Path.home() / ".pyenv" / "versions"
    found += [str(path) for one in VERSIONS for path in pyenv.glob(f"{one}.*/bin/python{one}")]
    return sorted({str(Path(path).resolve()) for path in found if _has_tests(path)})


@cache
def _has_tests(python: str) -> bool:
    asked = "import importlib.util as i, sys; sys.exit(not i.find_spec('test.test_socket'))"
    command = [python, "-I", "-c", asked]
    done = subprocess.run(command, capture_output=True, timeout=ASK_S_MAX, check=False)
    return done.returncode == 0


@pytest.mark.parametrize("python", interpreters() or [None])
def test_basic_and_rds(python: str | None, apart: Apart) -> None:
    if python is None:
        pytest.skip("no CPython with its test package (Debian: libpython3-testsuite)")
    done = apart(f"$run {python} -I -m unittest -v {CASES}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Ran 8 tests", done.stderr, re.MULTILINE), done.stderr
    assert "skipped" not in done.stderr
