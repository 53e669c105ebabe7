"""Slots and ring of the shm provider in memory of this process: order, room, sleep, hostility."""

import random
from dataclasses import dataclass

import pytest

from tests.support.cuts import through_all_steps
from urds.common.errors import RemoteProtocolError
from urds.verbs.providers.shm.slots import (
    INLINE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    RING_BYTES,
    SLOT_BYTES,
    SLOT_COUNT,
    SLOTS_BYTES,
    WORDS_BYTES,
    Direction,
    Fields,
    MemoryFence,
    Slot,
    SlotReader,
    SlotWriter,
    Word,
    ordinal,
)

LARGE = PAYLOAD_BYTES_MAX


@dataclass
class World:
    """Both ends over one piece of memory."""

    memory: Direction
    writer: SlotWriter
    reader: SlotReader

    def write(self, number: int, payload: bytes = b"", kind: int = 0) -> bool:
        return self.writer.write(fields(number, kind), payload)

    def take(self) -> tuple[int, bytes] | None:
        """Return number and payload of the next slot."""
        slot = self.reader.take()
        return None if slot is None else (slot.fields[4], bytes(slot.payload))

    def fill(self, payload: bytes = b"") -> int:
        count = 0
        while self.writer.has_room(len(payload)):
            self.write(count, payload)
            count += 1
        return count


def fields(number: int, kind: int = 0) -> Fields:
    return (kind, 3, 0, 5, number, 0, 0, 0, 0, 0, 0)


def memory() -> Direction:
    sizes = (WORDS_BYTES, SLOTS_BYTES, RING_BYTES)
    return Direction(*(memoryview(bytearray(size)) for size in sizes))


