"""The compiled engine of a `shm` device: queue pairs of two engines over a channel in memory."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from urds.common.passed_files import sealed_file
from urds.verbs.engine.attributes import LinkTraits, QPAttr, QPCap
from urds.verbs.engine.numbers import (
    AccessFlag,
    QPAttrMask,
    QPState,
    QPType,
    SendFlag,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.work import SGE, AddressVector, RecvWR, SendWR

native = pytest.importorskip("urds_native")
if not hasattr(native, "ShmEngine"):
    pytest.skip("a compiled module without the engine", allow_module_level=True)

CHANNEL_BYTES: Final = 2_625_536
LINK: Final = LinkTraits(32_768, lossless=True)
M = QPAttrMask
STEPS: Final = (
    (QPState.INIT, M.PKEY_INDEX | M.PORT | M.ACCESS_FLAGS),
    (
        QPState.RTR,
        M.AV | M.PATH_MTU | M.DEST_QPN | M.RQ_PSN | M.MAX_DEST_RD_ATOMIC | M.MIN_RNR_TIMER,
    ),
    (QPState.RTS, M.SQ_PSN | M.MAX_QP_RD_ATOMIC | M.RETRY_CNT | M.RNR_RETRY | M.TIMEOUT),
)
ADDRESS: Final = 0x10000


class Side:
    """One engine with a queue pair, and memory under a key."""

    def __init__(self, number: int, *, memory_bytes: int = 8192) -> None:
        self.gid = bytes([0xFD, number]) + bytes(14)
        self.qpn = 16 + number
        self.passes = 0
        self.engine: Any = native.ShmEngine(LINK, gid=self.gid, on_pass=self._note)
        pd = object()
        self.cq = self.engine.completion_queue(64)
        self.memory = bytearray(memory_bytes)
        access = AccessFlag(15)
        self.region = self.engine.register(pd, memoryview(self.memory), ADDRESS, access)
        self.qp = self.engine.queue_pair(
            qpn=self.qpn,
            kind=QPType.RC,
            pd=pd,
            send_cq=self.cq,
            recv_cq=self.cq,
            cap=QPCap(64, 64, 2, 2, 128),
        )

    def _note(self) -> None:
        self.passes += 1

    def connect(self, peer: Any) -> None:
        """Bring the queue pair to RTS."""
        for state, mask in STEPS:
            attr = QPAttr(
                qp_state=state,
                qp_access_flags=AccessFlag(15),
                ah_attr=AddressVector(peer.gid),
                dest_qp_num=peer.qpn,
                max_rd_atomic=4,
                max_dest_rd_atomic=4,
                rnr_retry=7,
                min_rnr_timer=1,
            )
            self.qp.modify(attr, mask | M.STATE, 0)

    def piece(self, start: int, length: int) -> SGE:
        """Return a piece of the memory."""
        return SGE(ADDRESS + start, length, self.region.lkey)


@contextmanager
def joined() -> Iterator[tuple[Side, Side]]:
    """Return two sides over a channel, connected."""
    first, second = Side(0), Side(1)
    file = sealed_file("urds-test-channel", CHANNEL_BYTES)
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for side, peer, end in ((first, second, ends[0]), (second, first, ends[1])):
        side.engine.attach(peer.gid, file, end.fileno(), side is first)
        side.connect(peer)
    os.close(file)
    yield first, second
    for end in ends:
        end.close()


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    with joined() as both:
        yield both


def poll(*sides: Side) -> list[Any]:
    """Let the sides look in turn until the first one has a completion."""
    for _ in range(1000):
        if found := sides[0].cq.poll(1):
            return list(found)
        for side in sides[1:]:
            side.engine.progress()
    raise AssertionError("no completion")


def test_completions_that_are_the_same_are_one_record_and_others_are_not(
    sides: tuple[Side, Side],
) -> None:
    """Records that were returned lately are found by the last bits of `wr_id`."""
    left, right = sides
    found = []
    for wr_id, length in ((3, 8), (3, 8), (3, 9), (3 + (1 << 20), 9), (3, 8)):
        right.qp.post_recv(RecvWR(wr_id, [right.piece(0, 64)]))
        left.qp.post_send(SendWR(1, sg=[left.piece(0, length)], send_flags=SendFlag(0)))
        (wc,) = poll(right, left)
        assert (wc.wr_id, wc.byte_len, wc.qp_num) == (wr_id, length, right.qpn)
        found.append(wc)
    assert found[0] is found[1]
    assert found[4] == found[0]


def test_a_message_is_sent_by_post_send_and_taken_by_poll(sides: tuple[Side, Side]) -> None:
    first, second = sides
    first.memory[:5] = b"hello"
    second.qp.post_recv(RecvWR(7, [second.piece(100, 64)]))
    first.qp.post_send(SendWR(3, WROpcode.SEND, [first.piece(0, 5)]))
    (received,) = poll(second, first)
    assert (received.wr_id, received.byte_len, received.status) == (7, 5, WCStatus.SUCCESS)
    assert second.memory[100:105] == b"hello"
    (sent,) = poll(first, second)
    assert (sent.wr_id, sent.status) == (3, WCStatus.SUCCESS)


def test_a_read_needs_only_looks_of_the_peer(sides: tuple[Side, Side]) -> None:
    first, second = sides
    second.memory[:4096] = bytes(range(256)) * 16
    read = SendWR(1, WROpcode.RDMA_READ, [first.piece(4096, 4096)])
    read.remote_addr, read.rkey = ADDRESS, second.region.rkey
    first.qp.post_send(read)
    (done,) = poll(first, second)
    assert (done.wr_id, done.status) == (1, WCStatus.SUCCESS)
    assert first.memory[4096:] == second.memory[:4096]


def test_messages_of_the_connection_manager_are_told_with_the_pass(
    sides: tuple[Side, Side],
) -> None:
    first, second = sides
    assert first.engine.send_message(second.gid, 5, b"request")
    assert second.cq.poll(1) == []
    assert second.passes == 1
    assert second.engine.take_channel_events() == [("message", first.gid, 5, b"request")]
    assert second.engine.take_channel_events() == []


def test_a_peer_without_a_channel_is_asked_for(sides: tuple[Side, Side]) -> None:
    first, second = sides
    first.engine.detach(second.gid)
    first.qp.post_send(SendWR(3, WROpcode.SEND, [first.piece(0, 5)]))
    assert first.engine.take_channel_events() == [("connect", second.gid)]


def test_memory_of_another_size_is_no_channel(sides: tuple[Side, Side]) -> None:
    first, second = sides
    file = sealed_file("urds-test-channel", 4096)
    end, other = socket.socketpair()
    with end, other, pytest.raises(OSError, match="Invalid argument"):
        first.engine.attach(second.gid, file, end.fileno(), True)
    os.close(file)


def test_a_side_that_sleeps_is_rung_by_one_packet(sides: tuple[Side, Side]) -> None:
    first, second = sides
    heard, rings = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    file = sealed_file("urds-test-channel", CHANNEL_BYTES)
    with heard, rings:
        for side, peer, end in ((first, second, rings), (second, first, heard)):
            side.engine.detach(peer.gid)
            side.engine.attach(peer.gid, file, end.fileno(), side is first)
        assert second.engine.arm_doorbell()
        second.qp.post_recv(RecvWR(7, [second.piece(100, 64)]))
        first.qp.post_send(SendWR(3, WROpcode.SEND, [first.piece(0, 5)]))
        first.qp.post_send(SendWR(4, WROpcode.SEND, [first.piece(0, 5)]))
        heard.setblocking(False)
        assert heard.recv(64) == b"\0"
        with pytest.raises(BlockingIOError):
            heard.recv(64)
        assert not second.engine.arm_doorbell()
    os.close(file)
