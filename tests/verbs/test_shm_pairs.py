"""Pairs of the shm provider in one process: every way of a byte, order, limits, ends."""

import gc
import os
import select
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.support.waiting import ends_with
from tests.verbs.shm_world import (
    ACCESS,
    BASE,
    BUFFER_BYTES,
    PATIENCE_NS,
    QKEY,
    Side,
    joined,
)
from urds.verbs.engine.numbers import QPState, QPType, WCStatus, WROpcode
from urds.verbs.engine.work import SGE, AddressVector, RecvWR, SendWR
from urds.verbs.providers.base import ConnectionEventKind, ConnectParameters, PortSpace
from urds.verbs.providers.shm import open_adapter
from urds.verbs.providers.shm.channels import MTU_BYTES
from urds.verbs.providers.shm.rendezvous import Rendezvous
from urds.verbs.providers.shm.slots import RING_BYTES


def fill(side: Side, byte_count: int = BUFFER_BYTES) -> bytes:
    data = os.urandom(byte_count)
    side.view[:byte_count] = data
    return data


def test_the_device_has_a_name_and_opens(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.parent))
    adapter = open_adapter("shm0")
    assert (adapter.attributes.name, adapter.attributes.provider) == ("shm0", "shm")
    assert adapter.attributes.link.lossless
    adapter.close()
    adapter.close()
    assert list((place.parent / "urds-verbs").iterdir()) == []


def test_a_write_goes_through_the_ring_first_and_then_straight(pair: tuple[Side, Side]) -> None:
    left, right = pair
    for number in range(4):
        data = fill(left)
        left.write(BUFFER_BYTES, key=right.region.rkey)
        assert left.poll()[0].status == WCStatus.SUCCESS
        assert right.view == data
        # The answer to the first question comes on another way than the write's.
        left.wait_mapped()
        assert left.placed == number
    assert right.adapter.mappable_keys.mappings_made == 1


def test_the_last_of_many_writes_wins(pair: tuple[Side, Side]) -> None:
    """Through the ring and straight, in any mixture, on the same bytes and beside them."""
    left, right = pair
    rng, wanted = Random(7), bytearray(4096)
    for number in range(400):
        offset = number % 8 * 1024
        length, at = rng.choice((8, 64, 600, 1024)), rng.randrange(3000)
        left.view[offset : offset + length] = wanted[at : at + length] = (
            bytes([number % 256]) * length
        )
        left.write(length, key=right.region.rkey, offset=offset, at=at)
        if number % 8 == 7:
            left.poll(8)
            assert right.view[:4096] == wanted
    assert 0 < left.placed < 200


def test_a_small_write_under_way_holds_back_only_those_on_its_bytes(
    pair: tuple[Side, Side],
) -> None:
    left, right = pair
    left.write(1024, key=right.region.rkey)
    left.poll()
    left.wait_mapped()
    with left.adapter.lock, right.adapter.lock:  # nothing is answered meanwhile
        left.write(64, key=right.region.rkey, at=5000)
        for at, placed in ((5064, 1), (5000 - 1024, 2), (4000, 2), (5063, 2)):
            left.write(1024, key=right.region.rkey, at=at)
            assert left.placed == placed, at
    assert {wc.status for wc in left.poll(5)} == {WCStatus.SUCCESS}


def test_foreign_memory_goes_through_the_ring(place: Path) -> None:
    left, right = joined(place, buffer=None)
    foreign = memoryview(bytearray(BUFFER_BYTES))
    with right.adapter.lock:
        region = right.adapter.register(right.pd, foreign, BASE, ACCESS)
    for _ in range(3):
        data = fill(left)
        left.write(BUFFER_BYTES, key=region.rkey)
        assert left.poll()[0].status == WCStatus.SUCCESS
        assert foreign == data
    assert left.placed == 0 and right.adapter.mappable_keys.mappings_rejected == 1
    left.close()
    right.close()


def test_a_write_after_the_end_of_a_region_changes_nothing(pair: tuple[Side, Side]) -> None:
    left, right = pair
    fill(left)
    left.write(1000, key=right.region.rkey)
    left.poll()
    left.wait_mapped()
    before = bytes(right.view)
    with right.adapter.lock:
        key = right.region.rkey
        right.adapter.deregister(right.region)
    left.write(BUFFER_BYTES, key=key)
    assert left.poll()[0].status == WCStatus.REM_ACCESS_ERR
    assert right.view == before
    assert left.qp.state is QPState.ERR


@pytest.mark.parametrize("at", [-1, BUFFER_BYTES - 999, BUFFER_BYTES])
def test_a_write_out_of_range_is_refused_mapped_or_not(pair: tuple[Side, Side], at: int) -> None:
    left, right = pair
    left.write(1000, key=right.region.rkey)
    left.poll()
    left.wait_mapped()
    fill(left)
    before = bytes(right.view)
    left.write(1000, key=right.region.rkey, at=at)
    assert left.poll()[0].status == WCStatus.REM_ACCESS_ERR
    assert right.view == before


