"""The judge and the log, without a machine: who is at fault for what the wire shows."""

import struct
from pathlib import Path
from typing import Any

import pytest

from .lab.judge import Faults, judge
from .lab.message_log import HEADER, MAP_FLAGS, REPEATED, MessageLog, Transmission
from .lab.wire import ACK, RST, SYN, Direction, Recording, Segment, Wire

TO_US, TO_KERNEL = Direction.TO_HOST, Direction.TO_GUEST
PAYLOAD = struct.pack(">II", 7, 92) + bytes(92)
HOST, GUEST = bytes([10, 78, 0, 1]), bytes([10, 78, 0, 10])
PORTS = {TO_KERNEL: (40_000, 16_385), TO_US: (16_385, 40_000)}
BASES = {TO_KERNEL: 0xFFFF_FF00, TO_US: 5_000}  # the first wraps within a message


def sent(
    number: int,
    *,
    direction: Direction = TO_US,
    place: int | None = None,
    sequence: int | None = None,
    flags: int = 0,
    connection: int = 0,
    acknowledged: bool = True,
    welcome: bool = True,
) -> Transmission:
    """Return a transmission of message `number`, whole if it has a place."""
    return Transmission(
        direction=direction,
        connection=connection,
        sequence=100 + number if sequence is None else sequence,
        flags=flags,
        target_port=4000,
        payload_bytes=100,
        end_bytes=0,
        welcome=welcome,
        crossed_bytes=40 if place is None else 100,
        number=number,
        place=place,
        acknowledged=acknowledged and place is not None,
    )


def faults(
    received: list[int], log: list[Transmission], direction: Direction = TO_US
) -> tuple[Faults, Faults]:
    """Judge three messages; return our faults and the kernel's."""
    verdict = judge(received, count=3, direction=direction, log=log)
    return verdict.ours, verdict.kernel


def test_a_message_that_the_kernel_never_sent_whole_is_its_own_loss() -> None:
    log = [sent(0, place=0), sent(1), sent(1, connection=1, flags=REPEATED), sent(2, place=1)]
    assert faults([0, 2], log) == (Faults(), Faults(lost=(1,)))


@pytest.mark.parametrize(
    "log",
    [
        [sent(0, place=0), sent(1, place=1), sent(2, place=2)],
        [sent(0, place=0), sent(1), sent(1, connection=1, place=1), sent(2, place=2)],
        [sent(0, place=0), sent(1, place=1, acknowledged=False), sent(2, place=2)],
    ],
    ids=["at-once", "again", "not-acknowledged"],
)
def test_a_message_that_crossed_whole_to_us_is_our_loss(log: list[Transmission]) -> None:
    assert faults([0, 2], log) == (Faults(lost=(1,)), Faults())


def test_a_kernel_that_sends_nothing_later_may_wait_for_us() -> None:
    assert faults([0], [sent(0, place=0), sent(1), sent(2)]) == (Faults(lost=(1, 2)), Faults())


def test_what_the_wire_never_saw_is_our_loss_to_the_kernel() -> None:
    log = [sent(0, direction=TO_KERNEL, place=0), sent(2, direction=TO_KERNEL, place=1)]
    assert faults([0, 2], log, TO_KERNEL) == (Faults(lost=(1,)), Faults())


@pytest.mark.parametrize(
    ("copy", "kernels"),
    [
        (sent(1, direction=TO_KERNEL, place=1), True),
        (sent(1, direction=TO_KERNEL, place=1, flags=REPEATED), True),
        (sent(1, direction=TO_KERNEL, place=1, acknowledged=False), False),
        (sent(1, direction=TO_KERNEL, place=1, welcome=False), False),
        (sent(1, direction=TO_KERNEL, place=3, flags=REPEATED), False),
        (sent(1, direction=TO_KERNEL), False),
    ],
    ids=["taken", "repeat-taken", "not-acknowledged", "not-welcome", "behind-higher", "cut"],
)
def test_a_kernel_has_lost_what_it_had_to_take(copy: Transmission, kernels: bool) -> None:
    others = [sent(0, direction=TO_KERNEL, place=0), sent(2, direction=TO_KERNEL, place=2)]
    lost = Faults(lost=(1,))
    found = faults([0, 2], [*others, copy], TO_KERNEL)
    assert found == ((Faults(), lost) if kernels else (lost, Faults()))


