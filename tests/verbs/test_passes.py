"""When sinks and owners are told: at the end of a pass, outside of every queue pair's work."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.verbs.plain_peer import ENHANCED, REPLY_KEY, REQUEST_KEY, SEND, PlainPeer
from urds.verbs.engine.numbers import (
    AccessFlag,
    AsyncEventType,
    QPAttrMask,
    QPState,
    QPType,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.queue_pair import QPAttr, QPCap, QueuePair
from urds.verbs.engine.responder import Responder
from urds.verbs.engine.work import SGE, WC, AddressVector, EngineEvent, Event, RecvWR, SendWR
from urds.verbs.providers.base import (
    Adapter,
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
    VerbsConnection,
    VerbsConnectionEvent,
)
from urds.verbs.providers.shm import open_adapter
from urds.verbs.providers.sim import SimNetwork
from urds.verbs.providers.tcp import TcpAdapter
from urds.verbs.providers.udp import UdpAdapter

WAIT_NS = 20_000_000_000
HOST = "127.0.0.1"
QKEY = 7
RECEIVE_BYTES = 64
WORK = ("receive_packet", "poll_transmit", "handle_timeout", "modify", "post_send")
ERROR = QPAttr(qp_state=QPState.ERR)
STATE = QPAttrMask.STATE
STEPS = {
    QPState.INIT: STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.QKEY,
    QPState.RTR: STATE,
    QPState.RTS: STATE | QPAttrMask.SQ_PSN,
}


class Side:
    """A queue pair whose completions go to a sink; its shared receives go back from there."""

    def __init__(self, adapter: Adapter, receives: int, kind: QPType = QPType.RC) -> None:
        self.adapter = adapter
        self.passes: list[list[WC]] = []  # what the sink was given
        self.log: list[str] = []
        self.connection: VerbsConnection | None = None
        self.on_pass: Callable[[], None] = lambda: None
        domain = object()
        with adapter.lock:
            adapter.on_events = self.take_events
            self.srq = adapter.shared_receive_queue(receives, 1, pd=domain)
            queue = adapter.completion_queue(1, sink=self.take)
            self.qp = adapter.queue_pair(
                kind=kind,
                pd=domain,
                send_cq=queue,
                recv_cq=queue,
                srq=self.srq,
                cap=QPCap(max_send_wr=256, max_recv_wr=0),
                sq_sig_all=True,
            )
            view = memoryview(bytearray(RECEIVE_BYTES))
            self.region = adapter.register(domain, view, 0, AccessFlag.LOCAL_WRITE)
            for _ in range(receives):
                self.post()

    def post(self) -> None:
        self.srq.post(RecvWR(1, [SGE(0, RECEIVE_BYTES, self.region.lkey)]))

    def take(self, completions: list[WC]) -> None:
        self.passes.append(completions)
        self.log.append("completions")
        for wc in completions:
            if wc.wr_id == 1 and wc.status is WCStatus.SUCCESS:
                self.post()
        self.on_pass()

    def take_events(self, events: list[Event]) -> None:
        self.log += [event.event_type.name for event in events if isinstance(event, EngineEvent)]

    def note(self, event: VerbsConnectionEvent) -> None:
        if event.kind is ConnectionEventKind.REQUEST:
            self.connection = event.connection
            event.connection.accept(self.qp, ConnectParameters())
        self.log.append(event.kind.name)

    def taken(self, wr_id: int) -> int:
        return sum(wc.wr_id == wr_id for taken in self.passes for wc in taken)

    def send(self, count: int, **fields: Any) -> None:
        with self.adapter.lock:
            for _ in range(count):
                self.qp.post_send(SendWR(2, WROpcode.SEND, **fields), self.adapter.now_ns())
            self.adapter.progress_qp(self.qp)

    def until(self, is_ready: Callable[[], bool]) -> None:
        assert self.adapter.wait(is_ready, WAIT_NS), (self.log, len(self.passes))


@pytest.fixture(params=["shm", "tcp", "udp", "sim"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Adapter]]:
    """Yield two adapters that reach each other."""
    made: list[Adapter] = []
    if request.param == "sim":
        network = SimNetwork()
        made += [network.adapter(), network.adapter()]
    for _ in range(0 if made else 2):
        if request.param == "shm":
            made.append(open_adapter(directory=tmp_path / "meet"))
        else:
            made.append(TcpAdapter() if request.param == "tcp" else UdpAdapter())
    yield made
    for adapter in made:
        adapter.close()


def pair(opened: list[Adapter], receives: int = 8) -> tuple[Side, Side]:
    """Return two connected sides."""
    left, right = (Side(adapter, receives) for adapter in opened)
    host = getattr(right.adapter, "address", HOST)
    with right.adapter.lock:
        listener = right.adapter.listen((host, 0), PortSpace.TCP, backlog=4, on_event=right.note)
    with left.adapter.lock:
        left.connection = left.adapter.connect(
            left.qp, listener.local, PortSpace.TCP, ConnectParameters(), on_event=left.note
        )
    for side in (left, right):
        side.until(lambda side=side: "ESTABLISHED" in side.log)
        side.log.clear()
    return left, right


def watch_work(monkeypatch: pytest.MonkeyPatch, qp: QueuePair) -> list[str]:
    """Return the calls into a queue pair that have begun and not ended.

    Its peer's do not count: another thread may be in them at any time.
    """
    running: list[str] = []

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(called: QueuePair, *arguments: Any, **more: Any) -> Any:
            if called is not qp:
                return real(called, *arguments, **more)
            running.append(name)
            try:
                return real(called, *arguments, **more)
            finally:
                running.remove(name)

        return run

    for name in WORK:
        monkeypatch.setattr(QueuePair, name, watched(name, getattr(QueuePair, name)))
    return running


def test_no_queue_pair_is_at_work_while_a_sink_is_told(
    opened: list[Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message is answered from the sink; in the end the sink ends the queue pair itself."""
    left, right = pair(opened)
    running, seen = watch_work(monkeypatch, right.qp), list[list[str]]()

    def answer() -> None:
        seen.append(list(running))
        right.send(sum(wc.wr_id == 1 for wc in right.passes[-1]))
        if right.taken(1) == 100:
            right.qp.modify(ERROR, STATE, right.adapter.now_ns())
            right.adapter.progress_qp(right.qp)

    right.on_pass = answer
    left.send(100)
    right.until(lambda: right.taken(1) == 100 and "QP_LAST_WQE_REACHED" in right.log)
    assert right.taken(2) == 100
    assert not any(seen), seen


