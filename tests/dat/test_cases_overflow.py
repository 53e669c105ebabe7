"""Dispatchers that overflow, endpoints freed; numbers as in docs/reference/dat.md 23.7."""

import pytest

from tests.dat.scene import Scene, drain, worked_example
from urds import dat


@pytest.mark.rule("dat-allocated-completes")
@pytest.mark.parametrize("shared", [False, True])
def test_o1_a_full_receive_dispatcher_breaks_the_connection(shared: bool) -> None:
    with Scene(buffers=5 if shared else None, recv_qlen=2) as scene:
        if not shared:
            scene.b.post(5)
        for _ in range(3):
            scene.a.send()
        scene.wait_for_state(dat.EpState.DISCONNECTED)
        overflow = (dat.EventNumber.ASYNC_EVD_OVERFLOW, scene.b.recv, dat.EvdReason.OVERFLOW_ERROR)
        assert scene.b.async_events() == [overflow]
        assert scene.b.connection_events() == [dat.EventNumber.CONNECTION_BROKEN]
        assert scene.b.info == (0, 0)
        events = scene.b.taken()
        assert [(event.user_cookie, event.status) for event in events] == [(0, 0), (1, 0)]
        if shared:
            assert scene.b.counts == (2, 2)


def test_o1_the_dispatcher_works_again_when_it_was_drained() -> None:
    with Scene(recv_qlen=2) as scene:
        scene.b.post(3)
        for _ in range(3):
            scene.a.send()
        scene.wait_for_state(dat.EpState.DISCONNECTED)
        assert len(scene.b.taken()) == 2
        scene.b.ep.post_recv(scene.b.piece(), "flushed")
        assert [event.user_cookie for event in scene.b.taken()] == ["flushed"]


def test_o2_a_full_software_dispatcher_says_so() -> None:
    with Scene(connected=False) as scene:
        evd = scene.b.ia.create_evd(2, dat.EvdFlag.SOFTWARE)
        event = dat.SoftwareEvent(dat.EventNumber.SOFTWARE, evd, "pointer")
        for _ in range(2):
            assert dat.dat_evd_post_se(evd, event) == dat.DAT_SUCCESS
        assert dat.dat_evd_post_se(evd, event).type == dat.DAT_QUEUE_FULL
        assert scene.b.async_events() == []
        assert len(drain(evd)) == 2


@pytest.mark.rows("sim")
def test_o3_a_freed_endpoint_leaks_no_buffers() -> None:
    with worked_example(spare=20) as scene:
        assert dat.dat_ep_free(scene.b.ep) == dat.DAT_SUCCESS
        available, outstanding = scene.b.counts
        assert (available, outstanding - len(scene.b.recv)) == (17, 17)
        scene.b.taken()
        assert scene.b.counts == (17, 17)
        assert dat.dat_srq_free(scene.b.srq) == dat.DAT_SUCCESS
        scene.wait_for_state(dat.EpState.DISCONNECTED, scene.a)
