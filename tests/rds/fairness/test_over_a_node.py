"""Many sockets of a node and one that is flooded: shares, and what a full socket stops.

The scenarios of `test_nodes`, with sockets that a node has: what it takes of each in a pass, and
what their shared memory holds, decides here.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

import urds
from tests.rds.fairness.test_nodes import ACCOUNT_BYTES, END_S, is_sent, running
from tests.rds.sockets.conftest import backend_with, fresh_addresses  # noqa: F401 - fixtures
from tests.rds.sockets.hosts import host
from tests.support import backends
from tests.support.waiting import wait_until
from urds.rds.constants import MSG_DONTWAIT, SOL_SOCKET

pytestmark = [
    pytest.mark.skipif(
        not backends.IS_ATTACHED or bool(backends.missing()),
        reason="a node with the compiled plane: TEST_BACKEND=attached URDS_IMPL=native",
    ),
    pytest.mark.timeout(120),
]

SOCKETS = 16
PORT = 4000
EACH = 500
SO_SNDBUF, SO_RCVBUF = 7, 8


def bound(number: int) -> urds.Socket:
    """Make a socket of an account as every socket here has it."""
    sock = urds.Socket()
    for option in (SO_SNDBUF, SO_RCVBUF):
        sock.setsockopt(SOL_SOCKET, option, ACCOUNT_BYTES // 2)
    sock.bind((host(number), PORT))
    return sock


@pytest.fixture
def one() -> Iterator[urds.Socket]:
    """Make the socket that has to do with all others, and the node."""
    with backend_with(), bound(1) as made:
        yield made


@pytest.fixture
def others(one: urds.Socket) -> Iterator[list[urds.Socket]]:
    """Make the others, each at an address of its own."""
    made = [bound(2 + number) for number in range(SOCKETS)]
    yield made
    for sock in made:
        sock.close()


def taken(sock: urds.Socket) -> list[str]:
    """Take what is there; return where it is from."""
    found = []
    while True:
        try:
            found.append(sock.recvfrom(1 << 16, MSG_DONTWAIT)[1][0])
        except BlockingIOError:
            return found


def test_sockets_that_send_alike_are_heard_alike(
    one: urds.Socket, others: list[urds.Socket]
) -> None:
    """No socket has less than half or more than twice of its share."""
    target = one.getsockname()

    def flood(ended: threading.Event) -> None:
        while not ended.is_set():
            if not sum(is_sent(sock, target) for sock in others):
                time.sleep(0.0005)

    first: set[str] = set()
    shares: Counter[str] = Counter()
    deadline_s = time.monotonic() + END_S
    with running(flood):
        while shares.total() < EACH * SOCKETS and time.monotonic() < deadline_s:
            found = taken(one)
            if len(first) < SOCKETS:
                first.update(found)  # nothing is counted until all have a route
            else:
                shares.update(found)
            time.sleep(0.005)  # so that it is full each time
    even = shares.total() / SOCKETS
    assert shares.total() >= EACH * SOCKETS, f"{len(first)} sockets were heard"
    assert {peer: n for peer, n in shares.items() if not even / 2 <= n <= even * 2} == {}
    assert len(shares) == SOCKETS


def test_a_full_socket_stops_only_who_sends_to_it(
    one: urds.Socket, others: list[urds.Socket]
) -> None:
    """A socket sends to many of which one takes nothing, and a thread waits for that one."""
    full, *rest = others
    is_over = threading.Event()

    def wait_for_room(ended: threading.Event) -> None:
        one.settimeout(0.2)
        while not ended.is_set():
            try:
                one.sendto(bytes(1000), full.getsockname())
            except TimeoutError:
                is_over.set()

    with running(wait_for_room):
        wait_until(is_over.is_set, wait_s=END_S)
        sent, heard = Counter[str](), Counter[str]()
        deadline_s = time.monotonic() + END_S
        while heard.total() < EACH * len(rest) and time.monotonic() < deadline_s:
            for sock in rest:
                name = sock.getsockname()
                if sent[name[0]] < EACH and is_sent(one, name):
                    sent[name[0]] += 1
                heard[name[0]] += len(taken(sock))
        assert heard == dict.fromkeys([sock.getsockname()[0] for sock in rest], EACH)
