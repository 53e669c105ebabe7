"""A node for programs in C, and a way to run them on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.shim import libraries
from urds.cli.rds.run import environment
from urds.rds.node import commands
from urds.rds.node.start import ensure

RUN_S_MAX = 100
SOURCES = Path(__file__).with_name("programs")


class Programs:
    """Programs in C, compiled once, and the node that they run on."""

    def __init__(self, folder: Path, node: str) -> None:
        self._folder = folder
        self.node = node

    def compiled(self, name: str, *flags: str, by: str = "cc", shared: bool = False) -> Path:
        """Return a program, or a library, of the folder `programs`."""
        program = self._folder / "-".join([name, by, *(flag.strip("-") for flag in flags)])
        if not program.exists():
            more = ("-shared", "-fPIC", "-ldl") if shared else ()
            libraries.compiled(SOURCES / f"{name}.c", program, *flags, *more, by=by)
        return program

    def variables(self) -> dict[str, str]:
        """Return the environment of a program under the hooks, and see that its node is there.

        A node that was started for a program ends ten seconds after its last socket.
        """
        library = libraries.found()
        if not os.environ.get("TEST_NODE"):
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv("URDS_IMPL", raising=False)  # of the tests; a node needs the other one
                ensure(self.node)
        return environment(os.environ, library=library, node=self.node)

    def run(
        self, *command: str | Path, variables: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command under the hooks, and return what it printed."""
        return subprocess.run(
            list(map(str, command)), env=variables or self.variables(), capture_output=True,
            text=True, timeout=RUN_S_MAX, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the place of a node for these tests alone; `TEST_NODE` names one that runs already."""
    libraries.found()
    if named := os.environ.get("TEST_NODE"):
        yield named
        return
    place = str(tmp_path_factory.mktemp("node") / "node.sock")
    yield place
    with suppress(OSError):  # gone already
        commands.stop(place)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory, node: str) -> Programs:
    """Return the programs of this folder."""
    return Programs(tmp_path_factory.mktemp("programs"), node)
