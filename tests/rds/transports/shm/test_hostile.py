"""A peer that breaks the rules of a shm stream loses the stream; no other peer notices."""

from __future__ import annotations

import mmap
import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from struct import pack_into
from types import SimpleNamespace
from typing import Any, Final

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.nodes import Node
from tests.support.waiting import wait_until
from urds.common.passed_files import sealed_file, send_with_files
from urds.rds.constants import RDS_TCP_PORT
from urds.rds.plane.contract import Carrier
from urds.rds.runtime import shm_connect
from urds.rds.settings import Settings
from urds.rds.transports import shm
from urds.rds.wire.header import HEADER_BYTES

RING_BYTES: Final = 1 << 16
# Source: docs/protocol/shm-stream.md. The side that connects writes the first direction.
WORDS_BYTES: Final = 4096
WORDS_OF_ONE: Final = WORDS_BYTES // 2
SLOTS: Final = 512
SLOT_BYTES: Final = 128
MEMORY_BYTES: Final = WORDS_BYTES + 2 * (SLOTS * SLOT_BYTES + RING_BYTES)
RING: Final = WORDS_BYTES + SLOTS * SLOT_BYTES
SLOTS_FREED, RING_FREED, BYTES_FREED = 128, 136, 144
SLOT_TELLS_MAX: Final = 73_728
CUT_S: Final = 3.0  # sooner than a node gives up who does not say hello, `hello_wait_ns`


class Hostile:
    """A peer that dials a shm stream to a node by hand, and holds its memory."""

    def __init__(self, lab: Lab, host: int, node: Node, **changes: object) -> None:
        line = shm.connect(ip_address(node.address), RDS_TCP_PORT)
        assert line is not None
        self.line = line
        line.settimeout(CUT_S)
        byte_count = int(str(changes.get("memory_bytes", MEMORY_BYTES)))
        self.file = (
            sealed_file("hostile", byte_count)
            if changes.get("sealed", True)
            else unsealed(byte_count)
        )
        self.memory = mmap.mmap(self.file, byte_count)
        self.greeting = shm.Greeting(
            ip_address(lab.address(host)),
            ip_address(str(changes.get("peer", node.address))),
            0,
            int(str(changes.get("ring_bytes", RING_BYTES))),
        )

    def greet(self) -> bytes:
        """Greet; return the answer, nothing if the line ended."""
        shm.send_greeting(self.line, self.greeting, self.file)
        return self.hear(len(shm.ANSWER))

    def hear(self, byte_count: int = 64) -> bytes:
        """Return what comes over the line."""
        with suppress(ConnectionResetError):
            return self.line.recv(byte_count)
        return b""

    def write(self, at: int, word: int) -> None:
        """Write a count or a stamp into the shared memory."""
        pack_into("=Q", self.memory, at, word)

    def publish(self, number: int, byte_count: int) -> None:
        """Write the stamp of a slot, counted from 0."""
        self.write(WORDS_BYTES + number * SLOT_BYTES, (number + 1) << 32 | byte_count)

    def has_stamp(self, direction: int) -> bool:
        """Tell whether something was published in a direction."""
        at = WORDS_BYTES + direction * (SLOTS * SLOT_BYTES + RING_BYTES)
        return self.memory[at : at + 8] != bytes(8)

    def ring(self) -> None:
        """Have the node look."""
        with suppress(OSError):
            self.line.send(b"\1", socket.MSG_NOSIGNAL)

    def is_cut(self) -> bool:
        """Tell whether the node ended the line for what it found there, not for our silence."""
        deadline_s = time.monotonic() + CUT_S
        while time.monotonic() < deadline_s:
            self.ring()
            try:
                if not self.hear():
                    return True
            except TimeoutError:
                return False
        return False

    def close(self) -> None:
        """Leave."""
        self.line.close()
        os.close(self.file)


def unsealed(byte_count: int) -> int:
    """Return memory that can be cut short."""
    memory = os.memfd_create("hostile", os.MFD_CLOEXEC)
    os.truncate(memory, byte_count)
    return memory


