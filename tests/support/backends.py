"""Which kind of backend the sockets of this run have: in the process, or attached to a node.

`TEST_BACKEND=attached` has the suites that make backends by `made` run over nodes, which are
processes of their own: one is kept for tests with the same settings. Two backends at a time have
two nodes, so what goes between them goes over a connection. A node keeps its addresses, so each
test has addresses of its own then (`shift`).
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support import carriers, planes
from urds.rds.plane.choose import NATIVE, attaches
from urds.rds.runtime.attached import Attached
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.places import is_served
from urds.rds.runtime.process import process
from urds.rds.settings import Settings

IS_ATTACHED: Final = carriers.IS_ATTACHED
_ROOT: Final = Path(__file__).resolve().parents[2]
_START_S: Final = 60.0
_OF_NODES: Final = {"node", "info_socket", "info_directory"}  # which a node has of its own

Backend = InProcess | Attached


class _Node:
    def __init__(self, key: str, place: str, process: subprocess.Popen[bytes]) -> None:
        self.key, self.place, self.process = key, place, process
        self.is_used = False


_nodes: list[_Node] = []
_shifts = 0


def missing() -> str:
    """Return why there can be no attached backend here; "" if there can."""
    if planes.in_use() != NATIVE:
        return "nodes need URDS_IMPL=native"
    return "" if attaches() else "this urds_native attaches no sockets"


def shift() -> None:
    """Have the next test use other addresses than the ones before."""
    global _shifts
    _shifts += IS_ATTACHED


def shifted() -> int:
    """Return how often `shift` was called."""
    return _shifts


@contextmanager
def made(**values: object) -> Iterator[Backend]:
    """Make a backend with these tunables, closed at the end of the block."""
    settings = Settings.load(values, environ=carriers.chosen())
    if not IS_ATTACHED:
        backend = InProcess(settings)
        try:
            yield backend
        finally:
            backend.close()
        return
    node = _node_with({**_carrier(), **values})
    node.is_used = True
    attached = Attached(settings, node.place)
    try:
        yield attached
    finally:
        attached.close()
        node.is_used = False


@contextmanager
def in_use(backend: Backend) -> Iterator[None]:
    """Have new sockets of this process be of a backend for a block."""
    before = process.use(backend)
    try:
        yield
    finally:
        process.use(before)


@contextmanager
def at_own_node(config: str) -> Iterator[Attached]:
    """Make a backend at a node with that configuration, which ends with the block."""
    node = _start("", config)
    attached = Attached(Settings.load({"drain_s": 0}, environ=carriers.chosen()), node.place)
    try:
        yield attached
    finally:
        attached.close()
        _end(node)


def _carrier() -> dict[str, object]:
    prefix = "URDS_"
    return {name.removeprefix(prefix).lower(): one for name, one in carriers.chosen().items()}


def _node_with(values: Mapping[str, object]) -> _Node:
    kept = {name: one for name, one in values.items() if name not in _OF_NODES}
    key = json.dumps(kept, sort_keys=True)
    idle = [one for one in _nodes if not one.is_used]
    for one in idle:  # others may hold the addresses that this one is to bind
        if one.key != key or one is not idle[0] or one.process.poll() is not None:
            _nodes.remove(one)
            _end(one)
    node = next((one for one in _nodes if not one.is_used), None)
    if node is None:
        lines = [f"{name} = {json.dumps(one)}\n" for name, one in kept.items()]
        node = _start(key, "[settings]\n" + "".join(lines))
        _nodes.append(node)
    return node


def _start(key: str, text: str) -> _Node:
    folder = Path(tempfile.mkdtemp(prefix="urds-nodes-"))
    config = folder / "node.toml"
    config.write_text(text)
    place = str(folder / "node.sock")
    environ = {name: one for name, one in os.environ.items() if not name.startswith("URDS_")}
    environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "urds", "node", "--socket", place, "--config", str(config)]
        process = subprocess.Popen(command, stderr=log, env=environ, stdin=subprocess.DEVNULL)
    node = _Node(key, place, process)
    atexit.register(_end, node)
    until_s = time.monotonic() + _START_S
    while not is_served(place):
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < until_s, "the node does not begin"
        time.sleep(0.01)
    return node


def _end(node: _Node) -> None:
    node.process.terminate()
    try:
        node.process.wait(30)
    except subprocess.TimeoutExpired:
        node.process.kill()
    shutil.rmtree(Path(node.place).parent, ignore_errors=True)
