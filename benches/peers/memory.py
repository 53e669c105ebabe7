"""Between processes of one host: urds over shared memory, and the alternatives.

In a row that spins, both sides check for the next message without sleeping; all other rows sleep in
the kernel. `ipc://` of pyzmq needs a file, which is in a folder of the run.
"""

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from .base import Address, Kind
from .kernel import SeqPacket
from .ours import Urds, plane
from .rds import Bursts
from .zmq import PushPull

FOLDER_VARIABLE = "BENCH_FOLDER"  # of the run, for what needs a file
_SPINS_US = 1_000_000


class UrdsOverMemory(Urds):
    """urds as it is between two processes of one user: over a shm stream."""

    name = "urds_memory"
    label = "urds, shared memory"
    kinds = frozenset({Kind.MEMORY_ONE_WAY, Kind.MEMORY_BURSTS, Kind.MEMORY_ROUND_TRIP})
    row = 4
    settings: ClassVar[Mapping[str, str]] = {"URDS_SHARED_MEMORY": "1"}

    @classmethod
    def missing(cls) -> str | None:
        """Tell whether urds is there, with the plane that has shm streams."""
        problem = super().missing()
        if problem is None and plane() != "native":
            return "the Python plane has no shared memory"
        return problem


class UrdsBesideMemory(Urds):
    """urds over TCP of the same host, which shared memory should not be slower than at any size."""

    name = "urds_memory_tcp"
    label = "urds, loopback TCP"
    kinds = frozenset({Kind.MEMORY_ONE_WAY})
    row = 9


class UrdsOverMemorySpinning(UrdsOverMemory):
    """The same with SO_BUSY_POLL."""

    name = "urds_memory_spins"
    label = "urds, shared memory, spins"
    kinds = frozenset({Kind.MEMORY_ROUND_TRIP})
    row = 5
    settings: ClassVar[Mapping[str, str]] = {
        **UrdsOverMemory.settings,
        "URDS_BUSY_POLL_US": str(_SPINS_US),
    }


class UrdsBurstsOverMemory(Bursts, UrdsOverMemory):
    """urds over a shm stream, by `send_many` and `recv_many`."""

    name = "urds_memory_bursts"
    label = "urds, shared memory, 64 per call"
    kinds = frozenset({Kind.MEMORY_BURSTS})
    row = 8


class PushPullIpc(PushPull):
    """pyzmq's fastest pattern over its transport within a host."""

    name = "push_pull_ipc"
    label = "pyzmq PUSH/PULL ipc"
    kinds = frozenset({Kind.MEMORY_ONE_WAY, Kind.MEMORY_BURSTS})

    def open_receiver(self, senders: int) -> Address:
        """Bind to a file of the run's folder."""
        place = f"ipc://{os.environ[FOLDER_VARIABLE]}/{self.name}-{self.payload_bytes}"
        self._open(self.receiver_type).bind(place)
        return place


class PushPullIpcNoCopy(PushPullIpc):
    """The same by reference, which pays from some tens of KiB up."""

    name = "push_pull_ipc_nocopy"
    label = "pyzmq P/P ipc copy=False"
    payload_bytes_min = 64 << 10
    copy = False


class SeqPacketSpinning(SeqPacket):
    """AF_UNIX SOCK_SEQPACKET, received in a loop that never blocks."""

    name = "seqpacket_spins"
    label = "AF_UNIX SEQPACKET, spins"
    kinds = frozenset({Kind.MEMORY_ROUND_TRIP})

    def _connected(self) -> Any:
        if self._socket is None or self._socket.getblocking():
            super()._connected().setblocking(False)
        return self._socket

    def _receive_one(self) -> bytes:
        receive, bytes_max = self._connected().recv, self.payload_bytes
        while True:
            try:
                data: bytes = receive(bytes_max)
            except BlockingIOError:
                continue
            return data

    def ask_one(self) -> None:
        """Send one message and look for the reply until it is here."""
        self._connected().send(self.payload)
        self._receive_one()

    def echo_one(self) -> None:
        """Look for one message until it is here, and send it back."""
        data = self._receive_one()
        self._connected().send(data)
