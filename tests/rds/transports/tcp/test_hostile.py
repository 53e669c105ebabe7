"""Peers that mean harm: wrong lengths, odd headers, connections that say nothing.

The connection at fault ends, its reason is counted, memory and descriptors stay bounded, and honest
peers notice nothing.
"""

from __future__ import annotations

import resource
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.faults import reset
from tests.rds.transports.tcp.frames import emit_frame, emit_map
from tests.rds.transports.tcp.kernel_peer import REPEATED
from tests.rds.transports.tcp.nodes import PORT, Node
from tests.rds.transports.tcp.processes import NodeProcess
from tests.support.waiting import BUSY_S, ENDLESS_S, wait_until
from urds.rds.constants import CONGESTION_MAP_BYTES, RDS_TCP_PORT, HeaderFlag
from urds.rds.settings import Settings

NODE = 250  # above all others, so that they connect to it
UNKNOWN_PEER = 67  # odd: at the other end of a link, where there is one
MIB = 1 << 20


def is_ended(connection: socket.socket, wait_s: float = 0.0) -> bool:
    """Tell whether the other end has closed or reset the connection."""
    deadline_s = time.monotonic() + wait_s
    while True:
        ready, _, _ = select.select([connection], [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            return False
        try:
            if not connection.recv(1 << 16):
                return True
        except OSError:
            return True


# -- lengths

BAD_LENGTHS = {
    "4 GiB": (emit_frame(payload_bytes=(1 << 32) - 1, target_port=PORT), "recv_drop_too_long"),
    "longest and 1": (
        emit_frame(payload_bytes=Settings().max_message_bytes + 1, target_port=PORT),
        "recv_drop_too_long",
    ),
    "short map": (
        emit_frame(bytes(CONGESTION_MAP_BYTES - 1), flags=HeaderFlag.CONG_BITMAP),
        "recv_drop_bad_map",
    ),
    "empty map": (emit_frame(flags=HeaderFlag.CONG_BITMAP), "recv_drop_bad_map"),
}


@pytest.mark.parametrize(("data", "reason"), BAD_LENGTHS.values(), ids=BAD_LENGTHS)
def test_a_bad_length_ends_the_connection_and_nothing_else(
    lab: Lab, data: bytes, reason: str
) -> None:
    node = lab.process(NODE)
    honest = lab.node(1)
    talk(honest, node, 1)
    before = 0
    for turn in range(50):
        if turn == 10:  # what the first of them import and cache is no leak
            before = node.rss_bytes
        connection = lab.connect(UNKNOWN_PEER, node.address)
        connection.sendall(emit_map() + data)
        assert is_ended(connection, wait_s=2.0)
        connection.close()
        if turn % 10 == 9:
            talk(honest, node, 1)
    assert node.ask("counters")[reason] == 50
    assert node.rss_bytes - before < MIB
    assert honest.counters["downs"] == 0


def test_the_longest_message_takes_no_memory_before_it_comes(lab: Lab) -> None:
    node = lab.process(NODE)
    talk(lab.node(1), node, 1)
    before = node.rss_bytes
    announced = emit_frame(payload_bytes=Settings().max_message_bytes, target_port=PORT)
    connections = [lab.connect(UNKNOWN_PEER + 2 * number, node.address) for number in range(16)]
    for connection in connections:
        connection.sendall(emit_map() + announced + bytes(1000))
    talk(lab.node(3), node, 1)
    assert node.rss_bytes - before < 2 * MIB
    for connection in connections:
        connection.close()


def test_half_a_header_and_an_end_leave_nothing(lab: Lab) -> None:
    node = lab.process(NODE)
    honest = lab.node(1)
    talk(honest, node, 1)
    before, descriptors = node.rss_bytes, node.descriptor_count
    for data in range(1, 48):
        connection = lab.connect(UNKNOWN_PEER, node.address)
        connection.sendall(emit_map() + emit_frame(target_port=PORT)[:data])
        connection.shutdown(socket.SHUT_WR)
        assert is_ended(connection, wait_s=2.0)
        connection.close()
    talk(honest, node, 1)
    assert node.ask("counters")["downs"] == 47
    assert node.rss_bytes - before < MIB
    assert node.descriptor_count <= descriptors + 2  # and a call-back request at the peer that left


def test_a_peer_that_breaks_the_protocol_is_not_tried_again_at_once(lab: Lab) -> None:
    """The node is the lower one here, and connects to a host that always answers wrongly."""
    node = lab.node(1)
    listener = lab.listen(66, RDS_TCP_PORT)
    listener.settimeout(0.2)
    node.send(b"waits", lab.address(66))
    deadline_s = time.monotonic() + 1.0
    with listener:
        while time.monotonic() < deadline_s:
            with suppress(TimeoutError):
                connection = listener.accept()[0]
                connection.sendall(emit_map() + BAD_LENGTHS["4 GiB"][0])
                is_ended(connection, wait_s=2.0)
                connection.close()
    assert 0 < node.counters["recv_drop_too_long"] < 20


def talk(honest: Node, node: NodeProcess, count: int) -> None:
    """Have an honest peer send, and the node receive."""
    for number in range(count):
        honest.send(f"honest {number}".encode(), node.address)
    got, _ = node.ask("collect", count=count, wait_s=BUSY_S)
    assert got == [f"honest {number}" for number in range(count)]


# -- odd headers


@dataclass(frozen=True, slots=True)
class Odd:
    """One frame of a unknown peer."""

    sequence: int
    source_port: int
    target_port: int
    flags: int
    payload: bytes
    ack: int
    extension: bytes

    def emit(self) -> bytes:
        """Return the bytes."""
        return emit_frame(
            self.payload,
            sequence=self.sequence,
            source_port=self.source_port,
            target_port=self.target_port,
            flags=self.flags,
            ack=self.ack,
            extension=self.extension,
        )


odd_frames = st.builds(
    Odd,
    sequence=st.integers(0, 12) | st.integers(0, (1 << 64) - 1),
    source_port=st.sampled_from([0, 1, 2, 4001, 65535]),
    target_port=st.sampled_from([0, 1, 2, PORT, 65535]) | st.just(PORT),
    flags=st.integers(0, 255).filter(lambda flags: flags != HeaderFlag.CONG_BITMAP),
    payload=st.binary(max_size=40),
    ack=st.just(0) | st.integers(0, (1 << 64) - 1),
    extension=st.just(bytes(16)) | st.binary(min_size=16, max_size=16),
)


def delivered_by_linux(frames: list[Odd]) -> list[bytes]:
    """Return what a kernel queues for the socket. Source: docs/reference/rds.md 1.6, 1.8."""
    expected, payloads = 0, []
    for frame in frames:
        if frame.flags & REPEATED and frame.sequence < expected:
            continue
        expected = frame.sequence + 1
        if frame.target_port == PORT:
            payloads.append(frame.payload)
    return payloads


def is_probe(frame: Odd) -> bool:
    """Tell whether a node learns from this who the peer is; the twin of that is not modelled."""
    return (frame.source_port, frame.target_port) in ((1, 0), (0, 1))


def test_odd_headers_are_delivered_as_linux_delivers_them(lab: Lab) -> None:
    """Every example comes from an address of its own, so that nothing is remembered."""
    node = lab.node(NODE)
    sources = iter(range(1, NODE))

    @settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(odd_frames.filter(lambda frame: not is_probe(frame)), max_size=12))
    def examples(frames: list[Odd]) -> None:
        connection = lab.connect(next(sources), node.address)
        last = emit_frame(b"the last", sequence=1 << 63, source_port=2, target_port=PORT)
        connection.sendall(emit_map() + b"".join(frame.emit() for frame in frames) + last)
        got = take_up_to(node, b"the last")
        assert got == [*delivered_by_linux(frames), b"the last"]
        connection.close()

    examples()
    assert_sound(node, lab)


def test_odd_probes_break_nothing(lab: Lab) -> None:
    """Handshakes with any extension, any number, any flags; afterwards the node still serves."""
    node = lab.node(NODE, npaths=8)
    sources = iter(range(1, NODE - 1))
    probes = st.tuples(odd_frames, st.sampled_from([(1, 0), (0, 1)])).map(
        lambda pair: Odd(
            pair[0].sequence, *pair[1], pair[0].flags, b"", pair[0].ack, pair[0].extension
        )
    )

    @settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(probes | odd_frames, min_size=1, max_size=12), st.booleans())
    def examples(frames: list[Odd], orderly: bool) -> None:
        connection = lab.connect(next(sources), node.address)
        with suppress(ConnectionError):
            connection.sendall(emit_map() + b"".join(frame.emit() for frame in frames))
        (connection.close if orderly else lambda: reset(connection))()

    examples()
    assert_sound(node, lab)


