"""An exception of a signal handler within a run of messages: none is lost, doubled, miscounted."""

from collections import deque

import pytest

from tests.unit.path_world import SOURCE, TARGET, Side, message
from urds.constants import HeaderFlag
from urds.dataplane.base import Hold, Release
from urds.dataplane.reference import inbox
from urds.wire.header import HEADER_BYTES

PAYLOADS = [b"%d" % number for number in range(1, 6)]


class Interrupting(deque):
    """A queue whose n-th append is interrupted, before or after it is done."""

    def __init__(self, items=(), *, at: int, after: bool) -> None:
        super().__init__(items)
        self.left, self.after = at, after

    def append(self, item) -> None:
        self.left -= 1
        if self.left or self.after:
            super().append(item)
        if not self.left:
            raise KeyboardInterrupt


def own_side() -> Side:
    side = Side(release=Release.PEER_ACKNOWLEDGED)
    side.begin()
    return side


def octets(first: int, last: int, *, flags: int = 0, pad: int = 0) -> bytes:
    return b"".join(
        message(
            number,
            PAYLOADS[number - 1] + bytes(pad),
            source_port=SOURCE,
            target_port=TARGET,
            flags=flags,
        )
        for number in range(first, last + 1)
    )


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 6))
def test_an_interrupt_while_messages_become_octets(at: int, after: bool) -> None:
    side = own_side()
    side.send(*PAYLOADS)
    side.outgoing.unacked = Interrupting(at=at, after=after)
    with pytest.raises(KeyboardInterrupt):
        side.core.poll_transmit()
    kept = at if after else at - 1
    assert side.outgoing.message_count() == len(PAYLOADS)
    assert side.outgoing.sequence_next == kept + 1
    side.core.detach()
    side.outgoing.unacked = deque()
    side.attach()
    sent = [(frame.header.sequence, frame.payload) for frame in side.frames()[1:]]
    assert sent == list(enumerate(PAYLOADS, 1))
    assert side.outgoing.pending_bytes == 0
    assert side.outgoing.handle_peer_acknowledged(len(PAYLOADS))
    assert side.account.send_queued_bytes == 0


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_interrupt_while_messages_are_repeated(after: bool) -> None:
    side = own_side()
    side.send(*PAYLOADS)
    side.write()
    side.core.detach()
    side.attach()
    side.outgoing.unacked = Interrupting(at=3, after=after)
    with pytest.raises(KeyboardInterrupt):
        side.core.poll_transmit()
    side.core.detach()
    assert [sent[0] for sent in side.outgoing.repeats] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("pad", [0, 9000], ids=["short", "long"])
@pytest.mark.parametrize("first", [1, 2], ids=["first of a stream", "later"])
@pytest.mark.parametrize("last", [2, 5], ids=["alone", "many"])
def test_an_interrupt_while_messages_are_taken_in(
    first: int, last: int, pad: int, after: bool
) -> None:
    side = own_side()
    if first > 1:
        side.core.receive_data(octets(1, first - 1, pad=pad), 0)
    at = min(2, last - first + 1)
    side.inbox.queue = Interrupting(side.inbox.queue, at=at, after=after)
    read = octets(first, last, pad=pad)
    if pad and at == 1:  # a long message is collected over two reads
        side.core.receive_data(read[:-1], 0)
        read = read[-1:]
    with pytest.raises(KeyboardInterrupt):
        side.core.receive_data(read, 0)
    side.core.detach()
    side.core.attach(Hold.NOTHING)
    side.core.receive_data(octets(1, last, flags=HeaderFlag.RETRANSMITTED, pad=pad), 0)
    taken = [item[0].rstrip(b"\0") for item in side.inbox.queue]
    assert taken == PAYLOADS[:last]
    assert side.inbox.receive_queued_bytes == sum(len(item[0]) for item in side.inbox.queue)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("count", [3, 40], ids=["few", "a run"])
def test_an_interrupt_while_messages_without_payload_are_counted(
    monkeypatch: pytest.MonkeyPatch, count: int, after: bool
) -> None:
    """A count in the last item of the queue is as good as items of their own."""
    monkeypatch.setattr(inbox, "MANY_MESSAGES", 2)

    class Counting(deque):
        left = 2

        def __setitem__(self, index, item) -> None:
            self.left -= 1
            if self.left or after:
                super().__setitem__(index, item)
            if not self.left:
                raise KeyboardInterrupt

    def frames(flags: int = 0) -> bytes:
        return b"".join(
            message(n, source_port=SOURCE, target_port=TARGET, flags=flags)
            for n in range(1, count + 5)
        )

    side = own_side()
    side.receive(frames()[: 4 * HEADER_BYTES])
    side.inbox.queue = Counting(side.inbox.queue)
    with pytest.raises(KeyboardInterrupt):
        side.receive(frames()[4 * HEADER_BYTES :])
    side.core.detach()
    side.inbox.queue = deque(side.inbox.queue)
    side.core.attach(Hold.NOTHING)
    side.receive(frames(HeaderFlag.RETRANSMITTED))
    assert side.inbox.message_count() == count + 4
    assert len(side.inbox.queue) == 3
