"""The stream core of rsockets: a value machine. `Stream` is its only door.

    connecting   offer, adopt, is_connected, is_own_peer
    sending      send, check_writable, is_writable, borrowed_octets, unsent_octets, set_no_delay
    receiving    receive_into, receive, readable_bytes, is_readable, is_ended
    in place     expect, expected_left, end_expect, holds
    mapping      map_buffer, unmap, is_mapped, write_mapped, can_write_mapped
    queue pair   poll_transmit, handle_sent, handle_failed, handle_disconnected, receive_data
    time         poll_timeout, handle_timeout, set_keepalive
    the end      shut_down, is_drained, wants_disconnect, close; state, can_read, can_write, reason,
                 error, take_error
    counters     stats

Misuse that an application must handle is an `OSError`; a peer that breaks the protocol raises
`RemoteProtocolError` from `adopt` and `receive_data`, and from nothing else.
"""

from urds.rsocket.stream.core import Stream
from urds.rsocket.stream.records import (
    BORROW_BYTES_MIN,
    CONTROL_SLOTS,
    DIRECT_BYTES_MIN,
    Memory,
    MemorySource,
    Post,
    PostKind,
    Shut,
    StreamSettings,
    StreamState,
    StreamStats,
)

__all__ = [
    "BORROW_BYTES_MIN",
    "CONTROL_SLOTS",
    "DIRECT_BYTES_MIN",
    "Memory",
    "MemorySource",
    "Post",
    "PostKind",
    "Shut",
    "Stream",
    "StreamSettings",
    "StreamState",
    "StreamStats",
]
