"""The compiled stream core beside its queue pair: `StreamCore` for links on the compiled engine.

Words and completions reach the core inside of the engine, and what it has to send is posted
there: `receive_data`, `poll_transmit` and `handle_sent` do not exist here. What the engine leaves
to the link is told once for each change (`NativeShmAdapter.on_stream`).

The parts of the core (`lifecycle`, `receive_ring`, `sending`, `iomap`, `keepalive`) are this one
object: no two of their names are the same.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, Self, cast

from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.records import (
    Memory,
    MemorySource,
    Shut,
    StreamSettings,
    StreamState,
    StreamStats,
)

if TYPE_CHECKING:
    from urds.rsocket.link.devices import DeviceContext
    from urds.verbs.engine.queue_pair import QueuePair

CHUNK_BYTES_MAX: Final = 1 << 16  # so that the reader copies one while the writer copies the next
_READABLE, _WRITABLE, _ENDED, _CAN_READ, _CAN_WRITE = 1, 2, 4, 8, 16
_IS_OVER, _WANTS_DISCONNECT, IS_CUT = 32, 64, 128
_STATS: Final = [one.name for one in fields(StreamStats)]


class NativeStream:
    """One side of a connection; see `StreamCore`. Any thread, with or without the device's lock."""

    def __init__(self, context: DeviceContext, qp: QueuePair, settings: StreamSettings) -> None:
        """Make a stream on a queue pair in INIT. Raises OSError ENOMEM."""
        adapter: Any = context.adapter
        self.settings = settings
        self._context = context
        self._memory: Memory | None = None
        chunk = min(settings.chunk_max_bytes, CHUNK_BYTES_MAX)
        given = replace(settings, chunk_max_bytes=chunk)
        source: MemorySource = self
        self.native: Any = adapter.stream(qp, given, source)
        self.stats = cast(StreamStats, _Stats(self.native))

    # -- the parts

    @property
    def lifecycle(self) -> Self:
        """See `StreamCore`."""
        return self

    receive_ring = sending = iomap = keepalive = lifecycle

    # -- memory of the core

    def allocate(self, byte_count: int, /) -> Memory:
        """See `MemorySource`. Takes the device's lock."""
        with self._context.adapter.lock:
            memory = self._context.allocate(byte_count)
        self._memory = self._memory or memory
        return memory

    def release(self, memory: Memory, /) -> None:
        """See `MemorySource`. Takes the device's lock."""
        with self._context.adapter.lock:
            self._context.release(memory)

    # -- connecting

    @property
    def connect_data(self) -> bytes:
        """Return what our side says of itself."""
        data: bytes = self.native.connect_data
        return data

    def adopt(self, data: bytes) -> None:
        """Take the private data of the peer. Raises RemoteProtocolError."""
        problem = self.native.adopt(data)
        if problem is not None:
            raise RemoteProtocolError(problem)

    def begin(self) -> None:
        """Take words that came before the connect data, and send from here on."""
        self.native.begin()

    @property
    def is_urds_peer(self) -> bool:
        """Return whether space is announced in small steps."""
        return bool(self.native.is_urds_peer)

    @property
    def is_connected(self) -> bool:
        """Return whether both sides' private data are known."""
        return bool(self.native.is_connected)

    # -- bytes

    def send(self, data: memoryview, *, may_zero_copy: bool) -> int:
        """Take bytes to send and return how many. Raises OSError: ENOTCONN, EPIPE, ECONNRESET."""
        count: int = self.native.send_some(data, may_zero_copy)
        return count

    def receive_into(self, view: memoryview, *, peek: bool = False) -> int:
        """Copy bytes that are there and return how many."""
        count: int = self.native.take_some_into(view, peek)
        return count

    def receive(self, byte_count_max: int, *, peek: bool = False) -> bytes:
        """Return bytes that are there."""
        data: bytes = self.native.take_some(byte_count_max, peek)
        return data

    def post_pending(self) -> None:
        """Post what is due."""
        self.native.post_pending()

    @property
    def readable_bytes(self) -> int:
        """Return how many bytes arrived and were not read."""
        count: int = self.native.counts()[0]
        return count

    @property
    def unsent_bytes(self) -> int:
        """Return how many accepted bytes are not completed."""
        count: int = self.native.counts()[2]
        return count

    # -- in place

    def expect(self, memory: Memory, byte_count: int) -> int:
        """See `ReceiveRing.expect`."""
        offset: int = self.native.expect(memory, byte_count)
        return offset

    def take_ahead(self, view: memoryview) -> int:
        """Take bytes in front of those that are expected, while looking finds some."""
        count: int = self.native.take_ahead(view)
        return count

    def look_filled(self) -> bool:
        """Look for a moment whether all that is expected has come."""
        return bool(self.native.look_filled())

    @property
    def expected_left(self) -> int:
        """See `ReceiveRing.expected_left`."""
        count: int = self.native.counts()[1]
        return count

    def end_expect(self) -> int:
        """See `ReceiveRing.end_expect`."""
        count: int = self.native.end_expect()
        return count

    def holds(self, memory: Memory) -> bool:
        """See `ReceiveRing.holds`."""
        return bool(self.native.holds(memory.address, memory.view.nbytes))

    # -- mapped buffers

    def map_buffer(self, memory: Memory, offset: int | None = None) -> int:
        """See `StreamCore.map_buffer`."""
        offset = memory.address if offset is None else offset
        self.native.map_buffer(memory.address, memory.rkey, memory.view.nbytes, offset)
        return offset

    def unmap(self, memory: Memory) -> None:
        """See `StreamCore.unmap`."""
        self.native.unmap(memory.rkey, memory.address)

    def is_mapped(self, offset: int) -> bool:
        """Return whether the peer has a buffer at this offset."""
        return bool(self.native.is_mapped(offset))

    def write_mapped(self, data: memoryview, offset: int, *, may_zero_copy: bool) -> int:
        """See `StreamCore.write_mapped`; the bytes are the caller's again on return."""
        del may_zero_copy
        count: int = self.native.write_some(data, offset)
        return count

    @property
    def can_write_mapped(self) -> bool:
        """See `StreamCore.can_write_mapped`."""
        return bool(self.native.counts()[3])

    # -- state

    @property
    def is_readable(self) -> bool:
        """Return whether there are bytes, or the end."""
        return bool(self.native.word & _READABLE)

    @property
    def is_writable(self) -> bool:
        """Return whether a send would take something, or would raise."""
        return bool(self.native.word & _WRITABLE)

    @property
    def is_ended(self) -> bool:
        """Return whether no more bytes will come and all were read."""
        return bool(self.native.word & _ENDED)

    @property
    def can_read(self) -> bool:
        """Return whether more may come."""
        return bool(self.native.word & _CAN_READ)

    @property
    def can_write(self) -> bool:
        """Return whether bytes can be sent."""
        return bool(self.native.word & _CAN_WRITE)

    @property
    def state(self) -> StreamState:
        """Return where in its life the stream is."""
        return StreamState[self.native.state]

    @property
    def error(self) -> int:
        """Return the errno of what broke the stream, until it is taken."""
        error: int = self.native.error
        return error

    @property
    def reason(self) -> str:
        """Return the reason of the end."""
        reason: str = self.native.reason
        return reason

    @property
    def is_drained(self) -> bool:
        """Return whether nothing is to be sent and nothing un-completed."""
        return bool(self.native.is_drained)

    @property
    def wants_disconnect(self) -> bool:
        """Return whether the stream has ended and nothing is left to send or complete."""
        return bool(self.native.word & _WANTS_DISCONNECT)

    # -- the end

    def shut_down(self, how: Shut) -> None:
        """End one direction or both."""
        self.native.shut_down(int(how))

    def take_error(self) -> int:
        """Return `error` and forget it."""
        error: int = self.native.take_error()
        return error

    def handle_disconnected(self, reason: str, error: int) -> None:
        """Be over; what arrived stays readable."""
        self.native.handle_disconnected(reason, error)

    def close(self) -> None:
        """Release all memory; the queue pair is gone before."""
        self.native.close()

    # -- time and options

    def set_interval(self, interval_ns: int | None) -> None:
        """See `Keepalive.set_interval`."""
        self.native.set_keepalive(interval_ns)

    def set_no_delay(self, no_delay: bool) -> None:
        """See `Sending.set_no_delay`."""
        self.native.set_no_delay(no_delay)

    def poll_timeout(self) -> int | None:
        """See `StreamCore.poll_timeout`."""
        deadline_ns: int | None = self.native.poll_timeout()
        return deadline_ns

    def handle_timeout(self, now_ns: int) -> None:
        """See `StreamCore.handle_timeout`."""
        self.native.handle_timeout(now_ns)


class _Stats:
    """The counts of a compiled stream, as they are when they are read."""

    __slots__ = ("_native",)

    def __init__(self, native: Any) -> None:
        self._native = native

    def __getattr__(self, name: str) -> int:
        if name not in _STATS:
            raise AttributeError(name)
        count: int = self._native.stats()[_STATS.index(name)]
        return count


def may_be_native(context: DeviceContext, settings: StreamSettings) -> bool:
    """Return whether a stream of these settings runs in the engine of this device."""
    has_engine = getattr(context.adapter, "on_stream", None) is not None
    return has_engine and settings.is_urds
