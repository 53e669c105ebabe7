"""The judge of fault runs: it sees every message that is lost, doubled, late or damaged."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.faults.board import Board, Sent
from tests.faults.messages import (
    DamagedError,
    MessageLog,
    Sizes,
    Writer,
    is_empty,
    parse,
    payload_bytes,
)
from tests.faults.processes import HostLife
from tests.faults.verdict import Count, count_way

SOURCE, TARGET = "127.0.0.2", "127.0.0.3"


def messages(count: int, *, life: int = 0) -> list[bytes]:
    writer = Writer(SOURCE, TARGET, life=life, sizes=Sizes.SHORT, random=Random(1))
    made = []
    for _ in range(count):
        made.append(writer.payload())
        writer.count_sent()
    return made


def taken(payloads: list[bytes]) -> MessageLog:
    log = MessageLog(lambda text: None)
    for payload in payloads:
        if payload:
            log.take(parse(payload, SOURCE, TARGET)[1])
        else:
            log.take_empty()
    return log


def missing(log: MessageLog) -> int:
    return log.next - log.first - log.delivered


def test_what_comes_once_and_in_order_is_well() -> None:
    log = taken(messages(100))
    assert (log.first, log.next, log.delivered) == (0, 100, 100)
    assert (log.duplicated, log.reordered) == (0, 0)


@pytest.mark.parametrize("index", [3, 5, 50])  # the second one is empty
def test_a_message_that_is_left_out_is_missing(index: int) -> None:
    came = messages(100)
    del came[index]
    assert missing(taken(came)) == 1


@pytest.mark.parametrize("index", [3, 5, 50])
def test_a_message_that_comes_twice_is_counted(index: int) -> None:
    came = messages(100)
    came.insert(index, came[index])
    log = taken(came)
    assert (log.duplicated, missing(log)) == (1, 0)


@pytest.mark.parametrize("index", [3, 4, 5, 50])  # at 4 and 5 one of the two is empty
def test_two_messages_that_change_places_are_counted(index: int) -> None:
    came = messages(100)
    came[index], came[index + 1] = came[index + 1], came[index]
    log = taken(came)
    assert log.reordered + log.duplicated > 0


@pytest.mark.parametrize("byte", [0, 7, 8, 23, 24, -1])
def test_a_changed_byte_is_damage(byte: int) -> None:
    payload = bytearray(messages(2)[1])
    payload[byte] ^= 1
    with pytest.raises(DamagedError):
        parse(bytes(payload), SOURCE, TARGET)


def test_a_message_for_another_host_is_damage() -> None:
    with pytest.raises(DamagedError):
        parse(messages(1)[0], SOURCE, "127.0.0.4")


@pytest.mark.parametrize("first", [4, 5, 6])
def test_a_later_life_of_a_receiver_begins_anywhere(first: int) -> None:
    log = taken(messages(100)[first:])
    assert (log.first, missing(log), log.duplicated) == (first, 0, 0)


def test_sizes_reach_both_ends_and_the_border_of_64_kib() -> None:
    sizes = {payload_bytes(index, Sizes.MIXED) for index in range(10_000)}
    assert {0, 65535, 65536, 65537, 1 << 20} <= sizes
    assert all(not (is_empty(index) and is_empty(index + 1)) for index in range(100))


# -- over several lives


def life(
    folder: Path, address: str, *, number: int = 0, started_s: float = 0.0, dead: bool = False
) -> Any:
    """Return what the judge looks at of a life of a host."""
    peer = TARGET if address == SOURCE else SOURCE
    return SimpleNamespace(
        address=address,
        plan=SimpleNamespace(life=number),
        board=Board(folder / f"{address}-{number}", [peer]),
        started_s=started_s,
        ended_s=started_s + 5.0 if dead else None,
        is_alive=not dead,
    )


def counted(sender: Any, receivers: list[Any], *came: list[bytes], accepted: int) -> Count:
    """Return what the judge says if each receiver took some messages of the sender's."""
    sender.board.note_sent(TARGET, Sent(accepted=accepted))
    for receiver, payloads in zip(receivers, came, strict=True):
        if payloads:
            receiver.board.note_taken(SOURCE, sender.plan.life, taken(payloads), damaged=0)
    count = Count()
    count_way(count, cast(HostLife, sender), receivers)
    return count


def test_a_tail_that_never_came_is_lost(tmp_path: Path) -> None:
    ends = life(tmp_path, SOURCE), life(tmp_path, TARGET)
    assert counted(ends[0], [ends[1]], messages(98), accepted=100) == Count(lost=2)
    assert counted(ends[0], [ends[1]], messages(100), accepted=100) == Count()


def test_all_is_lost_if_nothing_came(tmp_path: Path) -> None:
    ends = life(tmp_path, SOURCE), life(tmp_path, TARGET)
    assert counted(ends[0], [ends[1]], [], accepted=100) == Count(lost=100)


def test_a_head_that_never_came_is_lost(tmp_path: Path) -> None:
    ends = life(tmp_path, SOURCE), life(tmp_path, TARGET)
    assert counted(ends[0], [ends[1]], messages(100)[2:], accepted=100) == Count(lost=2)


def test_what_a_killed_sender_had_queued_is_not_lost(tmp_path: Path) -> None:
    ends = life(tmp_path, SOURCE, dead=True), life(tmp_path, TARGET)
    assert counted(ends[0], [ends[1]], messages(98), accepted=100) == Count()


def test_what_a_killed_receiver_was_handed_is_not_lost(tmp_path: Path) -> None:
    sender = life(tmp_path, SOURCE)
    receivers = [life(tmp_path, TARGET, dead=True), life(tmp_path, TARGET, number=1, started_s=6.0)]
    all_of_them = messages(100)
    count = counted(sender, receivers, all_of_them[:40], all_of_them[44:], accepted=100)
    assert count == Count()


def test_a_gap_in_a_later_life_is_lost(tmp_path: Path) -> None:
    sender = life(tmp_path, SOURCE)
    receivers = [life(tmp_path, TARGET, dead=True), life(tmp_path, TARGET, number=1, started_s=6.0)]
    all_of_them = messages(100)
    came = all_of_them[44:60] + all_of_them[61:]
    assert counted(sender, receivers, all_of_them[:40], came, accepted=100) == Count(lost=1)


def test_what_two_lives_of_a_receiver_took_is_doubled(tmp_path: Path) -> None:
    sender = life(tmp_path, SOURCE)
    receivers = [life(tmp_path, TARGET, dead=True), life(tmp_path, TARGET, number=1, started_s=6.0)]
    all_of_them = messages(100)
    count = counted(sender, receivers, all_of_them[:40], all_of_them[38:], accepted=100)
    assert count == Count(duplicated=2)


def test_a_new_life_of_a_sender_loses_nothing(tmp_path: Path) -> None:
    sender = life(tmp_path, SOURCE, number=1, started_s=6.0)
    receiver = life(tmp_path, TARGET)
    came = messages(100, life=1)
    assert counted(sender, [receiver], came, accepted=100) == Count()
    assert counted(sender, [receiver], came[1:], accepted=100) == Count(lost=1)
