"""Programs at nodes whose workers are killed, or upgraded, again and again: every message checked.

    python -m tests.soak.nodes --messages 10000000 --kills 1000
    python -m tests.soak.nodes --messages 1000000 --upgrades 100 --victims both

Messages go from programs of one node to programs of another, both ways at once, or between those of
one node. Most workers are killed 2 to 30 ms after messages come again, every fourth so long after
it began to serve, in the midst of taking over. Traffic goes on until as many messages were sent and
as many workers have ended as was asked for. What is lost, doubled, reordered or damaged is counted,
and how long a receiver had nothing: at all, over one end of a worker, and over none, which shows
what the machine does beside. The exit code is 0 if nothing was wrong. The supervisors make none of
their pauses between deaths.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from struct import Struct
from typing import Any, Final

from urds.rds.node import commands
from urds.rds.runtime import node_requests
from urds.rds.runtime.places import is_served
from urds.rds.wire.node import Request, RequestOp

_ROOT: Final = Path(__file__).resolve().parents[2]
_NUMBER: Final = Struct("!Q")
_BODIES: Final = 4093  # as many bodies differ
_BYTES_MAX: Final = 2000  # of most messages
_LONG_BYTES: Final = 60_000  # of one in 256
_PORT: Final = 4000
_GOAL_MS: Final = 500
_LEFT: Final = "urds.delivery"  # who says that messages are left; they never are
_NETWORK: Final = "127.62.0"
_DELAY_S: Final = (0.002, 0.030)  # from serving to the end
_START_S: Final = 30.0
_ASK_S: Final = 0.005  # during an upgrade
_RESUME_S: Final = 5.0  # without a message a worker is killed nevertheless
_PAUSE_S: Final = 0.01  # shorter ones are not noted
STALL_S: Final = 60.0  # without any message the run ends
_LATE_S: Final = 0.5  # after the last message: for what comes twice
_MISSING_MAX: Final = 100_000
_NODE: Final = {"worker": ["-m", "urds.rds.node.worker"], "deaths_max": 1 << 30, "log": "json"}


@dataclass(slots=True)
class Count:
    """What the receiver of one way found."""

    received: int = 0
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    damaged: int = 0
    pauses: list[tuple[float, float]] = field(default_factory=list)  # from, to, in seconds
    failure: str = ""

    @property
    def is_good(self) -> bool:
        """Tell whether every message came once, in order and whole."""
        return not (self.lost or self.doubled or self.reordered or self.damaged or self.failure)


@dataclass(slots=True)
class Found:
    """What came of a run; pauses are between two messages of one receiver."""

    nodes: int
    messages: int
    kills: int
    upgrades: int
    seconds: float
    ways: list[Count]
    ends: list[float]  # when workers were killed or replaced
    failures: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Tell whether nothing was wrong."""
        return not self.failures and all(one.is_good for one in self.ways)

    def pauses_ms(self, way: Count, ends: int | None = None) -> list[float]:
        """Return the pauses in order of length, those over so many ends of workers alone."""
        return sorted(
            (to_s - from_s) * 1000
            for from_s, to_s in way.pauses
            if ends is None or sum(from_s <= one <= to_s for one in self.ends) == ends
        )


@dataclass(frozen=True, slots=True)
class Terms:
    """How a run is made."""

    messages: int  # of each way, at least
    kills: int = 0
    upgrades: int = 0
    nodes: int = 2
    victims: str = "receiver"  # or sender, or both: of the first way
    seed: int = 1
    stall_s: float = STALL_S
    network: str = _NETWORK
    settings: str = ""  # of the nodes, as lines of TOML


