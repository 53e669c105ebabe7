"""A program that ends while its daemon threads are in calls: `exiting_program.py PATTERN SHARE`.

SHARE of a tenth of a second passes before its main thread ends.
"""

import asyncio
import gc
import select
import socket
import sys
import threading
import time
from collections.abc import Callable

import urds
import urds.aio
from tests.rds.sockets.hosts import host

_Body = Callable[[], object]
HERE, THERE = (host(1), 4000), (host(2), 4000)
here, there, quiet = urds.Socket(), urds.Socket(), urds.Socket()


def _blocking() -> list[_Body]:
    return [lambda: quiet.recv(10), lambda: quiet.recvmsg(10), lambda: here.recvfrom(100), _give]


def _timeout() -> list[_Body]:
    quiet.settimeout(0.001)
    return [lambda: quiet.recv(10), lambda: quiet.recvfrom(10)]


def _not_blocking() -> list[_Body]:
    quiet.setblocking(False)
    return [lambda: quiet.recv(10), lambda: quiet.recvmsg(10), _swallow_refused_send]


def _sending() -> list[_Body]:
    there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    long = bytes(200_000)  # the compiled plane gives the interpreter up for its write
    return [_give, lambda: there.sendto(long, HERE), lambda: here.recv(100)]


def _descriptor() -> list[_Body]:
    return [
        lambda: select.select([quiet], [there], [], 0),
        lambda: quiet.settimeout(1),
        quiet.fileno,
    ]


def _closing() -> list[_Body]:
    def churn() -> None:
        with urds.Socket() as sock:
            sock.bind((host(1), 0))
            sock.sendto(b"x", THERE)

    return [churn, churn, lambda: there.recv(10)]


def _resolving() -> list[_Body]:
    peers = iter(range(1 << 30))

    def give() -> None:
        number = next(peers)
        there.sendto(b"x", (host(3 + number % 200), 4000))

    return [give, lambda: there.sendto(b"x", ("localhost", 4000))]


def _collecting() -> list[_Body]:
    gc.set_threshold(5, 1, 1)

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            for _ in range(200):
                pass

    def give() -> None:
        Cycle()
        here.sendto(b"x", HERE)
        here.recv(10)

    return [give, give]


def _loops() -> list[_Body]:
    async def give() -> None:
        sock = await urds.aio.bind((host(1), 0))
        while True:
            await sock.send_to(b"x", sock.getsockname())
            await sock.recv_from(10)

    return [lambda: asyncio.run(give())] * 2


def _give() -> None:
    there.sendto(bytes(64), HERE)


def _swallow_refused_send() -> None:
    quiet.sendto(b"x", ("10.9.8.7", 4000))  # no peer that is allowed


PATTERNS = {
    "blocking": _blocking,
    "timeout": _timeout,
    "not blocking": _not_blocking,
    "sending": _sending,
    "descriptor": _descriptor,
    "closing": _closing,
    "resolving": _resolving,
    "collecting": _collecting,
    "loops": _loops,
}


def _for_ever(body: _Body) -> None:
    while True:
        try:
            body()
        except (TimeoutError, BlockingIOError, PermissionError):
            continue


def main() -> None:
    """Start the threads of a pattern, and end under them."""
    here.bind(HERE)
    there.bind(THERE)
    quiet.bind((host(1), 4001))
    for body in PATTERNS[sys.argv[1]]():
        threading.Thread(target=_for_ever, args=[body], daemon=True).start()
    time.sleep(0.02 + float(sys.argv[2]) / 10)


if __name__ == "__main__":
    main()
