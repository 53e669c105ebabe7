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

__all__ = ["apart", "node", "programs"]

ROOT = Path(__file__).resolve().parents[2]
RUN_S_MAX = 110
Apart = Callable[[str], subprocess.CompletedProcess[str]]


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
