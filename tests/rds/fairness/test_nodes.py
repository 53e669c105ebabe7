"""Many peers and one socket between real nodes: shares, accounts, and what a full socket stops.

What is asserted is counted, never timed. The ratio of rates beside a receiver that stands still is
the scenario `slow-receiver` of tests/faults.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import pytest

from tests.rds.fairness.floods import PEERS, SHORT_BYTES
from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.nodes import PORT, Node
from tests.support.waiting import BUSY_S, wait_until
from urds.rds.constants import MSG_DONTWAIT
from urds.rds.plane.contract import MailboxSettings

pytestmark = [pytest.mark.each_carrier("shm0"), pytest.mark.timeout(120)]

ACCOUNT_BYTES = 106_496  # SO_SNDBUF and SO_RCVBUF of every socket here
RECEIVER, FIRST_PEER = 1, 10
END_S = 60.0
FULL_S = 0.2  # at most; over RDMA credits may end before the buffer is full
_REFUSED = (errno.EAGAIN, errno.ENOBUFS)
SHORT = b"\xa5" * SHORT_BYTES


def bind_many(node: Node, lab: Lab, hosts: range) -> list[Any]:
    """Have a node host more addresses, with a mailbox each."""
    settings = MailboxSettings(send_bytes_max=ACCOUNT_BYTES, receive_bytes_max=ACCOUNT_BYTES)
    return [
        node.backend.bind(
            address=ip_address(lab.address(host)), port=PORT, settings=settings, transport=None
        )
        for host in hosts
    ]


def is_sent(mailbox: Any, target: tuple[str, int]) -> bool:
    """Send without waiting; tell whether there was room."""
    try:
        mailbox.sendto(SHORT, MSG_DONTWAIT, target)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return False
    return True


@contextmanager
def running(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run something in a thread until the end of the block, when it is told."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture
def receiver(lab: Lab) -> Node:
    """Start the node whose socket is flooded."""
    return lab.node(RECEIVER, buffer_bytes=ACCOUNT_BYTES)


@pytest.fixture
def peers(lab: Lab) -> list[Any]:
    """Bind the sockets that flood it, each at an address of its own."""
    node = lab.node(FIRST_PEER - 1)
    return bind_many(node, lab, range(FIRST_PEER, FIRST_PEER + PEERS))


@pytest.fixture
def flood(receiver: Node, peers: list[Any]) -> Callable[[threading.Event], None]:
    """Have each peer send whenever it may, one message at a time and in turn."""

    def work(ended: threading.Event) -> None:
        target = (receiver.address, PORT)
        while not ended.is_set():
            if not sum(is_sent(mailbox, target) for mailbox in peers):
                time.sleep(0.0005)

    return work


@pytest.mark.timeout(300)
def test_peers_who_send_alike_are_heard_alike(
    receiver: Node, peers: list[Any], flood: Callable[[threading.Event], None]
) -> None:
    """Over 1,000 messages of each: no peer has less than half or more than twice of its share.

    The owner takes when its socket is full: a peer that is not told of room falls behind.
    """
    first: set[str] = set()
    shares: Counter[str] = Counter()
    heard_s = time.monotonic()
    with running(flood):
        # On a busy machine it takes long: only what stands still has failed.
        while shares.total() < 1_000 * PEERS and time.monotonic() < heard_s + BUSY_S:
            full_s = time.monotonic() + FULL_S
            while not receiver.account().congested and time.monotonic() < full_s:
                time.sleep(0.001)
            found = [source[0] for _, source in receiver.take_from(receiver.mailbox)]
            if found:
                heard_s = time.monotonic()
            if len(first) < PEERS:
                first.update(found)  # nothing is counted until all are connected
            else:
                shares.update(found)
    even = shares.total() / PEERS
    assert shares.total() >= 1_000 * PEERS, f"{len(first)} peers were heard"
    assert {peer: n for peer, n in shares.items() if not even / 2 <= n <= even * 2} == {}
    assert len(shares) == PEERS


def test_a_socket_that_is_not_emptied_holds_what_the_accounts_allow(
    receiver: Node, flood: Callable[[threading.Event], None]
) -> None:
    """Four times SO_RCVBUF, where the map goes out at once, and what every peer had on the way."""
    seen = [-1, -2]
    with running(flood):
        wait_until(lambda: receiver.account().congested, wait_s=END_S)
        deadline_s = time.monotonic() + END_S
        while seen[-1] != seen[-2] and time.monotonic() < deadline_s:
            time.sleep(0.3)
            seen.append(receiver.account().receive_queued_bytes)
        bound = 4 * ACCOUNT_BYTES + PEERS * ACCOUNT_BYTES
        assert ACCOUNT_BYTES < seen[-1] <= bound
        receiver.mailbox.recvfrom(SHORT_BYTES)  # a slow owner changes nothing
        time.sleep(0.1)
        assert receiver.account().receive_queued_bytes <= bound


def test_a_full_socket_stops_only_who_sends_to_it(lab: Lab, peers: list[Any]) -> None:
    """A socket sends to 32 peers of which one takes nothing, and a thread waits for that one."""
    sender = lab.node(RECEIVER, buffer_bytes=ACCOUNT_BYTES)
    targets = [(str(mailbox.local), PORT) for mailbox in peers]
    full, *others = zip(peers, targets, strict=True)

    def wait_for_room() -> None:
        while True:
            try:
                sender.mailbox.sendto(SHORT, full[1])
            except OSError:
                return  # closed

    thread = threading.Thread(target=wait_for_room, daemon=True)
    thread.start()
    wait_until(lambda: sender.counters["cong_send_blocked"] > 0, wait_s=END_S)
    each, sent, taken = 200, Counter[str](), Counter[str]()
    deadline_s = time.monotonic() + END_S
    while taken.total() < each * len(others) and time.monotonic() < deadline_s:
        for mailbox, target in others:
            if sent[target[0]] < each and is_sent(sender.mailbox, target):
                sent[target[0]] += 1
            taken[target[0]] += len(Node.take_from(mailbox))
    assert taken == dict.fromkeys([target[0] for _, target in others], each)
    assert thread.is_alive()
    sender.close()
    thread.join(10)
    assert not thread.is_alive()
