"""The `udp` provider: real sockets, two processes, a bad relay between them, a killed peer."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.support.waiting import ends_with
from tests.verbs.pair import REGION_BYTES, End, bytes_of, connect, reads
from tests.verbs.relay import Relay
from urds.verbs import (
    CQ,
    MR,
    PD,
    QP,
    AHAttr,
    Context,
    GlobalRoute,
    QPAttr,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
    VerbsError,
    WCStatus,
)
from urds.verbs.engine.packets import PacketKind
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
    VerbsConnectionEvent,
)
from urds.verbs.providers.udp import UdpAdapter, UdpSettings

SECOND_NS = 1_000_000_000
HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    left, right = End(Context("udp0")), End(Context("udp0"))
    yield left, right
    left.context.close()
    right.context.close()


@contextmanager
def peer_process(*, count: int, length: int) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Start the other process; yield it and its port."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.verbs.peer_process", "udp0", str(count), str(length)],
        stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_two_contexts_of_one_process_exchange_messages(ends: tuple[End, End]) -> None:
    left, right = ends
    connect(left, right, (HOST, 0))
    reads(left, right)
    reads(right, left)
    left.disconnect()
    assert left.wait_for_end() is right.wait_for_end() is ConnectionEventKind.DISCONNECTED


def test_a_listener_at_all_addresses_answers_from_the_one_that_was_asked(
    ends: tuple[End, End],
) -> None:
    left, right = ends
    port = right.listen(("0.0.0.0", 0)).local[1]
    left.connect(("127.0.0.7", port))
    assert left.wait_for(ConnectionEventKind.ESTABLISHED)
    reads(left, right)
    assert right.connection is not None
    assert right.connection.local == ("127.0.0.7", port)


@pytest.mark.parametrize(
    ("wildcard", "host", "own"),
    [("0.0.0.0", "127.0.0.7", "127.0.0.1"), ("::", "::1", "::1")],
)
def test_a_client_at_all_addresses_is_answered_and_names_the_one_that_it_uses(
    ends: tuple[End, End], wildcard: str, host: str, own: str
) -> None:
    left, right = ends
    local = right.listen((host, 0)).local
    left.connect(local, (wildcard, 0))
    assert left.wait_for(ConnectionEventKind.ESTABLISHED)
    reads(left, right)
    reads(right, left)
    assert left.connection is not None
    assert right.connection is not None
    assert left.connection.local == right.connection.peer
    assert left.connection.local[0] == own


def test_a_client_at_all_addresses_hears_of_an_unbound_port_at_once(ends: tuple[End, End]) -> None:
    left, _ = ends
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    left.connect((HOST, port), ("0.0.0.0", 0))
    assert left.wait_for_end(2 * SECOND_NS) is ConnectionEventKind.REFUSED


def test_ipv6_works_as_ipv4(ends: tuple[End, End]) -> None:
    left, right = ends
    connect(left, right, ("::1", 0))
    reads(left, right)


def test_an_unbound_port_is_told_at_once(ends: tuple[End, End]) -> None:
    left, _ = ends
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    left.connect((HOST, port))
    assert left.wait_for_end(2 * SECOND_NS) is ConnectionEventKind.REFUSED


def test_a_port_has_one_listener(ends: tuple[End, End]) -> None:
    left, right = ends
    local = right.listen((HOST, 0)).local
    for end in ends:
        with pytest.raises(OSError) as caught:
            end.listen(local)
        assert caught.value.errno == errno.EADDRINUSE
    assert left.events == []


def test_a_closed_listener_gives_its_port_back(ends: tuple[End, End]) -> None:
    left, right = ends
    listener = right.listen((HOST, 0))
    with right.adapter.lock:
        listener.close()
    assert left.listen(listener.local).local == listener.local


def test_a_listener_may_outlive_its_device(ends: tuple[End, End]) -> None:
    listener = ends[0].listen((HOST, 0))
    ends[0].context.close()
    listener.close()


def test_a_connection_outlives_its_listener(ends: tuple[End, End]) -> None:
    left, right = ends
    listener = right.listen((HOST, 0))
    left.connect(listener.local)
    assert left.wait_for(ConnectionEventKind.ESTABLISHED)
    with right.adapter.lock:
        listener.close()
    reads(left, right)
    reads(right, left)


@pytest.mark.parametrize(("theirs", "agreed"), [(None, 8192), (1400, 1400), (9000, 8192)])
def test_the_smaller_mtu_of_two_counts(theirs: int | None, agreed: int) -> None:
    left = End(Context(adapter=UdpAdapter(settings=UdpSettings(mtu_bytes=8192))))
    right = End(Context(adapter=UdpAdapter(settings=UdpSettings(mtu_bytes=theirs))))
    try:
        connect(left, right, (HOST, 0))
        assert left.qp.engine.mtu_bytes == right.qp.engine.mtu_bytes == agreed
        reads(left, right, count=10, length=20_000)
        reads(right, left, count=10, length=20_000)
    finally:
        left.context.close()
        right.context.close()


def test_datagrams_find_a_queue_pair_that_was_looked_up() -> None:
    with Context("udp0") as left, Context("udp0") as right:
        ends = [_datagram_end(context) for context in (left, right)]
        (left_qp, left_cq, left_mr), (right_qp, right_cq, right_mr) = ends
        right_qp.post_recv(RecvWR(5, [right_mr.sge(0, 200)]))
        requests: list[VerbsConnectionEvent] = []

        def accept(event: VerbsConnectionEvent) -> None:
            requests.append(event)
            if event.kind is ConnectionEventKind.REQUEST:
                event.connection.accept(right_qp.engine, ConnectParameters(qkey=0x1111))

        with right.adapter.lock:
            listener = right.adapter.listen((HOST, 0), PortSpace.UDP, backlog=1, on_event=accept)
        events: list[VerbsConnectionEvent] = []
        with left.adapter.lock:
            left.adapter.connect(
                None, listener.local, PortSpace.UDP, ConnectParameters(), on_event=events.append
            )
        assert left.adapter.wait(lambda: bool(events), 5 * SECOND_NS)
        found = events[0]
        assert found.kind is ConnectionEventKind.ESTABLISHED
        assert (found.qpn, found.parameters.qkey) == (right_qp.qp_num, 0x1111)
        left_mr.write(b"a datagram")
        request = SendWR(1, sg=[left_mr.sge(0, 10)])
        request.set_wr_ud(found.vector, found.qpn, found.parameters.qkey)
        left_qp.post_send(request)
        assert left_cq.wait_for(1, 5)[0].status is WCStatus.SUCCESS
        assert right_cq.wait_for(1, 5)[0].byte_len == 50
        assert right_mr.read(10, 40) == b"a datagram"


def test_datagrams_need_only_a_gid_and_a_port() -> None:
    with Context("udp0") as left, Context("udp0") as right:
        left_qp, _, left_mr = _datagram_end(left)
        right_qp, right_cq, right_mr = _datagram_end(right)
        right_qp.post_recv(RecvWR(5, [right_mr.sge(0, 200)]))
        assert isinstance(right.adapter, UdpAdapter)
        route = GlobalRoute(dgid=right.query_gid())
        vector = AHAttr(gr=route, udp_port=right.adapter.port).vector()
        left_mr.write(b"hello")
        request = SendWR(1, sg=[left_mr.sge(0, 5)])
        request.set_wr_ud(vector, right_qp.qp_num, 0x1111)
        left_qp.post_send(request)
        assert right_cq.wait_for(1, 5)[0].status is WCStatus.SUCCESS
        assert right_mr.read(5, 40) == b"hello"


def test_garbage_does_no_harm(ends: tuple[End, End]) -> None:
    left, right = ends
    connect(left, right, (HOST, 0))
    assert isinstance(right.adapter, UdpAdapter)
    random = Random(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as pending:
        for length in range(0, 3000, 11):
            pending.sendto(random.randbytes(length), (HOST, right.adapter.port))
    reads(left, right)
    assert right.adapter.wait(lambda: right.adapter.packets.dropped_malformed > 200, SECOND_NS)


def test_closing_the_context_tells_the_peer(ends: tuple[End, End]) -> None:
    left, right = ends
    connect(left, right, (HOST, 0))
    right.context.close()
    assert left.wait_for_end(5 * SECOND_NS) is ConnectionEventKind.DISCONNECTED


@pytest.mark.parametrize("what", ["context", "queue pair", "completion queue", "connection"])
def test_closing_under_traffic_is_safe(ends: tuple[End, End], what: str) -> None:
    """A thread sends and receives all the time; it ends with an error of ours or flushed work."""
    left, right = ends
    connect(left, right, (HOST, 0))
    is_over, problems = threading.Event(), []

    def talk() -> None:
        try:
            while not is_over.is_set():
                reads(left, right, count=10, length=3000)
        except (VerbsError, AssertionError) as error:
            if not is_over.is_set():
                problems.append(error)

    thread = threading.Thread(target=talk)
    thread.start()
    time.sleep(0.1)
    is_over.set()
    if what == "connection":
        left.disconnect()
    else:
        things = {"context": right.context, "queue pair": right.qp, "completion queue": left.cq}
        things[what].close()
    left.context.close()
    right.context.close()
    thread.join(10)
    assert not thread.is_alive()
    assert problems == []


def test_a_closed_context_leaves_no_thread_and_no_descriptor() -> None:
    def held() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    before = held()
    context = Context("udp0")
    context.close()
    assert ends_with(held, before)  # the progress thread ends if no other device is open


def test_an_mtu_beyond_udp_is_refused() -> None:
    with pytest.raises(ValueError, match="mtu of 70000 bytes, not 256 to 65000"):
        UdpAdapter(settings=UdpSettings(mtu_bytes=70_000))


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(OSError) as caught:
        UdpAdapter(settings=UdpSettings(address="192.0.2.1"))
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_two_processes_exchange_messages() -> None:
    _talk_to_process(relay=None)


@pytest.mark.parametrize("seed", range(3))
def test_a_relay_that_loses_and_reorders_is_survived(seed: int) -> None:
    """The relay knows nothing of us: it passes bytes on, and answers back to their sender."""
    _talk_to_process(relay=seed)


def test_a_relay_holds_one_message_back_and_lets_it_go(ends: tuple[End, End]) -> None:
    left, right = ends
    relay = Relay(right.listen((HOST, 0)).local[1])
    try:
        left.connect((HOST, relay.port))
        assert left.wait_for(ConnectionEventKind.ESTABLISHED)
        relay.hold_back(lambda packet: packet.kind is PacketKind.SEND and packet.msn == 2)
        right.post_receives(3, 100)
        for number in range(3):
            left.send(number, bytes_of(number, 100))
        assert right.cq.wait_for(1, 5)[0].wr_id == 0
        assert left.adapter.wait(lambda: len(relay.held()) > 1, 5 * SECOND_NS)
        assert len(right.cq) == 0
        relay.release()
        assert [wc.wr_id for wc in right.cq.wait_for(2, 5)] == [1, 2]
    finally:
        relay.close()


def test_a_killed_process_breaks_the_connection_in_bounded_time() -> None:
    with peer_process(count=100, length=100) as (process, port):
        left = End(Context("udp0"))
        try:
            left.connect((HOST, port))
            assert left.wait_for(ConnectionEventKind.ESTABLISHED)
            process.send_signal(signal.SIGKILL)
            process.wait()
            started = time.monotonic()
            assert left.wait_for_end(15 * SECOND_NS) is ConnectionEventKind.BROKEN
            # The host says so as soon as we ask: after two seconds of silence.
            assert time.monotonic() - started < 6
        finally:
            left.context.close()


def test_a_process_killed_under_traffic_fails_the_work() -> None:
    with peer_process(count=100, length=100) as (process, port):
        left = End(Context("udp0"))
        try:
            left.connect((HOST, port))
            assert left.wait_for(ConnectionEventKind.ESTABLISHED)
            left.post_receives(1, 100)
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)  # the signal takes its time
            left.send(1, bytes_of(1, 100))
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert left.wait_for_end(15 * SECOND_NS) is ConnectionEventKind.BROKEN
            statuses = left.statuses(2, 5.0)
            assert WCStatus.SUCCESS not in statuses
        finally:
            left.context.close()


def _datagram_end(context: Context) -> tuple[QP, CQ, MR]:
    domain, queue = PD(context), CQ(context, 16)
    init = QPInitAttr(qp_type=QPType.UD, scq=queue, rcq=queue)
    return QP(domain, init, QPAttr(qkey=0x1111)), queue, MR(domain, 4096)


def _talk_to_process(*, relay: int | None, count: int = 60, length: int = 3000) -> None:
    with peer_process(count=count, length=length) as (process, port):
        between = None if relay is None else Relay(port, relay, loss=0.02, hold=0.2)
        left = End(Context("udp0"))
        try:
            left.post_receives(count, length, base=REGION_BYTES // 2)
            left.connect((HOST, port if between is None else between.port))
            assert left.wait_for(ConnectionEventKind.ESTABLISHED), left.events
            for number in range(count):
                left.send(number, bytes_of(number, length))
            assert set(left.statuses(2 * count)) == {WCStatus.SUCCESS}
            for number in range(count):
                data = left.mr.read(length, REGION_BYTES // 2 + number * length)
                assert data == bytes_of(number, length)
            assert process.stdout is not None
            assert [process.stdout.readline().strip() for _ in range(2)] == ["ready", "sent"]
            left.disconnect()
            assert left.wait_for_end() is ConnectionEventKind.DISCONNECTED
            assert process.stdout.read().strip() == "DISCONNECTED"
            if between is not None:
                assert between.reordered > 10
        finally:
            left.context.close()
            if between is not None:
                between.close()
