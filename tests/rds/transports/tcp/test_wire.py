"""What a node puts on the wire towards a kernel, byte for byte beside what kernels send."""

import socket
from contextlib import suppress

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.faults import make_deaf, make_hearing
from tests.rds.transports.tcp.frames import Frame, FrameReader, emit_map
from tests.rds.transports.tcp.kernel_peer import KernelPeer, Release
from tests.rds.transports.tcp.meetings import (
    KERNEL_PORT,
    arrived,
    meet,
    numbered,
    send_to_kernel,
    send_to_node,
    settle,
    taken,
)
from tests.rds.transports.tcp.nodes import PORT, Node
from tests.support.waiting import BUSY_S, wait_until
from tests.vectors import load
from urds.rds.constants import Capability, HeaderFlag
from urds.rds.plane.contract import MailboxSettings
from urds.rds.wire.extensions import Handshake, Mark, emit_handshake, parse_handshake

ORDERS = ["lower", "higher"]
LINUX = load("linux_6_1_tcp")
EXTENSION = slice(32, 48)  # of a header
LIST = slice(32, 42)  # the extension list; behind it stands the mark
MARK = slice(42, 48)


def bytes_of(frame: Frame) -> bytes:
    """Return the frame as it was on the wire."""
    return frame.header.emit() + frame.payload


def without_number(data: bytes) -> bytes:
    """Leave the sequence number out: ours come from the clock, a kernel's begin at 1."""
    return data[8:]


def without_extension(data: bytes) -> bytes:
    """Zero the extension space, where a map tells our life: no kernel reads it there."""
    return data[: EXTENSION.start] + bytes(16) + data[EXTENSION.stop :]


def frames_between(peer: KernelPeer, source_port: int, target_port: int) -> list[Frame]:
    """Return what the node sent between two ports."""
    return [frame for frame in peer.frames if frame.ports == (source_port, target_port)]


# -- first words


def test_a_lower_node_says_nothing_but_its_map_before_the_kernels_frame(lab: Lab) -> None:
    node, peer = lab.pair("lower")
    send_to_kernel(node, peer, [b"hello from A"])
    peer.listener.settimeout(BUSY_S)
    connection, _ = peer.listener.accept()
    opening = heard_until_silence(connection)
    assert without_extension(opening) == LINUX["empty_map"]
    life = parse_handshake(opening[EXTENSION])
    assert (life.generation, life.mark) == (node.driver.generation, Mark(Capability(0)))
    connection.sendall(emit_map())
    frames = FrameReader().feed(heard_until_silence(connection))
    assert {frame.ports for frame in frames} == {(1, 0), (PORT, KERNEL_PORT)}
    connection.close()


def heard_until_silence(connection: socket.socket) -> bytes:
    """Return what comes in, once something did, until nothing came for 0.2 s."""
    connection.settimeout(BUSY_S)
    heard = connection.recv(65536)
    connection.settimeout(0.2)
    with suppress(TimeoutError):
        while data := connection.recv(65536):
            heard += data
    return heard


@pytest.mark.rule("wire-tcp-encapsulation")
@pytest.mark.parametrize("order", ORDERS)
def test_the_first_words_are_those_of_linux(lab: Lab, order: str) -> None:
    node, peer = lab.pair(order)
    send_to_kernel(node, peer, [b"hello from A"])
    settle(node, peer)
    assert without_extension(bytes_of(peer.frames[0])) == LINUX["empty_map"]
    (data,) = frames_between(peer, PORT, KERNEL_PORT)
    assert without_number(bytes_of(data)) == without_number(LINUX["data"])
    (probe,) = frames_between(peer, 1, 0)
    assert without_number(bytes_of(probe))[:24] == without_number(LINUX["probe_ping"])[:24]


# -- headers


