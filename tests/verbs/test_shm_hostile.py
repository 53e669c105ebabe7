"""Peers of the shm provider that keep no rule: rings, greetings, descriptors, loans, floods."""

import fcntl
import gc
import os
import random
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.verbs.shm_world import PATIENCE_NS, Side, joined
from urds.common.passed_files import sealed_file
from urds.verbs.engine.numbers import QPState, WCStatus
from urds.verbs.providers.shm import peers as shm_peers
from urds.verbs.providers.shm.messages import (
    MAGIC,
    ChannelMessage,
    Hello,
    MapReject,
    MapReply,
    MapRequest,
    Welcome,
    emit_message,
)
from urds.verbs.providers.shm.peers import (
    FRAME_PACKET,
    PACKET_BYTES_MAX,
    PENDING_MAX,
    RING_BYTES,
    Channel,
)
from urds.verbs.providers.shm.rendezvous import Rendezvous, check_user
from urds.verbs.providers.shm.ring import Cell

FILE_BYTES = 4096 + 2 * RING_BYTES
UNKNOWN_PEER = b"s" * 16


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "meet"


@pytest.fixture
def pair(place: Path) -> Iterator[tuple[Side, Side]]:
    left, right = joined(place)
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
    assert side.adapter.peers.counters.peers_broke_protocol == 1


# -- rings


@pytest.mark.parametrize("value", [1 << 63, 4, RING_BYTES * 3, 0], ids=hex)
def test_a_written_counter_that_lies_ends_the_channel(pair: tuple[Side, Side], value: int) -> None:
    left, right = pair
    channel_of(left).writer._cells[Cell.WRITTEN] = value
    channel_of(left).ring_doorbell()
    assert_broken(right)
    assert left.adapter.wait(lambda: left.qp.state is QPState.ERR, PATIENCE_NS)


def test_a_read_counter_that_lies_ends_the_channel(pair: tuple[Side, Side]) -> None:
    left, right = pair
    with right.adapter.lock:
        channel_of(right).reader._cells[Cell.READ] = 1 << 50
        for _ in range(8):
            if left.qp.state is QPState.RTS:
                left.send(1 << 18)
        assert_broken(left)


@pytest.mark.parametrize("length", [0xFFFF_FFFF, PACKET_BYTES_MAX + 1, 5000])
def test_a_frame_that_lies_about_its_length_ends_the_channel(
    pair: tuple[Side, Side], length: int
) -> None:
    left, right = pair
    with left.adapter.lock:
        channel = channel_of(left)
        start = channel.writer.written % RING_BYTES
        struct.pack_into("=IHH", channel.writer._data, start, length, FRAME_PACKET, 0)
        channel.writer._cells[Cell.WRITTEN] = channel.writer.written + 64
        channel.ring_doorbell()
    assert_broken(right)


def test_an_unknown_kind_of_frame_ends_the_channel(pair: tuple[Side, Side]) -> None:
    left, right = pair
    with left.adapter.lock:
        channel_of(left).write(9, b"what")
    assert_broken(right)


def test_frames_of_noise_do_no_more_than_count(pair: tuple[Side, Side]) -> None:
    """Packets that are none are dropped; the channel and its connections live on."""
    left, right = pair
    rng = random.Random(5)
    with left.adapter.lock:
        for _ in range(300):
            channel_of(left).write(FRAME_PACKET, rng.randbytes(rng.randrange(60)))
    right.receive(10)
    left.send(10)
    assert right.poll()[0].status == left.poll()[0].status == WCStatus.SUCCESS
    packets = right.adapter.packets
    assert packets.dropped_malformed + packets.dropped_unknown == 300


@pytest.mark.parametrize("seed", range(20))
def test_noise_all_over_the_shared_memory_harms_no_other_peer(place: Path, seed: int) -> None:
    """Cells and rings are overwritten under traffic; a third opening does not notice."""
    rng = random.Random(seed)
    left, right = joined(place)
    third, fourth = joined(place)
    outside = bytes(right.view[1 << 19 :])
    with left.adapter.lock:
        left.send(1000)
    for _ in range(50):
        with left.adapter.lock:
            if not len(left.adapter.peers):
                break
            channel = channel_of(left)
            cell = rng.choice([cell for cell in Cell if cell is not Cell.PLACING])
            if rng.random() < 0.2:
                channel.writer._cells[cell] = rng.choice(
                    (rng.getrandbits(64), rng.randrange(1000) * 8)
                )
            at = rng.randrange(4096)
            channel.writer._data[at : at + 8] = rng.randbytes(8)
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


def greeting(**changes: Any) -> bytes:
    return emit_message(replace(Hello(MAGIC, RING_BYTES, UNKNOWN_PEER), **changes))


def doorbells() -> list[int]:
    return [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2)]


def unsealed(file_bytes: int) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, file_bytes)
    return descriptor


def blocking_doorbells() -> list[int]:
    return [os.eventfd(0), os.eventfd(0)]


