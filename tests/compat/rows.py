"""One row of a compatibility run: two hosts of different builds, and what is said of them.

A row starts a host of each build (`role.py`), has them exchange messages, kills and restarts each
in turn, and exchanges again, so that handshakes, generations and acknowledgements of both builds
meet. It knows nothing of `urds` but the commands of a build.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.support.places import take_subnet

ROLE = Path(__file__).with_name("role.py")
MESSAGES = 41  # of an exchange, each way: 21 one by one, 20 in a burst
NETWORKS = (93, 1)  # `take_subnet`
PYTHON, NATIVE = "python", "native"
ANSWER_S_MAX = 20.0


class Result(StrEnum):
    """What became of a row. The last one is a failure of the run."""

    WORKS = "works"
    FALLS_BACK = "falls back"
    ERROR = "one clear error"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Carrier:
    """What is asked to carry messages, and what `urds info` calls it."""

    name: str
    transport: str
    variables: dict[str, str]


_TCP = {"URDS_TRANSPORT": "tcp"}
_RDMA = {"URDS_TRANSPORT": "ib"}
CARRIERS = (
    Carrier("tcp", "tcp", {**_TCP, "URDS_SHARED_MEMORY": "0"}),
    # Shm streams of another version fall back to TCP; the greeting's version tells.
    Carrier("shared memory", "shm", {**_TCP, "URDS_SHARED_MEMORY": "1"}),
    # Contexts with another version of the channel find no listener at shm0, and meet over tcp0.
    Carrier("RDMA shm0", "infiniband", {**_RDMA, "URDS_RDMA_DEVICES": "shm0,tcp0"}),
    Carrier("RDMA tcp0", "infiniband", {**_RDMA, "URDS_RDMA_DEVICES": "tcp0"}),
)


@dataclass(frozen=True, slots=True)
class Build:
    """An environment with a version of `urds`."""

    label: str  # `0.1.0` or `tree`
    python: str
    variables: dict[str, str]  # of each of its processes
    sources: Path  # where its `urds` lies
    planes: tuple[str, ...] = (PYTHON,)
    role: Path = ROLE

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a process; nothing of the caller's own `urds` is in it."""
        left_out = ("PYTHONPATH", "VIRTUAL_ENV", "URDS_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
        return {**kept, **self.variables, **more}

    def has(self, plane: str) -> bool:
        """Tell whether its sockets bind on a plane."""
        program = "import urds; urds.socket().bind(('127.93.254.1', 0))"
        command = [self.python, "-P", "-c", program]
        environment = self.environment(URDS_IMPL=plane)
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, timeout=60, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return False
        return done.returncode == 0


@dataclass(frozen=True, slots=True)
class Row:
    """Which two hosts meet, and over what."""

    carrier: Carrier
    release_plane: str
    tree_plane: str
    release_connects: bool  # it has the lower address, which connects

    @property
    def connects(self) -> str:
        """Return which build connects."""
        return "release" if self.release_connects else "tree"


@dataclass(slots=True)
class Verdict:
    """What a row came to. Not frozen: it is filled in while the row runs."""

    carrier: str
    release_plane: str
    tree_plane: str
    connects: str
    result: Result = Result.FAILED
    detail: str = ""
    seconds: float = 0.0
    transports: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the fields of the JSON document."""
        return asdict(self)


class Stopped(Exception):
    """The row is over; the result and its reason are the arguments."""


class Host:
    """A process of one build. A context manager: it is ended with the block."""

    def __init__(
        self, build: Build, plane: str, carrier: Carrier, plan: dict[str, Any], deadline_s: float
    ) -> None:
        self.build, self.environment = (
            build,
            build.environment(URDS_IMPL=plane, **carrier.variables),
        )
        self.plan, self.deadline_s = plan, deadline_s
        self.name = f"{build.label} ({plane})"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - __exit__ closes it
        self._start()

    def _start(self) -> None:
        command = [self.build.python, "-P", str(self.build.role), json.dumps(self.plan)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            env=self.environment, cwd=tempfile.gettempdir(),
        )  # fmt: skip
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()
        file = self.expect("ready")["file"]
        if not Path(file).resolve().is_relative_to(self.build.sources.resolve()):
            raise Stopped(Result.FAILED, f"{self.name} runs the urds of another place, {file}")

    @staticmethod
    def _read(process: "subprocess.Popen[bytes]", lines: "queue.SimpleQueue[bytes]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(b"")

    def restart(self) -> None:
        """Kill the process and start another one at its address."""
        self._process.kill()
        self._process.wait()
        self._start()

    def tell(self, line: str) -> None:
        """Send a line; a process that is gone says why when it is asked."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass

    def expect(self, said: str) -> dict[str, Any]:
        """Return the next answer. Raises Stopped if it is not the expected one in time."""
        try:
            line = self._lines.get(timeout=max(0.0, self.deadline_s - time.monotonic()))
        except queue.Empty:
            raise Stopped(Result.FAILED, f"{self.name} hangs: no answer {said!r} in time") from None
        if not line:
            raise Stopped(Result.FAILED, f"{self.name} ended before {said!r}{self._last_words()}")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise Stopped(Result.FAILED, f"{self.name} said {line[:200]!r}") from None
        if answer["said"] == said:
            return answer
        if answer["said"] == "error" and len(answer["text"].splitlines()) == 1:
            raise Stopped(Result.ERROR, f"{self.name}: {answer['text']}")
        text = answer.get("text", "")
        raise Stopped(Result.FAILED, f"{self.name}: {answer['said']} instead of {said}: {text}")

    def transport(self) -> str:
        """Return what carries the messages, as the command of the build tells. Raises Stopped."""
        command = [self.build.python, "-P", "-m", "urds", "info", "-n", "-v", "--json"]
        command += ["--pid", str(self._process.pid)]
        try:
            done = subprocess.run(
                command, env=self.environment, cwd=tempfile.gettempdir(), capture_output=True,
                timeout=ANSWER_S_MAX, check=True,
            )  # fmt: skip
            rows = json.loads(done.stdout)["connections"]
        except (subprocess.SubprocessError, ValueError, KeyError) as error:
            raise Stopped(Result.FAILED, f"{self.name}: urds info failed: {error}") from None
        found = {row["transport"] for row in rows if row["peer"] == self.plan["peer"]}
        return str(found.pop()) if len(found) == 1 else f"{sorted(found)}"

    def end(self) -> None:
        """End it in order. Raises Stopped if it does not end, or not well."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(max(0.1, self.deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Stopped(Result.FAILED, f"{self.name} does not end") from None
        if code != 0:
            raise Stopped(Result.FAILED, f"{self.name} ended with {code}{self._last_words()}")
        if self._log_text().count("Traceback"):
            raise Stopped(Result.FAILED, f"{self.name}: a traceback{self._last_words()}")

    def _log_text(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _last_words(self) -> str:
        lines = self._log_text().strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""

    def __enter__(self) -> "Host":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what is left."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


def rows(release: Build, tree: Build) -> list[Row]:
    """Return every row that these builds have: each carrier and plane, either side connecting.

    Shared memory needs a compiled plane on both sides; where one has it, TCP is fallen back to.
    RDMA has a Python plane of its own beside the compiled one, so equal planes are enough there.
    """
    return [
        Row(carrier, old, new, release_connects)
        for carrier in CARRIERS
        for old in release.planes
        for new in tree.planes
        if _is_asked(carrier, old, new)
        for release_connects in (True, False)
    ]


def _is_asked(carrier: Carrier, old: str, new: str) -> bool:
    if carrier.transport == "shm":
        return NATIVE in (old, new)
    return carrier.transport == "tcp" or old == new


def run(row: Row, release: Build, tree: Build, *, limit_s: float) -> Verdict:
    """Run a row and judge it; it takes at most `limit_s` and a little."""
    verdict = Verdict(row.carrier.name, row.release_plane, row.tree_plane, row.connects)
    started_s = time.monotonic()
    try:
        network, lock = take_subnet(*NETWORKS)
        with lock:
            detail = _exchange_all(row, release, tree, network, started_s + limit_s, verdict)
        asked = {row.carrier.transport}
        verdict.result = Result.WORKS if set(verdict.transports) == asked else Result.FALLS_BACK
        verdict.detail = detail
    except Stopped as stop:
        verdict.result, verdict.detail = stop.args
    verdict.seconds = round(time.monotonic() - started_s, 1)
    return verdict


def _exchange_all(
    row: Row, release: Build, tree: Build, network: str, deadline_s: float, verdict: Verdict
) -> str:
    low, high = f"{network}.2", f"{network}.3"
    old, new = (low, high) if row.release_connects else (high, low)
    wait_s = max(1.0, (deadline_s - time.monotonic()) / 4)
    with ExitStack() as stack:
        plans = ((release, row.release_plane, old, new), (tree, row.tree_plane, new, old))
        hosts = [
            stack.enter_context(
                Host(build, plane, row.carrier, plan(local, peer, wait_s), deadline_s)
            )
            for build, plane, local, peer in plans
        ]
        for exchange in range(3):
            if exchange:
                hosts[-exchange].restart()  # the tree's host, then that of the release
            _exchange(hosts, exchange)
            verdict.transports = [host.transport() for host in hosts]
        for host in hosts:
            host.end()
    transports = dict.fromkeys(verdict.transports)
    return f"{3 * MESSAGES} messages each way, 2 restarts, over {' and '.join(transports)}"


def plan(local: str, peer: str, wait_s: float) -> dict[str, Any]:
    """Return what a host is told."""
    return {"local": local, "peer": peer, "wait_s": wait_s}


def _exchange(hosts: list[Host], exchange: int) -> None:
    for host in hosts:
        host.tell(f"{exchange} {MESSAGES}")
    for host in hosts:
        if wrong := host.expect("exchanged")["wrong"]:
            raise Stopped(Result.FAILED, f"{host.name}: {wrong}")


def tree_of(root: Path) -> Build:
    """Return the build of the sources below a folder, under this interpreter."""
    return Build("tree", sys.executable, {"PYTHONPATH": str(root / "src")}, root / "src")
