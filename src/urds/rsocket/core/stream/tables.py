"""The tables that each side of a stream writes into the other's memory: space, credits, mappings.

**Remote SGL**: what the peer has announced, the table it writes, and the space of it that is not
used up. The table lies in our memory, in our byte order. A urds peer says with each credit update
whether an entry came with it. librdmacm does not: its entry stands in the next slot, and lands
before its update, so each update looks there; an entry seen an update too early is the same one.
A taken entry is zeroed, and the peer writes the slot again only when the bytes that fill the entry
have reached it. Between urds peers entries whose memory continues become one, so that one write may
fill them. librdmacm expects the bytes of a message in one entry.

**Credit updates**: entries of the peer's table, which tell it of space, and the credits we give.
Credits count messages. The limit is absolute, 16 bits of what was read plus what may wait. An
update is due when an entry can be told or half of the credits is used up; one update brings both.
It needs no credit itself, so two full directions cannot lock each other.

**Iomap**: buffers mapped for direct writes, ours in the peer's table, the peer's in ours. The owner
of a buffer writes an entry into a slot of the other side's table, with immediate data that names
the slot; the other side may then write to the buffer by its offset, without immediate data or a
credit. Between urds peers an entry without bytes ends a mapping; librdmacm is not told, and its
write to the stale entry breaks the connection. Updates are ordered before data sent later, so a
peer that received such data knows the mapping. Source: docs/reference/rsocket.md 4, 5, 7, 18.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.records import Memory, Post, PostKind, StreamSettings, StreamStats
from urds.rsocket.wire.stream import (
    CREDIT_HAS_ENTRY,
    CREDIT_LIMIT_MASK,
    IOMAP_ENTRY_BYTES,
    SGE_BYTES,
    ByteOrder,
    IomapEntry,
    Op,
    Sge,
    emit_imm_data,
)

OFFSET_MAX: Final = (1 << 64) - 1
MAPPED_BYTES_MAX: Final = (1 << 32) - 1


class Iomap:
    """The mappings of one stream, in both directions."""

    __slots__ = (
        "_byte_order", "_is_told", "_local", "_peer_order", "_peer_rkey", "_peer_slots",
        "_peer_table", "_remote", "_returned", "_table", "_updates",
    )  # fmt: skip

    def __init__(self, table: memoryview, byte_order: ByteOrder, updates: dict[int, Post]) -> None:
        """Let the peer map buffers into `table`, which lies in our memory.

        `updates` takes what is to be written into the peer's, by slot.
        """
        self._table = table
        self._updates = updates
        self._byte_order: ByteOrder = byte_order
        self._remote: dict[int, IomapEntry] = {}  # by slot of our table
        self._local: dict[Memory, int] = {}  # slots of the peer's table
        self._returned: list[int] = []  # slots below those ever used, free again
        self._peer_table = self._peer_rkey = self._peer_slots = 0
        self._peer_order: ByteOrder = "little"
        self._is_told = False

    def adopt(
        self, *, address: int, rkey: int, slots: int, byte_order: ByteOrder, is_urds: bool
    ) -> None:
        """Take where the peer's table is; a urds peer is told of the end of a mapping."""
        self._peer_table, self._peer_rkey, self._peer_slots = address, rkey, slots
        self._peer_order, self._is_told = byte_order, is_urds

    # -- ours, for the peer to write

    def map_buffer(self, memory: Memory, offset: int) -> None:
        """Take a slot of the peer's table and queue the update that fills it.

        Raises OSError: ENOMEM if no slot is free, EINVAL for an offset or length out of range and
        for memory that is mapped already.
        """
        byte_count = memory.view.nbytes
        if not 0 <= offset <= OFFSET_MAX + 1 - byte_count or not 0 < byte_count <= MAPPED_BYTES_MAX:
            raise OSError(errno.EINVAL, f"{byte_count} bytes at offset {offset}")
        if memory in self._local:
            raise OSError(errno.EINVAL, f"memory at {memory.address:#x} is mapped already")
        if len(self._local) >= self._peer_slots:
            raise OSError(errno.ENOMEM, f"no slot is free, the peer offers {self._peer_slots}")
        # Slots are used up from 0 on; from then on there are returned ones.
        slot = self._returned.pop() if self._returned else len(self._local)
        self._local[memory] = slot
        self._queue(slot, IomapEntry(offset, memory.address, memory.rkey, byte_count))

    def unmap(self, memory: Memory, *, is_told: bool) -> None:
        """Free the slot of a buffer, and with `is_told` tell a urds peer.

        Raises OSError EINVAL for a buffer that is not mapped.
        """
        slot = self._local.pop(memory, None)
        if slot is None:
            raise OSError(errno.EINVAL, f"memory at {memory.address:#x} is not mapped")
        self._returned.append(slot)
        is_told = is_told and self._is_told
        self._queue(slot, IomapEntry(0, 0, 0, 0) if is_told else None)

    def _queue(self, slot: int, entry: IomapEntry | None) -> None:
        """Queue an update in place of one for the same slot that has not left."""
        self._updates.pop(slot, None)
        if entry is not None:
            address = self._peer_table + slot * IOMAP_ENTRY_BYTES
            data, imm_data = entry.emit(self._peer_order), emit_imm_data(Op.IOMAP, slot)
            self._updates[slot] = Post(PostKind.IOMAP, data, address, self._peer_rkey, imm_data)

    # -- the peer's, for us to write

    def take_update(self, slot: int) -> None:
        """Take the entry that the peer has written. Raises RemoteProtocolError."""
        start = slot * IOMAP_ENTRY_BYTES
        data = self._table[start : start + IOMAP_ENTRY_BYTES]
        if len(data) < IOMAP_ENTRY_BYTES:
            slots = len(self._table) // IOMAP_ENTRY_BYTES
            raise RemoteProtocolError(f"update of iomap slot {slot} of {slots}")
        entry = IomapEntry.parse(data, self._byte_order)
        self._remote.pop(slot, None)
        if entry.length:
            check_range(entry.address, entry.length, f"buffer of iomap slot {slot}")
            check_range(entry.offset, entry.length, f"offset of iomap slot {slot}")
            self._remote[slot] = entry

    def is_mapped(self, offset: int) -> bool:
        """Return whether the peer has a buffer at this offset."""
        return self._find(offset) is not None

    def places(self, offset: int, byte_count: int) -> Iterator[tuple[int, int, int]]:
        """Yield address, key and length of the memory from an offset on, mapping by mapping.

        Ends at the first byte that is not mapped.
        """
        while byte_count and (entry := self._find(offset)) is not None:
            skipped = offset - entry.offset
            here = min(byte_count, entry.length - skipped)
            yield entry.address + skipped, entry.key, here
            offset += here
            byte_count -= here

    def _find(self, offset: int) -> IomapEntry | None:
        for entry in self._remote.values():
            if entry.offset <= offset < entry.offset + entry.length:
                return entry
        return None

    def close(self) -> None:
        """Let go of our memory."""
        self._remote.clear()
        self._table.release()