class Judge:
    """Keeps the books of one receiver: `take` each message."""

    def __init__(self, seed: int) -> None:
        self.count = Count()
        self._bodies = bodies(seed)
        self._next = 0
        self._missing: set[int] = set()

    def take(self, message: bytes) -> None:
        """Judge a message by the number in it."""
        if len(message) < _NUMBER.size:
            self.count.damaged += 1
            return
        (number,) = _NUMBER.unpack_from(message)
        self.count.received += 1
        if message[_NUMBER.size :] != self._bodies[number % _BODIES]:
            self.count.damaged += 1
        if number == self._next:
            self._next += 1
        elif number > self._next:
            self._missing.update(range(self._next, min(number, self._next + _MISSING_MAX)))
            self._next = number + 1
        elif number in self._missing:
            self._missing.remove(number)
            self.count.reordered += 1
        else:
            self.count.doubled += 1

    @property
    def distinct(self) -> int:
        """Return how many messages came that did not come before."""
        return self.count.received - self.count.doubled

    def finish(self, sent: int) -> Count:
        """Return the count once `sent` messages should be there."""
        self.count.lost = max(0, sent - self.distinct)
        return self.count


def bodies(seed: int) -> list[bytes]:
    """Return what follows the number, by the number."""
    random = Random(seed)
    filling = random.randbytes(_LONG_BYTES + _BODIES)
    lengths = (
        _LONG_BYTES if not index % 256 else random.randrange(_BYTES_MAX) for index in range(_BODIES)
    )
    return [filling[index : index + length] for index, length in enumerate(lengths)]


class Progress:
    """How many messages each receiver has, for all processes of a run."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.values = [context.RawValue("Q") for _ in range(count)]

    def wait(self, stop: threading.Event) -> None:
        """Wait until each receiver has had another message, or for some seconds."""
        before = [one.value for one in self.values]
        until_s = time.monotonic() + _RESUME_S
        while any(now.value == then for now, then in zip(self.values, before, strict=True)):
            if stop.is_set() or time.monotonic() > until_s:
                return
            time.sleep(0.001)


class Node:
    """A node of the run."""

    def __init__(self, place: str, settings: str = "") -> None:
        self.place = place
        self.ends: list[float] = []  # of workers
        self.failure = ""
        config = Path(f"{place}.toml")
        config.write_text(f"[settings]\n{settings}\n")
        options = json.dumps({"place": place, "config": str(config), **_NODE})
        path = os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])
        kept = {name: one for name, one in os.environ.items() if not name.startswith("URDS_")}
        with Path(f"{place}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.rds.node.program", options],
                env={**kept, "PYTHONPATH": path}, stderr=log, cwd=_ROOT,
            )  # fmt: skip
        until_s = time.monotonic() + _START_S
        while not is_served(place) or not self.worker():
            if self._process.poll() is not None or time.monotonic() > until_s:
                self.end()
                raise OSError(f"the node does not begin: {self.log()[-500:]}")
            time.sleep(0.01)

    def log(self) -> str:
        """Return what it said."""
        return Path(f"{self.place}.log").read_text("utf-8", "replace")

    def worker(self) -> int:
        """Return the process of the worker that answers, 0 if it ended meanwhile."""
        try:
            return int(commands.status(self.place)["worker"])
        except OSError:
            return 0

    def kill_workers(
        self, count: int, random: Random, stop: threading.Event, progress: Progress
    ) -> None:
        """Kill so many workers, each a little after it began to serve."""
        before = 0
        try:
            until_s = time.monotonic() + _START_S
            while len(self.ends) < count and not stop.is_set():
                worker = self.worker()
                if worker in (0, before):
                    if time.monotonic() > until_s:
                        raise OSError("no new worker")
                    time.sleep(0.001)
                    continue
                if random.randrange(4):
                    progress.wait(stop)
                time.sleep(random.uniform(*_DELAY_S))
                self.ends.append(time.monotonic())
                os.kill(worker, signal.SIGKILL)
                before, until_s = worker, time.monotonic() + _START_S
            while before and self.worker() in (0, before) and time.monotonic() < until_s:
                time.sleep(0.001)
        except OSError as error:
            self.failure = f"{self.place}: {error}"

    def upgrade_workers(
        self, count: int, random: Random, stop: threading.Event, progress: Progress
    ) -> None:
        """Have so many workers replaced in order."""
        try:
            while len(self.ends) < count and not stop.is_set():
                progress.wait(stop)
                time.sleep(random.uniform(*_DELAY_S))
                self.ends.append(self._upgrade())
        except OSError as error:
            self.failure = f"{self.place}: {error}"

    def _upgrade(self) -> float:
        """Have the worker replaced; return when a request was made that the next one answered."""
        before, until_s = self.worker(), time.monotonic() + _START_S
        node_requests.ask(self.place, Request(operation=RequestOp.UPGRADE))
        asked_s = time.monotonic()
        while (now := self.worker()) in (0, before):
            time.sleep(_ASK_S)
            if now:  # else it was in the queue of the old one
                asked_s = time.monotonic()
            if time.monotonic() > until_s:
                raise OSError("no upgrade")
        return asked_s

    def end(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(_START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Side:
    """A process that sends, or receives, one way."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def answer(self, limit_s: float) -> Any:
        """Return what it says next. Raises TimeoutError; EOFError if it has ended."""
        if not self._pipe.poll(limit_s):
            raise TimeoutError("a process of the run says nothing")
        return self._pipe.recv()

    def tell(self, what: object) -> None:
        """Tell it something."""
        self._pipe.send(what)

    def close(self) -> None:
        """End it."""
        self._pipe.close()
        self._process.kill()
        self._process.join()


