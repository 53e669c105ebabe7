"""Rows of a compatibility run about nodes: clients and nodes of different builds, and upgrades.

Where the release has a node, each build's programs attach to a node of the other one, and a node of
the release is upgraded to the tree while messages are queued. A release without a node is stood in
for by the tree, and what a later release might do is generated: `VARIATIONS` change single records
or memories on their way (`relay`), an `Edit` changes a copy of the tree's sources. Each has to
work, or to end with the errno that it states and one line; whatever happens, another program's
queued messages arrive, each once and in order.
"""

import errno
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.compat.relay import Change, Relay
from tests.compat.rows import (
    MESSAGES,
    NATIVE,
    NETWORKS,
    Build,
    Carrier,
    Host,
    Result,
    Stopped,
    Verdict,
    plan,
)
from tests.support.places import take_subnet

ROLE: Final = Path(__file__).with_name("node_role.py")
_STEP_S: Final = 0.02
_COMMAND_S_MAX: Final = 60.0
_ROUTE: Final = 4
_OPEN_AND_BIND: Final = 11
_OPENING: Final = {1, _OPEN_AND_BIND}  # OPEN: of the standard library's sockets
_REFUSED: Final = "upgrade once they are closed"


@dataclass(frozen=True, slots=True)
class Variation:
    """What a later release might do, and what becomes of a program that meets it."""

    name: str
    change: Change
    errno: int | None = None  # of the program's error; None: it works


def _put(at: int, value: int, size_bytes: int = 2) -> Callable[[bytes], bytes]:
    """Return what overwrites a number of a record."""

    def put(record: bytes) -> bytes:
        return record[:at] + value.to_bytes(size_bytes, "little") + record[at + size_bytes :]

    return put


def _longer(record: bytes) -> bytes:
    """Append a field that is not known."""
    length = int.from_bytes(record[8:12], "little")
    record = _put(8, length + 4, 4)(record)
    return record[:length] + b"more" + record[length + 4 :]


