"""Conformance between two processes: all that goes over a connection, and a peer that is killed."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support import places
from tests.support.children import Child
from tests.support.places import Place
from tests.verbs.conformance import SHM_OPENERS, WAIT_S, Side, World
from tests.verbs.conformance_peer import CELL, SLOT_BYTES, SLOTS, named, naming
from urds.verbs import QPState, VerbsPostError, WCStatus, WROpcode
from urds.verbs.providers.base import ConnectionEventKind, ConnectParameters, PortSpace

ROOT = Path(__file__).resolve().parents[2]
KILLED_S = 9.5  # udp asks silent peers for seconds; the others hear at once
BROKEN = (ConnectionEventKind.BROKEN, ConnectionEventKind.DISCONNECTED)

# Shared memory reaches no other host.
REACHING = [*SHM_OPENERS, "udp", "tcp"] if places.is_loopback() else ["udp", "tcp"]
pytestmark = pytest.mark.parametrize("world", REACHING, indirect=True)
MakePeer = Callable[[str], "Peer"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have tests run at each place of `TEST_PLACES`."""
    places.generate_tests(metafunc, "place")


@pytest.fixture(autouse=True)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Have this process be host 0 of a place; peers are host 1."""
    with places.taken(request) as taken, taken.inside(taken.address(0)):
        yield taken


class Peer(Child):
    """A process of `conformance_peer`."""

    def __init__(self, world: World, place: Place, role: str) -> None:
        self.host = place.address(1)
        row = "shm" if world.row == "shm-mixed" else world.row  # the other half of a mixed pair
        words = (row, world.directory, role, self.host)
        super().__init__("-m", "tests.verbs.conformance_peer", *words, prefix=place.prefix(1))
        self.port = int(self.hear())

    def join(self, side: Side) -> dict[str, int]:
        """Connect to it; return what names its memory."""
        adapter = side.context.adapter
        with adapter.lock:
            side.connection = adapter.connect(
                side.qp.engine, (self.host, self.port), PortSpace.TCP,
                ConnectParameters(naming(side)), on_event=side.take,
            )  # fmt: skip
        event = side.until(ConnectionEventKind.ESTABLISHED)
        return named(event.parameters.private_data)


@pytest.fixture
def make_peer(world: World, place: Place) -> Iterator[MakePeer]:
    made: list[Peer] = []

    def make(role: str) -> Peer:
        made.append(Peer(world, place, role))
        return made[-1]

    yield make
    for peer in made:
        peer.kill()


def test_everything_goes_between_two_processes(world: World, make_peer: MakePeer) -> None:
    peer, side = make_peer("echo"), world.side()
    remote = peer.join(side)
    data = Random(3).randbytes(SLOT_BYTES)
    for slot in range(SLOTS):
        side.receive(SLOT_BYTES, offset=10_000 + slot * SLOT_BYTES, wr_id=slot)
    side.mr.write(data)
    for size in range(SLOTS):
        side.post(length=size * 8, wr_id=size)
    assert [wc.byte_len for wc in side.received(SLOTS)] == [size * 8 for size in range(SLOTS)]
    assert side.ended(SLOTS) == [WCStatus.SUCCESS] * SLOTS
    last = SLOTS - 1
    assert side.mr.read(last * 8, 10_000 + last * SLOT_BYTES) == data[: last * 8]
    far = {**remote, "remote_addr": remote["remote_addr"] + CELL}
    side.post(WROpcode.RDMA_WRITE, 512, wr_id=1, **far)
    for number in range(3):
        side.post(WROpcode.ATOMIC_FETCH_AND_ADD, 8, offset=1024 + 8 * number, compare_add=7, **far)
    side.post(WROpcode.RDMA_READ, 512, offset=2048, **far)
    assert side.ended(5) == [WCStatus.SUCCESS] * 5
    before = int.from_bytes(data[:8], sys.byteorder)
    values = [
        int.from_bytes(side.mr.read(8, 1024 + 8 * number), sys.byteorder) for number in range(3)
    ]
    assert values == [(before + 7 * number) % (1 << 64) for number in range(3)]
    after = ((before + 21) % (1 << 64)).to_bytes(8, sys.byteorder)
    assert side.mr.read(512, 2048) == after + data[8:]


@pytest.mark.slow
@pytest.mark.parametrize(("role", "seed"), [("echo", 0), ("flood", 1), ("echo", 2), ("flood", 3)])
def test_a_peer_killed_at_any_point_fails_the_work_and_nothing_else(
    world: World, make_peer: MakePeer, role: str, seed: int
) -> None:
    """Each request completes once, in order: well, then one reason at most, then flushed."""
    rng = Random(seed)
    peer, side = make_peer(role), world.side()
    for slot in range(SLOTS):
        side.receive(SLOT_BYTES, offset=slot * SLOT_BYTES, wr_id=slot)
    remote = peer.join(side)
    far = {**remote, "remote_addr": remote["remote_addr"] + CELL}
    kill_at = rng.randrange(1, 400)
    opcodes = (
        WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD,
    )  # fmt: skip
    posted, done, statuses = 0, [], []
    deadline = time.monotonic() + KILLED_S
    is_killed = False
    while side.qp.qp_state is QPState.RTS and time.monotonic() < deadline:
        try:
            opcode = rng.choice(opcodes)
            side.post(opcode, 8, offset=50_000, wr_id=posted, **far)
            posted += 1
        except VerbsPostError:
            side.context.adapter.wait(lambda: len(side.scq) > 0, 5_000_000)
        if posted >= kill_at and not is_killed:
            peer.kill()
            is_killed = True
        for wc in side.scq.poll(64)[1]:
            done.append(wc.wr_id)
            statuses.append(wc.status)
        for wc in side.rcq.poll(64)[1]:
            if wc.status is WCStatus.SUCCESS:
                side.receive(SLOT_BYTES, offset=wc.wr_id * SLOT_BYTES, wr_id=wc.wr_id)
    assert is_killed
    side.until(*BROKEN)
    for wc in side.scq.poll(1024)[1]:
        done.append(wc.wr_id)
        statuses.append(wc.status)
    assert done == list(range(posted))
    bad = [status for status in statuses if status is not WCStatus.SUCCESS]
    assert statuses == [WCStatus.SUCCESS] * (len(statuses) - len(bad)) + bad
    assert set(bad[1:]) <= {WCStatus.WR_FLUSH_ERR}
    assert set(bad[:1]) <= {WCStatus.WR_FLUSH_ERR, WCStatus.RETRY_EXC_ERR}
    serves_another(side, make_peer)


def serves_another(side: Side, make_peer: MakePeer) -> None:
    """Show that the device still works, with a new queue pair and a new peer."""
    fresh = Side(side.world, side.context)
    fresh.receive(8, offset=100)
    remote = make_peer("echo").join(fresh)
    fresh.post(WROpcode.RDMA_READ, 8, **remote)
    fresh.post()
    assert fresh.ended(2) == [WCStatus.SUCCESS] * 2
    assert fresh.received()[0].status is WCStatus.SUCCESS


def test_a_peer_killed_in_the_middle_of_connecting(world: World, make_peer: MakePeer) -> None:
    """It is there, then not: the attempt ends in bounded time, whatever was said before."""
    peer, side = make_peer("echo"), world.side()
    peer.kill()
    adapter = side.context.adapter
    with adapter.lock:
        adapter.connect(
            side.qp.engine, (peer.host, peer.port), PortSpace.TCP, ConnectParameters(),
            on_event=side.take, timeout_ns=int(WAIT_S * 1e9) // 2,
        )  # fmt: skip
    side.until(
        ConnectionEventKind.REFUSED, ConnectionEventKind.UNREACHABLE, ConnectionEventKind.ERROR
    )
    serves_another(side, make_peer)
