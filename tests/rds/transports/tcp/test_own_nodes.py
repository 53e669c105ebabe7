"""Between urds nodes: delivered means queued at the receiver, whatever happens to TCP."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.frames import Frame
from tests.rds.transports.tcp.kernel_peer import KernelPeer, Release
from tests.rds.transports.tcp.meetings import KERNEL_PORT, numbered, taken
from tests.rds.transports.tcp.nodes import PORT, Node
from tests.rds.transports.tcp.relay import Relay, Way
from tests.support import carriers
from tests.support.waiting import BUSY_S, wait_until
from urds.rds.control.events import PeerKind
from urds.rds.control.handshake import PeerFacts
from urds.rds.plane.python.receiver import Receiver
from urds.rds.runtime import paths as driver_paths
from urds.rds.types import AckMode
from urds.rds.wire.header import Header

ORDERS = ["lower", "higher"]
SENT = numbered("sent", 10)
# Over RDMA attempts are immediate again after a connection that lasted so long.
SOON = {"reconnect_max_delay_ms": 20}
DAY_NS = 86_400_000_000_000


def meet(one: Node, other: Node) -> None:
    """Exchange a message each way and wait until each knows the other."""
    one.send(b"hello", other.address)
    wait_until(lambda: is_settled(one, other))
    other.send(b"hello", one.address)
    wait_until(lambda: is_settled(other, one) and is_settled(one, other))
    assert collect(one, 1) == collect(other, 1) == [b"hello"]


def is_settled(node: Node, peer: Node) -> bool:
    """Tell whether the node knows its peer and has nothing unacknowledged."""
    facts = node.connection(peer.address).facts
    return facts.kind is PeerKind.URDS and not queued(node, peer)


def queued(node: Node, peer: Node) -> int:
    """Return how many messages the node keeps."""
    return node.queued(peer.address)


def collect(node: Node, count: int, *, wait_s: float = 5.0) -> list[bytes]:
    """Take `count` messages, fewer if they do not come in time."""
    got: list[bytes] = []

    def enough() -> bool:
        got.extend(node.take())
        return len(got) >= count

    try:
        wait_until(enough, wait_s=wait_s)
    except AssertionError:
        pass
    return got


def send(node: Node, peer: Node, payloads: list[bytes]) -> None:
    """Send all of them."""
    for payload in payloads:
        node.send(payload, peer.address)


# -- what counts as delivered


def break_with_unread_bytes(lab: Lab, order: str) -> list[bytes]:
    """Reset the receiver's connection with ten messages in its TCP, acknowledged by it."""
    sender, receiver = lab.own_pair(order)
    meet(sender, receiver)
    with receiver.blind(sender.address):
        send(sender, receiver, SENT)
        stream = sender.stream(receiver.address)
        wait_until(lambda: not sender.row(receiver.address).unsent_messages)
        wait_until(lambda: not stream.unacknowledged())
        receiver.backend.break_connections()
        wait_until(lambda: sender.counters["downs"] > 0)
    return collect(receiver, len(SENT), wait_s=2.0)


@pytest.mark.rule("wire-own-reliability", "rds7-reliable-in-order")
@pytest.mark.parametrize("order", ORDERS)
def test_what_tcp_acknowledged_and_was_not_read_goes_again(lab: Lab, order: str) -> None:
    assert break_with_unread_bytes(lab, order) == SENT


