"""Waiting: timeouts, the descriptor, other threads, signals, forks, and the clock."""

import errno
import gc
import os
import select
import signal
import socket
import threading
import time
import weakref

import pytest

from tests.rsocket.socket_pairs import (
    DEVICES,
    HOST,
    WAIT_S,
    Pair,
    Task,
    error_of,
    receive_exactly,
)
from tests.support.waiting import BUSY_S, wait_until
from urds.rsocket.socket import Socket

OVER = (*DEVICES, "shm0,tcp0")


def ready(one: Socket, wait_s: float = 0) -> tuple[bool, bool]:
    """Return what select says: readable, writable."""
    readable, writable, _ = select.select([one], [one], [], wait_s)
    return bool(readable), bool(writable)


def test_timeouts_are_kept_as_in_socket_socket(pair: Pair) -> None:
    one = pair.client
    one.settimeout(None)
    assert (one.gettimeout(), one.timeout, one.getblocking()) == (None, None, True)
    one.settimeout(3)
    assert (one.gettimeout(), one.getblocking()) == (3.0, True)
    one.setblocking(False)
    assert (one.gettimeout(), one.getblocking()) == (0.0, False)
    with pytest.raises(ValueError):
        one.settimeout(-1)
    with Socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as other:
        assert other.gettimeout() == 0


@pytest.mark.parametrize("wait_s", [0.02, 0.2])
def test_a_timeout_is_as_long_as_it_says(pair: Pair, wait_s: float) -> None:
    pair.client.settimeout(wait_s)
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        pair.client.recv(1)
    assert wait_s <= time.monotonic() - began_s < wait_s + BUSY_S


def test_sendall_has_one_timeout_for_all(pair: Pair) -> None:
    pair.client.settimeout(0.1)
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        pair.client.sendall(bytes(64 << 20))
    assert time.monotonic() - began_s < BUSY_S


def test_the_descriptor_shows_the_end(pair: Pair) -> None:
    pair.server.fileno()
    pair.client.close()
    assert select.select([pair.server], [], [], WAIT_S)[0] == [pair.server]
    assert pair.server.recv(1) == b""


def test_the_descriptor_of_a_listener(pair: Pair) -> None:
    assert ready(pair.listener) == (False, False)
    with Socket() as client:
        client.setblocking(False)
        client.connect_ex(pair.listener.getsockname())
        assert select.select([pair.listener], [], [], WAIT_S)[0] == [pair.listener]
        pair.listener.accept()[0].close()
    wait_until(lambda: ready(pair.listener) == (False, False))


def test_epoll_keeps_a_descriptor_from_before_the_connect(pair: Pair) -> None:
    with Socket() as client, select.epoll() as poller:
        poller.register(client.fileno(), select.EPOLLIN | select.EPOLLOUT)
        number = client.fileno()
        client.setblocking(False)
        client.connect_ex(pair.listener.getsockname())
        assert client.fileno() == number
        accepted, _ = pair.listener.accept()
        with accepted:
            accepted.send(b"x")
            found = 0
            end_s = time.monotonic() + WAIT_S
            while not found & select.EPOLLIN and time.monotonic() < end_s:
                found = dict(poller.poll(WAIT_S)).get(number, 0)
            assert found & select.EPOLLIN
            assert client.recv(1) == b"x"


@pytest.mark.parametrize("call", ["recv", "sendall"])
def test_a_wait_ends_when_another_thread_closes(pair: Pair, call: str) -> None:
    pair.client.settimeout(None)
    argument = 1 if call == "recv" else bytes(64 << 20)
    task = Task(lambda: getattr(pair.client, call)(argument))
    time.sleep(0.05)
    pair.client.close()
    assert error_of(task.result) == errno.EBADF


def test_a_shutdown_for_reading_ends_a_wait(pair: Pair) -> None:
    pair.client.settimeout(None)
    task = Task(lambda: pair.client.recv(1))
    time.sleep(0.05)
    pair.client.shutdown(socket.SHUT_RD)
    assert task.result() == b""


