"""Conformance: requests to a queue pair that is not there, is late, or whose process stands still.

`timeout` and `retry_cnt` say over every device how long a request waits for its answer.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.children import Child
from tests.verbs.conformance import (
    Pair,
    World,
    broke_in_order,
    shows,
    towards,
)
from tests.verbs.conformance_peer import naming
from urds.verbs import QPAttr, QPAttrMask, QPState, VerbsTimeoutError, WCStatus, WROpcode
from urds.verbs.providers.base import ConnectionEventKind, ConnectParameters, PortSpace
from urds.verbs.providers.sim import SimNetwork

TIMEOUT = 13  # 33.6 ms
RETRIES = 3
PATIENCE_S = (RETRIES + 1) * (4096 << TIMEOUT) / 1e9
LATE_S = 20.0  # of a loaded machine
STOPPED_S = float(os.environ.get("TEST_STOPPED_S", "1.5"))  # 12 by hand
OPCODES = (WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ)
ABSENCES = ("unknown", "init", "reset", "closed", "error")


@pytest.fixture(params=["sim", "sim without loss", "shm", "udp"])
def raw(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Yield a world whose queue pairs are led by hand."""
    provider, _, is_lossless = request.param.partition(" ")
    made = World(provider, tmp_path / "meet")
    if is_lossless:
        made.network = SimNetwork(seed=1, lossless=True)
    try:
        yield made
        assert made.is_guarded()
    finally:
        made.close()


def moment_s(world: World) -> float:
    """Return the time of a world."""
    return world.network.now_ns / 1e9 if world.is_simulated else time.monotonic()


def take_away(pair: Pair, absence: str) -> None:
    """Lead the left side to a peer that is not there."""
    left, right = pair.left, pair.right
    attributes = towards(right, timeout=TIMEOUT, retry_cnt=RETRIES)
    if absence == "unknown":
        attributes.dest_qp_num ^= 0x80_0000
    left.qp.to_rts(attributes)
    if absence in ("reset", "closed", "error"):
        right.qp.to_rts(towards(left))
    if absence == "reset":
        right.modify(QPState.RESET)
    elif absence == "error":
        right.modify(QPState.ERR)
    elif absence == "closed":
        right.qp.close()


@shows(WCStatus.RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR)
@pytest.mark.parametrize("absence", ABSENCES)
@pytest.mark.parametrize("opcode", OPCODES, ids=lambda one: one.name)
def test_a_request_to_a_queue_pair_that_is_not_there_fails_in_time(
    raw: World, absence: str, opcode: WROpcode
) -> None:
    pair = raw.pair(connected=False)
    take_away(pair, absence)
    began_s = moment_s(raw)
    with pair.left.context.adapter.lock:
        for number in range(3):
            pair.left.post(opcode, 3000, to=pair.right.mr, wr_id=number)
    broke_in_order(pair.left.ended(3), WCStatus.RETRY_EXC_ERR)
    took_s = moment_s(raw) - began_s
    assert PATIENCE_S * 0.99 <= took_s < PATIENCE_S + LATE_S
    assert pair.left.qp.qp_state is QPState.ERR


@shows(WCStatus.RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR)
@pytest.mark.parametrize("opcode", OPCODES, ids=lambda one: one.name)
def test_a_device_that_has_closed_is_a_silent_one(raw: World, opcode: WROpcode) -> None:
    """Also where the link tells that it has ended."""
    pair = raw.pair(connected=False).by_hand(timeout=TIMEOUT, retry_cnt=RETRIES)
    left, right = pair.left, pair.right
    right.receive(8)
    left.post()
    assert left.ended() == [WCStatus.SUCCESS]
    fields = {"rkey": right.mr.rkey, "remote_addr": right.mr.buf}
    right.context.close()
    began_s = moment_s(raw)
    with left.context.adapter.lock:
        for number in range(3):
            left.post(opcode, 3000, wr_id=number, **fields)
    broke_in_order(left.ended(3), WCStatus.RETRY_EXC_ERR)
    assert PATIENCE_S * 0.99 <= moment_s(raw) - began_s < PATIENCE_S + LATE_S


def test_another_queue_pair_of_the_same_devices_goes_on(raw: World) -> None:
    """Only what was sent to the one that is not there waits and fails."""
    pair, other = raw.pair(connected=False), raw.pair(connected=False)
    other.by_hand()
    take_away(pair, "closed")
    pair.left.post()
    for number in range(20):
        other.right.receive(8, wr_id=number)
        other.left.post(wr_id=number)
        assert other.left.ended() == [WCStatus.SUCCESS]
    assert pair.left.ended() == [WCStatus.RETRY_EXC_ERR]
    other.right.receive(8)
    other.left.post()
    assert other.left.ended() == [WCStatus.SUCCESS]


