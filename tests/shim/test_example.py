"""The example in C: by the kernel's calls under `urds run`, and over urds.h, shared and static."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import address
from tests.shim import libraries
from tests.shim.conftest import Programs

BUILD_S_MAX = 60
EXAMPLES = libraries.ROOT / "examples" / "c"
ARCHIVE = libraries.ROOT / "native" / "target" / "shim" / "liburds.a"


def made(folder: Path, target: str, *variables: str) -> Path:
    """Make a program of the example's Makefile in a folder of the test."""
    for name in ("make", "cc"):
        if shutil.which(name) is None:
            pytest.skip(f"no {name} on this machine")
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    place = libraries.found("liburds.so").parent
    command = ["make", "-s", target, f"LIBRARIES={place}", *variables]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder / target


def test_the_kernels_calls(programs: Programs, tmp_path: Path) -> None:
    done = programs.run(made(tmp_path, "one_message"), address(4))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"hello from {address(4)}\n"


@pytest.mark.parametrize("target", ["one_message_urds", "one_message_static"])
def test_urds_h(target: str, programs: Programs, tmp_path: Path) -> None:
    """Nothing is preloaded; only the node is named."""
    if target == "one_message_static" and not ARCHIVE.exists():
        pytest.skip(f"no {ARCHIVE.name}: make native builds it")
    program = made(tmp_path, target, f"ARCHIVE={ARCHIVE}")
    programs.variables()  # the node is there
    kept = {key: one for key, one in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run(
        [program, address(5)], env={**kept, "URDS_NODE": programs.node}, capture_output=True,
        text=True, timeout=BUILD_S_MAX, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"hello from {address(5)}\n"


def test_without_a_node_it_is_as_without_the_module(tmp_path: Path) -> None:
    program = made(tmp_path, "one_message_urds")
    done = subprocess.run(
        [program, address(6)], env={**os.environ, "URDS_NODE": f"{tmp_path}/none.sock"},
        capture_output=True, text=True, timeout=BUILD_S_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "socket: Address family not supported by protocol\n"
