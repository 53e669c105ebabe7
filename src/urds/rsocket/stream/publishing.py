"""Space that we publish to the peer, and the credits that we give it: updates of both.

    free -> published (unfilled) -> arrived -> read, and free again

To peers of ours space is published in eighths of the window, so that the peer need never stop
while the application reads; to an original in halves, by its own rule. A window that the peer has
filled while the application had read all of it is too small, and is doubled: a new memory is
published after all that is, and the old one given back once it is empty. While an application waits
for much in memory of its own, only a small part of the window is published: the octets in it are
the ones to be copied.

Credits count messages. The limit is absolute, 16 bits of what was read plus what may wait. An
update is due when an entry can be published or half of the credits is used up; one update brings
both. It needs no credit itself, so two full directions cannot lock each other.
Source: rsocket.md 4, 5, 18.
"""

from typing import Final

from urds.rsocket.stream.areas import Area, Stretch
from urds.rsocket.stream.records import (
    Memory,
    MemorySource,
    Post,
    PostKind,
    StreamSettings,
    StreamStats,
)
from urds.rsocket.wire.connect_data import SGE_BYTES, ByteOrder, Sge
from urds.rsocket.wire.messages import CREDIT_HAS_ENTRY, CREDIT_LIMIT_MASK, Op, emit_word

WINDOW_UNIT_BYTES: Final = 512  # windows are multiples of it, so that an eighth is one of 64
STEP_BYTES_MIN: Final = 2048  # an eighth below that costs more messages than it saves waits
_PARTS_FINE: Final = 8
_PARTS_HALF: Final = 2


def step_of(window_bytes: int, *, is_fine: bool) -> int:
    """Return how much of a window is published at a time: it divides the window."""
    parts = _PARTS_FINE if is_fine else _PARTS_HALF
    while parts > _PARTS_HALF and window_bytes // parts < STEP_BYTES_MIN:
        parts //= 2
    return window_bytes // parts


