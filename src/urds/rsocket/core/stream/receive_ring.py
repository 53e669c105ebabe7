"""The receive ring: space that the peer fills, and bytes read from it in the order of arrival.

    free -> announced (unfilled) -> arrived (unread) -> read, and free again

Announced ranges are filled strictly in order, whatever memory they are of, so a data message needs
no address: its bytes are the next ones. Where they landed is noted as ranges, neighbours as one,
and read from there in one copy.

Space is announced to urds peers in eighths of the ring, so that the peer need never stop while the
application reads; to librdmacm in halves, by its own rule. A ring that the peer has filled while
the application had read all of it is too small, and is doubled: a new buffer is announced after
all that is, and the old one released once it is empty. While an application waits for much in
memory of its own, only a small part of the ring is announced: the bytes in it are to be copied.

`expect` puts memory of the application behind all that is announced: bytes that arrive there are
read by arriving. There is one expectation at a time, which the caller ends:

    | arrived, not read | announced, not filled | the expected memory from `ahead` on |
    |<--------------- ahead: copied with `receive_into` -->|<-- lands in place -->|

Meanwhile `receive_into` gives the bytes ahead and nothing behind them. What is announced cannot be
taken back: the memory of an expectation that ends early stays until the peer has filled it, and
what arrives there later is read with `receive_into` like everything else.
Source: docs/reference/rsocket.md 4, 5, 6, 18 (rule 2b).
"""

from dataclasses import dataclass, field
from typing import Final

from urds.common.errors import LocalProtocolError, RemoteProtocolError
from urds.rsocket.core.stream.records import (
    DIRECT_BYTES_MIN,
    LENGTH_MAX,
    Memory,
    MemorySource,
    Post,
    StreamSettings,
    StreamStats,
)
from urds.rsocket.core.stream.tables import SglUpdates
from urds.rsocket.wire.stream import ByteOrder, Sge

RING_UNIT_BYTES: Final = 512  # rings are multiples of it, so that an eighth is one of 64
STEP_BYTES_MIN: Final = 2048  # an eighth below that costs more messages than it saves waits
HELD_BYTES_MAX: Final = 1 << 18
EDGES_MIN: Final = 4  # messages in a row that end where a range ends: space is what stops the peer
_PARTS_FINE: Final = 8
_PARTS_HALF: Final = 2


