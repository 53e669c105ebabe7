"""A connected peer that breaks the protocol is cut with a reason, and no other connection feels it.

Each over every device: the words travel as real writes with immediate data into real memory.
"""

import contextlib
from collections.abc import Callable

import pytest

from tests.rsocket.ends import DEVICES
from tests.rsocket.hostile_world import TABLE_ENTRIES, WINDOW_BYTES, Siege, UnknownPeer, siege
from urds.rsocket.link.stream_link import LinkState
from urds.rsocket.wire.stream import (
    CREDIT_HAS_ENTRY,
    SGE_BYTES,
    Control,
    IomapEntry,
    Op,
    Sge,
    emit_imm_data,
)
from urds.verbs.engine.numbers import WCStatus, WROpcode

QUEUE = 32  # of the victim's receives
SLOTS = 4


@pytest.fixture(params=DEVICES)
def scene(request):
    with siege(request.param, receive_queue=QUEUE, iomap_slots=SLOTS) as made:
        yield made


def buffer_of(unknown_peer: UnknownPeer) -> tuple[int, int]:
    """Return where the victim wants its first bytes."""
    assert unknown_peer.peer is not None
    return unknown_peer.peer.data_buffer.address, unknown_peer.peer.data_buffer.key


def entry_at(unknown_peer: UnknownPeer, index: int) -> tuple[int, int]:
    """Return where an entry of the victim's table is."""
    assert unknown_peer.peer is not None
    table = unknown_peer.peer.target_sgl
    return table.address + index * SGE_BYTES, table.key


def say_data(unknown_peer: UnknownPeer, data: bytes) -> None:
    unknown_peer.post(emit_imm_data(Op.DATA, len(data)), data, buffer_of(unknown_peer))


def say_entry(unknown_peer: UnknownPeer, index: int, entry: Sge) -> None:
    imm_data = emit_imm_data(Op.CREDIT, 384 | CREDIT_HAS_ENTRY)
    unknown_peer.post(imm_data, entry.emit("little"), entry_at(unknown_peer, index))


def unknown_operation(unknown_peer: UnknownPeer) -> None:
    unknown_peer.post(0x20000001)


def data_without_bytes(unknown_peer: UnknownPeer) -> None:
    unknown_peer.post(emit_imm_data(Op.DATA, 0))


def more_than_was_published(unknown_peer: UnknownPeer) -> None:
    unknown_peer.post(emit_imm_data(Op.DATA, 1 << 28))


def more_messages_than_credits(unknown_peer: UnknownPeer) -> None:
    for _ in range(QUEUE + 1):
        unknown_peer.post(emit_imm_data(Op.DATA, 1))


def credits_backwards(unknown_peer: UnknownPeer) -> None:
    unknown_peer.post(emit_imm_data(Op.CREDIT, 60_000))


def unknown_bits_of_a_credit(unknown_peer: UnknownPeer) -> None:
    unknown_peer.post(emit_imm_data(Op.CREDIT, 384 | 1 << 20))


def announced_entry_that_is_empty(unknown_peer: UnknownPeer) -> None:
    say_entry(unknown_peer, 1, Sge(0, 0, 0))


def entry_that_wraps_around(unknown_peer: UnknownPeer) -> None:
    say_entry(unknown_peer, 1, Sge((1 << 64) - 8, 7, 4096))


def more_entries_than_the_table_holds(unknown_peer: UnknownPeer) -> None:
    for number in range(1, TABLE_ENTRIES + 1):
        say_entry(unknown_peer, number % TABLE_ENTRIES, Sge(number << 20, number, 4096))


def mapping_beyond_the_table(unknown_peer: UnknownPeer) -> None:
    unknown_peer.post(emit_imm_data(Op.IOMAP, SLOTS))


