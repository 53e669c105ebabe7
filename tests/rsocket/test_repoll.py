"""Repoll over devices: what is ready, what sleeps, what wakes it, and what a wait costs."""

import os
import select
import threading
import time
from functools import partial

import pytest

from tests.rsocket.polling_world import DEVICES, LATE_S, WAIT_S, World, drain, fill, world
from urds.rsocket import calls
from urds.rsocket.poll import rpoll
from urds.rsocket.repoll import (
    EPOLL_CTL_ADD,
    Repoll,
    close_instance,
    repoll_create,
    repoll_ctl,
    repoll_wait,
)

IN, OUT, HUP, ERR = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP, select.EPOLLERR


@pytest.fixture(params=DEVICES)
def here(request):
    with world(request.param) as made:
        yield made


@pytest.fixture
def poll():
    with Repoll() as made:
        yield made


@pytest.fixture(params=["rsockets", "mixed"])
def either(request, here: World, poll: Repoll) -> Repoll:
    """Return it with an ordinary descriptor that stays quiet, or without: two ways to sleep."""
    if request.param == "mixed":
        poll.register(here.pipe()[0], IN)
    return poll


def test_level_by_level(here: World, either: Repoll) -> None:
    left, right = here.pair()
    either.register(right, IN, "right")
    assert either.poll(0) == []
    left.sendall(b"abc")
    assert either.poll(WAIT_S) == [("right", IN)]
    assert right.recv(2) == b"ab"
    assert either.poll(0) == [("right", IN)]
    right.recv(2)
    assert either.poll(0) == []
    either.modify(right, IN | OUT, "right")
    assert either.poll(0) == [("right", OUT)]
    either.unregister(right)
    assert either.poll(0) == []


def test_a_wait_ends_when_something_comes(here: World, either: Repoll) -> None:
    left, right = here.pair()
    either.register(right, IN, "right")
    for _ in range(5):
        here.later(lambda: left.sendall(b"x"), 0.02)
        begin_s = time.monotonic()
        assert either.poll(WAIT_S) == [("right", IN)]
        assert time.monotonic() - begin_s < LATE_S
        right.recv(1)


@pytest.mark.parametrize("timeout_s", [0, 0.0015, 0.2])
def test_time_is_kept(here: World, either: Repoll, timeout_s: float) -> None:
    _, right = here.pair()
    either.register(right, IN)
    either.poll(0)
    begin_s = time.monotonic()
    assert either.poll(timeout_s) == []
    assert timeout_s <= time.monotonic() - begin_s < timeout_s + LATE_S


def test_who_comes_while_another_waits(here: World, poll: Repoll) -> None:
    """Three ways to sleep in one wait: no member, one device, a descriptor beside."""
    left, right = here.pair()
    reader, writer = here.pipe()
    got: list = []
    waiter = threading.Thread(target=lambda: got.append(poll.poll(WAIT_S)))
    waiter.start()
    time.sleep(0.02)
    poll.register(right, IN, "right")
    time.sleep(0.02)
    poll.register(reader, IN, "reader")
    time.sleep(0.02)
    assert waiter.is_alive()
    os.write(writer, b"x")
    waiter.join(WAIT_S)
    assert got == [[("reader", IN)]]
    os.read(reader, 1)
    left.sendall(b"x")
    assert poll.poll(WAIT_S) == [("right", IN)]


def test_two_threads_wait(here: World, either: Repoll) -> None:
    left, right = here.pair()
    either.register(right, IN, "right")
    got: list = []
    waiters = [threading.Thread(target=lambda: got.append(either.poll(WAIT_S))) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    time.sleep(0.02)
    begin_s = time.monotonic()
    left.sendall(b"x")
    for waiter in waiters:
        waiter.join(WAIT_S)
    assert got == [[("right", IN)]] * 2
    assert time.monotonic() - begin_s < LATE_S


def test_no_room_until_the_peer_reads(here: World, either: Repoll) -> None:
    left, right = here.pair()
    either.register(left, OUT, "left")
    assert either.poll(WAIT_S) == [("left", OUT)]
    sent = fill(left)
    assert either.poll(0.02) == []
    here.later(partial(drain, right, sent), 0.02)
    assert either.poll(WAIT_S) == [("left", OUT)]


def test_each_edge_is_told_and_then_there_is_silence(here: World, either: Repoll) -> None:
    """An edge may be told twice: what the device says about the other direction comes after it."""
    left, right = here.pair()
    either.register(right, IN | select.EPOLLET, "right")
    for _ in range(3):
        left.sendall(b"x")
        assert either.poll(WAIT_S) == [("right", IN)]
        again = 0
        while either.poll(0.05):
            again += 1
            assert again < 10
        assert rpoll([(right, IN)], 0)


def test_a_closed_socket_disappears(here: World, either: Repoll) -> None:
    left, right = here.pair()
    either.register(right, IN, "right")
    left.sendall(b"x")
    assert either.poll(WAIT_S) == [("right", IN)]
    right.close()
    assert either.poll(0.02) == []
    assert not right.watchers


def test_a_server_of_one_thread(here: World) -> None:
    """Accepts, echoes and closes by readiness alone, as a server over epoll does."""
    listener = here.listener()
    listener.setblocking(False)
    rounds, clients = 20, 5
    failed: list = []

    def client(number: int) -> None:
        try:
            socket = here.socket()
            socket.connect(listener.getsockname())
            for index in range(rounds):
                words = f"{number} {index}".encode() * 50
                socket.sendall(words)
                got = b""
                while len(got) < len(words):
                    got += socket.recv(1 << 16)
                assert got == words
            socket.close()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    ended, end_s = 0, time.monotonic() + 3 * WAIT_S
    with Repoll() as poll:
        poll.register(listener, IN, listener)
        while ended < clients:
            assert time.monotonic() < end_s
            for socket, _ in poll.poll(1):
                if socket is listener:
                    accepted, _ = listener.accept()
                    accepted.settimeout(WAIT_S)
                    poll.register(accepted, IN, accepted)
                elif data := socket.recv(1 << 16):
                    socket.sendall(data)
                else:
                    socket.close()
                    ended += 1
    for thread in threads:
        thread.join(WAIT_S)
    assert not failed


def test_its_descriptor_in_a_set_of_the_kernel(here: World, poll: Repoll) -> None:
    left, right = here.pair()
    poll.register(right, IN, "right")
    assert not select.select([poll], [], [], 0)[0]
    here.later(lambda: left.sendall(b"x"))
    assert select.select([poll], [], [], WAIT_S)[0] == [poll]
    assert poll.poll(0) == [("right", IN)]
    right.recv(1)
    assert not select.select([poll], [], [], 0)[0]


def test_one_in_the_other(here: World, poll: Repoll) -> None:
    left, right = here.pair()
    with Repoll() as outer:
        poll.register(right, IN, "right")
        outer.register(poll, IN, "inner")
        assert outer.poll(0) == []
        here.later(lambda: left.sendall(b"x"))
        assert outer.poll(WAIT_S) == [("inner", IN)]


def test_numbers(here: World) -> None:
    listener = here.listener()
    number = calls.rsocket()
    calls.rconnect(number, listener.getsockname())
    accepted, _ = listener.accept()
    instance = repoll_create()
    repoll_ctl(instance, EPOLL_CTL_ADD, number, IN)
    assert repoll_wait(instance, 8, 0) == []
    accepted.sendall(b"x")
    assert repoll_wait(instance, 8, WAIT_S * 1000) == [(number, IN)]
    calls.rclose(number)
    assert repoll_wait(instance, 8, 0) == []
    close_instance(instance)
    accepted.close()
