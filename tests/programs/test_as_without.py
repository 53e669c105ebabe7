"""Programs without RDS do under the hooks what they do without: the same output and exit code."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs.conftest import ROOT
from tests.shim.conftest import Programs

RUN_S_MAX = 100
C = '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n'
SCRIPTS = {
    "shell": "set -e; for n in 1 2 3; do echo $n | tr 1 a; done; (exit 3) || echo $?; ls -d / /usr",
    "git": "set -e; git init -q one; cd one; git config user.email a@b; git config user.name a;"
    " git commit -q --allow-empty -m first; cd ..; git clone -q one two; ls -A two",
    "cc": "set -e; cc -O2 -o hello hello.c; ./hello",
    "tar": "set -e; tar c hello.c | tar t; seq 1 99999 | sort -n | tail -1; yes | head -c 999 | wc",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(name: str, programs: Programs, tmp_path: Path) -> None:
    tool = {"shell": "sh"}.get(name, name)
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} on this machine")
    outcomes = []
    for variables in (dict(os.environ), programs.variables()):
        folder = tmp_path / str(len(outcomes))
        folder.mkdir()
        (folder / "hello.c").write_text(C)
        done = subprocess.run(
            ["sh", "-c", SCRIPTS[name]], cwd=folder, env=variables, capture_output=True, text=True,
            timeout=RUN_S_MAX, check=False,
        )  # fmt: skip
        outcomes.append((done.returncode, done.stdout, done.stderr))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == 0


@pytest.mark.slow
def test_tests_of_this_project(programs: Programs, tmp_path: Path) -> None:
    """Not those of sockets: theirs would be the node's; and few that compute alone."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ROOT]
    chosen = ["tests/common/test_passed_files.py", "tests/rds/wire"]
    outcomes = []
    for variables in (dict(os.environ), programs.variables()):
        done = subprocess.run(
            [*command, *chosen], cwd=ROOT, env={**variables, "TMPDIR": str(tmp_path)},
            capture_output=True, text=True, timeout=RUN_S_MAX, check=False,
        )  # fmt: skip
        found = re.findall(r"^(\d+ passed|.*failed.*) in ", done.stdout, re.MULTILINE)
        outcomes.append((done.returncode, found, done.stderr))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == 0


def test_no_descriptor_more(programs: Programs) -> None:
    program = "import os; print(sorted(os.listdir('/proc/self/fd')))"
    without = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, close_fds=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert programs.run(sys.executable, "-c", program).stdout == without.stdout
