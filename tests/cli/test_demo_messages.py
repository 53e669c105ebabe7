"""The books of the demo notice every way in which a message can go wrong."""

from random import Random

import pytest

from urds.cli.demo_messages import PAYLOAD_BYTES_MIN, Ledger, Writer


def messages(count: int, payload_bytes: int = 64) -> list[bytes]:
    writer = Writer("a", "b", payload_bytes=payload_bytes, random=Random(1))
    made = []
    for _ in range(count):
        made.append(writer.payload())
        writer.count_sent()
    return made


def judge(payloads: list[bytes]) -> Ledger:
    ledger = Ledger("a", "b")
    for payload in payloads:
        ledger.check(payload)
    return ledger


def counts(ledger: Ledger) -> tuple[int, int, int, int]:
    return ledger.delivered, ledger.duplicated, ledger.reordered, ledger.damaged


def test_each_message_once_and_in_order_is_perfect() -> None:
    ledger = judge(messages(100))
    assert counts(ledger) == (100, 0, 0, 0)
    assert ledger.missing(100) == []


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
    ledger = judge(payloads)
    assert counts(ledger) == (9, 0, 0, 0)
    assert ledger.missing(10) == [lost]


@pytest.mark.parametrize("again", [0, 4, 9])
def test_a_message_that_comes_again_is_a_duplicate(again: int) -> None:
    payloads = messages(10)
    assert counts(judge([*payloads, payloads[again]])) == (10, 1, 0, 0)


def test_a_late_message_is_reordered_and_not_lost() -> None:
    payloads = messages(10)
    payloads.append(payloads.pop(3))
    ledger = judge(payloads)
    assert counts(ledger) == (10, 0, 1, 0)
    assert ledger.missing(10) == []


@pytest.mark.parametrize("octet", range(0, 64, 9))
def test_a_changed_octet_is_damage(octet: int) -> None:
    payload = bytearray(messages(1)[0])
    payload[octet] ^= 1
    assert counts(judge([bytes(payload)])) == (0, 0, 0, 1)


def test_a_message_for_somebody_else_is_damage() -> None:
    ledger = Ledger("a", "c")
    ledger.check(messages(1)[0])
    assert counts(ledger) == (0, 0, 0, 1)


def test_a_message_that_is_cut_off_is_damage() -> None:
    assert counts(judge([b"", messages(1)[0][:30]])) == (0, 0, 0, 2)


def test_the_smallest_message_is_a_number_and_a_hash() -> None:
    assert counts(judge(messages(3, PAYLOAD_BYTES_MIN))) == (3, 0, 0, 0)
