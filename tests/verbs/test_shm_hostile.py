"""Peers of the shm provider that keep no rule: slots, greetings, descriptors, loans, floods."""

import fcntl
import gc
import os
import random
import select
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.verbs.shm_world import PATIENCE_NS, Side, joined
from urds.common.passed_files import sealed_file
from urds.verbs.engine.numbers import QPState, WCStatus
from urds.verbs.engine.packets import PacketKind
from urds.verbs.providers.shm import peers as shm_peers
from urds.verbs.providers.shm.channels import FILE_BYTES, Channel
from urds.verbs.providers.shm.messages import (
    DOORBELL,
    MAGIC,
    ChannelMessage,
    Hello,
    MapReject,
    MapReply,
    MapRequest,
    Welcome,
    emit_message,
)
from urds.verbs.providers.shm.peers import PENDING_MAX
from urds.verbs.providers.shm.rendezvous import Rendezvous, check_user
from urds.verbs.providers.shm.slots import (
    PAYLOAD_BYTES_MAX,
    RING_BYTES,
    SLOT_BYTES,
    SLOT_COUNT,
    Fields,
    Word,
    ordinal,
)

UNKNOWN_PEER = b"s" * 16


@pytest.fixture
def pair(place: Path) -> Iterator[tuple[Side, Side]]:
    """Yield a pair whose left side lies: its channel is written to by hand."""
    yield from met(*joined(place, liar=True))


@pytest.fixture
def honest_pair(place: Path) -> Iterator[tuple[Side, Side]]:
    yield from met(*joined(place))


def met(left: Side, right: Side) -> Iterator[tuple[Side, Side]]:
    right.receive(10)
    left.send(10)
    right.poll()
    left.poll()
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def victim(place: Path) -> Iterator[Side]:
    side = Side(place)
    yield side
    side.close()


def channel_of(side: Side) -> Channel:
    (channel,) = side.adapter.peers
    return channel


def assert_broken(side: Side) -> None:
    assert side.adapter.wait(lambda: side.qp.state is QPState.ERR, PATIENCE_NS)
    assert len(side.adapter.peers) == 0
    assert side.adapter.channel_counters().peers_broke_protocol == 1


# -- slots

TARGET = 5


def fields(
    kind: int, *, flags: int = 3, zero: int = 0, target: int = TARGET, psn: int = 0
) -> Fields:
    return (kind, flags, zero, target, psn, 0, 0, 0, 0, 0, 0)


def write_slot(
    side: Side, content: Fields, payload: bytes = b"", *, size: int | None = None
) -> None:
    """Write a slot as it is and have the peer look; `size` is what its stamp says."""
    with side.adapter.lock:
        channel = channel_of(side)
        writer = channel.writer
        at = writer.published % SLOT_COUNT * SLOT_BYTES // 8
        assert writer.has_room(len(payload))
        writer.write(content, payload)
        if size is not None:
            writer._stamps[at] = ordinal(writer.published - 1) << 32 | size
        channel.ring_doorbell()


@pytest.mark.parametrize("size", [0xFFFF_FFFF, PAYLOAD_BYTES_MAX + 1])
def test_a_slot_that_lies_about_its_length_ends_the_channel(
    pair: tuple[Side, Side], size: int
) -> None:
    left, right = pair
    with right.adapter.lock:  # it looks when the lie is there
        write_slot(left, fields(PacketKind.SEND), size=size)
    assert_broken(right)
    assert left.adapter.wait(lambda: left.qp.state is QPState.ERR, PATIENCE_NS)