class Stopped(Exception):
    """What the signal handler raises."""


def test_a_signal_handlers_exception_passes_through(pair: Pair) -> None:
    def stop(*_: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGALRM, stop)
    try:
        pair.client.settimeout(None)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Stopped):
            pair.client.recv(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    pair.server.send(b"x")
    assert pair.client.recv(1) == b"x"


def rests(one: Socket) -> bool:
    """Return whether everything that a socket has sent was acknowledged."""
    link = one._transfer.link
    assert link is not None
    with link.context.adapter.lock:
        qp = link._send_queue.qp
        return qp is not None and not qp.outstanding_requests


def test_interrupted_waits_leave_the_device_whole(pair: Pair) -> None:
    """Where bytes still come over `tcp0`, an exception amid them would end the connection."""

    def stop(*_: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGALRM, stop)
    pair.client.settimeout(None)
    wait_until(lambda: all(rests(one) for one in pair.both))
    try:
        for number in range(30):
            signal.setitimer(signal.ITIMER_REAL, 0.005 + number / 10_000)
            with pytest.raises(Stopped):
                pair.client.recv(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    pair.server.sendall(b"whole")
    assert receive_exactly(pair.client, 5) == b"whole"
    other = Pair()
    other.client.sendall(b"and others")
    assert receive_exactly(other.server, 10) == b"and others"
    other.close()


def test_a_signal_handler_that_returns_lets_the_wait_go_on(pair: Pair) -> None:
    rung = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda *_: rung.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        task = Task(lambda: (rung.wait(WAIT_S), pair.server.send(b"x")))
        assert pair.client.recv(1) == b"x"
        task.result()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_forgotten_socket_warns_and_ends_its_connection(pair: Pair) -> None:
    client = Socket()
    client.settimeout(WAIT_S)
    client.connect(pair.listener.getsockname())
    accepted, _ = pair.listener.accept()
    with accepted:
        accepted.settimeout(WAIT_S)
        kept = [client]
        del client
        with pytest.warns(ResourceWarning, match="unclosed"):
            kept.clear()
        assert accepted.recv(1) == b""


def test_a_closed_socket_leaves_no_descriptor(pair: Pair) -> None:
    with Socket() as bound:
        bound.bind((HOST, 0))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with Socket() as client:
            client.fileno()
            client.settimeout(WAIT_S)
            client.connect(pair.listener.getsockname())
            pair.listener.accept()[0].close()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_a_timeout_has_an_upper_end(pair: Pair) -> None:
    with pytest.raises(OverflowError, match="timeout of inf s, limit 2147483648"):
        pair.client.settimeout(float("inf"))


def test_a_socket_that_connects_is_not_writable_yet(pair: Pair) -> None:
    """A descriptor asked for before the connect tells that it has begun."""
    with Socket() as one, Socket() as silent:
        silent.bind((HOST, 0))  # reserved, without a listener: the connect takes its time
        one.setblocking(False)
        assert one.fileno() >= 0
        assert ready(one) == (False, True)
        if one.connect_ex(silent.getsockname()) == errno.ECONNREFUSED:
            return  # that was quick
        assert ready(one)[1] is False or one.readiness().writable
        wait_until(lambda: ready(one)[1])
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


def test_an_unreferenced_socket_goes_though_its_descriptor_was_asked_for(pair: Pair) -> None:
    one = Socket()
    one.connect(pair.listener.getsockname())
    accepted, _ = pair.listener.accept()
    with accepted:
        one.fileno()
        reference = weakref.ref(one)
        held = [one]
        del one
        with pytest.warns(ResourceWarning, match="unclosed"):
            held.clear()
        gc.collect()
        assert reference() is None
        accepted.settimeout(WAIT_S)
        assert accepted.recv(1) == b""
