"""Shared receive queues, low watermark; numbers as in docs/reference/dat.md 23.5."""

from dataclasses import replace

import pytest

from tests.dat.scene import (
    MESSAGE_BYTES,
    SECOND_NS,
    WAIT_S,
    End,
    Scene,
    connect_endpoints,
    worked_example,
)
from urds import dat

DTO = dat.DtoStatus
LOW = dat.EventNumber.ASYNC_WATERMARK
REASON = dat.SrqReason.LOW_WATERMARK_EVENT


def deliver(scene: Scene, count: int) -> None:
    """Send messages and run until they have arrived."""
    for _ in range(count):
        scene.a.send()
        assert scene.a.request.wait(WAIT_S).status is DTO.SUCCESS


def low_events(end: End) -> list[object]:
    """Take the asynchronous events: all of them are of the low watermark."""
    found = end.async_events()
    assert all(event == (LOW, end.srq, REASON) for event in found), found
    return found


def test_q1_a_new_queue_has_no_low_watermark() -> None:
    with Scene(connected=False) as scene:
        end = scene.b
        ret, srq = dat.dat_srq_create(end.ia, end.pz, dat.SrqAttr(10, 1, low_watermark=4))
        assert (ret.type, ret.subtype, srq) == (
            dat.DAT_INVALID_PARAMETER,
            dat.Subtype.INVALID_ARG3,
            None,
        )
        attr = dat.SrqAttr(10, 1, dat.DAT_SRQ_LW_DEFAULT)
        ret, srq = dat.dat_srq_create(end.ia, end.pz, attr)
        assert ret == dat.DAT_SUCCESS
        assert srq is not None
        assert end.async_events() == []


@pytest.mark.parametrize(
    "attr",
    [dat.SrqAttr(0), dat.SrqAttr(-1), dat.SrqAttr(4, 0), dat.SrqAttr(1 << 21), dat.SrqAttr(4, 33)],
)
def test_q2_sizes_from_one_to_the_limits(attr: dat.SrqAttr) -> None:
    with Scene(connected=False) as scene:
        end = scene.b
        assert (end.ia.attr.max_recv_per_srq, end.ia.attr.max_iov_segments_per_dto) == (1 << 20, 32)
        ret, srq = dat.dat_srq_create(end.ia, end.pz, attr)
        assert (ret.type, ret.subtype, srq) == (
            dat.DAT_INVALID_PARAMETER,
            dat.Subtype.INVALID_ARG3,
            None,
        )


def test_q3_a_completion_that_is_not_dequeued_is_outstanding() -> None:
    with Scene(buffers=4, srq_depth=4) as scene:
        deliver(scene, 1)
        assert scene.b.counts == (3, 4)
        ret = dat.dat_srq_post_recv(scene.b.srq, 1, scene.b.piece(9), 9)
        assert ret.type == dat.DAT_INSUFFICIENT_RESOURCES
        assert scene.b.counts == (3, 4)
        assert scene.b.recv.dequeue() is not None
        assert dat.dat_srq_post_recv(scene.b.srq, 1, scene.b.piece(9), 9) == dat.DAT_SUCCESS
        assert scene.b.counts == (4, 4)


def test_q4_a_queue_with_an_endpoint_is_in_use() -> None:
    with Scene(buffers=4) as scene:
        ret = dat.dat_srq_free(scene.b.srq)
        assert (ret.type, ret.subtype) == (
            dat.DAT_INVALID_STATE,
            dat.Subtype.INVALID_STATE_SRQ_IN_USE,
        )
        assert dat.dat_ep_free(scene.b.ep) == dat.DAT_SUCCESS
        assert dat.dat_srq_free(scene.b.srq) == dat.DAT_SUCCESS
        assert dat.dat_srq_query(scene.b.srq, 0)[0] == dat.DAT_INVALID_HANDLE


def test_q5_one_event_below_the_low_watermark() -> None:
    with Scene(buffers=8) as scene:
        assert dat.dat_srq_set_lw(scene.b.srq, 5) == dat.DAT_SUCCESS
        deliver(scene, 3)
        assert (scene.b.available, low_events(scene.b)) == (5, [])
        deliver(scene, 1)
        assert (scene.b.available, len(low_events(scene.b))) == (4, 1)
        assert int(REASON) == 2