def world(start: int = 0) -> World:
    made = memory()
    made.cells[Word.SLOTS_FREED // 2] = start
    return World(made, SlotWriter(made, start=start), SlotReader(made, start=start))


def test_a_slot_comes_out_as_it_went_in() -> None:
    this = world()
    all_fields = (1, 255, 0, 1 << 24, 2, 3, 4, 5, 1 << 63, 7, 8)
    this.writer.write(all_fields, memoryview(b"abc"))
    this.writer.write(all_fields, b"")
    assert this.reader.take() == Slot(all_fields, b"abc")
    assert this.reader.take() == Slot(all_fields, b"")
    assert this.reader.take() is None


@pytest.mark.parametrize(
    ("size", "ring_used"),
    [(INLINE_BYTES_MAX, 0), (INLINE_BYTES_MAX + 1, 128), (128, 128), (129, 192), (LARGE, LARGE)],
)
def test_payload_beyond_what_a_slot_holds_takes_steps_of_the_ring(
    size: int, ring_used: int
) -> None:
    this = world()
    this.write(1, b"z" * size)
    assert this.take() == (1, b"z" * size)
    this.reader.tell_freed()
    assert this.memory.cells[Word.RING_FREED // 2] == ring_used


def test_where_everything_lies() -> None:
    """The table of the protocol page, in bytes."""
    this = world()
    this.write(7, b"inline")
    this.write(8, bytes(range(100)))
    slots = bytes(this.memory.slots[: 2 * SLOT_BYTES])
    assert slots[:8] == (1 << 32 | 6).to_bytes(8, "little")
    assert slots[16:20] == (7).to_bytes(4, "little") and slots[48:54] == b"inline"
    assert slots[128:136] == (2 << 32 | 100).to_bytes(8, "little")
    assert bytes(this.memory.ring[:100]) == bytes(range(100))


def test_a_payload_never_crosses_the_end_of_the_ring() -> None:
    this = world()
    steps = [LARGE - 64, LARGE, LARGE, 128]  # behind them LARGE - 64 are left
    for number, size in enumerate(steps):
        this.write(number, bytes([number]) * size)
    assert not this.writer.has_room(LARGE)
    for number, size in enumerate(steps):
        assert this.take() == (number, bytes([number]) * size)
    this.reader.tell_freed()
    assert this.writer.has_room(LARGE)
    this.write(9, b"n" * LARGE)
    assert this.take() == (9, b"n" * LARGE)
    assert bytes(this.memory.ring[:3]) == b"nnn"


def test_slots_of_many_laps_come_in_order() -> None:
    """Random sizes, and a reader that lags behind at random."""
    this = world()
    rng = random.Random(3)
    sent: list[tuple[int, bytes]] = []
    got: list[tuple[int, bytes]] = []
    for number in range(3 * SLOT_COUNT):
        data = bytes([number % 256]) * rng.choice((0, 8, 80, 81, 3000, 9000))
        while not this.writer.has_room(len(data)):
            if (slot := this.take()) is not None:
                got.append(slot)
            this.reader.free()
            if slot is None:
                this.reader.tell_freed()
        this.write(number, data)
        sent.append((number, data))
    while (slot := this.take()) is not None:
        got.append(slot)
    assert got == sent


@pytest.mark.parametrize("start", [(1 << 32) - 5, 2 * ((1 << 32) - 1) - 3])
def test_ordinals_come_round(start: int) -> None:
    this = world(start)
    for number in range(20):
        this.write(number)
        assert this.take() == (number, b"") and this.take() is None
    assert ordinal(start) != ordinal(start + 1) and all(map(ordinal, range(start, start + 20)))


def test_what_a_lap_before_left_is_no_slot() -> None:
    this = world()
    for number in range(SLOT_COUNT):
        this.write(number)
        this.take()
    assert this.take() is None
    this.reader.tell_freed()
    assert this.writer.has_room(0)
    this.write(SLOT_COUNT)
    assert this.take() == (SLOT_COUNT, b"")


def test_memory_that_was_given_back_holds_no_slot_and_numbers_go_on() -> None:
    this = world()
    for number in range(9):
        this.write(number, b"p" * 100)
        this.take()
    this.reader.tell_freed()
    assert this.writer.is_drained
    this.memory.slots[:] = bytes(SLOTS_BYTES)
    this.memory.ring[:] = bytes(RING_BYTES)
    assert this.take() is None
    this.write(9, b"q" * 100)
    assert this.take() == (9, b"q" * 100)


def test_without_free_slots_there_is_no_room_until_an_eighth_is_told() -> None:
    this = world()
    assert this.fill() == SLOT_COUNT
    for _ in range(SLOT_COUNT // 8 - 1):
        this.take()
        this.reader.free()
    assert not this.writer.has_room(0)
    this.take()
    this.reader.free()
    assert this.writer.has_room(0)


def test_without_bytes_of_the_ring_there_is_room_for_short_slots_alone() -> None:
    this = world()
    assert this.fill(b"l" * LARGE) == RING_BYTES // LARGE
    assert not this.writer.has_room(INLINE_BYTES_MAX + 1)
    assert this.writer.has_room(INLINE_BYTES_MAX)
    this.take()
    assert not this.writer.has_room(LARGE)  # taken is not done with
    this.reader.free()
    assert this.writer.has_room(LARGE)


def test_is_drained_when_all_was_told_and_not_before() -> None:
    this = world()
    assert this.writer.is_drained
    this.write(1)
    this.take()
    assert not this.writer.is_drained
    this.reader.tell_freed()
    assert this.writer.is_drained


def test_only_a_sleeper_is_rung_for_and_once() -> None:
    this = world()
    assert not this.write(1)
    assert this.take() is not None
    assert this.reader.arm_doorbell()
    assert this.write(2)
    assert not this.write(3)


def test_who_falls_asleep_looks_again() -> None:
    """What was published between the last look and the word keeps the reader awake."""
    this = world()
    assert this.take() is None
    this.write(1)
    assert not this.reader.arm_doorbell()
    assert this.memory.words[Word.READER_ASLEEP] == 0


def test_what_was_taken_is_no_reason_to_stay_awake() -> None:
    this = world()
    this.write(1)
    assert this.take() is not None
    assert this.reader.arm_doorbell()
    this.reader.disarm_doorbell()
    assert not this.write(2)


def test_an_end_keeps_the_reader_awake_after_the_last_slot() -> None:
    this = world()
    this.write(1)
    this.writer.end()
    assert not this.reader.is_ended  # there is a slot left
    assert this.take() == (1, b"")
    assert this.reader.is_ended and not this.reader.arm_doorbell()


def test_a_writer_without_room_is_rung_when_half_is_told() -> None:
    this = world()
    this.fill(b"l" * LARGE)
    assert not this.writer.wait_for_room(LARGE)
    this.take()
    assert not this.reader.free()
    this.take()
    assert this.reader.free()
    this.take()
    assert not this.reader.free()  # it was rung for


@pytest.mark.parametrize("before", range(10))
@pytest.mark.parametrize("waits_for", [100, 65_000, LARGE])
def test_a_writer_that_waits_is_rung_by_a_reader_that_never_sleeps(
    before: int, waits_for: int
) -> None:
    this = world()
    for _ in range(before):
        this.write(1, b"s" * 100_000)
        this.take()
        this.reader.free()
    this.fill(b"l" * waits_for)
    assert not this.writer.wait_for_room(waits_for)
    rung = 0
    while this.take() is not None:
        rung += this.reader.free()
    assert rung == 1


def test_who_is_about_to_sleep_tells_what_is_less_than_an_eighth() -> None:
    this = world()
    this.write(1)
    this.take()
    this.memory.words[Word.WRITER_ASLEEP] = 1
    assert not this.reader.free()
    assert this.reader.tell_freed() and not this.reader.tell_freed()


def test_a_writer_that_asks_for_room_looks_again() -> None:
    this = world()
    this.fill(b"l" * LARGE)
    this.take()
    this.reader.free()
    assert this.writer.wait_for_room(LARGE)
    assert this.memory.words[Word.WRITER_ASLEEP] == 0


@pytest.mark.parametrize("word", [Word.SLOTS_FREED, Word.RING_FREED])
@pytest.mark.parametrize("freed", ["back", "beyond", "far"])
def test_a_count_of_freed_that_cannot_be_is_refused(word: Word, freed: str) -> None:
    this = world()
    for _ in range(3):
        this.write(1, b"r" * 4096)
        this.take()
    this.reader.tell_freed()
    assert this.writer.is_drained
    cell = word // 2
    told = this.memory.cells[cell]
    this.memory.cells[cell] = {"back": told - 1, "beyond": told + 1, "far": 1 << 63}[freed]
    with pytest.raises(RemoteProtocolError, match="freed"):
        _ = this.writer.is_drained


def test_a_full_writer_judges_what_was_freed_before_it_trusts_it() -> None:
    this = world()
    this.fill(b"l" * LARGE)
    this.memory.cells[Word.RING_FREED // 2] = 1 << 40
    with pytest.raises(RemoteProtocolError):
        this.writer.has_room(LARGE)


@pytest.mark.parametrize("size", [LARGE + 1, 0xFFFF_FFFF])
def test_a_length_that_lies_is_refused(size: int) -> None:
    this = world()
    this.write(1)
    this.memory.stamps[0] = 1 << 32 | size
    with pytest.raises(RemoteProtocolError, match="limit"):
        this.reader.take()


@pytest.mark.parametrize("stamp", [0, 2 << 32, 0xFFFF_FFFF << 32 | 5, 7])
def test_another_ordinal_is_no_slot(stamp: int) -> None:
    this = world()
    this.write(1)
    this.memory.stamps[0] = stamp
    assert this.reader.take() is None


def test_fields_and_a_short_payload_do_not_change_any_more() -> None:
    this = world()
    this.write(1, b"honest")
    slot = this.reader.take()
    this.memory.slots[:] = b"\xff" * SLOTS_BYTES
    assert slot == Slot(fields(1), b"honest")


@pytest.mark.parametrize("size", [0, 9, INLINE_BYTES_MAX + 1])
def test_the_stamp_is_written_last(size: int) -> None:
    """What a reader finds with the stamp is whole: fields and payload do not change any more."""
    this = world()
    seen: list[tuple[bytes, bytes]] = []

    class Stamps:
        def __setitem__(self, place: int, stamp: int) -> None:
            seen.append((bytes(this.memory.slots[8:SLOT_BYTES]), bytes(this.memory.ring[:size])))
            this.memory.stamps[place] = stamp

    this.writer._stamps = Stamps()  # type: ignore[assignment]  # of the stand-in
    this.write(1, bytes(range(1, size + 1)))
    assert seen == [(bytes(this.memory.slots[8:SLOT_BYTES]), bytes(this.memory.ring[:size]))]
    assert this.take() == (1, bytes(range(1, size + 1)))


def test_noise_in_the_memory_never_does_more_than_end_it() -> None:
    """Words, stamps and bytes change at random between any two calls."""
    rng = random.Random(11)
    refused = 0
    this = world()
    for _ in range(300):
        this = World(this.memory, SlotWriter(this.memory), SlotReader(this.memory))
        this.memory.words[:] = memoryview(bytes(WORDS_BYTES)).cast("I")
        try:
            for _ in range(20):
                size = rng.choice((0, 9, 200, 30_000))
                if this.writer.has_room(size):
                    this.write(0, bytes(size))
                if rng.random() < 0.3:
                    word = rng.choice((Word.SLOTS_FREED, Word.RING_FREED))
                    this.memory.cells[word // 2] = rng.choice(
                        (rng.getrandbits(64), rng.randrange(9))
                    )
                if rng.random() < 0.3:
                    at = rng.randrange(20) * 16
                    this.memory.stamps[at] = rng.randrange(20) << 32 | rng.getrandbits(19)
                slot = this.reader.take()
                assert slot is None or len(slot.payload) <= LARGE
                this.reader.free()
                _ = this.writer.is_drained
        except RemoteProtocolError:
            refused += 1
    assert refused > 100


def test_placing_is_seen_by_the_reader() -> None:
    this = world()
    assert not this.reader.is_placing
    this.writer.begin_placing()
    assert this.reader.is_placing
    this.writer.end_placing()
    assert not this.reader.is_placing


def test_a_fence_can_be_used_again_and_again() -> None:
    """Also after a signal handler has raised at any step of it."""
    fence = MemoryFence()
    for _ in range(3):
        fence()
    steps = through_all_steps(
        fence, lambda _place: fence(), within=["verbs/providers/shm/slots.py"]
    )
    assert steps >= 3
