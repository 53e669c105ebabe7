"""One message on its way over RDMA, and the operations that go before it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from urds.rds.constants import ExtensionType, RdmaStatus
from urds.rds.plane.contract import Buffer
from urds.rds.plane.operations import Operation, RdmaTransfer
from urds.rds.transports.rdma.frames import Piece
from urds.rds.wire import extensions as exthdr
from urds.rds.wire.header import EXTENSION_BYTES

if TYPE_CHECKING:
    from urds.rds.plane.python.outgoing import Owner

_ADDRESS_MASK: Final = (1 << 64) - 1  # addresses wrap: the peer refuses those without memory


class MessageEntry(NamedTuple):
    """One message, for rds-info."""

    sequence: int  # 0 while it has none
    payload_bytes: int
    source_port: int
    target_port: int


@dataclass(slots=True, eq=False)
class Message:
    """One message on its way; fields that are not in its header stay on this side."""

    owner: Owner | None  # None: a pong or map, or no socket waits for it any more
    source_port: int
    target_port: int
    payload: Buffer
    extension: bytes = b""
    _: KW_ONLY
    ack_required: bool = False
    is_map: bool = False
    tasks: tuple[Task, ...] = ()
    sequence: int = 0
    is_retransmit: bool = False
    is_silent: bool = False
    is_taken_back: bool = False  # goes on to its last frame and is forgotten then
    was_handed_over: bool = False

    def entry(self) -> MessageEntry:
        """Describe the message for rds-info."""
        return MessageEntry(self.sequence, len(self.payload), self.source_port, self.target_port)

    def next_task(self) -> Task | None:
        """Return the first operation that has a piece to be posted."""
        for task in self.tasks:
            if task.posted < task.pieces:
                return task
        return None

    def has_succeeded(self) -> bool:
        """Tell whether all operations succeeded: the message may be retransmitted alone."""
        return all(task.operation.status is RdmaStatus.SUCCESS for task in self.tasks)

    def asks_fence(self) -> bool:
        """Tell whether the message has to wait for one of its reads."""
        operations = (task.operation for task in self.tasks)
        return any(
            isinstance(one, RdmaTransfer) and not one.is_write and one.fence for one in operations
        )


@dataclass(slots=True, eq=False)
class Task:
    """One operation of a message: which pieces are posted and done."""

    message: Message
    owner: Owner
    operation: Operation
    pieces: int = field(init=False)
    posted: int = 0
    done: int = 0
    offset: int = 0  # bytes in the pieces posted
    final: RdmaStatus | None = None  # taken back: how it ends when its pieces are done

    def __post_init__(self) -> None:
        operation = self.operation
        self.pieces = len(operation.pieces) if isinstance(operation, RdmaTransfer) else 1
        assert self.pieces, "an operation has at least one piece"

    def next_piece(self, wr_id: int) -> Piece:
        """Return the next piece and count it as posted."""
        operation = self.operation
        address = operation.remote_address + self.offset & _ADDRESS_MASK
        piece = Piece(wr_id, operation, self.posted, address)
        if isinstance(operation, RdmaTransfer):
            self.offset += len(operation.pieces[self.posted])
        self.posted += 1
        return piece


def with_keys(extension: bytes, operations: Iterable[Operation]) -> bytes:
    """Add the keys that transfers use, as far as there is room; skip data that is no list."""
    keys = [
        exthdr.Extension(ExtensionType.RDMA, (operation.key,))
        for operation in operations
        if isinstance(operation, RdmaTransfer)
    ]
    space = extension.ljust(EXTENSION_BYTES, b"\0")
    found = exthdr.parse(space)
    if not keys or exthdr.emit(found) != space:
        return extension
    return exthdr.emit([*found, *keys])
