"""Connections without an answer: TCP would retransmit for a quarter of an hour, we begin anew."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.faults import make_deaf, silent_host
from tests.rds.transports.tcp.meetings import KERNEL_PORT, arrived, meet
from tests.rds.transports.tcp.nodes import Node
from tests.support.waiting import BUSY_S, wait_until
from urds.rds.constants import RDS_TCP_PORT
from urds.rds.runtime import connect as streams


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have dead streams found within a second instead of four."""
    monkeypatch.setattr(streams, "_LOOK_NS", 100_000_000)
    monkeypatch.setattr(streams, "_RETRANSMITS_MAX", 2)
    monkeypatch.setattr(streams, "_CONNECT_NS", 500_000_000)


def send_over_a_dead_stream(one: Node, other: Node) -> None:
    """Have messages wait behind a connection of which nothing comes through any more."""
    one.send(b"before", other.address)
    wait_until(lambda: other.take() == [b"before"])
    wait_until(lambda: not one.queued(other.address))
    for node, peer in ((one, other), (other, one)):
        make_deaf(node.stream(peer.address))
    one.send(b"behind", other.address)


@pytest.mark.parametrize("order", ["lower", "higher"])
def test_messages_behind_a_dead_stream_take_another(lab: Lab, order: str) -> None:
    one, other = lab.own_pair(order)
    send_over_a_dead_stream(one, other)
    taken: list[bytes] = []
    wait_until(lambda: taken.extend(other.take()) or bool(taken), wait_s=20.0)
    assert taken == [b"behind"]
    assert one.counters["dead"] + other.counters["dead"] > 0


def test_without_looking_a_dead_stream_stands(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_RETRANSMITS_MAX", 100)
    one, other = lab.own_pair("lower")
    send_over_a_dead_stream(one, other)
    with pytest.raises(AssertionError):
        wait_until(lambda: bool(other.take()), wait_s=3.0)


@pytest.mark.parametrize("order", ["lower", "higher"])
def test_a_kernel_behind_a_dead_stream_is_met_anew(lab: Lab, order: str) -> None:
    node, peer = lab.pair(order)
    meet(node, peer)
    make_deaf(node.stream(peer.address))
    make_deaf(peer.connection)
    node.send(b"behind", peer.address, KERNEL_PORT)
    wait_until(lambda: node.counters["dead"] > 0, wait_s=10.0)
    peer.forget_connection()  # as its keep-alive does
    assert arrived(peer, 1, wait_s=10.0) == [b"behind"]


@pytest.mark.reference
def test_a_peer_that_does_not_read_is_waited_for(lab: Lab) -> None:
    """A closed window is no silence: TCP's questions are answered."""
    one, other = lab.own_pair("lower", buffer_bytes=1 << 25)
    one.send(b"before", other.address)
    wait_until(lambda: other.take() == [b"before"])
    with other.blind(one.address):
        for _ in range(16):
            one.send(bytes(1 << 20), other.address)
        stream = one.stream(other.address)
        wait_until(lambda: stream.unacknowledged() > 0)
        with suppress(AssertionError):
            wait_until(lambda: one.counters["dead"] > 0, wait_s=2.0)
    taken: list[bytes] = []
    wait_until(lambda: taken.extend(other.take()) or len(taken) == 16, wait_s=20.0)
    assert one.counters["dead"] == 0


def attempts_at_a_silent_host(lab: Lab, wait_s: float) -> int:
    """Return how often a node tries to connect, up to two, where no request is answered.

    The second one is waited for, after the first, for `wait_s`.
    """
    node = lab.node(1)
    with lab.inside(2), silent_host(lab.address(2), RDS_TCP_PORT):
        node.send(b"wanted", lab.address(2))
        wait_until(lambda: node.counters["connects"] > 0)
        with suppress(AssertionError):
            wait_until(lambda: node.counters["connects"] > 1, wait_s)
        return node.counters["connects"]


def test_an_attempt_without_an_answer_is_made_anew(lab: Lab) -> None:
    assert attempts_at_a_silent_host(lab, BUSY_S) > 1


def test_without_a_limit_an_attempt_waits(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_CONNECT_NS", 600_000_000_000)
    assert attempts_at_a_silent_host(lab, 1.5) == 1
