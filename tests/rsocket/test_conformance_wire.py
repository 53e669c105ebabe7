"""What a stream says over each device, heard by a peer that is nothing but a queue pair.

The first points of docs/reference/rsocket.md 19, where it says what goes over the wire. The peer
gives credits and space when the test does, so that each stop of the sender can be seen.
"""

from __future__ import annotations

import pytest

from tests.rsocket.ends import DEVICES
from tests.rsocket.hostile_world import TABLE_ENTRIES, Siege, UnknownPeer, siege
from urds.rsocket.core.stream.records import Shut
from urds.rsocket.link.stream_link import LinkState, StreamLink, parameters_with
from urds.rsocket.wire.stream import (
    SGE_BYTES,
    ConnectFlag,
    Control,
    Op,
    Sge,
    emit_imm_data,
    parse_imm_data,
)
from urds.verbs.engine.work import RecvWR

CREDITS = 20
ENTRY_BYTES = 4096


@pytest.fixture(params=DEVICES)
def scene(request):
    with siege(request.param, receive_queue=CREDITS) as made:
        yield made


def of_kind(unknown_peer: UnknownPeer, op: Op) -> list[int]:
    """Return the arguments of all words of one operation that came."""
    parsed = [parse_imm_data(imm_data) for imm_data in unknown_peer.words]
    return [argument for kind, argument in parsed if kind is op]


def until_quiet(scene: Siege, unknown_peer: UnknownPeer) -> None:
    """Wait until no more words come."""
    before = -1
    while before != len(unknown_peer.words):
        before = len(unknown_peer.words)
        scene.finish_pass(10)


def small_table(unknown_peer: UnknownPeer) -> dict[str, Sge]:
    """Return private data that name one entry's worth of space."""
    memory = unknown_peer.memory
    place = memory.address + TABLE_ENTRIES * SGE_BYTES
    return {"data_buffer": Sge(place, memory.rkey, ENTRY_BYTES)}


@pytest.mark.rule(
    "rsocket-connect-cm",
    "rsocket-connect-credits",
    "rsocket-connect-sgl",
    "rsocket-connect-buffer",
    "rsocket-connect-reserved",
)
def test_the_answer_carries_forty_bytes(scene: Siege) -> None:
    """Point 1: what the connection manager brings, and nothing behind it but padding."""
    unknown_peer, victim = scene.connected()
    offered, memory = unknown_peer.offered, victim.stream._memory
    assert offered[:2] == bytes([1, ConnectFlag.IOMAP | ConnectFlag.URDS])
    assert int.from_bytes(offered[2:4], "big") == CREDITS
    assert offered[4:8] == bytes(4), "three reserved bytes, and no slots"
    assert int.from_bytes(offered[8:16], "big") == memory.address
    assert int.from_bytes(offered[16:20], "big") == memory.rkey
    assert int.from_bytes(offered[20:24], "big") == 16, "entries of the table"
    first = memory.address + 16 * SGE_BYTES
    assert int.from_bytes(offered[24:32], "big") == first
    assert int.from_bytes(offered[32:36], "big") == memory.rkey
    assert int.from_bytes(offered[36:40], "big") == ENTRY_BYTES, "half of the window"
    assert not any(offered[40:])


def test_a_request_carries_what_the_cm_is_to_repeat() -> None:
    """docs/reference/rsocket.md 2.2: no reads, and sends without a receive repeated for ever."""
    asked = parameters_with(b"x")
    assert (asked.responder_resources, asked.initiator_depth) == (0, 0)
    assert (asked.retry_count, asked.rnr_retry_count) == (7, 7)


@pytest.mark.rule(
    "rsocket-remote-sgl", "rsocket-sgl-notice", "rsocket-double-buffer", "rsocket-sge-layout"
)
def test_the_first_word_publishes_the_second_half(scene: Siege) -> None:
    """Point 3: a write into entry 1 of our table, with the word that tells of it."""
    unknown_peer, victim = scene.connected()
    scene.until(lambda: bool(unknown_peer.words))
    op, argument = parse_imm_data(unknown_peer.words[0])
    assert op is Op.CREDIT and argument & 0xFFFF == CREDITS
    table = unknown_peer.memory.view[: TABLE_ENTRIES * SGE_BYTES]
    entry = Sge.parse(table[SGE_BYTES : 2 * SGE_BYTES], "little")
    assert unknown_peer.peer is not None
    first = unknown_peer.peer.data_buffer
    assert (entry.address, entry.key) == (first.address + first.length, first.key)
    assert not any(table[:SGE_BYTES]), "entry 0 came with the connect data"
    assert victim.state is LinkState.CONNECTED


