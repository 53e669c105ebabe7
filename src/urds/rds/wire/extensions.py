"""Extension headers, the 16 bytes at the end of a header, and the handshake they carry.

A list of a type byte and its data, whose length the type implies; there is no length byte.
`parse` reads it exactly as Linux 7.0 does (net/rds/message.c), and UEK's types 7 and 9 too:

- at offset 16, at type 0 and at a type of 16 or more it stops;
- data that would run past byte 16 end the list, and what is there is not read;
- a type below 16 that is not known has no data: reading goes on at the next byte.

Kernels up to 6.19 send one extension and read all; 4 and 8 are unknown to them. That is why
SPORT_IDX is last and its data byte is 0: an old kernel takes that byte for the end.

In the handshake a probe ping and a probe pong contain: the number of paths, the generation, and
whether TCP source ports carry the path index. To another `urds` node it adds the *mark*, at fixed
offsets behind the end of the list, where no kernel looks (tried on 6.1, 6.12 and 7.2):

    offset   0..9                10         11..12   13             14..15
    content  list, zero filled   0 (NONE)   "UR"     mark version   capability bits, big-endian

A peer without the mark is treated as Linux. No kernel echoes a probe, so a mark in a reply is the
peer's own.
"""

from collections.abc import Iterable
from typing import Final

from urds.common.errors import WireError
from urds.common.records import record
from urds.common.struct_layout import Layout
from urds.rds.constants import Capability, ExtensionType
from urds.rds.wire.header import EXTENSION_BYTES

TYPE_LIMIT: Final = 16  # types from here on end the list
MARK_VERSION: Final = 1
_MARK_OFFSET: Final = 10
_MARK_SIGN: Final = b"\0UR"
_MARK: Final = Layout("mark", ">3sBH", size_bytes=EXTENSION_BYTES - _MARK_OFFSET)


@record
class Extension:
    """One entry of the list; the table below says which values a type has."""

    type: int  # an ExtensionType, or another number below 16, which has no data
    values: tuple[int, ...] = ()


@record
class Mark:
    """The peer is a `urds` node, and this is what it can do."""

    capabilities: Capability
    version: int = MARK_VERSION  # later versions keep this layout and add meaning


@record(kw_only=True)
class Handshake:
    """The content of one probe, ping or pong alike."""

    npaths: int | None = None  # as sent; the receiver takes the smaller of both and 8
    generation: int | None = None  # never 0
    sport_index: bool = False  # binds the connecting side to ports that carry the path index
    mark: Mark | None = None


# One record for all types: ten classes would cost more than a tenth of what `import urds` may.
_LAYOUTS: Final[dict[int, Layout]] = {
    ExtensionType.VERSION: Layout("VERSION", ">I", size_bytes=4),  # version; no node sends it
    ExtensionType.RDMA: Layout("RDMA", ">I", size_bytes=4),  # r_key just used
    ExtensionType.RDMA_DEST: Layout("RDMA_DEST", ">II", size_bytes=8),  # r_key, offset: a cookie
    ExtensionType.RDMA_BYTES: Layout("RDMA_BYTES", ">IB3x", size_bytes=8),  # bytes, RdmaBytesFlag
    ExtensionType.NPATHS: Layout("NPATHS", ">H", size_bytes=2),  # paths
    ExtensionType.GEN_NUM: Layout("GEN_NUM", ">I", size_bytes=4),  # generation; 0 is none
    ExtensionType.CAP_BITS: Layout("CAP_BITS", ">I", size_bytes=4),  # bits; bit 0: UEK's heartbeat
    ExtensionType.SPORT_IDX: Layout("SPORT_IDX", ">B", size_bytes=1),  # 0, see above
    ExtensionType.CSUM: Layout("CSUM", ">IB3x", size_bytes=8),  # payload checksum, 1 if it counts
}
_NO_DATA: Final = Layout("unknown extension", ">", size_bytes=0)


def parse(data: bytes) -> tuple[Extension, ...]:
    """Parse the extension headers in wire order. Raises WireError if there are not 16 bytes."""
    if len(data) != EXTENSION_BYTES:
        raise WireError(f"extension space of {len(data)} bytes, not {EXTENSION_BYTES}")
    found: list[Extension] = []
    offset = 0
    while offset < EXTENSION_BYTES:
        number = data[offset]
        offset += 1
        if number == ExtensionType.NONE or number >= TYPE_LIMIT:
            break
        layout = _LAYOUTS.get(number, _NO_DATA)
        end = offset + layout.size_bytes
        if end > EXTENSION_BYTES:
            break
        found.append(Extension(number, layout.unpack(data[offset:end])))
        offset = end
    return tuple(found)


def emit(extensions: Iterable[Extension]) -> bytes:
    """Write the 16 bytes: in the order given, each extension that still fits, zeros behind.

    One that does not fit is left out, as Linux leaves it out; a later, shorter one may follow.
    Raises WireError if a value does not fit its width.
    """
    data = b""
    for extension in extensions:
        encoded = _emit_one(extension)
        if len(data) + len(encoded) <= EXTENSION_BYTES:
            data += encoded
    return data.ljust(EXTENSION_BYTES, b"\0")


def parse_handshake(data: bytes) -> Handshake:
    """Read the extension space of a probe; other extensions are ignored.

    The last one of equal extensions counts, as in Linux.
    Raises WireError if there are not 16 bytes.
    """
    npaths: int | None = None
    generation: int | None = None
    sport_index = False
    for extension in parse(data):
        if extension.type == ExtensionType.NPATHS:
            npaths = extension.values[0]
        elif extension.type == ExtensionType.GEN_NUM:
            generation = extension.values[0] or None  # Linux takes 0 for "none given"
        elif extension.type == ExtensionType.SPORT_IDX:
            sport_index = True
    return Handshake(
        npaths=npaths, generation=generation, sport_index=sport_index, mark=_parse_mark(data)
    )


def emit_handshake(handshake: Handshake) -> bytes:
    """Write the 16 bytes of a probe, in the order of Linux 7.0.

    All three extensions fit in front of the mark. Raises WireError if a value does not fit.
    """
    extensions: list[Extension] = []
    if handshake.npaths is not None:
        extensions.append(Extension(ExtensionType.NPATHS, (handshake.npaths,)))
    if handshake.generation is not None:
        if not handshake.generation:
            raise WireError("generation 0 means none: leave it out")
        extensions.append(Extension(ExtensionType.GEN_NUM, (handshake.generation,)))
    if handshake.sport_index:
        extensions.append(Extension(ExtensionType.SPORT_IDX, (0,)))
    data = emit(extensions)
    return data if handshake.mark is None else data[:_MARK_OFFSET] + _emit_mark(handshake.mark)


def _emit_one(extension: Extension) -> bytes:
    if not 0 < extension.type < TYPE_LIMIT:
        raise WireError(f"extension type {extension.type} is not in 1 to {TYPE_LIMIT - 1}")
    layout = _LAYOUTS.get(extension.type, _NO_DATA)
    return bytes([extension.type]) + layout.pack(*extension.values)


def _parse_mark(data: bytes) -> Mark | None:
    sign, version, capabilities = _MARK.unpack(data[_MARK_OFFSET:])
    if sign != _MARK_SIGN or version == 0:
        return None
    return Mark(Capability(capabilities), version)


def _emit_mark(mark: Mark) -> bytes:
    if mark.version < 1:
        raise WireError(f"mark: version {mark.version} is not in 1 to 255")
    return _MARK.pack(_MARK_SIGN, mark.version, int(mark.capabilities))
