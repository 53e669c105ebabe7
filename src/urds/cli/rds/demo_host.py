"""One host of `urds demo`, a process of its own: sends, checks what it gets, resets connections.

The coordinator (`demo`) and the host exchange lines of JSON. Standard input brings the plan, "go",
after Ctrl-C "stop", and how many messages to expect; its end is the end of the process. Standard
output takes `ready`, `progress`, `sent`, `done` or `failed`.

A message is its number, a hash, and a body that differs from message to message. The hash covers
source, target, number and body: one in the wrong place is as damaged as one with a changed byte.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from struct import Struct
from typing import Any, Final

import urds
from urds.cli.child import run_child, start_line
from urds.rds.runtime import process as backend
from urds.rds.runtime.inprocess import InProcess

_BURST: Final = 16
_RECEIVED_MAX: Final = 128
_IDLE_WAIT_S: Final = 0.005
_PROGRESS_S: Final = 0.25
_QUIET_S: Final = 0.2  # after the last expected message: a duplicate comes within it
_DRAIN_AT_END_S: Final = 0.2  # everything is counted by then
_END_S: Final = 5.0
_MISSING_TOLD_MAX: Final = 8
_FULL: Final = {errno.EAGAIN, errno.ENOBUFS}
_HASH_BYTES: Final = 16
_FRONT: Final = Struct(f">Q{_HASH_BYTES}s")
_NUMBER: Final = Struct(">Q")
_POOL_BYTES: Final = 1 << 16
_STEP: Final = 131  # prime, so that a body recurs late
_GAP_MAX: Final = 1 << 20

PAYLOAD_BYTES_MIN: Final = _FRONT.size
PAYLOAD_BYTES_MAX: Final = _POOL_BYTES
PORT: Final = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of one host."""

    address: str
    peers: list[str]
    seconds: float
    payload_bytes: int
    reset_every_s: float  # 0 never
    drain_s: float  # how long to wait for what is expected
    seed: int


# -- messages


def digest(source: str, target: str, number: int, body: bytes) -> bytes:
    """Return the hash of one message."""
    route = f"{source} {target} ".encode()
    return blake2b(route + _NUMBER.pack(number) + body, digest_size=_HASH_BYTES).digest()


class Writer:
    """Makes the messages from one host to another, numbers from 0."""

    def __init__(self, source: str, target: str, *, payload_bytes: int, random: Random) -> None:
        self.sent = 0
        self._source = source
        self._target = target
        self._body_bytes = payload_bytes - _FRONT.size
        self._pool = random.randbytes(_POOL_BYTES + self._body_bytes)

    def payload(self) -> bytes:
        """Return the next message; the same again until `count_sent`."""
        start = self.sent * _STEP % _POOL_BYTES
        body = self._pool[start : start + self._body_bytes]
        return _FRONT.pack(self.sent, digest(self._source, self._target, self.sent, body)) + body

    def count_sent(self) -> None:
        """Go on to the next number: the socket took the message."""
        self.sent += 1


class MessageLog:
    """Counts what came from one host to another: each number once and in order, or a fault."""

    def __init__(self, source: str, target: str) -> None:
        self.delivered = 0  # different messages, whole ones
        self.duplicated = 0
        self.reordered = 0
        self.damaged = 0
        self._source = source
        self._target = target
        self._next = 0
        self._missing: set[int] = set()

    def missing(self, sent: int) -> list[int]:
        """Return the numbers below `sent` that did not come, in order."""
        return sorted(self._missing) + list(range(self._next, sent))

    def check(self, payload: bytes) -> None:
        """Check and count one message."""
        if len(payload) < _FRONT.size:
            self.damaged += 1
            return
        number, expected = _FRONT.unpack_from(payload)
        if digest(self._source, self._target, number, payload[_FRONT.size :]) != expected:
            self.damaged += 1
        elif self._next <= number <= self._next + _GAP_MAX:
            self._missing.update(range(self._next, number))
            self._next = number + 1
            self.delivered += 1
        elif number in self._missing:
            self._missing.discard(number)
            self.delivered += 1
            self.reordered += 1
        else:
            self.duplicated += 1


# -- the host


