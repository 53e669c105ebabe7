"""The ring of the shm provider in memory of this process: frames, room, sleep, hostile cells."""

import random
from dataclasses import dataclass

import pytest

from urds.common.errors import RemoteProtocolError
from urds.verbs.providers.shm.ring import (
    RING_CELLS_BYTES,
    Cell,
    MemoryFence,
    RingFrame,
    RingReader,
    RingWriter,
    padded,
)

CAPACITY = 256


@dataclass
class World:
    """Both ends over one piece of memory."""

    cells: memoryview
    data: memoryview
    writer: RingWriter
    reader: RingReader


def ring(payload_bytes_max: int = CAPACITY) -> World:
    cells = memoryview(bytearray(RING_CELLS_BYTES)).cast("Q")
    data = memoryview(bytearray(CAPACITY))
    reader = RingReader(cells, data, payload_bytes_max=payload_bytes_max)
    return World(cells, data, RingWriter(cells, data), reader)


def test_frames_come_out_as_they_went_in() -> None:
    world = ring()
    world.writer.write(1, b"abc", memoryview(b"def"))
    world.writer.write(7, b"")
    assert world.reader.take() == RingFrame(1, b"abcdef")
    assert world.reader.take() == RingFrame(7, b"")
    assert world.reader.take() is None


def test_frames_cross_the_end_of_the_ring_unharmed() -> None:
    """Runs for many rounds with random sizes and a reader that lags behind at random."""
    world = ring()
    rng = random.Random(3)
    sent: list[bytes] = []
    got: list[bytes] = []
    for number in range(2000):
        data = rng.randbytes(rng.randrange(100))
        while not world.writer.has_room(len(data)):
            if (frame := world.reader.take()) is not None:
                got.append(frame.data)
            if frame is None or rng.random() < 0.7:
                world.reader.release()
        half = rng.randrange(len(data) + 1)
        world.writer.write(number % 5, data[:half], data[half:])
        sent.append(data)
    while (frame := world.reader.take()) is not None:
        got.append(frame.data)
    assert got == sent


def test_a_full_ring_has_no_room_until_the_reader_is_done() -> None:
    world = ring()
    count = 0
    while world.writer.has_room(8):
        world.writer.write(0, b"12345678")
        count += 1
    assert count == CAPACITY // padded(8)
    assert world.reader.take() is not None
    assert not world.writer.has_room(8)  # taken is not done with
    world.reader.release()
    assert world.writer.has_room(8)


def test_a_frame_as_large_as_the_ring_fits() -> None:
    world = ring()
    whole = bytes(range(CAPACITY - 8))
    assert world.writer.has_room(len(whole))
    assert not world.writer.has_room(len(whole) + 1)
    world.writer.write(0, whole)
    assert world.reader.take() == RingFrame(0, whole)


def test_only_a_sleeper_is_rung_for_and_once() -> None:
    world = ring()
    assert not world.writer.write(0, b"awake")
    assert world.reader.take() is not None
    assert world.reader.arm_doorbell()
    assert world.writer.write(0, b"wake up")
    assert not world.writer.write(0, b"rung for already")


def test_who_falls_asleep_looks_again() -> None:
    """What was published between the last look and the flag keeps the reader awake."""
    world = ring()
    assert world.reader.take() is None
    world.writer.write(0, b"just now")
    assert not world.reader.arm_doorbell()
    assert world.cells[Cell.SLEEPING] == 0


def test_what_was_taken_in_is_no_reason_to_stay_awake() -> None:
    world = ring()
    world.writer.write(0, b"x")
    assert world.reader.take() is not None
    assert world.reader.arm_doorbell()
    world.reader.disarm_doorbell()
    assert not world.writer.write(0, b"y")


def test_a_starved_writer_alone_is_rung() -> None:
    world = ring()
    while world.writer.has_room(8):
        world.writer.write(0, b"12345678")
    world.reader.take()
    assert not world.reader.release()
    assert world.writer.has_room(8)
    world.writer.write(0, b"12345678")
    assert not world.writer.wait_for_room(8)
    world.reader.take()
    assert world.reader.release()
    world.reader.take()
    assert not world.reader.release()