def test_q6_no_second_event_until_it_is_set_again() -> None:
    with Scene(buffers=8) as scene:
        scene.b.srq.set_low_watermark(5)
        deliver(scene, 4)
        assert len(low_events(scene.b)) == 1
        deliver(scene, 2)
        scene.b.give(6)
        deliver(scene, 5)
        assert (scene.b.available, low_events(scene.b)) == (3, [])
        scene.b.give(4)
        scene.b.srq.set_low_watermark(5)
        assert low_events(scene.b) == []
        deliver(scene, 3)
        assert (scene.b.available, len(low_events(scene.b))) == (4, 1)


def test_q7_set_above_what_is_available_it_fires_at_once() -> None:
    with Scene(buffers=2, connected=False) as scene:
        assert dat.dat_srq_set_lw(scene.b.srq, 5) == dat.DAT_SUCCESS
        assert len(low_events(scene.b)) == 1
        assert dat.dat_srq_set_lw(scene.b.srq, 2) == dat.DAT_SUCCESS
        assert low_events(scene.b) == []


def test_q8_a_low_watermark_beyond_the_depth_is_refused() -> None:
    with Scene(buffers=8, srq_depth=10, connected=False) as scene:
        scene.b.srq.set_low_watermark(3)
        for wrong in (11, -1):
            ret = dat.dat_srq_set_lw(scene.b.srq, wrong)
            assert (ret.type, ret.subtype) == (dat.DAT_INVALID_PARAMETER, dat.Subtype.INVALID_ARG2)
        ret, param = dat.dat_srq_query(scene.b.srq, dat.SrqField.ALL)
        assert (ret, param.low_watermark) == (dat.DAT_SUCCESS, 3)
        assert dat.dat_srq_set_lw(scene.b.srq, 10) == dat.DAT_SUCCESS


def test_q9_resizing_loses_nothing() -> None:
    with Scene(buffers=6, srq_depth=10) as scene:
        srq = scene.b.srq
        srq.set_low_watermark(3)
        for size, expected in (
            (5, dat.DAT_INVALID_STATE),
            (6, dat.DAT_SUCCESS),
            (2, dat.DAT_INVALID_STATE),
            (20, dat.DAT_SUCCESS),
        ):
            assert dat.dat_srq_resize(srq, size).type == expected, size
            assert scene.b.counts == (6, 6)
        assert srq.query().max_recv_dtos == 20
        for wrong in (0, -1, (1 << 20) + 1):
            assert dat.dat_srq_resize(srq, wrong).type == dat.DAT_INVALID_PARAMETER
        scene.b.give(14)
        with pytest.raises(dat.DatInsufficientResources):
            scene.b.give(1)
        deliver(scene, 20)
        assert len(scene.b.taken()) == 20


def test_q9_resizing_below_the_low_watermark_is_refused() -> None:
    with Scene(buffers=2, srq_depth=10, connected=False) as scene:
        scene.b.srq.set_low_watermark(5)
        assert dat.dat_srq_resize(scene.b.srq, 4).type == dat.DAT_INVALID_STATE
        assert dat.dat_srq_resize(scene.b.srq, 5) == dat.DAT_SUCCESS


def test_q10_buffers_are_checked_when_they_are_posted() -> None:
    with Scene(buffers=3, connected=False) as scene:
        end = scene.b
        other_zone = end.ia.create_pz().register(bytearray(64))
        read_only = end.pz.register(bytearray(64), dat.MemPriv.LOCAL_READ)
        outside = replace(end.piece()[0], segment_length=len(end.data) + 1)
        stale = other_zone.triplet()
        other_zone_2 = end.ia.create_pz().register(bytearray(64))
        for triplet, expected in (
            (other_zone_2.triplet(), dat.DAT_PROTECTION_VIOLATION),
            (read_only.triplet(), dat.DAT_PRIVILEGES_VIOLATION),
            (outside, dat.DAT_INVALID_PARAMETER),
        ):
            assert dat.dat_srq_post_recv(end.srq, 1, [triplet], 0).type == expected
        other_zone.free()
        ret = dat.dat_srq_post_recv(end.srq, 1, [stale], 0)
        assert ret.type == dat.DAT_PRIVILEGES_VIOLATION
        ret = dat.dat_srq_post_recv(end.srq, 2, end.piece() * 2, 0)
        assert ret.type == dat.DAT_INVALID_PARAMETER  # max_recv_iov is 1
        assert end.counts == (3, 3)


