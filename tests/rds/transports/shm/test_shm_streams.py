"""Shm streams between processes: applications see what they see over TCP."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.nodes import Node
from tests.support.waiting import ends_with, wait_until
from urds.rds.plane.contract import Carrier
from urds.rds.runtime.shm_connect import ShmStreams
from urds.rds.transports import shm, tcp

LONG_BYTES = 1 << 20


def carrier(node: Node, peer: str) -> Carrier:
    """Return what carries the path to a peer, once it stands."""
    wait_until(lambda: node.is_connected(peer))
    return node.row(peer).transport


def wait_for_end(node: Node, peer: str) -> None:
    """Wait until a path has no stream."""
    wait_until(lambda: not node.is_connected(peer))


def stop(pid: int) -> None:
    """Stop a process, and wait until each of its threads has stopped."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    wait_until(lambda: all(") T" in (one / "stat").read_text() for one in tasks.iterdir()))


def take(node: Node, count: int, wait_s: float = 20.0) -> list[bytes]:
    """Return so many messages, and one too many if it comes."""
    taken: list[bytes] = []
    deadline_s = time.monotonic() + wait_s
    while len(taken) < count and time.monotonic() < deadline_s:
        taken += node.take()
        time.sleep(0.0005)
    time.sleep(0.02)
    return taken + node.take()


@pytest.mark.parametrize("order", ["lower", "higher"])
def test_messages_of_all_lengths_go_through_memory(lab: Lab, order: str) -> None:
    node, other = lab.own_pair(order, shared_memory_bytes=1 << 16)
    payloads = [os.urandom(length) for length in (0, 1, 100, 8192, 70_000, LONG_BYTES)] * 2
    for payload in payloads:
        node.send(payload, other.address)
    assert take(other, len(payloads)) == payloads
    for payload in payloads:
        other.send(payload, node.address)
    assert take(node, len(payloads)) == payloads
    row = node.row(other.address)
    assert row.transport is Carrier.SHARED_MEMORY
    assert {row.local_stream[0], row.peer_stream[0]} == {node.address, other.address}
    assert carrier(other, node.address) is Carrier.SHARED_MEMORY


