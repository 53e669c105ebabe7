"""Plain messages of RDS over RDMA by compiled couriers: the same messages and counters as without.

A courier and a core hand the numbers of a connection to each other at any time. What goes wrong
there shows as a message that is missing, doubled, out of order or changed, or as a charge that is
never given back.
"""

from __future__ import annotations

import errno
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import urds
from tests.rds.sockets.hosts import host
from tests.support.backends import in_use
from tests.support.waiting import wait_until
from urds.rds.constants import SOL_RDS, SockOpt, Transport
from urds.rds.runtime.inprocess import InProcess
from urds.rds.settings import Settings
from urds.rds.transports.rdma.courier import Courier
from urds.rds.transports.rdma.link import Link
from urds.rds.transports.rdma.path import RdmaPath

PORT = 4000
WAIT_S = 20.0
SIZES = [0, 1, 64, 4047, 4096, 8191, 8192, 30_000, 65_488, 65_536, 65_537, 200_000, 1 << 20]
VALUES = {"drain_s": 0, "rdma_devices": ["shm0"], "info_socket": False}
# What does not depend on when acknowledgements and frames leave.
COUNTED = ("recv_queued", "recv_delivered", "recv_bytes_added_to_sock", "copy_from_user")


class Pair:
    """Two nodes in this process, with a socket over RDMA each."""

    def __init__(self) -> None:
        self.nodes: list[InProcess] = []
        self.sockets: list[urds.Socket] = []
        for number in (1, 2):
            node = InProcess(Settings.load(VALUES, environ={}))
            self.nodes.append(node)
            with in_use(node):
                self.sockets.append(self.bound(number, PORT))

    @staticmethod
    def bound(number: int, port: int) -> urds.Socket:
        """Return a socket of a host at the node in use."""
        sock = urds.Socket()
        sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, Transport.IB)
        sock.bind((host(number), port))
        sock.settimeout(WAIT_S)
        return sock

    def exchange(self, text: bytes) -> None:
        """Send a message there and back."""
        one, other = self.sockets
        for source, target in ((one, other), (other, one)):
            source.sendto(text, target.getsockname())
            assert target.recvfrom(len(text)) == (text, source.getsockname())

    def counters(self, name: str) -> list[int]:
        """Return a counter of both nodes."""
        return [node.counters()[name] for node in self.nodes]

    def close(self) -> None:
        """Close sockets and nodes."""
        for sock in self.sockets:
            sock.close()
        for node in self.nodes:
            node.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Give two nodes that are connected."""
    with closing(Pair()) as made:
        made.exchange(b"first")
        yield made


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each time that the numbers move."""
    noted: list[str] = []
    give, take_back = Courier.give, Courier.take_back

    def noted_give(courier: Courier, core: Any) -> None:
        give(courier, core)
        if courier.is_given:
            noted.append("given")

    def noted_take_back(courier: Courier) -> None:
        noted.append("taken")
        take_back(courier)

    monkeypatch.setattr(Courier, "give", noted_give)
    monkeypatch.setattr(Courier, "take_back", noted_take_back)
    return noted


def is_compiled(node: InProcess) -> bool:
    """Return whether the node's plane is the compiled one."""
    return type(node.plane).__module__ == "urds.rds.plane.native"


