"""A socket that polls busily: it gets what it waits for, sleeps in the end, and hears signals."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import urds
from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.nodes import Node
from tests.support.waiting import wait_until
from urds.rds.constants import SOL_SOCKET
from urds.rds.options import SO_BUSY_POLL
from urds.rds.plane.contract import MailboxSettings

FOR_EVER_NS = 60_000_000_000
WAIT_NS = 10_000_000_000


def polling(node: Node, port: int, busy_poll_ns: int) -> Any:
    """Bind a mailbox that polls for so long."""
    mailbox = node.bind(port)
    mailbox.configure(MailboxSettings(busy_poll_ns=busy_poll_ns, receive_wait_ns=WAIT_NS))
    return mailbox


def switches(thread: threading.Thread) -> int:
    """Return how often a thread has gone to sleep."""
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


@contextmanager
def running(work: Callable[[], None]) -> Iterator[threading.Thread]:
    """Have a thread do something, and wait for its end."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(20.0)
        assert not thread.is_alive()


@pytest.mark.parametrize("shared_memory", [True, False], ids=["shm", "tcp"])
def test_answers_come_to_who_polls_on_both_sides(lab: Lab, shared_memory: bool) -> None:
    one, two = (lab.node(host, shared_memory=shared_memory) for host in (1, 2))
    asking, answering = polling(one, 4001, FOR_EVER_NS), polling(two, 4002, FOR_EVER_NS)
    rounds = 200

    def answer() -> None:
        for _ in range(rounds):
            payload, source = answering.recvfrom(100_000)
            answering.sendto(payload, source[:2])

    with running(answer):
        for at in range(rounds):
            payload = b"%d" % at * (1 if at % 10 else 9000)
            asking.sendto(payload, (two.address, 4002))
            assert asking.recvfrom(100_000)[0] == payload


def test_others_wait_beside_it(lab: Lab) -> None:
    """Who polls looks for all; who sleeps meanwhile is woken by it."""
    node, other = lab.node(1), lab.node(2)
    sleeping, busy = polling(node, 4001, 0), polling(node, 4002, FOR_EVER_NS)
    taken: list[bytes] = []

    def take_from(mailbox: Any) -> Callable[[], None]:
        return lambda: taken.append(mailbox.recvfrom(100)[0])

    with running(take_from(busy)):
        time.sleep(0.02)
        with running(take_from(sleeping)):
            time.sleep(0.02)
            other.send(b"for who sleeps", node.address, 4001)
        assert taken == [b"for who sleeps"]
        other.send(b"for who polls", node.address, 4002)
    assert taken == [b"for who sleeps", b"for who polls"]


def test_it_sleeps_when_its_time_is_over_and_is_woken(lab: Lab) -> None:
    node, other = lab.node(1), lab.node(2)
    mailbox = polling(node, 4001, 5_000_000)
    other.send(b"first", node.address, 4001)
    assert mailbox.recvfrom(100)[0] == b"first"
    taken: list[bytes] = []
    with running(lambda: taken.append(mailbox.recvfrom(100)[0])) as thread:
        state = Path(f"/proc/self/task/{thread.native_id}/wchan")
        wait_until(lambda: "ep_poll" in state.read_text() or "epoll" in state.read_text())
        before = switches(thread)
        time.sleep(0.3)
        assert switches(thread) <= before + 2, "it does not sleep"
        other.send(b"second", node.address, 4001)
    assert taken == [b"second"]


def test_a_signal_is_heard_while_it_polls(lab: Lab) -> None:
    mailbox = polling(lab.node(1), 4001, FOR_EVER_NS)

    class Heard(Exception):
        pass

    def hear(number: int, frame: FrameType | None) -> None:
        raise Heard

    before = signal.signal(signal.SIGALRM, hear)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Heard):
            mailbox.recvfrom(100)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_the_option_reaches_the_socket(lab: Lab) -> None:
    with urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET) as bound:
        bound.setsockopt(SOL_SOCKET, SO_BUSY_POLL, 2_000_000)
        bound.bind((lab.address(1), 0))
        assert bound.getsockopt(SOL_SOCKET, SO_BUSY_POLL) == 2_000_000
        # Private: that it looks cannot be seen from outside on a busy machine.
        mailbox = bound._mailbox
        assert mailbox is not None
        assert mailbox.settings.busy_poll_ns == 2_000_000_000
        bound.setsockopt(SOL_SOCKET, SO_BUSY_POLL, 0)
        assert mailbox.settings.busy_poll_ns == 0