@pytest.mark.rule(
    "rsocket-receive-posted", "rsocket-credits-from-queue", "rsocket-credit-count",
    "rsocket-data-notice", "rsocket-write-immediate", "rsocket-data-length",
)  # fmt: skip
def test_a_sender_stops_exactly_at_the_limit(scene: Siege) -> None:
    """Point 5: one credit for each word of data; a new limit lets it go on, and no further."""
    unknown_peer, victim = scene.connected(credits=CREDITS)

    def send_singly(count: int) -> int:
        sent = 0
        for _ in range(count):
            sent += victim.send(memoryview(b"x"))
            scene.finish_pass(2)
        return sent

    taken = send_singly(CREDITS + 10)
    until_quiet(scene, unknown_peer)
    assert of_kind(unknown_peer, Op.DATA) == [1] * CREDITS
    unknown_peer.post(emit_imm_data(Op.CREDIT, CREDITS + 3))
    until_quiet(scene, unknown_peer)
    data = of_kind(unknown_peer, Op.DATA)
    assert CREDITS < len(data) <= CREDITS + 3, "what waited goes together"
    assert sum(data) == taken
    receive_ring = unknown_peer.memory.view[TABLE_ENTRIES * SGE_BYTES :]
    assert bytes(receive_ring[:taken]) == b"x" * taken and not any(receive_ring[taken:])


@pytest.mark.rule(
    "rsocket-target-sgl", "rsocket-send-needs-both", "rsocket-fill-buffer-first",
    "rsocket-sgl-in-use", "rsocket-credit-zero", "rsocket-credit-check-sgl",
)  # fmt: skip
def test_a_sender_fills_each_entry_before_the_next_and_stops_at_the_last(scene: Siege) -> None:
    """Point 5: space is as needed as credits; an update that brings an entry lets it go on."""
    unknown_peer = scene.unknown_peer()
    unknown_peer.connect(
        scene.both.listener.local, unknown_peer.data(**small_table(unknown_peer)).emit()
    )
    scene.until(lambda: scene.both.listener.readiness().readable and unknown_peer.is_connected)
    victim = scene.both.listener.accept()
    assert isinstance(victim, StreamLink) and unknown_peer.peer is not None
    sent = 0
    data = memoryview(bytes(range(1, 251)) * 40)  # 10,000 bytes
    while taken := victim.send(data[sent:], may_zero_copy=False):
        sent += taken
        scene.finish_pass(2)
    until_quiet(scene, unknown_peer)
    assert sum(of_kind(unknown_peer, Op.DATA)) == ENTRY_BYTES, "as much as there was space"
    memory, table = unknown_peer.memory, unknown_peer.peer.target_sgl
    apart = memory.address + TABLE_ENTRIES * SGE_BYTES + 2 * ENTRY_BYTES
    entry = Sge(apart, memory.rkey, ENTRY_BYTES).emit("little")
    imm_data = emit_imm_data(Op.CREDIT, 384 | 1 << 28)
    unknown_peer.post(imm_data, entry, (table.address + SGE_BYTES, table.key))
    until_quiet(scene, unknown_peer)
    assert sum(of_kind(unknown_peer, Op.DATA)) == 2 * ENTRY_BYTES
    receive_ring = memory.view[TABLE_ENTRIES * SGE_BYTES :]
    assert receive_ring[:ENTRY_BYTES] == data[:ENTRY_BYTES]
    assert not any(receive_ring[ENTRY_BYTES : 2 * ENTRY_BYTES])
    assert receive_ring[2 * ENTRY_BYTES : 3 * ENTRY_BYTES] == data[ENTRY_BYTES : 2 * ENTRY_BYTES]


@pytest.mark.rule("rsocket-message-bare", "rsocket-shutdown", "rsocket-disconnect")
@pytest.mark.parametrize(
    ("how", "last"),
    [(Shut.WR, Control.SHUTDOWN), (Shut.RDWR, Control.DISCONNECT)],
)
def test_the_last_word_is_bare_and_comes_after_the_bytes(
    scene: Siege, how: Shut, last: Control
) -> None:
    """Point 8."""
    unknown_peer, victim = scene.connected()
    victim.send(memoryview(b"the last octets"))
    victim.shut_down(how)
    scene.until(lambda: emit_imm_data(Op.CONTROL, last) in unknown_peer.words)
    kinds = [parse_imm_data(imm_data)[0] for imm_data in unknown_peer.words]
    assert kinds.index(Op.DATA) < kinds.index(Op.CONTROL)
    assert bytes(unknown_peer.memory.view[TABLE_ENTRIES * SGE_BYTES :][:15]) == b"the last octets"
    if how is Shut.WR:
        assert unknown_peer.peer is not None
        place = unknown_peer.peer.data_buffer
        unknown_peer.post(emit_imm_data(Op.DATA, 5), b"reply", (place.address, place.key))
        scene.until(lambda: victim.readiness().readable)
        room = memoryview(bytearray(9))
        assert victim.receive_into(room) == 5 and room[:5] == b"reply"


