"""Sockets of this process at a real node: messages, its worker killed and upgraded meanwhile."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import urds
from tests.rds.sockets.conftest import fresh_addresses  # noqa: F401 - a fixture
from tests.rds.sockets.hosts import host
from tests.support import backends
from urds.rds.node import commands
from urds.rds.runtime.attached import Attached
from urds.rds.runtime.process import process

pytestmark = pytest.mark.skipif(
    not backends.IS_ATTACHED or bool(backends.missing()),
    reason="a node with the compiled plane: TEST_BACKEND=attached URDS_IMPL=native",
)
MESSAGES = 20_000
EVENTS = 5


@contextmanager
def attached() -> Iterator[Attached]:
    """Give a backend at a node."""
    with backends.made(drain_s=0) as made:
        assert isinstance(made, Attached)
        yield made


def bound(backend: Attached, number: int) -> urds.Socket:
    """Return a socket that a backend has."""
    before = process.use(backend)
    try:
        sock = urds.Socket()
        sock.bind((host(number), 4000))
        sock.settimeout(30)
        return sock
    finally:
        process.use(before)


def kill(backend: Attached) -> None:
    """Kill the worker of a node, and wait for the next one."""
    before = commands.status(backend.place)["worker"]
    os.kill(before, signal.SIGKILL)
    while True:
        try:
            if commands.status(backend.place)["worker"] != before:
                return
        except ConnectionError:
            pass


def upgrade(backend: Attached) -> None:
    """Have the worker of a node replaced."""
    commands.upgrade(backend.place)


@pytest.mark.parametrize("event", [kill, upgrade])
@pytest.mark.parametrize("nodes", [1, 2])
def test_no_message_is_lost_or_doubled(nodes: int, event: object) -> None:
    with attached() as first, attached() as second:
        places = [first, second][:nodes]
        source, target = bound(first, 1), bound(places[-1], 2)
        failures: list[BaseException] = []

        def send() -> None:
            try:
                for number in range(MESSAGES):
                    source.sendto(b"%d" % number, target.getsockname())
            except BaseException as failure:
                failures.append(failure)

        sender = threading.Thread(target=send)
        sender.start()
        for number in range(MESSAGES):
            assert target.recv(100) == b"%d" % number, failures
            if number % (MESSAGES // EVENTS) == MESSAGES // EVENTS // 2:
                for place in places:
                    event(place)  # type: ignore[operator]  # one of the two above
        sender.join(30)
        assert failures == []
        target.setblocking(False)
        with pytest.raises(BlockingIOError):
            target.recv(100)
        source.close()
        target.close()


def test_processes_share_an_address(tmp_path: object) -> None:
    with attached() as backend:
        first, second = bound(backend, 1), None
        before = process.use(backend)
        try:
            second = urds.Socket()
            second.bind((host(1), 4001))
        finally:
            process.use(before)
        child = os.fork()
        if not child:
            try:
                os._exit(0 if first.recv(10) == b"question" else 1)
            finally:
                os._exit(2)
        second.sendto(b"question", first.getsockname())
        assert os.waitpid(child, 0)[1] == 0
        first.close()
        second.close()
