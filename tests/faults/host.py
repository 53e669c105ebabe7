"""One host of a fault run: sends numbered messages to its peers and judges what it takes.

`python -m tests.faults.host`; the plan is the first line of standard input, each further line a
command, and the end of the input the end of the process. Counts go to the board (`board`), words to
standard output: `ready`, `failed` with the reason, `report`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import urds
from tests.faults.board import Board, Sent
from tests.faults.messages import DamagedError, MessageLog, Sizes, Writer, parse
from urds.cli.child import start_line
from urds.rds.runtime import process as backend
from urds.rds.runtime.inprocess import InProcess

PORT: Final = 4000
_BURST: Final = 16
_TAKES_PER_TURN: Final = 64
_IDLE_WAIT_S: Final = 0.005
_END_S: Final = 3.0
_REMARKS_MAX: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """What one life of a host does."""

    address: str
    peers: list[str]
    life: int
    seed: int
    sizes: str
    board: str  # a file
    settings: Mapping[str, Any]
    broken_rule: str = ""  # of tests/sim/test_broken_rules.py, to see the judge turn red


class Commands:
    """What the coordinator says, read by a thread of its own."""

    def __init__(self) -> None:
        self.over = threading.Event()  # the coordinator closed our input, or died
        self.waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="fault-commands", daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            if "break_at_s" in command:
                _break_connections(command["break_at_s"])
            else:
                self.waiting.put(command)
        self.over.set()
        time.sleep(_END_S)  # the main thread ends the process sooner, if it can
        os._exit(1)


class Host:
    """A bound socket, the messages to each peer and the logs of what each life of it sent."""

    def __init__(self, plan: HostPlan) -> None:
        self._plan = plan
        self._board = Board(Path(plan.board), plan.peers)
        self._goals = dict.fromkeys(plan.peers, 0)
        self._reading = True
        self._remarks: list[str] = []
        self._damaged = 0
        self._sent = {peer: Sent() for peer in plan.peers}
        self._logs: dict[tuple[str, int], MessageLog] = {}
        self._lives = dict.fromkeys(plan.peers, 0)
        random = Random(f"{plan.seed} {plan.address} {plan.life}")
        self._writers = {
            peer: Writer(plan.address, peer, life=plan.life, sizes=Sizes(plan.sizes), random=random)
            for peer in plan.peers
        }
        self._told: list[str] = []
        logging.getLogger("urds").addHandler(_Lines(self._told))
        self._socket = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
        self._socket.bind((plan.address, PORT))
        self._socket.settimeout(_IDLE_WAIT_S)

    def run(self, commands: Commands) -> None:
        """Send, take and obey until the coordinator says that it is over."""
        while not commands.over.is_set():
            with suppress(queue.Empty):
                self._obey(commands.waiting.get_nowait())
            sent = sum(self._send_burst(peer) for peer in self._plan.peers)
            taken = self._take_some() if self._reading else 0
            if not sent and not taken:
                self._rest()

    def _obey(self, command: Mapping[str, Any]) -> None:
        """Carry out a command: what it names is set; `report` is answered."""
        self._goals |= command.get("goals", {})
        self._reading = command.get("reading", self._reading)
        if command.get("report"):
            place = backend.current()
            tell("report", counters=place.counters(), told=self._told, remarks=self._remarks)

    def _send_burst(self, peer: str) -> int:
        """Send until the goal, the socket or the peer ends it, at most a burst; return how many."""
        writer = self._writers[peer]
        before, sent = writer.sent, self._sent[peer]
        for _ in range(min(_BURST, self._goals[peer] - before)):
            try:
                self._socket.sendto(writer.payload(), urds.MSG_DONTWAIT, (peer, PORT))
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    sent = replace(sent, congested=sent.congested + 1)
                elif error.errno == errno.EAGAIN:
                    sent = replace(sent, full=sent.full + 1)
                else:
                    raise
                break
            writer.count_sent()
        sent = replace(sent, accepted=writer.sent)
        if sent != self._sent[peer]:
            self._sent[peer] = sent
            self._board.note_sent(peer, sent)
        return writer.sent - before

    def _take_some(self) -> int:
        """Take what is there, at most a turn's share; return how many."""
        for count in range(_TAKES_PER_TURN):
            try:
                payload, source = self._socket.recvfrom(urds.MAX_MESSAGE_BYTES, urds.MSG_DONTWAIT)
            except BlockingIOError:
                return count
            self._judge(payload, source[0])
        return _TAKES_PER_TURN

    def _rest(self) -> None:
        """Give the processor away until a message comes, for 5 ms at most."""
        if not self._reading:
            time.sleep(_IDLE_WAIT_S)
            return
        with suppress(TimeoutError):
            payload, source = self._socket.recvfrom(urds.MAX_MESSAGE_BYTES)
            self._judge(payload, source[0])

    def _judge(self, payload: bytes, peer: str) -> None:
        """Enter one message into its log, and the log into the board."""
        life, index = self._lives[peer], -1
        try:
            if payload:
                life, index = parse(payload, peer, self._plan.address)
        except DamagedError as damage:
            self._damaged += 1
            self._remark(f"from {peer}: {damage}")
            self._board.note_taken(peer, life, self._log_of(peer, life), self._damaged)
            return
        log = self._log_of(peer, life)
        if payload:
            self._lives[peer] = max(self._lives[peer], life)
            if life < self._lives[peer]:
                log.reordered += 1
                self._remark(f"from {peer}: {index} of life {life} after its life ended")
            log.take(index)
        else:
            log.take_empty()
        self._board.note_taken(peer, life, log, self._damaged)

    def _log_of(self, peer: str, life: int) -> MessageLog:
        found = self._logs.get((peer, life))
        if found is None:
            front = f"from {peer}, life {life}: "
            found = MessageLog(lambda text: self._remark(front + text))
            self._logs[peer, life] = found
        return found

    def _remark(self, text: str) -> None:
        if len(self._remarks) < _REMARKS_MAX:
            self._remarks.append(text)


class _Lines(logging.Handler):
    """Keeps the lines of warnings."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._add: Callable[[str], None] = lines.append

    def emit(self, record: logging.LogRecord) -> None:
        self._add(record.getMessage())


def tell(event: str, **details: Any) -> None:
    """Report to the coordinator."""
    print(json.dumps({"event": event, **details}), flush=True)


def _break_connections(at_s: float) -> None:
    """Reset every connection of this process at a moment of the monotonic clock."""
    time.sleep(max(0.0, at_s - time.monotonic()))
    place = backend.current()
    assert isinstance(place, InProcess)
    place.break_connections()


def _break_rule(rule: str) -> None:
    """Have this process's plane break a rule, for good."""
    import pytest

    from tests.sim.test_broken_rules import BROKEN

    (broken,) = [one for one in BROKEN if one.rule == rule]
    broken.patch(pytest.MonkeyPatch())


def main() -> int:
    """Carry out the plan on the first line of standard input."""
    plan = HostPlan(**start_line())
    if plan.broken_rule:
        _break_rule(plan.broken_rule)
    urds.configure(drain_s=0.0, linger_s=0.0, **plan.settings)
    try:
        host = Host(plan)
    except OSError as failure:
        tell("failed", reason=failure.strerror or str(failure))
        return 1
    tell("ready")
    host.run(Commands())
    return 0


if __name__ == "__main__":
    sys.exit(main())
