"""A signal that comes while a thread of the compiled plane is awake interrupts no sleep of it.

So the main thread asks for signals once, 50 ms after it began to wait or was awake. The Python
plane does not ask: the interpreter sees a signal between two of its instructions. A signal that
another thread took, or that came just before the main thread entered `epoll.poll`, interrupts no
call there either: CPython runs the handler when that call returns, late where nothing else comes.
"""

import _thread
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from tests.parity.planes import PORT, RealWorld
from tests.support import planes
from tests.support.waiting import BUSY_S

SIGNAL = signal.SIGUSR1
NATIVE = [parameter for parameter in planes.parameters() if "native" in str(parameter.id)]


class Interrupted(Exception):
    """What the handler raises."""


@pytest.fixture(params=NATIVE)
def real(request: pytest.FixtureRequest) -> Iterator[RealWorld]:
    """Return a world whose stream a plane reads without Python."""
    made = RealWorld(request.param, tcp=True)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Have the signal raise."""

    def handle(*_: object) -> None:
        raise Interrupted

    before = signal.signal(SIGNAL, handle)
    yield
    signal.signal(SIGNAL, before)


def trip(delay_s: float) -> None:
    """Mark the signal as come, as its C handler does; no system call is interrupted."""
    threading.Timer(delay_s, _thread.interrupt_main, [SIGNAL]).start()


def test_a_signal_at_the_beginning_of_a_wait_is_seen(real: RealWorld) -> None:
    began = time.monotonic()
    trip(0.01)
    with pytest.raises(Interrupted):
        real.mailbox().recvfrom(10)
    assert time.monotonic() - began < BUSY_S


def test_a_signal_while_the_leader_serves_others_is_seen(real: RealWorld) -> None:
    other = real.mailbox(PORT + 1)
    threading.Timer(0.3, real.remote.say, [1, b"other"], {"target_port": PORT + 1}).start()
    trip(0.31)
    with pytest.raises(Interrupted):
        real.mailbox().recvfrom(10)
    assert other.recvfrom(10)[0] == b"other"
