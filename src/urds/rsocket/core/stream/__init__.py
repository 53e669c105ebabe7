"""The stream core of rsockets: a value machine. `StreamCore` has all its calls.

connecting   connect_data, adopt, is_connected, is_urds_peer
sending      send, is_writable, zero_copy_bytes, unsent_bytes, set_no_delay
receiving    receive_into, receive, readable_bytes, is_readable, is_ended
in place     expect, expected_left, end_expect, holds
mapping      map_buffer, unmap, is_mapped, write_mapped, can_write_mapped
queue pair   poll_transmit, handle_sent, handle_disconnected, receive_data
time         poll_timeout, handle_timeout, set_keepalive
the end      shut_down, is_drained, wants_disconnect, close; state, can_read, can_write, reason,
             error, take_error
counters     stats
"""

from urds.rsocket.core.stream.core import StreamCore
from urds.rsocket.core.stream.records import (
    CONTROL_SLOTS,
    DIRECT_BYTES_MIN,
    ZERO_COPY_BYTES_MIN,
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
    "CONTROL_SLOTS", "DIRECT_BYTES_MIN", "ZERO_COPY_BYTES_MIN", "Memory", "MemorySource", "Post",
    "PostKind", "Shut", "StreamCore", "StreamSettings", "StreamState", "StreamStats",
]  # fmt: skip