def test_a_queue_pair_that_comes_late_gets_everything_once(raw: World) -> None:
    """Its peer was quicker: what came before is repeated, and takes effect once, in order."""
    pair = raw.pair(connected=False)
    left, right = pair.left, pair.right
    left.mr.write(bytes(range(256)) * 64)
    left.qp.to_rts(towards(right, timeout=TIMEOUT, retry_cnt=7))
    left.post(WROpcode.RDMA_WRITE, 10_000, to=right.mr, at=20_000, wr_id=0)
    for number in range(1, 4):
        left.post(WROpcode.SEND, 8, offset=number, wr_id=number)
    with pytest.raises(VerbsTimeoutError):
        left.scq.wait_for(1, 0.01)
    right.receive(8, count=3)
    right.qp.to_rts(towards(left))
    assert left.ended(4) == [WCStatus.SUCCESS] * 4
    assert [wc.wr_id for wc in right.received(3)] == [0, 1, 2]
    assert right.mr.read(24) == b"".join(bytes(range(number, number + 8)) for number in (1, 2, 3))
    assert right.mr.read(10_000, 20_000) == left.mr.read(10_000)


def test_timeout_0_waits_for_ever(raw: World) -> None:
    pair = raw.pair(connected=False)
    pair.left.qp.to_rts(towards(pair.right, timeout=0, retry_cnt=0))
    pair.left.post()
    with pytest.raises(VerbsTimeoutError):
        pair.left.scq.wait_for(1, 0.5)
    assert pair.left.qp.qp_state is QPState.RTS


def test_a_receiver_that_is_not_ready_costs_no_retry(raw: World) -> None:
    """It answers: for as long as the request is to be repeated, whatever `timeout` says."""
    pair = raw.pair(connected=False).by_hand(timeout=TIMEOUT, retry_cnt=0)
    pair.left.post()
    with pytest.raises(VerbsTimeoutError):
        pair.left.scq.wait_for(1, 0.5)
    pair.right.receive(8)
    assert pair.left.ended() == [WCStatus.SUCCESS]


# -- by the connection manager


class StoppedPeer(Child):
    """A process of `conformance_peer` that can be stopped; it sends back what comes."""

    def __init__(self, world: World) -> None:
        words = (world.provider, world.directory, "echo", world.host)
        super().__init__("-m", "tests.verbs.conformance_peer", *words)
        self.side = world.side()
        port = int(self.hear())
        adapter = self.side.context.adapter
        with adapter.lock:
            self.side.connection = adapter.connect(
                self.side.qp.engine, (world.host, port), PortSpace.TCP,
                ConnectParameters(naming(self.side)), on_event=self.side.take,
            )  # fmt: skip
        self.side.until(ConnectionEventKind.ESTABLISHED)
        self.side.receive(8, offset=100)
        self.side.post()
        assert self.side.ended() == [WCStatus.SUCCESS]
        self.side.received()


@pytest.fixture
def stopped(world: World) -> Iterator[StoppedPeer]:
    peer = StoppedPeer(world)
    peer.stop()
    yield peer
    peer.kill()


WITHOUT_LOSS = pytest.mark.parametrize("world", ["shm", "tcp"], indirect=True)


@WITHOUT_LOSS
def test_a_connection_outlives_a_peer_that_is_stopped(stopped: StoppedPeer) -> None:
    """The manager's queue pairs have `timeout` 0 there: the connection tells when it ends."""
    side = stopped.side
    side.receive(8, offset=100)
    side.post()
    with pytest.raises(VerbsTimeoutError):
        side.scq.wait_for(1, STOPPED_S)
    stopped.go_on()
    assert side.ended() == [WCStatus.SUCCESS]
    side.received()


@shows(WCStatus.RETRY_EXC_ERR)
@WITHOUT_LOSS
def test_a_connection_with_a_timeout_gives_a_stopped_peer_up(
    world: World, stopped: StoppedPeer
) -> None:
    side = stopped.side
    side.modify(QPState.SQD)
    given = QPAttr(timeout=TIMEOUT, retry_cnt=RETRIES)
    side.qp.modify(given, QPAttrMask.TIMEOUT | QPAttrMask.RETRY_CNT)
    side.modify(QPState.RTS)
    began_s = moment_s(world)
    side.post()
    assert side.ended() == [WCStatus.RETRY_EXC_ERR]
    assert PATIENCE_S * 0.99 <= moment_s(world) - began_s < PATIENCE_S + LATE_S
    side.until(ConnectionEventKind.BROKEN, ConnectionEventKind.DISCONNECTED)