def _socket(place: str, local: tuple[str, int]) -> Any:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["URDS_NODE"] = place
    import urds

    made = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
    made.bind(local)
    return made


def send(
    pipe: Connection,
    place: str,
    names: tuple[tuple[str, int], tuple[str, int]],
    messages: int,
    seed: int,
) -> None:
    """Send until so many are sent and the parent says that it is enough; tell how many."""
    made, parts, number = _socket(place, names[0]), bodies(seed), 0
    try:
        pipe.send("ready")
        pipe.recv()
        while number < messages or not pipe.poll():
            for _ in range(256):
                made.sendto(_NUMBER.pack(number) + parts[number % _BODIES], names[1])
                number += 1
        pipe.send((number, ""))
    except OSError as error:
        pipe.send((number, f"sendto: {error!r}"))
    pipe.recv()  # the socket stays until all is over


def receive(
    pipe: Connection, place: str, local: tuple[str, int], terms: Terms, seed: int, progress: Any
) -> None:
    """Take messages until as many came as the parent says were sent, or nothing comes."""
    made, judge, sent = _socket(place, local), Judge(seed), None
    made.settimeout(0.05)
    count = judge.count
    pipe.send("ready")
    last_s = 0.0
    try:
        while sent is None or judge.distinct < sent:
            if sent is None and pipe.poll():
                sent = pipe.recv()
                continue
            try:
                for _ in range(256):
                    judge.take(made.recv(_LONG_BYTES + 100))
                    now_s = time.monotonic()
                    progress.value += 1
                    if last_s and now_s - last_s > _PAUSE_S:
                        count.pauses.append((last_s, now_s))
                    last_s = now_s
                    if judge.distinct == sent:
                        break
            except TimeoutError:
                if last_s and time.monotonic() - last_s > terms.stall_s:
                    break
        made.settimeout(_LATE_S)
        with suppress(TimeoutError):
            while True:
                judge.take(made.recv(_LONG_BYTES + 100))
    except OSError as error:
        count.failure = f"recv: {error!r}"
    pipe.send(judge.finish(sent or judge.distinct))


@contextmanager
def _nodes(count: int, settings: str) -> Iterator[list[Node]]:
    with tempfile.TemporaryDirectory(prefix="urds-soak-nodes-") as folder, ExitStack() as stack:
        made = []
        for index in range(count):
            made.append(Node(f"{folder}/{index}.sock", settings))
            stack.callback(made[-1].end)
        yield made


