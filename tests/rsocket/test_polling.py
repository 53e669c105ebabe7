"""rpoll and rselect over devices: mixed sets, levels, time, threads, ends.

docs/reference/rsocket.md 19, case 11, and the table of section 13.
"""

import errno
import os
import select
import threading
import time
from functools import partial

import pytest

from tests.rsocket.polling_world import DEVICES, LATE_S, WAIT_S, World, drain, fill, world
from urds.rsocket import calls
from urds.rsocket.poll import rpoll, rselect
from urds.rsocket.repoll import Repoll

IN, OUT, HUP, ERR, NVAL = (
    *(select.POLLIN, select.POLLOUT, select.POLLHUP, select.POLLERR, select.POLLNVAL),
)
MS = 1000


@pytest.fixture(params=DEVICES)
def here(request):
    with world(request.param) as made:
        yield made


@pytest.fixture(params=["rsockets", "mixed"])
def beside(request, here: World):
    """Return an ordinary descriptor that never gets ready, or nothing: two ways to sleep."""
    return [(here.pipe()[0], IN)] if request.param == "mixed" else []


def test_bytes_make_readable_until_they_are_taken(here: World, beside) -> None:
    left, right = here.pair()
    asked = [(right, IN), *beside]
    assert rpoll(asked, 0) == []
    left.sendall(b"abc")
    assert rpoll(asked, WAIT_S * MS) == [(right, IN)]
    assert rpoll(asked, 0) == [(right, IN)]
    assert right.recv(2) == b"ab"
    assert rpoll(asked, 0) == [(right, IN)]
    assert right.recv(2) == b"c"
    assert rpoll(asked, 0) == []


def test_a_wait_ends_when_something_comes(here: World, beside) -> None:
    left, right = here.pair()
    for _ in range(5):
        here.later(lambda: left.sendall(b"x"), 0.02)
        begin_s = time.monotonic()
        assert rpoll([(right, IN), *beside], WAIT_S * MS) == [(right, IN)]
        assert time.monotonic() - begin_s < LATE_S
        right.recv(1)


def test_rsockets_and_ordinary_descriptors(here: World) -> None:
    left, right = here.pair()
    reader, writer = here.pipe()
    asked = [(reader, IN), (right, IN), (writer, OUT), (left, IN | OUT)]
    assert rpoll(asked, WAIT_S * MS) == [(writer, OUT), (left, OUT)]
    asked = [(reader, IN), (right, IN)]
    here.later(lambda: os.write(writer, b"x"))
    assert rpoll(asked, WAIT_S * MS) == [(reader, IN)]
    os.read(reader, 1)
    here.later(lambda: left.sendall(b"x"))
    assert rpoll(asked, WAIT_S * MS) == [(right, IN)]


@pytest.mark.parametrize("timeout_ms", [0, 1, 50, 300.5])
def test_time_is_kept(here: World, beside, timeout_ms: float) -> None:
    """Never early; late only as far as the machine is busy."""
    left, right = here.pair()
    rpoll([(right, IN)], 0)
    begin_s = time.monotonic()
    assert rpoll([(right, IN), (left, IN), *beside], timeout_ms) == []
    took_s = time.monotonic() - begin_s
    assert timeout_ms / MS <= took_s < timeout_ms / MS + LATE_S


@pytest.mark.parametrize("timeout", [None, -1, -0.5])
def test_without_a_limit(here: World, timeout) -> None:
    left, right = here.pair()
    here.later(lambda: left.sendall(b"x"), 0.2)
    assert rpoll([(right, IN)], timeout) == [(right, IN)]