@pytest.mark.parametrize(
    "case",
    ["short", "noise", "version", "ring", "own gid", "few", "many", "unsealed", "small", "pipe",
     "blocking", "request", "nothing"],
)  # fmt: skip
def test_a_bad_greeting_is_sent_away(place: Path, victim: Side, case: str) -> None:
    there, connection = unknown_peer_at(place, victim)
    memory, good = sealed_file("test", FILE_BYTES), doorbells()
    data, descriptors = greeting(), [memory, *good]
    extra: list[int] = []
    if case == "short":
        data = data[:-1]
    elif case == "noise":
        data = os.urandom(40)
    elif case == "version":
        data = greeting(magic=b"URDSSHM2")
    elif case == "ring":
        data = greeting(ring_bytes=RING_BYTES // 2)
    elif case == "own gid":
        data = greeting(gid=victim.adapter.gid)
    elif case == "few":
        descriptors = descriptors[:2]
    elif case == "many":
        descriptors = [memory, *good, memory, memory]
    elif case == "unsealed":
        extra = [unsealed(FILE_BYTES)]
        descriptors = [extra[0], *good]
    elif case == "small":
        extra = [sealed_file("test", FILE_BYTES - 1)]
        descriptors = [extra[0], *good]
    elif case == "pipe":
        extra = list(os.pipe())
        descriptors = [memory, *extra]
    elif case == "blocking":
        extra = blocking_doorbells()
        descriptors = [memory, *extra]
    elif case == "request":
        data, descriptors = emit_message(MapRequest(1, 2)), []
    if case == "nothing":
        connection.shutdown(socket.SHUT_WR)
    else:
        socket.send_fds(connection, [data], descriptors)
    assert connection.recv(100) == b""
    assert victim.adapter.wait(lambda: victim.adapter.peers.pending_dropped == 1, PATIENCE_NS)
    assert len(victim.adapter.peers) == 0
    connection.close()
    there.close()
    for descriptor in (memory, *good, *extra):
        os.close(descriptor)


def test_a_good_greeting_is_welcome_and_a_second_is_not(place: Path, victim: Side) -> None:
    there, connection = unknown_peer_at(place, victim)
    memory, good = sealed_file("test", FILE_BYTES), doorbells()
    socket.send_fds(connection, [greeting()], [memory, *good])
    assert connection.recv(100) == emit_message(Welcome(victim.adapter.gid))
    impostor = there.connect(victim.adapter.gid)
    impostor.setblocking(True)
    socket.send_fds(impostor, [greeting()], [memory, *good])
    assert impostor.recv(100) == b""
    socket.send_fds(connection, [greeting()], [memory, *good])
    assert connection.recv(100) == b""
    assert victim.adapter.peers.counters.peers_broke_protocol == 1
    for descriptor in (memory, *good):
        os.close(descriptor)
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
    memory, good = sealed_file("test", FILE_BYTES), doorbells()
    socket.send_fds(connection, [greeting()], [memory, *good])
    connection.recv(100)
    gc.collect()  # what earlier tests left goes now, not in between
    before = len(list(Path("/proc/self/fd").iterdir()))
    socket.send_fds(connection, [emit_message(message)], [memory] * message.DESCRIPTORS)
    if isinstance(message, Welcome):
        assert connection.recv(100) == b""
    else:
        connection.send(emit_message(MapRequest(1, 2)))
        assert connection.recv(100) == emit_message(MapReject(1, 2))
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    for descriptor in (memory, *good):
        os.close(descriptor)
    connection.close()
    there.close()


def test_guessed_keys_are_declined_and_never_mapped(place: Path, pair: tuple[Side, Side]) -> None:
    """Asked by an unknown peer that knows everything but is no queue pair's peer."""
    _, right = pair
    there, connection = unknown_peer_at(place, right)
    memory, good = sealed_file("test", FILE_BYTES), doorbells()
    socket.send_fds(connection, [greeting()], [memory, *good])
    connection.recv(100)
    for qpn, rkey in ((right.qp.qpn, right.region.rkey), (right.qp.qpn, 0), (0, 0), (1, 1)):
        connection.send(emit_message(MapRequest(qpn, rkey)))
        data, descriptors, _, _ = socket.recv_fds(connection, 100, 3)
        assert data == emit_message(MapReject(qpn, rkey)) and descriptors == []
    assert right.adapter.mappable_keys.mappings_made == 0
    for descriptor in (memory, *good):
        os.close(descriptor)
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
    pair: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = pair
    descriptor = unsealed(1 << 20)

    def map_remote(channel: Channel, request: MapRequest) -> None:
        channel.send_message(MapReply(request.qpn, request.rkey, 0, 1 << 16, 1), [descriptor])

    # The owner answers the question itself, with memory that it could cut.
    monkeypatch.setattr(right.adapter, "handle_map_request", map_remote)
    left.write(1000, key=right.region.rkey)
    assert_broken(left)
    os.close(descriptor)
