"""What a signal handler or finaliser may do to sockets inside another call of its thread.

It may close, forget, ask for the descriptor and set options, at every point of every call. Sending
and receiving work there or are refused at once with EDEADLK; nothing ever waits for itself.
`TEST_REENTRIES` says how often the storm's handlers and finalisers run, in each of its programs.
"""

import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import pytest

import urds
from tests.parity.planes import PEER, PEER_PORT, PORT, World, take
from tests.rds.sockets.conftest import NewSocket
from tests.rds.sockets.hosts import host
from tests.rds.sockets.interrupting import Interruption
from tests.support.planes import chosen, in_use
from tests.support.waiting import BUSY_S, ENDLESS_S, wait_until
from urds.rds.constants import SOL_RDS, InfoOpt
from urds.rds.plane.choose import PYTHON
from urds.rds.plane.contract import (
    Mailbox,
    MailboxSettings,
)
from urds.rds.plane.python.plane import Plane as ReferencePlane
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.process import process
from urds.rds.types import AckMode

LATE_S = 5.0
TARGET = (str(PEER), PEER_PORT)
REENTRIES = int(os.environ.get("TEST_REENTRIES", "2000"))


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """End a test that hangs: the lock that a thread waits for lets signal handlers in."""

    def end(*_: object) -> None:
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(100)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class Scene:
    """Two sockets that talk, and three that a handler finds."""

    def __init__(self, new_socket: NewSocket) -> None:
        self.here, self.there = new_socket(1), new_socket(2)
        self.to_close, self.polled = new_socket(3), new_socket(3)
        self.forgotten = urds.Socket()
        self.forgotten.bind((host(3), 0))
        self.ports = [one.getsockname()[1] for one in (self.to_close, self.forgotten)]
        self.to_bind = new_socket()
        self.descriptor = -1
        for one in (self.here, self.there):
            one.settimeout(LATE_S)

    def handle(self, _: object) -> None:
        self.to_close.close()
        self.descriptor = self.polled.fileno()
        self.here.settimeout(LATE_S + 1)
        self.polled.setsockopt(SOL_RDS, urds.RDS_CONG_MONITOR, 1)
        self.to_bind.settimeout(1)
        self.to_bind.fileno()
        del self.forgotten

    def check(self, new_socket: NewSocket, backend: InProcess) -> None:
        for port in self.ports:
            new_socket(3, port).close()
        mailbox = self.polled.mailbox
        wait_until(lambda: mailbox.settings.monitor)
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        assert not poll.poll(0)
        self.here.sendto(b"polled", self.polled.getsockname())
        assert poll.poll(LATE_S * 1000)
        assert self.polled.recv(10) == b"polled"
        assert not poll.poll(0)
        self.here.sendto(b"last", self.there.getsockname())
        assert self.there.recv(10) == b"last"


def send(scene: Scene) -> Callable[[], object]:
    return lambda: [scene.here.sendto(b"one", scene.there.getsockname()), scene.there.recv(10)]


def receive(scene: Scene) -> Callable[[], object]:
    scene.here.sendto(b"one", scene.there.getsockname())
    return lambda: scene.there.recv(10)


def receive_polled(scene: Scene) -> Callable[[], object]:
    scene.there.fileno()
    return receive(scene)


def poll_and_wait(scene: Scene) -> Callable[[], object]:
    scene.there.settimeout(0.001)

    def wait() -> None:
        with pytest.raises(TimeoutError):
            scene.there.recv(10)

    return wait


def bind(scene: Scene) -> Callable[[], object]:
    return lambda: scene.to_bind.bind((host(4), 0))


def close(scene: Scene) -> Callable[[], object]:
    return scene.to_bind.close


def descriptor(scene: Scene) -> Callable[[], object]:
    return lambda: [scene.polled.fileno(), scene.there.fileno()]


def options(scene: Scene) -> Callable[[], object]:
    return lambda: [
        scene.here.settimeout(LATE_S),
        scene.polled.setsockopt(SOL_RDS, urds.RDS_RECVERR, 1),
    ]


def information(scene: Scene) -> Callable[[], object]:
    return lambda: scene.here.getsockopt(SOL_RDS, InfoOpt.SOCKETS, 1 << 16)


CALLS = [
    *(send, receive, receive_polled, poll_and_wait, bind, close, descriptor, options),
    information,
]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("call", CALLS)
def test_a_handler_may_close_poll_forget_and_set_options_anywhere(
    new_socket: NewSocket, backend: InProcess, call: Callable[[Scene], Callable[[], object]]
) -> None:
    for at in count(1):
        scene = Scene(new_socket)
        run = call(scene)
        with Interruption(at, scene.handle) as interruption:
            run()
        if not interruption.fired:
            break
        try:
            scene.check(new_socket, backend)
        except BaseException:
            print(f"handled at {at}: {interruption.positions}")
            raise
        finally:
            for one in (scene.here, scene.there, scene.to_close, scene.polled, scene.to_bind):
                one.close()
    assert at > 1
    assert not backend._driver.stats.control_faults


