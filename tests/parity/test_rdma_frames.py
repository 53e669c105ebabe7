"""Paths of RDS over RDMA on both planes: the same calls, and byte for byte the same frames.

The compiled plane keeps messages that gather, and delivers plain ones of packed frames by itself;
the Python plane leaves each message to the connection. Outside there is no difference.
"""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from ipaddress import ip_address
from random import Random
from threading import RLock
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rds.transports.rdma_core.rdma_core_world import ack_only, frames, map_frames
from tests.support import planes
from tests.support.examples import examples
from urds.common.types import IPAddress
from urds.rds.constants import HeaderFlag
from urds.rds.control.rdma_events import Attach, PeerKey
from urds.rds.plane.contract import Limits, Mailbox, MailboxSettings, Plane, RdmaRow
from urds.rds.plane.python.counters import Counters
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.transports.rdma.counters import RdmaCounters
from urds.rds.transports.rdma.frames import Frame, Outcome
from urds.rds.transports.rdma.path import Acknowledgements, RdmaPath
from urds.rds.wire.frame_format import FrameFormat

pytest.importorskip("urds_native", reason="the compiled plane is not built")

HERE, THERE = ip_address("127.0.85.1"), ip_address("127.0.85.2")
PORTS = (5000, 5001)
SIZES = (0, 1, 64, 64, 64, 200, 1000, 20_000, 65_000, 65_536, 70_000)
SEEDS = range(examples(150))
KEY = PeerKey(THERE, 0)
WITH_KEY = b"\x02\0\0\0\x07".ljust(16, b"\0")


class Link:
    """What the path has in place of a link: it posts what there is, and completes when told."""

    def __init__(self, path: RdmaPath) -> None:
        self.path = path
        self.device = SimpleNamespace(adapter=SimpleNamespace(lock=nullcontext()))
        self.posted: list[int] = []
        self.sent: list[bytes] = []

    def attach(self, _frame_format: FrameFormat) -> None:
        self.progress()

    def progress(self) -> None:
        while (work := self.path.core.poll_work()) is not None:
            assert isinstance(work, Frame)
            self.posted.append(work.wr_id)
            self.sent.append(work.data)

    def complete(self, count: int) -> None:
        for wr_id in self.posted[:count]:
            self.path.core.handle_completed(wr_id, Outcome.DONE)
        del self.posted[:count]
        self.progress()
        self.path.finish_pass()

    def finish_soon(self) -> None:
        self.progress()

    def close(self) -> None:
        self.posted.clear()

    def row(self) -> RdmaRow:
        return RdmaRow()


