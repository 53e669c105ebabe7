"""What goes in and out of the stream core: settings, memory, posts, counters.

Also the one place where the limits of the core stand. Source of the defaults: rdma-core 691953d8
librdmacm/rsocket.c (rsocket.md section 1); those without a number there are ours.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Final, Protocol

from urds.rsocket.wire.connect_data import ByteOrder

CONTROL_SLOTS: Final = 4  # requests of the send queue that data never take
WRITABLE_BYTES_MIN: Final = 2048  # room that makes a stream writable
BORROW_BYTES_MIN: Final = 1 << 14  # shorter octets are copied: that is cheaper than to wait
DIRECT_BYTES_MIN: Final = 1 << 14  # a shorter rest is not worth a place of its own
ENTRIES_MAX: Final = 4096  # of a table that a peer may announce
ORIGINAL_ENTRIES: Final = 2
LENGTH_MAX: Final = (1 << 32) - 1  # of one entry


@dataclass(slots=True, eq=False)
class Memory:
    """Registered memory of ours that the peer may write: `view.nbytes` octets from `address`."""

    view: memoryview
    address: int
    rkey: int


class MemorySource(Protocol):
    """Who registers memory for the core."""

    def allocate(self, byte_count: int, /) -> Memory:
        """Return that many zeroed octets. Raises OSError ENOMEM at the limit."""

    def release(self, memory: Memory, /) -> None:
        """Take memory back: on return the peer cannot write there any more."""


class PostKind(Enum):
    """What a work request is for. The first three occupy data slots, the others control slots."""

    DATA = auto()
    IOMAP = auto()
    DIRECT = auto()  # into a mapped buffer of the peer, without a word
    CREDIT = auto()
    CONTROL = auto()
    KEEPALIVE = auto()  # no octets, no word: the acknowledgement is the sign of life


@dataclass(slots=True, eq=False)
class Post:
    """One RDMA write for the queue pair, always signalled.

    `octets` stay unchanged until its completion. With `is_borrowed` they are the caller's memory,
    else the core's; the shell drops them once the caller has his memory back. Without octets,
    address and key are 0.
    """

    kind: PostKind
    octets: bytes | memoryview
    address: int
    rkey: int
    word: int | None  # immediate data; None is a plain write
    is_borrowed: bool = False
    borrowed_bytes: int = 0  # how many octets, dropped or not


class Shut(IntEnum):
    """Which direction to end. The numbers are those of `socket.SHUT_RD` and its fellows."""

    RD = 0
    WR = 1
    RDWR = 2


class StreamState(Enum):
    """The life of a stream."""

    NEW = auto()  # not both offers are made
    OPEN = auto()
    CLOSING = auto()  # DISCONNECT leaves as the last word
    OVER = auto()  # no word goes or comes; what arrived is readable
    FAILED = auto()  # the same, and not in order
    CLOSED = auto()  # memory is given back


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What a stream is made with; judged by who reads them from an application.

    With `is_own` False the core behaves as the original does, for tests against it: two entries,
    halves, no growth, no coalescing.
    """

    send_queue: int = 384  # requests, CONTROL_SLOTS of them for control
    receive_queue: int = 384  # messages that may wait to be read
    receive_bytes: int = 1 << 17  # of the window, if `is_receive_fixed`
    is_receive_fixed: bool = False  # somebody chose a size: do not tune it
    window_first_bytes: int = 1 << 13
    window_max_bytes: int = 1 << 22
    held_wait_bytes: int = 1 << 22  # of a wait in place from which on the window is held back
    send_bytes: int = 1 << 17  # copied octets that may wait for their completion
    chunk_max_bytes: int = 1 << 18  # of one write
    iomap_slots: int = 0  # buffers that the peer may map to us
    table_entries: int = 16  # pieces of space that the peer may tell at a time
    byte_order: ByteOrder = "little"  # of our tables
    is_own: bool = True
    no_delay: bool = False
    keepalive_ns: int | None = None


@dataclass(slots=True, eq=False)
class StreamStats:
    """What happened on one stream."""

    octets_copied_in: int = 0  # by `send` and `write_mapped`
    octets_borrowed: int = 0  # posted from the caller's memory
    octets_sent: int = 0  # posted as data
    octets_copied_out: int = 0  # by `receive_into` and `receive`
    octets_direct: int = 0  # arrived where the application waits for them
    octets_received: int = 0
    octets_mapped: int = 0  # written into buffers of the peer
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
    window_grown: int = 0
    window_refused: int = 0  # there was no memory to grow into
