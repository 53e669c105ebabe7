"""docs/reference/dat.md 23.6: high watermarks of endpoints. The numbers are those of the matrix."""

import pytest

from tests.dat.scene import MESSAGE_BYTES, Scene, connect, worked_example
from urds import dat
from urds.verbs.engine.numbers import ReceiveOrder

SOFT = (dat.EventNumber.ASYNC_WATERMARK, dat.EpReason.SRQ_SOFT_HIGH_WATERMARK_EVENT)
BROKEN = [dat.EventNumber.CONNECTION_BROKEN]


def gated(count: int, **scene: object) -> Scene:
    """Return a scene whose sender has so many messages on their way, all kept back."""
    made = Scene(buffers=120, **scene)
    made.gate(count)
    return made


def soft_events(scene: Scene) -> int:
    """Take the asynchronous events: all must be of the soft watermark; return how many."""
    found = scene.b.async_events()
    assert all(
        (number, reason) == SOFT and handle is scene.b.ep for number, handle, reason in found
    ), found
    return len(found)


def is_broken(scene: Scene) -> bool:
    """Tell whether B's connection has broken, with its one event."""
    events = scene.b.connection_events()
    assert events in ([], BROKEN)
    assert (scene.b.ep.state is dat.EpState.DISCONNECTED) == bool(events)
    return bool(events)


def test_w1_one_event_above_the_soft_watermark() -> None:
    with gated(4) as scene:
        assert dat.dat_ep_set_watermark(scene.b.ep, 2, -1) == dat.DAT_SUCCESS
        for message, fired in ((1, 0), (2, 0), (3, 1), (4, 0)):
            scene.begin(message)
            assert (scene.b.info, soft_events(scene)) == ((message, message), fired)
        assert int(SOFT[1]) == 2
        assert not is_broken(scene)


def test_w2_no_second_event_until_it_is_set_again() -> None:
    with gated(10) as scene:
        scene.b.ep.set_watermark(soft=2)
        scene.begin(1, 2, 3)
        assert soft_events(scene) == 1
        scene.finish(1, 2, 3)
        assert scene.b.info == (0, 0)
        scene.begin(4, 5, 6, 7, 8)
        assert (scene.b.info, soft_events(scene)) == ((5, 5), 0)
        scene.b.ep.set_watermark(soft=5)
        scene.begin(9)
        assert soft_events(scene) == 1


def test_w3_set_below_what_is_held_it_fires_at_once() -> None:
    with gated(4) as scene:
        scene.begin(1, 2, 3, 4)
        assert dat.dat_ep_set_watermark(scene.b.ep, 4, -1) == dat.DAT_SUCCESS
        assert soft_events(scene) == 0
        assert dat.dat_ep_set_watermark(scene.b.ep, 3, -1) == dat.DAT_SUCCESS
        assert soft_events(scene) == 1
        assert not is_broken(scene)


def test_w4_above_the_hard_watermark_the_connection_breaks() -> None:
    with gated(3) as scene:
        scene.b.ep.set_watermark(hard=2)
        scene.begin(1, 2)
        assert not is_broken(scene)
        scene.begin(3)
        assert is_broken(scene)
        ended = [(event.user_cookie, event.status) for event in scene.b.taken()]
        # What had arrived as a whole is no victim of the end.
        before = dat.DtoStatus.ERR_FLUSHED if scene.overtakes else dat.DtoStatus.SUCCESS
        assert ended == [(0, before), (1, before), (2, dat.DtoStatus.ERR_FLUSHED)]
        assert scene.b.info == (0, 0)
        assert scene.b.async_events() == []
        scene.wait_for_state(dat.EpState.DISCONNECTED, scene.a)


def test_w5_set_below_what_is_held_the_hard_one_breaks_at_once() -> None:
    with gated(4) as scene:
        scene.begin(1, 2, 3, 4)
        assert dat.dat_ep_set_watermark(scene.b.ep, -1, 2) == dat.DAT_SUCCESS
        assert is_broken(scene)
        assert scene.b.info == (0, 0)
        assert len(scene.b.taken()) == 4


def test_w6_infinite_ones_never_fire() -> None:
    infinite = dat.DAT_WATERMARK_INFINITE
    with Scene(buffers=100, srq_soft_hw=1, max_recv_dtos=1) as scene:
        assert dat.dat_ep_set_watermark(scene.b.ep, infinite, infinite) == dat.DAT_SUCCESS
        scene.gate(101)
        scene.begin(*range(1, 64))
        scene.finish(*range(1, 64))
        assert len(scene.b.taken()) == 63
        scene.b.give(63)
        scene.settle(lambda: any(packet.msn == 101 for packet, *_ in scene.hold.held))
        scene.begin(*range(64, 102))
        assert scene.b.info == (38, 38)
        assert soft_events(scene) == 0
        assert not is_broken(scene)