@pytest.mark.parametrize("release", Release)
@pytest.mark.parametrize("order", ORDERS)
def test_fields_that_kernels_leave_zero_are_zero(lab: Lab, order: str, release: Release) -> None:
    """Acknowledgement, checksum, credit, padding, and the number that only maps leave out."""
    node, peer = lab.pair(order, kernel={"release": release})
    meet(node, peer)
    for number in range(30):
        send_to_kernel(node, peer, numbered(f"turn {number}", 10))
        send_to_node(peer, numbered(f"turn {number}", 10))
        peer.step()
        if number % 10 == 9:
            peer.break_connection()
            peer.run_until(lambda: peer.up)
    assert len(arrived(peer, 300)) == 300
    taken(node, peer, 300)
    for header in (frame.header for frame in peer.frames):
        assert (header.ack, header.credit, header.padding, header.checksum) == (0, 0, 0, 0)
        assert header.flags in (0, HeaderFlag.CONG_BITMAP, HeaderFlag.RETRANSMITTED)
        # A number 0 without the flag of a map would set the kernel's expected number to 1.
        assert (header.sequence == 0) == (header.flags == HeaderFlag.CONG_BITMAP)


@pytest.mark.rule(
    "wire-sequence-excludes",
    "wire-congestion-format",
    "rds7-congestion-update",
    "rds7-uncongested-update",
)
def test_a_congestion_map_is_the_one_of_linux(lab: Lab) -> None:
    node, peer = lab.pair("lower")
    meet(node, peer)
    full = node.bind(5000)
    full.configure(MailboxSettings(receive_bytes_max=100))
    for _ in range(10):
        peer.send(bytes(90), source_port=KERNEL_PORT, target_port=5000)
    peer.run_until(lambda: last_map(peer) == LINUX["map_port_5000"])
    assert len(node.take_from(full)) == 10
    peer.run_until(lambda: last_map(peer) == LINUX["empty_map"])


def last_map(peer: KernelPeer) -> bytes:
    """Return the newest map frame of the node."""
    return [bytes_of(frame) for frame in peer.frames if frame.is_map][-1]


@pytest.mark.rule("wire-ping", "wire-pong")
@pytest.mark.parametrize("order", ORDERS)
def test_a_ping_is_answered_as_linux_does(lab: Lab, order: str) -> None:
    node, peer = lab.pair(order)
    meet(node, peer)
    peer.send(b"", source_port=4000, target_port=0)
    peer.run_until(lambda: bool(frames_between(peer, 0, 4000)))
    (pong,) = frames_between(peer, 0, 4000)
    assert without_number(bytes_of(pong)) == without_number(LINUX["pong"])


# -- the handshake


@pytest.mark.rule("wire-mprds-probe", "wire-mprds-pong")
@pytest.mark.parametrize("npaths", [1, 2, 8])
@pytest.mark.parametrize("release", Release)
def test_probe_and_pong_carry_list_and_mark(lab: Lab, release: Release, npaths: int) -> None:
    """SPORT_IDX binds our source ports: only with several paths, and to those who know it."""
    node, peer = lab.pair("lower", kernel={"release": release}, npaths=npaths)
    meet(node, peer)
    peer._probe()  # a kernel that has forgotten us asks again
    peer.run_until(lambda: bool(frames_between(peer, 0, 1)))
    frames = frames_between(peer, 1, 0) + frames_between(peer, 0, 1)
    listed = b"\5" + npaths.to_bytes(2, "big")
    for data in map(bytes_of, frames):
        assert data[LIST] in (listed.ljust(10, b"\0"), (listed + b"\x08\0").ljust(10, b"\0"))
        assert data[MARK][:4] == b"\0UR\1"
    handshakes = [parse_handshake(frame.header.extension) for frame in frames]
    assert not any(handshake.generation for handshake in handshakes)
    assert not handshakes[0].sport_index, "it is not known yet who the peer is"
    assert handshakes[-1].sport_index == (release is Release.V7 and npaths > 1)