def test_a_sink_is_not_told_inside_of_itself(opened: list[Adapter]) -> None:
    """What it brings about is told once it has returned, all in the same pass."""
    left, _ = pair(opened)
    depths, depth = [], 0

    def go_on() -> None:
        nonlocal depth
        depth += 1
        depths.append(depth)
        if len(depths) < 5:
            left.send(2)
        depth -= 1

    left.on_pass = go_on
    with left.adapter.lock:
        left.qp.modify(ERROR, STATE, left.adapter.now_ns())
        left.send(3)
        assert [len(taken) for taken in left.passes] == [3, 2, 2, 2, 2]
    assert depths == [1] * 5


def test_the_end_of_a_connection_comes_after_what_it_flushed(opened: list[Adapter]) -> None:
    left, right = pair(opened)
    with right.adapter.lock, left.adapter.lock:  # nothing of it is taken in
        left.send(3)
        assert left.connection is not None
        left.connection.disconnect()
    left.until(lambda: "DISCONNECTED" in left.log)
    assert left.log.index("completions") < left.log.index("DISCONNECTED")
    assert left.taken(2) == 3
    right.until(lambda: "DISCONNECTED" in right.log)
    told = [entry for entry in right.log if entry in ("QP_LAST_WQE_REACHED", "DISCONNECTED")]
    assert told == ["QP_LAST_WQE_REACHED", "DISCONNECTED"]