@pytest.fixture
def node(lab: Lab) -> Iterator[Node]:
    """Give a node that must go on serving a peer that keeps to the rules."""
    node, honest = lab.node(3), lab.process(2)
    yield node
    honest.ask("send", target=node.address, count=50)
    taken: list[bytes] = []
    wait_until(lambda: bool(taken.extend(node.take())) or len(taken) >= 50)
    assert [int(payload) for payload in taken] == list(range(50))
    assert node.row(honest.address).transport is Carrier.SHARED_MEMORY
    assert node.counters["control_faults"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"sealed": False},
        {"memory_bytes": MEMORY_BYTES - 4096},
        {"memory_bytes": MEMORY_BYTES + 4096},
        {"ring_bytes": RING_BYTES + 4096},
        {"ring_bytes": 0},
        {"ring_bytes": 1 << 24, "memory_bytes": WORDS_BYTES + 2 * (SLOTS * SLOT_BYTES + (1 << 24))},
        {"memory_bytes": WORDS_BYTES + 2 * RING_BYTES},  # of version 1
        {"peer": "127.9.9.9"},
    ],
    ids=str,
)
def test_wrong_memory_is_refused(lab: Lab, node: Node, changes: dict[str, object]) -> None:
    hostile = Hostile(lab, 1, node, **changes)
    assert hostile.greet() == b""
    hostile.close()


@pytest.mark.parametrize("data", [b"", b"urdslane", b"GET / HTTP/1.0\r\n\r\n"])
def test_who_does_not_greet_is_dismissed(lab: Lab, node: Node, data: bytes) -> None:
    hostile = Hostile(lab, 1, node)
    if data:
        hostile.line.send(data)
    assert hostile.hear() == b""
    hostile.close()


@pytest.mark.parametrize("byte_count", [0, RING_BYTES + 1, SLOT_TELLS_MAX + 1, (1 << 32) - 1])
def test_a_wrong_length_ends_the_stream(lab: Lab, node: Node, byte_count: int) -> None:
    hostile = Hostile(lab, 1, node)
    assert hostile.greet() == shm.ANSWER
    hostile.publish(0, byte_count)
    assert hostile.is_cut()
    hostile.close()


@pytest.mark.parametrize("at", [SLOTS_FREED, RING_FREED, BYTES_FREED])
@pytest.mark.parametrize("count", [1 << 20, 1 << 40, (1 << 64) - 1])
def test_a_wrong_count_of_what_was_freed_ends_the_stream(
    lab: Lab, node: Node, at: int, count: int
) -> None:
    """The node looks at it when it knows of no room, and when it gives idle memory back."""
    hostile = Hostile(lab, 1, node)
    assert hostile.greet() == shm.ANSWER
    hostile.publish(0, HEADER_BYTES)  # of zeros, which acknowledge nothing
    hostile.write(WORDS_OF_ONE + at, count)
    wait_until(lambda: hostile.has_stamp(1))  # its hello
    path = node.peer_paths(lab.address(1)).paths[0]
    stream: Any = node.driver.streams._attached[path]
    for _ in range(2):
        stream.rest_memory()
    assert hostile.is_cut()
    hostile.close()


def test_a_version_1_greeting_is_refused(lab: Lab, node: Node) -> None:
    """Who is refused takes TCP."""
    hostile = Hostile(lab, 1, node)
    greeting = bytearray(shm.packed(hostile.greeting))
    greeting[8:10] = (1).to_bytes(2, "big")
    send_with_files(hostile.line, bytes(greeting), [hostile.file])
    assert hostile.hear() == b""
    hostile.close()


def test_bytes_that_are_no_header_end_the_stream(lab: Lab, node: Node) -> None:
    hostile = Hostile(lab, 1, node)
    hostile.memory[RING : RING + RING_BYTES] = b"\xff" * RING_BYTES
    assert hostile.greet() == shm.ANSWER
    hostile.publish(0, RING_BYTES)
    assert hostile.is_cut()
    hostile.close()


