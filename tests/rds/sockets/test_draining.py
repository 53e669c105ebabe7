"""`urds.drain` and `Socket.unacknowledged`: who has to know that its messages have arrived."""

from __future__ import annotations

import math
import signal
import threading
import time

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from tests.rds.sockets.test_undelivered import SOON, receiver
from tests.support.children import Child
from tests.support.waiting import BUSY_S, ENDLESS_S
from urds.rds.runtime.process import process

pytestmark = pytest.mark.each_carrier("shm0")

WAIT_S = BUSY_S
PORT = 4000


def test_everything_is_acknowledged_in_the_end() -> None:
    with receiver(2) as met, backend_with(**SOON), urds.Socket() as sock:
        assert sock.unacknowledged == 0
        sock.bind((host(1), PORT))
        assert (sock.unacknowledged, urds.drain(0)) == (0, 0)
        for number in range(100):
            sock.sendto(b"%d" % number, met.address)
        assert urds.drain(WAIT_S) == 0
        assert sock.unacknowledged == 0


def test_what_a_stopped_peer_has_not_acknowledged_is_left() -> None:
    with receiver(2) as met, backend_with(**SOON), urds.Socket() as sock, urds.Socket() as other:
        sock.bind((host(1), PORT))
        other.bind((host(1), PORT + 1))
        sock.sendto(b"one", met.address)
        assert urds.drain(math.inf) == 0
        met.stop()
        for text in (b"two", b"", b"four"):
            sock.sendto(text, met.address)
        other.sendto(b"five", met.address)
        began_s = time.monotonic()
        assert urds.drain(0.2) == 4
        assert 0.2 <= time.monotonic() - began_s < WAIT_S
        assert (sock.unacknowledged, other.unacknowledged) == (3, 1)
        other.close()
        assert urds.drain(0) == 4, "what a closed socket has left counts"
        met.go_on()
        assert urds.drain(WAIT_S) == 0
        assert sock.unacknowledged == 0
        with pytest.raises(OSError, match="Bad file descriptor"):
            _ = other.unacknowledged


def test_what_was_never_sent_counts() -> None:
    with backend_with(**SOON), urds.Socket() as sock:
        sock.bind((host(1), PORT))
        for _ in range(3):
            sock.sendto(b"nobody is there", (host(2), PORT))
        assert (urds.drain(0.05), sock.unacknowledged) == (3, 3)


@pytest.mark.each_carrier(False)
def test_a_process_without_sockets_has_nothing_to_drain() -> None:
    before = process.use(None)
    try:
        assert urds.drain(math.inf) == 0
    finally:
        process.use(before)


@pytest.mark.each_carrier(False)
@pytest.mark.parametrize(
    ("timeout_s", "wanted"), [(-1.0, "0 or more seconds"), (math.nan, "a number")]
)
def test_a_time_that_is_none_is_refused(timeout_s: float, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"timeout_s must be {wanted}, not {timeout_s}"):
        urds.drain(timeout_s)


@pytest.mark.each_carrier(False)
def test_a_signal_handler_ends_a_drain() -> None:
    """It runs within the wait, however long that is, and may raise."""

    class Enough(Exception):
        pass

    def enough(*_: object) -> None:
        raise Enough

    before = signal.signal(signal.SIGUSR1, enough)
    try:
        with backend_with(**SOON), urds.Socket() as sock:
            sock.bind((host(1), PORT))
            sock.sendto(b"nobody is there", (host(2), PORT))
            me = threading.get_ident()
            timer = threading.Timer(0.1, signal.pthread_kill, [me, signal.SIGUSR1])
            timer.start()
            with pytest.raises(Enough):
                urds.drain(math.inf)
            timer.join()
            assert sock.unacknowledged == 1
    finally:
        signal.signal(signal.SIGUSR1, before)


_SENDER = """
import signal, sys, time, urds
if sys.argv[3] == "handled":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
sock = urds.Socket()
sock.bind((sys.argv[1], 4000))
sock.sendto(b"queued", (sys.argv[2], 4000))
print("queued", flush=True)
while True:  # a signal between CPython's last look and one long sleep would wait for its end
    time.sleep(0.05)
"""


@pytest.mark.parametrize("handled", [True, False])
def test_a_handler_of_sigterm_lets_messages_leave(handled: bool) -> None:
    """As README and the differences say: without it the process ends at once, and its queue."""
    word = "handled" if handled else "not"
    # A receiver takes some seconds to begin beside other work.
    sender = Child(
        "-c", _SENDER, host(1), host(2), word, environ={"URDS_DRAIN_S": f"{ENDLESS_S:g}"}
    )
    try:
        assert sender.hear() == "queued"
        sender.process.terminate()
        if handled:
            time.sleep(0.1)  # the receiver comes while the sender drains
        else:
            assert sender.process.wait(WAIT_S) == -signal.SIGTERM
        with receiver(2) as late:
            if handled:
                late.expect("queued")
                assert sender.process.wait(WAIT_S) == 0
    finally:
        sender.kill()
