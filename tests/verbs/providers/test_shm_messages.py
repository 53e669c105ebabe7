"""Messages on the socket of a channel: round trips and refusals."""

import random

import pytest

from urds.common.errors import WireError
from urds.verbs.providers.shm.messages import (
    DOORBELL,
    MAGIC,
    MESSAGE_BYTES_MAX,
    ChannelMessage,
    Doorbell,
    Hello,
    MapReject,
    MapReply,
    MapRequest,
    Welcome,
    emit_message,
    parse_message,
)

GID = bytes(range(16))
MESSAGES = [
    Doorbell(),
    Hello(MAGIC, 1 << 20, GID),
    Welcome(GID),
    MapRequest(5, 0xFFFF_FFFF),
    MapReply(5, 6, (1 << 64) - 8, 8, 3),
    MapReject(5, 6),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back(message: ChannelMessage) -> None:
    data = emit_message(message)
    assert len(data) <= MESSAGE_BYTES_MAX
    assert parse_message(data, message.DESCRIPTORS) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_wrong_size_or_count_of_descriptors_is_refused(message: ChannelMessage) -> None:
    data = emit_message(message)
    for wrong in (data[:-1], data + b"\0"):
        with pytest.raises(WireError, match=r"bytes|unknown kind"):
            parse_message(wrong, message.DESCRIPTORS)
    with pytest.raises(WireError, match="descriptors"):
        parse_message(data, message.DESCRIPTORS + 1)


@pytest.mark.parametrize("data", [b"", b"\x06", b"\xff" * 64])
def test_an_unknown_kind_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="unknown kind"):
        parse_message(data, 0)


def test_another_version_is_refused() -> None:
    data = bytearray(emit_message(Hello(MAGIC, 1 << 20, GID)))
    data[8] += 1
    with pytest.raises(WireError, match="magic"):
        parse_message(bytes(data), 1)


def test_a_doorbell_is_one_byte() -> None:
    assert emit_message(Doorbell()) == DOORBELL and len(DOORBELL) == 1


def test_noise_is_refused_or_read_never_more() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        data = bytes([rng.randrange(7)]) + rng.randbytes(rng.randrange(40))
        try:
            parse_message(data, rng.randrange(4))
        except WireError:
            continue
