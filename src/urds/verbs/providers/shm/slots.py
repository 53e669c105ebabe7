"""Slots of 128 bytes and a ring of bytes in shared memory, with one writer and one reader.

docs/protocol/verbs-channel.md says where everything lies. A *slot* holds the fields of one packet
and up to 80 bytes of payload; longer payload lies in the ring, in one piece. Writer and reader both
count slots and bytes of the ring, so no slot names a place, and none of the counts is believed.

**Order.** A slot is there when its *stamp* is: one aligned 8-byte cell, written after all else, of
the length of the payload and the ordinal of the slot. CPython moves such a cell of a memoryview
with a memcpy of constant size 8, which compilers turn into one load or store on x86-64 and aarch64:
never torn. x86-64 keeps the order of stores and of loads by itself; aarch64 does not, and neither
keeps "store mine, then load yours". So each such place calls `MemoryFence`: it releases and
acquires a lock, two atomic read-modify-writes, release and then acquire. That orders everything
before with everything after on both.

**Sleep.** A reader that finds nothing sets its word, fences, looks again, and only then sleeps; a
writer publishes, fences, and looks at the word. One of both sees the other. The writer clears the
word before it rings, so that a sleeper is rung for once; the clearing may hit a word set anew, but
the doorbell comes after it. Still readers sleep for a bounded time, as a net. A writer without room
sleeps the same way, and a reader looks at its word whenever it tells what it has freed.

**Trust.** The other side may write anything anywhere at any time. Stamp and fields are copied once
and then checked; what cannot be is a RemoteProtocolError, and the channel ends. A payload is a view
of the memory, good for one copy to its place: code that checks its bytes copies them first. The
reader counts itself what it frees; the writer checks that this only grows, up to what it published.
"""

import struct
import threading
from enum import IntEnum
from typing import Final, NamedTuple

from urds.common.errors import RemoteProtocolError
from urds.common.forks import renewed
from urds.common.types import BytesLike

WORDS_BYTES: Final = 2048  # the words of one direction, each on 128 bytes of its own
SLOT_COUNT: Final = 2048
SLOT_BYTES: Final = 128
SLOTS_BYTES: Final = SLOT_COUNT * SLOT_BYTES
RING_BYTES: Final = 1 << 20
INLINE_BYTES_MAX: Final = 80  # of payload that a slot holds itself
PAYLOAD_BYTES_MAX: Final = 256 * 1024
_PAYLOAD_AT: Final = SLOT_BYTES - INLINE_BYTES_MAX
_STEP: Final = 64  # what a payload in the ring is rounded up to
_ORDINALS: Final = (1 << 32) - 1  # 0 is none: memory that holds no slot
_SLOTS_TOLD: Final = SLOT_COUNT // 8  # freed since they were told last
_RING_TOLD: Final = RING_BYTES // 8
_CELL_BYTES: Final = 8
_CELLS_PER_SLOT: Final = SLOT_BYTES // _CELL_BYTES
# kind, flags, zero, target, PSN, MSN, immediate, acknowledged, address, key, length
FIELDS: Final = struct.Struct("=BBHIIIIIQII")
assert _CELL_BYTES + FIELDS.size == _PAYLOAD_AT

Fields = tuple[int, int, int, int, int, int, int, int, int, int, int]


class Word(IntEnum):
    """Where the words of a direction are, in words of four bytes from its first one."""

    SLOTS_FREED = 128 // 4  # eight bytes, by the reader: slots that it has done with
    RING_FREED = 136 // 4  # eight bytes, by the reader: bytes of the ring
    READER_ASLEEP = 256 // 4  # set by the reader, cleared by both
    WRITER_ASLEEP = 384 // 4  # set by a writer without room, cleared by both
    PLACING = 512 // 4  # by the writer: it is copying into the reader's regions
    ENDED = 640 // 4  # by the writer: no slot comes any more


# Members of an enum cost a look-up by name each time.
_READER_ASLEEP, _WRITER_ASLEEP, _PLACING, _ENDED = map(int, list(Word)[2:])
_SLOTS_FREED_CELL: Final = Word.SLOTS_FREED // 2
_RING_FREED_CELL: Final = Word.RING_FREED // 2


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
        try:  # `suppress` takes longer than all of it
            self._lock.release()
        except RuntimeError:
            pass  # what a signal handler raised came between these two before
        self._lock.acquire()


