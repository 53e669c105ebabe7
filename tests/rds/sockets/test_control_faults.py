"""Unexpected exceptions in the control thread: confined to a peer, or loud; never silent.

Each is injected once. Confined, it costs the peer's connections and no message; elsewhere the node
fails, and each waiting call gets EIO.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from urds.rds.control import events
from urds.rds.control.tcp_peer import TcpPeer
from urds.rds.control.timers import TimerKey, TimerKind
from urds.rds.plane.choose import NATIVE
from urds.rds.runtime.connect import Streams
from urds.rds.runtime.inprocess import InProcess

WAIT_S = 20.0
ROUNDS_MAX = 50
NPATHS = 2
SOON = {"reconnect_min_delay_ms": 1, "reconnect_max_delay_ms": 20, "npaths": NPATHS}
LOWER, HIGHER = (1, 2), (2, 1)  # hosts: the faulty one and its peer; the lower one connects
REPORTS = [
    "handle_wanted",
    "handle_accepted",
    "handle_first_frame",
    "handle_control",
    "handle_down",
]
REPORTS_OF = [
    *((LOWER, report) for report in ("handle_connected", *REPORTS)),
    *((HIGHER, report) for report in ("handle_call_back_requested", *REPORTS)),
]
ACTIONS = [
    events.Attach,
    events.SendControl,
    events.Release,
    events.Agree,
    events.FanOut,
    events.PeerKnown,
]
ACTIONS_OF = [
    *((LOWER, action) for action in (events.Connect, events.Refuse, *ACTIONS)),
    *((HIGHER, action) for action in (events.RequestCallBack, *ACTIONS)),
]


class Fault:
    """An exception that is raised once."""

    def __init__(self) -> None:
        self.raised = 0

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that fails the first time instead of doing its work."""

        def failing(*arguments: Any, **named: Any) -> Any:
            if not self.raised:
                self.raised += 1
                raise RuntimeError("injected")
            return function(*arguments, **named)

        return failing

    def after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that fails the first time when its work is done."""

        def failing(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            if not self.raised:
                self.raised += 1
                raise RuntimeError("injected")
            return result

        return failing


@contextmanager
def pair(number: int, other: int) -> Iterator[tuple[InProcess, urds.Socket, urds.Socket]]:
    """Give two nodes in this process, each with a socket; the first node is the faulty one."""
    with backend_with(**SOON), urds.Socket() as target:
        target.bind((host(other), 4000))
        target.settimeout(WAIT_S)
        with backend_with(**SOON) as ours, urds.Socket() as source:
            source.bind((host(number), 4000))
            source.settimeout(WAIT_S)
            yield ours, source, target


def exchange(ours: InProcess, source: urds.Socket, target: urds.Socket) -> None:
    """Send both ways, over a break of all connections too; everything comes once, in order."""
    for start in (0, 5):
        for index in range(start, start + 5):
            source.sendto(b"%d" % index, target.getsockname())
            target.sendto(b"%d" % index, source.getsockname())
        for receiver in (source, target):
            got = [receiver.recv(10) for _ in range(5)]
            assert got == [b"%d" % index for index in range(start, start + 5)]
        ours.break_connections()


def exchange_until_raised(
    fault: Fault, ours: InProcess, source: urds.Socket, target: urds.Socket
) -> None:
    """Exchange at least twice, until the fault was met: who requests a call-back is random."""
    for _ in range(ROUNDS_MAX):
        met = fault.raised
        exchange(ours, source, target)
        if met:
            return


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("sides", "report"), REPORTS_OF)
def test_a_fault_in_a_report_costs_the_peer_its_connections_alone(
    monkeypatch: pytest.MonkeyPatch, sides: tuple[int, int], report: str, when: str
) -> None:
    fault = Fault()
    with pair(*sides) as (ours, source, target):
        make_faulty(monkeypatch, ours, report, getattr(fault, when))
        exchange_until_raised(fault, ours, source, target)
        assert ours.counters()["control_faults"] == fault.raised == 1
        assert ours._driver._thread.is_alive()


def test_a_fault_in_a_timer_costs_its_peer_the_connections_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault = Fault()
    with pair(*LOWER) as (ours, source, target):
        exchange(ours, source, target)
        make_faulty(monkeypatch, ours, "handle_timer", fault.before)
        (ours_here,) = ours._driver.hosts.values()
        with ours._driver.lock:
            key = TimerKey(ip_address(host(2)), TimerKind.PENDING, 0)
            ours_here.endpoint._timers.set(key, 0)
        ours.plane.wake()
        exchange(ours, source, target)
        assert ours.counters()["control_faults"] == fault.raised == 1


def make_faulty(
    monkeypatch: pytest.MonkeyPatch,
    ours: InProcess,
    report: str,
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> None:
    """Make one handler of the connections of our node alone fail."""
    original = getattr(TcpPeer, report)
    faulty = wrap(original)

    def chosen(self: TcpPeer, *arguments: Any, **named: Any) -> Any:
        is_ours = self.stats is ours._driver.stats
        return (faulty if is_ours else original)(self, *arguments, **named)

    monkeypatch.setattr(TcpPeer, report, chosen)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("sides", "action"), ACTIONS_OF)
def test_a_fault_in_an_action_costs_the_peer_its_connections_alone(
    sides: tuple[int, int], action: type, when: str
) -> None:
    fault = Fault()
    with pair(*sides) as (ours, source, target):
        methods = ours._driver.actions._methods
        methods[action] = getattr(fault, when)(methods[action])
        exchange_until_raised(fault, ours, source, target)
        assert ours.counters()["control_faults"] == fault.raised == 1
        assert ours._driver._thread.is_alive()


def test_a_confined_fault_is_logged_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fault = Fault()
    monkeypatch.setattr(Streams, "connect", fault.before(Streams.connect))
    with pair(1, 2) as (ours, source, target), caplog.at_level(logging.ERROR, "urds"):
        exchange(ours, source, target)
        ours._driver.log.flush()
    (record,) = (one for one in caplog.records if one.levelno == logging.ERROR)
    assert host(2) in record.getMessage()
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "injected"


def test_a_fault_in_a_report_for_info_costs_nothing() -> None:
    def fail() -> bytes:
        raise RuntimeError("injected")

    with pair(1, 2) as (ours, source, target):
        read, write = os.pipe()
        with open(read), open(write):
            information = SimpleNamespace(fileno=lambda: read, handle_ready=fail, close=int)
            with ours._driver.lock:
                ours._driver.information.socket = information
                ours._driver.information.watch()
                ours._driver.watches.handlers[read]()
                assert read in ours._driver.watches.handlers, "it is served again"
                ours._driver.watches.stop(read)
            assert ours.counters()["control_faults"] == 1
            exchange(ours, source, target)


@pytest.mark.each_carrier("shm0")
class TestAFaultOfNoPeer:
    """Where no peer is to blame, the node fails, and says so to all callers."""

    @pytest.fixture
    def failing(self, caplog: pytest.LogCaptureFixture) -> Callable[[InProcess], None]:
        """Give what lets a node fail; the log must tell."""

        def fail(node: InProcess) -> None:
            node._driver.streams.handle_timeout = Fault().before(lambda at_ns: None)
            node.plane.wake()
            node._driver._thread.join(WAIT_S)
            assert not node._driver._thread.is_alive()
            node._driver.log.flush()
            (record,) = (one for one in caplog.records if one.levelno == logging.CRITICAL)
            assert record.exc_info is not None
            assert str(record.exc_info[1]) == "injected"

        return fail

    def test_every_call_gets_eio(self, failing: Callable[[InProcess], None]) -> None:
        with pair(1, 2) as (ours, source, target):
            exchange(ours, source, target)
            failing(ours)
            calls: list[Callable[[], object]] = [
                lambda: source.sendto(b"x", target.getsockname()),
                lambda: source.recv(10),
                lambda: source.recv(10, urds.MSG_DONTWAIT),
                lambda: urds.Socket().bind((host(1), 0)),
            ]
            for call in calls:
                with pytest.raises(OSError, match="restart the process") as refused:
                    call()
                assert refused.value.errno == errno.EIO
            assert ours.counters()["control_faults"] == 1

    def test_want_of_memory_is_a_fault_like_any_other(self) -> None:
        def fail(_: int) -> None:
            raise MemoryError

        with pair(1, 2) as (ours, source, target):
            exchange(ours, source, target)
            ours._driver.streams.handle_timeout = fail
            ours.plane.wake()
            ours._driver._thread.join(WAIT_S)
            with pytest.raises(OSError, match="restart the process") as refused:
                source.sendto(b"x", target.getsockname())
            assert refused.value.errno == errno.EIO

    def test_who_waits_wakes_up(self, failing: Callable[[InProcess], None]) -> None:
        with pair(1, 2) as (ours, source, target):
            exchange(ours, source, target)
            poll = select.poll()
            poll.register(source.fileno(), select.POLLIN)
            with urds.Socket() as full, urds.Socket() as idle:
                full.bind((host(1), 0))
                full.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                idle.bind((host(1), 0))
                codes: list[int | None] = []
                threads = [
                    threading.Thread(target=until_refused, args=[codes, call])
                    for call in (
                        lambda: idle.recv(10),
                        lambda: full.sendto(bytes(1000), (host(3), 4000)),  # no host is there
                    )
                ]
                for thread in threads:
                    thread.start()
                while not two_wait(ours):
                    assert all(thread.is_alive() for thread in threads)
                failing(ours)
                for thread in threads:
                    thread.join(WAIT_S)
                assert codes == [errno.EIO] * 2
                assert poll.poll(0)

    def test_its_peer_goes_on_with_the_next_at_its_address(
        self, failing: Callable[[InProcess], None]
    ) -> None:
        with pair(1, 2) as (ours, source, target):
            exchange(ours, source, target)
            failing(ours)
            with backend_with(**SOON), urds.Socket() as successor:
                successor.bind((host(1), 4000))
                successor.settimeout(0.2)
                for _ in range(100):  # the first may go down with the node that failed
                    target.sendto(b"who is there", successor.getsockname())
                    with suppress(TimeoutError):
                        assert successor.recv(100) == b"who is there"
                        break
                else:
                    pytest.fail("the successor got nothing")


def two_wait(node: InProcess) -> bool:
    """Tell whether one thread reads and another waits for it; give them time where none tells."""
    if node.choice.plane == NATIVE:
        time.sleep(0.1)
        return True
    wait_queue = node.plane.state.wait_queue
    return wait_queue.leader is not None and bool(wait_queue.followers)


def until_refused(codes: list[int | None], call: Callable[[], object]) -> None:
    """Call again and again; keep the errno that ends it."""
    try:
        while True:
            call()
    except OSError as failure:
        codes.append(failure.errno)