def take_up_to(node: Node, last: bytes) -> list[bytes]:
    """Take messages until `last` has come."""
    got: list[bytes] = []

    def has_come() -> bool:
        got.extend(node.take())
        return last in got

    wait_until(has_come)
    return got


def assert_sound(node: Node, lab: Lab) -> None:
    """Show that the control thread lives and honest peers are served."""
    assert node.driver._thread.is_alive()
    honest = lab.node(NODE + 1)
    node.take()
    honest.send(b"honest", node.address)
    take_up_to(node, b"honest")


# -- connections that say nothing


@contextmanager
def flood(lab: Lab, target: str, *, addresses: int, each: int) -> Iterator[list[socket.socket]]:
    """Open connections from many addresses; every second one begins a header and stops."""
    connections = []
    try:
        for turn in range(each):
            for last in range(2, 2 + addresses):
                with suppress(ConnectionError):  # turned away before `connect` was back
                    connections.append(lab.connect(last, target))
                    if (turn + last) % 2:
                        connections[-1].send(b"\0")
        yield connections
    finally:
        for connection in connections:
            reset(connection)


def test_silent_connections_are_few_and_do_not_keep_others_out(lab: Lab) -> None:
    node = lab.process(NODE, pending_wait_s=ENDLESS_S)  # honest peers cannot wait for it to end
    before, descriptors = node.rss_bytes, node.descriptor_count
    with flood(lab, node.address, addresses=100, each=3) as connections:
        honest = lab.node(1)
        talk(honest, node, 1)
        open_now = [one for one in connections if not is_ended(one)]
        assert 0 < len(open_now) <= 64
        per_address = Counter(one.getsockname()[0] for one in open_now)
        assert max(per_address.values()) <= 16
        assert node.descriptor_count - descriptors <= 64 + 2 + 100  # requests a call-back
        assert node.rss_bytes - before < 32 * MIB
    talk(honest, node, 10)


