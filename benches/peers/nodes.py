"""urds between two programs that are attached to a node, or each to a node of its own.

The node of the receiver, or the one node of both, is a child of the receiver, that of the sender is
a child of the sender. All run with the default buffers, whatever the length of the messages, and so
do the rows beside them.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from .base import Address, Kind
from .memory import FOLDER_VARIABLE, UrdsOverMemory
from .ours import Urds, plane

_KINDS = frozenset({Kind.NODE_ONE_WAY, Kind.NODE_ROUND_TRIP})
_START_S = 20.0
_STEP_S = 0.02
_IDLE_EXIT_S = 5.0  # if this process is killed


class Node:
    """A node that this process has started, in the folder of the run."""

    def __init__(self, name: str, settings: Mapping[str, str], config: str = "") -> None:
        from urds.rds.node import commands

        self.place = f"{os.environ[FOLDER_VARIABLE]}/{name}.sock"
        self._commands = commands
        environment = {key: one for key, one in os.environ.items() if not key.startswith("URDS_")}
        path = Path(f"{self.place}.toml")
        lines = [f"{key.removeprefix('URDS_').lower()} = {one}" for key, one in settings.items()]
        path.write_text("\n".join([config, "[settings]", *lines, ""]), encoding="utf-8")
        command = ["-m", "urds", "node", "--socket", self.place, "--config", str(path)]
        with Path(f"{self.place}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command, "--idle-exit-s", f"{_IDLE_EXIT_S:g}"],
                env=environment,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        until_s = time.monotonic() + _START_S
        while (status := self._status()) is None:
            if self._process.poll() is not None or time.monotonic() > until_s:
                said = Path(f"{self.place}.log").read_text(encoding="utf-8", errors="replace")
                raise OSError(f"the node does not begin: {said.strip()[-200:]}")
            time.sleep(_STEP_S)
        self.pids = [self._process.pid, status["worker"], status["fork_server"]]

    def _status(self) -> dict[str, Any] | None:
        try:
            return self._commands.status(self.place)
        except OSError:
            return None

    def worker(self) -> int:
        """Return the process of the worker. Raises OSError."""
        return int(self._commands.status(self.place)["worker"])

    def upgrade(self) -> None:
        """Have the worker replaced. Raises OSError."""
        self._commands.upgrade(self.place)

    def end(self) -> None:
        """Have it end."""
        with suppress(OSError):
            self._commands.stop(self.place)
        self._process.kill()
        self._process.wait()


class UrdsAlone(Urds):
    """Each process keeps its address itself; over TCP."""

    name = "urds_alone"
    label = "urds in the process, TCP"
    kinds = _KINDS
    default_buffers = True
    row = 40


class UrdsAloneOverMemory(UrdsOverMemory):
    """The same over a shm stream."""

    name = "urds_alone_shm"
    label = "urds in the process, shm stream"
    kinds = _KINDS
    default_buffers = True
    row = 41


class UrdsAtNode(UrdsAlone):
    """Both programs are attached to one node."""

    name = "urds_node"
    label = "urds, one node"
    row = 42
    settings: ClassVar[Mapping[str, str]] = {}
    node_settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, payload_bytes: int) -> None:
        super().__init__(payload_bytes)
        self._node: Node | None = None

    @classmethod
    def missing(cls) -> str | None:
        """Tell whether urds is there, with the plane that nodes have."""
        problem = super().missing()
        if problem is None and plane() != "native":
            return "a node needs the compiled plane"
        return problem

    def helpers(self) -> list[int]:
        """Return supervisor, worker and fork server."""
        return [] if self._node is None else self._node.pids

    def close(self) -> None:
        """End the node."""
        if self._node is not None:
            self._node.end()

    def _place_name(self) -> str:
        return f"{self.name}-{self.payload_bytes}"

    def _start_node(self, name: str) -> None:
        self._node = Node(name, self.node_settings)
        os.environ["URDS_NODE"] = self._node.place

    def open_receiver(self, senders: int) -> Address:
        """Start the node, and bind there."""
        self._start_node(self._place_name())
        return super().open_receiver(senders)

    def open_sender(self, address: Address, index: int) -> None:
        """Bind at the node of the receiver."""
        os.environ["URDS_NODE"] = f"{os.environ[FOLDER_VARIABLE]}/{self._place_name()}.sock"
        super().open_sender(address, index)


class UrdsAtTwoNodes(UrdsAtNode):
    """Each program is attached to a node of its own; the nodes talk over TCP."""

    name = "urds_two_nodes"
    label = "urds, two nodes, TCP"
    row = 43
    node_settings: ClassVar[Mapping[str, str]] = {"URDS_SHARED_MEMORY": "false"}

    def open_sender(self, address: Address, index: int) -> None:
        """Start the second node, and bind there."""
        self._start_node(f"{self._place_name()}-sender")
        Urds.open_sender(self, address, index)


class UrdsAtTwoNodesOverMemory(UrdsAtTwoNodes):
    """The same, where the nodes share memory."""

    name = "urds_two_nodes_shm"
    label = "urds, two nodes, shm stream"
    row = 44
    node_settings: ClassVar[Mapping[str, str]] = {"URDS_SHARED_MEMORY": "true"}


NODES = (UrdsAtNode, UrdsAtTwoNodes, UrdsAtTwoNodesOverMemory, UrdsAlone, UrdsAloneOverMemory)
