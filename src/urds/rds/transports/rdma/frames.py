"""Messages on their way over RDMA: their operations, their frames, and what a device is to post.

A core never touches a queue pair. It gives work in the order in which it must be posted, numbered
by `wr_id`; completions come in that order with these numbers.

Each SEND is a whole header and one fragment of payload. A fragment has up to 4096 bytes, between
urds nodes that agreed on it up to 65536 (docs/adr/0014). A message becomes as many frames as it has
fragments, at least one. All of them carry the header of the message; only acknowledgement, credit
and checksum may differ between them. Every header has its checksum.
Source: linux v6.12 net/rds/ib_send.c; docs/reference/rds.md 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from urds.common.named_tuples import NamedTuple
from urds.rds.constants import IB_FRAGMENT_BYTES, ExtensionType, RdmaStatus
from urds.rds.plane.contract import Buffer, Operation, RdmaTransfer
from urds.rds.wire import extensions as exthdr
from urds.rds.wire.checksum import header_checksum
from urds.rds.wire.header import EXTENSION_BYTES, HEADER, HEADER_BYTES

if TYPE_CHECKING:
    from urds.rds.plane.contract import Mailbox as Owner

FRAGMENT_BYTES: Final = IB_FRAGMENT_BYTES
LONG_FRAGMENT_BYTES: Final = 65536  # the device's packets bound it no more than its memory
PACKED_BYTES: Final = HEADER_BYTES + LONG_FRAGMENT_BYTES  # of a frame of several messages
_ADDRESS_MASK: Final = (1 << 64) - 1  # addresses wrap: the peer refuses those without memory

# Header fields in the order of wire.header.HEADER.
Fields = tuple[int, int, int, int, int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Frame:
    """One SEND: a header and one fragment of payload, or several whole messages."""

    wr_id: int
    data: bytes
    solicited: bool = False  # the last fragment of a message
    fence: bool = False  # behind a read of the same message that asked for it


@dataclass(frozen=True, slots=True)
class Piece:
    """One work request of an operation: piece `number` of a transfer, or an atomic (number 0)."""

    wr_id: int
    operation: Operation
    number: int
    remote_address: int  # of this piece


Work = Frame | Piece


class Outcome(Enum):
    """How a work request ended."""

    DONE = auto()
    REMOTE_ACCESS = auto()  # the peer's memory refused it
    FLUSHED = auto()  # never done, or unknown: the connection broke
    FAILED = auto()  # anything else


class MessageHeader:
    """What the frames of one message have in common."""

    __slots__ = ("_fields", "_words")

    def __init__(
        self,
        *,
        sequence: int = 0,
        payload_bytes: int = 0,
        source_port: int = 0,
        target_port: int = 0,
        flags: int = 0,
        extension: bytes = b"",
    ) -> None:
        self._fields = (sequence, payload_bytes, source_port, target_port, flags)
        space = extension.ljust(16, b"\0")
        self._words = (int.from_bytes(space[:8], "big"), int.from_bytes(space[8:], "big"))

    def emit(self, *, acknowledgement: int, credit: int, payload: Buffer = b"") -> bytes:
        """Return the bytes of one frame; copies the payload, one fragment of the message."""
        sequence, payload_bytes, source_port, target_port, flags = self._fields
        fields = (
            sequence, acknowledgement, payload_bytes, source_port, target_port, flags, credit, 0,
        )  # fmt: skip
        checksum = header_checksum(*fields, *self._words)
        return HEADER.pack(*fields, checksum, *self._words) + payload


ACK_ONLY: Final = MessageHeader()  # number, length, ports and flags are all 0


def is_ack_only(fields: Fields) -> bool:
    """Tell whether a frame only acknowledges or grants credits: ports 0/0 and no length."""
    return not (fields[3] or fields[4] or fields[2])


def fragment_count(payload_bytes: int, fragment_bytes: int = FRAGMENT_BYTES) -> int:
    """Return how many frames a message takes; an empty one takes one."""
    return max(1, -(-payload_bytes // fragment_bytes))


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

    @property
    def frame_bytes(self) -> int:
        """The bytes that the message takes in a frame which it fits."""
        return HEADER_BYTES + len(self.payload)

    def header(self, flags: int) -> MessageHeader:
        """Return what its frames have in common."""
        return MessageHeader(
            sequence=self.sequence,
            payload_bytes=len(self.payload),
            source_port=self.source_port,
            target_port=self.target_port,
            flags=flags,
            extension=self.extension,
        )

    def fragment(self, number: int, fragment_bytes: int) -> Buffer:
        """Return one fragment of its payload."""
        if len(self.payload) <= fragment_bytes:
            return self.payload
        start = number * fragment_bytes
        return memoryview(self.payload)[start : start + fragment_bytes]

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
