"""Two stream cores over a queue pair that is late at everything: what is accepted arrives."""

import pytest

from tests.sim.rsocket_pair import Pair, Side
from tests.sim.rsocket_world import SOURCE, World
from urds.rsocket.core.stream.records import Shut, StreamSettings

PAIRS = {
    "own": (True, True),
    "to original": (True, False),
    "from original": (False, True),
    "originals": (False, False),
}
pairs = pytest.mark.parametrize("are_urds", PAIRS.values(), ids=PAIRS)


@pytest.mark.sim
@pairs
@pytest.mark.parametrize("seed", range(150))
def test_what_was_accepted_arrives(seed: int, are_urds: tuple[bool, bool]) -> None:
    """Sends, receives, maps, shuts down and cuts at random; then each live side finishes."""
    World(seed, are_urds=are_urds).run()


def pair_of(are_urds: tuple[bool, bool], **fields: int) -> Pair:
    """Return a pair with equal settings; nothing happens to it by rng."""
    settings = [StreamSettings(is_urds=is_urds, no_delay=True, **fields) for is_urds in are_urds]
    return Pair("no seed", (settings[0], settings[1]))


def finish_pass(pair: Pair) -> None:
    """Deliver, complete and take all there is, until nothing moves."""
    is_moving = True
    while is_moving:
        is_moving = False
        for side in pair.sides:
            while pair.deliver(side) or pair.complete(side):
                is_moving = True
            while pair.take_word(pair.peer(side)):
                pair.post_pending(pair.peer(side))


def send(pair: Pair, side: Side, data: bytes) -> int:
    taken = side.core.send(memoryview(data), may_zero_copy=False)
    pair.post_pending(side)
    return taken


def read(pair: Pair, side: Side, byte_count: int, *, already: int) -> bytes:
    data = side.core.receive_ring.receive(byte_count)
    pair.note_read(side, already + len(data))
    pair.post_pending(side)
    return data


@pytest.mark.sim
@pairs
def test_message_numbers_wrap(are_urds: tuple[bool, bool]) -> None:
    """70,000 messages of one byte in one direction, read one by one: numbers have 16 bits."""
    pair = pair_of(are_urds, receive_queue=64)
    first, second = pair.sides
    finish_pass(pair)
    for number in range(70_000):
        byte = SOURCE[number : number + 1]
        assert send(pair, first, byte) == 1, f"message {number}"
        pair.deliver(first)
        assert pair.take_word(second), f"message {number}"
        assert read(pair, second, 8, already=number) == byte
        if second.line:
            finish_pass(pair)
        pair.complete(first)
    assert first.core.stats.messages_sent == second.core.stats.messages_received == 70_000
    assert second.read_messages == 70_000


@pytest.mark.sim
@pairs
def test_a_sender_stops_at_the_limit_and_goes_on_after_half_of_it(
    are_urds: tuple[bool, bool],
) -> None:
    """Messages of one byte without a reader: as many leave as there are credits, no more."""
    pair = pair_of(are_urds, receive_queue=20)
    first, second = pair.sides
    sent = 0
    for _ in range(40):
        sent += send(pair, first, SOURCE[sent : sent + 1])
        finish_pass(pair)
    assert second.core.stats.messages_received == 20
    assert second.core.receive_ring.readable_bytes == 20
    got = 0
    for _ in range(9):
        got += len(read(pair, second, 1, already=got))
        finish_pass(pair)
    assert second.core.stats.messages_received == 20, "an update came early"
    got += len(read(pair, second, 1, already=got))
    finish_pass(pair)
    sent += send(pair, first, SOURCE[sent : sent + 1])
    finish_pass(pair)
    assert second.core.stats.messages_received > 20
    while got < sent:
        data = read(pair, second, 1, already=got)
        assert data == SOURCE[got : got + 1]
        got += 1
        finish_pass(pair)


@pytest.mark.sim
@pairs
def test_two_full_directions_do_not_lock_each_other(are_urds: tuple[bool, bool]) -> None:
    """Both send all that is taken and do not read; then both read, and send the rest."""
    pair = pair_of(are_urds, receive_queue=16, receive_bytes=4096, send_bytes=8192)
    total, sent, got = 50_000, {"A": 0, "B": 0}, {"A": 0, "B": 0}

    def send_all(side: Side) -> int:
        before = sent[side.name]
        while taken := send(
            pair, side, SOURCE[sent[side.name] : min(sent[side.name] + 500, total)]
        ):
            sent[side.name] += taken
        finish_pass(pair)
        return sent[side.name] - before

    while sum(map(send_all, pair.sides)):
        pass
    assert all(4096 <= count < total for count in sent.values())
    for _ in range(1000):
        for side in pair.sides:
            data = read(pair, side, 100_000, already=got[side.name])
            assert data == SOURCE[got[side.name] :][: len(data)]
            got[side.name] += len(data)
        finish_pass(pair)
        for side in pair.sides:
            send_all(side)
    assert sent == got == {"A": total, "B": total}


@pytest.mark.sim
@pairs
def test_both_say_goodbye_at_once(are_urds: tuple[bool, bool]) -> None:
    """What each sent before its DISCONNECT is readable, though it had disconnected itself."""
    pair = pair_of(are_urds)
    for side in pair.sides:
        assert send(pair, side, b"last words") == 10
        side.core.lifecycle.shut_down(Shut.WR)
        pair.post_pending(side)
    finish_pass(pair)
    for side in pair.sides:
        assert side.core.wants_disconnect
        assert read(pair, side, 100, already=0) == b"last words"
        assert side.core.is_ended and not side.core.lifecycle.error
