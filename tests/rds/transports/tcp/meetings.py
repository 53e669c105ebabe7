"""Steps that the tests of the rules share: a node and a kernel get to know each other."""

from __future__ import annotations

from collections.abc import Sequence

from tests.rds.transports.tcp.faults import make_deaf, make_hearing
from tests.rds.transports.tcp.kernel_peer import KernelPeer
from tests.rds.transports.tcp.nodes import PORT, Node
from tests.support.waiting import wait_until
from urds.rds.control.events import PeerKind

KERNEL_PORT = 5000


def numbered(prefix: str, count: int) -> list[bytes]:
    """Return `count` payloads that tell themselves apart."""
    return [f"{prefix} {number}".encode() for number in range(count)]


def send_to_kernel(node: Node, peer: KernelPeer, payloads: Sequence[bytes]) -> None:
    """Have the node send."""
    for payload in payloads:
        node.send(payload, peer.address, KERNEL_PORT)


def send_to_node(peer: KernelPeer, payloads: Sequence[bytes]) -> None:
    """Have the kernel send."""
    for payload in payloads:
        peer.send(payload, source_port=KERNEL_PORT, target_port=PORT)


def meet(node: Node, peer: KernelPeer) -> None:
    """Exchange a message each way; afterwards the node knows the kernel, and nothing is open."""
    send_to_kernel(node, peer, [b"node"])
    send_to_node(peer, [b"kernel"])
    settle(node, peer)
    assert peer.payloads == [b"node"], peer.payloads
    assert node.take() == [b"kernel"]
    peer.received.clear()


def settle(node: Node, peer: KernelPeer) -> None:
    """Step until both ends have all they were sent and the node knows who the kernel is."""
    peer.run_until(lambda: peer.up and is_quiet(node, peer))
    peer.step()  # to the node it is done when TCP has it; the kernel reads it now


def is_quiet(node: Node, peer: KernelPeer) -> bool:
    """Tell whether nothing is under way."""
    facts = node.connection(peer.address).facts
    queued = node.queued(peer.address)
    return facts.kind is PeerKind.LINUX and not queued and not peer.undelivered


def probes_written(node: Node, peer: KernelPeer) -> int:
    """Count the node's probes that wait for an acknowledgement."""
    return sum(message.local_port == 1 for message in node.handed_over(peer.address))


def taken(node: Node, peer: KernelPeer, count: int, *, wait_s: float = 5.0) -> list[bytes]:
    """Step until the node has taken `count` messages or the time is over; return them."""
    got: list[bytes] = []

    def enough() -> bool:
        got.extend(node.take())
        return len(got) >= count

    peer.runs_until(enough, wait_s=wait_s)
    peer.run_for(0.05)  # one too many would come now
    return got + node.take()


def arrived(peer: KernelPeer, count: int, *, wait_s: float = 5.0) -> list[bytes]:
    """Step until the kernel has delivered `count` messages or the time is over; return them."""
    peer.runs_until(lambda: len(peer.received) >= count, wait_s=wait_s)
    peer.run_for(0.05)
    return peer.payloads


def reconnect_deaf(node: Node, peer: KernelPeer) -> None:
    """Take a new connection on which the kernel acknowledges nothing, from the beginning."""
    if peer.lower:
        with node.frozen():  # it would send as soon as it has accepted
            peer.run_until(lambda: peer.up)
            make_deaf(peer.connection)
    else:
        peer.run_until(lambda: peer.up)
        make_deaf(peer.connection)  # the node waits for our map


def lose_first_transmission(node: Node, peer: KernelPeer) -> None:
    """Take a new connection, have the kernel's messages get lost on it, and break it."""
    peer.run_until(lambda: peer.up)
    wait_until(lambda: node.is_connected(peer.address))
    stream = node.stream(peer.address)
    make_deaf(stream)
    peer.run_until(lambda: not peer.paths[0].queue and not peer.paths[0].out)
    make_hearing(stream)
    peer.break_connection()


def silently_forgotten(node: Node, peer: KernelPeer) -> None:
    """Let the kernel lose the connection while the node's end goes on to look well."""
    stream = node.stream(peer.address)
    make_deaf(stream)
    peer.forget_connection()
    make_hearing(stream)


def make_stale(node: Node, peer: KernelPeer) -> None:
    """Let the node lose the connection while the kernel's end goes on to look well."""
    make_deaf(peer.connection)
    node.backend.break_connections()
    wait_until(lambda: node.counters["downs"] > 0)
