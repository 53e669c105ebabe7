"""Endpoints on a shared receive queue; numbers as in docs/reference/dat.md 23.3."""

from random import Random

import pytest

from tests.dat.scene import (
    MESSAGE_BYTES,
    PACKET_BYTES,
    STEP_NS,
    THRESHOLD,
    WAIT_S,
    End,
    Scene,
    connect,
    connect_endpoints,
    drain,
    is_message,
    worked_example,
)
from urds import dat
from urds.verbs.engine.numbers import ReceiveOrder
from urds.verbs.engine.packets import PacketKind
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.sim import SimNetwork

DTO = dat.DtoStatus
SPARE = 20  # buffers on the shared queue when message 19 begins


def cookies(scene: Scene) -> list[int]:
    """Take the completed receives; all of them have succeeded."""
    events = scene.b.taken()
    assert all(event.status is DTO.SUCCESS for event in events), events
    return [event.user_cookie for event in events]


def errors(scene: Scene) -> int:
    """Return how often B said that it had no buffer."""
    return sum(0x20 <= packet.syndrome <= 0x3F for packet in scene.answers)


@pytest.mark.rule("dat-allocated-with-srq")
def test_s1_posting_to_the_shared_queue_allocates_nothing_to_an_endpoint() -> None:
    with Scene(buffers=10) as scene:
        assert scene.b.info == (0, 0)
        assert scene.b.counts == (10, 10)


def test_s2_a_buffer_is_outstanding_until_its_event_is_dequeued() -> None:
    with Scene(buffers=3, srq_depth=10) as scene:
        assert scene.b.counts == (3, 3)
        scene.a.send()
        scene.a.request.wait(WAIT_S)
        assert (scene.b.counts, scene.b.info) == ((2, 3), (0, 0))
        assert scene.b.recv.dequeue().status is DTO.SUCCESS
        assert (scene.b.counts, scene.b.info) == ((2, 2), (0, 0))


def test_without_a_dispatcher_a_buffer_is_not_outstanding_once_it_is_filled() -> None:
    """No thread can dequeue its event."""
    with Scene(buffers=3, connected=False) as scene:
        end = scene.b
        ep = end.pz.create_ep(None, end.request, end.connection, dat.EpAttr(), end.srq)
        connect_endpoints(scene.a.ep, ep, end.requests)
        scene.a.send()
        assert scene.a.request.wait(WAIT_S).status is DTO.SUCCESS
        assert (end.counts, ep.recv_query()) == ((2, 2), (0, 0))


@pytest.mark.rule("dat-allocated-with-srq", "dat-nbufs")
def test_s3_the_first_fragment_takes_a_buffer() -> None:
    with Scene(buffers=10) as scene:
        scene.gate(1)
        scene.part(1, 0)
        assert scene.b.info == (1, 1)
        assert scene.b.counts == (9, 10)


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-example", "dat-gaps", "dat-span-sequence", "dat-span-meaning", "dat-span")
def test_s4_fragments_of_19_22_and_23_in_arrival_order() -> None:
    with worked_example(spare=SPARE) as scene:
        assert scene.b.info == (3, 5)
        assert scene.b.counts == (SPARE - 3, SPARE)


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-fill-gaps-allowed", "dat-span-at-least-count")
def test_s5_the_same_fragments_with_the_gap_filled() -> None:
    with worked_example(spare=SPARE, receive_order=ReceiveOrder.FILL_GAPS) as scene:
        assert scene.b.info == (5, 5)
        assert scene.b.counts == (SPARE - 5, SPARE)


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-gaps", "dat-span-sequence")
def test_s6_the_same_fragments_the_other_way_round() -> None:
    with Scene(buffers=18 + SPARE, completed=18) as scene:
        for _ in range(5):
            scene.a.send()
        for message, expected in ((23, (1, 5)), (22, (2, 5)), (19, (3, 5))):
            scene.part(message, 0)
            assert scene.b.info == expected


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-deliver-in-order")
def test_s7_all_bytes_of_22_and_23_do_not_complete_them() -> None:
    with worked_example() as scene:
        scene.part(22, 1)
        scene.part(23, 1)
        assert scene.b.info == (3, 5)
        assert len(scene.b.recv) == 0


@pytest.mark.rows("sim")
def test_s8_19_is_finished() -> None:
    with worked_example() as scene:
        scene.part(19, 1)
        assert len(cookies(scene)) == 1
        assert scene.b.info == (2, 4)


