"""A node in a process of its own, which obeys one JSON request per line of its standard input.

`python -m tests.rds.transports.tcp.agent ADDRESS SETTINGS`; each request `[name, arguments]` is
answered by one line. Payloads travel as text. `liveness_wait_s` is a setting of the agent alone.
"""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any
from zlib import crc32

from tests.rds.transports.tcp.nodes import PORT, Node
from tests.support.siege import round_trips
from urds.rds.constants import MSG_DONTWAIT
from urds.rds.control.settings import ConnectionSettings

ECHO_PORT = 4001  # what comes there goes back
ASKER_PORT = 4002  # of who talks to an echo
_POLL_S = 0.0005
_NUMBER_BYTES = 12


class Agent:
    """The requests."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._asker: Any = None  # the mailbox of `talk`

    def send(self, target: str, count: int, payload_bytes: int = 0, break_every: int = 0) -> int:
        """Send numbers, padded; break all connections after each `break_every`.

        Where there is none at that moment, the next one is broken. Return how many were.
        """
        broken, is_due = 0, False
        for number in range(count):
            self._node.send(str(number).ljust(payload_bytes).encode(), target)
            is_due |= break_every > 0 and number % break_every == break_every - 1
            if is_due and (now := self._node.backend.break_connections()):
                broken, is_due = broken + now, False
        return broken

    def collect(self, count: int, wait_s: float, break_every: int = 0) -> tuple[list[str], int]:
        """Take messages until there are `count`, or `wait_s` is over; break between them.

        Return them without padding, and how many connections were broken.
        """
        taken, broken = self._take(count, wait_s, break_every)
        return [payload.decode().rstrip() for payload in taken], broken

    def measure(self, count: int, wait_s: float) -> list[tuple[int, int]]:
        """Take as `collect` does; return how long each message is, and its checksum."""
        taken, _ = self._take(count, wait_s)
        return [(len(payload), crc32(payload)) for payload in taken]

    def _take(self, count: int, wait_s: float, break_every: int = 0) -> tuple[list[bytes], int]:
        taken: list[bytes] = []
        broken = 0
        deadline_s, next_break = time.monotonic() + wait_s, break_every
        while len(taken) < count and time.monotonic() < deadline_s:
            new = self._node.take()
            taken += new
            if break_every and len(taken) >= next_break:
                next_break = len(taken) + break_every
                broken += self._node.backend.break_connections()
            if not new:
                time.sleep(_POLL_S)
        time.sleep(0.05)  # one too many would come now
        return taken + self._node.take(), broken

    def exchange(
        self, target: str, count: int, payload_bytes_max: int, break_every: int, wait_s: float
    ) -> tuple[list[int], int]:
        """Send messages of many lengths and take as many; break connections in between.

        What counts for `break_every` is sent or taken: turns that wait cost a fast plane nothing.
        Return the numbers of the messages that came whole, in order, and how many were broken.
        """
        sent = broken = 0
        taken: list[int] = []
        deadline_s, next_break = time.monotonic() + wait_s, break_every
        while (sent < count or len(taken) < count) and time.monotonic() < deadline_s:
            if sent < count and self._sent(_payload(sent, payload_bytes_max), target):
                sent += 1
            for payload in self._node.take():
                number = int(payload[:_NUMBER_BYTES])
                assert payload == _payload(number, payload_bytes_max)
                taken.append(number)
            if sent + len(taken) >= next_break and len(taken) < count:
                next_break += break_every
                broken += self._node.backend.break_connections()
        while self.queued(target) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        return taken, broken

    def serve_echo(self, pause_s: float = 0.0) -> None:
        """Send back whatever comes to `ECHO_PORT`, in a thread, until the process ends.

        An answer leaves `pause_s` after its message came.
        """
        mailbox = self._node.bind(ECHO_PORT)

        def send_back() -> None:
            while True:
                payload, source = mailbox.recvfrom(1 << 20)
                if pause_s:
                    time.sleep(pause_s)
                mailbox.sendto(payload, source)

        threading.Thread(target=send_back, daemon=True).start()

    def talk(self, target: str, count: int, payload_bytes: int) -> list[int]:
        """Exchange messages with a node's echo; return how many ns each round trip took."""
        if self._asker is None:
            self._asker = self._node.bind(ASKER_PORT)
        return round_trips(self._asker, (target, ECHO_PORT), count, payload_bytes)

    def traced_bytes(self) -> int:
        """Return the memory of Python's objects, 0 unless the process was started to trace it."""
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    def _sent(self, payload: bytes, target: str) -> bool:
        """Send without waiting; tell whether there was room."""
        try:
            self._node.mailbox.sendto(payload, MSG_DONTWAIT, (target, PORT))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                raise
            time.sleep(_POLL_S)
            return False
        return True

    def send_error(self, target: str) -> tuple[int, str]:
        """Try to send; return the errno, 0 if it was taken, and its text."""
        try:
            self._node.send(b"refused?", target)
        except OSError as error:
            return error.errno or 0, str(error)
        return 0, ""

    def log_from(self, level: str) -> None:
        """Have the node log from a level on."""
        logging.getLogger("urds").setLevel(level)

    def logged(self) -> list[str]:
        """Return what was logged so far."""
        return _lines.lines

    def counters(self) -> dict[str, int]:
        """Return all counters."""
        return dict(self._node.counters)

    def queued(self, peer: str) -> int:
        """Return how many messages to the peer the node still keeps."""
        return self._node.queued(peer)


def _payload(number: int, payload_bytes_max: int) -> bytes:
    """Return the message of a number: short ones mostly, some as long as may be."""
    span = payload_bytes_max if number % 10 == 0 else 100
    filling = number * number * 7919 % span
    return b"%*d" % (_NUMBER_BYTES, number) + bytes([number % 256]) * filling


class _Lines(logging.Handler):
    """Keeps every line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


_lines = _Lines()


def wait_for_answers(wait_s: float) -> None:
    """Believe a second stream of a peer only after so long without an answer on the first.

    On a busy machine a peer that lives answers later than in the 200 ms of the product.
    """
    check = ConnectionSettings.__post_init__

    def set_wait(settings: ConnectionSettings) -> None:
        check(settings)
        object.__setattr__(settings, "liveness_wait_ns", int(wait_s * 1e9))

    ConnectionSettings.__post_init__ = set_wait  # type: ignore[method-assign]  # no tunable of users


def main() -> None:
    """Serve requests until the input ends."""
    address, settings = sys.argv[1], json.loads(sys.argv[2])
    logging.getLogger("urds").addHandler(_lines)
    if (wait_s := settings.pop("liveness_wait_s", None)) is not None:
        wait_for_answers(wait_s)
    node = Node(address, environ=os.environ, **settings)
    agent = Agent(node)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        method: Callable[..., Any] = getattr(agent, name)
        print(json.dumps(method(**arguments)), flush=True)
    node.close()


if __name__ == "__main__":
    main()
