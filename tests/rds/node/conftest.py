"""Fixtures: nodes with a stand-in for the plane, and programs that ask them."""

import array
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from urds.rds.node import commands
from urds.rds.node.users import OVERFLOW_UID
from urds.rds.runtime import node_requests
from urds.rds.wire import node as wire
from urds.rds.wire.node import Answer, Request, RequestOp

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 30.0


def environment(**more: str) -> dict[str, str]:
    """Return an environment with this checkout and without settings of the caller."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("URDS_")}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), **more}


def wait_until(condition: Callable[[], Any]) -> Any:
    """Wait until a condition is true; return it."""
    until_s = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < until_s, "it does not come true"
        time.sleep(0.005)
    return found


@dataclass
class Node:
    """A running node."""

    place: str
    process: subprocess.Popen[str]
    log: Path
    opened: list[int] = field(default_factory=list)

    def ask(
        self, operation: RequestOp, *descriptors: int, **values: Any
    ) -> tuple[Answer, list[int]]:
        """Ask it; what comes is closed at the end of the test."""
        request = Request(operation=operation, **values)
        answer, found = node_requests.ask(self.place, request, descriptors)
        self.opened += found
        return answer, found

    def open(self) -> int:
        """Return the descriptor of a new socket."""
        return self.ask(RequestOp.OPEN, flags=0)[1][0]

    def bind(self, descriptor: int, address: str = "127.0.0.1", port: int = 0) -> int:
        """Bind a socket; return its port."""
        from ipaddress import ip_address

        name = wire.Name(ip_address(address), port)
        answer, _ = self.ask(RequestOp.BIND, descriptor, name=name, transport=0xFFFF_FFFF)
        assert answer.name is not None
        return answer.name.port

    def close(self, descriptor: int) -> None:
        """Close a descriptor now."""
        self.opened.remove(descriptor)
        os.close(descriptor)

    def status(self) -> dict[str, Any]:
        """Return what it tells of itself."""
        return commands.status(self.place)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of an event so far."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line[:1] == "{"]
        return [line for line in lines if line["event"] == name]

    def has_told(self, name: str) -> dict[str, Any] | None:
        """Return the last line of an event, None before the first."""
        return (self.events(name) or [None])[-1]

    def raw(self, data: bytes, descriptors: Sequence[int] = ()) -> bytes:
        """Send bytes as a request; return what comes, b"" where the node only closes."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
            end.settimeout(WAIT_S)
            end.connect(self.place)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            end.sendmsg([data], [rights] if descriptors else [])
            answer, found, _, _ = socket.recv_fds(end, 4096, 8)
            self.opened += found
            return answer

    def close_opened(self) -> None:
        """Close what it gave."""
        for descriptor in self.opened:
            os.close(descriptor)
        self.opened.clear()

    def end(self) -> int:
        """End it as a manager does; return its exit code."""
        self.close_opened()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


StartNode = Callable[..., Node]


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Start nodes; each ends with the test."""
    with starting(tmp_path) as start:
        yield start


@contextmanager
def starting(tmp_path: Path) -> Iterator[StartNode]:
    """Give what starts nodes; each ends with the block."""
    if os.geteuid() == OVERFLOW_UID:
        pytest.skip(f"a node serves no uid {OVERFLOW_UID}")
    nodes: list[Node] = []

    def start(
        config: str | None = None,
        *,
        prefix: Sequence[str] = (),
        waits: bool = True,
        variables: dict[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        **options: Any,
    ) -> Node:
        folder = tmp_path / f"node{len(nodes)}"
        folder.mkdir()
        options.setdefault("place", str(folder / "node.sock"))
        if config is not None:
            (folder / "node.toml").write_text(config)
            options["config"] = str(folder / "node.toml")
        options = {"log": "json", "verbose": True, **options}
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "tests.rds.node.program", json.dumps(options)],
                stderr=log, env=environment(**(variables or {})), cwd=ROOT, text=True,
                pass_fds=pass_fds,
            )  # fmt: skip
        nodes.append(Node(options["place"], process, folder / "log"))
        if waits:
            wait_until(lambda: _answers(nodes[-1]))
        return nodes[-1]

    try:
        yield start
    finally:
        for node in nodes:
            node.end()


@pytest.fixture(scope="module")
def node_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Start one node with the defaults."""
    with starting(tmp_path_factory.mktemp("nodes")) as start:
        yield start()


@pytest.fixture
def node(node_of_module: Node) -> Iterator[Node]:
    """Give a node with the defaults and without sockets, which a test shares with others."""
    yield node_of_module
    node_of_module.close_opened()
    wait_until(lambda: node_of_module.status()["sockets"] == 0)


def _answers(node: Node) -> bool:
    assert node.process.poll() is None, node.log.read_text()
    try:
        node.status()
    except OSError:
        return False
    return True