def attempt(sock: urds.Socket, target: object, seen: set[int], _: object) -> None:
    """Send and receive; note with what errors."""
    for one in (lambda: sock.sendto(b"nested", target), lambda: sock.recv(10, urds.MSG_DONTWAIT)):
        try:
            one()
        except OSError as refused:
            seen.add(refused.errno or 0)


@pytest.mark.parametrize("call", CALLS)
def test_a_handler_that_sends_and_receives_succeeds_or_is_refused_at_once(
    new_socket: NewSocket, backend: InProcess, call: Callable[[Scene], Callable[[], object]]
) -> None:
    """The compiled plane never has its lock while Python runs; the control lock is Python's."""
    seen: set[int] = set()
    for at in count(1):
        scene = Scene(new_socket)
        run = call(scene)
        target = scene.here.getsockname()
        with Interruption(at, partial(attempt, scene.polled, target, seen)) as interruption:
            run()
        for one in vars(scene).values():
            if isinstance(one, urds.Socket):
                one.close()
        if not interruption.fired:
            break
    assert seen <= {errno.EAGAIN, errno.EDEADLK}
    if in_use() == PYTHON:
        assert errno.EDEADLK in seen or call is close
    assert not backend._driver.stats.control_faults


@pytest.mark.parametrize("nested", ["receive", "close"])
def test_a_handler_inside_a_wait_never_waits_for_its_own_thread(
    new_socket: NewSocket, nested: str
) -> None:
    """A receive of it is refused, or waits in its own right; a lingering close does not wait."""
    outer, inner, other = new_socket(1), new_socket(1), new_socket(2)
    outer.settimeout(0.5)
    inner.settimeout(0.05)
    refused: list[OSError] = []
    took_s: list[float] = []
    waits = nested == "close" and in_use() != PYTHON  # as a wait of its own, too
    linger = struct.pack("ii", 1, 1 if waits else round(ENDLESS_S))

    def handle(*_: object) -> None:
        start = time.monotonic()
        try:
            if nested == "receive":
                inner.recv(10)
            else:
                inner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                inner.close()
        except OSError as failure:
            refused.append(failure)
        took_s.append(time.monotonic() - start)

    port = inner.getsockname()[1]
    inner.sendto(b"to an absent peer", (host(99), 4000))
    signal.signal(signal.SIGUSR2, handle)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGUSR2])
    timer.start()
    with pytest.raises(TimeoutError):
        outer.recv(10)
    timer.join()
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    if nested == "receive":
        expected = errno.EDEADLK if in_use() == PYTHON else errno.ETIMEDOUT
        assert [one.errno for one in refused] == [expected]
    else:
        assert not refused
        new_socket(1, port).close()
    assert len(took_s) == 1
    assert took_s[0] < BUSY_S
    other.sendto(b"on", outer.getsockname())
    assert outer.recv(10) == b"on"


@pytest.mark.reference
@pytest.mark.parametrize("call", ["send", "send alone", "receive", "progress"])
def test_a_handler_may_do_so_within_the_way_of_a_message_over_a_stream(call: str) -> None:
    for at in count(1):
        world = World(ReferencePlane)
        mailbox, other, polled = world.mailbox(), world.mailbox(PORT + 1), world.mailbox(PORT + 2)
        ack_mode = AckMode.PEER_ACKNOWLEDGED if call == "send alone" else AckMode.NOT_YET
        remote = world.attach(ack_mode=ack_mode)
        mailbox.sendto(b"route", TARGET)
        other.sendto(b"route", TARGET)
        remote.say(1, b"first", ack=2)
        world.turn()
        assert mailbox.recvfrom(10)[0] == b"first"
        if call not in {"send", "send alone"}:
            remote.say(2, b"second")
        if call == "receive":
            world.plane.progress()
        refused: list[int | None] = []

        def handle(
            _: object,
            mailbox: Mailbox = mailbox,
            other: Mailbox = other,
            polled: Mailbox = polled,
            refused: list[int | None] = refused,
        ) -> None:
            polled.fileno()
            polled.configure(MailboxSettings(monitor=True))
            for sender in (mailbox, other):
                try:
                    sender.sendto(b"nested", TARGET)
                except OSError as failure:
                    refused.append(failure.errno)
            if not polled._state.holds_lock():
                other.close()

        with Interruption(at, handle) as interruption:
            if call == "progress":
                world.plane.progress()
            elif call == "receive":
                assert mailbox.recvfrom(10)[0] == b"second"
            else:
                mailbox.sendto(b"sent", TARGET)
        if not interruption.fired:
            break
        world.turn(1)
        assert polled.settings.monitor
        payloads = [frame.payload for frame in remote.messages()]
        if call in {"send", "send alone"}:
            assert payloads.count(b"sent") == 1, interruption.positions
        assert payloads.count(b"nested") == 2 - len(refused), interruption.positions
        assert set(refused) <= {errno.EDEADLK}
        if call == "progress":
            assert take(mailbox) == [b"second"]
        poll = select.poll()
        poll.register(polled.fileno(), select.POLLIN)
        assert not poll.poll(0)
        remote.say(2 if call in {"send", "send alone"} else 3, b"seen", target_port=PORT + 2)
        world.turn(1)
        assert poll.poll(0), interruption.positions
        assert take(polled) == [b"seen"]
        world.turn(1)
        assert not poll.poll(0), interruption.positions
        world.close()
    assert at > 5


