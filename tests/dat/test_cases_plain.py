"""Endpoints with their own receive queue; numbers as in docs/reference/dat.md 23.2."""

import pytest

from tests.dat.scene import MESSAGE_BYTES, WAIT_S, Scene, connect, drain
from urds import dat

DTO = dat.DtoStatus


def plain(posted: int, byte_count: int = MESSAGE_BYTES, **scene: object) -> Scene:
    """Return a connected scene whose receiver had so many receives posted before."""
    made = Scene(connected=False, **scene)
    made.b.post(posted, byte_count)
    connect(made.network, made.a, made.b)
    return made


def deliver(scene: Scene, count: int, byte_count: int = MESSAGE_BYTES) -> None:
    """Send messages and run until the requests have completed; the receive events stay queued."""
    for _ in range(count):
        scene.a.send(byte_count)
    for _ in range(count):
        assert scene.a.request.wait(WAIT_S).status is DTO.SUCCESS


@pytest.mark.rule("dat-allocated-without-srq", "dat-nbufs")
def test_p1_each_posted_receive_counts_at_once() -> None:
    with Scene(connected=False) as scene:
        for count in range(1, 6):
            scene.b.post(1)
            assert scene.b.info == (count, count)


@pytest.mark.rule("dat-allocated-without-srq")
def test_p2_connecting_changes_nothing() -> None:
    with plain(5) as scene:
        assert scene.b.info == (5, 5)


@pytest.mark.rule("dat-nbufs", "dat-snapshot")
def test_p3_a_completion_counts_when_it_is_generated() -> None:
    with plain(5) as scene:
        deliver(scene, 2)
        assert len(scene.b.recv) == 2
        assert scene.b.info == (3, 3)


@pytest.mark.rule("dat-nbufs")
def test_p4_dequeuing_it_changes_nothing() -> None:
    with plain(5) as scene:
        deliver(scene, 2)
        assert [event.status for event in scene.b.taken()] == [DTO.SUCCESS] * 2
        assert scene.b.info == (3, 3)


@pytest.mark.rule("dat-sequence-sends-only")
def test_p5_reads_and_writes_of_the_peer_do_not_count() -> None:
    with plain(5) as scene:
        for _ in range(10):
            scene.a.ep.post_rdma_write(scene.a.piece(), scene.b.remote())
        for _ in range(3):
            scene.a.ep.post_rdma_read(scene.a.piece(), scene.b.remote())
        for _ in range(13):
            assert scene.a.request.wait(WAIT_S).status is DTO.SUCCESS
        assert scene.b.info == (5, 5)
        deliver(scene, 1)
        assert scene.b.info == (4, 4)


@pytest.mark.rule("dat-nbufs")
def test_p6_an_empty_message_takes_a_buffer() -> None:
    with plain(5) as scene:
        deliver(scene, 1, byte_count=0)
        (event,) = scene.b.taken()
        assert (event.status, event.transfered_length) == (DTO.SUCCESS, 0)
        assert scene.b.info == (4, 4)


@pytest.mark.rule("dat-allocated-completes")
def test_p7_a_disconnect_completes_all_of_them() -> None:
    with plain(5) as scene:
        scene.a.ep.disconnect()
        event = scene.b.connection.wait(WAIT_S)
        assert event.event_number is dat.EventNumber.CONNECTION_DISCONNECTED
        assert scene.b.info == (0, 0)
        flushed = [(event.user_cookie, event.status) for event in scene.b.taken()]
        assert flushed == [(number, DTO.ERR_FLUSHED) for number in range(5)]


@pytest.mark.rule("dat-allocated-completes")
def test_p8_what_is_posted_after_the_end_is_flushed_at_once() -> None:
    with plain(0) as scene:
        scene.b.ep.disconnect()
        ret = dat.dat_ep_post_recv(scene.b.ep, 1, scene.b.piece(), 77, dat.CompletionFlag.DEFAULT)
        assert int(ret) == dat.DAT_SUCCESS
        (event,) = scene.b.taken()
        assert (event.user_cookie, event.status) == (77, DTO.ERR_FLUSHED)
        assert scene.b.info == (0, 0)


@pytest.mark.rule("dat-sequence-order", "dat-sequence-always")
def test_p9_a_reset_endpoint_begins_anew() -> None:
    with plain(5) as scene:
        deliver(scene, 2)
        scene.b.ep.disconnect()
        scene.wait_for_state(dat.EpState.DISCONNECTED)
        scene.b.ep.post_recv(scene.b.piece(), "after the end")
        for end in (scene.a, scene.b):
            drain(end.connection)
            end.taken()
            assert dat.dat_ep_reset(end.ep) == dat.DAT_SUCCESS
        scene.b.post(2)
        assert scene.b.info == (2, 2)
        connect(scene.network, scene.a, scene.b)
        assert scene.b.info == (2, 2)
        scene.gate(2)
        scene.run()
        assert {packet.msn for packet, *_ in scene.hold.held} == {1, 2}
        scene.whole(1)
        assert scene.b.info == (1, 1)
        assert [event.status for event in scene.b.taken()] == [DTO.SUCCESS]


@pytest.mark.rule("dat-allocated-completes")
def test_p10_a_message_too_long_breaks_the_connection() -> None:
    with plain(1, byte_count=16) as scene:
        scene.a.send(32)
        assert scene.a.request.wait(WAIT_S).status is DTO.ERR_REMOTE_RESPONDER
        scene.wait_for_state(dat.EpState.DISCONNECTED)
        assert [event.status for event in scene.b.taken()] == [DTO.ERR_LOCAL_LENGTH]
        scene.run()
        broken = [dat.EventNumber.CONNECTION_BROKEN]
        assert scene.b.connection_events() == scene.a.connection_events() == broken
        assert scene.b.info == (0, 0)


@pytest.mark.rule("dat-allocated-without-srq")
def test_p11_a_message_that_has_begun_changes_nothing() -> None:
    with plain(4) as scene:
        scene.gate(1)
        scene.part(1, 0)
        assert scene.b.info == (4, 4)
        scene.part(1, 1)
        assert scene.b.info == (3, 3)
