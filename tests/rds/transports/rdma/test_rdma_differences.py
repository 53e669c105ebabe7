"""Each line about RDMA of docs/differences.md has a test here: `test_difference_` and its name."""

import errno

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from tests.rds.transports.rdma_core.rdma_bench import INCOMPATIBLE, NOW, REQUEST, TO_HIGH, Bench
from tests.rds.transports.rdma_core.rdma_core_world import (
    Side,
    atomic,
    frames,
    messages_of,
    transfer,
)
from tests.rds.transports.rdma_core.rdma_world import HIGH, LOW, SECOND
from tests.support.waiting import wait_until
from urds.rds.constants import SOL_RDS, RdmaStatus, SockOpt, Transport
from urds.rds.control.events import Reason, Refused
from urds.rds.control.rdma_events import (
    Abandon,
    Accept,
    Attach,
    Connect,
    PeerKey,
    Reject,
    RestartPeer,
)
from urds.rds.runtime.inprocess import InProcess
from urds.rds.settings import Settings
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.transports.rdma.device import RdmaDevice
from urds.rds.transports.rdma.frames import Outcome
from urds.rds.transports.rdma.regions import RegionTable
from urds.rds.wire.frame_format import FrameFormat
from urds.rds.wire.private_data import ConnectData

ARRIVAL_S = 10.0
LONG = bytes(10_000)


def bound(number: int, transport: Transport | None = Transport.IB) -> urds.Socket:
    """Return a socket at a host of its own; None leaves the transport to the setting."""
    sock = urds.Socket()
    if transport is not None:
        sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, int(transport))
    sock.bind((host(number), 0))
    sock.settimeout(ARRIVAL_S)
    return sock


def connected_side() -> Side:
    """Return a core on a connection whose map has gone out."""
    side = Side()
    side.begin()
    return side


# -- devices and transport


def test_difference_rdma_devices() -> None:
    with backend_with() as backend, bound(1) as here, bound(2) as there:
        here.sendto(b"hello", there.getsockname())
        assert there.recv(100) == b"hello"
        assert [device.name for device in devices_of(backend)] == ["shm0", "tcp0"]
        assert [len(device.links) for device in devices_of(backend)] == [2, 0]


def devices_of(backend: InProcess) -> list[RdmaDevice]:
    """Return the open devices of a backend."""
    node = backend._driver.rdma.node  # no public call tells
    assert node is not None
    return list(node.devices)


def test_difference_transport_at_bind() -> None:
    assert Settings().transport == "tcp"
    for setting, found in (("tcp", Transport.TCP), ("ib", Transport.IB)):
        with backend_with(transport=setting), bound(1, None) as sock:
            assert sock.getsockopt(SOL_RDS, SockOpt.TRANSPORT) == found


def test_difference_receive_ring() -> None:
    assert Settings().ib_max_recv_wr == CoreLimits().receive_ring == 256


# -- operations and regions


def test_difference_operations_done() -> None:
    side = connected_side()
    side.send(b"done", operations=[transfer(10)])
    [piece, _frame] = side.post()
    side.core.handle_completed(piece.wr_id, Outcome.DONE)
    side.reconnect()
    [repeat] = side.take()
    assert repeat.payload == b"done"
    assert side.statuses() == [RdmaStatus.SUCCESS]


def test_difference_atomics_once() -> None:
    side = connected_side()
    side.send(b"added", operations=[atomic()])
    side.post()
    side.reconnect()
    assert side.take() == []
    assert side.statuses() == [RdmaStatus.DROPPED]


def test_difference_freed_at_once() -> None:
    with backend_with(), bound(1) as owner, bound(2) as other:
        region = owner.get_mr(bytearray(8))
        there = owner.getsockname()
        got = bytearray(8)
        assert other.rdma_read(got, region.cookie, there).wait(ARRIVAL_S) is RdmaStatus.SUCCESS
        region.free()
        late = other.rdma_read(got, region.cookie, there)
        assert late.wait(ARRIVAL_S) is RdmaStatus.REMOTE_ERROR


def test_difference_regions_max() -> None:
    table = RegionTable(devices=tuple, later=lambda _: None)
    memory = memoryview(bytearray(8))
    for _ in range(65_536):
        table.register("owner", memory, address=0, writable=True, use_once=False)
    with pytest.raises(OSError) as refused:
        table.register("owner", memory, address=0, writable=True, use_once=False)
    assert refused.value.errno == errno.ENOMEM


# -- on the wire


