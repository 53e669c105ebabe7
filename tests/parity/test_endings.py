"""Closing mailboxes and planes, and forks: all threads leave, nothing shared is touched."""

import errno
import gc
import os
import select
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable

import pytest

from tests.parity.planes import LOCAL, PEER, PEER_PORT, RealWorld, World
from tests.support.planes import name_of
from tests.support.waiting import BUSY_S, wait_until
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import Plane, SocketAddress

ADDRESS = (str(PEER), PEER_PORT)


class TestVirtual:
    """With a clock of the caller's nothing ever waits."""

    def test_a_blocking_call_gives_up_at_once(self, world: World) -> None:
        mailbox = world.mailbox(send_bytes_max=10)
        assert mailbox.receive(wait_ns=None) is None
        mailbox.sendto(bytes(10), ADDRESS)
        with pytest.raises(BlockingIOError):
            mailbox.send([b"x"], ADDRESS, wait_ns=None)

    def test_close_tells_what_is_left(self, world: World) -> None:
        mailbox = world.mailbox()
        world.attach()
        mailbox.sendto(b"1", ADDRESS)
        mailbox.sendto(b"2", ADDRESS)
        assert world.plane.close(1_000_000_000) == 2
        assert world.plane.close(0) == 0
        with pytest.raises(OSError) as refused:
            mailbox.sendto(b"3", ADDRESS)
        assert refused.value.errno == errno.EBADF


class TestEndOfProcess:
    def test_streams_end_and_a_call_that_waits_goes_on_waiting(self, real: RealWorld) -> None:
        mailbox = real.mailbox()
        taken: list[tuple[bytes, SocketAddress]] = []
        thread = threading.Thread(target=lambda: taken.append(mailbox.recvfrom(10)))
        thread.start()
        real.plane.end_streams()
        assert real.path.detach() is None
        thread.join(0.05)
        assert thread.is_alive()
        mailbox.route(LOCAL, real.plane.loop(local=LOCAL, peer=LOCAL))
        mailbox.sendto(b"x", (str(LOCAL), mailbox.port))
        thread.join(BUSY_S)
        assert taken == [(b"x", (str(LOCAL), mailbox.port))]


def answer_questions(real: RealWorld) -> threading.Thread:
    """Be a peer that acknowledges the first message when asked to, and not before."""

    def answer() -> None:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            if any(one.header.flags & HeaderFlag.ACK_REQUIRED for one in real.remote.frames()):
                real.acknowledge(1)
                return
            time.sleep(0.001)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


class TestLinger:
    """SO_LINGER at a mailbox, a drain at a plane: both wait for acknowledgements, both end."""

    def test_a_mailbox_waits_until_all_is_acknowledged(self, real: RealWorld) -> None:
        mailbox = real.mailbox()
        mailbox.sendto(b"x", ADDRESS)
        timer = threading.Timer(0.05, real.acknowledge, [1])
        timer.start()
        began = time.monotonic()
        mailbox.close(60_000_000_000)
        assert 0.04 < time.monotonic() - began < BUSY_S
        assert real.plane.snapshot().counters["send_cancelled"] == 0

    def test_a_mailbox_that_lingers_asks(self, real: RealWorld) -> None:
        mailbox = real.mailbox()
        mailbox.sendto(b"x", ADDRESS)
        answering = answer_questions(real)
        mailbox.close(60_000_000_000)
        answering.join()
        assert real.plane.snapshot().counters["send_cancelled"] == 0

    def test_a_mailbox_asks_without_a_wait_too(self, real: RealWorld) -> None:
        mailbox = real.mailbox()
        mailbox.request_acks()  # of nothing
        mailbox.sendto(b"x", ADDRESS)
        answering = answer_questions(real)
        mailbox.request_acks()
        answering.join()
        wait_until(lambda: mailbox.unacknowledged() == 0)

    def test_a_plane_that_drains_asks(self, real: RealWorld) -> None:
        real.mailbox().sendto(b"x", ADDRESS)
        answering = answer_questions(real)
        assert real.plane.close(60_000_000_000) == 0
        answering.join()

    def test_it_gives_up_when_its_time_is_over(self, real: RealWorld) -> None:
        mailbox = real.mailbox()
        mailbox.sendto(b"x", ADDRESS)
        began = time.monotonic()
        mailbox.close(50_000_000)
        assert 0.04 < time.monotonic() - began < BUSY_S
        assert real.plane.snapshot().counters["send_cancelled"] == 1

    def test_a_plane_drains(self, real: RealWorld) -> None:
        mailbox = real.mailbox()
        for _ in range(3):
            mailbox.sendto(b"x", ADDRESS)  # the last one is a tail
        timer = threading.Timer(0.05, real.acknowledge, [3])
        timer.start()
        assert real.plane.close(60_000_000_000) == 0
        assert [frame.payload for frame in real.remote.messages()] == [b"x"] * 3
        assert real.remote.ended()

    def test_a_plane_that_cannot_drain_says_how_much_is_left(self, real: RealWorld) -> None:
        mailbox = real.mailbox()
        mailbox.sendto(b"x", ADDRESS)
        began = time.monotonic()
        assert real.plane.close(50_000_000) == 1
        assert time.monotonic() - began < BUSY_S

    def test_a_message_whose_connection_broke_is_left_as_well(self, real: RealWorld) -> None:
        """It was handed over, which says nothing about its arrival: a drain waits for the next."""
        real.mailbox().sendto(b"x", ADDRESS)
        real.path.detach()
        assert real.plane.close(50_000_000) == 1

    def test_waiting_threads_get_ebadf(self, real: RealWorld) -> None:
        boxes = [real.mailbox(port) for port in (1, 2, 3)]
        codes: list[int | None] = []

        def receive(box: object) -> None:
            try:
                box.receive(wait_ns=None)
            except OSError as failure:
                codes.append(failure.errno)

        threads = [threading.Thread(target=receive, args=[box]) for box in boxes]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        boxes[0].close()
        threads[0].join(BUSY_S)
        assert codes == [errno.EBADF]
        real.plane.close(0)
        for thread in threads:
            thread.join(BUSY_S)
        assert codes == [errno.EBADF] * 3


