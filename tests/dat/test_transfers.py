"""Transfers: completion flags, segments, limits, failures. Source: docs/reference/dat.md 10, 11."""

import dataclasses
from typing import Any

import pytest

from tests.dat.scene import (
    MESSAGE_BYTES,
    PACKET_BYTES,
    SECOND_NS,
    WAIT_S,
    End,
    Scene,
    connect,
    drain,
)
from urds import dat
from urds.verbs.engine.packets import PacketKind

DTO = dat.DtoStatus
Flag = dat.CompletionFlag
BROKEN = [dat.EventNumber.CONNECTION_BROKEN]


def statuses(events: list[dat.DtoCompletionEvent]) -> list[tuple[object, DTO]]:
    """Return cookies and statuses."""
    return [(event.user_cookie, event.status) for event in events]


# -- flags


def test_a_suppressed_request_says_nothing_if_it_succeeds_and_frees_its_slot() -> None:
    with Scene(buffers=200, a_attr={"max_request_dtos": 4}) as scene:
        for number in range(20):
            scene.a.send(1, number, Flag.SUPPRESS)
            scene.settle(lambda: scene.a.ep.request_idle)
        assert drain(scene.a.request) == []
        assert len(scene.b.taken()) == 20


def test_a_suppressed_request_that_fails_says_so() -> None:
    with Scene() as scene:
        scene.a.send(1, "flushed", Flag.SUPPRESS)
        scene.a.ep.disconnect()
        assert statuses(drain(scene.a.request)) == [("flushed", DTO.ERR_FLUSHED)]


def test_an_unsignalled_completion_is_queued_and_wakes_no_thread() -> None:
    attr = {"request_completion_flags": Flag.UNSIGNALLED}
    with Scene(buffers=9, a_attr=attr) as scene:
        scene.a.send(1, "quiet", Flag.UNSIGNALLED)
        with pytest.raises(dat.DatTimeoutExpired):
            scene.a.request.wait(1.0)
        assert scene.a.request.nmore == 1
        assert scene.a.request.wait(0).user_cookie == "quiet"  # no thread has to be woken
        scene.a.send(1, "loud")
        assert scene.a.request.wait(WAIT_S).user_cookie == "loud"


def test_flags_that_a_post_does_not_take_are_refused() -> None:
    with Scene(buffers=1) as scene:
        a, remote = scene.a, scene.b.remote()
        wrong = (dat.DAT_INVALID_PARAMETER, dat.Subtype.INVALID_ARG5)
        for flags in (Flag.SUPPRESS, Flag.SOLICITED_WAIT, Flag.BARRIER_FENCE, Flag.UNSIGNALLED):
            ret = dat.dat_ep_post_recv(a.ep, 1, a.piece(), 0, flags)
            assert (ret.type, ret.subtype) == wrong
        for flags in (Flag.EVD_THRESHOLD, Flag.UNSIGNALLED, 0x40):
            ret = dat.dat_ep_post_send(a.ep, 1, a.piece(), 0, flags)
            assert (ret.type, ret.subtype) == wrong
        for post in (dat.dat_ep_post_rdma_write, dat.dat_ep_post_rdma_read):
            ret = post(a.ep, 1, a.piece(), 0, remote, Flag.SOLICITED_WAIT)
            assert (ret.type, ret.subtype) == (wrong[0], dat.Subtype.INVALID_ARG6)
        assert a.ep.get_status().request_idle


def test_only_solicited_messages_wake_who_waits_for_such() -> None:
    with Scene(connected=False, recv_completion_flags=Flag.SOLICITED_WAIT) as scene:
        scene.b.post(4)
        connect(scene.network, scene.a, scene.b)
        scene.a.send(1)
        with pytest.raises(dat.DatTimeoutExpired):
            scene.b.recv.wait(1.0)
        assert scene.b.recv.nmore == 1
        drain(scene.b.recv)
        scene.a.send(1, flags=Flag.SOLICITED_WAIT)
        assert scene.b.recv.wait(WAIT_S).user_cookie == 1
        scene.a.ep.disconnect()
        assert scene.b.recv.wait(WAIT_S).status is DTO.ERR_FLUSHED  # a failure is solicited


def test_a_fence_waits_for_earlier_reads() -> None:
    with Scene(buffers=9) as scene:
        reads = scene.network.hold(lambda packet, *_: packet.kind is PacketKind.READ_RESPONSE)
        scene.a.ep.post_rdma_read(scene.a.piece(3), scene.b.remote(), "read")
        scene.a.send(1, "free")
        scene.a.send(1, "fenced", Flag.BARRIER_FENCE)
        scene.network.run(for_ns=500_000)
        assert len(scene.b.recv) == 1
        reads.close()
        for cookie in ("read", "free", "fenced"):
            event = scene.a.request.wait(WAIT_S)
            assert (event.user_cookie, event.status) == (cookie, DTO.SUCCESS)
        assert len(scene.b.recv) == 2


