"""What the peer has announced: the table it writes, and the space of it that is not used up.

The table lies in our memory, in our byte order. A urds peer says with each credit update
whether an entry came with it. librdmacm does not: its entry stands in the next slot, and lands
before its update, so each update looks there; an entry seen an update too early is the same one.
A taken entry is zeroed, and the peer writes the slot again only when the bytes that fill the entry
have reached it.

Between urds peers entries whose memory continues become one, so that one write may fill them.
librdmacm expects the bytes of a message in one entry. Source: docs/reference/rsocket.md 4, 5, 18.
"""

from urds.common.errors import RemoteProtocolError
from urds.rsocket.wire.stream import SGE_BYTES, ByteOrder, Sge

_ADDRESS_END = 1 << 64


class RemoteRange:
    """Memory of the peer that is still to be filled, from its front."""

    __slots__ = ("address", "byte_count", "rkey")

    def __init__(self, address: int, rkey: int, byte_count: int) -> None:
        self.address = address
        self.rkey = rkey
        self.byte_count = byte_count


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
