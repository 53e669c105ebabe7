"""Records of the worlds of RDMA: memory, what was asked of it, and what was sent.

Every byte that an operation moves has a place of its own: a write its part of a region, an atomic
its field of a cell. So memory tells afterwards which operations were done, and how often.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from urds.rds.constants import RdmaStatus
from urds.rds.plane.contract import Operation, RdmaTransfer
from urds.rds.plane.python.mailbox import Mailbox

if TYPE_CHECKING:
    from tests.sim.rdma_node import SimNode

CANARY = bytes(range(0xC0, 0x100))
FIELD_BITS = 3  # of an atomic cell, one field per operation: it counts how often that was done
FIELDS = 64 // FIELD_BITS
FIELD_MASK = (1 << FIELD_BITS) - 1
CELLS = 4
CELL_BYTES = 8
NO_CARRY = sum(1 << FIELD_BITS * number + FIELD_BITS - 1 for number in range(FIELDS))


class Memory:
    """Bytes of an application, between canaries."""

    def __init__(self, data: bytes) -> None:
        self.arena = bytearray(CANARY + data + CANARY)
        self.view = memoryview(self.arena)[len(CANARY) : -len(CANARY)]

    def is_whole(self) -> bool:
        """Tell whether no write went beside the bytes."""
        length = len(CANARY)
        return self.arena[:length] == CANARY and self.arena[-length:] == CANARY


class Region:
    """Memory that a socket shows its peers: a part to read, cells to count in, the rest to fill.

    `address` is what the program calls the first byte.
    """

    def __init__(self, node: SimNode, mailbox: Mailbox, random: Random) -> None:
        self.node, self.mailbox = node, mailbox
        self.read_bytes = random.choice([40, 500, 9_000])
        self.cells_at = self.read_bytes + -self.read_bytes % CELL_BYTES
        self.next_free = self.cells_at + CELLS * CELL_BYTES  # where the next write goes
        size = self.next_free + random.choice([100, 3_000, 30_000])
        source = random.randbytes(self.cells_at) + bytes(CELLS * CELL_BYTES)
        self.initial = source + random.randbytes(size - len(source))
        self.memory = Memory(self.initial)
        self.address = random.randrange(1 << 20) * CELL_BYTES
        self.writable = random.random() < 0.8
        self.use_once = random.random() < 0.3
        self.fields_used = [0] * CELLS
        self.asked: list[Asked] = []
        self.is_freed = False
        self.at_the_end: bytes | None = None  # bytes when the owner took the region back
        self.cookie = node.regions.register(
            mailbox,
            self.memory.view,
            address=self.address,
            writable=self.writable,
            use_once=self.use_once,
        )

    @property
    def is_usable(self) -> bool:
        """Whether its owner has it still, as far as an application knows."""
        return self.node.is_alive and not self.is_freed

    def free(self) -> None:
        """Take the region back."""
        if self.node.regions.owns(self.mailbox, self.cookie):  # not once it was used
            self.node.regions.free(self.mailbox, self.cookie)
        self.note_freed()

    def note_freed(self) -> None:
        """Note that the region was taken back: from here on its bytes must stay untouched."""
        self.is_freed = True
        self.at_the_end = bytes(self.memory.view)

    def remote_address(self, at: int) -> int:
        """Return how an operation names the byte at an offset: as the API computes it."""
        return at + (self.cookie >> 32)

    def cell(self, number: int) -> int:
        """Return what a cell counts."""
        start = self.cells_at + number * CELL_BYTES
        return int.from_bytes(self.memory.view[start : start + CELL_BYTES], sys.byteorder)


@dataclass(slots=True, eq=False)
class Asked:
    """One operation, and what must come of it."""

    operation: Operation
    local: Memory
    region: Region
    at: int = 0  # place of the bytes in the region; of an atomic, its cell
    expected: bytes = b""  # what is written, or what a read brings
    shift: int = 0  # of an atomic's field
    changes: bool = True  # an atomic that finds what it looks for
    done_before: int = 0  # fields that were done for sure when this was asked
    is_wrong: bool = False  # may not succeed
    sender: SimNode | None = None
    was_cancelled: bool = False
    told: RdmaStatus | None = None
    left: bytes = b""  # local bytes when it ended

    @property
    def has_failed(self) -> bool:
        """Whether its message may be missing."""
        return bool(self.told)

    def is_write(self) -> bool:
        """Tell whether it changes a part of the region that is its own."""
        return isinstance(self.operation, RdmaTransfer) and self.operation.is_write


@dataclass(slots=True, eq=False)
class Sent:
    """One message that was accepted."""

    number: int
    payload: bytes
    extension: bytes
    asked: list[Asked]
    is_silent: bool  # nothing arrives of it
    was_cancelled: bool = False
    is_delivered: bool = False

    @property
    def may_be_missing(self) -> bool:
        """Whether something says that it did not arrive."""
        return self.was_cancelled or self.is_silent or any(one.has_failed for one in self.asked)


@dataclass(slots=True, eq=False)
class Flow:
    """What one socket sends to one port; its number is in every message."""

    number: int
    sender: SimNode
    mailbox: Mailbox
    receiver: str  # address
    target_port: int
    sent: list[Sent] = field(default_factory=list)
    came: int = -1  # the last number that was delivered
    came_to: Mailbox | None = None
    first_target: Mailbox | None = None  # bound when the flow began, if it is owed everything

    def name(self) -> str:
        """Describe it for a failure."""
        source = f"{self.mailbox.local} port {self.mailbox.port}"
        return f"flow {self.number} from {source} to {self.receiver} port {self.target_port}"
