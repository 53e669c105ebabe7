"""One connection of one device: receives held back and posted again, and what rds-info says of it.

Two links over a simulated network; in place of their paths stand the few things they ask of one.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from urds.common.types import IPAddress
from urds.rds.control.rdma_events import PeerKey
from urds.rds.plane.contract import RdmaRow, RdmaTransfer
from urds.rds.transports.rdma.counters import RdmaCounters
from urds.rds.transports.rdma.device import RdmaDevice
from urds.rds.transports.rdma.frames import Frame, Outcome, Piece, Work
from urds.rds.transports.rdma.link import Link, receives_at_first
from urds.rds.transports.rdma.path import RdmaPath
from urds.rds.wire.frame_format import FrameFormat
from urds.verbs.engine.numbers import SendFlag
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.providers.base import ConnectionEventKind, VerbsConnectionEvent
from urds.verbs.providers.sim import SimNetwork

HERE, THERE = ip_address("10.0.0.1"), ip_address("10.0.0.2")
PORT = 18634
RING = 4


class FakeCore:
    """Says what it is given, keeps what comes."""

    def __init__(self) -> None:
        self.to_say: deque[Work] = deque()
        self.heard: list[bytes] = []
        self.ended: list[tuple[int, Outcome]] = []
        self.posted = 0

    def poll_work(self) -> Work | None:
        return self.to_say.popleft() if self.to_say else None

    def handle_frame(self, data: memoryview) -> None:
        self.heard.append(bytes(data))

    def handle_posted(self, count: int) -> None:
        self.posted += count

    def handle_completed(self, wr_id: int, outcome: Outcome) -> None:
        self.ended.append((wr_id, outcome))


class FakePath:
    """What a link asks of a path."""

    def __init__(self, local: IPAddress, peer: IPAddress, *, tos: int) -> None:
        self.local = local
        self.key = PeerKey(peer, tos)
        self.lock = Lock()
        self.core = FakeCore()
        self.rdma_counters = RdmaCounters()
        self.around = SimpleNamespace(is_paused=False)
        self.protocol_errors: list[str] = []
        self.wrong_keys = 0

    def finish_pass(self) -> None:
        """No thread waits."""

    def handle_protocol_error(self, link: Link, reason: str, *, wrong_key: bool = False) -> None:
        assert not link.is_over, "the end of a connection must not outrun its reason"
        self.protocol_errors.append(reason)
        self.wrong_keys += wrong_key


class Pair:
    """Two links, connected and attached."""

    def __init__(self, *, tos: int = 0, ring: int = RING) -> None:
        self.network = SimNetwork(1)
        self.paths: list[Any] = [FakePath(HERE, THERE, tos=tos), FakePath(THERE, HERE, tos=tos)]
        self.devices = [
            RdmaDevice(self.network.adapter(address=str(address))) for address in (HERE, THERE)
        ]
        self.links = [
            Link(device, path, 1, send_ring=8, receive_ring=ring)
            for device, path in zip(self.devices, self.paths, strict=True)
        ]
        for link in self.links:
            link.on_event = self.note
        self.devices[1].listen((str(THERE), PORT), self.answer)

    def note(self, link: Link, event: VerbsConnectionEvent) -> None:
        link.is_established |= event.kind is ConnectionEventKind.ESTABLISHED
        link.is_over |= event.kind is not ConnectionEventKind.ESTABLISHED

    def answer(self, event: VerbsConnectionEvent) -> None:
        self.links[1].accept(event.connection, b"")

    def connect(self, frame_format: FrameFormat = FrameFormat.SHORT) -> None:
        """Connect and attach both."""
        self.links[0].connect((str(HERE), 0), (str(THERE), PORT), b"")
        self.network.run_until(lambda: all(link.is_established for link in self.links))
        for link in self.links:
            link.attach(frame_format)

    def say(self, *payloads: bytes) -> None:
        """Have the first send frames, and time go on for a while."""
        said = self.paths[0].core.to_say
        said.extend(Frame(number, payload) for number, payload in enumerate(payloads))
        self.links[0].finish_pass()
        self.network.run(for_ns=100_000_000)


@pytest.fixture
def pair() -> Pair:
    made = Pair(tos=19)
    made.connect()
    return made


def test_receives_are_held_back_while_the_path_pauses_and_counted(pair: Pair) -> None:
    path, counters = pair.paths[1], pair.paths[1].rdma_counters
    path.around.is_paused = True
    pair.say(b"1", b"2", b"3")
    assert (counters.ib_rx_alloc_limit, counters.ib_rx_ring_empty) == (3, 0)
    pair.say(b"4", b"5")
    assert path.core.heard == [b"1", b"2", b"3", b"4"], "the fifth waits at its sender"
    assert (counters.ib_rx_alloc_limit, counters.ib_rx_ring_empty) == (4, 1)
    assert (path.core.posted, counters.ib_rx_refill_from_thread) == (0, 0)
    path.around.is_paused = False
    pair.links[1].resume()
    pair.network.run(for_ns=1_000_000_000)
    assert path.core.heard[4:] == [b"5"]
    assert (path.core.posted, counters.ib_rx_refill_from_thread) == (5, 1)


def test_a_resume_between_two_looks_loses_no_credit(pair: Pair) -> None:
    path = pair.paths[1]
    path.around.is_paused = True

    class Releasing:
        """The lock of the cores; another thread resumes the path as soon as it is free."""

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            path.around.is_paused = False

    path.lock = Releasing()
    pair.say(b"1")
    pair.links[1].resume()
    pair.network.run(for_ns=100_000_000)
    assert (path.core.heard, path.core.posted) == ([b"1"], 1)


def test_a_read_from_a_peer_that_serves_none_costs_the_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("urds.rds.transports.rdma.link._ACCESSES_MAX", 0)
    pair = Pair()
    pair.connect()
    path = pair.paths[0]
    memory = memoryview(bytearray(8))
    read = RdmaTransfer(key=1 << 8, remote_address=0, is_write=False, pieces=(memory,))
    path.core.to_say.append(Piece(1, read, 0, 0))
    pair.links[0].progress()
    pair.say(b"behind it")
    assert len(path.protocol_errors) == 1
    assert "RDMA_READ" in path.protocol_errors[0]
    assert not pair.paths[1].core.heard
    assert not pair.paths[1].protocol_errors


@pytest.mark.parametrize("is_write", [False, True], ids=["read", "write"])
def test_a_wrong_key_is_told_before_the_connection_ends(pair: Pair, is_write: bool) -> None:
    path = pair.paths[0]
    memory = memoryview(bytearray(8))
    guess = RdmaTransfer(key=1 << 8, remote_address=0, is_write=is_write, pieces=(memory,))
    path.core.to_say.append(Piece(1, guess, 0, 0))
    pair.say(b"behind it")
    assert pair.paths[1].protocol_errors == ["no region has this key and these bytes"]
    assert pair.paths[1].wrong_keys == 1
    assert all(link.is_over for link in pair.links)
    assert (path.protocol_errors, path.wrong_keys) == ([], 0)
    assert path.core.ended[0] == (1, Outcome.REMOTE_ACCESS)


def test_a_fault_of_ours_costs_the_connection_alone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[str] = []

    @contextmanager
    def confine(recover: Callable[[], None]) -> Iterator[None]:
        try:
            yield
        except TypeError as fault:
            faults.append(str(fault))
            recover()

    for device in pair.devices:
        monkeypatch.setattr(device, "confine", confine)
    monkeypatch.setattr(pair.paths[1].core, "handle_frame", None)
    pair.say(b"1", b"2")
    assert pair.paths[1].protocol_errors == ["a fault of urds"]
    assert len(faults) == 1, "no frame is looked at behind it"
    monkeypatch.setattr(pair.paths[0], "finish_pass", None)
    pair.links[0].finish_soon()
    pair.network.run(for_ns=100_000_000)
    assert pair.paths[0].protocol_errors == ["a fault of urds"]


def test_an_idle_connection_has_few_receives_and_each_frame_adds_one() -> None:
    pair = Pair(ring=18)
    pair.connect()
    assert receives_at_first(18) == 16
    pair.say(b"1")
    assert pair.paths[1].core.posted == 2
    pair.say(b"2", b"3", b"4")
    assert pair.paths[1].core.posted == 6, "the whole ring is in use"
    assert pair.paths[1].core.heard == [b"1", b"2", b"3", b"4"]


def test_each_receive_has_room_for_a_long_frame_where_they_are_agreed_on() -> None:
    """More frames than receives, so that each is filled twice; a long frame is 65,584 bytes."""
    pair = Pair(ring=200)
    pair.connect(FrameFormat.LONG)
    sent = [bytes([number]) * 65_584 for number in range(150)]
    for number in range(0, len(sent), 8):
        pair.say(*sent[number : number + 8])
    core = pair.paths[1].core
    assert core.heard == sent
    assert core.posted == 150 + (64 - 16), "so many receives, and no more"


def test_short_frames_fill_the_whole_ring() -> None:
    pair = Pair(ring=80)
    pair.connect()
    sent = [bytes([number]) * 4_144 for number in range(200)]
    for number in range(0, len(sent), 8):
        pair.say(*sent[number : number + 8])
    core = pair.paths[1].core
    assert core.heard == sent
    assert core.posted == 200 + (80 - 16)


def test_a_send_that_a_signal_ends_costs_the_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work was taken from the core and not posted: it comes again on the next one."""

    def interrupt(_work: Work) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pair.links[0], "_request_of", interrupt)
    pair.paths[0].core.to_say.append(Frame(1, b"lost"))
    path = SimpleNamespace(link=pair.links[0])
    with pytest.raises(KeyboardInterrupt):
        RdmaPath.push(path)  # type: ignore[arg-type]  # what it asks of itself
    pair.network.run(for_ns=100_000_000)
    assert pair.paths[0].protocol_errors == ["a signal interrupted a send"]