@dataclass(slots=True, eq=False)
class RingBuffer:
    """A part of a memory that is used as a ring: `byte_count` bytes from `start`.

    Bytes are announced, filled, read and free again in one order. A buffer that is left for a
    larger one is released when all of it is free, for then nothing of it is announced.
    """

    memory: Memory
    start: int
    byte_count: int
    step: int  # less than that is not announced
    view: memoryview = field(init=False)
    free: int = field(init=False)  # neither announced nor unread
    announced_to: int = field(init=False)  # offset in the memory at which announcing goes on
    is_left: bool = False

    def __post_init__(self) -> None:
        self.view, self.free, self.announced_to = self.memory.view, self.byte_count, self.start

    def take_free(self, *, byte_count_max: int) -> "BufferRange | None":
        """Announce what is free and in one piece, whole steps of it if there are any.

        None if less than a step is free. What is before the end of the ring is announced as well.
        """
        if self.free < self.step or not byte_count_max:
            return None
        end = self.start + self.byte_count
        byte_count = min(self.free, end - self.announced_to)
        byte_count = min(byte_count // self.step * self.step or byte_count, byte_count_max)
        taken = BufferRange(self, self.announced_to, byte_count)
        self.free -= byte_count
        self.announced_to += byte_count
        if self.announced_to == end:
            self.announced_to = self.start
        return taken


@dataclass(slots=True, eq=False)
class BufferRange:
    """Bytes of a buffer in one piece: announced and not filled yet, or filled and not read."""

    buffer: RingBuffer
    offset: int  # in the memory
    byte_count: int

    @property
    def sge(self) -> Sge:
        """Return the range as the peer addresses it."""
        memory = self.buffer.memory
        return Sge(memory.address + self.offset, memory.rkey, self.byte_count)

    def is_continued_by(self, other: "BufferRange") -> bool:
        """Return whether a peer sees both as one: `self` has none of its bytes left."""
        here, there = self.buffer.memory, other.buffer.memory
        is_next = here.address + self.offset == there.address + other.offset
        return here.rkey == there.rkey and is_next


def first_ring_bytes(settings: StreamSettings) -> int:
    """Return how large the ring is at first: a chosen size, rounded up, or a small one."""
    is_tuned = settings.is_urds and not settings.is_receive_fixed
    wanted = settings.ring_first_bytes if is_tuned else settings.receive_bytes
    return -(-max(1, wanted) // RING_UNIT_BYTES) * RING_UNIT_BYTES


def step_of(ring_bytes: int, *, is_fine: bool) -> int:
    """Return how much of a ring is announced at a time: it divides the ring."""
    parts = _PARTS_FINE if is_fine else _PARTS_HALF
    while parts > _PARTS_HALF and ring_bytes // parts < STEP_BYTES_MIN:
        parts //= 2
    return ring_bytes // parts


class ReceiveRing:
    """What the peer may write, and what of it has arrived."""

    __slots__ = (
        "_ahead", "_arrived", "_buffer", "_edges", "_expected", "_expected_range", "_grow_at",
        "_grown", "_held_bytes", "_held_until", "_held_wait_bytes", "_is_fine", "_is_full",
        "_is_urds_side", "_landed", "_message_ends", "_messages_received", "_read", "_ring_max",
        "_source", "_stats", "_unfilled", "_unfilled_bytes", "_unread", "_updates", "is_stopped",
        "may_be_due", "readable_bytes",
    )  # fmt: skip

    def __init__(
        self,
        settings: StreamSettings,
        source: MemorySource,
        memory: Memory,
        start: int,
        ring_bytes: int,
        stats: StreamStats,
    ) -> None:
        """Announce the first half of a ring in `memory`, from `start` on."""
        half = ring_bytes // 2
        is_tuned = settings.is_urds and not settings.is_receive_fixed
        self._source, self._stats = source, stats
        self._updates = SglUpdates(settings, stats)
        self._is_urds_side = settings.is_urds
        self._is_fine = False
        self.may_be_due = False  # an update
        self.is_stopped = False  # no data will come: updates are of no use
        # Space
        self._buffer = RingBuffer(memory, start, ring_bytes, half)
        first = self._buffer.take_free(byte_count_max=half)
        assert first is not None, "a ring has two halves"
        self._unfilled = [first]  # announced, in the order in which the peer fills it
        self._unfilled_bytes = half
        self._read = 0  # bytes since the beginning
        # Growth
        self._grown: list[Memory] = []  # buffers after the first
        self._grow_at = ring_bytes  # bytes read before the ring may grow
        self._ring_max = ring_bytes
        if is_tuned:
            self._ring_max = settings.ring_max_bytes // RING_UNIT_BYTES * RING_UNIT_BYTES
        self._is_full = False  # all that was announced was filled, since it was looked at last
        # Up to `_held_until` bytes read, no more than `_held_bytes` of the ring are not free.
        self._held_until = -1
        self._held_bytes = 0
        self._held_wait_bytes = settings.held_wait_bytes
        # What has arrived
        self.readable_bytes = 0
        self._unread: list[BufferRange] = []  # in order
        self._arrived = 0  # bytes since the beginning
        self._edges = 0  # messages in a row that ended where a range ends
        self._messages_received = 0
        self._message_ends: list[int] = []  # of messages not read, in bytes like `_arrived`
        # Direct receive
        self._expected: RingBuffer | None = None
        self._expected_range: BufferRange | None = None  # announced before more of the ring
        self._ahead = 0  # bytes to be read before those of `_expected`
        self._landed = 0  # bytes in `_expected`

    @property
    def first(self) -> Sge:
        """Return the space that the connect data tell."""
        return self._unfilled[0].sge

    def adopt(self, table: Sge, byte_order: ByteOrder, *, is_urds: bool) -> None:
        """Take where the peer's table is; from now on updates may be due."""
        self._updates.adopt(table, byte_order, is_urds=is_urds)
        self._is_fine = is_urds and table.length > 2
        self._buffer.step = step_of(self._buffer.byte_count, is_fine=self._is_fine)
        self.may_be_due = True

    def stop(self) -> None:
        """Announce nothing more: no data will come."""
        self.is_stopped, self.may_be_due = True, False

    # -- updates

    def next_update(self) -> Post | None:
        """Return a credit update if one is due; the caller has a control slot for it."""
        space, updates = self._next_range(), self._updates
        if space is None and (updates.messages_read < updates.threshold or self.is_stopped):
            self.may_be_due = False
            return None
        return updates.update(None if space is None else space.sge)

    def _next_range(self) -> BufferRange | None:
        """Announce the next range if there is one and a slot of the peer's table for it.

        A slot is free when the bytes of its last entry have arrived.
        """
        if len(self._unfilled) >= self._updates.entries or self.is_stopped:
            return None
        found = self._expected_range
        if found is not None:
            self._expected_range = None
        else:
            found = self._buffer.take_free(byte_count_max=self._announce_max())
            if found is None:
                return None
        self._unfilled_bytes += found.byte_count
        self._unfilled.append(found)
        return found

    def _announce_max(self) -> int:
        """Return how much of the ring may be one entry now; 0 if it has to wait."""
        if not self._is_fine:
            return self._buffer.step
        if self._read > self._held_until:
            return self._buffer.byte_count
        # Two parts, so that the second is there while the peer fills the first.
        part = self._held_bytes // 2
        return part if self._buffer.byte_count - self._buffer.free <= part else 0

    # -- growing

    def _consider_growth(self) -> None:
        """Double the ring if peer and application both wait for each other because of it.

        The peer has filled it since the last look and the application has read it all: a reader
        that is slower than the peer never comes here, and must not have more memory for it.
        """
        self._is_full = False
        size_bytes = self._buffer.byte_count
        is_enough = self._read <= self._held_until and size_bytes >= self._held_bytes
        is_enough = is_enough or size_bytes >= self._ring_max
        if is_enough or self._read < self._grow_at or self.is_stopped:
            return
        ring_bytes = min(size_bytes * 2, self._ring_max)
        self._grow_at = self._read + ring_bytes
        try:
            memory = self._source.allocate(ring_bytes)
        except OSError:
            self._stats.ring_growth_failed += 1
            return
        self._stats.ring_grown += 1
        self._leave(self._buffer)
        step = step_of(ring_bytes, is_fine=self._is_fine)
        self._buffer = RingBuffer(memory, 0, ring_bytes, step)
        self._grown.append(memory)
        self.may_be_due = True

    def _leave(self, buffer: RingBuffer) -> None:
        """Announce nothing of a buffer again. The first one shares its memory with our tables."""
        if buffer.start:
            return
        buffer.is_left = True
        if buffer.free == buffer.byte_count:
            self._release(buffer)

    def _release(self, buffer: RingBuffer) -> None:
        self._grown.remove(buffer.memory)
        self._source.release(buffer.memory)

    # -- what arrives

    def take_message(self, byte_count: int) -> None:
        """Take the immediate data of a data message: its bytes have landed.

        Raises RemoteProtocolError for a message without a credit, without bytes, with more than
        was announced, or beyond the end of a range whose memory does not continue.
        """
        if self._messages_received >= self._updates.limit:
            raise RemoteProtocolError(f"message {self._messages_received} without a credit")
        if not 0 < byte_count <= self._unfilled_bytes:
            raise RemoteProtocolError(
                f"message of {byte_count} bytes, published are {self._unfilled_bytes}"
            )
        self._messages_received += 1
        self._arrived += byte_count
        self._message_ends.append(self._arrived)
        self._unfilled_bytes -= byte_count
        stats = self._stats
        stats.messages_received += 1
        stats.bytes_received += byte_count
        first = self._unfilled[0]
        if byte_count < first.byte_count:
            self._land(first.buffer, first.offset, byte_count)
            first.offset += byte_count
            first.byte_count -= byte_count
            self._edges = 0
        else:
            self._fill_ranges(byte_count)

    def _fill_ranges(self, byte_count: int) -> None:
        """Fill the first range to its end, and more."""
        unfilled = self._unfilled
        while True:
            first = unfilled[0]
            taken = min(byte_count, first.byte_count)
            self._land(first.buffer, first.offset, taken)
            first.offset += taken
            first.byte_count -= taken
            byte_count -= taken
            if not first.byte_count:
                del unfilled[0]
            if not byte_count:
                break
            if not first.is_continued_by(unfilled[0]):
                raise RemoteProtocolError(f"message goes {byte_count} bytes beyond its piece")
        # On a long path something is always announced that the peer does not know of yet: that it
        # stops for space shows by where its messages end.
        self._edges = 0 if first.byte_count else self._edges + 1
        self._is_full = self._is_full or not unfilled or self._edges >= EDGES_MIN
        self.may_be_due = True

    def _land(self, buffer: RingBuffer, offset: int, byte_count: int) -> None:
        """Note bytes that are to be read, or are by having arrived where they are expected."""
        unread = self._unread
        if buffer is self._expected:
            self._landed += byte_count
            self._stats.bytes_direct += byte_count
            if not unread:
                self._free(buffer, byte_count)
                return
        else:
            self.readable_bytes += byte_count
        if unread:
            last = unread[-1]
            if last.buffer is buffer and last.offset + last.byte_count == offset:
                last.byte_count += byte_count
                return
        unread.append(BufferRange(buffer, offset, byte_count))

    def count_update(self) -> None:
        """Count a message that costs a credit and has nothing to read.

        librdmacm does not, which costs it a credit for ever. Raises RemoteProtocolError for a
        message without a credit.
        """
        if not self._is_urds_side:
            return
        if self._messages_received >= self._updates.limit:
            raise RemoteProtocolError(f"message {self._messages_received} without a credit")
        self._messages_received += 1
        self._updates.messages_read += 1
        self.may_be_due = True

    # -- what is read

    def receive_into(self, view: memoryview, *, peek: bool = False) -> int:
        """Copy bytes that are to be read and return how many; free their space unless `peek`.

        0 for none, or at the end. While a receive is expected, only bytes before it. Poll
        afterwards. `view` is one-dimensional, of format B.
        """
        wanted = len(view)
        if self._expected is not None and wanted > self._ahead:
            wanted = self._ahead
        unread = self._unread
        if not unread or not wanted:
            return 0
        first = unread[0]
        if wanted <= first.byte_count and not peek:
            start = first.offset
            view[:wanted] = first.buffer.view[start : start + wanted]
            self._consume(first, wanted)
            return wanted
        done = 0
        for part in unread if peek else list(unread):
            taken = min(part.byte_count, wanted - done)
            start = part.offset
            view[done : done + taken] = part.buffer.view[start : start + taken]
            done += taken
            if not peek:
                self._consume(part, taken)
            if done == wanted:
                break
        return done

    def receive(self, byte_count_max: int, *, peek: bool = False) -> bytes:
        """Return bytes that are to be read as `receive_into`, in one copy."""
        left = min(byte_count_max, self.readable_bytes)
        if self._expected is not None:
            left = min(left, self._ahead)
        taken, views = [], []
        for part in self._unread:
            if not left:
                break
            byte_count = min(part.byte_count, left)
            left -= byte_count
            taken.append((part, byte_count))
            views.append(part.buffer.view[part.offset : part.offset + byte_count])
        data = bytes(views[0]) if len(views) == 1 else b"".join(views)
        if not peek:
            for part, byte_count in taken:
                self._consume(part, byte_count)
        return data

    def _consume(self, first: BufferRange, byte_count: int) -> None:
        """Note that bytes of the first unread range were copied out."""
        self.readable_bytes -= byte_count
        self._stats.bytes_copied_out += byte_count
        first.offset += byte_count
        first.byte_count -= byte_count
        if not first.byte_count:
            del self._unread[0]
        self._free(first.buffer, byte_count)
        if self._expected is not None:
            self._ahead -= byte_count
            self._skip_landed()
        if self._is_full and not self.readable_bytes:
            self._consider_growth()

    def _skip_landed(self) -> None:
        """Read what landed where it is expected, once all before it is read."""
        if self._unread and self._unread[0].buffer is self._expected:
            first = self._unread.pop(0)
            self._free(first.buffer, first.byte_count)

    def _free(self, buffer: RingBuffer, byte_count: int) -> None:
        """Note that the next bytes in order are read."""
        buffer.free += byte_count
        if buffer.is_left and buffer.free == buffer.byte_count:
            self._release(buffer)
        self._read = read = self._read + byte_count
        ends, updates = self._message_ends, self._updates
        if ends and ends[0] <= read:
            count = 1
            while count < len(ends) and ends[count] <= read:
                count += 1
            del ends[:count]
            updates.messages_read += count
        if buffer.free >= buffer.step or updates.messages_read >= updates.threshold:
            self.may_be_due = True

    # -- direct receive

    def expect(self, memory: Memory, byte_count: int) -> int:
        """Let bytes of a wait for `byte_count` of them arrive in `memory`, at their place.

        Returns from which offset on they do; `byte_count` if it is not worth while, and then
        nothing is expected: what is on its way nearly covers the wait. `memory` stays registered
        while `holds` says so. Raises LocalProtocolError while another expectation stands. Poll
        afterwards.
        """
        if self._expected is not None:
            raise LocalProtocolError("another receive is expected already")
        self._hold_back(byte_count)
        ahead = self.readable_bytes + self._unfilled_bytes
        rest = byte_count - ahead
        if not DIRECT_BYTES_MIN <= rest <= LENGTH_MAX or self.is_stopped:
            return byte_count
        buffer = RingBuffer(memory, ahead, rest, rest)
        buffer.free = 0
        self._expected, self._expected_range = buffer, BufferRange(buffer, ahead, rest)
        self._ahead, self._landed = ahead, 0
        self.may_be_due = True
        return ahead

    def _hold_back(self, byte_count: int) -> None:
        """Announce less of the ring until a long wait is over: an eighth of what it waits for.

        More would be copied instead of arriving in place at the next one. Less would leave the
        peer idle between two waits, which costs shorter waits more than the copy.
        """
        if byte_count >= self._held_wait_bytes:
            self._held_until = self._read + byte_count
            self._held_bytes = min(byte_count // 8, HELD_BYTES_MAX)

    @property
    def expected_left(self) -> int:
        """Return how many bytes have yet to arrive in the expected memory."""
        return 0 if self._expected is None else self._expected.byte_count - self._landed

    def end_expect(self) -> int:
        """End the expectation, fulfilled or not; return how many bytes arrived in place.

        These are read; they count from the offset that `expect` returned. While bytes ahead are
        not read they are none: `receive_into` gives them in their order, and what the peer still
        writes into the memory.
        """
        buffer, self._expected, self._expected_range = self._expected, None, None
        if buffer is None:
            return 0
        if self._ahead:
            self.readable_bytes += self._landed
            self._stats.bytes_direct -= self._landed
            return 0
        return self._landed

    def holds(self, memory: Memory) -> bool:
        """Return whether the peer may still write there, or unread bytes lie there."""
        end = memory.address + memory.view.nbytes
        return any(
            held.address < end and memory.address < held.address + held.view.nbytes
            for held in (part.buffer.memory for part in (*self._unfilled, *self._unread))
        )

    def close(self) -> None:
        """Forget everything and release what the ring has grown into."""
        self.stop()
        self._unread.clear()
        self._unfilled.clear()
        self.readable_bytes = 0
        self._expected = None
        for memory in self._grown:
            self._source.release(memory)
        self._grown.clear()