def test_a_writer_that_asks_for_room_looks_again() -> None:
    world = ring()
    while world.writer.has_room(8):
        world.writer.write(0, b"12345678")
    world.reader.take()
    world.reader.release()
    assert world.writer.wait_for_room(8)


@pytest.mark.parametrize("written", [8 * 5, 1 << 63, CAPACITY + 64, 12], ids=hex)
def test_a_written_counter_that_cannot_be_is_refused(written: int) -> None:
    world = ring()
    for _ in range(3):
        world.writer.write(0, b"12345678")
        world.reader.take()
    world.reader.release()
    if written == 12:
        written = 48 + 12
    elif written == CAPACITY + 64:
        written = 48 + CAPACITY + 8
    world.cells[Cell.WRITTEN] = written
    with pytest.raises(RemoteProtocolError):
        world.reader.take()


@pytest.mark.parametrize("read", [8, 1 << 63, 48 + 8, 20], ids=hex)
def test_a_read_counter_that_cannot_be_is_refused(read: int) -> None:
    world = ring()
    for _ in range(3):
        world.writer.write(0, b"12345678")
    world.reader.take()
    world.reader.release()
    assert world.writer.read_by_peer == 16
    world.cells[Cell.READ] = read
    with pytest.raises(RemoteProtocolError):
        _ = world.writer.read_by_peer


def test_a_full_ring_judges_the_read_counter_before_it_trusts_it() -> None:
    world = ring()
    while world.writer.has_room(8):
        world.writer.write(0, b"12345678")
    world.cells[Cell.READ] = 1 << 40
    with pytest.raises(RemoteProtocolError):
        world.writer.has_room(8)


@pytest.mark.parametrize("payload_bytes", [17, CAPACITY, 0xFFFFFFFF, 0x7FFFFFF8])
def test_a_length_that_lies_is_refused(payload_bytes: int) -> None:
    """Beyond what is published, beyond the ring, beyond anything."""
    world = ring()
    world.writer.write(0, b"0123456789abcdef")
    world.data[0:4] = payload_bytes.to_bytes(4, "little")
    with pytest.raises(RemoteProtocolError):
        world.reader.take()


def test_a_payload_beyond_the_limit_is_refused() -> None:
    world = ring(payload_bytes_max=16)
    world.writer.write(0, bytes(16))
    assert world.reader.take() is not None
    world.writer.write(0, bytes(17))
    with pytest.raises(RemoteProtocolError, match="limit 16"):
        world.reader.take()


def test_a_frame_that_was_taken_does_not_change_any_more() -> None:
    world = ring()
    world.writer.write(0, b"honest")
    frame = world.reader.take()
    world.data[:] = b"\xff" * CAPACITY
    assert frame == RingFrame(0, b"honest")


def test_noise_in_the_ring_never_does_more_than_end_it() -> None:
    """Cells and bytes change at random between any two calls."""
    rng = random.Random(11)
    refused = 0
    for _ in range(300):
        world = ring()
        try:
            for _ in range(20):
                if world.writer.has_room(24):
                    world.writer.write(0, rng.randbytes(rng.randrange(24)))
                if rng.random() < 0.3:
                    cell = rng.choice((Cell.WRITTEN, Cell.READ))
                    world.cells[cell] = rng.choice((rng.getrandbits(64), rng.randrange(64) * 8))
                if rng.random() < 0.3:
                    world.data[rng.randrange(CAPACITY)] = rng.randrange(256)
                world.reader.take()
                world.reader.release()
        except RemoteProtocolError:
            refused += 1
    assert refused > 100


def test_placing_is_seen_by_the_reader() -> None:
    world = ring()
    assert not world.reader.is_placing
    world.writer.begin_placing()
    assert world.reader.is_placing
    world.writer.end_placing()
    assert not world.reader.is_placing


def test_a_fence_can_be_used_again_and_again() -> None:
    fence = MemoryFence()
    for _ in range(3):
        fence()