_VERSION_AT, _OPERATION_AT, _FLAGS_AT = 4, 6, 24
_MEMORY_VERSION_AT, _MEMORY, _CONGESTION = 8, 1, 2  # places in the answer of these
VARIATIONS: Final = (
    Variation("requests of version 2", Change(request=_put(_VERSION_AT, 2)), errno.EPROTO),
    Variation("answers of version 2", Change(answer=_put(_VERSION_AT, 2)), errno.EPROTO),
    Variation(
        "an unknown operation",
        Change({_ROUTE}, request=_put(_OPERATION_AT, 99), answer=_put(_OPERATION_AT, _ROUTE)),
        errno.ENOSYS,
    ),
    Variation("an unknown flag", Change(_OPENING, request=_put(_FLAGS_AT, 64, 4)), errno.EINVAL),
    Variation("a longer request", Change(request=_longer), errno.EINVAL),
    Variation("a longer answer", Change(answer=_longer)),
    Variation("socket memory of version 2", Change(_OPENING, memory=(_MEMORY, 8, 2)), errno.EPROTO),
    Variation("socket memory of another kind", Change(_OPENING, memory=(_MEMORY, 0, 7)),
              errno.EPROTO),
    Variation("congestion memory of version 2", Change(_OPENING, memory=(_CONGESTION, 8, 2)),
              errno.EPROTO),
    Variation(
        "a node that opens and binds by two requests",
        Change({_OPEN_AND_BIND}, request=_put(_OPERATION_AT, 99),
               answer=_put(_OPERATION_AT, _OPEN_AND_BIND)),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Edit:
    """A later release, as a change of one text of the sources."""

    name: str
    file: str
    before: str
    after: str


LATER_REQUESTS: Final = Edit(
    "requests of version 2", "urds/rds/wire/node.py", "VERSION: Final = 1", "VERSION: Final = 2"
)
LATER_MEMORY: Final = Edit(
    "socket memory of version 2", "urds/rds/node/native_calls.py",
    "= self._native.memory_formats()", '= ["URDSSOCK 2"]',
)  # fmt: skip
LATER_WORKER: Final = Edit(
    "a worker that says more", "urds/rds/node/worker.py",
    'self._channel.send("ready", ', 'self._channel.send("rested", why=[1])\n'
    '        self._channel.send("ready", age_s=1, ',
)  # fmt: skip


class Installed:
    """A folder with the packages of a build, as an installation has them; it can be replaced."""

    def __init__(self, build: Build, folder: Path) -> None:
        self.folder, self._number = folder / "installed", 0
        self.folder.mkdir()
        self.take(build)
        variables = {**build.variables, "PYTHONPATH": str(self.folder)}
        self.build = replace(build, variables=variables, sources=self.folder)

    def take(self, build: Build, edits: Sequence[Edit] = ()) -> None:
        """Replace the packages by those of a build, changed if that is wanted. Raises Stopped."""
        program = "import urds, urds_native; print(urds.__file__); print(urds_native.__file__)"
        done = subprocess.run(
            [build.python, "-P", "-c", program], env=build.environment(), text=True, check=True,
            capture_output=True, timeout=_COMMAND_S_MAX,
        )  # fmt: skip
        fresh = self.folder.with_name(f"fresh{self._number}")
        old = self.folder.with_name(f"old{self._number}")
        self._number += 1
        fresh.mkdir()
        for file in done.stdout.splitlines():
            package = Path(file).parent
            left_out = shutil.ignore_patterns("__pycache__")
            shutil.copytree(package, fresh / package.name, ignore=left_out)
        for edit in edits:
            path = fresh / edit.file
            text = path.read_text()
            if text.count(edit.before) != 1:
                raise Stopped(Result.FAILED, f"{edit.file} has no longer what {edit.name} replaces")
            path.write_text(text.replace(edit.before, edit.after))
        self.folder.rename(old)
        fresh.rename(self.folder)


class Node:
    """A node of a build; a context manager."""

    def __init__(self, build: Build, place: Path) -> None:
        self.build, self.place = build, str(place)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - __exit__ closes it
        self._process = subprocess.Popen(
            [build.python, "-P", "-m", "urds", "node", "--socket", self.place],
            env=build.environment(), stderr=self._log, stdin=subprocess.DEVNULL,
            cwd=tempfile.gettempdir(),
        )  # fmt: skip

    def __enter__(self) -> "Node":
        """Wait until it answers. Raises Stopped."""
        until_s = time.monotonic() + _COMMAND_S_MAX
        # The command is a process that takes as long as the node's own beginning.
        while not Path(self.place).exists() or self.command(self.build, "status").returncode != 0:
            if self._process.poll() is not None or time.monotonic() > until_s:
                raise Stopped(Result.FAILED, f"the node does not begin: {self.log()[-300:]}")
            time.sleep(_STEP_S)
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(_COMMAND_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def command(self, build: Build, what: str) -> "subprocess.CompletedProcess[str]":
        """Run `urds node` of a build for it."""
        return subprocess.run(
            [build.python, "-P", "-m", "urds", "node", what, "--socket", self.place],
            env=build.environment(), capture_output=True, text=True, timeout=_COMMAND_S_MAX,
            check=False, cwd=tempfile.gettempdir(),
        )  # fmt: skip

    def log(self) -> str:
        """Return what it has said."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")


def has_node(build: Build) -> bool:
    """Tell whether a build has nodes: their command, and the compiled plane that they need."""
    if NATIVE not in build.planes:
        return False
    command = [build.python, "-P", "-m", "urds", "node", "--help"]
    try:
        done = subprocess.run(
            command, env=build.environment(), capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One row; `steps` raises Stopped with what went wrong, and returns the detail."""

    carrier: Carrier
    connects: str
    steps: Callable[[Path, str, float], str]
    wanted: int | None = None  # the errno that it has to end with
    release_plane: str = NATIVE
    tree_plane: str = NATIVE

    def run(self, *, limit_s: float) -> Verdict:
        """Run it and judge it."""
        verdict = Verdict(self.carrier.name, NATIVE, NATIVE, self.connects)
        started_s = time.monotonic()
        network, lock = take_subnet(*NETWORKS)
        try:
            with lock, _folder() as folder:
                verdict.detail = self.steps(folder, network, started_s + limit_s)
            verdict.result = Result.WORKS if self.wanted is None else Result.ERROR
        except Stopped as stop:
            verdict.result, verdict.detail = stop.args
        except subprocess.TimeoutExpired as late:
            verdict.detail = f"{late.cmd[-3:]} takes more than {late.timeout:.0f} s"
        verdict.seconds = round(time.monotonic() - started_s, 1)
        return verdict


def node_rows(release: Build, tree: Build) -> list[NodeRow]:
    """Return the rows; none if the tree has no node here."""
    if not has_node(tree):
        return []
    old = release if has_node(release) else replace(tree, label=f"{tree.label}, no release yet")
    return rows_between(old, tree)


def rows_between(old: Build, tree: Build) -> list[NodeRow]:
    """Return the rows of two builds that have nodes."""
    return [
        *(_met(client, node) for client, node in ((old, tree), (tree, old))),
        _upgraded("node: upgrade from the release", old, tree),
        _upgraded("node: upgrade, later worker", tree, tree, LATER_WORKER),
        _refused_upgrade(tree),
        _later_node(tree),
        *(_varied(tree, one) for one in VARIATIONS),
        _varied(tree, VARIATIONS[0], is_plain=True),
        _varied(tree, VARIATIONS[6], is_plain=True),
    ]


def _carrier(name: str) -> Carrier:
    return Carrier(name, "node", {})


def _met(client: Build, node: Build) -> NodeRow:
    """Have a program of each build exchange messages at a node, and each command asked of it."""

    def steps(folder: Path, network: str, deadline_s: float) -> str:
        at = Carrier("node", "node", {"URDS_NODE": str(folder / "node.sock")})
        with Node(node, folder / "node.sock") as one, ExitStack() as stack:
            ends = (client, f"{network}.2", f"{network}.3"), (node, f"{network}.3", f"{network}.2")
            wait_s = max(1.0, (deadline_s - time.monotonic()) / 4)
            hosts = [
                stack.enter_context(Host(build, NATIVE, at, plan(local, peer, wait_s), deadline_s))
                for build, local, peer in ends
            ]
            for exchange in range(3):
                if exchange == 1:
                    hosts[0].restart()
                if exchange == 2:
                    _commanded(one, client, "upgrade")
                for host in hosts:
                    host.tell(f"{exchange} {MESSAGES}")
                for host in hosts:
                    if wrong := host.expect("exchanged")["wrong"]:
                        raise Stopped(Result.FAILED, f"{host.name}: {wrong}")
            for host in hosts:
                host.end()
            _commanded(one, client, "status")
            _commanded(one, client, "stop")
        return f"{3 * MESSAGES} messages each way, a restart, an upgrade, stop"

    return NodeRow(_carrier(f"node of {node.label}"), client.label, steps)


def _upgraded(name: str, old: Build, new: Build, *edits: Edit) -> NodeRow:
    """Replace the packages below a running node, and upgrade it while messages are queued."""

    def steps(folder: Path, network: str, deadline_s: float) -> str:
        installed = Installed(old, folder)
        with (
            Node(installed.build, folder / "node.sock") as node,
            _held(old, node.place, network, deadline_s),
        ):
            installed.take(new, edits)
            _commanded(node, installed.build, "upgrade")
            _tried(new, node.place, network, deadline_s)
        return "what was queued is whole"

    return NodeRow(_carrier(name), old.label, steps)


def _refused_upgrade(tree: Build) -> NodeRow:
    """Upgrade to a worker that cannot take the sockets over: it is refused until they are gone."""

    def steps(folder: Path, network: str, deadline_s: float) -> str:
        installed = Installed(tree, folder)
        with Node(installed.build, folder / "node.sock") as node:
            with _held(tree, node.place, network, deadline_s):
                installed.take(tree, [LATER_MEMORY])
                done = node.command(tree, "upgrade")
                if done.returncode != 1 or _REFUSED not in done.stderr:
                    raise Stopped(Result.FAILED, f"upgrade: {done.returncode} {done.stderr[-300:]}")
            # The node hears a little later that the sockets of a process have ended.
            while _REFUSED in (late := node.command(tree, "upgrade")).stderr:
                if time.monotonic() > deadline_s:
                    raise Stopped(Result.FAILED, late.stderr.strip()[-300:])
            if late.returncode != 0:
                raise Stopped(Result.FAILED, f"urds node upgrade: {late.stderr.strip()[-300:]}")
        return done.stderr.strip()

    return NodeRow(_carrier("node: upgrade, later memory"), tree.label, steps, errno.EPROTO)


def _later_node(tree: Build) -> NodeRow:
    """Have programs of the tree meet a node whose requests have the next version."""

    def steps(folder: Path, network: str, deadline_s: float) -> str:
        installed = Installed(tree, folder)
        installed.take(tree, [LATER_REQUESTS])
        with Node(installed.build, folder / "node.sock") as node:
            said = _tried(tree, node.place, network, deadline_s, errno.EPROTO)
            for what in ("status", "upgrade", "stop"):
                done = node.command(tree, what)
                lines = done.stderr.strip().splitlines()
                if done.returncode != 1 or len(lines) != 1 or "another release" not in lines[0]:
                    raise Stopped(Result.FAILED, f"{what}: {done.returncode} {done.stderr[-300:]}")
        return said

    return NodeRow(_carrier("node of version 2"), tree.label, steps, errno.EPROTO)


def _varied(tree: Build, variation: Variation, *, is_plain: bool = False) -> NodeRow:
    """Have a program meet a variation, while another one has messages queued."""

    def steps(folder: Path, network: str, deadline_s: float) -> str:
        place = folder / "node.sock"
        with Node(tree, place) as node, _held(tree, node.place, network, deadline_s):
            real = place.with_suffix(".real")
            place.rename(real)
            try:
                with Relay(str(place), str(real), variation.change) as relay:
                    said = _tried(
                        tree, str(place), network, deadline_s, variation.errno, is_plain=is_plain
                    )
                if not relay.changed:
                    raise Stopped(Result.FAILED, "nothing was changed")
            finally:
                real.rename(place)
        return said

    kind = "unmodified program" if is_plain else "node"
    return NodeRow(_carrier(f"{kind}: {variation.name}"), tree.label, steps, variation.errno)


def _commanded(node: Node, build: Build, what: str) -> None:
    done = node.command(build, what)
    if done.returncode != 0:
        raise Stopped(Result.FAILED, f"urds node {what}: {done.stderr.strip()[-300:]}")


@contextmanager
def _held(build: Build, place: str, network: str, deadline_s: float) -> Iterator[None]:
    """Have messages queued at a node during the block; they are whole after it."""
    command = [build.python, "-P", str(ROLE), "hold", f"{network}.4"]
    process = subprocess.Popen(
        command, env=build.environment(URDS_NODE=place, URDS_IMPL=NATIVE), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=tempfile.gettempdir(),
    )  # fmt: skip
    assert process.stdout is not None
    try:
        _said(process.stdout.readline(), "held")
        yield
        rest, errors = process.communicate("\n", max(1.0, deadline_s - time.monotonic()))
        _said(rest, "whole", errors)
    finally:
        process.kill()
        process.communicate()


def _said(line: str, wanted: str, errors: str = "") -> None:
    if not line or json.loads(line)["said"] != wanted:
        raise Stopped(Result.FAILED, f"of what was queued: {line.strip() or errors[-300:]}")


def _tried(
    build: Build,
    place: str,
    network: str,
    deadline_s: float,
    number: int | None = None,
    *,
    is_plain: bool = False,
) -> str:
    """Have a program attach and send; return its text. Raises Stopped for another errno."""
    command = [build.python, "-P"]
    command += ["-m", "urds", "run", "--", build.python] if is_plain else []
    command += [str(ROLE), "plain" if is_plain else "try", f"{network}.5"]
    done = subprocess.run(
        command, env=build.environment(URDS_NODE=place, URDS_IMPL=NATIVE), text=True,
        capture_output=True, timeout=max(1.0, deadline_s - time.monotonic()), check=False,
        cwd=tempfile.gettempdir(),
    )  # fmt: skip
    if done.stderr.strip() or not done.stdout:
        raise Stopped(Result.FAILED, done.stderr.strip()[-300:] or "it says nothing")
    said: dict[str, Any] = json.loads(done.stdout)
    if said.get("errno") != number or len(said.get("text", "").splitlines()) > 1:
        raise Stopped(Result.FAILED, f"not {number and errno.errorcode[number]}: {said}")
    return str(said.get("text", "works"))


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="urds-compat-") as name:
        yield Path(name)