@pytest.mark.parametrize("word", [Word.SLOTS_FREED, Word.RING_FREED])
@pytest.mark.parametrize("value", [1 << 50, (1 << 64) - 1], ids=hex)
def test_a_count_of_what_was_freed_that_lies_ends_the_channel(
    pair: tuple[Side, Side], word: Word, value: int
) -> None:
    left, right = pair
    with left.adapter.lock:
        channel_of(left).reader._cells[word // 2] = value
        for _ in range(8):
            if right.qp.state is QPState.RTS:
                right.send(1 << 18)
        assert_broken(right)


@pytest.mark.parametrize(
    "content",
    [fields(9 + 64), fields(7), fields(0, zero=1), fields(0, target=1 << 24),
     fields(0, psn=1 << 24), fields(0, flags=64 | 3), fields(1, flags=32 | 3),
     fields(32)],
)  # fmt: skip
def test_a_slot_that_cannot_be_ends_the_channel(pair: tuple[Side, Side], content: Fields) -> None:
    left, right = pair
    write_slot(left, content)
    assert_broken(right)


def test_slots_to_absent_queue_pairs_do_no_more_than_count(pair: tuple[Side, Side]) -> None:
    """Packets for a queue pair that is not there are dropped; the channel lives on."""
    left, right = pair
    rng = random.Random(5)
    absent = next(qpn for qpn in range(16, 64) if qpn not in right.adapter.entries)
    for _ in range(300):
        kind = rng.choice((PacketKind.SEND, PacketKind.WRITE, PacketKind.DATAGRAM))
        payload = rng.randbytes(rng.randrange(200))
        write_slot(left, fields(kind, target=absent), payload)
    right.receive(10)
    left.send(10)
    assert right.poll()[0].status == left.poll()[0].status == WCStatus.SUCCESS
    assert right.adapter.packets.dropped_unknown == 300


@pytest.mark.parametrize("seed", range(20))
def test_noise_all_over_the_shared_memory_harms_no_other_peer(place: Path, seed: int) -> None:
    """Words, slots and ring are overwritten under traffic; a third opening does not notice."""
    rng = random.Random(seed)
    left, right = joined(place, liar=True)
    third, fourth = joined(place)
    outside = bytes(right.view[1 << 19 :])
    with left.adapter.lock:
        left.send(1000)
    for _ in range(50):
        with left.adapter.lock:
            if not len(left.adapter.peers):
                break
            channel = channel_of(left)
            writer = channel.writer
            if rng.random() < 0.2:
                word = rng.choice([word for word in Word if word is not Word.PLACING])
                writer._words[word] = rng.choice((rng.getrandbits(32), rng.randrange(1000) * 8))
            at = rng.randrange(8) * SLOT_BYTES // 8
            writer._stamps[at] = rng.choice(
                (rng.getrandbits(64), rng.randrange(9) << 32 | rng.randrange(100))
            )
            at = rng.randrange(8 * SLOT_BYTES)
            writer._slots[at : at + 8] = rng.randbytes(8)
            channel.ring_doorbell()
        right.adapter.progress()
        right.adapter.wait(lambda: True, 0)
    fourth.receive(100)
    third.send(100)
    assert fourth.poll()[0].status == third.poll()[0].status == WCStatus.SUCCESS
    assert right.view[1 << 19 :] == outside
    for side in (left, right, third, fourth):
        side.close()


# -- greetings


def unknown_peer_at(place: Path, victim: Side) -> tuple[Rendezvous, socket.socket]:
    there = Rendezvous(UNKNOWN_PEER, place)
    connection = there.connect(victim.adapter.gid)
    connection.setblocking(True)
    connection.settimeout(10)
    return there, connection


def rest_of(connection: socket.socket) -> bytes:
    """Return what comes before the end of a connection."""
    found = b""
    while data := connection.recv(100):
        found += data
    return found


def greeting(**changes: Any) -> bytes:
    return emit_message(replace(Hello(MAGIC, RING_BYTES, UNKNOWN_PEER), **changes))


def unsealed(file_bytes: int) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, file_bytes)
    return descriptor


