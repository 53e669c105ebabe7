"""An exception of a signal handler anywhere in a path: no message is lost, doubled, miscounted."""

from collections.abc import Callable
from itertools import count

import pytest

from tests.rds.plane.path_world import SOURCE, TARGET, Side, message
from tests.rds.sockets.interrupting import Interruption
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    Hold,
)
from urds.rds.types import AckMode

PAYLOADS = [b"%d" % number for number in range(1, 6)]
ALIKE = [b"%04d" % number for number in range(1, 20)]


def own_side() -> Side:
    side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    side.begin()
    return side


def emitted(payloads: list[bytes], *, flags: int = 0) -> bytes:
    return b"".join(
        message(number, payload, source_port=SOURCE, target_port=TARGET, flags=flags)
        for number, payload in enumerate(payloads, 1)
    )


def at_each_point(make: Callable[[], Side], call: Callable[[Side], object]):
    """Give sides that were interrupted in a call, at one place each."""
    for at in count(1):
        side = make()
        with Interruption(at) as interruption:
            call(side)
        yield side
        if not interruption.fired:
            return


def check_repeats(side: Side, payloads: list[bytes]) -> None:
    """Check that a new stream carries each message once, in order, and nothing else is counted."""
    side.core.detach()
    assert [sent[0] for sent in side.sender.retransmits] == list(
        range(1, side.sender.sequence_next)
    )
    side.attach()
    sent = [(frame.header.sequence, frame.payload) for frame in side.frames()[1:]]
    assert sent == list(enumerate(payloads, 1))
    assert side.sender.pending_bytes == 0
    assert side.sender.handle_peer_acknowledged(len(payloads))
    assert side.account.send_queued_bytes == side.sender.message_count() == 0


@pytest.mark.parametrize("payloads", [PAYLOADS, ALIKE], ids=["singles", "alike"])
def test_an_interrupt_while_messages_become_bytes(payloads: list[bytes]) -> None:
    def make() -> Side:
        side = own_side()
        side.send(*payloads)
        return side

    for side in at_each_point(make, lambda side: side.core.poll_transmit()):
        check_repeats(side, payloads)


def test_an_interrupt_while_messages_are_repeated() -> None:
    def make() -> Side:
        side = own_side()
        side.send(*PAYLOADS)
        side.write()
        side.core.detach()
        side.attach()
        return side

    for side in at_each_point(make, lambda side: side.core.poll_transmit()):
        check_repeats(side, PAYLOADS)


def test_an_interrupt_while_messages_are_acknowledged() -> None:
    def make() -> Side:
        side = own_side()
        side.send(*PAYLOADS)
        side.write()
        return side

    for side in at_each_point(make, lambda side: side.sender.handle_peer_acknowledged(4)):
        left = [sent[5] for sent in side.sender.unacked]
        assert side.account.send_queued_bytes == sum(map(len, left))
        assert left in (PAYLOADS, PAYLOADS[4:])


def test_an_interrupt_while_messages_are_cancelled() -> None:
    def make() -> Side:
        side = own_side()
        side.send(*PAYLOADS[:3])
        side.write()
        side.send(*PAYLOADS[3:])
        return side

    for side in at_each_point(make, lambda side: side.sender.cancel(side.account, None)):
        if side.sender.message_count():
            check_repeats(side, PAYLOADS)
        assert side.account.send_queued_bytes == 0


@pytest.mark.parametrize(
    "payloads",
    [PAYLOADS, PAYLOADS[:1], ALIKE, [bytes(9000), bytes(9001)], [bytes(20_000)]],
    ids=["singles", "alone", "alike", "long", "very long"],
)
@pytest.mark.parametrize("reads", [1, 2])
def test_an_interrupt_while_messages_are_taken_in(payloads: list[bytes], reads: int) -> None:
    sent = emitted(payloads)
    pieces = [sent] if reads == 1 else [sent[:-1], sent[-1:]]

    def take_in(side: Side) -> None:
        for piece in pieces:
            side.core.receive_data(piece, 0)

    for side in at_each_point(own_side, take_in):
        side.core.detach()
        side.core.attach(Hold.NOTHING)
        side.core.receive_data(emitted(payloads, flags=HeaderFlag.RETRANSMITTED), 0)
        assert [item[0] for item in side.inbox.queue] == payloads
        assert side.inbox.receive_queued_bytes == sum(map(len, payloads))


def test_an_interrupt_while_messages_move_to_another_path() -> None:
    """Each is on one of the two; told again, all are on the other, once and in their order."""
    for at in count(1):
        closing, staying = own_side(), own_side()
        closing.send(*PAYLOADS)
        staying.send(b"before")
        with Interruption(at) as interruption:
            closing.sender.move_unsent(staying.sender)
        closing.sender.move_unsent(staying.sender)
        assert closing.sender.pending_bytes == closing.sender.message_count() == 0
        assert [frame.payload for frame in staying.frames()] == [b"before", *PAYLOADS]
        assert staying.sender.pending_bytes == 0
        if not interruption.fired:
            return