class Publishing:
    """What the peer may write, and how many messages of it."""

    __slots__ = (
        "_entries",
        "_expected_piece",
        "_grow_at",
        "_grown",
        "_half",
        "_held_bytes",
        "_held_until",
        "_index",
        "_is_fine",
        "_is_full",
        "_is_own_peer",
        "_is_own_side",
        "_limit",
        "_messages_read",
        "_peer_order",
        "_peer_rkey",
        "_peer_table",
        "_queue",
        "_read",
        "_ring",
        "_source",
        "_stats",
        "_threshold",
        "_unfilled",
        "_unfilled_octets",
        "_window_max",
        "is_stopped",
        "may_be_due",
    )

    def __init__(
        self,
        settings: StreamSettings,
        source: MemorySource,
        memory: Memory,
        start: int,
        window_bytes: int,
        stats: StreamStats,
    ) -> None:
        """Publish the first half of a window in `memory`, from `start` on."""
        half = window_bytes // 2
        is_tuned = settings.is_own and not settings.is_receive_fixed
        self._source = source
        self._stats = stats
        self._is_own_side = settings.is_own
        self._window_max = window_bytes
        if is_tuned:
            self._window_max = settings.window_max_bytes // WINDOW_UNIT_BYTES * WINDOW_UNIT_BYTES
        # Space
        self._ring = Area(memory, start, window_bytes, half)
        first = self._ring.take_free(byte_count_max=half)
        assert first is not None, "a window has two halves"
        self._unfilled = [first]  # published, in the order in which the peer fills it
        self._unfilled_octets = half
        self._expected_piece: Stretch | None = None  # to be published before more of the ring
        self._read = 0  # octets since the beginning
        self._is_full = False  # all that was published was filled, since it was looked at last
        self._grown: list[Memory] = []  # windows after the first
        # Up to `_held_until` octets read, no more than `_held_bytes` of the ring are not free.
        self._held_until = -1
        self._held_bytes = 0
        self._grow_at = window_bytes  # octets read before the window may grow
        # The peer's table
        self._is_fine = self._is_own_peer = False
        self._entries = 0
        self._index = 0
        self._peer_table = self._peer_rkey = 0
        self._peer_order: ByteOrder = "little"
        # Credits, counted without wrapping
        self._queue = settings.receive_queue
        self._messages_read = 0
        self._limit = self._queue
        self._threshold = self._half = max(1, self._queue // 2)
        self.may_be_due = False
        self.is_stopped = False  # no data will come: updates are of no use

    @property
    def first(self) -> Sge:
        """Return the space that the connect data tell."""
        piece, memory = self._unfilled[0], self._ring.memory
        return Sge(memory.address + piece.offset, memory.rkey, piece.byte_count)

    def adopt(self, table: Sge, byte_order: ByteOrder, *, is_own: bool) -> None:
        """Take where the peer's table is; from now on updates may be due."""
        self._peer_table, self._peer_rkey = table.address, table.key
        self._peer_order = byte_order
        self._entries = table.length
        self._index = 1 % self._entries
        self._is_own_peer = is_own
        self._is_fine = is_own and self._entries > 2
        self._ring.step = step_of(self._ring.byte_count, is_fine=self._is_fine)
        self.may_be_due = True

    def stop(self) -> None:
        """Publish nothing more: no data will come."""
        self.is_stopped, self.may_be_due = True, False

    # -- updates

    def next_update(self) -> Post | None:
        """Return a credit update if one is due; the caller has a control slot for it."""
        piece = self._next_piece()
        if piece is None and (self._messages_read < self._threshold or self.is_stopped):
            self.may_be_due = False
            return None
        self._threshold = self._messages_read + self._half
        self._limit = self._messages_read + self._queue
        argument = self._limit & CREDIT_LIMIT_MASK
        if not self._is_own_side:  # the sum of two 16-bit numbers, one bit more: as the original
            argument = (self._messages_read & CREDIT_LIMIT_MASK) + self._queue
        self._stats.credits_sent += 1
        if piece is None:
            return Post(PostKind.CREDIT, b"", 0, 0, emit_word(Op.CREDIT, argument))
        if self._is_own_peer:
            argument |= CREDIT_HAS_ENTRY
        memory = piece.area.memory
        entry = Sge(memory.address + piece.offset, memory.rkey, piece.byte_count)
        address = self._peer_table + self._index * SGE_BYTES
        self._index = (self._index + 1) % self._entries
        self._stats.entries_sent += 1
        word = emit_word(Op.CREDIT, argument)
        return Post(PostKind.CREDIT, entry.emit(self._peer_order), address, self._peer_rkey, word)

    def _next_piece(self) -> Stretch | None:
        """Publish the next piece if there is one and a slot of the peer's table for it.

        A slot is free when the octets of its last entry have arrived.
        """
        if len(self._unfilled) >= self._entries or self.is_stopped:
            return None
        piece = self._expected_piece
        if piece is not None:
            self._expected_piece = None
        else:
            piece = self._ring.take_free(byte_count_max=self._most_to_publish())
            if piece is None:
                return None
        self._unfilled_octets += piece.byte_count
        self._unfilled.append(piece)
        return piece

    def _most_to_publish(self) -> int:
        """Return how much of the ring may be one entry now; 0 if it has to wait."""
        if not self._is_fine:
            return self._ring.step
        if self._read > self._held_until:
            return self._ring.byte_count
        # Two parts, so that the second is there while the peer fills the first.
        part = self._held_bytes // 2
        return part if self._ring.byte_count - self._ring.free <= part else 0

    # -- growing

    def _consider_growth(self) -> None:
        """Double the window if peer and application both wait for each other because of it.

        The peer has filled it since the last look and the application has read it all: a reader
        that is slower than the peer never comes here, and must not have more memory for it.
        """
        self._is_full = False
        ring = self._ring
        is_enough = self._read <= self._held_until and ring.byte_count >= self._held_bytes
        is_enough = is_enough or ring.byte_count >= self._window_max
        if is_enough or self._read < self._grow_at or self.is_stopped:
            return
        window_bytes = min(ring.byte_count * 2, self._window_max)
        self._grow_at = self._read + window_bytes
        try:
            memory = self._source.allocate(window_bytes)
        except OSError:
            self._stats.window_refused += 1
            return
        self._stats.window_grown += 1
        self._leave(ring)
        step = step_of(window_bytes, is_fine=self._is_fine)
        self._ring = Area(memory, 0, window_bytes, step)
        self._grown.append(memory)
        self.may_be_due = True

    def _leave(self, ring: Area) -> None:
        """Publish nothing of a ring again. The first one shares its memory with our tables."""
        if ring.start:
            return
        ring.is_left = True
        if ring.free == ring.byte_count:
            self._grown.remove(ring.memory)
            self._source.release(ring.memory)
