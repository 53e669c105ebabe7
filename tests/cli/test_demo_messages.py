"""The books of the demo notice every way in which a message can go wrong."""

from random import Random

import pytest

from urds.cli.rds.demo_host import PAYLOAD_BYTES_MIN, MessageLog, Writer


def messages(count: int, payload_bytes: int = 64) -> list[bytes]:
    writer = Writer("a", "b", payload_bytes=payload_bytes, random=Random(1))
    made = []
    for _ in range(count):
        made.append(writer.payload())
        writer.count_sent()
    return made


def judge(payloads: list[bytes]) -> MessageLog:
    log = MessageLog("a", "b")
    for payload in payloads:
        log.check(payload)
    return log


def counts(log: MessageLog) -> tuple[int, int, int, int]:
    return log.delivered, log.duplicated, log.reordered, log.damaged


def test_each_message_once_and_in_order_is_perfect() -> None:
    log = judge(messages(100))
    assert counts(log) == (100, 0, 0, 0)
    assert log.missing(100) == []


def test_two_messages_differ_in_more_than_their_number() -> None:
    first, second = messages(2)
    assert first[PAYLOAD_BYTES_MIN:] != second[PAYLOAD_BYTES_MIN:]


def test_a_refused_message_is_made_again() -> None:
    writer = Writer("a", "b", payload_bytes=64, random=Random(1))
    assert writer.payload() == writer.payload()


@pytest.mark.parametrize("lost", [0, 5, 9])
def test_a_lost_message_is_missing(lost: int) -> None:
    payloads = messages(10)
    del payloads[lost]
    log = judge(payloads)
    assert counts(log) == (9, 0, 0, 0)
    assert log.missing(10) == [lost]


@pytest.mark.parametrize("again", [0, 4, 9])
def test_a_message_that_comes_again_is_a_duplicate(again: int) -> None:
    payloads = messages(10)
    assert counts(judge([*payloads, payloads[again]])) == (10, 1, 0, 0)


def test_a_late_message_is_reordered_and_not_lost() -> None:
    payloads = messages(10)
    payloads.append(payloads.pop(3))
    log = judge(payloads)
    assert counts(log) == (10, 0, 1, 0)
    assert log.missing(10) == []


@pytest.mark.parametrize("byte", range(0, 64, 9))
def test_a_changed_byte_is_damage(byte: int) -> None:
    payload = bytearray(messages(1)[0])
    payload[byte] ^= 1
    assert counts(judge([bytes(payload)])) == (0, 0, 0, 1)


def test_a_message_for_another_receiver_is_damage() -> None:
    log = MessageLog("a", "c")
    log.check(messages(1)[0])
    assert counts(log) == (0, 0, 0, 1)


def test_a_message_that_is_cut_off_is_damage() -> None:
    assert counts(judge([b"", messages(1)[0][:30]])) == (0, 0, 0, 2)


def test_the_smallest_message_is_a_number_and_a_hash() -> None:
    assert counts(judge(messages(3, PAYLOAD_BYTES_MIN))) == (3, 0, 0, 0)
