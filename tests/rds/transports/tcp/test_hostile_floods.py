"""Floods: connections, messages, peers. Memory and descriptors stay bounded, others go on.

The sizes are small enough for every run; `python -m tests.rds.transports.tcp.siege_figures` has
the full ones, and measures what honest processes feel. Here nothing asserts a speed.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.faults import reset
from tests.rds.transports.tcp.frames import Frame, FrameReader, emit_frame, emit_map
from tests.rds.transports.tcp.nodes import PORT
from tests.rds.transports.tcp.processes import NodeProcess
from tests.rds.transports.tcp.siege import UNBOUND_PORT, begin_connect, small_frames, under_way
from tests.support.waiting import wait_until
from urds.rds.constants import Capability, HeaderFlag
from urds.rds.control.paths import SourcePortRule
from urds.rds.plane.contract import Limits
from urds.rds.wire.extensions import Handshake, Mark, emit_handshake, parse_handshake
from urds.rds.wire.header import HEADER_BYTES

pytestmark = pytest.mark.loopback_only("the attackers have hundreds of addresses of 127/8")

NODE = 250  # above all others, so that they connect to it
HONEST = 1
UNKNOWN_PEER = 67
MIB = 1 << 20
BUFFER_BYTES = 106_496  # a socket's by default
IDLE_PEER_BYTES_MAX = 16 << 10
HONEST_WAIT_S = 15.0
PENDING_WAIT_S = 30.0  # `LocalAddressSettings.pending_wait_ns`


@contextmanager
def besieged(lab: Lab, **settings: object) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """Start a node with an echo and its neighbour; they still talk at the end."""
    node, neighbour = lab.process(NODE, **settings), lab.process(HONEST)
    node.ask("serve_echo")
    talk(neighbour, node, 20)
    yield node, neighbour
    talk(neighbour, node, 20)
    assert not node.ask("counters")["control_faults"]


def talk(neighbour: NodeProcess, node: NodeProcess, count: int) -> None:
    """Exchange messages; a lost or changed one would hang or end the neighbour."""
    assert len(neighbour.ask("talk", target=node.address, count=count, payload_bytes=100)) == count


# -- lengths


def test_thousands_of_protocol_errors_leave_no_memory(lab: Lab) -> None:
    """Each counts once; nothing of them waits for the peer's next connection."""
    protocol_error = emit_map() + emit_frame(payload_bytes=(1 << 32) - 1, target_port=PORT)
    with besieged(lab) as (node, neighbour):
        before = 0
        for turn in range(2500):
            if turn == 500:  # every host was there; tables have their size
                before = node.rss_bytes
            connection = lab.connect(2 + turn % 20 * 2, node.address)
            with suppress(ConnectionError):
                connection.sendall(protocol_error)
                select.select([connection], [], [], 2.0)
            reset(connection)
            if turn % 500 == 0:
                talk(neighbour, node, 5)
        wait_until(lambda: node.ask("counters")["recv_drop_too_long"] == 2500)
        assert node.rss_bytes - before < MIB
        assert all(node.ask("queued", peer=lab.address(2 + 2 * one)) <= 1 for one in range(20))


def test_an_empty_message_with_any_flags_is_delivered_as_linux_does(lab: Lab) -> None:
    """All but a map, whose length is wrong. Source: docs/reference/rds.md 1.6 (linux v6.12)."""
    node = lab.node(NODE)
    connection = lab.connect(UNKNOWN_PEER, node.address)
    flags = [value for value in range(256) if value != HeaderFlag.CONG_BITMAP]
    connection.sendall(emit_map())
    for number, value in enumerate(flags):
        frame = emit_frame(sequence=number + 1, source_port=7, target_port=PORT, flags=value)
        connection.sendall(frame)
    got: list[bytes] = []
    wait_until(lambda: len(got.extend(node.take()) or got) == len(flags))
    assert node.counters["downs"] == 0
    connection.close()


# -- headers of a urds node, which Linux does not look at


def own_node(lab: Lab, node_address: str) -> socket.socket:
    """Connect as a node of ours that has introduced itself and was answered."""
    connection = lab.connect(UNKNOWN_PEER, node_address, SourcePortRule(0, 1))
    mark = Mark(Capability.ACKNOWLEDGEMENTS | Capability.CHECKSUM | Capability.GENERATION_HELLO)
    extension = emit_handshake(Handshake(npaths=1, generation=77, mark=mark))
    connection.sendall(emit_map() + emit_frame(source_port=1, extension=extension))
    reader = FrameReader()
    answered = False
    while not answered:
        data = connection.recv(1 << 16)
        assert data, "the node ended the connection"
        answered = any(is_introduction(frame) for frame in reader.feed(data))
    return connection


def is_introduction(frame: Frame) -> bool:
    """Tell whether a frame is a hello or the answer to one: a handshake that tells the life."""
    if frame.is_map or 1 not in frame.ports:
        return False
    return parse_handshake(frame.header.extension).generation is not None