def test_difference_rdma_frames() -> None:
    first = frames(1, LONG)[0]
    for wrong in (first[:-1], first + b"x"):
        assert connected_side().receive(wrong) is not None
    limits = CoreLimits(message_bytes_max=len(LONG) - 1)
    side = Side(limits)
    side.begin()
    assert side.receive(first) is not None


def test_difference_connect_addresses() -> None:
    bench = Bench()
    data = ConnectData(source=LOW, target=LOW).emit()
    bench.core.handle_request(REQUEST, HIGH, data, NOW)
    refused = Refused(HIGH, Reason.WRONG_ADDRESS)
    assert bench.actions() == [Reject(REQUEST, INCOMPATIBLE), refused]


def test_difference_rdma_duel() -> None:
    key = PeerKey(LOW, 0)
    for generation, answer in (
        (None, [Reject(REQUEST, INCOMPATIBLE)]),  # Linux
        (4, [Abandon(key, 1), Accept(key, REQUEST)]),
    ):
        bench = Bench(HIGH)
        assert bench.want(LOW) == [Connect(key, 1)]
        assert bench.request(peer=LOW, generation=generation) == answer


def test_difference_rdma_long_frames() -> None:
    for fields, data in (
        ({}, 4096),
        ({"generation": 4}, 4096),
        ({"generation": 4, "frame_format": FrameFormat.LONG}, 65_536),
    ):
        attach = Bench().join(**fields)[-1]
        assert isinstance(attach, Attach)
        side = Side()
        side.begin(frame_format=attach.frame_format)
        side.send(bytes(100_000))
        assert len(side.take()[0].payload) == data


def test_difference_rdma_packed_frames() -> None:
    for frame_format, held in ((FrameFormat.LONG, [1, 1, 1]), (FrameFormat.PACKED, [1, 2])):
        attach = Bench().join(generation=4, frame_format=frame_format)[-1]
        assert isinstance(attach, Attach)
        side = Side()
        side.begin(frame_format=attach.frame_format)
        side.send(b"first")
        frames = side.post()
        side.send(b"second", b"third")
        frames += side.post()
        for work in frames:
            side.core.handle_completed(work.wr_id, Outcome.DONE)
        frames += side.post()
        assert [len(messages_of(work.data)) for work in frames] == held


def test_difference_cookie_page() -> None:
    with backend_with(), bound(1) as owner:
        memory = bytearray(8)
        pages = {owner.get_mr(memory).cookie >> 44 for _ in range(20)}
        assert len(pages) > 10
        assert {(owner.get_mr(memory).cookie >> 32) % 4096 for _ in range(3)} == {0}


def test_difference_region_destination() -> None:
    with backend_with(), bound(1) as owner, bound(2) as meant, bound(3) as other:
        memory, got = bytearray(b"for one!"), bytearray(8)
        region = owner.get_mr(memory, meant.getsockname())
        there = owner.getsockname()
        late = other.rdma_read(got, region.cookie, there)
        assert late.wait(ARRIVAL_S) is RdmaStatus.REMOTE_ERROR
        assert meant.rdma_read(got, region.cookie, there).wait(ARRIVAL_S) is RdmaStatus.SUCCESS
        assert got == memory


def test_difference_rdma_rest() -> None:
    bench = Bench()
    bench.join(generation=4)
    for number in (1, 2):
        bench.core.handle_protocol_error(TO_HIGH, number, NOW, wrong_key=True)
    rejected = [Reject(REQUEST, INCOMPATIBLE)]
    assert bench.request(generation=4)[-1:] == rejected
    assert bench.request(tos=3, generation=4) == rejected
    assert bench.request(generation=4, now_ns=NOW + SECOND) == [Accept(TO_HIGH, REQUEST)]
    assert bench.stats.wrong_keys == 2


def test_difference_rdma_mark() -> None:
    bench = Bench()
    bench.join(generation=4)
    ours = bench.core.offer(TO_HIGH, acknowledged=0, credits=0)
    assert ours[13:16] == b"UR\x03"
    assert bench.request(generation=5)[-1] == Accept(TO_HIGH, REQUEST)
    assert bench.establish(REQUEST) == [
        RestartPeer(TO_HIGH),
        Attach(TO_HIGH, REQUEST, acknowledged=0, credits=0, is_urds_peer=True),
    ]


def test_difference_rdma_acknowledgements() -> None:
    with backend_with() as backend, bound(1) as sender, bound(2) as receiver:
        for number in range(3):  # the first one asks, the others do not
            sender.sendto(b"%d" % number, receiver.getsockname())
            assert receiver.recv(10) == b"%d" % number
        wait_until(lambda: not backend.snapshot().retransmit_queue)
