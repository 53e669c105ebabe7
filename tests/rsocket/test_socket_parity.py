"""The same random calls on rsockets and on TCP sockets of the kernel: the same answers.

Sizes stay below what both sides take without a reader, so that every answer is certain.
"""

import random
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.rsocket.socket_pairs import HOST, WAIT_S, Pair, using

STEPS = 80
UNREAD_MAX = 60_000
DONTWAIT, PEEK, WAITALL = socket.MSG_DONTWAIT, socket.MSG_PEEK, socket.MSG_WAITALL


class KernelPair:
    """Two connected TCP sockets."""

    def __init__(self) -> None:
        with closing(socket.create_server((HOST, 0))) as listener:
            self.client = socket.create_connection(listener.getsockname(), WAIT_S)
            self.server, _ = listener.accept()
        self.server.settimeout(WAIT_S)
        self.both = (self.client, self.server)

    def close(self) -> None:
        for one in self.both:
            one.close()


class Side:
    """One side of both pairs, and what is known of the bytes towards it."""

    def __init__(self, kernel: Any, ours: Any) -> None:
        self.sockets = (kernel, ours)
        self.unread = 0
        self.is_ending = False  # no more bytes come
        self.is_shut = False  # we have ended writing


def answers(side: Side, call: Callable[[Any], Any]) -> Any:
    """Make one call on both; return what it gave, the same of both."""
    found = []
    for one in side.sockets:
        try:
            found.append(call(one))
        except OSError as error:
            found.append(type(error))
    assert found[0] == found[1]
    return found[0]


def step(rng: random.Random, here: Side, there: Side) -> None:
    """Do one thing that has a certain answer."""
    choice = rng.randrange(10)
    if choice < 4 and (here.is_shut or there.unread < UNREAD_MAX):
        data = rng.randbytes(rng.choice((0, 1, 10, 300, 4000, 20_000)))
        if answers(here, lambda one: one.send(data)) == len(data):
            there.unread += len(data)
    elif choice < 6 and (here.unread or here.is_ending):
        wanted = rng.randrange(here.unread + 1) + here.is_ending
        taken = answers(here, lambda one: one.recv(wanted, WAITALL))
        here.unread -= len(taken)
    elif choice == 6 and here.unread:
        wanted = rng.randrange(min(here.unread, 2000)) + 1
        answers(here, lambda one: one.recv(wanted, PEEK | WAITALL)[:1])
    elif choice == 7 and not here.unread and not here.is_ending:
        answers(here, lambda one: one.recv(1, DONTWAIT))
    elif choice == 8 and here.unread > 3:
        first, second = here.unread // 2, here.unread - here.unread // 2

        def scattered(one: Any) -> tuple[int, bytes, bytes]:
            views = [bytearray(first), bytearray(second)]
            return one.recvmsg_into(views, 0, WAITALL)[0], bytes(views[0]), bytes(views[1])

        here.unread -= answers(here, scattered)[0]
    elif choice == 9 and rng.random() < 0.2 and not there.is_ending:
        answers(here, lambda one: one.shutdown(socket.SHUT_WR))
        here.is_shut = there.is_ending = True


@pytest.mark.timeout(30)
@pytest.mark.parametrize("device", ["shm0", "tcp0", "udp0"])
@pytest.mark.parametrize("seed", range(12))
def test_the_answers_are_those_of_tcp(device: str, seed: int) -> None:
    rng = random.Random(seed)
    with using(device), ExitStack() as stack:
        kernel = stack.enter_context(closing(KernelPair()))
        ours = stack.enter_context(closing(Pair()))
        left, right = (Side(*two) for two in zip(kernel.both, ours.both, strict=True))
        for one in (*kernel.both, *ours.both):
            # With a timeout Python makes the kernel's socket non-blocking and flags mean less.
            one.settimeout(None)
        for _ in range(STEPS):
            step(rng, *rng.choice(((left, right), (right, left))))
