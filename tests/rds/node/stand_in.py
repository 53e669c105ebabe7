"""A plane for nodes in tests: sockets, memories and ports are real, no message moves.

As a program it is a worker: `python -m tests.rds.node.stand_in PLAN`.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from urds.common.types import IPAddress
from urds.rds.node import worker
from urds.rds.node.plane_calls import Opened
from urds.rds.node.settings import NodeSettings
from urds.rds.plane.contract import MailboxSettings

MEMORY_BYTES = 1 << 20
RESTRICTED_AT = 4095  # of a memory: whether sends are refused
CONGESTION_BYTES = 8192
NOT_LOCAL = IPv4Address("192.0.2.1")
FAULT = IPv4Address("192.0.2.2")  # of the node itself: its route is a fault of the program
FORMAT_FILE = "TEST_FORMAT_FILE"  # names a file with the format of memory that a worker has
DEATH_FILE = "TEST_DEATH_FILE"  # names a file with the call of these in which a worker ends
_LOOK_S = 0.02


def _may_die(call: str) -> None:
    """End as if killed, once, where the file says so."""
    file = Path(os.environ.get(DEATH_FILE, "/nowhere"))
    if file.exists() and file.read_text() == call:
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class Box:
    """A bound socket."""

    def __init__(
        self, local: IPAddress, port: int, node_end: int, memory: int, *, has_port: bool
    ) -> None:
        self.local, self.port, self.node_end, self.memory = local, port, node_end, memory
        self.has_port = has_port
        self.routes: dict[IPAddress, int] = {}
        self.is_closed = False


class StandIn:
    """See `plane_calls.PlaneCalls`."""

    def __init__(self, _: NodeSettings) -> None:
        self.on_left: Any = None
        self.on_client_error: Any = None
        self._boxes: list[Box] = []
        self._congestion = -1
        self._lock = threading.Lock()
        threading.Thread(target=self._look, daemon=True).start()

    def formats(self) -> Sequence[str]:
        file = os.environ.get(FORMAT_FILE)
        return [Path(file).read_text()] if file else []

    def begin(self, shared: Sequence[int]) -> Sequence[int]:
        assert self._congestion < 0, "once"
        if shared:
            (self._congestion,) = shared
            assert os.pread(self._congestion, 9, 0) == b"congested"
        else:
            self._congestion = os.memfd_create("congestion")
            os.ftruncate(self._congestion, CONGESTION_BYTES)
            os.pwrite(self._congestion, b"congested", 0)
        return [self._congestion]

    def congestion(self) -> tuple[int, int]:
        return self._congestion, CONGESTION_BYTES

    def open(self, place: str, *, nonblock: bool, words: bytes = b"") -> Opened:
        user, node = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        user.setblocking(not nonblock)
        memory, journal = os.memfd_create("memory"), os.memfd_create("journal")
        os.ftruncate(memory, MEMORY_BYTES)
        os.pwrite(memory, words, 0)
        return Opened(user.detach(), (node.detach(), memory, journal))

    def memory_bytes(self, kept: Sequence[int]) -> int:
        _may_die("memory_bytes")
        return os.fstat(kept[1]).st_size

    def bind(
        self, kept: Sequence[int], address: IPAddress, port: int, settings: MailboxSettings,
        transport: object, *, was_left: bool = False,
    ) -> Box:  # fmt: skip
        if address == NOT_LOCAL:
            raise OSError(errno.EADDRNOTAVAIL, f"no interface has {address}")
        with self._lock:
            taken = {(box.local, box.port) for box in self._boxes if box.has_port}
            free = (one for one in range(40_000, 60_000) if (address, one) not in taken)
            port = port or next(free)
            if (address, port) in taken and not was_left:
                raise OSError(errno.EADDRINUSE, f"{address} port {port}")
            self._boxes.append(Box(address, port, *kept[:2], has_port=not was_left))
            _may_die("bind")
            return self._boxes[-1]

    def route(self, box: Box, peer: IPAddress, tos: int) -> tuple[int, int]:
        if peer == FAULT:
            raise ZeroDivisionError("a fault on purpose")
        return box.routes.setdefault(peer, len(box.routes)), 1

    def configure(self, box: Box, settings: MailboxSettings) -> None:
        pass

    def cancel(self, box: Box, peer: IPAddress | None, port: int | None) -> int:
        return 7 if peer is None else 1

    def restrict(self, box: Box, *, is_over_quota: bool) -> None:
        os.pwrite(box.memory, bytes([is_over_quota]), RESTRICTED_AT)

    def take_rest(self, box: Box) -> bool:
        return True

    def close(self, box: Box) -> None:
        with self._lock:
            box.is_closed = True
            self._boxes.remove(box)

    def release_unused(self, now_s: float) -> None:
        pass

    def is_over(self, box: Box) -> bool:
        return box.is_closed

    def info(self, option: int) -> tuple[int, bytes]:
        if option != 10_000:
            raise OSError(errno.ENOPROTOOPT, f"RDS_INFO {option}")
        return 40, os.urandom(80)  # another one each time

    def report(self) -> bytes:
        rows = ("mailboxes", "paths", "send_queue", "retransmit_queue", "receive_queue")
        report = {"pid": os.getpid(), "program": "stand-in", "plane": "native", "counters": {}}
        empty: dict[str, object] = {key: [] for key in rows}
        return json.dumps({**report, **empty, "rdma_in_use": False, "connected": []}).encode()

    def drain(self, drain_ns: int) -> int:
        return 0

    def finish_restore(self) -> None:
        assert self._congestion >= 0, "it has begun"

    def break_off(self, *, is_last: bool) -> None:
        pass

    def _look(self) -> None:
        """Tell of sockets that are left, and of those whose program wrote `!`."""
        while True:
            poll = select.poll()
            with self._lock:
                boxes = {box.node_end: box for box in self._boxes}
            for end in boxes:
                poll.register(end, select.POLLIN | select.POLLRDHUP)
            for end, events in poll.poll(_LOOK_S * 1000):
                if events & (select.POLLHUP | select.POLLRDHUP):
                    if not boxes[end].is_closed:
                        self.on_left(boxes[end])
                elif events & select.POLLIN and os.read(end, 100) == b"!":
                    self.on_client_error(boxes[end], "it wrote `!`")
            threading.Event().wait(_LOOK_S)


if __name__ == "__main__":
    sys.exit(worker.main(sys.argv[1:], lambda settings: lambda: StandIn(settings)))
