"""One message on its way over RDMA, and the operations that go before it."""

from __future__ import annotations

from collections.abc import Iterable
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


class Message:
    """One message on its way; fields that are not in its header stay on this side."""

    __slots__ = (
        "ack_required",
        "extension",
        "is_map",
        "is_retransmit",
        "is_silent",
        "is_taken_back",
        "owner",
        "payload",
        "sequence",
        "source_port",
        "target_port",
        "tasks",
        "was_handed_over",
    )

    def __init__(
        self,
        owner: Owner | None,
        source_port: int,
        target_port: int,
        payload: Buffer,
        extension: bytes = b"",
        *,
        ack_required: bool = False,
        is_map: bool = False,
    ) -> None:
        self.owner = owner  # None: a pong or map, or no socket waits for it any more
        self.source_port = source_port
        self.target_port = target_port
        self.payload = payload
        self.extension = extension
        self.tasks: tuple[Task, ...] = ()
        self.sequence = 0
        self.ack_required = ack_required
        self.is_map = is_map
        self.is_retransmit = False
        self.is_silent = False
        self.is_taken_back = False  # goes on to its last frame and is forgotten then
        self.was_handed_over = False

    def entry(self) -> MessageEntry:
        """Describe the message for rds-info."""
        return MessageEntry(self.sequence, len(self.payload), self.source_port, self.target_port)


class Task:
    """One operation of a message: which pieces are posted and done."""

    __slots__ = ("done", "final", "message", "offset", "operation", "owner", "pieces", "posted")

    def __init__(self, message: Message, owner: Owner, operation: Operation) -> None:
        self.message = message
        self.owner = owner
        self.operation = operation
        self.pieces = len(operation.pieces) if isinstance(operation, RdmaTransfer) else 1
        assert self.pieces, "an operation has at least one piece"
        self.posted = self.done = 0
        self.offset = 0  # bytes in the pieces posted
        self.final: RdmaStatus | None = None  # taken back: how it ends when its pieces are done

    def next_piece(self, wr_id: int) -> Piece:
        """Return the next piece and count it as posted."""
        operation = self.operation
        address = operation.remote_address + self.offset & _ADDRESS_MASK
        piece = Piece(wr_id, operation, self.posted, address)
        if isinstance(operation, RdmaTransfer):
            self.offset += len(operation.pieces[self.posted])
        self.posted += 1
        return piece


def next_task(message: Message) -> Task | None:
    """Return the first operation of a message that has a piece to be posted."""
    for task in message.tasks:
        if task.posted < task.pieces:
            return task
    return None


def has_succeeded(message: Message) -> bool:
    """Tell whether all operations of a message succeeded: it may be retransmitted alone."""
    return all(task.operation.status is RdmaStatus.SUCCESS for task in message.tasks)


def asks_fence(message: Message) -> bool:
    """Tell whether the message has to wait for one of its reads."""
    operations = (task.operation for task in message.tasks)
    return any(
        isinstance(one, RdmaTransfer) and not one.is_write and one.fence for one in operations
    )


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