@pytest.mark.parametrize("order", ["lower", "higher"])
def test_one_connection_makes_a_stream_whichever_side_wants_it(
    lab: Lab, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The higher side brings the memory with its request for a call-back."""
    begun: list[object] = []
    for module in (shm, tcp):
        real = module.connect

        def connect(*ends: Any, real: Any = real) -> Any:
            begun.append(ends)
            return real(*ends)

        monkeypatch.setattr(module, "connect", connect)
    node, other = lab.own_pair(order)
    node.send(b"first", other.address)
    assert take(other, 1) == [b"first"]
    assert carrier(node, other.address) is carrier(other, node.address) is Carrier.SHARED_MEMORY
    assert len(begun) == 1


def refuse_offers(offered: ShmStreams, *_: object) -> None:
    """Break the connection of an offer, as a process that knows none might."""
    raise ConnectionAbortedError


@pytest.mark.parametrize(
    ("method", "instead"),
    [("_take_offer", lambda *_: False), ("_consider", refuse_offers)],
    ids=["requested", "refused"],
)
def test_an_offer_that_is_not_taken_is_a_request_all_the_same(
    lab: Lab, method: str, instead: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version takes it for one; who closes it without a word is asked over TCP."""
    monkeypatch.setattr(ShmStreams, method, instead)
    node, other = lab.own_pair("higher")
    node.send(b"first", other.address)
    assert take(other, 1) == [b"first"]
    assert carrier(node, other.address) is Carrier.SHARED_MEMORY


@pytest.mark.parametrize("order", ["lower", "higher"])
def test_offers_and_dials_that_cross_leave_one_stream(lab: Lab, order: str) -> None:
    node, other = lab.own_pair(order)
    for round_number in range(8):
        text = b"%d" % round_number
        node.send(text, other.address)
        other.send(text, node.address)
        assert (take(other, 1), take(node, 1)) == ([text], [text])
        (node if round_number % 2 else other).backend._driver.break_connections()


def test_messages_that_cross_with_breaks_come_once_and_in_order(lab: Lab) -> None:
    one, other = lab.process(1), lab.process(2)
    arguments: dict[str, Any] = {"count": 1500, "break_every": 400, "wait_s": 60.0}
    one.begin("exchange", target=other.address, payload_bytes_max=300_000, **arguments)
    other.begin("exchange", target=one.address, payload_bytes_max=300_000, **arguments)
    broken = 0
    for process in (one, other):
        taken, count = process.finish()
        assert taken == list(range(1500))
        broken += count
    assert broken > 0


@pytest.mark.parametrize("who", ["node", "other"])
def test_who_switches_shm_streams_off_gets_tcp(lab: Lab, who: str) -> None:
    node = lab.node(1, shared_memory=who != "node")
    other = lab.node(2, shared_memory=who != "other")
    node.send(b"over TCP", other.address)
    assert take(other, 1) == [b"over TCP"]
    assert carrier(node, other.address) is Carrier.TCP


@pytest.mark.parametrize("host", [1, 3])
def test_a_python_plane_gets_tcp(lab: Lab, host: int, monkeypatch: pytest.MonkeyPatch) -> None:
    node = lab.node(2)
    monkeypatch.setenv("URDS_IMPL", "python")
    other = lab.process(host)
    other.ask("send", target=node.address, count=3)
    assert [payload.strip() for payload in take(node, 3)] == [b"0", b"1", b"2"]
    assert carrier(node, other.address) is Carrier.TCP


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_sender_loses_nothing_that_it_handed_over(lab: Lab, seed: int) -> None:
    rng = random.Random(seed)
    node = lab.node(2)
    host = rng.choice([1, 3])
    numbers: list[int] = []
    for _ in range(2):
        sender = lab.process(host)
        sender.begin("send", target=node.address, count=20_000, payload_bytes=rng.choice([8, 900]))
        goal = rng.randrange(1, 3000)
        taken: list[bytes] = []
        wait_until(
            lambda taken=taken, goal=goal: bool(taken.extend(node.take())) or len(taken) > goal
        )
        sender.kill()
        wait_for_end(node, sender.address)
        taken += node.take()
        numbers = [int(payload) for payload in taken]
        assert numbers == list(range(len(numbers))), f"seed {seed}"
    assert numbers


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_receiver_is_told_from_its_next_life(lab: Lab, seed: int) -> None:
    rng = random.Random(seed)
    node = lab.node(2)
    host = rng.choice([1, 3])
    receiver = lab.process(host)
    first = rng.randrange(1, 400)
    for number in range(first):
        node.send(b"%d" % number, receiver.address)
    taken, _ = receiver.ask("collect", count=first, wait_s=20.0)
    assert taken == [str(number) for number in range(first)]
    wait_until(lambda: not node.queued(receiver.address))
    stop(receiver.pid)
    handed = rng.randrange(1, 200)
    for number in range(first, first + handed):
        node.send(b"%d" % number, receiver.address)
    time.sleep(rng.random() * 0.05)
    receiver.kill()
    again = lab.process(host)
    for number in range(first + handed, first + handed + 50):
        node.send(b"%d" % number, again.address)
    wait_until(lambda: not node.queued(again.address))
    taken, _ = again.ask("collect", count=50 + handed, wait_s=1.0)
    numbers = [int(text) for text in taken]
    given_up = node.counters["send_given_up"]
    assert numbers == list(range(first + given_up, first + handed + 50)), f"seed {seed}"
    assert given_up <= handed


def test_a_stopped_peer_is_waited_for(lab: Lab) -> None:
    node, other = lab.node(2), lab.process(1)
    node.send(b"0", other.address)
    assert other.ask("collect", count=1, wait_s=10.0)[0] == ["0"]
    stop(other.pid)
    node.send(b"1", other.address)
    time.sleep(2.5)
    assert node.is_connected(other.address)
    os.kill(other.pid, signal.SIGCONT)
    assert other.ask("collect", count=1, wait_s=10.0)[0] == ["1"]
    assert node.counters["downs"] == 0


def held() -> tuple[int, int]:
    """Return how many descriptors and mappings of streams this process has."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("urds-shm")
    return len(os.listdir("/proc/self/fd")), maps


def test_breaks_and_lives_leave_no_descriptor_and_no_mapping(lab: Lab) -> None:
    node = lab.node(2)
    before = held()
    for turn in range(8):
        peer = lab.process(1)
        for _ in range(5):
            node.send(b"x", peer.address)
            assert peer.ask("collect", count=1, wait_s=10.0)[0] == ["x"]
            node.backend.break_connections()
            carrier(node, peer.address)
        assert carrier(node, peer.address) is Carrier.SHARED_MEMORY
        peer.close() if turn % 2 else peer.kill()
        wait_for_end(node, peer.address)
        if turn == 1:
            time.sleep(1.2)  # the look for dead streams forgets the last
            before = held()
    assert ends_with(held, before), (held(), before)


def test_the_child_of_a_fork_does_not_touch_a_shm_stream(lab: Lab) -> None:
    node, other = lab.node(1), lab.process(2)
    node.send(b"before", other.address)
    assert other.ask("collect", count=1, wait_s=10.0)[0] == ["before"]
    child = os.fork()
    if not child:
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    node.send(b"after", other.address)
    assert other.ask("collect", count=1, wait_s=10.0)[0] == ["after"]
    assert node.counters["downs"] == 0
