"""Credit updates: entries of the peer's table, which tell it of space, and the credits we give.

Credits count messages. The limit is absolute, 16 bits of what was read plus what may wait. An
update is due when an entry can be told or half of the credits is used up; one update brings both.
It needs no credit itself, so two full directions cannot lock each other.
Source: docs/reference/rsocket.md 4, 5, 18.
"""

from urds.rsocket.core.stream.records import Post, PostKind, StreamSettings, StreamStats
from urds.rsocket.wire.stream import (
    CREDIT_HAS_ENTRY,
    CREDIT_LIMIT_MASK,
    SGE_BYTES,
    ByteOrder,
    Op,
    Sge,
    emit_imm_data,
)


class SglUpdates:
    """Where the peer's table is, and how many messages the peer may send."""

    __slots__ = (
        "_byte_order", "_half", "_index", "_is_urds_peer", "_is_urds_side", "_queue", "_stats",
        "_table", "entries", "limit", "messages_read", "threshold",
    )  # fmt: skip

    def __init__(self, settings: StreamSettings, stats: StreamStats) -> None:
        self._stats = stats
        self._is_urds_side = settings.is_urds
        self._is_urds_peer = False
        self._table = Sge(0, 0, 0)
        self._byte_order: ByteOrder = "little"
        self.entries = 0  # of the peer's table
        self._index = 0
        # Counted without wrapping
        self._queue = settings.receive_queue
        self.messages_read = 0
        self.limit = self._queue
        self.threshold = self._half = max(1, self._queue // 2)  # messages read: credits are due

    def adopt(self, table: Sge, byte_order: ByteOrder, *, is_urds: bool) -> None:
        """Take where the peer's table is."""
        self._table, self._byte_order, self._is_urds_peer = table, byte_order, is_urds
        self.entries = table.length
        self._index = 1 % self.entries  # entry 0 went with the connect data

    def update(self, space: Sge | None) -> Post:
        """Return an update that gives all credits there are, and announces `space`."""
        self.threshold = self.messages_read + self._half
        self.limit = self.messages_read + self._queue
        argument = self.limit & CREDIT_LIMIT_MASK
        if not self._is_urds_side:  # the sum of two 16-bit numbers, one bit more: as librdmacm
            argument = (self.messages_read & CREDIT_LIMIT_MASK) + self._queue
        self._stats.credits_sent += 1
        if space is None:
            return Post(PostKind.CREDIT, b"", 0, 0, emit_imm_data(Op.CREDIT, argument))
        if self._is_urds_peer:
            argument |= CREDIT_HAS_ENTRY
        address = self._table.address + self._index * SGE_BYTES
        self._index = (self._index + 1) % self.entries
        self._stats.entries_sent += 1
        data, imm_data = space.emit(self._byte_order), emit_imm_data(Op.CREDIT, argument)
        return Post(PostKind.CREDIT, data, address, self._table.key, imm_data)