LIES = {
    "recv_drop_bad_ack": emit_frame(ack=1 << 63),
    "recv_drop_bad_checksum": emit_frame(sequence=1, source_port=7, target_port=PORT)[:-18]
    + b"\1\1"
    + bytes(16),
}


@pytest.mark.parametrize(("reason", "data"), LIES.items(), ids=LIES)
def test_a_node_of_ours_that_lies_is_cut_off(lab: Lab, reason: str, data: bytes) -> None:
    with besieged(lab) as (node, _):
        connection = own_node(lab, node.address)
        connection.sendall(data)
        wait_until(lambda: node.ask("counters")[reason] == 1)
        assert node.ask("collect", count=1, wait_s=0.0)[0] == []
        connection.close()


def test_any_bytes_leave_a_node_process_well(lab: Lab) -> None:
    """Whole frames, halves and noise, of unknown peers and of nodes of ours; no other notices."""
    header = st.builds(
        emit_frame,
        st.binary(max_size=30),
        sequence=st.integers(0, 9) | st.integers(0, (1 << 64) - 1),
        source_port=st.sampled_from([0, 1, 2, 65535]),
        target_port=st.sampled_from([0, 1, 2, 9, 65535]),
        flags=st.integers(0, 255),
        ack=st.just(0) | st.integers(0, (1 << 64) - 1),
        extension=st.just(bytes(16)) | st.binary(min_size=16, max_size=16),
        payload_bytes=st.none() | st.integers(0, (1 << 32) - 1),
    )
    with besieged(lab) as (node, neighbour):

        @settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
        @given(st.lists(header | st.binary(max_size=100), max_size=8), st.booleans())
        def examples(pieces: list[bytes], introduced: bool) -> None:
            with suppress(ConnectionError):  # refused at once where the last one's end is not known
                if introduced:
                    connection = own_node(lab, node.address)
                else:
                    connection = lab.connect(UNKNOWN_PEER, node.address)
                with connection:
                    connection.sendall(emit_map() + b"".join(pieces))
                    reset(connection)
            talk(neighbour, node, 1)

        examples()


# -- connections


def test_a_flood_of_slow_connections_keeps_no_peer_out(lab: Lab) -> None:
    """How soon an honest peer is accepted meanwhile is measured by hand; here, that it is."""
    with besieged(lab) as (node, neighbour):
        before, descriptors = node.rss_bytes, node.descriptor_count
        began_s = time.monotonic()
        with under_way("slow-loris", node.address, 1500):
            wait_until(lambda: node.ask("counters")["refused_pending"] > 200, wait_s=60.0)
            for host in range(245, 250):
                connection = begin_connect(lab.address(host), node.address)
                connection.settimeout(HONEST_WAIT_S)
                select.select([], [connection], [], HONEST_WAIT_S)
                connection.sendall(emit_map())
                assert connection.recv(1)  # our map: it was accepted
                reset(connection)
            assert node.descriptor_count - descriptors <= 64 + 5 + 2
            assert node.rss_bytes - before < 32 * MIB
            talk(neighbour, node, 100)
            # Now, not later: once they are gone, those that still wait are accepted as any other.
            counters = node.ask("counters")
        turns = 1 + (time.monotonic() - began_s) // PENDING_WAIT_S
        assert counters["call_back_requests"] == 0, "unknown peers are not called back"
        assert counters["accepts"] <= 1 + 32 * turns + 5, "for most of them nothing is made"


def test_from_half_of_the_unknown_peers_on_they_wait_for_their_first_header(lab: Lab) -> None:
    """A pending connection costs nothing: one that sends is accepted, a silent one dropped."""
    bounds = {"pending_max": 4, "pending_wait_s": 4.0}
    with besieged(lab, **bounds) as (node, _), ExitStack() as ending:
        made = [lab.connect(host, node.address) for host in range(10, 14)]
        for connection in made:
            ending.callback(reset, connection)
        wait_until(lambda: node.ask("counters")["accepts"] == 1 + 2)
        made[-1].sendall(emit_map()[:HEADER_BYTES])
        assert made[-1].recv(1)
        assert node.ask("counters")["accepts"] == 1 + 3
        wait_until(lambda: node.ask("counters")["pending_silent"] == 4, wait_s=60.0)
        late = lab.connect(UNKNOWN_PEER, node.address)
        ending.callback(reset, late)
        assert late.recv(1), "they are gone, so the next one is let in at once"


# -- messages


