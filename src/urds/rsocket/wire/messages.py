"""Messages of a stream: the immediate data of a write, and the iomap entry.

Immediate data are an integer here: three bits of operation above 29 bits of argument. They are
big-endian on the wire, which is the matter of the device. The bytes that go with them are
written into the peer's memory: data into the space that it announced, an entry (`Sge`) with a
credit update, an `IomapEntry` with an iomap update.
Source: rdma-core 691953d8 librdmacm/rsocket.c (docs/reference/rsocket.md 3, 4, 7).
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from urds.common.errors import WireError
from urds.common.struct_layout import Layout
from urds.rsocket.wire.connect_data import ByteOrder

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
