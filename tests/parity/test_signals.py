"""Signals while a call waits: a handler that raises ends it, any other leaves it waiting (PEP 475).

The signal comes when the thread sleeps, on the descriptors of all paths or for its own turn.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.parity.planes import PEER, PEER_PORT, PORT, RealWorld
from tests.support.waiting import BUSY_S
from urds.rds.plane.contract import Mailbox, Plane

ADDRESS = (str(PEER), PEER_PORT)
SIGNAL = signal.SIGUSR1
SOON_S, LATER_S = 0.05, 0.15  # the signal; what ends a wait that goes on
BYTES_MAX = 1000
S = 1_000_000_000


class Interrupted(Exception):
    """What the handler raises."""


@pytest.fixture
def real(make_plane: Callable[..., Plane]) -> Iterator[RealWorld]:
    """Return a world whose stream a plane reads without Python."""
    made = RealWorld(make_plane, tcp=True)
    yield made
    made.close()


@pytest.fixture
def caught() -> Iterator[list[bool]]:
    """Return a list: what is in it when the signal comes says whether its handler raises."""
    raises: list[bool] = []

    def handle(*_: object) -> None:
        if raises.pop():
            raise Interrupted

    before = signal.signal(SIGNAL, handle)
    yield raises
    signal.signal(SIGNAL, before)


def send_signal(delay_s: float = SOON_S) -> threading.Timer:
    """Have this thread get the signal."""
    timer = threading.Timer(delay_s, signal.pthread_kill, [threading.get_ident(), SIGNAL])
    timer.start()
    return timer


def receive(mailbox: Mailbox) -> object:
    return mailbox.recvfrom(10)


def receive_all_about_it(mailbox: Mailbox) -> object:
    return mailbox.receive(wait_ns=None)


def send(mailbox: Mailbox) -> object:
    return mailbox.sendto(b"more", ADDRESS)


def send_all_about_it(mailbox: Mailbox) -> object:
    return mailbox.send([b"more"], ADDRESS, wait_ns=None)


def close(mailbox: Mailbox) -> object:
    return mailbox.close(60 * S)


RECEIVES = [receive, receive_all_about_it]
WAITS = [*RECEIVES, send, send_all_about_it, close]


def full(real: RealWorld) -> Mailbox:
    """Return a mailbox whose account is full."""
    mailbox = real.mailbox(send_bytes_max=BYTES_MAX)
    mailbox.sendto(bytes(BYTES_MAX), ADDRESS)
    return mailbox


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("led", [False, True], ids=["leader", "follower"])
def test_a_handler_that_raises_ends_the_wait(
    real: RealWorld, caught: list[bool], wait: Callable[[Mailbox], object], led: bool
) -> None:
    other = real.mailbox(PORT + 1)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(other.recvfrom(10)[0]), daemon=True)
    if led:
        reader.start()
        time.sleep(SOON_S)
    mailbox = full(real)
    caught.append(True)
    send_signal()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        wait(mailbox)
    assert time.monotonic() - began < BUSY_S
    # Nothing stays locked, and no thread that left is waited for.
    if not led:
        reader.start()
        time.sleep(SOON_S)
    real.remote.say(1, b"there", target_port=PORT + 1)
    reader.join(2)
    assert got == [b"there"]
    mailbox.close(0)


@pytest.mark.parametrize("wait", RECEIVES)
def test_any_other_handler_leaves_a_receiver_waiting(
    real: RealWorld, caught: list[bool], wait: Callable[[Mailbox], object]
) -> None:
    mailbox = real.mailbox()
    caught.append(False)
    send_signal()
    threading.Timer(LATER_S, real.remote.say, [1, b"there"]).start()
    assert wait(mailbox)[0] == b"there"
    assert not caught


@pytest.mark.parametrize("wait", [send, send_all_about_it])
def test_any_other_handler_leaves_a_sender_waiting(
    real: RealWorld, caught: list[bool], wait: Callable[[Mailbox], object]
) -> None:
    mailbox = full(real)
    caught.append(False)
    send_signal()
    threading.Timer(LATER_S, real.acknowledge, [1]).start()
    assert wait(mailbox) == len(b"more")
    assert not caught


def test_the_time_of_a_wait_is_not_begun_anew(real: RealWorld, caught: list[bool]) -> None:
    mailbox = real.mailbox()
    waiter, over = threading.get_ident(), threading.Event()

    def go_on() -> None:
        while not over.wait(SOON_S):
            caught.append(False)
            signal.pthread_kill(waiter, SIGNAL)

    sender = threading.Thread(target=go_on)
    sender.start()
    began = time.monotonic()
    assert mailbox.receive(wait_ns=round(4 * SOON_S * S)) is None
    over.set()
    sender.join()
    assert 4 * SOON_S <= time.monotonic() - began < BUSY_S


def test_a_thread_that_helps_never_lets_in_a_signal_it_kept_out(real: RealWorld) -> None:
    """It would take one that is on its way to the main thread, whose call would then go on."""
    tasks: list[int] = []
    last: list[set[signal.Signals]] = []
    seen = threading.Event()

    def help_out() -> None:
        tasks.append(threading.get_native_id())
        real.plane.help(time.monotonic_ns() + S // 5)
        last.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        seen.wait(BUSY_S)  # a thread that ends has all signals kept out, by the C library

    thread = threading.Thread(target=help_out)
    thread.start()
    kept_out: set[signal.Signals] = set()
    while not last:
        if tasks:
            kept_out |= blocked_in(tasks[0])
    seen.set()
    thread.join()
    assert kept_out <= last[0]
    assert not last[0] & {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT}, "what it causes itself"


def blocked_in(task: int) -> set[signal.Signals]:
    """Return the signals that a thread of this process blocks now."""
    try:
        text = Path(f"/proc/self/task/{task}/status").read_text()
    except OSError:  # it has ended
        return set()
    mask = int(text.split("SigBlk:")[1].split()[0], 16)
    return {one for one in signal.Signals if mask >> one - 1 & 1}
