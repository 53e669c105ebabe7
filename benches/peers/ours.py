"""urds between two processes: each address of 127/8 is a host of its own.

The receiver is host 2 of a network of its own, the sender number n is host 10 + n, all at port
4000. The second byte comes from the process that started both sides, so that two runs beside each
other do not meet; the third belongs to the row, for all rows of a table are open at once.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

from .base import BLOCKING, Address, Kind
from .rds import PORT, Bursts, RdsPeer

_RECEIVER_HOST = 2
_SENDER_HOST = 10


def plane() -> str:
    """Return which data plane carries the messages here: `python` or `native`."""
    from urds.rds.plane.choose import plane_in_use

    return plane_in_use()


class Urds(RdsPeer):
    """urds over TCP."""

    name = "urds"
    label = "urds"
    kinds = BLOCKING | {Kind.BURSTS_ONE_WAY}

    row: ClassVar[int] = 0  # third byte of the addresses
    # Not over shared memory, which both sides would else take; what was set before the run stays.
    settings: ClassVar[Mapping[str, str]] = {
        "URDS_SHARED_MEMORY": "0"
    }  # tunables, as environment variables
    node: ClassVar[str] = "inprocess"  # a node of this machine has no part in a figure

    @classmethod
    def missing(cls) -> str | None:
        """Tell whether urds has its socket call."""
        try:
            urds: Any = import_module("urds")
            needed = (urds.socket, urds.AF_RDS, urds.SOCK_SEQPACKET)
        except (ImportError, AttributeError, SyntaxError) as error:
            return f"not available: {error}"
        return None if all(map(bool, needed)) else "not available"

    def new_socket(self) -> Any:
        """Return a socket of urds, with the tunables of this row."""
        for variable, value in {"URDS_NODE": self.node, **self.settings}.items():
            os.environ.setdefault(variable, value)
        urds: Any = import_module("urds")
        return urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)

    def network(self) -> str:
        """Return the first three bytes of this row's addresses."""
        return f"127.{16 + os.getppid() % 224}.{self.row}"

    def open_receiver(self, senders: int) -> Address:
        """Bind; a socket takes messages of any number of senders."""
        local = (f"{self.network()}.{_RECEIVER_HOST}", PORT)
        self.bind(local)
        return local

    def open_sender(self, address: Address, index: int) -> None:
        """Bind to an address of this sender alone; the first message connects."""
        assert isinstance(address, tuple)
        self.bind((f"{self.network()}.{_SENDER_HOST + index}", PORT))
        self.aim(address)


class UrdsFromOneBuffer(Urds):
    """urds over TCP, from one bytearray for all messages: each send copies it."""

    name = "urds_reused"
    label = "urds, one bytearray"
    kinds = frozenset({Kind.REUSED_ONE_WAY})
    row = 6

    def put(self, count: int) -> None:
        """Send `count` messages, each written to the buffer that the one before was sent from."""
        sendto, buffer, target = self.socket.sendto, bytearray(self.payload), self._target
        for number in range(count):
            buffer[0] = number & 255
            sendto(buffer, target)


class UrdsBursts(Bursts, Urds):
    """urds over TCP, by `send_many` and `recv_many`."""

    name = "urds_bursts"
    label = "urds, 64 per call"
    kinds = frozenset({Kind.BURSTS_ONE_WAY})
    row = 7


class UrdsOverShm(Urds):
    """urds over RDMA: the software device of one host, whose packets lie in shared memory."""

    name = "urds_shm0"
    label = "urds, RDMA on shm0"
    kinds = frozenset({Kind.ONE_WAY, Kind.ROUND_TRIP})
    row = 1
    settings: ClassVar[Mapping[str, str]] = {
        "URDS_TRANSPORT": "ib",
        "URDS_RDMA_DEVICES": "shm0",
    }