def test_w7_the_soft_one_comes_before_the_hard_one() -> None:
    with Scene(buffers=20, connected=False) as scene:
        both = scene.b.ia.create_evd(16, dat.EvdFlag.DTO | dat.EvdFlag.CONNECTION)
        scene.b.ep.modify(recv_evd_handle=both, connect_evd_handle=both)
        scene.b.ep.set_watermark(soft=2, hard=4)
        scene.b.connection = both
        connect(scene.network, scene.a, scene.b)
        scene.gate(5)
        scene.begin(1, 2, 3, 4)
        assert soft_events(scene) == 1
        assert len(both) == 0
        scene.begin(5)
        assert soft_events(scene) == 0
        events = [both.dequeue() for _ in range(len(both))]
        assert [event.event_number for event in events] == [dat.EventNumber.DTO_COMPLETION] * 5 + [
            dat.EventNumber.CONNECTION_BROKEN
        ]


@pytest.mark.rows("sim")
def test_w7_both_in_one_step_come_in_this_order_as_well() -> None:
    with Scene(buffers=20, receive_order=ReceiveOrder.FILL_GAPS) as scene:
        scene.b.ep.set_watermark(soft=2, hard=4)
        scene.gate(5)
        scene.begin(5)
        assert soft_events(scene) == 1
        assert is_broken(scene)


@pytest.mark.rows("sim")
def test_w8_the_hard_watermark_counts_buffers_not_their_span() -> None:
    with worked_example(max_recv_dtos=3) as scene:
        assert scene.b.info == (3, 5)
        assert not is_broken(scene)
    with worked_example(max_recv_dtos=2) as scene:
        assert is_broken(scene)


@pytest.mark.rows("sim")
def test_w8_so_does_the_soft_one() -> None:
    for soft, events in ((3, 0), (2, 1)):
        with worked_example(srq_soft_hw=soft) as scene:
            assert (scene.b.info, soft_events(scene)) == ((3, 5), events)


def test_w9_set_before_the_connection_it_counts_at_once() -> None:
    with Scene(buffers=20, connected=False) as scene:
        assert dat.dat_ep_set_watermark(scene.b.ep, 1, 2) == dat.DAT_SUCCESS
        connect(scene.network, scene.a, scene.b)
        scene.gate(3)
        scene.begin(1)
        assert soft_events(scene) == 0
        scene.begin(2)
        assert (soft_events(scene), is_broken(scene)) == (1, False)
        scene.begin(3)
        assert is_broken(scene)


def test_w9_the_attributes_set_both() -> None:
    with gated(4, srq_soft_hw=1, max_recv_dtos=3) as scene:
        scene.begin(1, 2)
        assert soft_events(scene) == 1
        scene.begin(3)
        assert not is_broken(scene)
        scene.begin(4)
        assert is_broken(scene)


@pytest.mark.parametrize(("soft", "hard", "argument"), [(-5, -1, 2), (-1, -5, 3), (-2, -2, 2)])
def test_w10_a_negative_mark_is_refused(soft: int, hard: int, argument: int) -> None:
    with gated(3) as scene:
        scene.b.ep.set_watermark(soft=1, hard=2)
        ret = dat.dat_ep_set_watermark(scene.b.ep, soft, hard)
        assert (ret.type, ret.subtype) == (dat.DAT_INVALID_PARAMETER, 35 + argument)
        attr = scene.b.ep.query().ep_attr
        assert (attr.srq_soft_hw, attr.max_recv_dtos) == (1, 2)
        scene.begin(1, 2, 3)
        assert is_broken(scene)


@pytest.mark.parametrize("marks", [0x000, 0x001, 0x010, 0x100])
def test_w11_a_provider_without_them_says_so(marks: int) -> None:
    with Scene(buffers=1, connected=False, support=dat.Support(srq_watermarks=marks)) as scene:
        ret = dat.dat_ep_set_watermark(scene.b.ep, 5, 5)
        assert (int(ret), scene.b.ep.query().ep_attr.srq_soft_hw) == (0x80090000, -1)
        low = dat.dat_srq_set_lw(scene.b.srq, 0)
        assert low.type == (dat.DAT_SUCCESS if marks & 1 else dat.DAT_MODEL_NOT_SUPPORTED)


def test_without_a_shared_queue_posted_receives_are_not_held_ones() -> None:
    with Scene(connected=False) as scene:
        scene.b.post(5)
        assert dat.dat_ep_set_watermark(scene.b.ep, 1, 2) == dat.DAT_SUCCESS
        connect(scene.network, scene.a, scene.b)
        scene.a.send(MESSAGE_BYTES)
        scene.a.request.wait(1)
        assert (scene.b.info, soft_events(scene), is_broken(scene)) == ((4, 4), 0, False)