@pytest.mark.rule("rsocket-control-reserve")
def test_credits_are_given_while_none_are_left(scene: Siege) -> None:
    """Point 6: no word of control needs a credit, so two full directions cannot lock each other."""
    unknown_peer, victim = scene.connected(credits=CREDITS)
    assert unknown_peer.peer is not None
    for _ in range(CREDITS + 5):
        victim.send(memoryview(b"x"))
        scene.finish_pass(2)
    place = unknown_peer.peer.data_buffer
    before = len(of_kind(unknown_peer, Op.CREDIT))
    for number in range(CREDITS):
        unknown_peer.post(emit_imm_data(Op.DATA, 1), b"y", (place.address + number, place.key))
    scene.until(lambda: victim.stream.receive_ring.readable_bytes == CREDITS)
    assert victim.receive_into(memoryview(bytearray(99))) == CREDITS
    scene.until(lambda: len(of_kind(unknown_peer, Op.CREDIT)) > before)
    assert of_kind(unknown_peer, Op.CREDIT)[-1] & 0xFFFF == 2 * CREDITS


@pytest.mark.rule("rsocket-rnr-order")
@pytest.mark.parametrize("device", ["sim", "shm0"])
def test_words_without_a_receive_wait_and_keep_their_order(device: str) -> None:
    """No receive is posted: the device repeats the words until there is one."""
    with siege(device) as scene:
        unknown_peer, victim = scene.connected()
        until_quiet(scene, unknown_peer)
        already = len(unknown_peer.words)
        receives, taken = scene.context._receives, 0
        if not hasattr(receives, "take"):
            pytest.skip("the compiled queue gives no receive away")
        with scene.context.adapter.lock:
            while receives.take() is not None:
                taken += 1
        victim.stream.sending.set_no_delay(True)
        for size in range(1, 9):
            victim.send(memoryview(bytes([size]) * size))
        scene.finish_pass(20)
        assert len(unknown_peer.words) == already and victim.state is LinkState.CONNECTED
        with scene.context.adapter.lock:
            for _ in range(taken):
                receives.post(RecvWR(wr_id=1))
        scene.until(lambda: sum(of_kind(unknown_peer, Op.DATA)) == 36)
        receive_ring = unknown_peer.memory.view[TABLE_ENTRIES * SGE_BYTES :][:36]
        assert bytes(receive_ring) == b"".join(bytes([size]) * size for size in range(1, 9))


@pytest.mark.rule("rsocket-control-reserve")
@pytest.mark.parametrize("device", DEVICES)
def test_a_fifth_update_waits_over_a_device(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point 7: while nothing completes, four words of control are posted and no more."""
    step = 4096
    with siege(device, receive_queue=CREDITS, ring_first_bytes=8 * step) as scene:
        unknown_peer, victim = scene.connected()
        if victim.native is not None:
            pytest.skip("what a compiled stream posts is done at once (ADR 46)")
        stream = victim.stream
        until_quiet(scene, unknown_peer)
        assert unknown_peer.peer is not None
        place = unknown_peer.peer.data_buffer
        for turn in range(8):  # both halves, which are one stretch of memory
            to = (place.address + turn * step, place.key)
            unknown_peer.post(emit_imm_data(Op.DATA, step), bytes([turn]) * step, to)
        scene.until(lambda: stream.receive_ring.readable_bytes == 8 * step)
        until_quiet(scene, unknown_peer)
        before = stream.stats.credits_sent
        room = memoryview(bytearray(step))
        with monkeypatch.context() as held:
            held.setattr(victim.context.adapter, "progress_qp", lambda _qp: None)
            for _ in range(8):
                assert victim.receive_into(room) == step
            assert stream.stats.credits_sent - before == 4
        with victim.context.adapter.lock:
            victim.context.adapter.progress_qp(victim._send_queue.qp)
        scene.until(lambda: stream.stats.credits_sent - before > 4)
        until_quiet(scene, unknown_peer)
        assert of_kind(unknown_peer, Op.CREDIT)[-1] & 0xFFFF == CREDITS + 8


@pytest.mark.slow
@pytest.mark.rule("rsocket-credit-more")
def test_message_numbers_wrap_over_a_device() -> None:
    """Point 4: 70,000 messages of one byte, of which the 65,537th has the number 0 again."""
    count, batch = 70_000, 500
    with siege("shm0", receive_queue=1000) as scene:
        unknown_peer, victim = scene.connected()
        assert unknown_peer.peer is not None
        place, at, taken = unknown_peer.peer.data_buffer, 0, 0
        room = memoryview(bytearray(batch))
        while taken < count:
            for _ in range(batch):
                # The window is small enough to stay as it is: 8 KiB, filled round and round.
                to = (place.address + at, place.key)
                unknown_peer.post(emit_imm_data(Op.DATA, 1), b"%c" % (at % 251), to)
                at = (at + 1) % (2 * ENTRY_BYTES)
            goal = taken + batch
            scene.until(lambda goal=goal: victim.stream.stats.messages_received == goal)
            assert victim.receive_into(room) == batch
            taken = goal
        assert victim.state is LinkState.CONNECTED
        until_quiet(scene, unknown_peer)
        assert count < 0x10000 + of_kind(unknown_peer, Op.CREDIT)[-1] % 0x10000 <= count + 1000
        assert bytes(room[-3:]) == bytes((at - back) % 8192 % 251 for back in (3, 2, 1))
