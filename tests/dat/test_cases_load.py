"""Counts under load, consumers that act on them; numbers as in docs/reference/dat.md 23.4, 23.8.

E1 and E3 are commands of their own: `urds dat test`.
"""

import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dat.scene import (
    MESSAGE_BYTES,
    PACKET_BYTES,
    WAIT_S,
    End,
    Scene,
    connect_endpoints,
    drain,
)
from tests.support.examples import examples
from urds import dat
from urds.verbs.engine.numbers import ReceiveOrder
from urds.verbs.engine.receives import ReceiveTracker
from urds.verbs.providers.sim import SimNetwork

QUERIES_MIN, QUERIES_S = 5_000, 30.0
KINDS_MIN = 30  # different answers, so that it was no still life
ROUGH = {"loss": 0.01, "duplicate": 0.02, "reorder": 0.2, "jitter_ns": 40_000}

Sample = tuple[int | None, int | None]


def check(sample: Sample) -> None:
    """Fail unless both counts can be of one set of buffers."""
    count, span = sample
    assert count is not None and span is not None, "unknown"
    assert 0 <= count <= span, sample
    assert (count == 0) == (span == 0), sample


def rough_network(seed: int) -> SimNetwork:
    """Return a network that loses, repeats and reorders."""
    return SimNetwork(seed, mtu_bytes=PACKET_BYTES, **ROUGH)


# -- K


@contextmanager
def traffic(scene: Scene) -> Iterator[threading.Thread]:
    """Let another thread run the network and keep 64 messages on their way."""
    stop = threading.Event()

    def run() -> None:
        random, outstanding = Random(1), 0
        while not stop.is_set():
            while outstanding < 64:
                scene.a.send(random.randrange(1, MESSAGE_BYTES))
                outstanding += 1
            for _ in range(40):
                scene.network.step()
            outstanding -= len(drain(scene.a.request))
            for event in drain(scene.b.recv):
                scene.b.give(1, event.user_cookie)

    thread = threading.Thread(target=run)
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


