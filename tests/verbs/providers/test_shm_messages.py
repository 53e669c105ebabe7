"""Messages on the socket of a channel: round trips and refusals."""

import random

import pytest

from urds.errors import WireError
from urds.verbs.providers.shm.messages import (
    MAGIC,
    MESSAGE_BYTES_MAX,
    Borrow,
    Decline,
    Hello,
    Lend,
    Message,
    Welcome,
    emit_message,
    parse_message,
)

GID = bytes(range(16))
MESSAGES = [
    Hello(MAGIC, 1 << 20, GID),
    Welcome(GID),
    Borrow(5, 0xFFFF_FFFF),
    Lend(5, 6, (1 << 64) - 8, 8, 3),
    Decline(5, 6),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back(message: Message) -> None:
    octets = emit_message(message)
    assert len(octets) <= MESSAGE_BYTES_MAX
    assert parse_message(octets, message.DESCRIPTORS) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_wrong_size_or_count_of_descriptors_is_refused(message: Message) -> None:
    octets = emit_message(message)
    for wrong in (octets[:-1], octets + b"\0"):
        with pytest.raises(WireError, match="octets"):
            parse_message(wrong, message.DESCRIPTORS)
    with pytest.raises(WireError, match="descriptors"):
        parse_message(octets, message.DESCRIPTORS + 1)


@pytest.mark.parametrize("octets", [b"", b"\0", b"\x06", b"\xff" * 64])
def test_an_unknown_kind_is_refused(octets: bytes) -> None:
    with pytest.raises(WireError, match="unknown kind"):
        parse_message(octets, 0)


def test_another_version_is_refused() -> None:
    octets = bytearray(emit_message(MESSAGES[0]))
    octets[8] += 1
    with pytest.raises(WireError, match="magic"):
        parse_message(bytes(octets), 3)


def test_noise_is_refused_or_read_never_more() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        octets = bytes([chance.randrange(7)]) + chance.randbytes(chance.randrange(40))
        try:
            parse_message(octets, chance.randrange(4))
        except WireError:
            continue