@pytest.mark.parametrize("direction", [TO_US, TO_KERNEL])
@pytest.mark.parametrize(
    ("second", "receivers"),
    [({"flags": REPEATED}, True), ({}, False), ({"flags": REPEATED, "sequence": 999}, False)],
    ids=["repeat", "not-flagged", "other-number"],
)
def test_a_receiver_drops_repeats_and_nothing_else(
    direction: Direction, second: dict[str, Any], receivers: bool
) -> None:
    log = [sent(number, direction=direction, place=number) for number in range(3)]
    log.append(sent(1, direction=direction, place=3, connection=1, **second))
    doubled = Faults(doubled=(1,))
    ours = receivers is (direction is TO_US)
    found = faults([0, 1, 2, 1], log, direction)
    assert found == ((doubled, Faults()) if ours else (Faults(), doubled))


@pytest.mark.parametrize("direction", [TO_US, TO_KERNEL])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_the_wires_order_says_who_reordered(
    direction: Direction, order: tuple[int, int, int]
) -> None:
    log = [sent(number, direction=direction, place=order.index(number)) for number in range(3)]
    reordered = Faults(reordered=(1,))
    receiver = order == (0, 1, 2)
    ours = receiver is (direction is TO_US)
    found = faults([0, 2, 1], log, direction)
    assert found == ((reordered, Faults()) if ours else (Faults(), reordered))


def test_with_several_paths_only_one_connection_is_compared() -> None:
    """Another path has numbers of its own, which may be higher."""
    log = [
        sent(0, direction=TO_KERNEL, place=0, sequence=900, connection=1),
        sent(1, direction=TO_KERNEL, place=1, flags=REPEATED),
        sent(2, direction=TO_KERNEL, place=2),
    ]
    lost = Faults(lost=(1,))
    for one_path, expected in ((True, (lost, Faults())), (False, (Faults(), lost))):
        verdict = judge(
            [0, 2], count=3, direction=TO_KERNEL, log=log, one_path=one_path
        )  # fmt: skip
        assert (verdict.ours, verdict.kernel) == expected


def test_the_evidence_tells_each_attempt() -> None:
    log = [sent(0, place=0), sent(1), sent(1, connection=1, flags=REPEATED), sent(2, place=1)]
    verdict = judge([0, 2], count=3, direction=TO_US, log=log)
    assert verdict.evidence == (
        "message 1: connection 0: sequence 101 40 of 100 bytes; "
        "connection 1: sequence 101 40 of 100 bytes repeated",
    )


def test_what_was_cut_before_its_number_is_known_by_its_neighbours() -> None:
    nameless = sent(1)
    nameless.number = None
    verdict = judge(
        [0, 2], count=3, direction=TO_US, log=[sent(0, place=0), nameless, sent(2, place=1)]
    )
    assert verdict.evidence == ("message 1: connection 0: sequence 101 40 of 100 bytes",)


@pytest.mark.parametrize("skipped", [0, 1], ids=["without-a-number", "with-one"])
def test_the_neighbours_are_told_where_nothing_crossed(skipped: int) -> None:
    later = sent(2, place=1, sequence=101 + skipped)
    verdict = judge([0, 2], count=3, direction=TO_US, log=[sent(0, place=0), later])
    assert verdict.evidence == (
        "message 1: nothing of it crossed, but message 0 with sequence 100 and "
        f"message 2 with sequence {101 + skipped} did",
    )


# --- the wire and the log ---


def segment(
    direction: Direction, offset: int, payload: bytes = b"", *, flags: int = ACK, answered: int = 0
) -> Segment:
    """Return a segment `offset` bytes behind the start of its direction's stream."""
    source, target = PORTS[direction]
    hosts = HOST + GUEST if direction is TO_KERNEL else GUEST + HOST
    return Segment(
        ethernet=bytes(12) + b"\x08\x00",
        ip=bytes([0x45]) + bytes(8) + bytes([6]) + bytes(2) + hosts,
        source_port=source,
        target_port=target,
        sequence=(BASES[direction] + offset) % (1 << 32),
        acknowledged=(BASES[direction.back] + answered) % (1 << 32),
        flags=flags,
        window=1000,
        options=b"",
        payload=payload,
    )


def test_a_connection_that_is_not_answered_yet_is_not_cut() -> None:
    """Its caller could not be told, and would wait for an answer for ever."""
    wire = Wire()
    called = segment(TO_KERNEL, -1, flags=SYN).emit()
    answer = segment(TO_US, -1, flags=SYN | ACK).emit()
    assert list(wire.forward(TO_KERNEL, called)) == [(TO_KERNEL, called)]
    assert list(wire.cut_all()) == []
    assert list(wire.forward(TO_US, answer)) == [(TO_US, answer)]
    assert [direction for direction, _ in wire.cut_all()] == [TO_KERNEL, TO_US]


