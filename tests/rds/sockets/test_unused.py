"""A process whose last socket is closed: its control thread ends, and the next bind begins anew.

By hand, `TEST_UNUSED_ROUNDS=10000` races so many binds of each thread against that end; the suite
races 100.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import urds
from tests.rds.sockets.conftest import backend_with, has_thread
from tests.rds.sockets.hosts import host
from tests.support.waiting import wait_until
from urds.rds.runtime.backend import Mailbox
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.process import process

WAIT_S = 10.0
ROUNDS = int(os.environ.get("TEST_UNUSED_ROUNDS", "100"))


def test_a_fork_while_it_ends_closes_the_copies(
    backend: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its listeners are closed the child of a fork has to know of them."""
    known: list[bool] = []

    def end(really_end: Callable[[], None] = backend._driver.end) -> None:
        known.append(backend in process.alive)
        really_end()

    monkeypatch.setattr(backend._driver, "end", end)
    with urds.Socket() as sock:
        sock.bind((host(1), 0))
    assert backend.end_if_unused()
    assert known == [True]
    assert backend not in process.alive


def exchange() -> None:
    """Bind two sockets, carry a message from one to the other, close them."""
    with urds.Socket() as here, urds.Socket() as there:
        here.bind((host(1), 0))
        there.bind((host(2), 0))
        here.settimeout(WAIT_S)
        there.sendto(b"x", here.getsockname())
        assert here.recv(10) == b"x"


def test_the_thread_ends_with_all_it_had_and_starts_again(
    own_process: Callable[..., None],
) -> None:
    own_process(idle_s=0.05)
    wait_until(lambda: not has_thread())  # of tests before this one
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        exchange()
        assert has_thread()
        wait_until(lambda: not has_thread())
        wait_until(lambda most=descriptors: len(os.listdir("/proc/self/fd")) <= most)
        descriptors = len(os.listdir("/proc/self/fd"))  # without what tests before this one had


def test_it_stays_while_there_is_a_socket_and_for_a_while_after(
    own_process: Callable[..., None],
) -> None:
    own_process(idle_s=0.2)
    exchange()
    thread = next(one for one in threading.enumerate() if one.name == "urds-driver")
    with urds.Socket() as here:
        here.bind((host(1), 0))
        thread.join(0.5)
        assert thread.is_alive()
        closing_s = time.monotonic()
    thread.join(WAIT_S)
    assert time.monotonic() - closing_s >= 0.2


def test_no_bind_is_lost_to_its_end(own_process: Callable[..., None]) -> None:
    own_process(idle_s=0)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_number in range(ROUNDS):
                with urds.Socket() as sock:
                    sock.bind((host(number), 0))
                    sock.settimeout(WAIT_S)
                    sock.sendto(b"x", sock.getsockname())
                    assert sock.recv(10) == b"x"
                time.sleep(round_number % 7 / 5000)
        except BaseException as failure:
            failures.append(failure)
            raise

    threads = [threading.Thread(target=work, args=[number]) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    wait_until(lambda: not has_thread())


def test_a_bind_that_is_late_for_one_thread_starts_another(
    own_process: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_process(idle_s=0.05)
    ending = process.backend()
    bind = ending.bind

    def bind_when_ended(**wanted: Any) -> Mailbox:
        wait_until(lambda: ending not in process.alive)
        return bind(**wanted)

    monkeypatch.setattr(ending, "bind", bind_when_ended)
    exchange()
    assert process.backend() is not ending


def test_it_stays_until_what_a_closed_socket_sent_has_arrived(
    own_process: Callable[..., None],
) -> None:
    own_process(idle_s=0, linger_s=WAIT_S)
    with urds.Socket() as sender:
        sender.bind((host(1), 0))
        sender.sendto(b"late", (host(2), 4000))  # no host is there yet
    ours = process.backend()
    time.sleep(0.3)
    with backend_with(), urds.Socket() as receiver:  # as another process would
        receiver.bind((host(2), 4000))
        process.use(ours)  # it may end now
        receiver.settimeout(WAIT_S)
        assert receiver.recv(10) == b"late"
        wait_until(lambda: ours not in process.alive)


SINGLE = """
import os, time, urds
from tests.rds.sockets.hosts import host

with urds.Socket() as sock:
    sock.bind((host(1), 0))
while len(os.listdir("/proc/self/task")) > 1:
    time.sleep(0.01)
child = os.fork()  # since CPython 3.12 a warning where there are threads
if not child:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_fork_finds_no_thread_after_that_time() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SINGLE],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