@pytest.mark.rows("sim")
def test_s9_20_arrives_whole() -> None:
    with worked_example() as scene:
        scene.part(19, 1)
        scene.whole(20)
        assert len(cookies(scene)) == 2
        assert scene.b.info == (2, 3)


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-deliver-in-order", "dat-sequence-order")
def test_s10_21_releases_22_and_23() -> None:
    with worked_example() as scene:
        scene.part(19, 1)
        scene.whole(20)
        scene.part(22, 1)
        scene.part(23, 1)
        first = cookies(scene)
        scene.whole(21)
        # 19, 22 and 23 took the first three buffers, 20 and 21 those after them.
        assert [number - 18 for number in first] == [0, 3]
        assert [number - 18 for number in cookies(scene)] == [4, 1, 2]
        assert scene.b.info == (0, 0)


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-span-sequence", "dat-span-at-least-count", "dat-span")
def test_s11_only_a_far_message_has_begun() -> None:
    with Scene(buffers=20, completed=3) as scene:
        for _ in range(99):
            scene.a.send(1)
        scene.a.send()
        scene.part(103, 0)
        assert scene.b.info == (1, 100)


@pytest.mark.rows("sim")
def test_s12_repeated_fragments_take_nothing() -> None:
    with worked_example() as scene:
        before = scene.b.counts
        for message in (22, 17, 22, 1):
            scene.repeat(message)
            assert (scene.b.info, scene.b.counts) == ((3, 5), before)


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-sequence-sends-only")
def test_s13_writes_between_the_messages_have_no_number() -> None:
    with Scene(buffers=18 + SPARE, completed=18) as scene:
        for _ in range(5):
            scene.a.ep.post_rdma_write(scene.a.piece(), scene.b.remote())
            scene.a.send()
        for message in (19, 22, 23):
            scene.part(message, 0)
        scene.run(200_000)  # the writes arrive
        assert scene.b.info == (3, 5)
        scene.open_gate()
        scene.settle(lambda: len(scene.b.recv) == 5)
        assert scene.b.info == (0, 0)


@pytest.mark.rows("sim")
def test_s14_without_a_buffer_the_next_message_waits() -> None:
    with worked_example(spare=3) as scene:
        assert scene.b.available == 0
        assert not errors(scene)
        scene.part(20, 0)
        scene.run(100_000)
        assert (scene.b.info, errors(scene) > 0) == ((3, 5), True)
        scene.b.give(1)
        assert scene.b.info == (3, 5)
        scene.settle(lambda: any(packet.msn == 20 for packet, *_ in scene.hold.held))
        scene.run(1_000_000)
        scene.part(20, 0)
        assert (scene.b.info, scene.b.available) == ((4, 5), 0)


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-allocated-completes")
@pytest.mark.parametrize("how", ["a disconnects", "b disconnects", "a is killed"])
def test_s15_the_end_flushes_what_is_held(how: str) -> None:
    with worked_example(spare=SPARE) as scene:
        if how == "a is killed":
            scene.network.kill(scene.a.adapter)
        else:
            (scene.a if how == "a disconnects" else scene.b).ep.disconnect()
        scene.wait_for_state(dat.EpState.DISCONNECTED, scene.b)
        assert scene.b.info == (0, 0)
        assert scene.b.counts == (SPARE - 3, SPARE)
        for left in (2, 1, 0):
            event = scene.b.recv.dequeue()
            assert (event.status, event.user_cookie) == (DTO.ERR_FLUSHED, 20 - left)
            assert scene.b.counts == (SPARE - 3, SPARE - 3 + left)
        killed = how == "a is killed"
        number = dat.EventNumber.CONNECTION_BROKEN if killed else dat.EventNumber(0x4005)
        assert scene.b.connection_events() == [number]


def second_pair(scene: Scene) -> tuple[End, dat.Endpoint]:
    """Connect another sender to a second endpoint on B's shared queue; return both."""
    sender = End(scene.network, name="a2")
    ia = scene.b.ia
    ep = scene.b.pz.create_ep(
        ia.create_evd(256, dat.EvdFlag.DTO),
        ia.create_evd(8, dat.EvdFlag.DTO),
        ia.create_evd(8, dat.EvdFlag.CONNECTION),
        dat.EpAttr(max_recv_dtos=dat.DAT_HW_DEFAULT),
        scene.b.srq,
    )
    connect_endpoints(sender.ep, ep, scene.b.requests, 4001)
    return sender, ep


