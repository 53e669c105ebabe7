"""One byte ring in shared memory: one writer, one reader, either in another process.

Two counters of bytes, each written by one side only, tell what is filled; they never wrap (64
bits). A frame is eight bytes of header and a payload, padded to eight, so that a header never
crosses the end of the ring; a payload may.

**Order.** A counter is one aligned 8-byte cell of a memoryview with format Q. CPython moves it
with a memcpy of constant size 8, which compilers turn into one load or store on x86-64 and
aarch64: never torn. A frame is published by its counter after its bytes. x86-64 keeps that order
by itself; aarch64 does not, and neither keeps "store mine, then load yours". So each such place
calls `MemoryFence`: it releases and acquires a lock, two atomic read-modify-writes, release and
then acquire. That orders everything before with everything after on both.

**Sleep.** A reader that finds nothing sets its sleeping flag, fences, looks again, and only then
sleeps; a writer publishes, fences, and looks at the flag. One of both sees the other. The writer
clears the flag before it rings, so that a sleeper is rung for once; the clearing may hit a flag
set anew, but the doorbell comes after it. Still readers sleep for a bounded time, as a net.

**Trust.** The other side may write anything anywhere at any time. A counter is taken once into a
local, then checked: it moves forward only, within the ring, in steps of eight. Lengths come from
the copied header. What fails is a RemoteProtocolError, and the channel ends. Bytes are copied
out before they are checked.
"""

import struct
import threading
from enum import IntEnum
from typing import Final, NamedTuple

from urds.common.errors import RemoteProtocolError
from urds.common.forks import renewed
from urds.common.types import BytesLike

RING_CELLS_BYTES: Final = 512  # the cells of one ring, each in a cache line of its own
_LINE_CELLS: Final = 8
_HEADER: Final = struct.Struct("=IHH")  # payload bytes, kind, zero
FRAME_HEADER_BYTES: Final = _HEADER.size
_ALIGNMENT: Final = 8


class Cell(IntEnum):
    """Where the cells of a ring are, in cells of eight bytes from its first one."""

    WRITTEN = 0 * _LINE_CELLS  # by the writer: bytes put in since the beginning
    READ = 1 * _LINE_CELLS  # by the reader: bytes that it has done with
    SLEEPING = 2 * _LINE_CELLS  # set by the reader, cleared by both
    STARVED = 3 * _LINE_CELLS  # set by a writer without room, cleared by both
    PLACING = 4 * _LINE_CELLS  # by the writer: it is copying into the reader's regions


# Members of an enum cost a look-up by name each time.
_WRITTEN, _READ, _SLEEPING, _STARVED, _PLACING = map(int, Cell)


class MemoryFence:
    """A full memory barrier: what is before it is seen before what is after it.

    One per thread-exclusive owner: the lock inside is held between two calls.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = renewed(threading.Lock())
        self._lock.acquire()

    def __call__(self) -> None:
        """Order memory accesses. About 0.1 microseconds."""
        self._lock.release()
        self._lock.acquire()


class RingFrame(NamedTuple):
    """One frame, copied out of the ring."""

    kind: int
    data: bytes


def padded(byte_count: int) -> int:
    """Return the bytes that a frame with such a payload takes in a ring."""
    return FRAME_HEADER_BYTES + -(-byte_count // _ALIGNMENT) * _ALIGNMENT


class RingWriter:
    """The writing end. All calls by one thread at a time."""

    def __init__(self, cells: memoryview, data: memoryview) -> None:
        """Write to `data`, a power of two bytes; `cells` has format Q."""
        self._cells, self._data = cells, data
        self._capacity = _checked_capacity(data)
        self._fence = MemoryFence()
        self._read_seen = 0
        self.written = 0  # the shared cell is for the reader; what it holds is never believed

    @property
    def read_by_peer(self) -> int:
        """Bytes that the reader has done with. Raises RemoteProtocolError if it cannot be."""
        read = self._cells[_READ]
        if not self._read_seen <= read <= self.written or read % _ALIGNMENT:
            raise RemoteProtocolError(
                f"read counter {read}, expected {self._read_seen} to {self.written}"
            )
        self._read_seen = read
        return int(read)

    def has_room(self, payload_bytes: int) -> bool:
        """Tell whether such a frame fits now. Raises RemoteProtocolError."""
        needed = padded(payload_bytes)
        if self.written + needed - self._read_seen <= self._capacity:
            return True
        return self.written + needed - self.read_by_peer <= self._capacity

    @property
    def is_roomy(self) -> bool:
        """Return whether half of the ring is known to be free, without reading the shared cell."""
        return self.written - self._read_seen <= self._capacity >> 1

    def wait_for_room(self, payload_bytes: int) -> bool:
        """Request a doorbell when the reader has made room; return whether there is room already.

        Raises RemoteProtocolError.
        """
        self._cells[_STARVED] = 1
        self._fence()
        return self.has_room(payload_bytes)

    def write(self, kind: int, *parts: BytesLike) -> bool:
        """Copy one frame in and publish it; return whether the reader's doorbell must ring.

        Call it only when `has_room`.
        """
        payload_bytes = sum(map(len, parts))
        written = self.written + padded(payload_bytes)
        assert written - self._read_seen <= self._capacity
        start = self.written % self._capacity
        _HEADER.pack_into(self._data, start, payload_bytes, kind, 0)
        position = start + FRAME_HEADER_BYTES
        for part in parts:
            position = self._copy_in(position, part)
        self.written = written
        self._fence()
        self._cells[_WRITTEN] = written
        self._fence()
        if not self._cells[_SLEEPING]:
            return False
        self._cells[_SLEEPING] = 0
        return True

    def begin_placing(self) -> None:
        """Announce a copy into the reader's regions; check their generation after this."""
        self._cells[_PLACING] = 1
        self._fence()

    def end_placing(self) -> None:
        """Announce the end of the copy."""
        self._fence()
        self._cells[_PLACING] = 0

    def close(self) -> None:
        """Release the memory; no other call may follow."""
        self._cells.release()
        self._data.release()

    def _copy_in(self, position: int, part: BytesLike) -> int:
        start = position % self._capacity
        first = min(len(part), self._capacity - start)
        if first == len(part):
            self._data[start : start + first] = part
        else:
            data = memoryview(part)
            self._data[start:] = data[:first]
            self._data[: len(part) - first] = data[first:]
        return position + len(part)


