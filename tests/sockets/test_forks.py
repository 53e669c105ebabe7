"""A fork at a bad moment: the child's calls end, and write to nothing that is not theirs."""

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from tests.sockets.conftest import NewSocket
from urds.backend.inprocess import InProcess

pytestmark = pytest.mark.carried("shm0")

CHILD_S = 5


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


def test_closing_in_the_child_waits_for_no_lock_of_the_parent(
    backend: InProcess, new_socket: NewSocket
) -> None:
    sock = new_socket(1)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with backend._driver.lock:
            held.set()
            done.wait(CHILD_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(CHILD_S)

    def close() -> bool:
        sock.close()
        return True

    try:
        assert code_of_child(close) == 0
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("waits", [False, True], ids=["nobody waits", "a thread waits"])
def test_the_child_rings_no_bell_of_the_parent(new_socket: NewSocket, waits: bool) -> None:
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