class Direction:
    """Views of the memory of one direction: its words, slots and ring."""

    __slots__ = ("cells", "ring", "slots", "stamps", "words")

    def __init__(self, words: memoryview, slots: memoryview, ring: memoryview) -> None:
        """Take plain bytes: `WORDS_BYTES`, `SLOTS_BYTES` and `RING_BYTES` of them."""
        assert (len(words), len(slots), len(ring)) == (WORDS_BYTES, SLOTS_BYTES, RING_BYTES)
        self.words, self.cells = words.cast("I"), words.cast("Q")
        self.slots, self.stamps = slots, slots.cast("Q")
        self.ring = ring

    def close(self) -> None:
        """Release the memory."""
        for view in (self.words, self.cells, self.stamps, self.slots, self.ring):
            view.release()


class Slot(NamedTuple):
    """One slot, its fields copied out; its payload is a view of the memory, to be copied once."""

    fields: Fields
    payload: BytesLike


def ordinal(number: int) -> int:
    """Return what the stamp of a slot says, by the slot's number from 0 on."""
    return number % _ORDINALS + 1


def _advance(position: int, byte_count: int) -> tuple[int, int]:
    """Return where a payload begins in the ring after `position`, and where it ends."""
    needed = -(-byte_count // _STEP) * _STEP
    if position % RING_BYTES + needed > RING_BYTES:
        position += RING_BYTES - position % RING_BYTES
    return position, position + needed


class SlotWriter:
    """The writing end. All calls by one thread at a time."""

    def __init__(self, memory: Direction, *, start: int = 0) -> None:
        """Write from slot number `start` on."""
        self._words, self._cells, self._stamps = memory.words, memory.cells, memory.stamps
        self._slots, self._ring = memory.slots, memory.ring
        self._fence = MemoryFence()
        self.published = start  # slots
        self._position = 0  # of the ring
        self._slots_freed, self._ring_freed = start, 0  # as told and checked last

    def _look_at_freed(self) -> None:
        """Read what the reader tells. Raises RemoteProtocolError if it cannot be."""
        slots, ring = self._cells[_SLOTS_FREED_CELL], self._cells[_RING_FREED_CELL]
        if not self._slots_freed <= slots <= self.published:
            raise RemoteProtocolError(
                f"{slots} slots freed, expected {self._slots_freed} to {self.published}"
            )
        if not self._ring_freed <= ring <= self._position:
            raise RemoteProtocolError(
                f"{ring} bytes freed, expected {self._ring_freed} to {self._position}"
            )
        self._slots_freed, self._ring_freed = int(slots), int(ring)

    def has_room(self, payload_bytes: int) -> bool:
        """Tell whether such a slot can be written now. Raises RemoteProtocolError."""
        if not self.is_roomy:
            self._look_at_freed()
        return self._fits(payload_bytes)

    def _fits(self, payload_bytes: int) -> bool:
        if self.published - self._slots_freed >= SLOT_COUNT:
            return False
        if payload_bytes <= INLINE_BYTES_MAX:
            return True
        return _advance(self._position, payload_bytes)[1] - self._ring_freed <= RING_BYTES

    @property
    def is_roomy(self) -> bool:
        """Return whether half of both is known to be free, without reading what is shared."""
        return (
            self.published - self._slots_freed <= SLOT_COUNT >> 1
            and self._position - self._ring_freed <= RING_BYTES >> 1
        )

    @property
    def is_drained(self) -> bool:
        """Whether the reader tells that all is freed. Raises RemoteProtocolError."""
        self._look_at_freed()
        return (self._slots_freed, self._ring_freed) == (self.published, self._position)

    def wait_for_room(self, payload_bytes: int) -> bool:
        """Request a doorbell when the reader has made room; return whether there is room already.

        Raises RemoteProtocolError.
        """
        self._words[_WRITER_ASLEEP] = 1
        self._fence()
        if not self.has_room(payload_bytes):
            return False
        self._words[_WRITER_ASLEEP] = 0
        return True

    def write(self, fields: Fields, payload: BytesLike) -> bool:
        """Write one slot and publish it; return whether the reader's doorbell must ring.

        Call it only when `has_room`.
        """
        number, size = self.published, len(payload)
        assert self._fits(size)
        at = number % SLOT_COUNT * SLOT_BYTES
        if size:
            self._copy_in(at + _PAYLOAD_AT, payload)
        FIELDS.pack_into(self._slots, at + _CELL_BYTES, *fields)
        self._fence()
        self._stamps[at // _CELL_BYTES] = ordinal(number) << 32 | size
        self.published = number + 1
        self._fence()
        return self._wakes_reader()

    def _copy_in(self, at: int, part: BytesLike) -> None:
        """Copy a payload to where it belongs: `at` in the slots, or on in the ring."""
        size = len(part)
        if size <= INLINE_BYTES_MAX:
            self._slots[at : at + size] = part
            return
        start, self._position = _advance(self._position, size)
        start %= RING_BYTES
        self._ring[start : start + size] = part

    def _wakes_reader(self) -> bool:
        if not self._words[_READER_ASLEEP]:
            return False
        self._words[_READER_ASLEEP] = 0
        return True

    def end(self) -> None:
        """Say that no slot comes any more."""
        self._fence()
        self._words[_ENDED] = 1

    def begin_placing(self) -> None:
        """Announce a copy into the reader's regions; check their generation after this."""
        self._words[_PLACING] = 1
        self._fence()

    def end_placing(self) -> None:
        """Announce the end of the copy."""
        self._fence()
        self._words[_PLACING] = 0


class SlotReader:
    """The reading end. All calls by one thread at a time."""

    def __init__(self, memory: Direction, *, start: int = 0) -> None:
        """Read from slot number `start` on."""
        self._words, self._cells, self._stamps = memory.words, memory.cells, memory.stamps
        self._slots, self._ring = memory.slots, memory.ring
        self._fence = MemoryFence()
        self.taken = start  # slots
        self._position = 0  # of the ring
        self._slots_told, self._ring_told = start, 0
        self._slots_rung, self._ring_rung = start, 0  # told, when a writer that waits was rung for

    def _stamp(self) -> int:
        """Return the stamp of the next slot, 0 if it is not there."""
        number = self.taken
        stamp = self._stamps[number % SLOT_COUNT * _CELLS_PER_SLOT]
        return int(stamp) if stamp >> 32 == ordinal(number) else 0

    def take(self) -> Slot | None:
        """Return the next slot; its payload stays until `free`.

        Raises RemoteProtocolError for a length that cannot be.
        """
        stamp = self._stamp()
        if not stamp:
            return None
        self._fence()
        at = self.taken % SLOT_COUNT * SLOT_BYTES
        fields = FIELDS.unpack_from(self._slots, at + _CELL_BYTES)  # once
        size = stamp & 0xFFFF_FFFF
        if size > PAYLOAD_BYTES_MAX:
            raise RemoteProtocolError(f"payload of {size} bytes, limit {PAYLOAD_BYTES_MAX}")
        payload: BytesLike
        if size > INLINE_BYTES_MAX:
            start, self._position = _advance(self._position, size)
            start %= RING_BYTES
            payload = self._ring[start : start + size]
        else:
            payload = bytes(self._slots[at + _PAYLOAD_AT : at + _PAYLOAD_AT + size])
        self.taken += 1
        return Slot(fields, payload)

    def free(self) -> bool:
        """Be done with all slots that were taken; return whether the writer's doorbell must ring.

        The writer learns of it by the eighth, and is rung for by the half: it waits once all is
        used, so half of that is free before there is nothing to take.
        """
        if (
            self.taken - self._slots_told < _SLOTS_TOLD
            and self._position - self._ring_told < _RING_TOLD
        ):
            return False
        self._tell()
        return (
            self.taken - self._slots_rung >= SLOT_COUNT >> 1
            or self._position - self._ring_rung >= RING_BYTES >> 1
        ) and self._wakes_writer()

    def _tell(self) -> None:
        self._slots_told, self._ring_told = self.taken, self._position
        self._fence()
        self._cells[_SLOTS_FREED_CELL] = self._slots_told
        self._cells[_RING_FREED_CELL] = self._ring_told
        self._fence()

    def _wakes_writer(self) -> bool:
        self._slots_rung, self._ring_rung = self._slots_told, self._ring_told
        if not self._words[_WRITER_ASLEEP]:
            return False
        self._words[_WRITER_ASLEEP] = 0
        return True

    def tell_freed(self) -> bool:
        """Tell what was freed and is untold; return whether the writer's doorbell must ring."""
        if (self.taken, self._position) != (self._slots_told, self._ring_told):
            self._tell()
        return self._wakes_writer()

    def arm_doorbell(self) -> bool:
        """Set the word of the sleeping reader and look again; return whether it may sleep.

        `tell_freed` comes first.
        """
        self._words[_READER_ASLEEP] = 1
        self._fence()
        if not self._stamp() and not self._words[_ENDED]:
            return True
        self._words[_READER_ASLEEP] = 0
        return False

    def disarm_doorbell(self) -> None:
        """Clear the word: no doorbell is needed."""
        self._words[_READER_ASLEEP] = 0

    @property
    def is_ended(self) -> bool:
        """Whether the writer says that no slot comes any more, and none is left."""
        return bool(self._words[_ENDED]) and not self._stamp()

    @property
    def is_placing(self) -> bool:
        """Whether the writer says that it is copying into regions of the reader's side."""
        return bool(self._words[_PLACING])