_ADDRESS_END = 1 << 64


@dataclass(slots=True, eq=False)
class RemoteRange:
    """Memory of the peer that is still to be filled, from its front."""

    address: int
    rkey: int
    byte_count: int


def check_range(address: int, byte_count: int, what: str) -> None:
    """Check memory that the peer names. Raises RemoteProtocolError if it leaves the addresses."""
    if address + byte_count > _ADDRESS_END:
        raise RemoteProtocolError(f"{what}: {byte_count} bytes from {address:#x} wrap around")


class RemoteSgl:
    """The table and, in order, the space that was read from it."""

    __slots__ = ("_byte_order", "_entries", "_index", "_is_merging", "_table", "spaces")

    def __init__(self, table: memoryview, entries: int, byte_order: ByteOrder) -> None:
        self.spaces: list[RemoteRange] = []  # in the order in which it is filled; none is empty
        self._table = table
        self._entries = entries
        self._byte_order: ByteOrder = byte_order
        self._index = 1 % entries  # entry 0 came with the connect data
        self._is_merging = False

    def adopt(self, first: Sge, *, is_merging: bool) -> None:
        """Take the space of the connect data, which was checked."""
        self._is_merging = is_merging
        if first.length:
            self.spaces.append(RemoteRange(first.address, first.key, first.length))

    def take_entry(self, *, is_announced: bool) -> bool:
        """Move the next entry from the table; return whether there was one.

        Raises RemoteProtocolError for an announced entry that is empty, for one that leaves the
        addresses, for more entries than the table holds.
        """
        start = self._index * SGE_BYTES
        slot = self._table[start : start + SGE_BYTES]
        entry = Sge.parse(slot, self._byte_order)
        if not entry.length:
            if is_announced:
                raise RemoteProtocolError(f"announced entry {self._index} is empty")
            return False
        check_range(entry.address, entry.length, f"entry {self._index}")
        slot[:] = bytes(SGE_BYTES)
        self._index = (self._index + 1) % self._entries
        self._append(entry)
        return True

    def _append(self, entry: Sge) -> None:
        spaces = self.spaces
        if spaces and self._is_merging:
            last = spaces[-1]
            if last.rkey == entry.key and last.address + last.byte_count == entry.address:
                last.byte_count += entry.length
                return
        if len(spaces) >= self._entries:
            raise RemoteProtocolError(
                f"entry {len(spaces) + 1} of a table that holds {self._entries}"
            )
        spaces.append(RemoteRange(entry.address, entry.key, entry.length))

    def close(self) -> None:
        """Let go of our memory."""
        self.spaces.clear()
        self._table.release()


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