def run(terms: Terms) -> Found:
    """Make one run. Raises OSError if it does not begin."""
    with _nodes(terms.nodes, terms.settings) as nodes, ExitStack() as stack:
        names = [(f"{terms.network}.{index + 1}", _PORT) for index in range(4)]
        ways = [(nodes[0], nodes[-1], names[:2]), (nodes[-1], nodes[0], names[2:])]
        senders, receivers, progress = [], [], Progress(len(ways))
        for way, (source, target, (local, remote)) in enumerate(ways):
            seed = terms.seed + way
            value = progress.values[way]
            receivers.append(Side(receive, target.place, remote, terms, seed, value))
            senders.append(Side(send, source.place, (local, remote), terms.messages, seed))
        for side in senders + receivers:
            stack.callback(side.close)
        for side in receivers + senders:
            side.answer(_START_S)
        began_s = time.monotonic()
        for side in senders:
            side.tell("go")
        victims = {"receiver": nodes[-1:], "sender": nodes[:1], "both": nodes}[terms.victims]
        _trouble(victims, terms, progress)
        sent = []
        for side in senders:
            side.tell("enough")
        try:
            # Bounded by the receivers, which give up without messages.
            sent = [side.answer(_patience_s(terms)) for side in senders]
            for side, (number, _) in zip(receivers, sent, strict=True):
                side.tell(number)
            counts = [side.answer(_patience_s(terms)) for side in receivers]
        except (TimeoutError, EOFError) as error:
            counts = [Count(failure=f"a process: {error!r}")]
        seconds = time.monotonic() - began_s
        failures = [one.failure for one in nodes if one.failure]
        failures += [line for one in nodes for line in one.log().splitlines() if _LEFT in line]
        failures += [problem for _, problem in sent if problem]
        ends = sorted(end for one in victims for end in one.ends)
        return Found(
            nodes=len(nodes),
            messages=sum(number for number, _ in sent),
            kills=len(ends) if terms.kills else 0,
            upgrades=0 if terms.kills else len(ends),
            seconds=seconds,
            ways=counts,
            ends=ends,
            failures=failures,
        )


def _patience_s(terms: Terms) -> float:
    return terms.stall_s + 30 + terms.messages / 2000


def _trouble(victims: Sequence[Node], terms: Terms, progress: Progress) -> None:
    """Kill or upgrade workers of these nodes, all at once; return when all is done."""
    total, stop = terms.kills or terms.upgrades, threading.Event()
    each = [total // len(victims) + (index < total % len(victims)) for index in range(len(victims))]
    threads = [
        threading.Thread(
            target=node.kill_workers if terms.kills else node.upgrade_workers,
            args=(count, Random(terms.seed + index), stop, progress),
        )
        for index, (node, count) in enumerate(zip(victims, each, strict=True))
    ]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.05)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _shown(found: Found) -> str:
    lines = [
        f"{found.nodes} nodes, {found.messages:,} messages in {found.seconds:.1f} s,"
        f" {found.kills} workers killed, {found.upgrades} upgraded"
    ]
    lines += [
        f"  way {number}: received {one.received:,}, lost {one.lost}, doubled {one.doubled},"
        f" reordered {one.reordered}, damaged {one.damaged};"
        f" pauses {_pauses(found.pauses_ms(one))};"
        f" of one end {_pauses(found.pauses_ms(one, 1))};"
        f" of none {_pauses(found.pauses_ms(one, 0))}"
        f"{one.failure and f'; {one.failure}'}"
        for number, one in enumerate(found.ways)
    ]
    return "\n".join([*lines, *(f"  {one}" for one in found.failures)])


def _pauses(pauses_ms: Sequence[float]) -> str:
    if not pauses_ms:
        return "none"
    over = sum(one > _GOAL_MS for one in pauses_ms)
    median = pauses_ms[len(pauses_ms) // 2]
    longest = f"longest {pauses_ms[-1]:.0f} ms, {over} over {_GOAL_MS} ms"
    return f"{len(pauses_ms)}, median {median:.0f} ms, {longest}"


def main() -> int:
    """Make the run that the arguments describe; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.nodes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=1_000_000, help="of each way, at least")
    trouble = parser.add_mutually_exclusive_group(required=True)
    trouble.add_argument("--kills", type=int, default=0, help="of all victims together")
    trouble.add_argument("--upgrades", type=int, default=0)
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=2)
    parser.add_argument("--victims", choices=("receiver", "sender", "both"), default="receiver")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--network", default=_NETWORK, help="first three numbers of addresses")
    parser.add_argument("--settings", default="", help="lines of TOML: npaths = 4")
    parser.add_argument("--json", action="store_true", help="print one document")
    options = vars(parser.parse_args())
    wants_json = options.pop("json")
    found = run(Terms(**options))
    print(json.dumps(asdict(found), indent=1) if wants_json else _shown(found))
    return 0 if found.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