@pytest.mark.rows("sim")
def test_s16_each_endpoint_counts_its_own_buffers() -> None:
    with worked_example(spare=SPARE) as scene:
        sender, other = second_pair(scene)
        assert scene.b.info == (3, 5)
        assert tuple(other.recv_query()) == (0, 0)
        sender.send()
        sender.request.wait(WAIT_S)
        assert scene.b.info == (3, 5)
        assert scene.b.counts == (SPARE - 4, SPARE)


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-sequence-order", "dat-span-at-least-count", "dat-snapshot")
@pytest.mark.parametrize("seed", range(3))
def test_s17_two_endpoints_under_random_traffic(seed: int) -> None:
    """The queue is deep enough for all of them: who is ahead cannot starve who is next."""
    random = Random(seed)
    network = SimNetwork(
        seed, mtu_bytes=PACKET_BYTES, loss=0.03, duplicate=0.03, reorder=0.2, jitter_ns=40_000
    )
    with Scene(buffers=200, srq_depth=210, network=network) as scene:
        sender, other = second_pair(scene)
        pairs = {scene.b.ep: scene.a, other: sender}
        got: dict[dat.Endpoint, list[int]] = {ep: [] for ep in pairs}
        for end in pairs.values():
            for number in range(100):
                data = random.randrange(1, 2 * MESSAGE_BYTES)
                end.data[number * MESSAGE_BYTES] = number
                end.send(min(data, MESSAGE_BYTES), number)
        posted, dequeued = 200, 0
        while network.step() and any(len(numbers) < 100 for numbers in got.values()):
            held = [tuple(ep.recv_query()) for ep in pairs]
            waiting = sum(len(ep.recv_evd) for ep in pairs)
            available, outstanding = scene.b.counts
            assert available <= outstanding <= 210
            assert outstanding == available + sum(count for count, _ in held) + waiting
            assert all(0 <= count <= span for count, span in held), held
            if random.random() < 0.2:
                for ep in pairs:
                    for event in drain(ep.recv_evd):
                        assert event.status is DTO.SUCCESS
                        got[ep].append(scene.b.data[event.user_cookie * MESSAGE_BYTES])
                        dequeued += 1
                        scene.b.give(1, event.user_cookie)
                        posted += 1
        assert all(numbers == list(range(100)) for numbers in got.values())
        assert [tuple(ep.recv_query()) for ep in pairs] == [(0, 0), (0, 0)]
        assert scene.b.counts == (posted - dequeued, posted - dequeued) == (200, 200)


@pytest.mark.rule("dat-nbufs")
def test_s18_what_ends_before_established_is_told_after_it() -> None:
    """The transport finishes a message of an accepted connection before it is established."""
    with Scene(buffers=4, connected=False) as scene:
        b = scene.b
        both = b.ia.create_evd(16, dat.EvdFlag.DTO | dat.EvdFlag.CONNECTION)
        b.ep.modify(recv_evd_handle=both, connect_evd_handle=both)
        assert b.ep.query().ep_attr.recv_completion_flags is THRESHOLD
        held = scene.network.hold(
            lambda packet, source, _target: source is scene.a.adapter and b.ep.state != 0
        )
        b.ia.listen(4000, evd=b.requests)
        scene.a.ep.connect(b.ia.address, 4000, timeout_s=WAIT_S)
        b.requests.wait(WAIT_S).cr.accept(b.ep)
        scene.wait_for_state(dat.EpState.CONNECTED, scene.a)
        scene.a.send()
        scene.run()
        assert b.ep.state is dat.EpState.COMPLETION_PENDING
        with b.ia.lock:  # past the adapter, for which a packet of data is as good as the RTU
            for packet, data, source, _ in held.held:
                if is_message(packet) and scene.overtakes:
                    b.ep.engine.receive_packet(packet, b.adapter.now_ns())
                elif is_message(packet):
                    b.adapter.engine.receive(data, AddressVector(source.gid), b.adapter.now_ns())
        assert (b.info, len(both), b.counts) == ((1, 1), 0, (3, 4))
        held.close()
        scene.wait_for_state(dat.EpState.CONNECTED, b)
        first, second = drain(both)
        assert first.event_number is dat.EventNumber.CONNECTION_ESTABLISHED
        assert (second.event_number, second.status) == (dat.EventNumber.DTO_COMPLETION, 0)
        assert b.info == (0, 0)


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-sequence-always", "dat-span-sequence")
def test_s19_numbers_on_the_way_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wire's field is made 8 bits wide; the connection counts to its end by itself."""
    monkeypatch.setattr("urds.verbs.engine.receives._MSN_COUNT", 1 << 8)
    for part in ("requests", "responder"):
        monkeypatch.setattr(f"urds.verbs.engine.{part}._MSN_MASK", (1 << 8) - 1)
    with Scene(buffers=256, srq_depth=256) as scene:
        for _ in range(254):  # up to the highest but one
            scene.a.send(1)
            scene.a.request.wait(WAIT_S)
            scene.b.taken()
        scene.b.give(10)
        scene.gate(3)
        assert sorted({packet.msn for packet, *_ in scene.hold.held}) == [0, 1, 255]
        for message, expected in ((1, (1, 3)), (255, (2, 3)), (0, (3, 3))):
            scene.part(message, 0)
            assert scene.b.info == expected
        for message, left in ((255, 2), (0, 1), (1, 0)):
            scene.part(message, 1)
            assert scene.b.info == (left, left)
        assert [event.status for event in scene.b.taken()] == [DTO.SUCCESS] * 3


