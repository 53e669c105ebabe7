"""Buffers mapped for direct writes: ours in the peer's table, the peer's in ours.

The owner of a buffer writes an entry into a slot of the other side's table, with immediate data
that names the slot; the other side may then write to the buffer by its offset, without immediate
data or a credit. Between urds peers an entry without bytes ends a mapping; librdmacm is not told,
and its write to the stale entry breaks the connection. Updates are ordered before data sent later,
so a peer that received such data knows the mapping. Source: docs/reference/rsocket.md 7.
"""

import errno
from collections.abc import Iterator
from typing import Final

from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.records import Memory, Post, PostKind
from urds.rsocket.core.stream.remote_sgl import check_range
from urds.rsocket.wire.stream import IOMAP_ENTRY_BYTES, ByteOrder, IomapEntry, Op, emit_imm_data

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