def test_a_connection_tells_rds_info_its_queue_pair_and_both_gids(pair: Pair) -> None:
    here = pair.links[0].row()
    assert here == RdmaRow(
        is_passive=False,
        device=pair.devices[0].name,
        service_level=3,
        local_gid=IPv6Address("::ffff:10.0.0.1"),
        peer_gid=IPv6Address("::ffff:10.0.0.2"),
        send_requests_max=8,
        receive_requests_max=RING,
        send_segments_max=1,
        regions_max=65_536,
        region_pages_max=257,
    )
    assert pair.links[1].row().local_gid == here.peer_gid


def test_without_a_connection_there_is_nothing_to_tell() -> None:
    pair = Pair()
    assert pair.links[0].row() == RdmaRow()
    pair.connect()
    pair.links[0].close()
    assert pair.links[0].row() == RdmaRow()


def test_over_tcp_the_gid_is_the_address_of_the_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TCP device has one GID and every local address."""
    monkeypatch.setattr(pair.devices[0], "provider", "tcp")
    for local, gid in (("127.0.0.9", "::ffff:127.0.0.9"), ("fe80::9%lo", "fe80::9")):
        pair.paths[0].local = ip_address(local)
        assert pair.links[0].row().local_gid == IPv6Address(gid)


@pytest.mark.parametrize("fence", [False, True])
@pytest.mark.parametrize("solicited", [False, True])
def test_a_frame_is_posted_with_its_flags(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, *, fence: bool, solicited: bool
) -> None:
    """What the device does with them, the conformance suite of the verbs shows."""
    posted: list[SendFlag] = []
    monkeypatch.setattr(
        QueuePair, "post_send", lambda _qp, wr, _now_ns: posted.append(wr.send_flags)
    )
    pair.paths[0].core.to_say.append(Frame(1, b"said", fence=fence, solicited=solicited))
    pair.links[0].finish_pass()
    assert [bool(flags & SendFlag.FENCE) for flags in posted] == [fence]
    assert [bool(flags & SendFlag.SOLICITED) for flags in posted] == [solicited]