@pytest.mark.parametrize("order", ORDERS)
def test_trusting_tcps_acknowledgement_loses_messages(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    rule = property(lambda self: AckMode.STREAM_ACKNOWLEDGED)
    monkeypatch.setattr(PeerFacts, "ack_mode", rule)
    assert break_with_unread_bytes(lab, order) == []


@pytest.mark.each_carrier("shm0")
@pytest.mark.rule("wire-generation-transport", "wire-reconnect", "rds7-reconnect")
@pytest.mark.parametrize("order", ORDERS)
def test_a_hundred_resets_in_traffic(lab: Lab, order: str) -> None:
    """Two processes, small buffers; each resets its end, with what lies unread in it."""
    small = {"buffer_bytes": 32768, **SOON}
    one, other = lab.process(1 if order == "lower" else 3, **small), lab.process(2, **small)
    # A link that is not there cannot be broken, and on a busy machine one takes a while to come.
    count, break_every = (8_000, 15) if carriers.is_rdma() else (40_000, 120)
    one.begin("send", target=other.address, count=count, payload_bytes=400, break_every=break_every)
    other.begin("collect", count=count, wait_s=60.0, break_every=break_every)
    broken = one.finish()
    got, broken_there = other.finish()
    assert got == [str(number) for number in range(count)]
    assert broken + broken_there >= 100


@pytest.mark.each_carrier("shm0")
@pytest.mark.parametrize("order", ORDERS)
def test_long_and_short_messages_cross_through_resets(lab: Lab, order: str) -> None:
    """Both send and both reset; messages of up to 200,000 bytes are cut in their middle."""
    buffers = {"buffer_bytes": 1 << 20, **SOON}
    one, other = lab.process(1 if order == "lower" else 3, **buffers), lab.process(2, **buffers)
    count = 1_000 if carriers.is_rdma() else 8_000
    for node, peer in ((one, other), (other, one)):
        node.begin(
            "exchange",
            target=peer.address,
            count=count,
            payload_bytes_max=200_000,
            break_every=count // 160,
            wait_s=60.0,
        )
    answers = [one.finish(), other.finish()]
    assert [numbers for numbers, _ in answers] == [list(range(count))] * 2
    assert sum(broken for _, broken in answers) >= 100


# -- acknowledgements


@pytest.mark.rule("wire-ack-only", "wire-ack-limit", "wire-ack-required", "wire-sequence-excludes")
def test_ack_only_frames_are_bare_and_never_two_of_one_kind(lab: Lab) -> None:
    lower, higher, relay = lab.relayed()
    meet(lower, higher)
    send(lower, higher, numbered("one way", 2000))
    assert collect(higher, 2000) == numbered("one way", 2000)
    wait_until(lambda: not queued(lower, higher))
    bare = [frame.header for frame in relay.sent(Way.DOWN) if frame.ports == (0, 0)]
    assert 0 < len(bare) < 2000 / 8 * 2, "asked for after 8, so about one in 8"
    for header in bare:
        assert (header.sequence, header.payload_bytes, header.flags) == (0, 0, 0)
        assert header.extension == bytes(16)
    numbers = [header.ack for header in bare]
    assert numbers == sorted(set(numbers)), "each tells something new"


@pytest.mark.rule("wire-ack-field")
def test_every_frame_tells_the_highest_number_received(lab: Lab) -> None:
    lower, higher, relay = lab.relayed()
    meet(lower, higher)
    for number in range(50):
        lower.send(b"ping %d" % number, higher.address)
        assert collect(higher, 1) == [b"ping %d" % number]
        higher.send(b"pong %d" % number, lower.address)
        assert collect(lower, 1) == [b"pong %d" % number]
    pings = [frame for frame in relay.sent(Way.UP) if frame.payload.startswith(b"ping")]
    pongs = [frame for frame in relay.sent(Way.DOWN) if frame.payload.startswith(b"pong")]
    for ping, pong in zip(pings, pongs, strict=True):
        assert pong.header.ack == ping.header.sequence


def test_a_beyond_acknowledgement_ends_the_connection(lab: Lab) -> None:
    lower, higher, relay = lab.relayed()
    meet(lower, higher)
    spoiled = spoil_once(relay, Way.DOWN, lambda header: header | 1 << 62, field="ack")
    send(lower, higher, SENT)
    higher.send(b"carries it", lower.address)
    assert collect(higher, len(SENT)) == SENT
    assert collect(lower, 1) == [b"carries it"]
    assert spoiled
    assert lower.counters["recv_drop_bad_ack"] == 1


# -- checksums


@pytest.mark.rule("wire-checksum")
def test_every_header_carries_its_checksum(lab: Lab) -> None:
    lower, higher, relay = lab.relayed()
    meet(lower, higher)
    relay.frames.clear()
    send(lower, higher, SENT)
    send(higher, lower, SENT)
    assert collect(higher, len(SENT)) == collect(lower, len(SENT)) == SENT
    frames = relay.sent(Way.UP) + relay.sent(Way.DOWN)
    assert all(frame.header.checksum for frame in frames)
    for frame in frames:
        Header.parse(frame.header.emit(), verify=True)


@pytest.mark.parametrize("bit", [0, 70, 150, 190, 220, 383])
def test_a_flipped_bit_ends_the_connection_and_costs_no_message(lab: Lab, bit: int) -> None:
    """Bits of sequence, acknowledgement, length, ports, padding and extensions."""
    lower, higher, relay = lab.relayed()
    meet(lower, higher)
    flipped: list[Frame] = []

    def flip(way: Way, frame: Frame, data: bytes) -> bytes:
        if way is Way.DOWN or frame.payload != SENT[4] or flipped:
            return data
        flipped.append(frame)
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 0x80 >> bit % 8
        return bytes(spoiled)

    relay.tamper = flip
    send(lower, higher, SENT)
    assert collect(higher, len(SENT)) == SENT
    assert flipped
    assert higher.counters["recv_drop_bad_checksum"] == 1


def spoil_once(relay: Relay, way: Way, change: Callable[[int], int], *, field: str) -> list[Frame]:
    """Have the relay change one field of the next message with a payload; the checksum fits."""
    spoiled: list[Frame] = []

    def tamper(one: Way, frame: Frame, data: bytes) -> bytes:
        if one is not way or not frame.payload or frame.is_map or spoiled:
            return data
        spoiled.append(frame)
        header = frame.header
        fields = {name: getattr(header, name) for name in Header.__dataclass_fields__}
        fields[field] = change(fields[field])
        return Header(**fields).emit(checksum=True) + frame.payload

    relay.tamper = tamper
    return spoiled


# -- restarts


@pytest.mark.rule("wire-generation-restart", "wire-generation-stored")
@pytest.mark.parametrize("order", ORDERS)
def test_the_survivor_of_a_restart_learns_what_went_down(
    lab: Lab, caplog: pytest.LogCaptureFixture, order: str
) -> None:
    """What the old generation was handed is given up, what was only queued reaches the new one."""
    caplog.set_level(logging.INFO, logger="urds")
    survivor, other = lab.own_pair(order)
    meet(survivor, other)
    with other.blind(survivor.address):
        send(survivor, other, SENT)
        wait_until(lambda: survivor.row(other.address).unacknowledged_messages == len(SENT))
        other.close()
    wait_until(lambda: survivor.counters["downs"] > 0)
    send(survivor, other, numbered("queued", 5))
    other = lab.node(2)
    assert collect(other, 5) == numbered("queued", 5)
    assert survivor.counters["send_given_up"] == len(SENT)
    assert survivor.counters["peer_restarts"] == 1
    wait_until(
        lambda: f"{other.address} restarted: 10 messages sent to it may be lost" in caplog.text
    )
    other.send(b"from the restart", survivor.address)
    assert collect(survivor, 1) == [b"from the restart"]
    wait_until(lambda: is_settled(survivor, other))
    assert collect(other, 1, wait_s=0.05) == []


@pytest.mark.each_carrier("shm0")
@pytest.mark.parametrize("order", ORDERS)
def test_a_killed_process_takes_nothing_else_with_it(lab: Lab, order: str) -> None:
    """Kill a receiver again and again; each restart gets what is sent to it, once."""
    sender = lab.node(1 if order == "lower" else 3)
    for life in range(3):
        receiver = lab.process(2)
        send_to = numbered(f"life {life}", 100)
        for payload in send_to:
            sender.send(payload, receiver.address)
        got, _ = receiver.ask("collect", count=100, wait_s=BUSY_S)
        assert got == [payload.decode() for payload in send_to]
        wait_until(lambda: not sender.queued(lab.address(2)))
        receiver.kill()
    assert sender.counters["send_given_up"] == 0
    assert sender.counters[carriers.control_counter("peer_restarts")] == 2


def restart_with_the_clock_set_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> list[bytes]:
    """Return what comes of a restart that numbers below the old one, and repeats at once.

    Its first connection is reset with all it said unread.
    """
    survivor, other = lab.own_pair(order)
    meet(survivor, other)
    other.close()
    path = survivor.path(other.address)
    wait_until(lambda: path.stream is None)
    monkeypatch.setattr(driver_paths, "_STARTED_NS", driver_paths._STARTED_NS - DAY_NS)
    with monkeypatch.context() as patch:
        patch.setattr(path.reader, "read", lambda **_: False)
        newborn = lab.node(2)
        send(newborn, survivor, SENT)
        core = newborn.path(survivor.address).core
        wait_until(lambda: len(core.sender.unacked) >= len(SENT))
        wait_until(lambda: not newborn.stream(survivor.address).unacknowledged())
        wait_until(lambda: path.stream is not None)
        assert survivor.backend.break_connections() == 1
        # The next connection may be here before the end of this one is seen.
        wait_until(lambda: newborn.counters["downs"] + newborn.counters["superseded"] > 0)
    return collect(survivor, len(SENT), wait_s=2.0)


@pytest.mark.reference
@pytest.mark.rule("wire-generation-restart")
@pytest.mark.parametrize("order", ORDERS)
def test_a_clock_set_back_between_two_lives_costs_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    assert restart_with_the_clock_set_back(lab, monkeypatch, order) == SENT


@pytest.mark.reference
@pytest.mark.parametrize("order", ORDERS)
def test_a_life_that_maps_do_not_tell_loses_messages(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """Its repeats are taken for those of the life before, whose numbers were higher."""
    monkeypatch.setattr(Receiver, "_note_generation", lambda *_: None)
    assert restart_with_the_clock_set_back(lab, monkeypatch, order) == []


@pytest.mark.parametrize("order", ORDERS)
def test_a_closed_node_leaves_no_connection_behind(lab: Lab, order: str) -> None:
    """Its peer connects anew at once, while it is still about to close."""
    one = lab.node(1 if order == "lower" else 3)
    for _ in range(10):
        other = lab.node(2)
        meet(one, other)
        other.close()
        wait_until(lambda: not one.is_connected(lab.address(2)), wait_s=1.0)


def test_no_peer_is_greeted_while_the_streams_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that comes back at once would hand its messages to a node about to die."""
    node = lab.node(1)
    close, alive = node.driver.plane.close, []

    def note_and_close(drain_ns: int) -> int:
        alive.append(node.driver._thread.is_alive())
        return close(drain_ns)

    monkeypatch.setattr(node.driver.plane, "close", note_and_close)
    node.close()
    assert alive == [False]


# -- another host takes the address


@pytest.mark.parametrize("release", Release)
@pytest.mark.parametrize("order", ORDERS)
def test_a_kernel_takes_the_address_of_an_own_node(lab: Lab, order: str, release: Release) -> None:
    node, other = lab.own_pair(order)
    meet(node, other)
    other.close()
    wait_until(lambda: node.counters["downs"] > 0)
    peer = lab.kernel(2, node=node, release=release)
    for payload in SENT:
        node.send(payload, peer.address, KERNEL_PORT)
    peer.run_until(lambda: peer.payloads == SENT)
    peer.send(b"from the kernel", source_port=KERNEL_PORT, target_port=PORT)
    assert taken(node, peer, 1) == [b"from the kernel"]
    kind_is_linux(node, peer)
    peer.frames.clear()
    node.send(b"plain", peer.address, KERNEL_PORT)
    peer.run_until(lambda: peer.payloads[-1:] == [b"plain"])
    assert (peer.frames[-1].header.ack, peer.frames[-1].header.checksum) == (0, 0)


def kind_is_linux(node: Node, peer: KernelPeer) -> None:
    """Wait until the node takes the host at the address for a kernel."""
    peer.run_until(lambda: node.connection(peer.address).facts.kind is PeerKind.LINUX)
    peer.run_until(lambda: not node.queued(peer.address))


@pytest.mark.parametrize("release", Release)
@pytest.mark.parametrize("order", ORDERS)
def test_an_own_node_takes_the_address_of_a_kernel(lab: Lab, order: str, release: Release) -> None:
    node, peer = lab.pair(order, kernel={"release": release})
    node.send(b"to the kernel", peer.address)
    peer.run_until(lambda: peer.payloads == [b"to the kernel"])
    kind_is_linux(node, peer)
    peer.close()
    wait_until(lambda: node.counters["downs"] > 0)
    for payload in SENT:
        node.send(payload, peer.address)
    other = lab.node(2)
    assert collect(other, len(SENT)) == SENT
    other.send(b"from a urds node", node.address)
    assert collect(node, 1) == [b"from a urds node"]
    wait_until(lambda: is_settled(node, other) and is_settled(other, node))


def test_a_reset_of_a_paused_path_is_no_busy_loop(lab: Lab) -> None:
    """A mailbox over its hard bound pauses the path; the reset is seen when it goes on."""
    sender, receiver = lab.own_pair("lower")
    meet(sender, receiver)
    with receiver.blind(sender.address):
        send(sender, receiver, SENT)
        sender.backend.break_connections()
        before_s = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before_s < 0.1
    assert collect(receiver, len(SENT)) == SENT
