"""Waiting times beyond what a clock or a system call can represent, and below what it can."""

import math
import struct
import threading
from collections.abc import Callable

import pytest

import urds
from tests.rds.sockets.conftest import NewSocket
from tests.rds.sockets.hosts import host
from urds.rds.constants import SOL_SOCKET

DAYS_S = 30 * 86400.0  # epoll counts milliseconds in an int: 24.8 days
SO_RCVTIMEO, SO_SNDTIMEO = 20, 21
ARRIVAL_S = 0.05
LONG = [DAYS_S, 1e12, 1e20, 1e300, math.inf, 10**400]


def receives(sock: urds.Socket, new_socket: NewSocket) -> None:
    """Check that a receive waits for a message that comes later, twice."""
    sender = new_socket(1)
    for payload in (b"short", bytes(20_000), b"after a long one"):
        later = threading.Timer(ARRIVAL_S, sender.sendto, [payload, sock.getsockname()])
        later.start()
        assert sock.recvfrom(1 << 20)[0] == payload
        later.join()


def set_timeout(sock: urds.Socket, wait_s: float) -> None:
    sock.settimeout(wait_s)
    assert sock.gettimeout() == (wait_s if wait_s < 1e308 else math.inf)


def set_option(sock: urds.Socket, wait_s: float) -> None:
    seconds = min(int(min(wait_s, 1e19)), 2**63 - 1)
    for option in (SO_RCVTIMEO, SO_SNDTIMEO):
        sock.setsockopt(SOL_SOCKET, option, struct.pack("qq", seconds, 0))
        assert sock.getsockopt(SOL_SOCKET, option, 16) == struct.pack("qq", seconds, 0)


@pytest.mark.parametrize("wait_s", LONG)
@pytest.mark.parametrize("set_wait", [set_timeout, set_option])
@pytest.mark.parametrize("bound", [True, False], ids=["bound", "bound later"])
def test_long_times_wait(
    new_socket: NewSocket,
    set_wait: Callable[[urds.Socket, float], None],
    wait_s: float,
    bound: bool,
) -> None:
    sock = new_socket()
    if bound:
        sock.bind((host(2), 4000))
    set_wait(sock, wait_s)
    if not bound:
        sock.bind((host(2), 4000))
    receives(sock, new_socket)


def test_a_time_below_a_nanosecond_is_not_never(new_socket: NewSocket) -> None:
    sock = new_socket(2)
    sock.settimeout(1e-10)
    with pytest.raises(TimeoutError):
        sock.recvfrom(10)
    sock.settimeout(0.0)
    with pytest.raises(BlockingIOError):
        sock.recvfrom(10)


@pytest.mark.parametrize("bound", [True, False], ids=["bound", "not bound"])
@pytest.mark.parametrize("wait_s", [-1, -0.5, -math.inf, math.nan])
def test_a_refused_time_changes_nothing(new_socket: NewSocket, bound: bool, wait_s: float) -> None:
    sock = new_socket(2) if bound else new_socket()
    sock.settimeout(2.5)
    with pytest.raises(ValueError, match=r"0 or more seconds|must be a number"):
        sock.settimeout(wait_s)
    assert sock.gettimeout() == 2.5
