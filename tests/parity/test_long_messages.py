"""Long messages: read into memory that is used again or as a whole, written several at a time."""

import pytest

from tests.parity.planes import PEER, PEER_PORT, PORT, World, message, take
from urds.rds.plane.contract import (
    Down,
    DownReason,
)
from urds.rds.types import AckMode

ADDRESS = (str(PEER), PEER_PORT)
LONG = 64 << 10
VERY_LONG = 1 << 20
ACCOUNT = 8 << 20


def texts(count: int, payload_bytes: int) -> list[bytes]:
    return [bytes([number + 1]) * payload_bytes for number in range(count)]


@pytest.mark.parametrize("payload_bytes", [8192, 20_000, LONG, 200_000])
@pytest.mark.parametrize("piece", [1000, 50_000, 90_000])
def test_payloads_stay_what_they_were_while_more_is_read(
    world: World, payload_bytes: int, piece: int
) -> None:
    """What is read next lands in the same memory; nothing that was taken may point into it."""
    mailbox = world.mailbox(receive_bytes_max=ACCOUNT)
    remote = world.attach()
    remote.say_map()
    sent = texts(6, payload_bytes)
    data = b"".join(
        message(number, text, source_port=PEER_PORT, target_port=PORT)
        for number, text in enumerate(sent, 1)
    )
    got: list[bytes] = []
    for start in range(0, len(data), piece):
        remote.write(data[start : start + piece])
        world.turn()
        got += take(mailbox)
    assert got == sent


def test_small_messages_after_long_ones_are_taken_in(world: World) -> None:
    mailbox = world.mailbox(receive_bytes_max=ACCOUNT)
    remote = world.attach()
    sent = [*texts(3, LONG), *texts(3, 10), *texts(3, LONG), b"last"]
    got: list[bytes] = []
    for number, text in enumerate(sent, 1):
        remote.say(number, text)
        world.turn()
        got += take(mailbox)
    assert got == sent


def test_what_was_read_with_a_wrong_acknowledgement_is_delivered(world: World) -> None:
    mailbox = world.mailbox()
    remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    ports = {"source_port": PEER_PORT, "target_port": PORT}
    long, short = message(1, bytes(20_000), ack=9, **ports), message(2, b"behind", **ports)
    remote.write(long[:10_000])
    world.turn()
    remote.write(long[10_000:], short)
    (down,) = [event for event in world.turn() if isinstance(event, Down)]
    assert (down.reason, down.frames) == (DownReason.BAD_ACKNOWLEDGEMENT, 2)
    assert take(mailbox) == [bytes(20_000), b"behind"]


def test_a_very_long_payload_is_read_once_it_has_come(world: World) -> None:
    """The stream is asked to wake us for the whole of it, and for anything again behind it."""
    mailbox = world.mailbox(receive_bytes_max=ACCOUNT)
    remote = world.attach()
    remote.say_map()
    data = message(1, b"x" * VERY_LONG, source_port=PEER_PORT, target_port=PORT)
    remote.write(data[:48])
    world.turn()
    assert remote.stream.expected_bytes == VERY_LONG
    got: list[bytes] = []
    for start in range(48, len(data), 50_000):
        remote.write(data[start : start + 50_000])
        world.turn()
        got += take(mailbox)
    assert got == [b"x" * VERY_LONG]
    assert remote.stream.expected_bytes == 1


def test_an_end_within_a_long_payload_is_told(world: World) -> None:
    mailbox = world.mailbox(receive_bytes_max=ACCOUNT)
    remote = world.attach()
    remote.say_map()
    remote.write(message(1, b"x" * VERY_LONG, source_port=PEER_PORT, target_port=PORT)[:100_000])
    world.turn()
    remote.close()
    names = [type(event).__name__ for _ in range(3) for event in world.turn()]
    assert "Down" in names
    assert take(mailbox) == []


class TestBursts:
    """Long messages of a burst share a write, as small ones do."""

    def test_they_wait_for_more_of_them(self, world: World) -> None:
        mailbox = world.mailbox(send_bytes_max=ACCOUNT)
        remote = world.attach(buffer_bytes=4 << 20)
        for text in texts(4, LONG):
            mailbox.sendto(text, ADDRESS)
        assert len(remote.messages()) == 2, "a pause makes two of them leave at once"
        world.turn()
        assert [frame.payload for frame in remote.messages()] == texts(4, LONG)[2:]

    def test_half_a_mebibyte_is_enough(self, world: World) -> None:
        mailbox = world.mailbox(send_bytes_max=ACCOUNT)
        remote = world.attach(buffer_bytes=4 << 20)
        for text in texts(2 + 7, LONG):
            mailbox.sendto(text, ADDRESS)
        assert len(remote.messages()) == 2
        mailbox.sendto(b"y" * LONG, ADDRESS)
        assert len(remote.messages()) == 8

    def test_a_small_account_does_not_wait(self, world: World) -> None:
        """A quarter of it would never be so much: each long message leaves by itself."""
        mailbox = world.mailbox()
        remote = world.attach()
        mailbox.sendto(b"x" * LONG, ADDRESS)
        mailbox.sendto(b"y" * 10_000, ADDRESS)
        remote.drain()
        mailbox.sendto(b"z" * 30_000, ADDRESS)
        assert [len(frame.payload) for frame in remote.messages()] == [LONG, 10_000, 30_000]


def test_a_pass_takes_one_plain_message_and_answers_later(world: World) -> None:
    """The short way of event loops: the mailbox and its account are as by the general one."""
    mailbox = world.mailbox()
    remote = world.attach()
    remote.say_map()
    for number in range(1, 4):
        remote.say(number, b"ask")
        assert world.plane.progress() == 1
        assert take(mailbox) == [b"ask"]
    assert world.counter("recv_queued") == 3
