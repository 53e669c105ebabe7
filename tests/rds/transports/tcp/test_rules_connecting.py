"""Rules 1, 2, 10 and 11 of docs/protocol/rds-tcp.md, "Surviving resets": whose connection counts.

Each rule is shown twice: as built nothing is lost or doubled; with the rule switched off the same
scenario does harm, or it would prove nothing.
"""

from typing import Any

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.kernel_peer import KernelPeer, Release
from tests.rds.transports.tcp.meetings import (
    arrived,
    make_stale,
    meet,
    numbered,
    send_to_kernel,
    send_to_node,
    settle,
    silently_forgotten,
    taken,
)
from tests.rds.transports.tcp.nodes import Node
from tests.support.waiting import wait_until
from urds.rds.control.connector import Connector
from urds.rds.control.events import Hold
from urds.rds.control.tcp_path import TcpPath
from urds.rds.control.tcp_streams import TcpStreams
from urds.rds.plane.python import stream_reader
from urds.rds.plane.python.path import PathCore
from urds.rds.types import AckMode

KERNELS = [pytest.param({"release": release}, id=release.name) for release in Release]


# -- rule 1: the lower side sends its map and waits for the peer's first frame


def send_while_the_kernel_thinks_the_old_connection_is_up(
    node: Node, peer: KernelPeer
) -> list[bytes]:
    """Keep the kernel's end stale for a while; its TCP acknowledges what it will not read."""
    meet(node, peer)
    make_stale(node, peer)
    send_to_kernel(node, peer, numbered("sent", 20))
    peer.run_for(0.2)
    peer.forget_connection()  # its keepalive noticed
    return arrived(peer, 20, wait_s=3.0)


def do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch both guards of rule 1 off: the hold, and that no frame means nothing is freed."""

    def free_at_once(self: PathCore, byte_count: int) -> None:
        if self.sender.ack_mode is AckMode.STREAM_ACKNOWLEDGED:
            self.sender.handle_stream_acknowledged(byte_count)

    monkeypatch.setattr(TcpStreams, "_hold_of", lambda self, path: Hold.NOTHING)
    monkeypatch.setattr(PathCore, "handle_stream_acknowledged", free_at_once)


@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_is_sent_before_the_kernels_first_frame(
    lab: Lab, kernel: dict[str, Release]
) -> None:
    node, peer = lab.pair("lower", kernel=kernel)
    got = send_while_the_kernel_thinks_the_old_connection_is_up(node, peer)
    assert got == numbered("sent", 20)


@pytest.mark.reference
def test_without_waiting_a_refused_connection_swallows_messages(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_not_wait(monkeypatch)
    node, peer = lab.pair("lower")
    got = send_while_the_kernel_thinks_the_old_connection_is_up(node, peer)
    assert peer.rejects > 0
    assert len(got) < 20, "the kernel's TCP acknowledged what the kernel threw away"


@pytest.mark.reference
def test_a_parked_connection_delivers_late(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 7.0 on not even that loses a message: the connection is served when a path is free."""
    do_not_wait(monkeypatch)
    node, peer = lab.pair("lower", kernel={"release": Release.V7})
    got = send_while_the_kernel_thinks_the_old_connection_is_up(node, peer)
    assert got == numbered("sent", 20)


# -- rule 2: an end before the first frame is a refusal


def attempts_in_a_second(node: Node, peer: KernelPeer) -> int:
    """Count connections while the kernel refuses every one."""
    meet(node, peer)
    make_stale(node, peer)
    send_to_kernel(node, peer, [b"waits"])
    before = peer.accepts
    peer.run_for(1.0)
    return peer.accepts - before


@pytest.mark.rule("wire-reconnect-rate", "wire-security-backoff")
def test_rejects_slow_the_attempts_down(lab: Lab) -> None:
    node, peer = lab.pair("lower")
    assert 2 <= attempts_in_a_second(node, peer) < 40
    assert node.counters["refused_by_peer"] > 0
    peer.forget_connection()
    assert arrived(peer, 1) == [b"waits"]


def test_a_back_off_that_ends_with_tcps_handshake_floods(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = TcpStreams.attach

    def attach_and_reset(self: TcpStreams, path: TcpPath, *arguments: Any) -> None:
        path.search.reset_backoff()
        attach(self, path, *arguments)

    monkeypatch.setattr(TcpStreams, "attach", attach_and_reset)
    node, peer = lab.pair("lower")
    assert attempts_in_a_second(node, peer) > 150


# -- rule 10: a call-back request while our connection seems up


def send_after_a_silent_death(node: Node, peer: KernelPeer) -> list[bytes]:
    """Let the kernel's end die unseen, then have the kernel send and request a call-back."""
    meet(node, peer)
    silently_forgotten(node, peer)
    send_to_node(peer, numbered("sent", 5))
    return taken(node, peer, 5, wait_s=1.0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_call_back_request_uncovers_a_dead_connection(
    lab: Lab, kernel: dict[str, Release]
) -> None:
    node, peer = lab.pair("lower", kernel=kernel)
    assert send_after_a_silent_death(node, peer) == numbered("sent", 5)
    assert node.counters["dead_stream_probes"] > 0


def test_without_a_probe_the_flow_stands_still(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connector, "probe_dead_stream", lambda self, path: None)
    node, peer = lab.pair("lower")
    assert send_after_a_silent_death(node, peer) == []


def test_a_probe_does_not_disturb_a_live_connection(lab: Lab) -> None:
    node, peer = lab.pair("lower")
    meet(node, peer)
    stream = node.stream(peer.address)
    peer.call_back_request()
    wait_until(lambda: node.counters["dead_stream_probes"] > 0)
    send_to_kernel(node, peer, numbered("sent", 5))
    assert arrived(peer, 5) == numbered("sent", 5)
    assert node.stream(peer.address) is stream


# -- rule 11: a new connection supersedes the old one, which is read first


def supersede_with_unread_messages(node: Node, peer: KernelPeer) -> list[bytes]:
    """Have ten messages in the node's TCP when the kernel comes with a new connection."""
    meet(node, peer)
    with node.blind(peer.address):
        send_to_node(peer, numbered("old", 10))
        peer.run_until(lambda: not peer.undelivered)
        silently_forgotten(node, peer)
        send_to_node(peer, numbered("new", 5))
        peer.run_until(lambda: peer.up)
        wait_until(lambda: node.counters["superseded"] > 0)
    return taken(node, peer, 15, wait_s=2.0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_old_connection_is_read_before_the_new_one(
    lab: Lab, kernel: dict[str, Release]
) -> None:
    node, peer = lab.pair("higher", kernel=kernel)
    assert supersede_with_unread_messages(node, peer) == numbered("old", 10) + numbered("new", 5)
    settle(node, peer)


@pytest.mark.reference
def test_without_reading_the_old_one_its_messages_are_lost(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "_DRAIN_READS", 0)
    node, peer = lab.pair("higher")
    assert supersede_with_unread_messages(node, peer) == numbered("new", 5)