# -- segments and limits


def test_segments_are_filled_in_order() -> None:
    with Scene() as scene:
        a, b = scene.a, scene.b
        b.data[:] = b"." * len(b.data)
        b.ep.post_recv([b.memory.triplet(start, 4) for start in (100, 0, 200, 300)], "four")
        a.data[:10] = b"0123456789"
        a.ep.post_send(
            [a.memory.triplet(5, 5), dat.LmrTriplet(0xBAD, 1, 0), a.memory.triplet(0, 5)]
        )
        event = b.recv.wait(WAIT_S)
        assert (event.status, event.transfered_length) == (DTO.SUCCESS, 10)
        pieces = [bytes(b.data[start : start + 5]) for start in (100, 0, 200, 300)]
        assert pieces == [b"5678.", b"9012.", b"34...", b"....."]


def test_too_many_outstanding_are_refused_and_nothing_is_posted() -> None:
    with Scene(max_recv_dtos=3, a_attr={"max_request_dtos": 2}) as scene:
        scene.gate(2)
        ret = dat.dat_ep_post_send(scene.a.ep, 1, scene.a.piece(), 0, 0)
        assert ret.type == dat.DAT_INSUFFICIENT_RESOURCES
        scene.b.post(3)
        ret = dat.dat_ep_post_recv(scene.b.ep, 1, scene.b.piece(), 0, 0)
        assert (ret.type, scene.b.info) == (dat.DAT_INSUFFICIENT_RESOURCES, (3, 3))
        scene.open_gate()
        scene.settle(lambda: scene.a.ep.request_idle)
        scene.a.send()
        assert len(scene.b.taken()) == 2


def test_lengths_are_checked_when_they_are_posted() -> None:
    attr = {"max_message_size": 100, "max_rdma_size": 200, "max_request_iov": 2}
    with Scene(buffers=4, a_attr=attr) as scene:
        a, remote = scene.a, scene.b.remote(150)
        ret = dat.dat_ep_post_send(a.ep, 1, a.piece(byte_count=101), 0, 0)
        assert ret.type == dat.DAT_INVALID_PARAMETER
        ret = dat.dat_ep_post_send(a.ep, 3, a.piece(byte_count=1) * 3, 0, 0)
        assert ret.type == dat.DAT_INVALID_PARAMETER
        for post in (dat.dat_ep_post_rdma_write, dat.dat_ep_post_rdma_read):
            assert post(a.ep, 1, a.piece(byte_count=151), 0, remote, 0).type == dat.DAT_LENGTH_ERROR
            large = scene.b.remote(300)
            assert post(a.ep, 1, a.piece(byte_count=201), 0, large, 0).type == dat.DAT_LENGTH_ERROR
            assert post(a.ep, 1, a.piece(byte_count=150), 0, remote, 0) == dat.DAT_SUCCESS
            assert a.request.wait(WAIT_S).status is DTO.SUCCESS


def test_memory_is_checked_when_it_is_posted() -> None:
    with Scene(buffers=1) as scene:
        end = scene.a
        foreign = end.ia.create_pz().register(bytearray(64)).triplet()
        read_only = end.pz.register(bytearray(64), dat.MemPriv.LOCAL_READ).triplet()
        write_only = end.pz.register(bytearray(64), dat.MemPriv.LOCAL_WRITE).triplet()
        remote = scene.b.remote()
        violation = dat.DAT_PRIVILEGES_VIOLATION
        assert dat.dat_ep_post_recv(end.ep, 1, [read_only], 0, 0).type == violation
        assert dat.dat_ep_post_rdma_read(end.ep, 1, [read_only], 0, remote, 0).type == violation
        for triplet in (read_only, write_only):  # reading is always granted, as dtest needs it
            assert dat.dat_ep_post_send(end.ep, 1, [triplet], 0, 0) == dat.DAT_SUCCESS
        ret = dat.dat_ep_post_send(end.ep, 1, [foreign], 0, 0)
        assert (ret.type, ret.subtype) == (
            dat.DAT_PROTECTION_VIOLATION,
            dat.Subtype.PROTECTION_READ,
        )
        shrunk = dataclasses.replace(end.memory.triplet(), segment_length=-1)
        ret = dat.dat_ep_post_send(end.ep, 1, [shrunk], 0, 0)
        assert (ret.type, ret.subtype) == (dat.DAT_INVALID_PARAMETER, dat.Subtype.INVALID_ARG3)