def test_what_a_peer_refused_breaks_a_connection_before_the_peer_ends_it(
    opened: list[Adapter],
) -> None:
    """Also where both come in one batch: how it ended does not depend on when it was read."""
    left, right = pair(opened)

    def disconnect(events: list[Event]) -> None:
        right.take_events(events)
        assert right.connection is not None
        right.connection.disconnect()

    right.adapter.on_events = disconnect
    with left.adapter.lock:  # nothing is taken in there
        wr = SendWR(2, WROpcode.RDMA_WRITE, rkey=1, data=b"x")
        left.qp.post_send(wr, left.adapter.now_ns())
        left.adapter.progress_qp(left.qp)
        right.until(lambda: "QP_ACCESS_ERR" in right.log)
    left.until(lambda: not {"BROKEN", "DISCONNECTED"}.isdisjoint(left.log))
    assert [one for one in left.log if one in ConnectionEventKind.__members__] == ["BROKEN"]


def test_a_pass_ends_where_shared_receives_run_dry(
    opened: list[Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst of a hundred messages needs no more than eight receives, and no peer waits."""
    refused: list[int] = []
    real = Responder._plan_rnr_nak

    def refuse(responder: Responder, psn: int) -> None:
        refused.append(psn)
        real(responder, psn)

    monkeypatch.setattr(Responder, "_plan_rnr_nak", refuse)
    left, right = pair(opened, receives=8)
    with right.adapter.lock:
        left.send(100)
    right.until(lambda: right.taken(1) == 100)
    left.until(lambda: left.taken(2) == 100)
    assert refused == []
    assert max(map(len, right.passes)) <= 8


def test_a_burst_of_datagrams_finds_the_receives_that_went_back(opened: list[Adapter]) -> None:
    """A datagram that finds none is lost."""
    left, right = (Side(adapter, 8, QPType.UD) for adapter in opened)
    for side in (left, right):
        with side.adapter.lock:
            for state, mask in STEPS.items():
                attr = QPAttr(qp_state=state, qkey=QKEY)
                side.qp.modify(attr, mask, side.adapter.now_ns())
    towards = AddressVector(right.adapter.gid, right.adapter.port)
    with right.adapter.lock:
        left.send(50, ah=towards, remote_qpn=right.qp.qpn, remote_qkey=QKEY)
    right.adapter.wait(lambda: right.taken(1) == 50, 2_000_000_000)
    assert right.taken(1) == 50


def test_one_read_of_a_stream_may_bring_more_messages_than_there_are_receives() -> None:
    """A plain peer does not wait for acknowledgements; without a receive its stream is over."""
    adapter = TcpAdapter()
    try:
        side = Side(adapter, 1024)
        with adapter.lock:
            listener = adapter.listen((HOST, 0), PortSpace.TCP, backlog=4, on_event=side.note)
        peer = PlainPeer.connect(listener.local)
        with peer.socket:
            peer.send_message(REQUEST_KEY, ENHANCED | 2)
            side.until(lambda: "ESTABLISHED" in side.log)
            peer.receive_message(REPLY_KEY)
            frames = bytearray()

            class Kept:
                """Takes the frames of the peer in place of its socket."""

                sendall = frames.extend

            real, peer.socket = peer.socket, Kept()  # type: ignore[assignment]  # its one call
            for number in range(3000):
                peer.untagged(SEND, 0, number + 1)
            peer.socket = real
            with adapter.lock:
                peer.socket.sendall(frames)
            side.until(lambda: side.taken(1) == 3000 or "BROKEN" in side.log)
            assert side.taken(1) == 3000, side.log
            assert len(side.passes) > 2 and max(map(len, side.passes)) <= 1024
    finally:
        adapter.close()


def test_what_a_sink_raises_ends_the_pass_and_no_other() -> None:
    network = SimNetwork()
    side = Side(network.adapter(), 1)

    def fail() -> None:
        side.on_pass = lambda: None
        raise ValueError("broken")

    side.on_pass = fail
    with side.adapter.lock:
        side.qp.recv_cq.push(WC(5))
        side.qp.emit_event(AsyncEventType.COMM_EST)
        with pytest.raises(ValueError, match="broken"):
            side.adapter.finish_pass()
        side.qp.recv_cq.push(WC(6))
        side.adapter.finish_pass()
    assert [wc.wr_id for taken in side.passes for wc in taken] == [5, 6]
    assert side.log[-1] == "COMM_EST"
