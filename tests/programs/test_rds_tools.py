"""rds-ping, rds-info and rds-stress of rds-tools, unmodified.

They are taken from PATH, or built in a temporary folder from the sources that TEST_RDS_TOOLS names:
a checkout or a bare repository. Nothing of them is kept.
"""

import os
import subprocess
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from tests.cli.commands import address
from tests.shim.conftest import Programs

SECONDS = os.environ.get("TEST_STRESS_SECONDS", "3")


def stress(programs: Programs, tools: Path, *options: str) -> str:
    """Run both sides of rds-stress; return what the sending one printed."""
    near, far, port = address(20), address(21), str(4100 + os.getpid() % 1000)
    tool, variables = str(tools / "rds-stress"), programs.variables()
    passive = [tool, "-r", near, "-p", port]
    active = [tool, "-r", far, "-s", near, "-p", port, "-T", SECONDS, *options]
    with subprocess.Popen(passive, env=variables, stdout=PIPE, stderr=STDOUT, text=True) as peer:
        try:
            for _ in range(20):
                done = programs.run(*active)
                if "Connection refused" not in done.stdout + done.stderr:
                    break
            said, _ = peer.communicate(timeout=30)
        finally:
            peer.kill()
    assert done.returncode == 0, done.stdout + done.stderr
    assert peer.returncode == 0, said
    return done.stdout


def test_ping(programs: Programs, tools: Path) -> None:
    done = programs.run(tools / "rds-ping", "-c", "5", "-i", "10ms", "-I", address(20), address(20))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("usec") == 5


@pytest.mark.parametrize("option", ["-c", "-k", "-s", "-r", "-n", "-I", "-T", "-t", ""])
def test_info(option: str, programs: Programs, tools: Path) -> None:
    done = programs.run(tools / "rds-info", *filter(None, [option]))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("-t", "1", "-d", "1", "-q", "64", "-a", "64"),
        ("-t", "2", "-d", "4", "-q", "1024", "-a", "1024", "-v"),
        ("-t", "4", "-d", "8", "-q", "8192", "-v"),
        ("-t", "2", "-d", "2", "-q", "65536", "-v"),
        ("-t", "1", "-d", "2", "-q", "1048576", "-v"),
        ("-t", "8", "-d", "8", "-o"),
        ("-t", "2", "-d", "4", "--use-cong-monitor", "0"),
        ("-t", "2", "-d", "2", "--show-perfdata"),
    ],
    ids=" ".join,
)
def test_stress(options: tuple[str, ...], programs: Programs, tools: Path) -> None:
    said = stress(programs, tools, *options)
    assert "(average)" in said
