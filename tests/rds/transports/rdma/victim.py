"""A node of RDS over RDMA in a process of its own, for those who mean harm and their neighbours.

`python -m tests.rds.transports.rdma.victim DEVICE ADDRESS SETTINGS` obeys one JSON request `[name,
arguments]` per
line of its input and answers each by a line. Bytes travel as hexadecimal text. `NodeProcess` is
the other side of it.
"""

from __future__ import annotations

import errno
import json
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import urds
from tests.support.children import Servant
from tests.support.lines import Lines
from tests.support.siege import round_trips
from urds.rds.constants import MSG_DONTWAIT, SOL_RDS, SockOpt, Transport
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.process import process
from urds.rds.settings import Settings
from urds.rds.transports.rdma.device import RdmaDevice
from urds.rds.transports.rdma.node import RdmaNode

INBOX_PORT = 4000  # messages wait there until they are collected
ECHO_PORT = 4001  # what comes there goes back
ASKER_PORT = 4002  # of who talks to an echo
WAIT_S = 20.0
GUARD_BYTES = 4096
CANARY = b"\xa5"
_POLL_S = 0.0005
_QUIET_S = 0.02  # so long nothing came: nothing more comes


class Node:
    """The requests."""

    def __init__(self, device: str, address: str, settings: dict[str, Any]) -> None:
        values = {"drain_s": 0.0, "linger_s": 0.0, "rdma_devices": (device,), **settings}
        self.backend = InProcess(Settings.load(values, environ={}))
        process.use(self.backend)
        self._inbox, self._echo = (self._socket(address, port) for port in (INBOX_PORT, ECHO_PORT))
        self._asker = self._socket(address, ASKER_PORT)
        self._memories: list[bytearray] = []
        self._regions: list[urds.MemoryRegion] = []
        self._lines = self.backend._driver.log = self._node.log = Lines()
        threading.Thread(target=self._send_back, daemon=True).start()

    def _socket(self, address: str, port: int) -> urds.Socket:
        sock = urds.Socket()
        sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, int(Transport.IB))
        sock.bind((address, port))
        sock.settimeout(WAIT_S)
        return sock

    def _send_back(self) -> None:
        self._echo.settimeout(None)
        while True:
            with suppress(OSError):  # the node ends
                payload, source = self._echo.recvfrom(1 << 20)
                self._echo.sendto(payload, source)

    def talk(self, target: str, count: int, payload_bytes: int = 100) -> list[int]:
        """Exchange messages with a node's echo; return how many ns each round trip took."""
        return round_trips(self._asker, (target, ECHO_PORT), count, payload_bytes)

    def collect(self, count: int, wait_s: float = WAIT_S) -> list[str]:
        """Take messages until there are `count` and no more come; return their payloads."""
        taken: list[str] = []
        end_s = time.monotonic() + (wait_s if count else _QUIET_S)
        while time.monotonic() < end_s:
            try:
                taken.append(self._inbox.recvfrom(1 << 20, MSG_DONTWAIT)[0].hex())
            except BlockingIOError:
                time.sleep(_POLL_S)
            if len(taken) == count:
                end_s = min(end_s, time.monotonic() + _QUIET_S)
        return taken

    def discard(self, count: int) -> int:
        """Take messages until there are `count`; return how many there were."""
        taken = 0
        with suppress(TimeoutError):
            while taken < count:
                self._inbox.recvfrom(1 << 20)
                taken += 1
        return taken

    def send(self, target: str, payload: str, count: int = 1) -> int:
        """Send the same message some times without waiting; return how often there was room."""
        for number in range(count):
            try:
                self._inbox.sendto(bytes.fromhex(payload), MSG_DONTWAIT, (target, INBOX_PORT))
            except OSError as refused:
                if refused.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    raise
                return number
        return count

    def take_back(self) -> None:
        """Cancel all messages that `send` has queued."""
        self._inbox.setsockopt(SOL_RDS, SockOpt.CANCEL_SENT_TO, b"")

    def counters(self) -> dict[str, int]:
        """Return all counters."""
        return dict(self.backend.counters())

    def logged(self) -> list[str]:
        """Return what was logged since the last time."""
        lines = self._lines.lines[:]
        del self._lines.lines[: len(lines)]
        return lines

    def kept(self) -> dict[str, int]:
        """Return how much the node keeps of connections, and of keys on its device."""
        device = self._device()
        with self.backend._driver.lock, device.adapter.lock:
            return {
                "links": len(device.links),
                "attempts": len(self._node._attempts._attempts),
                "requests": len(self._node._attempts._requests),
                "regions": device.adapter.region_count,
            }

    @property
    def _node(self) -> RdmaNode:
        node = self.backend._driver.rdma.node
        assert node is not None
        return node

    def _device(self) -> RdmaDevice:
        return self._node.devices[0]

    def paths(self) -> dict[str, dict[str, Any]]:
        """Return of each peer whether a connection stands, and what waits for it."""
        return {
            f"{row.peer}/{row.tos}": {
                "up": row.up,
                "unsent": row.unsent_messages,
                "unacknowledged": row.unacknowledged_messages,
                "expected": row.sequence_expected,
            }
            for row in self.backend.snapshot().paths
        }

    # -- memory

    def region(
        self,
        byte_count: int,
        *,
        writable: bool = True,
        use_once: bool = False,
        peer: str | None = None,
    ) -> list[int]:
        """Make a region amid canaries, for one peer or for all; return its number and cookie."""
        memory = bytearray(CANARY * (2 * GUARD_BYTES + byte_count))
        view = memoryview(memory)[GUARD_BYTES:-GUARD_BYTES]
        address = None if peer is None else (peer, 0)
        region = self._inbox.get_mr(view, address, writable=writable, use_once=use_once)
        self._memories.append(memory)
        self._regions.append(region)
        return [len(self._regions) - 1, region.cookie]

    def content(self, number: int) -> str:
        """Return a region's memory with what stands before it and behind it."""
        return self._memories[number].hex()

    def knows(self, key: int) -> bool:
        """Tell whether a region of the device has this key."""
        adapter = self._device().adapter
        with adapter.lock:
            return adapter.find_region(key) is not None

    def ring_keys(self) -> list[int]:
        """Return the keys of the receive rings, which no peer is told."""
        device = self._device()
        with device.adapter.lock:
            return [link._region.rkey for link in device.links.values()]

    def is_over(self, number: int) -> bool:
        """Tell whether a region is over."""
        return self._regions[number].is_over

    def free(self, number: int) -> None:
        """Free a region."""
        self._regions[number].free()

    def close(self) -> None:
        """End in order."""
        self.backend.close()


class NodeProcess(Servant):
    """A process with a node, as a test sees it."""

    def __init__(self, device: str, address: str, **settings: Any) -> None:
        self.address = address
        super().__init__(
            "-m", "tests.rds.transports.rdma.victim", device, address, json.dumps(settings)
        )


def main() -> None:
    """Obey until the input ends."""
    node = Node(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(node, name)(**arguments)), flush=True)
    node.close()


if __name__ == "__main__":
    main()