class PathWorld:
    """One path, two sockets, and a peer that the case plays."""

    def __init__(self, make_plane: Callable[..., Plane]) -> None:
        self.now_ns = 1
        self.plane: Any = make_plane(
            limits=Limits(), resolve=self.resolve, clock_ns=lambda: self.now_ns
        )
        self.lock, self.counters, self.message_counters = RLock(), RdmaCounters(), Counters()
        self.acknowledgements = Acknowledgements(lambda: self.now_ns, lambda: None)
        self.path = RdmaPath(
            self,
            HERE,
            KEY,
            limits=CoreLimits(unacked_packets_max=5, unacked_bytes_max=90_000),
            sequence_first=1,
            may_answer_ping=True,
        )
        self.mailboxes = [self.bind(port) for port in PORTS]
        self.happened: list[object] = []

    # -- what all paths of a node share

    def is_inside(self) -> bool:
        return False

    def want(self, path: RdmaPath) -> None:
        self.happened.append("wanted")

    def note_key_used(self, local: IPAddress, port: int, key: int) -> None:
        self.happened.append(("key used", port, key))

    def report_protocol_error(self, *_: object) -> None:
        raise AssertionError("the links here report nothing")

    def resolve(self, mailbox: Mailbox, peer: IPAddress) -> None:
        mailbox.route(peer, self.path.outside)

    def bind(self, port: int) -> Any:
        settings = MailboxSettings(send_bytes_max=300_000, receive_bytes_max=1 << 20)
        return self.plane.mailbox(local=HERE, port=port, settings=settings)

    # -- steps of a case

    def attach(self, frame_format: int) -> None:
        if self.path.link is None:
            agreed = Attach(KEY, 1, 0, 0, is_urds_peer=True, frame_format=FrameFormat(frame_format))
            self.path.attach(Link(self.path), agreed)  # type: ignore[arg-type]  # in its place

    def detach(self, _: int) -> None:
        self.note_frames()
        self.path.detach()

    def send(self, which: int, size: int, extension: bytes = b"") -> None:
        target = (str(THERE), 4000 + size % 3)
        payload = bytes([size % 251]) * size
        try:
            self.mailboxes[which].send([payload], target, wait_ns=0, extension=extension)
        except OSError as refused:
            self.happened.append(str(refused))

    def complete(self, count: int) -> None:
        if self.path.link is not None:
            self.path.link.complete(count)  # type: ignore[attr-defined]  # of the stand-in

    def receive(self, data: bytes) -> None:
        if self.path.link is not None:
            self.happened.append(self.path.core.handle_frame(memoryview(data)))
            self.path.core.handle_posted(1)
            self.complete(0)

    def acknowledge(self, part: int) -> None:
        """Acknowledge a part of what was sent, in tenths; the middle of a frame too."""
        outgoing = self.path.core.outgoing
        numbers = [entry.sequence for entry in outgoing.sent_entries() if entry.sequence]
        if numbers:
            self.receive(ack_only(numbers[(len(numbers) - 1) * part // 10]))

    def acknowledge_but(self, count: int) -> None:
        """Acknowledge all but the last few, without a look at single messages."""
        last = self.path.core.outgoing.sequence_next - 1 - count
        if last > 0 and self.path.core.outgoing.current is None:
            self.receive(ack_only(last))

    def send_map(self, _: int) -> None:
        if self.path.link is not None:
            self.path.send_map()

    def cancel(self, which: int) -> None:
        self.happened.append(self.mailboxes[which].cancel(THERE, None))

    def rebind(self, which: int) -> None:
        self.mailboxes[which].close(0)
        self.mailboxes[which] = self.bind(PORTS[which])

    def look(self, _: int) -> None:
        """Look at single messages, as tables do."""
        self.happened.append((self.path.unsent_rows(), self.path.sent_rows(), self.path.row()))

    def restart(self, _: int) -> None:
        if self.path.link is None:
            self.happened.append(self.path.restart_peer())

    # -- what is compared

    def note_frames(self) -> None:
        if self.path.link is not None:
            link: Any = self.path.link
            self.happened += link.sent
            link.sent = []

    def seen(self) -> list[object]:
        """Return all that has happened since the last look, and how things stand."""
        self.note_frames()
        self.plane.progress()
        taken = []
        for mailbox in self.mailboxes:
            while (message := mailbox.receive(wait_ns=0)) is not None:
                taken.append(tuple(message)[:3])
        happened, self.happened = self.happened, []
        core = self.path.core
        wants = core.wants_work()  # takes over what has gathered, so that it is counted
        if not wants:
            core.update_gathering()
        numbers = (wants, core.outgoing.sequence_next, core.incoming.sequence_expected)
        mailboxes = [(one.port, one.send_queued_bytes) for one in self.plane.snapshot().mailboxes]
        counters = (vars_of(self.message_counters), vars_of(self.counters))
        return [*happened, taken, numbers, mailboxes, counters, core.outgoing.message_count()]

    def close(self) -> None:
        self.plane.close(0)
        self.plane.release()


def vars_of(record: Any) -> dict[str, int]:
    return {name: getattr(record, name) for name in record.__slots__}


def packed(random: Random, sequence: int) -> bytes:
    """Return a frame of several messages, most of them plain, from the number on."""
    parts = []
    if random.random() < 0.1:
        parts += map_frames(bytes(8192), fragment_bytes=65_536)
    for number in range(sequence, sequence + random.randrange(1, 20)):
        flags = HeaderFlag.ACK_REQUIRED if random.random() < 0.2 else HeaderFlag(0)
        if random.random() < 0.05:
            flags |= HeaderFlag.RETRANSMITTED
        values: dict[str, Any] = {"source_port": 4000, "target_port": random.choice(PORTS)}
        if random.random() < 0.05:
            values["extension"] = WITH_KEY
        if random.random() < 0.05:
            values["target_port"] = 0
        if random.random() < 0.05:
            values["target_port"] = 6000
        parts += frames(number, bytes(random.choice((0, 3, 300))), flags=flags, **values)
    data = b"".join(parts)
    if random.random() < 0.1:
        data = data[: random.randrange(len(data))]
    if random.random() < 0.05:
        place = random.randrange(len(data))
        data = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
    return data


def steps_of(seed: int) -> list[tuple[str, tuple[Any, ...]]]:
    """Draw a case: its calls, with their arguments."""
    random = Random(seed)
    steps: list[tuple[str, tuple[Any, ...]]] = [("attach", (3,))]
    kinds = ["send"] * 20 + ["complete"] * 4 + ["acknowledge_but"] * 2 + ["packed", "send_map"]
    kinds += random.sample(["acknowledge", "cancel", "rebind", "look", "break"], 2)
    sequence = 1
    for _ in range(random.choice((30, 200, 800))):
        kind = random.choice(kinds)
        if kind == "send":
            size = random.choice(SIZES[: random.choice((6, len(SIZES)))])
            extension = WITH_KEY if random.random() < 0.02 else b""
            steps.append((kind, (random.randrange(2), size, extension)))
        elif kind == "packed":
            steps.append(("receive", (packed(random, sequence),)))
            sequence += 20
        elif kind == "break":
            steps.append(("detach", (0,)))
            if random.random() < 0.3:
                steps.append(("restart", (0,)))
            steps += [("send", (0, 64, b"")), ("attach", (random.choice((1, 2, 3, 3, 3)),))]
        elif kind in ("cancel", "rebind"):
            steps.append((kind, (random.randrange(2),)))
        else:
            steps.append((kind, (random.randrange(5),)))
    return steps


@pytest.mark.skipif(len(planes.PLANES) < 2, reason="the compiled plane is not built")
@pytest.mark.parametrize("seed", SEEDS)
def test_both_planes_send_and_take_the_same(seed: int) -> None:
    worlds = [PathWorld(make_plane) for make_plane in planes.PLANES.values()]
    try:
        for place, (kind, values) in enumerate(steps_of(seed)):
            for world in worlds:
                getattr(world, kind)(*values)
            if place % 97 == 0 or kind != "send":
                assert_equal(place, kind, *(world.seen() for world in worlds))
        for world in worlds:
            for _ in range(5):
                world.complete(300)
                world.acknowledge_but(0)
        assert_equal(-1, "end", *(world.seen() for world in worlds))
    finally:
        for world in worlds:
            world.close()


def assert_equal(place: int, kind: str, *seen: list[object]) -> None:
    first, *others = seen
    for other in others:
        for one, two in zip(first, other, strict=False):
            assert one == two, f"step {place}, {kind}"
        assert len(first) == len(other), f"step {place}, {kind}"


@pytest.mark.skipif(len(planes.PLANES) < 2, reason="the compiled plane is not built")
def test_sends_that_gather_do_not_reach_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PathWorld(planes.make_native)
    sent: list[int] = []
    send = RdmaPath.send

    def note(path: RdmaPath, *arguments: Any, **named: Any) -> Any:
        sent.append(len(arguments[2]))
        return send(path, *arguments, **named)

    monkeypatch.setattr(RdmaPath, "send", note)
    try:
        world.attach(3)
        world.complete(1)
        for size in range(100, 200):
            world.send(0, size)
        assert sent == [100], "the first one leaves, the others gather"
        world.complete(1)
        link: Any = world.path.link
        assert [len(data) for data in link.sent[1:]] == [148, sum(range(101, 200)) + 99 * 48]
    finally:
        world.close()


@pytest.mark.skipif(len(planes.PLANES) < 2, reason="the compiled plane is not built")
def test_what_a_socket_sent_before_its_end_leaves_without_it() -> None:
    world = PathWorld(planes.make_native)
    try:
        world.attach(3)
        for size in (100, 101, 102):
            world.send(0, size)
        mailbox = world.mailboxes.pop(0)
        mailbox.close()
        del mailbox
        gc.collect()
        world.complete(2)
        world.acknowledge_but(0)
        assert world.path.core.outgoing.sequence_next == 4
        assert not world.path.holds_messages()
    finally:
        world.close()
