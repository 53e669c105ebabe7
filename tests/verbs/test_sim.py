"""The simulated network: virtual time, one seed one run, faults and scripts."""

import errno
import threading
from collections.abc import Iterator

import pytest

from tests.verbs.pair import End, bytes_of, connect, reads
from urds.verbs import Context, QPAttr, QPAttrMask, QPState, WCStatus
from urds.verbs.cm.messages import CM_QKEY, CM_QPN, CmMessage, CmMessageKind
from urds.verbs.engine.packets import Packet, PacketKind, emit_packet
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
    VerbsConnectionEvent,
)
from urds.verbs.providers.packet_connection import packed
from urds.verbs.providers.sim import LinkProfile, SimAdapter, SimNetwork

PORT = 5000
SECOND_NS = 1_000_000_000
ESTABLISHED = ConnectionEventKind.ESTABLISHED


class Pair:
    """A network with two ends."""

    def __init__(self, network: SimNetwork) -> None:
        self.network = network
        self.adapters = (network.adapter("left"), network.adapter("right"))
        self.left, self.right = (End(Context(adapter=adapter)) for adapter in self.adapters)

    def connect(self) -> None:
        """Connect left to right."""
        connect(self.left, self.right, (self.adapters[1].address, PORT))


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(SimNetwork(1))
    yield made
    made.left.context.close()
    made.right.context.close()


def test_time_passes_only_as_things_happen(pair: Pair) -> None:
    assert pair.network.now_ns == 0
    assert not pair.network.step()
    pair.connect()
    assert 0 < pair.network.now_ns < SECOND_NS


def test_a_wait_for_nothing_returns_at_once(pair: Pair) -> None:
    assert not pair.adapters[0].wait(lambda: False, None)
    assert pair.network.now_ns == 0
    assert not pair.adapters[0].wait(lambda: False, 5 * SECOND_NS)
    assert pair.network.now_ns == 5 * SECOND_NS


def test_a_wait_without_limit_ends_though_peers_ask_for_ever(pair: Pair) -> None:
    pair.connect()
    assert not pair.adapters[0].wait(lambda: False, None)


def run_of(seed: int) -> list[tuple[int, str, bytes]]:
    """Return all that went over a bad link, with the times."""
    network = SimNetwork(seed, loss=0.1, duplicate=0.1, reorder=0.2, corrupt=0.05, jitter_ns=9000)
    seen: list[tuple[int, str, bytes]] = []

    def note(data: bytes, source: SimAdapter, _target: SimAdapter) -> None:
        seen.append((network.now_ns, source.name, data))

    network.on_packet = note
    pair = Pair(network)
    pair.connect()
    # Keys and addresses are the process's own, so only messages without them repeat exactly.
    reads(pair.left, pair.right, count=20, length=100)
    pair.left.context.close()
    pair.right.context.close()
    return seen


def test_one_seed_one_run() -> None:
    assert run_of(7) == run_of(7)
    assert run_of(7) != run_of(8)


def test_directions_have_profiles_of_their_own(pair: Pair) -> None:
    left, right = pair.adapters
    pair.network.set_profile(left, right, LinkProfile(delay_ns=7_000_000))
    pair.connect()
    assert pair.network.profile_of(right, left).delay_ns == 50_000
    assert pair.network.now_ns >= 14_000_000  # the request, and after the reply the RTU