def test_who_passes_over_congestion_fills_no_memory(lab: Lab) -> None:
    """It is not read any more beyond the hard bound; other ports of the node are."""
    with besieged(lab, buffer_bytes=BUFFER_BYTES) as (node, neighbour):
        before = node.rss_bytes
        with under_way("congested", node.address, 1):
            wait_until(lambda: node.ask("counters")["recv_paused"] == 1, wait_s=60.0)
            talk(neighbour, node, 200)
            queued = node.ask("counters")["recv_queued"]
            assert node.rss_bytes - before < 64 * MIB
            hard_bytes = 4 * BUFFER_BYTES + Limits().receive_hard_bytes
            assert queued - 2 * 220 <= hard_bytes // MIB + 1  # the talk, and what was too much
            assert node.ask("counters")["recv_paused"] == 1
            taken = node.ask("measure", count=queued, wait_s=0.5)
            assert set(map(tuple, taken)) == {(MIB, crc32(bytes(MIB)))}


def test_a_scan_of_ports_is_counted_and_not_logged(lab: Lab) -> None:
    with besieged(lab) as (node, neighbour):
        connection = lab.connect(UNKNOWN_PEER, node.address)
        connection.sendall(emit_map())
        frames = [
            emit_frame(b"?", sequence=number, source_port=7, target_port=10_000 + number % 50_000)
            for number in range(1, 20_001)
        ]
        before = node.rss_bytes
        connection.sendall(b"".join(frames))
        for _ in range(160):
            connection.sendall(small_frames(UNBOUND_PORT))
        talk(neighbour, node, 50)
        wait_until(lambda: node.ask("counters")["recv_drop_no_sock"] == 100_000, wait_s=60.0)
        assert node.rss_bytes - before < 2 * MIB
        assert len(node.ask("logged")) < 5
        connection.close()


def test_a_sweep_of_source_ports_costs_no_memory(lab: Lab) -> None:
    """Neither while the peer is there nor after it: paths outlive streams."""
    with besieged(lab) as (node, neighbour):
        connection = lab.connect(UNKNOWN_PEER, node.address)
        connection.sendall(emit_map())
        wait_until(lambda: node.ask("counters")["accepts"] == 2)
        talk(neighbour, node, 200)
        before = node.rss_bytes
        frames = [
            emit_frame(b"?", sequence=port, source_port=port, target_port=UNBOUND_PORT)
            for port in range(2, 65536)
        ]
        connection.sendall(b"".join(frames))
        wait_until(lambda: node.ask("counters")["recv_drop_no_sock"] == 65_534, wait_s=60.0)
        assert node.rss_bytes - before < 2 * MIB
        connection.close()


def test_a_flood_of_pings_is_answered_in_part_and_keeps_no_memory(lab: Lab) -> None:
    with besieged(lab) as (node, neighbour):
        before = node.rss_bytes
        with under_way("pings", node.address, 1):
            wait_until(lambda: node.ask("counters")["recv_drop_control_full"] > 50_000, wait_s=60.0)
            talk(neighbour, node, 20)
            assert node.rss_bytes - before < 32 * MIB


# -- peers


@contextmanager
def peers(lab: Lab, node: NodeProcess, first: int, count: int) -> Iterator[list[socket.socket]]:
    """Have as many hosts connect, say the first word, and stay."""
    with ExitStack() as ending:
        made = []
        for number in range(first, first + count):
            connection = begin_connect(f"127.7.{number // 250}.{1 + number % 250}", node.address)
            ending.callback(reset, connection)
            select.select([], [connection], [], 5.0)
            with suppress(OSError):
                connection.send(emit_map())
            made.append(connection)
        yield made


def test_many_peers_are_as_many_as_may_be(lab: Lab) -> None:
    """Those with a connection stay, the rest is refused; later the oldest idle ones give way."""
    with besieged(lab, peers_max=50) as (node, neighbour):
        with peers(lab, node, 0, 120):
            wait_until(lambda: node.ask("counters")["refused_peers"] >= 120 - 49, wait_s=60.0)
            wait_until(lambda: node.ask("counters")["first_frames"] >= 1 + 49, wait_s=60.0)
            counters = node.ask("counters")
            assert (counters["first_frames"], counters["refused_peers"]) == (1 + 49, 120 - 49)
            talk(neighbour, node, 20)
        for _ in range(30):  # one that comes while those that left are sought is refused
            with peers(lab, node, 120, 49), suppress(AssertionError):
                wait_until(lambda: node.ask("counters")["evicted"] >= 49, wait_s=1.0)
                break
        assert node.ask("counters")["evicted"] >= 49
        talk(neighbour, node, 20)


def test_an_idle_peer_takes_little_memory(lab: Lab) -> None:
    with besieged(lab) as (node, _), peers(lab, node, 0, 100):
        wait_until(lambda: node.ask("counters")["first_frames"] == 101)
        before = node.rss_bytes
        with peers(lab, node, 100, 500):
            wait_until(lambda: node.ask("counters")["handshake_timeouts"] >= 600, wait_s=60.0)
            assert node.rss_bytes - before <= 500 * IDLE_PEER_BYTES_MAX
