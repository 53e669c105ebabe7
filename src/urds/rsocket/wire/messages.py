"""Messages of a stream: the word in the immediate data of a write, and the iomap entry.

A word is an integer here: three bits of operation above 29 bits of argument. Its octets are
big-endian on the wire, which is the matter of the device. The octets that go with a word are
written into the peer's memory: data into the space that it published, an entry (`Sge`) with a
credit update, an `IomapEntry` with an iomap update.
Source: rdma-core 691953d8 librdmacm/rsocket.c (rsocket.md sections 3, 4 and 7).
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from urds.errors import WireError
from urds.rsocket.wire.connect_data import ByteOrder
from urds.wire.layout import Layout

ARGUMENT_MAX: Final = (1 << 29) - 1
IOMAP_ENTRY_BYTES: Final = 24
# The argument of a credit update. The limit is absolute and wraps; the original adds two 16-bit
# numbers for it, so that bit 16 may be set and means nothing.
CREDIT_LIMIT_MASK: Final = 0xFFFF
CREDIT_HAS_ENTRY: Final = 1 << 28  # between peers of ours only: an entry came with this word
_ARGUMENT_BITS: Final = 29
_WORD_MAX: Final = 0xFFFFFFFF

# offset address key length
_IOMAP_ENTRY: Final[dict[ByteOrder, Layout]] = {
    "little": Layout("iomap entry", "<QQII", octets=IOMAP_ENTRY_BYTES),
    "big": Layout("iomap entry", ">QQII", octets=IOMAP_ENTRY_BYTES),
}


class Op(IntEnum):
    """What a message is. 1, 3 and 5 are reserved; 2 names a direct write, which has no word."""

    DATA = 0  # argument: octets
    CREDIT = 4  # the new limit, see CREDIT_LIMIT_MASK
    IOMAP = 6  # the slot that was written
    CONTROL = 7  # a `Control`


class Control(IntEnum):
    """Arguments of a control message."""

    DISCONNECT = 0
    KEEPALIVE = 1  # reserved by the original for itself: it never sends the word
    SHUTDOWN = 2  # no more data from here


_OPS: Final = {int(op): op for op in Op}


@dataclass(frozen=True, slots=True)
class IomapEntry:
    """A mapping of the peer's memory: `offset` is the name by which we may write there."""

    offset: int
    address: int
    key: int
    length: int  # octets

    def emit(self, byte_order: ByteOrder) -> bytes:
        """Write 24 octets in the order of the table's owner. Raises WireError out of range."""
        return _IOMAP_ENTRY[byte_order].pack(self.offset, self.address, self.key, self.length)

    @classmethod
    def parse(cls, octets: bytes | bytearray | memoryview, byte_order: ByteOrder) -> Self:
        """Read one entry; copies its 24 octets. Raises WireError for another size."""
        return cls(*_IOMAP_ENTRY[byte_order].unpack(bytes(octets)))


def emit_word(op: Op, argument: int) -> int:
    """Return the immediate data of a message. Raises WireError if the argument has over 29 bits."""
    if not 0 <= argument <= ARGUMENT_MAX:
        raise WireError(f"argument {argument} of {op.name} is not in 0 to {ARGUMENT_MAX}")
    return op << _ARGUMENT_BITS | argument


def parse_word(word: int) -> tuple[Op, int]:
    """Return operation and argument; that of a control message is a `Control`.

    Raises WireError for a reserved operation, an unknown control message, more than 32 bits.
    """
    if not 0 <= word <= _WORD_MAX:
        raise WireError(f"word {word} is not in 0 to {_WORD_MAX}")
    number, argument = word >> _ARGUMENT_BITS, word & ARGUMENT_MAX
    op = _OPS.get(number)
    if op is None:
        raise WireError(f"word {word:#010x} has operation {number}, which is reserved")
    if op is Op.CONTROL and argument > Control.SHUTDOWN:
        raise WireError(f"control message {argument} is not in 0 to {Control.SHUTDOWN:d}")
    return op, argument