@pytest.mark.parametrize("step", [1, 2])
def test_a_handler_makes_sockets_during_the_first_bind(step: int) -> None:
    """To bind them there is refused as long as there is nothing to bind them to."""
    looks = 0
    for at in count(1, 23):  # of some thousand
        before = process.use(None)
        made: list[urds.Socket] = []
        refused: list[int | None] = []

        def handle(
            _: object, made: list[urds.Socket] = made, refused: list[int | None] = refused
        ) -> None:
            made.append(urds.Socket())
            made[-1].fileno()
            if step == 1:
                return
            try:
                made[-1].bind((host(2), 0))
            except OSError as failure:
                refused.append(failure.errno)

        try:
            with urds.Socket() as sock:
                with Interruption(at, handle) as interruption:
                    sock.bind((host(1), 0))
                sock.sendto(b"on", sock.getsockname())
                assert sock.recv(10, urds.MSG_DONTWAIT) == b"on"
        finally:
            for one in made:
                one.close()
            backend = process.use(before)
            assert isinstance(backend, InProcess)
            backend.close()
        assert set(refused) <= {errno.EDEADLK}
        if not interruption.fired:
            break
        looks += 1
    assert looks > 2


STORM = """
import gc, os, signal, socket, sys, threading, warnings
import urds
from tests.rds.sockets.hosts import host

warnings.simplefilter("ignore")
here, there, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
main = urds.Socket()
main.bind((here, 4000))
main.settimeout(20)
count = 0

def use(sock):
    global count
    count += 1
    sock.fileno()
    sock.settimeout(count % 7)
    sock.setsockopt(urds.SOL_RDS, urds.RDS_CONG_MONITOR, count % 2)
    main.settimeout(20 + count % 3)
    sock.close()

class Owner:
    def __init__(self):
        self.sock, self.itself = made(), self

    def __del__(self):
        use(self.sock)

def made():
    sock = urds.Socket()
    sock.bind((here, 0))
    return sock

spare = [made() for _ in range(8)]

def handle(*_):
    if spare:
        use(spare.pop())

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
gc.set_threshold(50, 1, 1)
round = 0
while True:
    round += 1
    over = count >= wanted
    main.sendto(b"%d" % over + bytes(60), (there, 4000))
    over &= main.recv(100)[:1] == b"1"
    if over:
        break
    Owner()
    made()  # forgotten
    while len(spare) < 4:
        spare.append(made())
print("through", flush=True)
os._exit(0)
"""


def test_a_storm_of_handlers_and_finalisers_between_two_processes() -> None:
    hosts = [host(1), host(2)]
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", STORM, *pair, str(REENTRIES)],
            env=os.environ | chosen(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for pair in (hosts, hosts[::-1])
    ]
    try:
        ends = [one.communicate(timeout=30 + REENTRIES / 50) for one in programs]
    finally:
        for one in programs:
            one.kill()
            one.wait()
    assert [(out, errors) for out, errors in ends] == [("through\n", "")] * 2


FIRST_USE = """
import signal, sys
import urds

found = []

def use(*_):
    try:
        found.append(urds.Socket)
    except OSError as refused:
        found.append(refused.errno)
    except Exception as failure:
        found.append(repr(failure))

signal.signal(signal.SIGUSR1, use)

class Raising:
    # An import looks for each module here first: the handler runs in the midst of the first one.
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGUSR1)

sys.meta_path.insert(0, Raising())
first = urds.Socket
print(*found)
assert urds.Socket is first
use()
assert found[-1] is first
"""


@pytest.mark.parametrize("module", ["urds.rds.options", "urds.rds.runtime.process"])
def test_a_first_use_of_urds_inside_another_one_is_refused(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE, module],
        check=True, capture_output=True, text=True, timeout=BUSY_S,
    )  # fmt: skip
    assert done.stdout.split() == [str(errno.EDEADLK)]