class Commands:
    """The coordinator's lines, read by a thread of its own."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.stop = threading.Event()  # send no more
        self.over = threading.Event()  # the coordinator closed the input, or ended
        self.expected: dict[str, int] | None = None
        threading.Thread(target=self._read, name="demo-commands", daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            self.expected = command.get("expect", self.expected)
            if "stop" in command:
                self.stop.set()
            self.go.set()
        for event in (self.over, self.stop, self.go):
            event.set()
        time.sleep(_END_S)  # the main thread ends the process sooner, if it can
        os._exit(1)


class Host:
    """A bound socket, the messages to each peer and what each peer sent."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.resets = 0
        self._start_s = 0.0
        self._last_s = 0.0  # when the last message came
        random = Random(f"{plan.seed} {plan.address}")
        self._random = random
        self._writers = {
            peer: Writer(plan.address, peer, payload_bytes=plan.payload_bytes, random=random)
            for peer in plan.peers
        }
        self._logs = {peer: MessageLog(peer, plan.address) for peer in plan.peers}
        self._cutting = threading.Event()
        self._socket = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
        self._socket.bind((plan.address, PORT))
        self._socket.settimeout(_IDLE_WAIT_S)

    def exchange(self, commands: Commands) -> None:
        """Send to all peers and receive for the time of the plan, while connections are cut."""
        cutter = threading.Thread(target=self._cut, name="demo-cutter", daemon=True)
        cutter.start()
        self._start_s = now_s = told_s = time.monotonic()
        end_s = now_s + self.plan.seconds
        while now_s < end_s and not commands.stop.is_set():
            sent = sum(self._send_burst(peer, writer) for peer, writer in self._writers.items())
            taken = self._take(_RECEIVED_MAX)
            if not sent and not taken:
                self._wait()
            now_s = time.monotonic()
            if now_s - told_s >= _PROGRESS_S:
                told_s = now_s
                tell("progress", **self.progress())
        self._cutting.set()
        cutter.join()

    def drain(self, commands: Commands) -> None:
        """Receive until everything expected is there and a while longer, or time is up."""
        start_s = time.monotonic()
        complete_s: float | None = None
        while (now_s := time.monotonic()) - start_s < self.plan.drain_s:
            if commands.over.is_set():
                return
            if not self._take(_RECEIVED_MAX):
                self._wait()
            expected = commands.expected
            if expected is None or any(
                self._logs[peer].delivered < count for peer, count in expected.items()
            ):
                continue
            complete_s = complete_s or now_s
            if now_s - complete_s >= _QUIET_S:
                return

    def progress(self) -> dict[str, int]:
        """Return the counts so far."""
        return {
            "sent": sum(writer.sent for writer in self._writers.values()),
            "delivered": sum(log.delivered for log in self._logs.values()),
            "resets": self.resets,
        }

    def sent(self) -> dict[str, int]:
        """Return how many messages the socket took for each peer."""
        return {peer: writer.sent for peer, writer in self._writers.items()}

    def verdict(self, expected: Mapping[str, int]) -> Mapping[str, object]:
        """Return what was received and how well; of what is missing the first few numbers."""
        logs = self._logs.values()
        missing = {peer: self._logs[peer].missing(sent) for peer, sent in expected.items()}
        return {
            "delivered": {peer: log.delivered for peer, log in self._logs.items()},
            "missing": {peer: some[:_MISSING_TOLD_MAX] for peer, some in missing.items() if some},
            "duplicated": sum(log.duplicated for log in logs),
            "reordered": sum(log.reordered for log in logs),
            "damaged": sum(log.damaged for log in logs),
            "resets": self.resets,
            "seconds": self._last_s - self._start_s,
        }

    def _send_burst(self, peer: str, writer: Writer) -> int:
        """Send until the socket or the peer is full, at most a burst."""
        for count in range(_BURST):
            try:
                self._socket.sendto(writer.payload(), urds.MSG_DONTWAIT, (peer, PORT))
            except OSError as failure:
                if failure.errno not in _FULL:
                    raise
                return count
            writer.count_sent()
        return _BURST

    def _take(self, messages_max: int) -> int:
        """Receive what is there; return how many."""
        for count in range(messages_max):
            try:
                payload, source = self._socket.recvfrom(urds.MAX_MESSAGE_BYTES, urds.MSG_DONTWAIT)
            except BlockingIOError:
                messages_max = count
                break
            self._logs[source[0]].check(payload)
        if messages_max:
            self._last_s = time.monotonic()
        return messages_max

    def _wait(self) -> None:
        """Give the processor away until a message comes, for 5 ms at most."""
        with suppress(TimeoutError):
            payload, source = self._socket.recvfrom(urds.MAX_MESSAGE_BYTES)
            self._logs[source[0]].check(payload)
            self._last_s = time.monotonic()

    def _cut(self) -> None:
        """Reset all connections of this process now and then, at no particular moment."""
        place = backend.current()
        every_s = self.plan.reset_every_s
        if not every_s or not isinstance(place, InProcess):
            return
        while not self._cutting.wait(every_s * self._random.uniform(0.5, 1.5)):
            self.resets += place.break_connections()


def tell(event: str, **details: Any) -> None:
    """Report to the coordinator."""
    print(json.dumps({"event": event, **details}), flush=True)


def main() -> int:
    """Run the plan on the first line of standard input."""
    plan = Plan(**start_line())
    urds.configure(drain_s=_DRAIN_AT_END_S)
    try:
        host = Host(plan)
    except OSError as failure:
        tell("failed", reason=failure.strerror or str(failure))
        return 1
    commands = Commands()
    tell("ready")
    commands.go.wait()
    host.exchange(commands)
    if commands.over.is_set():  # a run was ended early: the loss of its last messages is expected
        logging.getLogger("urds").setLevel(logging.ERROR)
        return 0
    tell("sent", **host.progress(), each=host.sent())
    host.drain(commands)
    tell("done", **host.verdict(commands.expected or {}))
    # Messages may still be on their way: stay until the coordinator has heard from all.
    commands.over.wait()
    return 0


if __name__ == "__main__":
    run_child(main)