def test_what_is_no_segment_is_refused_when_it_is_posted() -> None:
    """In C a wrong pointer would be followed."""
    with Scene() as scene:
        ep, piece, remote = scene.a.ep, scene.a.piece(), scene.b.remote()
        refused: list[tuple[Any, ...]] = [
            (dat.dat_ep_post_recv, ep, 1, [remote], 0, 0),
            (dat.dat_ep_post_send, ep, 1, [remote], 0, 0),
            (dat.dat_ep_post_rdma_write, ep, 1, [remote], 0, remote, 0),
            (dat.dat_ep_post_rdma_write, ep, 1, piece, 0, piece[0], 0),
            (dat.dat_ep_post_rdma_read, ep, 1, piece, 0, None, 0),
        ]
        subtypes = []
        for call, *arguments in refused:
            ret = call(*arguments)
            assert ret.type == dat.DAT_INVALID_PARAMETER
            subtypes.append(ret.subtype)
        assert subtypes == [dat.Subtype.INVALID_ARG3] * 3 + [dat.Subtype.INVALID_ARG5] * 2


# -- failures


@pytest.mark.parametrize("fault", ["key", "range", "right", "zone"])
@pytest.mark.parametrize("write", [True, False])
def test_a_peer_cannot_reach_what_it_was_not_given(fault: str, write: bool) -> None:
    with Scene(buffers=2) as scene:
        end = scene.b
        private = bytearray(b"secret" * 10)
        if fault == "right":
            remote = end.pz.register(private, dat.MemPriv.LOCAL_WRITE | other_right(write))
        elif fault == "zone":
            remote = end.ia.create_pz().register(private)
        else:
            remote = end.pz.register(private)
        triplet = remote.remote_triplet(0, 60)
        if fault == "key":
            triplet = dat.RmrTriplet(triplet.rmr_context ^ 0x5A, triplet.target_address, 60)
        elif fault == "range":
            triplet = dat.RmrTriplet(triplet.rmr_context, triplet.target_address + 1, 60)
        post = scene.a.ep.post_rdma_write if write else scene.a.ep.post_rdma_read
        scene.a.data[:60] = bytes(60)
        post(scene.a.piece(byte_count=60), triplet, "fault")
        scene.a.send(1, "behind")
        scene.wait_for_state(dat.EpState.DISCONNECTED)
        scene.network.run(SECOND_NS)
        assert statuses(drain(scene.a.request)) == [
            ("fault", DTO.ERR_REMOTE_ACCESS),
            ("behind", DTO.ERR_FLUSHED),
        ]
        assert scene.a.connection_events() == scene.b.connection_events() == BROKEN
        assert private == b"secret" * 10
        assert scene.a.data[:60] == bytes(60)


def other_right(write: bool) -> int:
    """Return the remote right that a write (or a read) does not need."""
    return dat.MemPriv.REMOTE_READ if write else dat.MemPriv.REMOTE_WRITE


def test_memory_freed_under_a_posted_receive_is_a_protection_error() -> None:
    with Scene() as scene:
        memory = scene.b.pz.register(bytearray(64))
        scene.b.ep.post_recv([memory.triplet()], "gone")
        memory.free()
        scene.a.send(8)
        scene.wait_for_state(dat.EpState.DISCONNECTED)
        assert statuses(scene.b.taken()) == [("gone", DTO.ERR_LOCAL_PROTECTION)]
        assert scene.b.connection_events() == BROKEN
        assert scene.a.request.wait(WAIT_S).status is DTO.ERR_REMOTE_RESPONDER


@pytest.mark.rows("sim")
def test_a_peer_that_does_not_answer_is_a_transport_error() -> None:
    with Scene(buffers=1) as scene:
        scene.network.cut(scene.a.adapter, scene.b.adapter)
        scene.a.send(8, "lost")
        scene.a.send(8, "behind")
        scene.wait_for_state(dat.EpState.DISCONNECTED)
        assert statuses(drain(scene.a.request)) == [
            ("lost", DTO.ERR_TRANSPORT),
            ("behind", DTO.ERR_FLUSHED),
        ]
        assert scene.a.connection_events() == scene.b.connection_events() == BROKEN


def test_requests_complete_in_posting_order() -> None:
    with Scene(buffers=20) as scene:
        end: End = scene.a
        target = scene.b.remote(MESSAGE_BYTES)
        for number in range(4):
            end.ep.post_rdma_read(end.piece(number), scene.b.remote(), ("read", number))
            end.send(PACKET_BYTES, ("send", number))
            end.ep.post_rdma_write(end.piece(number), target, ("write", number))
        wanted = [(kind, number) for number in range(4) for kind in ("read", "send", "write")]
        assert [end.request.wait(WAIT_S).user_cookie for _ in wanted] == wanted