def test_q11_receives_use_the_zone_of_the_queue_and_rdma_that_of_the_endpoint() -> None:
    with Scene(buffers=4) as scene:
        end = scene.b
        zone = end.ia.create_pz()
        data = bytearray(MESSAGE_BYTES)
        memory = zone.register(data)
        srq = zone.create_srq(4)
        srq.post_recv([memory.triplet()], "in the other zone")
        attr = dat.EpAttr(max_recv_dtos=dat.DAT_HW_DEFAULT)
        ep = end.pz.create_ep(
            end.ia.create_evd(8, dat.EvdFlag.DTO),
            end.ia.create_evd(8, dat.EvdFlag.DTO),
            end.ia.create_evd(8, dat.EvdFlag.CONNECTION),
            attr,
            srq,
        )
        sender = End(scene.network, name="a2")
        connect_endpoints(sender.ep, ep, end.requests, 4001)
        sender.data[:4] = b"word"
        sender.send()
        assert ep.recv_evd.wait(WAIT_S).user_cookie == "in the other zone"
        assert data[:4] == b"word"
        sender.request.wait(WAIT_S)
        data[:4] = bytes(4)
        sender.ep.post_rdma_write(sender.piece(), memory.remote_triplet())
        assert sender.request.wait(WAIT_S).status is DTO.ERR_REMOTE_ACCESS
        scene.settle(lambda: ep.state is dat.EpState.DISCONNECTED)
        assert data[:4] == bytes(4)


def test_q12_an_unknown_bit_in_the_mask_is_refused() -> None:
    with Scene(buffers=1, connected=False) as scene:
        ret, param = dat.dat_srq_query(scene.b.srq, 0x100)
        assert (ret.type, param) == (dat.DAT_INVALID_PARAMETER, None)
        ret, param = dat.dat_srq_query(scene.b.srq, dat.SrqField.ALL)
        assert (ret, param.available_dto_count) == (dat.DAT_SUCCESS, 1)


def test_q13_an_endpoint_on_a_shared_queue_needs_attributes() -> None:
    with Scene(buffers=1, connected=False) as scene:
        end = scene.b
        ret, ep = dat.dat_ep_create_with_srq(
            end.ia, end.pz, end.recv, end.request, end.connection, end.srq, None
        )
        assert (ret.type, ep) == (dat.DAT_INVALID_PARAMETER, None)


@pytest.mark.parametrize(
    ("srq_info", "counts"), [(0x10, (None, 2)), (0x01, (2, None)), (0, (None, None))]
)
def test_counts_that_are_not_supported_are_unknown(
    srq_info: int, counts: tuple[int | None, int | None]
) -> None:
    with Scene(buffers=2, connected=False, support=dat.Support(srq_info=srq_info)) as scene:
        assert scene.b.counts == counts
        ret, param = dat.dat_srq_query(scene.b.srq, dat.SrqField.ALL)
        assert ret == dat.DAT_SUCCESS
        known = [-2 if count is None else count for count in counts]
        assert [param.available_dto_count, param.outstanding_dto_count] == known


@pytest.mark.rows("sim")
def test_buffers_on_a_freed_queue_are_dropped_without_an_event() -> None:
    with worked_example() as scene:
        scene.b.ep.free()
        taken = scene.b.taken()
        assert [event.status for event in taken] == [DTO.ERR_FLUSHED] * 3
        scene.b.srq.free()
        scene.network.run(SECOND_NS)
        assert scene.b.taken() == []