@pytest.mark.parametrize("seed", range(8))
def test_scribbling_over_everything_harms_no_other_peer(lab: Lab, node: Node, seed: int) -> None:
    rng = random.Random(seed)
    hostile = Hostile(lab, 1, node)
    assert hostile.greet() == shm.ANSWER
    until_s = time.monotonic() + 0.5
    while time.monotonic() < until_s:
        turn = rng.random()
        if turn < 0.3:
            place = rng.choice([0, WORDS_OF_ONE])
            place += rng.choice([SLOTS_FREED, RING_FREED, BYTES_FREED, 256, 384, 512, 640])
            hostile.write(place, rng.choice([0, 1, 64, RING_BYTES, rng.getrandbits(64)]))
        elif turn < 0.7:
            hostile.publish(
                rng.randrange(SLOTS), rng.choice([1, 48, 120, 1000, rng.getrandbits(32)])
            )
        else:
            at = rng.randrange(WORDS_BYTES, MEMORY_BYTES - 4096)
            hostile.memory[at : at + 4096] = rng.randbytes(4096)
        hostile.ring()
        with suppress(OSError):
            node.mailbox.sendto(b"x" * rng.randrange(5000), 0x40, (lab.address(1), 4000))
    hostile.close()


def test_a_flood_of_doorbells_is_only_that(lab: Lab, node: Node) -> None:
    hostile = Hostile(lab, 1, node)
    assert hostile.greet() == shm.ANSWER
    hostile.line.setblocking(False)
    for _ in range(3000):
        with suppress(BlockingIOError):
            hostile.line.send(bytes(1000), socket.MSG_NOSIGNAL)
    hostile.close()


def test_who_is_blocked_until_ns_takes_bounded_memory() -> None:
    """A user may have any number of addresses of 127/8, and break the protocol from each."""
    driver: Any = SimpleNamespace(settings=Settings())
    ours: Any = shm_connect.ShmStreams(driver, None)
    own, peers = ip_address("127.0.0.1"), range(shm_connect._SHM_STREAMS_MAX + 100)
    for number in peers:
        ours._known[own, number] = SimpleNamespace(has_protocol_error=True)
        assert not ours._may(own, number)
    assert len(ours._blocked_until_ns) == shm_connect._SHM_STREAMS_MAX
    assert not ours._may(own, peers[-1]), "the last one is remembered"


@pytest.mark.parametrize("refused", [None, OSError("no descriptor")])
def test_a_flood_at_the_listener_gets_a_turn_and_a_rest(
    monkeypatch: pytest.MonkeyPatch, refused: OSError | None
) -> None:
    """Any user of the host may connect; each connection is looked at and closed."""
    taken, served = [], []

    def accept(listener: object) -> None:
        taken.append(listener)
        if refused is not None:
            raise refused

    monkeypatch.setattr(shm, "accept", accept)
    driver: Any = SimpleNamespace(
        settings=Settings(),
        watches=SimpleNamespace(serve=lambda *what: served.append(what)),
        guard=None,
    )
    ours: Any = shm_connect.ShmStreams(driver, None)
    own = ip_address("127.0.0.1")
    host, listener = SimpleNamespace(address=own), SimpleNamespace(fileno=lambda: 99)
    ours._listeners[own] = listener
    ours._accept(host, listener)
    assert len(taken) == (shm_connect._ACCEPTS_PER_PASS if refused is None else 1)
    assert not served
    ours.handle_timeout(ours.next_ns())
    assert len(served) == 1 and ours.next_ns() is None


@pytest.mark.parametrize("is_here", [True, False])
def test_a_greeting_is_read_with_its_connection_or_waited_for(
    monkeypatch: pytest.MonkeyPatch, is_here: bool
) -> None:
    served: list[object] = []
    driver: Any = SimpleNamespace(
        settings=Settings(), watches=SimpleNamespace(serve=lambda *what: served.append(what))
    )
    ours: Any = shm_connect.ShmStreams(driver, None)
    accepted: list[object] = []
    monkeypatch.setattr(ours, "_accept_stream", lambda *what: accepted.append(what))
    own, peer = ip_address("127.0.0.1"), ip_address("127.0.0.2")
    near, far = socket.socketpair()
    near.setblocking(False)
    memory = sealed_file("test", MEMORY_BYTES)
    with near, far:
        if is_here:
            shm.send_greeting(far, shm.Greeting(peer, own, 0, RING_BYTES), memory)
        ours._admit(shm_connect._Pending(SimpleNamespace(address=own), near, 0))
        assert (len(accepted), len(served)) == ((1, 0) if is_here else (0, 1))
        assert bool(ours._pending) is not is_here
    os.close(memory)
