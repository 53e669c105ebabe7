"""Peers that come back after they were evicted, and repeat what they had sent before.

What tells a repeat from a new message is kept for longer than the connection, the path and
everything else that is known of a peer; towards urds nodes and towards kernels.
"""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.faults import deaf, reset
from tests.rds.transports.tcp.frames import emit_frame, emit_map
from tests.rds.transports.tcp.kernel_peer import REPEATED, Release
from tests.rds.transports.tcp.nodes import PORT, Node
from tests.support.waiting import wait_until
from urds.rds.wire.extensions import Handshake, emit_handshake

NODE = 250  # above all others, so that they connect to it
OTHER = 41  # who takes the only place
LAST = b"the last"


def emit_message(payload: bytes, sequence: int, flags: int = 0) -> bytes:
    """Write a message as a kernel would send it."""
    return emit_frame(payload, sequence=sequence, source_port=7, target_port=PORT, flags=flags)


def say(lab: Lab, host: int, node: Node, *frames: bytes) -> list[bytes]:
    """Connect as a kernel, send frames, leave; return what the node's socket got."""
    connection = lab.connect(host, node.address)
    connection.sendall(emit_map() + b"".join(frames) + emit_message(LAST, 1 << 40))
    got: list[bytes] = []
    wait_until(lambda: LAST in (got.extend(node.take()) or got))
    leave(connection, node)
    return got[:-1]


def leave(connection: socket.socket, node: Node) -> None:
    """End a connection; the node has noticed it when this returns."""
    downs = node.counters["downs"]
    reset(connection)
    wait_until(lambda: node.counters["downs"] > downs)


def evict(lab: Lab, node: Node, host: int) -> None:
    """Have another peer take the only place."""
    evicted = node.counters["evicted"]
    for _ in range(200):
        # Refused: the peer was being sought at this moment.
        with suppress(ConnectionError), lab.connect(OTHER, node.address) as connection:
            connection.sendall(emit_map())
            if connection.recv(1 << 14):
                leave(connection, node)
                break
    assert node.counters["evicted"] == evicted + 1
    assert not node.knows(lab.address(host))


def test_an_evicted_kernel_that_repeats_is_not_delivered_twice(lab: Lab) -> None:
    node = lab.node(NODE, peers_max=1)
    connection = lab.connect(3, node.address)
    connection.sendall(emit_map() + emit_message(b"five", 5) + emit_message(b"six", 6))
    wait_until(lambda: node.counters["recv_queued"] == 2)
    leave(connection, node)
    evict(lab, node, 3)
    assert node.take() == [b"five", b"six"]
    again = emit_message(b"five", 5, REPEATED), emit_message(b"six", 6, REPEATED)
    assert say(lab, 3, node, *again, emit_message(b"seven", 7, REPEATED)) == [b"seven"]
    assert node.counters["recv_drop_old_seq"] == 2


def test_an_evicted_kernel_that_began_a_new_life_loses_nothing(lab: Lab) -> None:
    """Its first messages look like old repeats; they lie below all that its last stream carried."""
    node = lab.node(NODE, peers_max=1)
    connection = lab.connect(3, node.address)
    connection.sendall(emit_map() + emit_message(b"old", 50))
    wait_until(lambda: node.take() == [b"old"])
    leave(connection, node)
    evict(lab, node, 3)
    frames = emit_message(b"one", 1, REPEATED), emit_message(b"two", 2, REPEATED)
    assert say(lab, 3, node, *frames) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("generation", "delivered"), [(7, []), (8, [b"five"])], ids=["same", "another"]
)
def test_an_evicted_kernel_is_known_again_by_its_generation(
    lab: Lab, generation: int, delivered: list[bytes]
) -> None:
    """Source: linux v7.0; its probe tells a number of its life. Here it is repeated itself."""
    node = lab.node(NODE, peers_max=1)

    def probe(number: int, life: int, flags: int = 0) -> bytes:
        extension = emit_handshake(Handshake(npaths=1, generation=life))
        return emit_frame(sequence=number, source_port=1, flags=flags, extension=extension)

    connection = lab.connect(3, node.address)
    connection.sendall(emit_map() + probe(4, 7) + emit_message(b"five", 5))
    wait_until(lambda: node.take() == [b"five"])
    leave(connection, node)
    evict(lab, node, 3)
    connection = lab.connect(3, node.address)
    frames = probe(4, generation, REPEATED) + emit_message(b"five", 5, REPEATED)
    connection.sendall(emit_map() + frames + emit_message(LAST, 9, REPEATED))
    got: list[bytes] = []
    wait_until(lambda: LAST in (got.extend(node.take()) or got))
    assert got == [*delivered, LAST]
    connection.close()


def test_an_evicted_own_node_that_repeats_is_not_delivered_twice(lab: Lab) -> None:
    """It hears no acknowledgement before its connection breaks, so it still has the message."""
    node, sender = lab.node(NODE, peers_max=1), lab.node(3)
    sender.send(b"one", node.address)
    wait_until(lambda: node.take() == [b"one"])
    wait_until(lambda: not sender.queued(node.address))
    with sender.frozen():  # it does not come back meanwhile
        with deaf(sender.stream(node.address)):
            sender.send(b"two", node.address)
            wait_until(lambda: node.take() == [b"two"])
        sender.backend.break_connections()
        node.backend.break_connections()
        wait_until(lambda: not node.is_connected(sender.address))
        assert sender.queued(node.address) == 1
        evict(lab, node, 3)
    sender.send(b"three", node.address)
    got: list[bytes] = []
    wait_until(lambda: b"three" in (got.extend(node.take()) or got))
    assert got == [b"three"]
    wait_until(lambda: not sender.queued(node.address))


@pytest.mark.parametrize("release", Release)
def test_a_kernel_that_is_evicted_again_and_again_loses_and_doubles_nothing(
    lab: Lab, release: Release
) -> None:
    node = lab.node(NODE, peers_max=1)
    peer = lab.kernel(3, node=node, release=release)
    got: list[bytes] = []
    for number in range(10):
        payload = str(number).encode()
        peer.send(payload, source_port=7, target_port=PORT)
        peer.run_until(lambda payload=payload: payload in (got.extend(node.take()) or got))
        peer.break_connection()
        wait_until(lambda: not node.is_connected(peer.address))
        evict(lab, node, 3)
    assert got == [str(number).encode() for number in range(10)]