def content(number: int, size: int) -> bytes:
    """Return the payload of a message, which tells its number."""
    return (number.to_bytes(4, "big") * (size // 4 + 1))[:size]


def send_all(sock: urds.Socket, target: Any, sizes: list[int]) -> Callable[[], None]:
    """Send messages of these sizes from another thread; return what joins it."""

    def run() -> None:
        for number, size in enumerate(sizes):
            sock.sendto(content(number, size), target)

    thread = threading.Thread(target=run)
    thread.start()
    return lambda: thread.join(WAIT_S)


def take_all(sock: urds.Socket, sizes: list[int]) -> None:
    """Receive them, each whole and in order."""
    for number, size in enumerate(sizes):
        assert sock.recv(1 << 20) == content(number, size), f"message {number} of {size} bytes"


def test_plain_messages_never_reach_the_core(pair: Pair, moves: list[str]) -> None:
    if not is_compiled(pair.nodes[0]):
        pytest.skip("only the compiled plane has couriers")
    for _ in range(200):
        pair.exchange(b"x" * 64)
    # The control thread looks at paths now and then, whatever is sent; maps and
    # acknowledgements do not.
    assert len(moves) < 40


@pytest.mark.parametrize("size", SIZES)
def test_messages_of_each_size_arrive_whole(pair: Pair, size: int) -> None:
    one, other = pair.sockets
    sizes = [size] * max(3, min(300, (4 << 20) // (size + 1)))
    join = send_all(one, other.getsockname(), sizes)
    take_all(other, sizes)
    join()


@pytest.mark.parametrize("seed", range(4))
def test_whichever_side_has_the_numbers_the_messages_are_the_same(pair: Pair, seed: int) -> None:
    """Both ways at once, while tables and counters take the numbers back."""
    rng = random.Random(seed)
    sizes = [[rng.choice(SIZES) for _ in range(120)] for _ in range(2)]
    one, other = pair.sockets
    over = threading.Event()
    before = {name: pair.counters(name) for name in COUNTED}

    def disturb() -> None:
        while not over.wait(rng.random() / 500):
            node = pair.nodes[rng.randrange(2)]
            rng.choice([node.snapshot, node.counters])()

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        joins = [
            send_all(one, other.getsockname(), sizes[0]),
            send_all(other, one.getsockname(), sizes[1]),
        ]
        failures: list[BaseException] = []

        def receive(sock: urds.Socket, due: list[int]) -> None:
            try:
                take_all(sock, due)
            except BaseException as error:
                failures.append(error)

        receivers = [
            threading.Thread(target=receive, args=(other, sizes[0])),
            threading.Thread(target=receive, args=(one, sizes[1])),
        ]
        for thread in receivers:
            thread.start()
        for thread in receivers:
            thread.join(60)
        for join in joins:
            join()
    finally:
        over.set()
        disturber.join()
    assert not failures
    grown = {
        name: [now - then for now, then in zip(pair.counters(name), before[name], strict=True)]
        for name in COUNTED
    }
    counts, volumes = [len(one) for one in reversed(sizes)], [sum(one) for one in reversed(sizes)]
    assert grown["recv_queued"] == grown["recv_delivered"] == counts
    assert grown["recv_bytes_added_to_sock"] == volumes
    assert grown["copy_from_user"] == volumes[::-1]


def test_everything_is_given_back_when_it_is_acknowledged(pair: Pair) -> None:
    """A full account waits for acknowledgements alone: each must free what it names."""
    one, other = pair.sockets
    bound = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    sizes = [8000] * (8 * bound // 8000)
    join = send_all(one, other.getsockname(), sizes)
    take_all(other, sizes)
    join()
    one.settimeout(WAIT_S)
    largest = min(bound // 2, 1 << 20)
    one.sendto(bytes(largest), other.getsockname())
    assert len(other.recv(1 << 20)) == largest


def test_a_reader_that_stops_holds_its_sender_up_and_goes_on(pair: Pair) -> None:
    """Far beyond all buffers: the courier pauses, and maps tell of it."""
    one, other = pair.sockets
    sizes = [60_000] * 200
    join = send_all(one, other.getsockname(), sizes)
    threading.Event().wait(0.3)
    assert pair.counters("recv_queued")[1] < len(sizes), "the sender is held up"
    take_all(other, sizes)
    join()


def test_each_map_of_a_full_mailbox_is_sent_once_and_without_the_control_thread(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of 1 MiB alone fills the mailbox, and empties it."""
    if not is_compiled(pair.nodes[0]):
        pytest.skip("only the compiled plane has couriers")
    asked: list[RdmaPath] = []
    send_map = RdmaPath.send_map

    def noted(path: RdmaPath) -> None:
        asked.append(path)
        send_map(path)

    monkeypatch.setattr(RdmaPath, "send_map", noted)
    one, other = pair.sockets
    before = pair.counters("cong_update_received")[0]
    count = 20
    for number in range(count):
        one.sendto(content(number, 1 << 20), other.getsockname())
        assert other.recv(1 << 20) == content(number, 1 << 20)
    wait_until(lambda: pair.counters("cong_update_received")[0] - before >= 2 * count)
    maps = pair.counters("cong_update_received")[0] - before
    assert len(asked) <= 4, "while a look at the counters had the numbers"
    assert maps <= 2 * count + len(asked)


def test_other_traffic_goes_in_between_in_its_order(pair: Pair) -> None:
    """Messages with an operation are the core's, those around them the courier's."""
    one, other = pair.sockets
    for number in range(50):
        one.sendto(content(number, 100), other.getsockname())
        if number % 10 == 5:
            one.sendmsg([content(number, 50)], [], 0, other.getsockname())
            assert one.sendto(b"", (other.getsockname()[0], 0)) == 0  # a ping
    for number in range(50):
        assert other.recv(200) == content(number, 100)
        if number % 10 == 5:
            assert other.recv(200) == content(number, 50)


def test_what_a_broken_connection_had_is_sent_again(pair: Pair) -> None:
    one, other = pair.sockets
    sizes = [rng for _ in range(60) for rng in (64, 70_000, 5000)]
    join = send_all(one, other.getsockname(), sizes)
    over = threading.Event()

    def reset() -> None:
        for turn in range(6):
            if over.wait(0.05):
                return
            pair.nodes[turn % 2].break_connections()

    breaker = threading.Thread(target=reset)
    breaker.start()
    try:
        take_all(other, sizes)
    finally:
        over.set()
        breaker.join()
        join()


def test_a_wait_for_room_ends_with_its_time(pair: Pair) -> None:
    one, other = pair.sockets

    def fill() -> None:
        for _ in range(2000):
            one.sendto(bytes(60_000), other.getsockname())

    one.settimeout(0.2)
    with pytest.raises(TimeoutError):
        fill()
    one.settimeout(0)
    with pytest.raises(OSError) as refused:
        fill()
    assert refused.value.errno in (errno.EAGAIN, errno.ENOBUFS)


def test_a_link_without_a_courier_talks_with_one_that_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One side's core does everything: the bytes are the same."""
    make = Link._make_courier
    made: list[int] = []

    def every_other(link: Link, qp: Any) -> Courier | None:
        made.append(1)
        return make(link, qp) if len(made) % 2 else None

    monkeypatch.setattr(Link, "_make_courier", every_other)
    with closing(Pair()) as pair:
        pair.exchange(b"first")
        one, other = pair.sockets
        for source, target in ((one, other), (other, one)):
            sizes = [64, 70_000, 0, 5000] * 30
            join = send_all(source, target.getsockname(), sizes)
            take_all(target, sizes)
            join()
