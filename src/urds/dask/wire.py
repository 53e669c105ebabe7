"""Packets of a session: a header of 16 bytes, big endian, and what it is about.

Each is one RDS message. RDS delivers once and in order from a socket to a socket, so `sequence`
only proves it. The highest bit of the type byte says that the session's acceptor sent it: a socket
may have both ends of a session. Other bits of it are kept for packets to come; a packet of another
version or type is answered with RESET. docs/dask.md, docs/adr.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from urds.common.errors import WireError
from urds.common.records import record

MAGIC: Final = 0x6452
VERSION: Final = 1
HEADER: Final = Struct(">HBBIQ")
HEADER_BYTES: Final = HEADER.size
_HELLO: Final = Struct(">Q16sIQ")
_CREDIT: Final = Struct(">Q")
_FROM_ACCEPTOR: Final = 0x80
_SEQUENCE_MASK: Final = (1 << 32) - 1


class Kind(IntEnum):
    """What a packet is."""

    OPEN = 1  # asks for a session; carries a Hello
    ACCEPT = 2  # answers it; carries a Hello
    DATA = 3  # bytes of the stream of messages
    CREDIT = 4  # so many more bytes may come
    FINISH = 5  # the sender is done; what it sent before is whole
    RESET = 6  # the session is gone
    PING = 7
    PONG = 8


class Header(NamedTuple):
    """The header of a packet; `sequence` counts the packets of one end, modulo 2**32."""

    kind: Kind
    session_id: int
    sequence: int
    from_acceptor: bool


@record
class Hello:
    """What an end says of itself: its window, and the process that it is.

    `host` is 16 bytes that are the same for two processes if each sees the other's process ids;
    `started` is the start time of the process in ticks of the kernel.
    """

    window_bytes: int
    host: bytes
    pid: int
    started: int


# By the type byte; a look-up in an enum takes longer than all else of a header.
_TYPES: Final = {kind | bit: (kind, bool(bit)) for kind in Kind for bit in (0, _FROM_ACCEPTOR)}


def emit_header(header: Header) -> bytes:
    """Return the bytes of a header."""
    kind = header.kind | (_FROM_ACCEPTOR if header.from_acceptor else 0)
    return HEADER.pack(MAGIC, VERSION, kind, header.sequence & _SEQUENCE_MASK, header.session_id)


def parse_header(data: bytes | memoryview) -> Header:
    """Read the header of a packet. Raises WireError for what is none of this version."""
    if len(data) < HEADER_BYTES:
        raise WireError(f"{len(data)} bytes are no packet of a session")
    magic, version, kind, sequence, session_id = HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise WireError(f"packet of magic {magic:#x}, version {version}")
    known = _TYPES.get(kind)
    if known is None:
        raise WireError(f"packet of type {kind:#x}")
    return Header(known[0], session_id, sequence, known[1])


def emit_hello(hello: Hello) -> bytes:
    """Return the body of OPEN and ACCEPT."""
    return _HELLO.pack(hello.window_bytes, hello.host, hello.pid, hello.started)


def parse_hello(body: bytes | memoryview) -> Hello:
    """Read the body of OPEN or ACCEPT; later versions may append. Raises WireError."""
    if len(body) < _HELLO.size:
        raise WireError(f"hello of {len(body)} bytes")
    return Hello(*_HELLO.unpack_from(body))


def emit_credit(payload_bytes: int) -> bytes:
    """Return the body of CREDIT."""
    return _CREDIT.pack(payload_bytes)


def parse_credit(body: bytes | memoryview) -> int:
    """Read the body of CREDIT. Raises WireError."""
    if len(body) != _CREDIT.size:
        raise WireError(f"credit of {len(body)} bytes")
    return int(_CREDIT.unpack_from(body)[0])