def test_two_threads_at_one_socket(here: World, beside) -> None:
    """Both are told, each time; neither takes the event away from the other."""
    left, right = here.pair()
    got: list[list] = [[], []]
    for round_number in range(10):
        threads = [
            threading.Thread(
                target=lambda told=told: told.append(rpoll([(right, IN), *beside], WAIT_S * MS))
            )
            for told in got
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        begin_s = time.monotonic()
        left.sendall(b"x")
        for thread in threads:
            thread.join(WAIT_S)
        assert time.monotonic() - begin_s < LATE_S
        assert [len(told) for told in got] == [round_number + 1] * 2
        assert got[0][-1] == got[1][-1] == [(right, IN)]
        right.recv(1)


def test_one_polls_and_another_receives(here: World) -> None:
    """Where the original sleeps 500 ms: another thread consumes the completion."""
    left, right = here.pair()
    lates = []

    def poll() -> None:
        begin_s = time.monotonic()
        assert rpoll([(right, OUT), (left, IN)], WAIT_S * MS)
        lates.append(time.monotonic() - begin_s)

    for _ in range(5):
        sent = fill(right)
        poller = threading.Thread(target=poll)
        poller.start()
        time.sleep(0.02)
        drain(left, sent)
        poller.join(WAIT_S)
    assert max(lates) < LATE_S


def test_no_room_until_the_peer_reads(here: World, beside) -> None:
    left, right = here.pair()
    assert rpoll([(left, OUT), *beside], WAIT_S * MS) == [(left, OUT)]
    sent = fill(left)
    assert sent > 0
    assert rpoll([(left, OUT), *beside], 20) == []
    here.later(partial(drain, right, sent), 0.02)
    assert rpoll([(left, OUT), *beside], WAIT_S * MS) == [(left, OUT)]


def test_a_listener_is_readable_while_a_connection_waits(here: World, beside) -> None:
    listener, client = here.listener(), here.socket()
    assert rpoll([(listener, IN | OUT), *beside], 0) == []
    here.later(lambda: client.connect(listener.getsockname()))
    assert rpoll([(listener, IN | OUT), *beside], WAIT_S * MS) == [(listener, IN)]
    accepted, _ = listener.accept()
    accepted.close()
    assert rpoll([(listener, IN | OUT), *beside], 0) == []


def test_a_connect_that_goes_on(here: World, beside) -> None:
    """docs/reference/rsocket.md 19, case 9: to ourselves, in one thread."""
    listener, client = here.listener(), here.socket()
    client.setblocking(False)
    # The progress thread may have established it before the call returns.
    assert client.connect_ex(listener.getsockname()) in {0, errno.EINPROGRESS}
    assert rpoll([(client, OUT), *beside], WAIT_S * MS) == [(client, OUT)]
    assert rpoll([(listener, IN), *beside], WAIT_S * MS) == [(listener, IN)]


def test_a_connect_that_fails(here: World, beside) -> None:
    listener, client = here.listener(), here.socket()
    own_address = listener.getsockname()
    listener.close()
    client.setblocking(False)
    assert client.connect_ex(own_address) != 0
    ((_, told),) = rpoll([(client, IN | OUT), *beside], WAIT_S * MS)
    assert told & (ERR | IN | OUT) == ERR | IN | OUT


def test_an_idle_socket_that_another_thread_connects(here: World, beside) -> None:
    listener, client = here.listener(), here.socket()
    here.later(lambda: client.connect(listener.getsockname()))
    begin_s = time.monotonic()
    ((socket, told),) = rpoll([(client, OUT), *beside], WAIT_S * MS)
    while not told & OUT:  # an idle socket hangs, as one of TCP does
        assert time.monotonic() < begin_s + WAIT_S
        time.sleep(0.005)
        ((socket, told),) = rpoll([(client, OUT), *beside], WAIT_S * MS)
    assert socket is client


def test_an_orderly_end(here: World, beside) -> None:
    left, right = here.pair()
    left.close()
    ((_, told),) = rpoll([(right, IN), *beside], WAIT_S * MS)
    assert told & IN
    assert not told & ERR
    assert right.recv(1) == b""
    end_s = time.monotonic() + WAIT_S
    while not rpoll([(right, 0), *beside], 20):  # a hang-up comes unasked
        assert time.monotonic() < end_s
    assert rpoll([(right, 0), *beside], 0) == [(right, HUP)]


def test_a_socket_that_is_closed_meanwhile(here: World, beside) -> None:
    _, right = here.pair()
    here.later(right.close)
    assert rpoll([(right, IN), *beside], WAIT_S * MS) == [(right, NVAL)]


def test_numbers(here: World) -> None:
    listener = here.listener()
    number = calls.rsocket()
    calls.rconnect(number, listener.getsockname())
    accepted, _ = listener.accept()
    assert rpoll([(number, IN | OUT)], WAIT_S * MS) == [(number, OUT)]
    accepted.sendall(b"x")
    assert rpoll([(number, IN)], WAIT_S * MS) == [(number, IN)]
    calls.rclose(number)
    assert rpoll([(number, IN)], 0) == [(number, NVAL)]
    accepted.close()


def test_rselect(here: World) -> None:
    left, right = here.pair()
    reader, writer = here.pipe()
    begin_s = time.monotonic()
    assert rselect([right, reader], [], [left], 0.05) == ([], [], [])
    assert time.monotonic() - begin_s >= 0.05
    assert rselect([right], [left, writer], [], 0) == ([], [left, writer], [])
    here.later(lambda: left.sendall(b"x"))
    assert rselect([right, reader], [], [], WAIT_S) == ([right], [], [])


@pytest.mark.parametrize("look", ["select", "poll", "epoll"])
def test_the_standard_library_on_its_descriptor(here: World, look: str) -> None:
    left, right = here.pair()
    descriptor = right.fileno()

    def state(timeout_s: float = 0) -> tuple[bool, bool]:
        if look == "select":
            reads, writes, _ = select.select([descriptor], [descriptor], [], timeout_s)
            return bool(reads), bool(writes)
        if look == "poll":
            poll = select.poll()
            poll.register(descriptor, IN | OUT)
            told = dict(poll.poll(timeout_s * MS)).get(descriptor, 0)
        else:
            with select.epoll() as epoll:
                epoll.register(descriptor, IN | OUT)
                told = dict(epoll.poll(timeout_s)).get(descriptor, 0)
        return bool(told & IN), bool(told & OUT)

    def becomes(wanted: tuple[bool, bool]) -> None:
        end_s = time.monotonic() + WAIT_S
        while state() != wanted:
            assert time.monotonic() < end_s, f"{state()}, not {wanted}"
            time.sleep(0.001)

    becomes((False, True))
    left.sendall(b"x")
    becomes((True, True))
    sent = fill(right)
    becomes((True, False))
    right.setblocking(False)
    assert right.recv(1) == b"x"
    becomes((False, False))
    drain(left, sent)
    becomes((False, True))
    assert right.fileno() == descriptor


def test_a_sleeper_in_the_kernel_is_woken(here: World) -> None:
    left, right = here.pair()
    for _ in range(3):
        here.later(lambda: left.sendall(b"x"), 0.02)
        begin_s = time.monotonic()
        assert select.select([right], [], [], WAIT_S)[0] == [right]
        assert time.monotonic() - begin_s < LATE_S
        right.recv(1)


def test_ordinary_descriptors_alone(here: World) -> None:
    reader, writer = here.pipe()
    begin_s = time.monotonic()
    assert rpoll([(reader, IN)], 30) == []
    assert time.monotonic() - begin_s >= 0.03
    here.later(lambda: os.write(writer, b"x"))
    assert rpoll([(reader, IN)]) == [(reader, IN)]


@pytest.mark.parametrize("how", ["rselect", "rpoll", "Repoll"])
def test_a_time_beyond_what_the_kernel_takes_is_waited(here: World, how: str) -> None:
    """poll(2) takes 24 days, in milliseconds; select(2) takes more."""
    (reader, writer), (_, idle) = here.pipe(), here.pair()
    threading.Timer(0.05, os.write, [writer, b"x"]).start()
    if how == "rselect":
        found = rselect([reader, idle], [], [], 1e7)[0]
    elif how == "rpoll":
        found = rpoll([(reader, IN), (idle, IN)], 1e10)
    else:
        with Repoll() as either:
            either.register(idle, IN)
            either.register(reader, IN)
            found = either.poll(1e7)
    assert len(found) == 1
