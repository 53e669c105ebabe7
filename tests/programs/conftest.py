"""Outside programs, as their distributions build them, on a node of their own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.shim import libraries
from tests.shim.conftest import node, programs
from urds.rds.node import commands

__all__ = ["apart", "node", "programs", "tools"]

ROOT = Path(__file__).resolve().parents[2]
RUN_S_MAX = 110
BUILD_S_MAX = 120
Apart = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of rds-tools: taken from PATH, or built from what TEST_RDS_TOOLS names.

    That is a checkout or a bare repository.
    """
    if sources := os.environ.get("TEST_RDS_TOOLS"):
        folder = tmp_path_factory.mktemp("rds-tools")
        archive = ["git", "-C", sources, "archive", "HEAD"]
        packed = subprocess.run(archive, capture_output=True, timeout=BUILD_S_MAX, check=True)
        subprocess.run(["tar", "x", "-C", folder], input=packed.stdout, check=True)
        for command in (["sh", "./configure"], ["make", "-s"]):
            subprocess.run(
                command, cwd=folder, capture_output=True, timeout=BUILD_S_MAX, check=True
            )
        return folder
    found = shutil.which("rds-stress")
    if found is None:
        pytest.skip("no rds-tools in PATH, and TEST_RDS_TOOLS names no sources")
    return Path(found).parent


@pytest.fixture
def apart(tmp_path: Path) -> Apart:
    """Return a way to run a script in a network namespace of its own, where 127.0.0.1 is free.

    `$run` in it is `urds run`, which starts a node there.
    """
    libraries.found()
    unshare = ["unshare", "-n"] if os.getuid() == 0 else ["unshare", "-rn"]
    up = "ip link set lo up"
    is_possible = shutil.which("unshare") and shutil.which("ip") and not subprocess.run(
        [*unshare, "sh", "-c", up], capture_output=True, check=False
    ).returncode  # fmt: skip
    if not is_possible:
        pytest.skip("no network namespace can be made here")
    kept = {key: one for key, one in os.environ.items() if not key.startswith("URDS_")}
    variables = {**kept, "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}

    def run(script: str) -> subprocess.CompletedProcess[str]:
        text = f"{up}; run='{sys.executable} -m urds run --'; {script}"
        try:
            return subprocess.run(
                [*unshare, "sh", "-c", text], env=variables, capture_output=True, text=True,
                timeout=RUN_S_MAX, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        finally:
            for place in tmp_path.glob("urds/node-*.sock"):  # a path is of no network namespace
                with suppress(OSError):
                    commands.stop(str(place))

    return run
