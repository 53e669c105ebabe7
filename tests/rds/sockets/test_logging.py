"""A logging handler is code of the program: none is called with a lock of ours held."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from tests.rds.sockets.test_control_faults import exchange, pair
from urds.common.logs import LogQueue
from urds.rds.runtime.inprocess import InProcess

WAIT_S = 20.0


class Handler(logging.Handler):
    """Keeps the lines, and does something of the program's own with each."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._act = act
        self.lines: list[str] = []
        self.reached = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self._act()
        self.reached.set()


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    """Have a handler get what urds logs, from INFO on."""
    log = logging.getLogger("urds")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@pytest.mark.each_carrier("shm0")
def test_a_handler_that_waits_for_the_program_stops_nothing() -> None:
    """Connections are made and lost, and sockets bound, by who holds the handler's lock."""
    handler = Handler()
    with handled_by(handler), pair(1, 2) as (ours, source, target):
        with handler.lock or threading.Lock():
            exchange(ours, source, target)
            with urds.Socket() as another:
                another.bind((host(1), 4001))
                another.settimeout(WAIT_S)
                another.sendto(b"bound meanwhile", target.getsockname())
                assert target.recv(100) == b"bound meanwhile"
            assert not handler.lines
        assert handler.reached.wait(WAIT_S)


@pytest.mark.each_carrier("shm0")
def test_a_handler_may_bind_send_and_reconnect() -> None:
    done: list[bytes] = []

    def send_on() -> None:
        if done:
            return
        done.append(b"")
        with urds.Socket() as own:
            own.bind((host(1), 0))
            own.settimeout(WAIT_S)
            for _ in range(2):
                own.sendto(b"a line", own_target)
                done.append(logged.recv(100))
                nodes[0].break_connections()

    handler, nodes = Handler(send_on), list[InProcess]()
    with handled_by(handler), pair(1, 2) as (ours, source, target), urds.Socket() as logged:
        logged.bind((host(1), 4002))
        logged.settimeout(WAIT_S)
        own_target = (host(1), 4002)
        nodes.append(ours)
        exchange(ours, source, target)
        assert handler.reached.wait(WAIT_S)
        exchange(ours, source, target)
    assert done == [b"", b"a line", b"a line"]


def test_a_handler_that_raises_loses_no_later_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def fail() -> None:
        if len(handler.lines) == 1:
            raise RuntimeError("of the program")

    handler, log = Handler(fail), LogQueue()
    with handled_by(handler):
        log.warning("the %s", "first")
        log.flush()
        log.warning("the %s", "second")
        log.flush()
    assert handler.lines == ["the first", "the second"]


def test_lines_wait_for_a_thread_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the interpreter's exit; who closes the node emits them then."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    handler, log = Handler(), LogQueue()
    with handled_by(handler), monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for number in range(3):
            log.warning("line %d", number)
        assert not handler.lines
        log.flush()
    assert handler.lines == ["line 0", "line 1", "line 2"]


def test_a_handler_that_blocks_keeps_a_bounded_number_of_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("urds.common.logs._LINES_MAX", 1 << 20)
    go_on = threading.Event()
    handler, log = Handler(lambda: go_on.wait(WAIT_S)), LogQueue()
    with handled_by(handler):
        log.warning("line %d", 0)
        while not handler.lines:
            pass
        for number in range(1, 1001):
            log.warning("line %d", number)
        go_on.set()
        log.flush()
        log.warning("line %d", 1001)
        log.flush()
    assert handler.lines == [
        *(f"line {number}" for number in range(257)),
        "line 1001 (744 more like this not shown)",
    ]


def test_what_is_logged_at_the_end_is_emitted() -> None:
    """Who closes a node waits for its lines."""
    handler = Handler()
    with handled_by(handler), backend_with() as ours, urds.Socket() as source:
        source.bind((host(1), 4000))
        ours._driver.log.warning("the %s", "last")
    assert handler.lines == ["the last"]