def mapping_that_wraps_around(unknown_peer: UnknownPeer) -> None:
    address, rkey = entry_at(unknown_peer, TABLE_ENTRIES)  # the iomap is right behind it
    data = IomapEntry(0, (1 << 64) - 1, 7, 4096).emit("little")
    unknown_peer.post(emit_imm_data(Op.IOMAP, 0), data, (address, rkey))


def word_after_the_last(unknown_peer: UnknownPeer) -> None:
    unknown_peer.post(emit_imm_data(Op.CONTROL, Control.SHUTDOWN))
    unknown_peer.post(emit_imm_data(Op.DATA, 1))


def unknown_control(unknown_peer: UnknownPeer) -> None:
    unknown_peer.post(emit_imm_data(Op.CONTROL, 9))


def a_send_and_no_write(unknown_peer: UnknownPeer) -> None:
    unknown_peer.post(7, opcode=WROpcode.SEND_WITH_IMM)


def a_send_without_a_word(unknown_peer: UnknownPeer) -> None:
    unknown_peer.post(None, opcode=WROpcode.SEND)


PROTOCOL_ERRORS: dict[Callable[[UnknownPeer], None], str] = {
    unknown_operation: "operation",
    data_without_bytes: "message of 0 bytes",
    more_than_was_published: "published are",
    more_messages_than_credits: "without a credit",
    credits_backwards: "limit",
    unknown_bits_of_a_credit: "credit update with argument",
    announced_entry_that_is_empty: "announced entry 1 is empty",
    entry_that_wraps_around: "wrap around",
    more_entries_than_the_table_holds: "of a table that holds",
    mapping_beyond_the_table: "slot 4",
    mapping_that_wraps_around: "wrap around",
    word_after_the_last: "after",
    unknown_control: "control",
    a_send_and_no_write: "where a write with immediate data was due",
    a_send_without_a_word: "where a write with immediate data was due",
}


@pytest.mark.parametrize(
    "protocol_error", PROTOCOL_ERRORS, ids=lambda protocol_error: protocol_error.__name__
)
def test_a_protocol_error_is_cut_with_its_reason(
    scene: Siege, protocol_error: Callable[[UnknownPeer], None]
) -> None:
    unknown_peer, victim = scene.connected()
    protocol_error(unknown_peer)
    scene.until_cut(victim, PROTOCOL_ERRORS[protocol_error])
    assert scene.both.there.stats.cut_links == 1
    scene.until(lambda: unknown_peer.is_over)
    scene.nothing_is_left(victim)
    scene.others_are_well()


@pytest.mark.parametrize("place", ["beyond its end", "before its start", "another key"])
def test_a_write_outside_of_what_was_named_ends_the_connection(scene: Siege, place: str) -> None:
    """The device itself refuses it: the victim's software never sees the word."""
    unknown_peer, victim = scene.connected()
    address, rkey = buffer_of(unknown_peer)
    assert unknown_peer.peer is not None
    memory_bytes = 16 * TABLE_ENTRIES + 24 * SLOTS + (1 << 13) + 64
    address += {"beyond its end": memory_bytes, "before its start": -memory_bytes}.get(place, 0)
    rkey += 0x100 if place == "another key" else 0
    unknown_peer.post(emit_imm_data(Op.DATA, 64), bytes(64), (address, rkey))
    scene.until(lambda: victim.state is LinkState.OVER)
    assert victim.stream is not None and victim.stream.stats.messages_received == 0
    scene.until(lambda: bool(unknown_peer.statuses))
    assert unknown_peer.statuses[0] is not WCStatus.SUCCESS
    scene.nothing_is_left(victim)
    scene.others_are_well()