def opened(log: MessageLog) -> MessageLog:
    """Enter the handshake of a connection from the host."""
    log.add(segment(TO_KERNEL, -1, flags=SYN))
    log.add(segment(TO_US, -1, flags=SYN | ACK))
    return log


def frame(sequence: int, payload: bytes, flags: int = 0) -> bytes:
    return HEADER.pack(sequence, 0, len(payload), 5000, 4000, flags) + payload


MESSAGE = frame(1, PAYLOAD)


@pytest.mark.parametrize("step", [1, 3, 47, 50, 51, 55, len(MESSAGE)])
def test_a_message_is_found_however_it_is_segmented(step: int) -> None:
    log = opened(MessageLog())
    stream = MESSAGE + frame(2, b"") + frame(3, PAYLOAD[:3])
    for offset in range(0, len(stream), step):
        log.add(segment(TO_KERNEL, offset, stream[offset : offset + step]))
    found = [(t.sequence, t.number, t.crossed_bytes, t.whole) for t in log.transmissions]
    assert found == [(1, 7, 100, True), (2, None, 0, True), (3, None, 3, True)]


def test_segments_that_come_twice_or_early_are_put_in_order() -> None:
    log = opened(MessageLog())
    for start, end in ((100, 148), (0, 60), (0, 60), (50, 110)):
        log.add(segment(TO_KERNEL, start, MESSAGE[start:end]))
    assert [(t.number, t.whole) for t in log.transmissions] == [(7, True)]


def test_a_reset_ends_what_is_received() -> None:
    """Bytes behind it cross but are not read."""
    log = opened(MessageLog())
    log.add(segment(TO_KERNEL, 0, MESSAGE[:100]))
    log.add(segment(TO_KERNEL, 100, flags=RST | ACK))
    log.add(segment(TO_KERNEL, 100, MESSAGE[100:]))
    (found,) = log.transmissions
    assert (found.number, found.crossed_bytes, found.whole) == (7, 52, False)


def test_a_reset_of_an_earlier_connection_ends_nothing() -> None:
    """The ports are used again, and a late segment of the old connection is answered."""
    log = opened(MessageLog())
    for offset in (-70_000, 1 << 30):
        log.add(segment(TO_KERNEL, offset, flags=RST))
    log.add(segment(TO_KERNEL, 0, MESSAGE))
    assert [t.whole for t in log.transmissions] == [True]


def test_only_the_receivers_own_word_acknowledges() -> None:
    """The wire's reset carries an acknowledgement too, which is its invention."""
    log = opened(MessageLog())
    log.add(segment(TO_KERNEL, 0, MESSAGE + MESSAGE))
    log.add(segment(TO_US, 0, answered=len(MESSAGE) + 1))
    log.add(segment(TO_US, 0, flags=RST | ACK, answered=2 * len(MESSAGE)))
    assert [t.acknowledged for t in log.transmissions] == [True, False]


@pytest.mark.parametrize("map_first", [True, False])
def test_a_connection_is_welcome_when_the_receiver_has_spoken(map_first: bool) -> None:
    log = opened(MessageLog())
    congestion_map = frame(0, bytes(8192), MAP_FLAGS)
    if map_first:
        log.add(segment(TO_US, 0, congestion_map))
    log.add(segment(TO_KERNEL, 0, MESSAGE))
    log.add(segment(TO_US, 0, congestion_map))
    (found,) = log.transmissions
    assert found.welcome is map_first


def test_a_connection_with_the_same_ports_is_another_one() -> None:
    log = opened(MessageLog())
    log.add(segment(TO_KERNEL, 0, MESSAGE[:60]))
    again = segment(TO_KERNEL, 999, flags=SYN)
    log.add(again)
    log.add(again)
    log.add(segment(TO_KERNEL, 1000, MESSAGE))
    assert [(t.connection, t.whole) for t in log.transmissions] == [(0, False), (1, True)]


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Other protocols are left out, and a frame that was cut off at the end of the file."""
    recording = Recording(str(tmp_path / "wire.pcap"))
    for one in (segment(TO_KERNEL, -1, flags=SYN), segment(TO_KERNEL, 0, MESSAGE)):
        recording.add(one.emit())
        recording.add(bytes(60))
    recording.add(segment(TO_KERNEL, len(MESSAGE), MESSAGE).emit())
    recording.close()
    data = (tmp_path / "wire.pcap").read_bytes()
    (tmp_path / "wire.pcap").write_bytes(data[:-1])
    found = MessageLog.read(tmp_path / "wire.pcap").transmissions
    assert [(t.number, t.whole) for t in found] == [(7, True)]
