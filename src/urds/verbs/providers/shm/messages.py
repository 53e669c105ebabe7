"""Messages on the socket of a channel: greeting, doorbell and mappings of memory.

Each message is one packet of a SOCK_SEQPACKET socket, in the byte order of the host, with the
descriptors that it names beside it. Packets of queue pairs and of the connection manager go
through the slots.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar, Final

from urds.common.errors import WireError

VERSION: Final = 2  # of slots and messages
MAGIC: Final = b"URDSSHM%d" % VERSION
GID_BYTES: Final = 16
MESSAGE_BYTES_MAX: Final = 64
DESCRIPTORS_MAX: Final = 1
DOORBELL: Final = b"\0"  # the message that says "look", and no more


@dataclass(frozen=True, slots=True)
class Doorbell:
    """Look: there is a slot, or room for one."""

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("=B")
    KIND: ClassVar[int] = 0
    DESCRIPTORS: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message, from the connecting side; beside it the memory of slots and rings."""

    LAYOUT: ClassVar[struct.Struct] = struct.Struct(f"=B8sI{GID_BYTES}s")
    KIND: ClassVar[int] = 1
    DESCRIPTORS: ClassVar[int] = 1

    magic: bytes
    ring_bytes: int
    gid: bytes


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer: the channel is open."""

    LAYOUT: ClassVar[struct.Struct] = struct.Struct(f"=B{GID_BYTES}s")
    KIND: ClassVar[int] = 2
    DESCRIPTORS: ClassVar[int] = 0

    gid: bytes


@dataclass(frozen=True, slots=True)
class MapRequest:
    """Request the memory behind a remote key, as the peer of the owner's queue pair `qpn`."""

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("=BII")
    KIND: ClassVar[int] = 3
    DESCRIPTORS: ClassVar[int] = 0

    qpn: int
    rkey: int


@dataclass(frozen=True, slots=True)
class MapReply:
    """The answer, with the memory's descriptor: valid while its generation is the one given."""

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("=BIIQQQ")
    KIND: ClassVar[int] = 4
    DESCRIPTORS: ClassVar[int] = 1

    qpn: int
    rkey: int
    address: int  # what peers call its first byte
    region_bytes: int
    generation: int


@dataclass(frozen=True, slots=True)
class MapReject:
    """The other answer: no such key, no right, or memory that cannot be mapped."""

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("=BII")
    KIND: ClassVar[int] = 5
    DESCRIPTORS: ClassVar[int] = 0

    qpn: int
    rkey: int


ChannelMessage = Doorbell | Hello | Welcome | MapRequest | MapReply | MapReject
_BY_KIND: Final[dict[int, type[ChannelMessage]]] = {
    message.KIND: message for message in (Doorbell, Hello, Welcome, MapRequest, MapReply, MapReject)
}


def emit_message(message: ChannelMessage) -> bytes:
    """Return the bytes of one message."""
    values = (getattr(message, name) for name in message.__slots__)
    return message.LAYOUT.pack(message.KIND, *values)


def parse_message(data: bytes, descriptor_count: int) -> ChannelMessage:
    """Read one message. Raises WireError: unknown kind, wrong size, magic or descriptors."""
    found = _BY_KIND.get(data[0]) if data else None
    if found is None:
        raise WireError(f"message of unknown kind {data[:1].hex()}")
    if len(data) != found.LAYOUT.size:
        raise WireError(f"{found.__name__} of {len(data)} bytes, not {found.LAYOUT.size}")
    if descriptor_count != found.DESCRIPTORS:
        raise WireError(
            f"{found.__name__} with {descriptor_count} descriptors, not {found.DESCRIPTORS}"
        )
    message = found(*found.LAYOUT.unpack(data)[1:])
    if isinstance(message, Hello) and message.magic != MAGIC:
        raise WireError(f"magic {message.magic!r}, not {MAGIC!r}")
    return message
