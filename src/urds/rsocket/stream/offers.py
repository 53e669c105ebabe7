"""Private data of a stream: what ours says, and how the peer's are judged.

Every number of the peer is judged before it is used. Unknown flags are let pass: a later release
of the original may mean something by them. Source: rsocket.md 2.1.
"""

from urds.errors import RemoteProtocolError, WireError
from urds.rsocket.stream.publishing import WINDOW_UNIT_BYTES
from urds.rsocket.stream.records import ENTRIES_MAX, StreamSettings
from urds.rsocket.stream.target import check_range
from urds.rsocket.wire.connect_data import (
    SGE_BYTES,
    VERSION,
    ByteOrder,
    ConnectData,
    ConnectFlag,
)
from urds.rsocket.wire.messages import IOMAP_ENTRY_BYTES


def first_window_bytes(settings: StreamSettings) -> int:
    """Return how large the window is at first: a chosen size, rounded up, or a small one."""
    is_tuned = settings.is_own and not settings.is_receive_fixed
    wanted = settings.window_first_bytes if is_tuned else settings.receive_bytes
    return -(-max(1, wanted) // WINDOW_UNIT_BYTES) * WINDOW_UNIT_BYTES


def flags_of(settings: StreamSettings) -> ConnectFlag:
    """Return what our side says of itself."""
    flags = ConnectFlag.IOMAP
    if settings.byte_order == "big":
        flags |= ConnectFlag.BIG_ENDIAN
    return flags | ConnectFlag.OWN if settings.is_own else flags


def byte_order_of(peer: ConnectData) -> ByteOrder:
    """Return the order in which the peer's tables are written."""
    return "big" if ConnectFlag.BIG_ENDIAN in peer.flags else "little"


def judged(octets: bytes) -> ConnectData:
    """Read private data and judge each number. Raises RemoteProtocolError."""
    try:
        peer = ConnectData.parse(octets)
    except WireError as error:
        raise RemoteProtocolError(str(error)) from error
    if peer.version != VERSION:
        raise RemoteProtocolError(f"version {peer.version} of rsockets, not {VERSION}")
    if not peer.credits:
        raise RemoteProtocolError("a peer that takes no message")
    table = peer.target_sgl
    if not 1 <= table.length <= ENTRIES_MAX:
        raise RemoteProtocolError(f"table of {table.length} entries, not 1 to {ENTRIES_MAX}")
    table_bytes = table.length * SGE_BYTES + peer.iomap_slots * IOMAP_ENTRY_BYTES
    check_range(table.address, table_bytes, "tables")
    check_range(peer.data_buffer.address, peer.data_buffer.length, "data buffer")
    return peer
