"""Private data of a stream's connect: 40 bytes in the CM request, and 40 in the reply.

Each side says where the peer writes: the table of entries in which it hears of receive space
(`target_sgl`, whose length counts entries), the iomap behind that table under the same key, and
the first piece of receive space (`data_buffer`). The connection manager pads private data with
zeros, so longer bytes are read from the front; in a request they stand behind the 36 bytes of
the RDMA-CM header, which is not ours to read.
Source: rdma-core 691953d8 librdmacm/rsocket.c (docs/reference/rsocket.md 2.1).
"""

from dataclasses import dataclass
from enum import IntFlag
from typing import Final, Literal, Self

from urds.common.errors import WireError
from urds.common.struct_layout import Layout

ByteOrder = Literal["little", "big"]

CONNECT_DATA_BYTES: Final = 40
VERSION: Final = 1
SGE_BYTES: Final = 16
SLOTS_MAX: Final = 0xFFFF  # of an iomap, before it is scaled
_SLOTS_PLAIN_MAX: Final = 128
_SLOTS_SCALED_MAX: Final = 0x7F << 8

# address key length
_SGE: Final[dict[ByteOrder, Layout]] = {
    "little": Layout("SGE", "<QII", size_bytes=SGE_BYTES),
    "big": Layout("SGE", ">QII", size_bytes=SGE_BYTES),
}
# version flags credits (3 reserved) iomap_scaled target_sgl data_buffer
_CONNECT_DATA: Final = Layout("connect data", ">BBH3xB16s16s", size_bytes=CONNECT_DATA_BYTES)


class ConnectFlag(IntFlag):
    """Flags of a side. Unknown bits are kept, for a later sender may mean something by them."""

    BIG_ENDIAN = 1  # of the sender's host, and so of the tables in its memory
    IOMAP = 2  # always set by librdmacm
    URDS = 0x80  # a urds peer; librdmacm neither sets nor reads it


@dataclass(frozen=True, slots=True)
class Sge:
    """One piece of remote memory; in a table of the peer, one entry."""

    address: int
    key: int
    length: int  # bytes; of `target_sgl` entries

    def emit(self, byte_order: ByteOrder) -> bytes:
        """Write 16 bytes in the order of the table's owner. Raises WireError out of range."""
        return _SGE[byte_order].pack(self.address, self.key, self.length)

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview, byte_order: ByteOrder) -> Self:
        """Read one entry; copies its 16 bytes. Raises WireError for another size."""
        return cls(*_SGE[byte_order].unpack(bytes(data)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectData:
    """What one side tells the other. The core checks the version."""

    flags: ConnectFlag
    credits: int  # messages that may be sent before the first update
    iomap_slots: int  # as many as the scaled byte says: never more than there are
    target_sgl: Sge
    data_buffer: Sge
    version: int = VERSION

    def emit(self) -> bytes:
        """Write 40 bytes. Raises WireError if a field does not fit."""
        return _CONNECT_DATA.pack(
            self.version,
            self.flags,
            self.credits,
            scale_slots(self.iomap_slots),
            self.target_sgl.emit("big"),
            self.data_buffer.emit("big"),
        )

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the first 40 bytes, of any version. Raises WireError if they are fewer."""
        if len(data) < CONNECT_DATA_BYTES:
            raise WireError(f"connect data of {len(data)} bytes, less than {CONNECT_DATA_BYTES}")
        version, flags, credit_count, slots_scaled, target_sgl, data_buffer = _CONNECT_DATA.unpack(
            data[:CONNECT_DATA_BYTES]
        )
        return cls(
            version=version,
            flags=ConnectFlag(flags),
            credits=credit_count,
            iomap_slots=slots_of(slots_scaled),
            target_sgl=Sge.parse(target_sgl, "big"),
            data_buffer=Sge.parse(data_buffer, "big"),
        )


def scale_slots(slot_count: int) -> int:
    """Return a count of iomap slots in eight bits, rounded down; above 32,512 it is 32,512.

    Up to 128 a count stands for itself, beyond that its multiples of 256 are told. Raises
    WireError if it is not in 0 to 65,535.
    """
    if not 0 <= slot_count <= SLOTS_MAX:
        raise WireError(f"{slot_count} iomap slots are not in 0 to {SLOTS_MAX}")
    if slot_count <= _SLOTS_PLAIN_MAX:
        return slot_count
    # librdmacm loses the top bit of 32,768 and more, and so tells 128 of 32,768 slots.
    return 0x80 | min(slot_count, _SLOTS_SCALED_MAX) >> 8


def slots_of(slots_scaled: int) -> int:
    """Return the count that eight bits tell. Raises WireError if they are more."""
    if not 0 <= slots_scaled <= 0xFF:
        raise WireError(f"scaled iomap size {slots_scaled} is not in 0 to 255")
    if slots_scaled <= _SLOTS_PLAIN_MAX:
        return slots_scaled
    return (slots_scaled & 0x7F) << 8