class RingReader:
    """The reading end. All calls by one thread at a time."""

    def __init__(self, cells: memoryview, data: memoryview, *, payload_bytes_max: int) -> None:
        """Read from `data`, a power of two bytes; `cells` has format Q."""
        self._cells, self._data = cells, data
        self._capacity = _checked_capacity(data)
        self._payload_bytes_max = payload_bytes_max
        self._fence = MemoryFence()
        self._written_seen = 0
        self._taken = 0
        self._read = 0  # the shared cell is for the writer

    def take(self) -> RingFrame | None:
        """Copy the next frame out. Its room is the writer's again after `release`.

        Raises RemoteProtocolError for counters or lengths that cannot be.
        """
        if self._taken == self._written_seen and not self._look():
            return None
        start = self._taken % self._capacity
        payload_bytes, kind, zero = _HEADER.unpack_from(self._data, start)  # read once
        if payload_bytes > self._payload_bytes_max or zero:
            raise RemoteProtocolError(
                f"frame of {payload_bytes} bytes, limit {self._payload_bytes_max}"
            )
        frame_bytes = padded(payload_bytes)
        if frame_bytes > self._written_seen - self._taken:
            raise RemoteProtocolError(
                f"frame of {payload_bytes} bytes, {self._written_seen - self._taken} published"
            )
        data = self._copy_out(start + FRAME_HEADER_BYTES, payload_bytes)
        self._taken += frame_bytes
        return RingFrame(kind, data)

    @property
    def held_bytes(self) -> int:
        """Bytes that were taken and not released yet."""
        return self._taken - self._read

    def release(self) -> bool:
        """Return the room of all taken frames; return whether the writer's doorbell must ring."""
        if self._read == self._taken:
            return False
        self._read = self._taken
        self._fence()
        self._cells[_READ] = self._read
        self._fence()
        if not self._cells[_STARVED]:
            return False
        self._cells[_STARVED] = 0
        return True

    def arm_doorbell(self) -> bool:
        """Set the sleeping flag and look again; return whether the reader may sleep.

        Raises RemoteProtocolError.
        """
        self._cells[_SLEEPING] = 1
        self._fence()
        if self._taken == self._written_seen and not self._look():
            return True
        self._cells[_SLEEPING] = 0
        return False

    def disarm_doorbell(self) -> None:
        """Clear the sleeping flag: no doorbell is needed."""
        self._cells[_SLEEPING] = 0

    @property
    def is_placing(self) -> bool:
        """Whether the writer says that it is copying into regions of the reader's side."""
        return bool(self._cells[_PLACING])

    def close(self) -> None:
        """Release the memory; no other call may follow."""
        self._cells.release()
        self._data.release()

    def _look(self) -> bool:
        written = int(self._cells[_WRITTEN])
        if written == self._written_seen:
            return False
        beyond = written - self._written_seen
        if beyond < 0 or written - self._read > self._capacity or written % _ALIGNMENT:
            raise RemoteProtocolError(
                f"written counter {written} after {self._written_seen}, {self._read} read, "
                f"ring of {self._capacity}"
            )
        self._written_seen = written
        self._fence()
        return True

    def _copy_out(self, position: int, byte_count: int) -> bytes:
        start = position % self._capacity
        first = min(byte_count, self._capacity - start)
        if first == byte_count:
            return bytes(self._data[start : start + first])
        return b"".join((self._data[start:], self._data[: byte_count - first]))


def _checked_capacity(data: memoryview) -> int:
    capacity = len(data)
    assert capacity >= _ALIGNMENT and capacity & (capacity - 1) == 0, capacity
    return capacity