def test_the_peer_of_one_queue_pair_does_not_write_as_another(pair: tuple[Side, Side]) -> None:
    """A loan goes to the peer of a queue pair that allows writes, of the region's domain."""
    left, right = pair
    with right.adapter.lock:
        pending = right.adapter.register(object(), right.adapter.allocate(8192), BASE, ACCESS)
    left.write(1000, key=pending.rkey)
    assert left.poll()[0].status == WCStatus.REM_ACCESS_ERR
    assert right.adapter.mappable_keys.mappings_made == 0 and not any(pending.view)


def test_a_datagram_to_an_unbound_port_is_lost_and_counted(place: Path) -> None:
    side = Side(place, kind=QPType.UD)
    side.lead(side.qp, bytes(16), 0)
    wr = SendWR(1, WROpcode.SEND, side.piece(100))
    wr.set_wr_ud(AddressVector(b"n" * 16), 5, QKEY)
    side.post(wr)
    assert side.poll()[0].status == WCStatus.SUCCESS
    assert side.adapter.packets_lost == 1
    side.close()


def test_two_queue_pairs_of_one_opening_talk(place: Path) -> None:
    """More than the bound of what may be under way to ourselves."""
    side = Side(place)
    other = side.new_qp()
    side.lead(side.qp, side.adapter.gid, other.qpn)
    side.lead(other, side.adapter.gid, side.qp.qpn)
    data = fill(side, BUFFER_BYTES // 2)
    half = SGE(BASE + BUFFER_BYTES // 2, BUFFER_BYTES // 2, side.region.lkey)
    for _ in range(4):
        with side.adapter.lock:
            other.post_recv(RecvWR(1, [half]), side.adapter.now_ns())
            side.adapter.progress_qp(other)
        side.send(BUFFER_BYTES // 2)
    assert {wc.status for wc in side.poll(8)} == {WCStatus.SUCCESS}
    assert side.view[BUFFER_BYTES // 2 :] == data
    side.write(BUFFER_BYTES // 2, key=side.region.rkey, at=BUFFER_BYTES // 2)
    assert side.poll()[0].status == WCStatus.SUCCESS
    side.close()


@pytest.mark.reference
def test_what_is_under_way_to_ourselves_is_bounded(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = Side(place)
    other = side.new_qp()
    side.lead(side.qp, side.adapter.gid, other.qpn)
    side.lead(other, side.adapter.gid, side.qp.qpn)
    seen: list[int] = []
    loop = side.adapter._loop_back

    def watched() -> None:
        seen.append(side.adapter._looped_bytes)
        loop()

    monkeypatch.setattr(side.adapter, "_loop_back", watched)
    with side.adapter.lock, side.adapter.flushing, side.adapter.batch:
        for _ in range(8):
            side.write(BUFFER_BYTES, key=side.region.rkey)
    assert {wc.status for wc in side.poll(8)} == {WCStatus.SUCCESS}
    assert RING_BYTES <= max(seen) < RING_BYTES + 2 * MTU_BYTES
    side.close()


@pytest.mark.parametrize("host", ["localhost", "", "../x", "127.0.0.1/8"])
def test_what_is_no_address_is_refused(place: Path, host: str) -> None:
    side = Side(place)
    with pytest.raises(OSError, match="appear to be an IPv4"):
        side.listen(host)
    with side.adapter.lock, pytest.raises(OSError, match="appear to be an IPv4"):
        side.adapter.connect(
            side.qp, (host, 1), PortSpace.TCP, ConnectParameters(), on_event=side.note
        )
    side.close()


def test_two_that_connect_to_each_other_at_once_both_can(place: Path) -> None:
    """Each makes a channel before it has looked at the other's."""
    left, right = Side(place), Side(place)
    with left.adapter.lock, right.adapter.lock:
        left.lead(left.qp, right.adapter.gid, right.qp.qpn)
        right.lead(right.qp, left.adapter.gid, left.qp.qpn)
        for side in (left, right):
            side.receive(8)
            side.receive(8)
            side.send(4)
            side.send(4)
    for side in (left, right):
        assert {wc.status for wc in side.poll(4)} == {WCStatus.SUCCESS}
        assert len(side.adapter.peers) == 2
    left.close()
    assert right.adapter.wait(lambda: right.qp.state is QPState.ERR, PATIENCE_NS)
    assert len(right.adapter.peers) == 0
    right.close()


@pytest.mark.parametrize("has_met", [True, False])
def test_what_was_said_before_the_end_arrives(place: Path, has_met: bool) -> None:
    """More than one turn takes in, and even if it all comes with the greeting."""
    left, right = joined(place, wr_max=256)
    if has_met:
        right.receive(8)
        left.send(8)
        right.poll()
    for number in range(130):
        right.receive(8, wr_id=number)
    with right.adapter.lock:  # it cannot look before all is over
        for _ in range(120):
            left.send(8)
        left.close()
        for channel in right.adapter.peers:
            right.adapter.peers._receive_messages(channel, select.EPOLLIN)
    completions = right.poll(130)
    assert [wc.wr_id for wc in completions] == list(range(130))
    assert [wc.status for wc in completions] == [WCStatus.SUCCESS] * 120 + [
        WCStatus.WR_FLUSH_ERR
    ] * 10
    right.close()


def test_an_opening_with_unread_packets_closes(place: Path) -> None:
    """Between the goodbye and the end of its thread the lock is to be had."""
    left, right = joined(place)
    right.receive(8)
    left.send(8)
    right.poll()
    with right.adapter.lock:
        for _ in range(40):
            left.send(8)
        right.adapter.is_closed = True  # as the goodbye leaves it
    time.sleep(0.3)  # its thread meets packets that it may not read
    assert right.adapter.lock.acquire(timeout=10)
    right.adapter.is_closed = False
    right.adapter.lock.release()
    right.close()
    left.close()


def test_the_first_packet_waits_for_who_has_many_to_greet(place: Path) -> None:
    left, right = Side(place), Side(place)
    left.lead(left.qp, right.adapter.gid, right.qp.qpn)
    right.lead(right.qp, left.adapter.gid, left.qp.qpn)
    pending = Rendezvous(b"s" * 16, place)
    waiting: list[socket.socket] = []
    right.receive(8)
    with right.adapter.lock:
        with suppress(BlockingIOError):
            for _ in range(1000):
                waiting.append(pending.connect(right.adapter.gid))
        left.send(8)
        left.send(8)
        assert len(left.adapter.peers) == 0
    for connection in waiting:
        connection.close()
    right.receive(8)
    assert [wc.status for wc in right.poll(2)] == [WCStatus.SUCCESS] * 2
    pending.close()
    left.close()
    right.close()


def test_nothing_is_left_behind(place: Path) -> None:
    """Descriptors, threads, files: as before, after pairs that wrote straight."""

    def once() -> None:
        left, right = joined(place)
        for _ in range(2):
            left.write(1000, key=right.region.rkey)
            left.poll()
            left.wait_mapped()
        left.close()
        right.close()

    def held() -> tuple[int, int]:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    once()
    descriptors, threads = held()
    for _ in range(5):
        once()
    # An alarm of an earlier test may have the progress thread begin again: less than five pairs.
    assert ends_with(held, (descriptors + 2, threads + 1))
    assert list(place.iterdir()) == []


def test_many_openings_of_one_process_talk_pairwise(place: Path) -> None:
    hub = open_adapter(directory=place)
    hub.close()
    sides = [Side(place) for _ in range(6)]
    for left, right in zip(sides, sides[1:] + sides[:1], strict=True):
        ahead, behind = left.new_qp(), right.new_qp()
        left.lead(ahead, right.adapter.gid, behind.qpn)
        right.lead(behind, left.adapter.gid, ahead.qpn)
        left.post(
            SendWR(
                1, WROpcode.RDMA_WRITE, left.piece(50), rkey=right.region.rkey, remote_addr=BASE
            ),
            ahead,
        )
    for side in sides:
        assert side.poll()[0].status == WCStatus.SUCCESS
    for side in sides:
        side.close()


def test_the_end_of_a_listener_that_dies_is_told_behind_the_connect(place: Path) -> None:
    """Its socket is closed and its name still locked: for a moment, as a process ends.

    The caller of `connect` does not know the connection before, and passes over events of it.
    """
    side, dying = Side(place), Rendezvous(b"d" * 16, place)
    name = dying.claim(PortSpace.TCP, "127.0.0.1", 7000)
    dying.socket.close()
    with side.adapter.lock:
        side.adapter.connect(
            side.qp, ("127.0.0.1", 7000), PortSpace.TCP, ConnectParameters(), on_event=side.note
        )
        assert side.events == []
    assert side.wait_over() is ConnectionEventKind.ERROR
    name.close()
    dying.close()
    side.close()


assert RING_BYTES < 8 * BUFFER_BYTES, "the tests of full rings fill them"


def test_a_detach_gives_bytes_back_that_the_ring_did_not_take(pair: tuple[Side, Side]) -> None:
    left, right = pair
    data = bytearray(os.urandom(BUFFER_BYTES))
    wanted = bytes(data)
    right.receive(BUFFER_BYTES)
    with left.adapter.lock:
        left.qp.post_send(SendWR(1, data=memoryview(data)), left.adapter.now_ns())
        left.adapter.progress_qp(left.qp)
        assert left.qp.detach_data() == BUFFER_BYTES
        data[:] = bytes(BUFFER_BYTES)
    assert left.poll()[0].status == right.poll()[0].status == WCStatus.SUCCESS
    assert right.view == wanted
