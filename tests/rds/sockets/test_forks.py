"""A fork at a bad moment: the child's calls end, and write to nothing that is not theirs.

By hand, `TEST_FORKS=1000` forks so often under each load; the suite forks 15 times.
"""

import errno
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

import urds
from tests.rds.sockets.conftest import NewSocket, backend_with
from tests.rds.sockets.hosts import host
from tests.support.waiting import BUSY_S
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.process import process

pytestmark = pytest.mark.each_carrier("shm0")

CHILD_S = round(BUSY_S)  # a call that hangs takes longer still
FORKS = int(os.environ.get("TEST_FORKS", "15"))


def code_of_child(body: Callable[[], bool]) -> int:
    """Fork; return 0 if `body` is true there, a negative signal number if it hangs."""
    child = os.fork()
    if not child:
        signal.alarm(CHILD_S)
        code = 1
        try:
            code = 0 if body() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def ends(sock: urds.Socket) -> bool:
    """Tell whether every call of an inherited, bound socket is refused with EBADF or closes."""
    calls: list[Callable[[], object]] = [
        lambda: sock.sendto(b"x", (host(1), 4000)),
        lambda: sock.recvfrom(10),
        lambda: sock.recvmsg(10),
        lambda: sock.settimeout(1),
        lambda: sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000),
        lambda: sock.connect((host(1), 4000)),
        lambda: select.select([sock], [], [], 0),
        lambda: sock.bind((host(2), 0)),
    ]
    for call in calls:
        with suppress(ValueError):  # `select` of a number that is no descriptor
            try:
                call()
            except OSError as refused:
                if refused.errno not in {errno.EBADF, errno.EINVAL}:  # of the bind: it is bound
                    raise
    sock.close()
    return sock.fileno() == -1


@pytest.mark.parametrize("whose", ["socket", "process", "driver"])
def test_calls_in_the_child_wait_for_no_lock_of_the_parent(
    backend: InProcess, new_socket: NewSocket, whose: str
) -> None:
    sock = new_socket(1)
    lock = {"socket": sock._lock, "process": process._lock, "driver": backend._driver.lock}[whose]
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(CHILD_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(CHILD_S)
    try:
        assert code_of_child(lambda: ends(sock)) == 0
    finally:
        done.set()
        thread.join()


def poll_and_set(sock: urds.Socket, peer: urds.Socket) -> None:
    """Do what takes the socket's own lock."""
    select.select([sock], [peer], [], 0)
    sock.settimeout(1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)


def bind_and_close(sock: urds.Socket, peer: urds.Socket) -> None:
    """Do what takes the locks of the process and of the control thread."""
    with urds.Socket() as another:
        another.bind((host(1), 0))
        another.sendto(b"x", another.getsockname())


def send_and_receive(sock: urds.Socket, peer: urds.Socket) -> None:
    """Do what takes the plane's lock."""
    peer.sendto(bytes(100), sock.getsockname())
    sock.recvfrom(100)


@pytest.mark.parametrize("load", [poll_and_set, bind_and_close, send_and_receive])
def test_calls_in_the_child_end_whatever_the_parent_was_at(
    new_socket: NewSocket, load: Callable[[urds.Socket, urds.Socket], None]
) -> None:
    pairs = [(new_socket(1), new_socket(2)) for _ in range(3)]
    is_over = threading.Event()

    def work(sock: urds.Socket, peer: urds.Socket) -> None:
        while not is_over.is_set():
            load(sock, peer)

    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()

    def all_end_and_new_ones_work() -> bool:
        inherited = [ends(sock) for pair in pairs for sock in pair]
        with urds.Socket() as own:
            own.bind((host(3), 0))
            own.sendto(b"x", own.getsockname())
            return all(inherited) and own.recv(10) == b"x"

    try:
        codes = [code_of_child(all_end_and_new_ones_work) for _ in range(FORKS)]
    finally:
        is_over.set()
        for thread in threads:
            thread.join(CHILD_S)
    assert codes == [0] * FORKS


class Broken:
    """A backend that cannot be left to the parent."""

    def abandon_in_child(self) -> None:
        raise OSError(errno.EBADF, "on purpose")


def test_one_backend_that_cannot_be_left_keeps_no_other(new_socket: NewSocket) -> None:
    """They come in any order: with 20 beside one, some come first."""
    sock = new_socket(1)
    broken = [Broken() for _ in range(20)]
    process.alive.update(broken)
    try:
        assert code_of_child(lambda: ends(sock)) == 0
    finally:
        process.alive.difference_update(broken)


@pytest.mark.each_carrier(False)
def test_a_backend_whose_driver_has_ended_is_not_left_to_children() -> None:
    """They would close its descriptors, whose numbers are others' by then."""
    with backend_with() as ended, urds.Socket() as sock:
        sock.bind((host(1), 0))
        ended._driver.close(0)
    assert ended not in process.alive


@pytest.mark.parametrize("waits", [False, True], ids=["no thread waits", "a thread waits"])
def test_the_child_rings_no_doorbell_of_the_parent(new_socket: NewSocket, waits: bool) -> None:
    """Its numbers stand for other descriptors by then."""
    sock = new_socket(1)
    received: list[bytes] = []
    thread = threading.Thread(target=lambda: received.append(sock.recv(10)))
    if waits:
        thread.start()
        time.sleep(0.1)  # it sleeps, leading

    def change_a_setting() -> bool:
        others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(20)]
        sock.settimeout(1)
        written = []
        for descriptor in others:
            try:
                written.append(os.eventfd_read(descriptor))
            except BlockingIOError:
                continue
        return not written

    assert code_of_child(change_a_setting) == 0
    if waits:
        sock.sendto(b"x", sock.getsockname())
        thread.join(CHILD_S)
        assert received == [b"x"]