@pytest.mark.parametrize(
    "case",
    ["short", "noise", "version", "ring", "own gid", "few", "many", "unsealed", "small", "pipe",
     "request", "doorbell", "nothing"],
)  # fmt: skip
def test_a_bad_greeting_is_sent_away(place: Path, victim: Side, case: str) -> None:
    there, connection = unknown_peer_at(place, victim)
    memory = sealed_file("test", FILE_BYTES)
    data, descriptors = greeting(), [memory]
    extra: list[int] = []
    if case == "short":
        data = data[:-1]
    elif case == "noise":
        data = os.urandom(40)
    elif case == "version":
        data = greeting(magic=b"URDSSHM1")
    elif case == "ring":
        data = greeting(ring_bytes=RING_BYTES // 2)
    elif case == "own gid":
        data = greeting(gid=victim.adapter.gid)
    elif case == "few":
        descriptors = []
    elif case == "many":
        descriptors = [memory, memory]
    elif case == "unsealed":
        extra = [unsealed(FILE_BYTES)]
        descriptors = extra
    elif case == "small":
        extra = [sealed_file("test", FILE_BYTES - 1)]
        descriptors = extra
    elif case == "pipe":
        extra = list(os.pipe())
        descriptors = extra[:1]
    elif case == "request":
        data, descriptors = emit_message(MapRequest(1, 2)), []
    elif case == "doorbell":
        data, descriptors = DOORBELL, []
    if case == "nothing":
        connection.shutdown(socket.SHUT_WR)
    else:
        socket.send_fds(connection, [data], descriptors)
    assert connection.recv(100) == b""
    assert victim.adapter.wait(lambda: victim.adapter.peers.pending_dropped == 1, PATIENCE_NS)
    assert len(victim.adapter.peers) == 0
    connection.close()
    there.close()
    for descriptor in (memory, *extra):
        os.close(descriptor)


def test_a_good_greeting_is_welcome_and_a_second_is_not(place: Path, victim: Side) -> None:
    there, connection = unknown_peer_at(place, victim)
    memory = sealed_file("test", FILE_BYTES)
    socket.send_fds(connection, [greeting()], [memory])
    assert connection.recv(100) == emit_message(Welcome(victim.adapter.gid))
    impostor = there.connect(victim.adapter.gid)
    impostor.setblocking(True)
    socket.send_fds(impostor, [greeting()], [memory])
    assert impostor.recv(100) == b""
    socket.send_fds(connection, [greeting()], [memory])
    assert rest_of(connection) == DOORBELL
    assert victim.adapter.channel_counters().peers_broke_protocol == 1
    os.close(memory)
    impostor.close()
    connection.close()
    there.close()


@pytest.mark.parametrize(
    "message",
    [Welcome(UNKNOWN_PEER), MapReply(1, 2, 3, 4, 5), MapReject(1, 2)],
    ids=lambda message: type(message).__name__,
)
def test_a_message_out_of_place_does_no_harm(
    place: Path, victim: Side, message: ChannelMessage
) -> None:
    """An answer on nothing is dropped, a welcome from who was greeted ends the channel."""
    there, connection = unknown_peer_at(place, victim)
    memory = sealed_file("test", FILE_BYTES)
    socket.send_fds(connection, [greeting()], [memory])
    connection.recv(100)
    gc.collect()  # what earlier tests left goes now, not in between
    before = len(list(Path("/proc/self/fd").iterdir()))
    socket.send_fds(connection, [emit_message(message)], [memory] * message.DESCRIPTORS)
    if isinstance(message, Welcome):
        assert rest_of(connection) == DOORBELL
    else:
        connection.send(emit_message(MapRequest(1, 2)))
        assert connection.recv(100) == emit_message(MapReject(1, 2))
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    os.close(memory)
    connection.close()
    there.close()


def test_guessed_keys_are_declined_and_never_mapped(place: Path, pair: tuple[Side, Side]) -> None:
    """Asked by an unknown peer that knows everything but is no queue pair's peer."""
    _, right = pair
    there, connection = unknown_peer_at(place, right)
    memory = sealed_file("test", FILE_BYTES)
    socket.send_fds(connection, [greeting()], [memory])
    connection.recv(100)
    for qpn, rkey in ((right.qp.qpn, right.region.rkey), (right.qp.qpn, 0), (0, 0), (1, 1)):
        connection.send(emit_message(MapRequest(qpn, rkey)))
        data, descriptors, _, _ = socket.recv_fds(connection, 100, 3)
        assert data == emit_message(MapReject(qpn, rkey)) and descriptors == []
    assert right.adapter.mappable_keys.mappings_made == 0
    os.close(memory)
    connection.close()
    there.close()


def test_a_flood_of_unknown_peers_leaves_the_others_alone(
    place: Path, pair: tuple[Side, Side]
) -> None:
    left, right = pair
    there = Rendezvous(UNKNOWN_PEER, place)
    waiting: list[socket.socket] = []
    for _ in range(PENDING_MAX * 3):
        try:
            waiting.append(there.connect(right.adapter.gid))
        except BlockingIOError:
            right.adapter.wait(lambda: False, 1_000_000)
    right.receive(10)
    left.send(10)
    assert right.poll()[0].status == WCStatus.SUCCESS
    with right.adapter.lock:
        right.adapter.peers._accept_connections(select.EPOLLIN)
        assert len(right.adapter.peers._pending) <= PENDING_MAX
        assert right.adapter.peers.pending_dropped >= len(waiting) - PENDING_MAX
        for timer in list(right.adapter.peers._pending.values()):
            assert timer.deadline_ns - right.adapter.now_ns() <= shm_peers.PENDING_NS
            assert timer.call is not None
            timer.call()  # as the loop does when its time has come
        assert not right.adapter.peers._pending
    for connection in waiting:
        connection.close()
    there.close()


def test_another_user_never_gets_a_channel(place: Path) -> None:
    left, right = Side(place), Side(place)

    def refuse(connection: socket.socket) -> None:
        check_user(7, os.geteuid() + 1, own_uid=os.geteuid())

    with right.adapter.lock:
        right.adapter._rendezvous._check_peer = refuse
    left.lead(left.qp, right.adapter.gid, right.qp.qpn)
    left.send(10)
    assert left.poll()[0].status != WCStatus.SUCCESS
    assert right.adapter._rendezvous.refused >= 1
    assert len(right.adapter.peers) == 0
    left.close()
    right.close()


# -- loans


def test_an_owner_that_cuts_its_memory_short_kills_no_peer(pair: tuple[Side, Side]) -> None:
    """Only sealed files are mapped, so there is nothing to cut: the descriptor says so."""
    _, right = pair
    allocation = right.region.tag
    seals = fcntl.fcntl(allocation.descriptor, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SHRINK
    with pytest.raises(PermissionError):
        os.ftruncate(allocation.descriptor, 0)


def test_a_mapping_of_memory_that_may_shrink_ends_the_channel(
    honest_pair: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = honest_pair
    descriptor = unsealed(1 << 20)

    def map_remote(channel: Channel, request: MapRequest) -> None:
        channel.send_message(MapReply(request.qpn, request.rkey, 0, 1 << 16, 1), [descriptor])

    # The owner answers the question itself, with memory that it could cut.
    monkeypatch.setattr(right.adapter, "handle_map_request", map_remote)
    left.write(1000, key=right.region.rkey)
    assert_broken(left)
    os.close(descriptor)
