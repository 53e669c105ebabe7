"""`send_many` and `recv_many`: what they do is what single calls would do, on every plane."""

import errno
import threading
from itertools import pairwise
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET
from typing import Any

import pytest

import urds
from tests.rds.sockets.conftest import NewSocket
from tests.rds.sockets.hosts import host
from tests.support.errnos import refused

NEAR, FAR, OTHER = 1, 2, 3
PORT = 5000
WAIT_S = 10
LENGTHS = (0, 1, 64, 70, 71, 1000, 5000, 20_000)


def target(number: int) -> tuple[str, int]:
    """Return where a socket of these tests is bound."""
    return host(number), PORT


def drained(sock: urds.Socket, count: int, *, at_once: int) -> list[tuple[bytes, object]]:
    """Return so many messages, taken in lists of at most `at_once`."""
    taken: list[tuple[bytes, object]] = []
    while len(taken) < count:
        some = sock.recv_many(at_once)
        assert 1 <= len(some) <= at_once
        taken += some
    assert len(taken) == count
    return taken


@pytest.fixture
def near(new_socket: NewSocket) -> urds.Socket:
    """Make the sending socket."""
    return new_socket(NEAR, PORT)


@pytest.fixture
def far(new_socket: NewSocket) -> urds.Socket:
    """Make the receiving socket, whose waits end."""
    sock = new_socket(FAR, PORT)
    sock.settimeout(WAIT_S)
    return sock


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_messages_of_every_kind_keep_their_order(
    near: urds.Socket, far: urds.Socket, at_once: int
) -> None:
    kinds = [bytes, bytearray, memoryview]
    sent = [bytes([number % 251]) * LENGTHS[number % len(LENGTHS)] for number in range(150)]
    given = [(kinds[number % 3](one), target(FAR)) for number, one in enumerate(sent)]
    assert near.send_many(given[:10]) == 10
    assert near.send_many(tuple(given[10:11])) == 1
    thread = threading.Thread(target=near.send_many, args=(given[11:],))
    thread.start()
    taken = drained(far, len(sent), at_once=at_once)
    thread.join(WAIT_S)
    assert [payload for payload, _ in taken] == sent
    assert {source for _, source in taken} == {target(NEAR)}


def test_destinations_mix(near: urds.Socket, far: urds.Socket, new_socket: NewSocket) -> None:
    other = new_socket(OTHER, PORT)
    other.settimeout(WAIT_S)
    near.connect(target(OTHER))
    given = [(b"%d" % number, target(FAR) if number % 3 else None) for number in range(200)]
    assert near.send_many(given) == 200
    for sock, chosen in ((far, True), (other, False)):
        wanted = [
            payload for number, (payload, _) in enumerate(given) if bool(number % 3) is chosen
        ]
        taken = drained(sock, len(wanted), at_once=50)
        assert [payload for payload, _ in taken] == wanted


def test_a_socket_sends_to_itself(near: urds.Socket) -> None:
    near.settimeout(WAIT_S)
    assert near.send_many([(b"a", target(NEAR)), (b"b", target(NEAR))]) == 2
    taken = drained(near, 2, at_once=2)
    assert taken == [(b"a", target(NEAR)), (b"b", target(NEAR))]


def test_a_full_queue_ends_it_and_the_rest_goes_later(near: urds.Socket, far: urds.Socket) -> None:
    near.setsockopt(SOL_SOCKET, SO_SNDBUF, 30_000)
    far.setsockopt(SOL_SOCKET, SO_RCVBUF, 30_000)
    near.setblocking(False)
    given = [(number.to_bytes(2) * 300, target(FAR)) for number in range(2000)]
    at, calls = 0, 0
    taken: list[tuple[bytes, object]] = []
    while len(taken) < len(given) and calls < 100_000:
        calls += 1
        code = 0
        try:
            at += near.send_many(given[at : at + 500])
        except OSError as error:
            code = error.errno
        assert code in {0, errno.EAGAIN, errno.ENOBUFS}
        if at > len(taken):
            taken += far.recv_many(100)
    numbers = [int.from_bytes(payload[:2]) for payload, _ in taken]
    assert len(numbers) == len(given)
    assert all(after == before + 1 for before, after in pairwise(numbers))


def test_a_wrong_message_raises_and_those_before_it_are_queued(
    near: urds.Socket, far: urds.Socket
) -> None:
    good = (b"good", target(FAR))
    wrong: list[Any] = [
        b"none",
        (b"one",),
        ("text", target(FAR)),
        (b"x", "text"),
        (b"x", (host(FAR), -1)),
    ]
    for number, one in enumerate(wrong):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            near.send_many([good, one, good])
        assert far.recv_many(10) == [(b"good", target(NEAR))], number
    far.setblocking(False)
    assert refused(far.recv_many, 1) == errno.EAGAIN


def test_without_a_destination_or_a_name_it_is_refused(new_socket: NewSocket) -> None:
    sock = new_socket()
    assert refused(sock.send_many, [(b"x", target(FAR))]) == errno.ENOTCONN
    sock.bind(target(NEAR))
    assert refused(sock.send_many, [(b"x", None)]) == errno.ENOTCONN
    sock.connect(("::1", PORT))
    assert refused(sock.send_many, [(b"x", None)]) == refused(sock.send, b"x")


def test_the_rest_of_a_message_is_discarded(near: urds.Socket, far: urds.Socket) -> None:
    near.send_many([(b"abcdef", target(FAR)), (bytes(70_000), target(FAR))])
    taken = []
    while len(taken) < 2:
        taken += far.recv_many(2, 3)
    assert [payload for payload, _ in taken] == [b"abc", bytes(3)]


def test_waits_obey_the_socket(near: urds.Socket) -> None:
    near.setblocking(False)
    assert refused(near.recv_many, 5) == errno.EAGAIN
    near.settimeout(0.01)
    assert refused(near.recv_many, 5) == errno.ETIMEDOUT
    near.close()
    assert refused(near.recv_many, 5) == errno.EBADF
    assert refused(near.send_many, [(b"x", target(FAR))]) == errno.EBADF
