"""Pairs of the shm provider across processes, and peers that are killed or stopped."""

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.verbs.shm_world import BUFFER_BYTES, PATIENCE_NS, Peer, Side
from urds.verbs.engine.numbers import QPState, WCOpcode, WCStatus, WROpcode
from urds.verbs.engine.work import SendWR
from urds.verbs.providers.base import ConnectionEventKind
from urds.verbs.providers.shm.adapter import PLACED_BYTES_MIN
from urds.verbs.providers.shm.channels import Channel
from urds.verbs.providers.shm.slots import RING_BYTES

MakePeer = Callable[[str], Peer]


@pytest.fixture
def make_peer(place: Path) -> Iterator[MakePeer]:
    peers: list[Peer] = []

    def make(role: str) -> Peer:
        peers.append(Peer(place, role))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


@pytest.fixture
def side(place: Path, make_peer: MakePeer) -> Iterator[Side]:
    """Open the end under test; it closes before the peers, for these stay while it does."""
    side = Side(place)
    yield side
    side.close()


def connect(side: Side, peer: Peer) -> None:
    assert side.connect("127.0.0.1", peer.port) is ConnectionEventKind.ESTABLISHED


def request(side: Side) -> None:
    """Write until the peer's memory is mapped here."""
    for _ in range(100):
        side.write(PLACED_BYTES_MIN, key=side.peer_key)
        assert side.poll()[0].status == WCStatus.SUCCESS
        if side.placed:
            return
        time.sleep(0.01)
    raise AssertionError("nothing was lent")


def test_writes_go_straight_into_the_other_process(side: Side, make_peer: MakePeer) -> None:
    """Written by one memcpy here, read back through the peer's own responder."""
    connect(side, make_peer("silent"))
    request(side)
    data = os.urandom(BUFFER_BYTES)
    side.view[:] = data
    before = side.placed
    side.write(BUFFER_BYTES, key=side.peer_key)
    assert side.poll()[0].status == WCStatus.SUCCESS
    assert side.placed == before + 1
    side.view[:] = bytes(BUFFER_BYTES)
    side.post(
        SendWR(
            1,
            WROpcode.RDMA_READ,
            side.piece(BUFFER_BYTES),
            rkey=side.peer_key,
            remote_addr=0x10_0000,
        )
    )
    assert side.poll()[0].status == WCStatus.SUCCESS
    assert side.view == data


def test_a_peer_that_is_killed_while_idle_breaks_everything(
    side: Side, make_peer: MakePeer
) -> None:
    peer = make_peer("silent")
    connect(side, peer)
    request(side)
    side.receive(10, wr_id=1)
    side.receive(10, wr_id=2)
    peer.kill()
    assert side.wait_over() is ConnectionEventKind.BROKEN
    assert side.qp.state is QPState.ERR
    flushed = side.poll(2)
    assert [(wc.wr_id, wc.status) for wc in flushed] == [
        (1, WCStatus.WR_FLUSH_ERR),
        (2, WCStatus.WR_FLUSH_ERR),
    ]
    gc.collect()
    assert len(side.adapter.peers) == 0
    assert "urds-verbs-channel" not in Path("/proc/self/maps").read_text()
    assert side.adapter.channel_counters().peers_gone == 1


def test_the_killed_peers_address_is_free_for_the_next(side: Side, make_peer: MakePeer) -> None:
    first = make_peer("silent")
    first.kill()
    assert side.connect("127.0.0.1", first.port) is ConnectionEventKind.REFUSED
    side.listen(port=first.port)


def test_a_child_of_a_fork_keeps_nothing_of_its_parent(side: Side, make_peer: MakePeer) -> None:
    """The parent is killed while the child lives: its connection breaks, its name is free."""
    peer = make_peer("forked")
    connect(side, peer)
    side.receive(10)
    side.poll()
    peer.kill()
    assert side.wait_over() is ConnectionEventKind.BROKEN
    side.listen(port=peer.port)


def test_in_the_child_of_a_fork_the_device_is_closed(side: Side, make_peer: MakePeer) -> None:
    connect(side, make_peer("echo"))
    child = os.fork()
    if not child:
        try:
            assert side.adapter.wait(lambda: False, None) is False
            with pytest.raises(OSError, match="is closed"):
                side.listen()
            side.adapter.progress()
            side.send(10)
            side.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    side.receive(100)
    side.send(100)
    assert {wc.status for wc in side.poll(2)} == {WCStatus.SUCCESS}


def test_a_ring_that_is_full_holds_packets_back_and_loses_none(
    side: Side, make_peer: MakePeer
) -> None:
    """The peer is stopped until the ring is full and a lot more is posted."""
    peer = make_peer("echo")
    connect(side, peer)
    peer.stop()
    size = 1 << 15
    count = 64
    assert count * size > RING_BYTES
    for slot in range(32):
        side.receive(size, offset=0, wr_id=1000 + slot)
    for number in range(count):
        side.view[size : size + 4] = number.to_bytes(4, "big")
        side.post(SendWR(number, WROpcode.SEND, side.piece(size, size)))
        side.adapter.progress()
    assert side.adapter.channel_counters().waits_for_room > 0
    assert side.qp.outstanding_requests == count
    (channel,) = side.adapter.peers
    if isinstance(channel, Channel):
        assert channel.writer._position - channel.writer._ring_freed <= RING_BYTES
    os.kill(peer.process.pid, signal.SIGCONT)
    echoed = done = 0
    while echoed < count or done < count:
        for wc in side.poll(1):
            assert wc.status == WCStatus.SUCCESS
            if wc.opcode is WCOpcode.RECV:
                echoed += 1
                if echoed <= count - 32:
                    side.receive(size, offset=0, wr_id=1000)
            else:
                assert wc.wr_id == done
                done += 1


def wait_copying(side: Side) -> None:
    (channel,) = side.adapter.peers
    assert side.adapter.wait(lambda: channel.is_placing, PATIENCE_NS)


def test_a_peer_that_dies_while_it_copies_holds_no_peer_up(
    side: Side, place: Path, make_peer: MakePeer
) -> None:
    """The end of its socket ends the wait, whatever its last word was."""
    peer = make_peer("copying")
    connect(side, peer)
    wait_copying(side)
    with side.adapter.lock:  # no thread looks at the end of its socket
        peer.kill()
        side.region.tag.is_mapped = True
        side.adapter.mappable_keys._now_ns = lambda: 0  # the wait has no other end
        side.adapter.deregister(side.region)
    side.wait_over()
    assert side.adapter.mappable_keys.revocations_overdue == 0


def test_a_peer_that_copies_for_ever_is_given_up(side: Side, make_peer: MakePeer) -> None:
    connect(side, make_peer("copying"))
    wait_copying(side)
    with side.adapter.lock:
        side.region.tag.is_mapped = True
        side.adapter.deregister(side.region)
    assert side.wait_over() is ConnectionEventKind.BROKEN
    assert side.adapter.mappable_keys.revocations_overdue == 1
    assert side.adapter.channel_counters().peers_broke_protocol == 1