@pytest.mark.rule("wire-generation-probe")
def test_only_a_marked_peer_hears_our_generation(lab: Lab) -> None:
    node, peer = lab.pair("lower")
    marked = Handshake(npaths=1, generation=77, mark=Mark(Capability(0)))
    peer.handshake = emit_handshake(marked)
    send_to_kernel(node, peer, [b"hello"])
    peer.run_until(lambda: bool(frames_between(peer, 0, 1)))
    (probe,), (pong,) = frames_between(peer, 1, 0), frames_between(peer, 0, 1)
    assert parse_handshake(probe.header.extension).generation is None
    assert parse_handshake(pong.header.extension).generation == node.driver.generation


# -- connections


@pytest.mark.rule("wire-mprds-paths", "wire-mprds-agree", "wire-source-port")
def test_source_ports_carry_the_index_of_the_path(lab: Lab) -> None:
    node, peer = lab.pair("lower", kernel={"release": Release.V7, "npaths": 4}, npaths=8)
    meet(node, peer)
    peer.run_until(lambda: all(path.connection for path in peer.paths[:4]))
    assert sorted(port % 8 for port in peer.node_ports) == [0, 1, 2, 3]
    peer.run_for(0.1)
    assert not any(path.connection for path in peer.paths[4:])


def test_one_path_is_enough_for_a_kernel_that_offers_eight(lab: Lab) -> None:
    node, peer = lab.pair("lower", kernel={"release": Release.V6, "npaths": 8})
    meet(node, peer)
    peer.run_for(0.1)
    assert peer.npaths == 1
    assert peer.accepts == 1


@pytest.mark.rule("wire-tcp-port")
@pytest.mark.parametrize("order", ORDERS)
def test_connections_have_the_options_of_linux(lab: Lab, order: str) -> None:
    """Source: linux v6.12 net/rds/tcp.c: no delay, keep-alive of 5 s, 5 s, 5 probes."""
    node, peer = lab.pair(order)
    meet(node, peer)
    stream = node.stream(peer.address)
    assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    assert [stream.getsockopt(socket.IPPROTO_TCP, name) for name in names] == [5, 5, 5]
    assert (stream.getsockname()[1] == 16385) == (order == "higher")
    assert (stream.getpeername()[1] == 16385) == (order == "lower")


@pytest.mark.rule("wire-connect-on-send")
@pytest.mark.parametrize("order", ORDERS)
def test_a_higher_node_requests_a_call_back_from_a_lower_one(lab: Lab, order: str) -> None:
    node, peer = lab.pair(order)
    if order == "higher":
        send_to_kernel(node, peer, [b"wakes the kernel"])
        peer.run_until(lambda: peer.up)
        assert (peer.accepts, peer.connects) == (1, 1), (
            "one call-back request, then the kernel connected"
        )
    else:
        send_to_node(peer, [b"wakes the node"])
        peer.run_until(lambda: peer.up)
        assert (peer.accepts, peer.connects) == (1, 0), "the node connected"


# -- what frees a message


@pytest.mark.rule("rds7-queued-until-acked")
@pytest.mark.parametrize("order", ORDERS)
def test_a_message_is_freed_when_tcp_acknowledged_it(lab: Lab, order: str) -> None:
    node, peer = lab.pair(order)
    meet(node, peer)
    make_deaf(peer.connection)
    send_to_kernel(node, peer, numbered("held", 10))
    peer.run_for(0.1)
    assert queued(node, peer) == 10
    assert node.account().send_queued_bytes == sum(map(len, numbered("held", 10)))
    make_hearing(peer.connection)
    wait_until(lambda: queued(node, peer) == 0)  # TCP repeats within 200 ms
    assert node.account().send_queued_bytes == 0
    assert peer.received == [], "acknowledged by TCP, not yet read by RDS: that is all one can know"


def queued(node: Node, peer: KernelPeer) -> int:
    """Return how many messages the node keeps."""
    return node.queued(peer.address)