CHILD = """
import errno, os, select, socket, sys, threading
from tests.parity.planes import LOCAL, PEER, PEER_PORT, Remote
from tests.support.planes import PLANES
from urds.rds.plane.contract import Hold, Limits, MailboxSettings

plane = PLANES[{name!r}](limits=Limits(), resolve=lambda box, peer: box.route(peer, path))
path = plane.path(local=LOCAL, peer=PEER, index=0, sequence_first=1)
remote = Remote()
path.attach(remote.stream, hold=Hold.NOTHING)
mailbox = plane.mailbox(local=LOCAL, port=5000, settings=MailboxSettings())
descriptor = mailbox.fileno()
waiting = plane.mailbox(local=LOCAL, port=5001, settings=MailboxSettings())
received = []
receive = lambda: received.append(waiting.receive(wait_ns=None))
thread = threading.Thread(target=receive, daemon=True)
thread.start()
mailbox.sendto(b"before", (str(PEER), PEER_PORT))
plane.state.lock.acquire() if {locked} else None
child = os.fork()
if not child:
    plane.abandon_in_child()
    for call in (
        lambda: mailbox.sendto(b"x", (str(PEER), PEER_PORT)),
        lambda: mailbox.recvfrom(10),
        lambda: waiting.receive(wait_ns=None),
        mailbox.fileno,
    ):
        try:
            call()
        except OSError as failure:
            if failure.errno != errno.EBADF or "fork" not in str(failure):
                os._exit(2)
        else:
            os._exit(3)
    mailbox.close()
    plane.close(0)
    try:
        os.fstat(descriptor)
    except OSError:
        os._exit(0)
    os._exit(4)
plane.state.lock.release() if {locked} else None
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
mailbox.sendto(b"after", (str(PEER), PEER_PORT))
remote.say(1, b"hello", target_port=5001)
thread.join(5)
assert received and received[0].payload == b"hello", "the parent is deaf"
seen = [frame.payload for frame in remote.messages()]
assert seen == [b"before", b"after"], seen
plane.close(0)
print("parent and child agree")
"""


LOCKED = pytest.param(True, id="locked by another thread", marks=pytest.mark.reference)


@pytest.mark.parametrize("locked", [pytest.param(False, id="free"), LOCKED])
def test_the_child_of_a_fork_leaves_everything_to_the_parent(
    make_plane: Callable[..., Plane], locked: bool
) -> None:
    """EBADF with a clear text in the child; the parent reads and writes on as before."""
    program = CHILD.format(name=name_of(make_plane), locked=locked)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(program),
        ],
        capture_output=True,
        text=True,
        timeout=20,
        env={**os.environ, "PYTHONPATH": "src:."},
        check=False,
    )
    assert done.stdout == "parent and child agree\n", done.stderr


def open_descriptors() -> set[int]:
    """Return what is open and lasts: not the descriptor that lists the folder."""
    names = os.listdir("/proc/self/fd")
    return {int(name) for name in names if os.path.exists(f"/proc/self/fd/{name}")}


def test_descriptors_are_closed_on_exec_and_with_the_plane(
    make_plane: Callable[..., Plane],
) -> None:
    gc.collect()  # what earlier tests left must not be closed in between
    before = open_descriptors()
    real = RealWorld(make_plane)
    mailbox = real.mailbox()
    mailbox.fileno()
    made = open_descriptors() - before
    assert made and not any(os.get_inheritable(descriptor) for descriptor in made)
    real.close()
    mailbox.close()
    real.plane.release()
    assert open_descriptors() == before


def test_closing_a_plane_wakes_who_polls(real: RealWorld) -> None:
    mailbox = real.mailbox()
    poll = select.poll()
    poll.register(mailbox.fileno(), select.POLLIN)
    assert poll.poll(0) == []
    real.plane.close(0)
    assert poll.poll(0)
    with pytest.raises(OSError) as refused:
        mailbox.recvfrom(1)
    assert refused.value.errno == errno.EBADF
