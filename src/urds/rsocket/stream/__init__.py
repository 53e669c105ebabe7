"""The stream core of rsockets: a value machine. `Stream` is its only door."""

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