def test_a_cut_is_survived_and_a_long_one_breaks(pair: Pair) -> None:
    pair.connect()
    left, right = pair.adapters
    pair.right.post_receives(1, 100)
    pair.network.cut(left, right)
    pair.left.send(0, bytes_of(0, 100))
    pair.network.run(SECOND_NS // 2)
    pair.network.cut(left, right, is_cut=False)
    assert pair.left.statuses(1) == [WCStatus.SUCCESS]
    pair.network.cut(left, right)
    pair.left.send(1, bytes_of(1, 100))
    assert pair.left.wait_for_end(60 * SECOND_NS) is ConnectionEventKind.BROKEN
    assert pair.left.statuses(1) == [WCStatus.RETRY_EXC_ERR]


def test_a_killed_adapter_falls_silent(pair: Pair) -> None:
    pair.connect()
    pair.network.kill(pair.adapters[1])
    assert pair.left.wait_for_end(11 * SECOND_NS) is ConnectionEventKind.BROKEN
    assert pair.network.now_ns < 11 * SECOND_NS


def test_a_script_holds_packets_and_lets_them_go_in_its_order(pair: Pair) -> None:
    pair.connect()

    def is_second(packet: Packet, source: SimAdapter, _target: SimAdapter) -> bool:
        return source is pair.adapters[0] and packet.kind is PacketKind.SEND and packet.msn == 2

    hold = pair.network.hold(is_second)
    pair.right.post_receives(3, 100)
    for number in range(3):
        pair.left.send(number, bytes_of(number, 100))
    pair.network.run(10_000_000)
    assert [wc.wr_id for wc in pair.right.cq.poll(9)[1]] == [0]
    assert hold.held
    hold.close()
    assert [wc.wr_id for wc in pair.right.cq.wait_for(2, 1.0)] == [1, 2]


def test_a_script_decides_what_becomes_of_each_packet(pair: Pair) -> None:
    pair.connect()
    dropped: list[bytes] = []

    def lose_three(
        data: bytes, _source: SimAdapter, _target: SimAdapter
    ) -> list[tuple[int, bytes]] | None:
        if len(dropped) < 3:
            dropped.append(data)
            return []
        return [(10, data), (20, data)]

    pair.network.on_packet = lose_three
    reads(pair.left, pair.right, count=5)
    assert len(dropped) == 3


def test_injected_bytes_of_any_kind_do_no_harm(pair: Pair) -> None:
    pair.connect()
    left, right = pair.adapters
    for length in range(100):
        with pair.network.lock:
            pair.network.inject(bytes(range(length)), source=left, target=right)
    reads(pair.left, pair.right)
    assert right.packets.dropped_malformed == 100


def test_packets_of_another_source_are_not_the_peers(pair: Pair) -> None:
    pair.connect()
    pending = pair.network.adapter("pending")
    hold = pair.network.hold(lambda packet, _source, _target: packet.kind is PacketKind.SEND)
    pair.right.post_receives(1, 100)
    pair.left.send(0, bytes_of(0, 100))
    with pair.network.lock:
        pair.network.inject(hold.held[0].data, source=pending, target=pair.adapters[1])
    pair.network.run(1_000_000)
    assert len(pair.right.cq) == 0
    assert pair.adapters[1].packets.dropped_source == 1
    hold.close()
    assert pair.right.statuses(1) == [WCStatus.SUCCESS]


def test_addresses_are_of_one_adapter_each() -> None:
    network = SimNetwork()
    network.adapter("first", address="10.9.9.9")
    with pytest.raises(OSError) as caught:
        network.adapter("second", address="10.9.9.9")
    assert caught.value.errno == errno.EADDRINUSE


def test_a_connect_to_nowhere_is_refused_or_unreachable(pair: Pair) -> None:
    pair.left.connect((pair.adapters[1].address, 9))
    assert pair.left.wait_for_end() is ConnectionEventKind.REFUSED
    pair.left.events.clear()
    pair.left.connect(("10.8.8.8", 9))
    assert pair.left.wait_for_end(60 * SECOND_NS) is ConnectionEventKind.UNREACHABLE


def test_a_queue_pair_has_one_connection(pair: Pair) -> None:
    pair.right.listen((pair.adapters[1].address, PORT))
    pair.left.connect((pair.adapters[1].address, PORT))
    with pytest.raises(OSError, match="has a connection"):
        pair.left.connect((pair.adapters[1].address, PORT))


def test_private_data_over_the_limit_is_refused_with_the_limit(pair: Pair) -> None:
    adapter = pair.adapters[0]
    with pytest.raises(OSError, match="197 bytes, limit 196"), adapter.lock:
        adapter.connect(
            pair.left.qp.engine,
            ("10.0.0.2", 1),
            PortSpace.TCP,
            ConnectParameters(bytes(197)),
            on_event=print,
        )


def test_an_accept_that_cannot_be_leaves_the_request(pair: Pair) -> None:
    requests: list[VerbsConnectionEvent] = []
    adapter = pair.adapters[1]
    with adapter.lock:
        adapter.listen((adapter.address, PORT), PortSpace.TCP, backlog=1, on_event=requests.append)
    pair.left.connect((adapter.address, PORT))
    assert adapter.wait(lambda: bool(requests), None)
    request, qp = requests[0].connection, pair.right.qp
    qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE)
    with adapter.lock, pytest.raises(OSError) as caught:
        request.accept(qp.engine, ConnectParameters())
    assert caught.value.errno == errno.EINVAL
    qp.modify(QPAttr(qp_state=QPState.RESET), QPAttrMask.STATE)
    with adapter.lock:
        request.accept(qp.engine, ConnectParameters())
    assert pair.left.wait_for(ESTABLISHED)


