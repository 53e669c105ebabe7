"""What goes in and out of the stream core: settings, memory, posts, counters.

Also the one place where the limits of the core stand. Source of the defaults: rdma-core 691953d8
librdmacm/rsocket.c (docs/reference/rsocket.md 1); those without a number there are ours.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Final, Protocol

from urds.rsocket.wire.stream import ByteOrder

CONTROL_SLOTS: Final = 4  # requests of the send queue that data never take
WRITABLE_BYTES_MIN: Final = 2048  # room that makes a stream writable
ZERO_COPY_BYTES_MIN: Final = 1 << 14  # shorter bytes are copied: that is cheaper than to wait
DIRECT_BYTES_MIN: Final = 1 << 14  # a shorter rest is not worth a place of its own
ENTRIES_MAX: Final = 4096  # of a table that a peer may announce
LIBRDMACM_ENTRIES: Final = 2
LENGTH_MAX: Final = (1 << 32) - 1  # of one entry


@dataclass(slots=True, eq=False)
class Memory:
    """Registered memory of ours that the peer may write: `view.nbytes` bytes from `address`."""

    view: memoryview
    address: int
    rkey: int


class MemorySource(Protocol):
    """What registers memory for the core."""

    def allocate(self, byte_count: int, /) -> Memory:
        """Return that many zeroed bytes. Raises OSError ENOMEM at the limit."""

    def release(self, memory: Memory, /) -> None:
        """Take memory back: on return the peer cannot write there any more."""


class PostKind(Enum):
    """What a work request is for. The first three occupy data slots, the others control slots."""

    DATA = auto()
    IOMAP = auto()
    DIRECT = auto()  # into a mapped buffer of the peer, without immediate data
    CREDIT = auto()
    CONTROL = auto()
    KEEPALIVE = auto()  # no bytes, no immediate data: the acknowledgement shows that the peer lives


@dataclass(slots=True, eq=False)
class Post:
    """One RDMA write for the queue pair, always signalled.

    `data` stay unchanged until its completion. With `is_zero_copy` they are the caller's memory,
    else the core's; the shell drops them once the caller has its memory back. Without bytes,
    address and key are 0.
    """

    kind: PostKind
    data: bytes | memoryview
    address: int
    rkey: int
    imm_data: int | None  # immediate data; None is a plain write
    is_zero_copy: bool = False
    zero_copy_bytes: int = 0  # how many bytes, dropped or not
    is_done: bool = False  # before its completion


class Shut(IntEnum):
    """Which direction to end. The numbers are those of `socket.SHUT_RD` and its fellows."""

    RD = 0
    WR = 1
    RDWR = 2


class StreamState(Enum):
    """The life of a stream."""

    NEW = auto()  # not both sides' connect data are known
    OPEN = auto()
    CLOSING = auto()  # DISCONNECT leaves as the last message
    OVER = auto()  # no message goes or comes; what arrived is readable
    FAILED = auto()  # the same, and not in order
    CLOSED = auto()  # memory is given back


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What a stream is made with; the options of a socket check them.

    With `is_urds` False the core behaves as librdmacm does, for tests: two entries,
    halves, no growth, no coalescing.
    """

    send_queue: int = 384  # requests, CONTROL_SLOTS of them for control
    receive_queue: int = 384  # messages that may wait to be read
    receive_bytes: int = 1 << 17  # of the receive ring, if `is_receive_fixed`
    is_receive_fixed: bool = False  # a size was chosen: do not tune it
    ring_first_bytes: int = 1 << 13
    ring_max_bytes: int = 1 << 22
    held_wait_bytes: int = 1 << 22  # of a wait in place from which on the ring is held back
    send_bytes: int = 1 << 17  # copied bytes that may wait for their completion
    chunk_max_bytes: int = 1 << 18  # of one write
    iomap_slots: int = 0  # buffers that the peer may map to us
    table_entries: int = 16  # ranges that the peer may announce at a time
    byte_order: ByteOrder = "little"  # of our tables
    is_urds: bool = True
    no_delay: bool = False
    keepalive_ns: int | None = None


@dataclass(slots=True, eq=False)
class StreamStats:
    """What happened on one stream."""

    bytes_copied_in: int = 0  # by `send` and `write_mapped`
    bytes_zero_copy: int = 0  # posted from the caller's memory
    bytes_sent: int = 0  # posted as data
    bytes_copied_out: int = 0  # by `receive_into` and `receive`
    bytes_direct: int = 0  # arrived where the application waits for them
    bytes_received: int = 0
    bytes_mapped: int = 0  # written into buffers of the peer
    messages_sent: int = 0
    messages_received: int = 0
    credits_sent: int = 0  # updates, with or without an entry
    entries_sent: int = 0
    credits_received: int = 0
    entries_received: int = 0
    iomap_sent: int = 0
    iomap_received: int = 0
    controls_sent: int = 0
    keepalives_sent: int = 0
    blocked_on_credit: int = 0  # times that data began to wait for a credit
    blocked_on_space: int = 0  # times that data began to wait for space at the peer
    blocked_on_slots: int = 0  # times that data began to wait for a completion
    ring_grown: int = 0
    ring_growth_failed: int = 0  # there was no memory to grow into