class RecordingTracker(ReceiveTracker):
    """Notes each pair of counts just before a thread can read it."""

    def __init__(self) -> None:
        self.history: list[Sample] = []
        super().__init__()

    def __setattr__(self, name: str, value: object) -> None:
        if name == "held":
            self.history.append(value)
        super().__setattr__(name, value)


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-atomic-counters", "dat-snapshot", "dat-span-at-least-count")
def test_k1_queries_while_messages_come_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is a pair of counts that held at a moment between the call and its return."""
    monkeypatch.setattr("urds.verbs.engine.queue_pair.ReceiveTracker", RecordingTracker)
    with Scene(buffers=200, network=rough_network(1)) as scene, traffic(scene) as thread:
        history = scene.b.ep.engine.tracker.history
        seen: Counter[Sample] = Counter()
        end_s = time.monotonic() + QUERIES_S
        has_gaps = False
        while seen.total() < QUERIES_MIN or len(seen) < KINDS_MIN or not has_gaps:
            assert thread.is_alive() and time.monotonic() < end_s, seen
            begin = len(history)  # the last of these may be not readable yet
            ret, count, span = dat.dat_ep_recv_query(scene.b.ep)
            end = len(history)
            assert ret == dat.DAT_SUCCESS
            check((count, span))
            assert (count, span) in history[max(0, begin - 2) : end]
            seen[count, span] += 1
            has_gaps = has_gaps or count != span


def test_a_query_waits_for_no_lock() -> None:
    """Another thread asks while the adapter's lock is held, as it is while packets are served."""
    with Scene(buffers=1) as scene, scene.b.ia.lock:
        found: list[object] = []

        def ask() -> None:
            found.append(dat.dat_ep_recv_query(scene.b.ep))
            found.append(scene.b.ep.recv_query())

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(WAIT_S)
        assert found == [(dat.DAT_SUCCESS, 0, 0), (0, 0)]


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-thread-unsafe")
def test_several_threads_may_ask_at_once() -> None:
    """The specification allows a provider to forbid it; this one says that it is safe, and is."""
    with Scene(buffers=200, network=rough_network(5)) as scene, traffic(scene):
        assert scene.b.ia.provider_attr.is_thread_safe
        found: list[list[Sample]] = [[] for _ in range(4)]

        def ask(samples: list[Sample]) -> None:
            samples.extend(scene.b.info for _ in range(2000))

        threads = [threading.Thread(target=ask, args=(samples,)) for samples in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [len(samples) for samples in found] == [2000] * 4
        for samples in found:
            for sample in samples:
                check(sample)


def interrupted(ep: dat.Endpoint, before: int, change: Callable[[], None]) -> tuple[Sample, bool]:
    """Ask; let `change` happen before one instruction of the query, counted from 0.

    Returns the answer, and whether the query has so many instructions.
    """
    left = before

    def trace(frame: FrameType, event: str, _argument: object) -> object:
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            if left == 0:
                change()
            left -= 1
        return trace

    outer = sys.gettrace()
    # CPython 3.12 tells of instructions only if some frame asked before the tracing began.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        _ret, *sample = dat.dat_ep_recv_query(ep)
    finally:
        sys.settrace(outer)
    return tuple(sample), left < 0


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-atomic-counters", "dat-snapshot")
def test_a_query_is_whole_before_whichever_instruction_a_thread_comes_in() -> None:
    """Tries all of them, where threads would meet the wrong one once in many thousand times."""
    with Scene(buffers=1) as scene:
        tracker, seen = scene.b.ep.engine.tracker, Counter[Sample]()
        for before in range(10_000):
            first = tracker.last_completed + 1
            tracker.allocate(first)
            tracker.allocate(first + 2)
            sample, is_inside = interrupted(scene.b.ep, before, partial(tracker.complete, first))
            if not is_inside:
                break
            assert sample in ((2, 3), (1, 2)), f"instruction {before}"
            seen[sample] += 1
            tracker.allocate(first + 1)
            for number in (first + 1, first + 2):
                tracker.complete(number)
        assert seen.keys() == {(2, 3), (1, 2)} and seen.total() > 20


class CountingTracker(ReceiveTracker):
    """Counts how often the set of buffers is looked at, and how."""

    def __init__(self) -> None:
        self.looks: list[str] = []
        super().__init__()
        self._allocated = CountingDict(self.looks)

    @property
    def held(self) -> tuple[int, int]:
        self.looks.append("held")
        return self._published

    @held.setter
    def held(self, counts: tuple[int, int]) -> None:
        self._published = counts


class CountingDict(dict[int, None]):
    """A dictionary that notes each pass over it and each question for its size."""

    def __init__(self, looks: list[str]) -> None:
        super().__init__()
        self.looks = looks

    def __iter__(self) -> Iterator[int]:
        self.looks.append("pass")
        return super().__iter__()

    def __len__(self) -> int:
        self.looks.append("size")
        return super().__len__()


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-single-scan", "dat-atomic-counters", "dat-snapshot")
def test_k2_one_query_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urds.verbs.engine.queue_pair.ReceiveTracker", CountingTracker)
    with Scene(buffers=20) as scene:
        scene.gate(5)
        for message in (1, 4, 5):
            scene.part(message, 0)
        looks = scene.b.ep.engine.tracker.looks
        looks.clear()
        assert scene.b.info == (3, 5)
        assert looks == ["held"]


class TwoPhaseTracker(ReceiveTracker):
    """Counts the buffers, then measures their span: wrong if something happens in between."""

    between: Callable[[], None] | None = None

    @property
    def held(self) -> tuple[int, int]:
        count = len(self._allocated)
        if self.between is not None:
            between, self.between = self.between, None
            between()
        return (count, self._highest - self.last_completed) if count else (0, 0)

    @held.setter
    def held(self, counts: tuple[int, int]) -> None:
        """Publish nothing."""


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-single-scan")
def test_k3_the_check_finds_two_phases_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urds.verbs.engine.queue_pair.ReceiveTracker", TwoPhaseTracker)
    with Scene(buffers=20) as scene:
        scene.gate(3)
        for message in (1, 2, 3):
            scene.part(message, 0)
        check(scene.b.info)
        scene.b.ep.engine.tracker.between = lambda: scene.part(1, 1)
        sample = scene.b.info
        assert sample == (3, 2)
        with pytest.raises(AssertionError):
            check(sample)


@pytest.mark.rows("sim", "sim-native")
def test_k4_a_thousand_endpoints_on_one_shared_queue() -> None:
    with Scene(buffers=0, srq_depth=2000) as scene:
        end = scene.b
        recv = end.ia.create_evd(2000, dat.EvdFlag.DTO)
        sending = end_evds(scene.a)
        pairs = []
        for number in range(1000):
            attr = dat.EpAttr(max_recv_dtos=dat.DAT_HW_DEFAULT)
            ep = end.pz.create_ep(recv, *end_evds(end), attr, end.srq)
            sender = scene.a.pz.create_ep(None, *sending, dat.EpAttr(max_recv_dtos=0))
            connect_endpoints(sender, ep, end.requests)
            pairs.append((sender, ep))
            end.give(2, 2 * number)
        scene.gate()
        for sender, _ in pairs:
            sender.post_send(scene.a.piece())
        random = Random(4)
        scene.hold.release(lambda packet: not packet.offset and random.random() < 0.7)
        scene.run()
        scene.hold.release(lambda packet: packet.offset > 0 and random.random() < 0.5)
        scene.run()
        held = [tuple(ep.recv_query()) for _, ep in pairs]
        for sample in held:
            check(sample)
        total, waiting = sum(count for count, _ in held), len(recv)
        assert total > 300 and waiting > 300
        assert end.counts == (2000 - total - waiting, 2000)
        drain(recv)
        assert end.counts == (2000 - total - waiting, 2000 - waiting)
        assert sum(ep.recv_query().nbufs_allocated for _, ep in pairs) == total


def end_evds(end: End) -> tuple[dat.EventDispatcher, dat.EventDispatcher]:
    """Make a request and a connect dispatcher."""
    connection = end.ia.create_evd(2000, dat.EvdFlag.CONNECTION)
    return end.ia.create_evd(2000, dat.EvdFlag.DTO), connection


# -- E


@pytest.mark.rows("sim")
def test_e2_ten_connections_on_a_shared_queue_as_dtestsrq_makes_them() -> None:
    """Messages with a header, the endpoint's number and one of their own; counts sampled."""
    bursts, burst, header = 6, 10, 0xD7
    with Scene(buffers=0, network=rough_network(2), srq_depth=250) as scene:
        end, random = scene.b, Random(2)
        sending, receiving = end_evds(scene.a), end_evds(end)
        recv = end.ia.create_evd(250, dat.EvdFlag.DTO)
        attr = dat.EpAttr(max_recv_dtos=dat.DAT_HW_DEFAULT, max_request_dtos=bursts * burst)
        receivers = [end.pz.create_ep(recv, *receiving, attr, end.srq) for _ in range(10)]
        attr = dat.EpAttr(max_recv_dtos=0, max_request_dtos=bursts * burst)
        senders = [scene.a.pz.create_ep(None, *sending, attr) for _ in receivers]
        for sender, receiver in zip(senders, receivers, strict=True):
            connect_endpoints(sender, receiver, end.requests)
        posted = 10 * burst
        end.give(posted)
        expected = [0] * 10
        for start in range(0, bursts * burst, burst):
            for number, sender in enumerate(senders):
                for sequence in range(start, start + burst):
                    place = (number * burst + sequence - start) * MESSAGE_BYTES
                    scene.a.data[place : place + 3] = bytes((header, number, sequence))
                    data = random.randrange(3, MESSAGE_BYTES + 1)
                    sender.post_send([scene.a.memory.triplet(place, data)])
            while any(count < start + burst for count in expected):
                assert scene.network.step()
                sampled = [receiver.recv_query() for receiver in receivers]
                for sample in sampled:
                    check(sample)
                available, outstanding = end.counts
                held = sum(count or 0 for count, _ in sampled)
                assert available <= outstanding == available + held + len(recv) <= 250
                for event in drain(recv):
                    assert event.status is dat.DtoStatus.SUCCESS
                    place = event.user_cookie * MESSAGE_BYTES
                    number = receivers.index(event.ep)
                    found = tuple(end.data[place : place + 3])
                    assert found == (header, number, expected[number])
                    expected[number] += 1
                    end.give(1, event.user_cookie)
            scene.settle(lambda: all(sender.request_idle for sender in senders))
        for sender in senders:
            sender.disconnect()
        scene.settle(lambda: all(ep.state is dat.EpState.DISCONNECTED for ep in receivers))
        assert end.counts == (posted, posted)
        for ep in receivers:
            ep.free()
        scene.b.ep.free()
        end.srq.free()


class Refiller:
    """A consumer that looks at its endpoint now and then, and keeps the shared queue filled.

    It has `pool` buffers. Each time it gives back what it has taken; with `margin` it also makes
    sure that as many are available as the endpoint has yet to take, and `margin` more.
    """

    def __init__(self, scene: Scene, pool: int, posted: int, margin: int | None) -> None:
        self.end = scene.b
        self.margin = margin
        self.received = 0
        self.stalled = 0  # looks in a row that found nothing new, and no buffer left
        self.free = deque(range(pool))
        self.give(posted)

    def give(self, count: int) -> None:
        """Post free buffers, as many as there are."""
        for _ in range(min(count, len(self.free))):
            self.end.give(1, self.free.popleft())

    def look(self) -> None:
        """Take what has completed, and refill."""
        events = self.end.taken()
        self.stalled = 0 if events or self.end.available else self.stalled + 1
        for event in events:
            assert event.status is dat.DtoStatus.SUCCESS
            assert self.end.data[event.user_cookie * MESSAGE_BYTES] == self.received % 251
            self.received += 1
            self.free.append(event.user_cookie)
        if self.margin is None:
            self.give(len(events))
        else:
            missing = self.end.ep.recv_query().missing or 0
            self.give(missing + self.margin - self.end.available)


REFILL_NS = 400_000  # below 0.65 ms, after which a sender without a buffer asks again
IN_FLIGHT = 60
REFILLED = int(os.environ.get("TEST_REFILLED_MESSAGES", "3000"))


def stream(scene: Scene, consumer: Refiller, count: int) -> Iterator[None]:
    """Send messages and let the consumer look at each interval; yield after each look."""
    sent, outstanding = 0, 0
    while consumer.received < count:
        while outstanding < IN_FLIGHT and sent < count:
            scene.a.data[sent % 251 * MESSAGE_BYTES] = sent % 251
            scene.a.send(1 + sent % MESSAGE_BYTES, sent % 251)
            sent, outstanding = sent + 1, outstanding + 1
        scene.network.run(for_ns=REFILL_NS)
        outstanding -= len(drain(scene.a.request))
        consumer.look()
        yield


@pytest.mark.rows("sim")
def test_e4_who_refills_by_the_counts_never_stalls() -> None:
    """Buffers for the gaps, and a margin far below what may be on its way."""
    count = REFILLED
    with Scene(network=SimNetwork(3, mtu_bytes=PACKET_BYTES, **ROUGH), buffers=0) as scene:
        consumer = Refiller(scene, pool=250, posted=24, margin=24)
        for _ in stream(scene, consumer, count):
            assert consumer.stalled <= 1
        assert (consumer.received, scene.b.info) == (count, (0, 0))


@pytest.mark.rows("sim")
def test_who_only_gives_back_what_completed_stalls_for_good() -> None:
    """The messages that came first hold all buffers; the one that is next gets none."""
    with Scene(network=SimNetwork(3, mtu_bytes=PACKET_BYTES, **ROUGH), buffers=0) as scene:
        consumer = Refiller(scene, pool=250, posted=24, margin=None)
        for _ in stream(scene, consumer, 3000):
            if consumer.stalled == 100:
                break
        info = scene.b.ep.recv_query()
        assert (scene.b.available, info.nbufs_allocated) == (0, 24)
        assert info.missing


# -- any order


@pytest.mark.rows("sim")
@pytest.mark.rule("dat-span-at-least-count", "dat-sequence-order", "dat-deliver-in-order")
@settings(max_examples=examples(40))
@given(
    halves=st.permutations([(message, half) for message in range(1, 9) for half in (0, 1)]),
    repeats=st.lists(st.integers(0, 15), max_size=4),
    receive_order=st.sampled_from([ReceiveOrder.ARRIVAL_ORDER, ReceiveOrder.FILL_GAPS]),
)
def test_whatever_the_order_of_arrival_counts_and_order_are_right(
    halves: list[tuple[int, int]], repeats: list[int], receive_order: ReceiveOrder
) -> None:
    """Both counts are those of a model: which messages have begun, which are complete."""
    with Scene(buffers=10, receive_order=receive_order) as scene:
        scene.gate(8)
        arrived: set[tuple[int, int]] = set()
        for index, (message, half) in enumerate(halves):
            scene.part(message, half)
            arrived.add((message, half))
            if index in repeats:
                scene.repeat(*halves[index // 2])
            done = 0
            while {(done + 1, 0), (done + 1, 1)} <= arrived:
                done += 1
            begun = {message for message, _ in arrived if message > done}
            highest = max(begun, default=done)
            fills = receive_order is ReceiveOrder.FILL_GAPS
            count = highest - done if fills else len(begun)
            assert scene.b.info == (count, highest - done)
            assert len(scene.b.recv) == done
            assert scene.b.available == 10 - done - count
        assert scene.b.info == (0, 0)
        assert all(event.status is dat.DtoStatus.SUCCESS for event in scene.b.taken())