def test_one_address_cannot_take_more_than_its_share(lab: Lab) -> None:
    node = lab.process(NODE)
    with flood(lab, node.address, addresses=1, each=100) as connections:
        wait_until(lambda: sum(not is_ended(one) for one in connections) <= 16)
        honest = lab.node(1)
        talk(honest, node, 1)


def test_a_silent_connection_is_closed_in_time(lab: Lab) -> None:
    node = lab.process(NODE, pending_wait_s=0.3)
    connection = lab.connect(UNKNOWN_PEER, node.address)
    started_s = time.monotonic()
    while not is_ended(connection, wait_s=0.1):  # one byte now and then does not help
        with suppress(OSError):
            connection.send(b"\0")
        assert time.monotonic() - started_s < BUSY_S
    assert time.monotonic() - started_s > 0.2
    assert node.ask("counters")["pending_silent"] == 1


def test_messages_behind_a_silent_connection_go_to_the_peer_that_comes(lab: Lab) -> None:
    """The connection took the place of one that the messages would have asked for."""
    node = lab.process(NODE, pending_wait_s=0.3)
    peer = lab.process(UNKNOWN_PEER)
    peer.kill()
    silent = lab.connect(UNKNOWN_PEER, node.address)
    assert select.select([silent], [], [], BUSY_S)[0], "it is attached, and told a map"
    node.ask("send", target=peer.address, count=3)
    while not is_ended(silent, wait_s=0.1):
        pass
    again = lab.process(UNKNOWN_PEER)
    assert again.ask("collect", count=3, wait_s=BUSY_S)[0] == ["0", "1", "2"]


def test_running_out_of_descriptors_is_no_busy_loop(lab: Lab) -> None:
    node = lab.process(NODE)
    honest = lab.node(1)
    talk(honest, node, 1)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (node.descriptor_count + 5,) * 2)
    with flood(lab, node.address, addresses=60, each=1):
        time.sleep(0.2)
        before_s = node.cpu_s
        time.sleep(0.5)
        assert node.cpu_s - before_s < 0.1
        talk(honest, node, 5)
    talk(honest, node, 5)