def test_a_queue_pair_that_its_owner_moves_ends_the_connect(pair: Pair) -> None:
    pair.right.listen((pair.adapters[1].address, PORT))
    pair.left.connect((pair.adapters[1].address, PORT))
    pair.left.qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE)
    assert pair.left.wait_for_end() is ConnectionEventKind.ERROR
    assert pair.right.wait_for_end() is not None


def test_a_flood_of_requests_costs_a_bounded_table(pair: Pair) -> None:
    """Unknown peers ask under 3000 names; those beyond the backlog are refused and forgotten."""
    left, right = pair.adapters
    requests: list[VerbsConnectionEvent] = []
    with right.lock:
        right.listen((right.address, PORT), PortSpace.TCP, backlog=16, on_event=requests.append)
        for number in range(3000):
            message = CmMessage(
                kind=CmMessageKind.REQ,
                context_guid=number.to_bytes(8, "big"),
                local_id=number + 1,
                space=PortSpace.TCP,
                target=packed(right.address),
                target_port=PORT,
            )
            packet = Packet(
                PacketKind.DATAGRAM, CM_QPN, source_qpn=CM_QPN, qkey=CM_QKEY,
                payload=message.emit(),
            )  # fmt: skip
            data = b"".join(emit_packet(packet, checksum=True))
            pair.network.inject(data, source=left, target=right)
    pair.network.run(1_000_000)
    assert len(requests) == 16
    assert right.cm.stats.rejected_backlog == 2984
    assert len(right.cm._connections) == 16
    pair.network.run(60 * SECOND_NS)
    assert len(right.cm._connections) == 0


def test_a_callback_may_leave_work_for_later(pair: Pair) -> None:
    adapter, done = pair.adapters[0], []
    with adapter.lock:
        adapter.call_soon(lambda: done.append(1))
        assert done == []
    assert adapter.wait(lambda: bool(done), None)


def test_owners_may_answer_from_their_callbacks(pair: Pair) -> None:
    """Accept, post and disconnect inside events: nothing is entered twice."""
    pair.right.post_receives(1, 100)
    left = pair.left

    def take(event: VerbsConnectionEvent) -> None:
        left.events.append(event)
        if event.kind is ESTABLISHED:
            left.send(0, bytes_of(0, 100))
            event.connection.disconnect()

    pair.right.listen((pair.adapters[1].address, PORT))
    with left.adapter.lock:
        left.adapter.connect(
            left.qp.engine,
            (pair.adapters[1].address, PORT),
            PortSpace.TCP,
            ConnectParameters(),
            on_event=take,
        )
    assert left.wait_for_end() is ConnectionEventKind.DISCONNECTED
    assert pair.right.wait_for_end() is ConnectionEventKind.DISCONNECTED


def test_an_adapter_connects_to_itself(pair: Pair) -> None:
    other = End(pair.left.context)
    connect(pair.left, other, ("127.0.0.1", PORT))
    reads(pair.left, other)


def test_several_threads_may_wait_at_once() -> None:
    """Each drives the common clock; each sees its own messages whole and in order."""
    network = SimNetwork(6, loss=0.02)
    pairs = [Pair(network) for _ in range(3)]
    failures: list[BaseException] = []

    def run(pair: Pair) -> None:
        try:
            pair.connect()
            reads(pair.left, pair.right, count=20)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(pair,)) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []


def test_a_timer_that_comes_after_the_close_finds_nothing(pair: Pair) -> None:
    """A device with a thread may be in its timers while another thread closes it."""
    pair.connect()
    pair.left.send(1, b"x" * 100)  # not acknowledged yet: it has a timer
    adapter = pair.adapters[0]
    assert adapter.deadline_ns() is not None
    adapter.close()
    with (
        adapter.lock,
        adapter.flushing,
        adapter.batch,
    ):  # as the progress thread does when it gets the lock
        adapter._run_timers(adapter.now_ns() + 3600 * SECOND_NS)
