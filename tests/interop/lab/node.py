"""A node on our side of the wire, and the sockets of our side on it.

Programs of our side attach to it by `URDS_NODE`, or run under `urds run`.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

from urds.rds.node import commands

from .guest import Lab, child, with_source

START_S = 20.0


@dataclass(frozen=True, slots=True)
class Node:
    """A running node."""

    place: str
    log: Path

    def status(self) -> dict[str, Any]:
        """Return what it tells of itself."""
        return commands.status(self.place)

    def upgrade(self) -> None:
        """Have its worker replaced; return when the next one serves."""
        commands.upgrade(self.place)

    def kill_worker(self) -> None:
        """Kill its worker; return when the next one serves."""
        before = self.status()["worker"]
        os.kill(before, SIGKILL)
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            with suppress(OSError):
                if self.status()["worker"] != before:
                    return
            time.sleep(0.01)
        raise AssertionError(f"no new worker in {START_S} s: {self.log.read_text()[-2000:]}")


@contextmanager
def open_node(lab: Lab, **environment: str) -> Iterator[Node]:
    """Run a node in the namespace of the wire; end it in order."""
    with tempfile.TemporaryDirectory(dir=lab.work) as folder:
        node = Node(f"{folder}/node.sock", Path(folder, "log"))
        command = lab.inside(sys.executable, "-m", "urds", "node", "--socket", node.place)
        variables = with_source({**environment, "URDS_IMPL": "native"})
        with node.log.open("wb") as log, child(command, environment=variables, log=log) as process:
            _wait(node, process.poll)
            yield node
            with suppress(OSError):
                commands.stop(node.place)


def _wait(node: Node, poll: Any) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and poll() is None:
        with suppress(OSError):
            node.status()
            return
        time.sleep(0.02)
    raise RuntimeError(f"no node: {node.log.read_text()[-2000:]}")