@pytest.mark.parametrize("named", ["table", "data buffer"])
def test_memory_that_is_not_the_peers_cannot_be_named(scene: Siege, named: str) -> None:
    """Private data with keys that open nothing: the victim's own writes fail, and it lets go."""
    nothing = Sge(1 << 20, 0, TABLE_ENTRIES)
    changes = {"table": {"target_sgl": nothing}, "data buffer": {"data_buffer": nothing}}[named]
    unknown_peer, victim = scene.connected(**changes)
    with contextlib.suppress(ConnectionResetError):  # its first update may have failed already
        victim.send(memoryview(bytes(16)))
    scene.until(lambda: victim.state is LinkState.OVER)
    assert victim.reason
    with pytest.raises(ConnectionResetError):
        victim.send(memoryview(b"more"))
    scene.until(lambda: unknown_peer.is_over)
    scene.nothing_is_left(victim)
    scene.others_are_well()


def test_a_flood_of_words_ends_at_the_credits(scene: Siege) -> None:
    unknown_peer, victim = scene.connected()
    before = scene.both.there.memory_bytes
    for _ in range(5):
        for _ in range(200):
            unknown_peer.post(emit_imm_data(Op.DATA, 1), b"x", buffer_of(unknown_peer))
        scene.others_are_well(1000)
    scene.until_cut(victim, "without a credit")
    assert victim.stream is not None
    assert victim.stream.stats.messages_received == QUEUE
    assert scene.both.there.memory_bytes <= before
    room = memoryview(bytearray(100))
    assert victim.receive_into(room) == QUEUE, "what was in order stays readable"
    scene.nothing_is_left(victim)
    scene.others_are_well()


def test_a_flood_of_updates_costs_no_memory(scene: Siege) -> None:
    """A limit that says nothing new is no protocol error; it must not be work or memory either."""
    unknown_peer, victim = scene.connected()
    before = scene.both.there.memory_bytes
    for _ in range(1000):
        unknown_peer.post(emit_imm_data(Op.CREDIT, 384))
    scene.until(lambda: len(unknown_peer.statuses) >= 1000)
    assert victim.state is LinkState.CONNECTED
    assert victim.stream is not None and victim.stream.stats.credits_received == 1000
    assert scene.both.there.memory_bytes == before
    scene.others_are_well()
    victim.close(0)


@pytest.mark.parametrize("ending", [UnknownPeer.disconnect, UnknownPeer.vanish])
@pytest.mark.parametrize("after", ["connect", "data", "half an entry", "many words"])
def test_a_peer_that_leaves_at_any_step(
    scene: Siege, after: str, ending: Callable[[UnknownPeer], None]
) -> None:
    unknown_peer, victim = scene.connected()
    victim.send(memoryview(bytes(5000)))
    if after == "data":
        say_data(unknown_peer, b"the last")
        scene.until(lambda: victim.readiness().readable)
    elif after == "half an entry":
        unknown_peer.post(None, bytes(8), entry_at(unknown_peer, 1))
    elif after == "many words":
        for _ in range(QUEUE - 1):
            say_data(unknown_peer, b"x")
    ending(unknown_peer)
    scene.until(lambda: victim.state is LinkState.OVER)
    if after == "data":
        assert victim.receive_into(memoryview(bytearray(99))) == 8
    with pytest.raises(ConnectionResetError):
        victim.send(memoryview(b"anybody?"))
    assert scene.both.there.stats.cut_links == 0, "to leave is no protocol error"
    scene.nothing_is_left(victim)
    scene.others_are_well()


def test_a_peer_that_never_speaks_costs_its_queue_pair_and_no_more(scene: Siege) -> None:
    _, victim = scene.connected()
    before = scene.both.there.memory_bytes
    data = memoryview(bytes(1 << 20))
    taken = 0
    for _ in range(20):
        taken += victim.send(data, may_zero_copy=False)
        scene.finish_pass(2)
    limit = scene.both.settings.send_bytes + WINDOW_BYTES
    assert 0 < taken <= limit, "what is not read is bounded by the send buffer and the window"
    assert victim.send(data, may_zero_copy=False) == 0
    assert scene.both.there.memory_bytes == before
    scene.nothing_is_left(victim)
    scene.others_are_well()