@pytest.mark.rows("sim")
def test_s20_an_endpoint_on_a_shared_queue_takes_no_receives_of_its_own() -> None:
    with worked_example() as scene:
        before = scene.b.info, scene.b.counts
        ret = dat.dat_ep_post_recv(scene.b.ep, 1, scene.b.piece(), 0, 0)
        assert ret.type == dat.DAT_INVALID_STATE
        assert (scene.b.info, scene.b.counts) == before == ((3, 5), (17, 20))


@pytest.mark.rule("dat-allocated-with-srq")
def test_s21_an_endpoint_that_is_not_connected_takes_nothing() -> None:
    with Scene(buffers=0, connected=False) as scene:
        scene.b.give(3)
        assert (scene.b.info, scene.b.counts) == ((0, 0), (3, 3))
        connect(scene.network, scene.a, scene.b)
        scene.a.ep.disconnect()
        scene.wait_for_state(dat.EpState.DISCONNECTED)
        scene.b.give(3)
        assert (scene.b.info, scene.b.counts) == ((0, 0), (6, 6))
        assert scene.b.taken() == []


def test_s22_while_it_drains_it_still_receives() -> None:
    with Scene(buffers=4) as scene:
        scene.gate(1)
        scene.a.post(1)
        answers = scene.network.hold(lambda packet, *_: packet.kind is PacketKind.ACK)
        scene.b.send()  # stays outstanding: no thread learns that it has arrived
        scene.b.ep.disconnect(graceful=True)
        assert scene.b.ep.state is dat.EpState.DISCONNECT_PENDING
        scene.part(1, 0)
        assert scene.b.info == (1, 1)
        scene.part(1, 1)
        assert (scene.b.info, len(cookies(scene))) == ((0, 0), 1)
        assert scene.b.ep.state is dat.EpState.DISCONNECT_PENDING
        answers.close()
        scene.wait_for_state(dat.EpState.DISCONNECTED)
        assert scene.b.request.dequeue().status is DTO.SUCCESS
        assert scene.b.connection_events() == [dat.EventNumber.CONNECTION_DISCONNECTED]


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-sequence-always")
def test_s23_after_a_reset_numbers_begin_anew() -> None:
    with worked_example(spare=SPARE) as scene:
        scene.b.ep.disconnect()
        scene.wait_for_state(dat.EpState.DISCONNECTED)
        assert [event.status for event in scene.b.taken()] == [DTO.ERR_FLUSHED] * 3
        for end in (scene.a, scene.b):
            drain(end.connection)
            end.ep.reset()
        scene.open_gate()
        scene.run(STEP_NS)
        connect(scene.network, scene.a, scene.b)
        scene.gate(1)
        scene.part(1, 0)
        assert (scene.b.info, scene.b.counts) == ((1, 1), (SPARE - 4, SPARE - 3))
        assert dat.dat_srq_free(scene.b.srq) == dat.DAT_INVALID_STATE


@pytest.mark.rows("sim")
def test_what_is_held_back_arrives_in_the_end() -> None:
    """The example ends well, with the bytes in the buffers that were taken out of order."""
    with worked_example() as scene:
        scene.open_gate()
        for _ in range(5):
            assert scene.a.request.wait(WAIT_S).status is DTO.SUCCESS
        found = [scene.b.data[number * MESSAGE_BYTES] for number in cookies(scene)]
        assert (found, scene.b.info) == ([19, 20, 21, 22, 23], (0, 0))
