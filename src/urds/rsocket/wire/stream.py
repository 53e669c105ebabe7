"""The wire of a stream: private data of its connect, immediate data of a write, table entries.

**Connect data**: 40 bytes in the CM request, and 40 in the reply. Each side says where the peer
writes: the table of entries in which it hears of receive space (`target_sgl`, whose length counts
entries), the iomap behind that table under the same key, and the first piece of receive space
(`data_buffer`). The connection manager pads private data with zeros, so longer bytes are read from
the front; in a request they stand behind the 36 bytes of the RDMA-CM header, which is not ours to
read.

**Messages**: immediate data are an integer here: three bits of operation above 29 bits of argument.
They are big-endian on the wire, which is the matter of the device. The bytes that go with them are
written into the peer's memory: data into the space that it announced, an entry (`Sge`) with a
credit update, an `IomapEntry` with an iomap update.
Source: rdma-core 691953d8 librdmacm/rsocket.c (docs/reference/rsocket.md 2.1, 3, 4, 7).
"""

from dataclasses import dataclass
from enum import IntEnum, IntFlag
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


ARGUMENT_MAX: Final = (1 << 29) - 1
IOMAP_ENTRY_BYTES: Final = 24
# The argument of a credit update. The limit is absolute and wraps; librdmacm adds two 16-bit
# numbers for it, so that bit 16 may be set and means nothing.
CREDIT_LIMIT_MASK: Final = 0xFFFF
CREDIT_HAS_ENTRY: Final = 1 << 28  # between urds peers only: an entry came with this update
_ARGUMENT_BITS: Final = 29
_IMM_DATA_MAX: Final = 0xFFFFFFFF

# offset address key length
_IOMAP_ENTRY: Final[dict[ByteOrder, Layout]] = {
    "little": Layout("iomap entry", "<QQII", size_bytes=IOMAP_ENTRY_BYTES),
    "big": Layout("iomap entry", ">QQII", size_bytes=IOMAP_ENTRY_BYTES),
}


class Op(IntEnum):
    """What a message is. 1, 3, 5 are reserved; 2 is a direct write, without immediate data."""

    DATA = 0  # argument: bytes
    CREDIT = 4  # the new limit, see CREDIT_LIMIT_MASK
    IOMAP = 6  # the slot that was written
    CONTROL = 7  # a `Control`


class Control(IntEnum):
    """Arguments of a control message."""

    DISCONNECT = 0
    KEEPALIVE = 1  # reserved by librdmacm for itself: it never sends it
    SHUTDOWN = 2  # no more data from here


_OPS: Final = {int(op): op for op in Op}


@dataclass(frozen=True, slots=True)
class IomapEntry:
    """A mapping of the peer's memory: `offset` is the name by which we may write there."""

    offset: int
    address: int
    key: int
    length: int  # bytes

    def emit(self, byte_order: ByteOrder) -> bytes:
        """Write 24 bytes in the order of the table's owner. Raises WireError out of range."""
        return _IOMAP_ENTRY[byte_order].pack(self.offset, self.address, self.key, self.length)

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview, byte_order: ByteOrder) -> Self:
        """Read one entry; copies its 24 bytes. Raises WireError for another size."""
        return cls(*_IOMAP_ENTRY[byte_order].unpack(bytes(data)))


def emit_imm_data(op: Op, argument: int) -> int:
    """Return the immediate data of a message. Raises WireError if the argument has over 29 bits."""
    if not 0 <= argument <= ARGUMENT_MAX:
        raise WireError(f"argument {argument} of {op.name} is not in 0 to {ARGUMENT_MAX}")
    return op << _ARGUMENT_BITS | argument


def parse_imm_data(imm_data: int) -> tuple[Op, int]:
    """Return operation and argument; that of a control message is a `Control`.

    Raises WireError for a reserved operation, an unknown control message, more than 32 bits.
    """
    if not 0 <= imm_data <= _IMM_DATA_MAX:
        raise WireError(f"word {imm_data} is not in 0 to {_IMM_DATA_MAX}")
    number, argument = imm_data >> _ARGUMENT_BITS, imm_data & ARGUMENT_MAX
    op = _OPS.get(number)
    if op is None:
        raise WireError(f"word {imm_data:#010x} has operation {number}, which is reserved")
    if op is Op.CONTROL and argument > Control.SHUTDOWN:
        raise WireError(f"control message {argument} is not in 0 to {Control.SHUTDOWN:d}")
    return op, argument
