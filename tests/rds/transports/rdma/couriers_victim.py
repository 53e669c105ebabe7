"""Nodes with couriers that are to be killed: `python -m tests.rds.transports.rdma.couriers_victim`.

Reads lines `address survivor life count log`. Each forks a process that is a node at the address
and prints its number. It says its life to the survivor, and sends `count` numbered messages, or
without end for -1. What it receives stands in the file `log`, a number per line.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import Final

import urds
from tests.rds.transports.rdma.killed_peer import PORT, backend_for, socket_at
from tests.support.children import fork_for_each_line

DEVICE: Final = "shm0"
MESSAGE_BYTES_MAX: Final = 200_000
_SIZES: Final = (16, 64, 100, 4096, 5000, 30_000, 65_536, MESSAGE_BYTES_MAX)


def payload_of(life: int, number: int) -> bytes:
    """Return a message's bytes, which both sides know."""
    head = b"%d %d " % (life, number)
    return head.ljust(_SIZES[number * 5 % len(_SIZES)], b"%d" % (number % 10))


def numbers_of(payload: bytes) -> tuple[int, int]:
    """Return the life and the number of a message, which has to be whole."""
    life, number = map(int, payload.split(b" ", 2)[:2])
    assert payload == payload_of(life, number), f"message {number} of life {life} is damaged"
    return life, number


def live(address: str, survivor: str, life: int, count: int, log: str) -> None:
    """Send and receive until the end."""
    backend = backend_for(DEVICE)
    sock, target = socket_at(address), (survivor, PORT)
    threading.Thread(target=_receive, args=(sock, log), daemon=True).start()
    sock.sendto(payload_of(life, 0), target)
    for number in itertools.count(1) if count < 0 else range(1, count + 1):
        sock.sendto(payload_of(life, number), target)
    threading.Event().wait()
    del backend


def _receive(sock: urds.Socket, log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        _, number = numbers_of(sock.recv(1 << 20))
        os.write(file, b"%d\n" % number)


def _live(address: str, survivor: str, life: str, count: str, log: str) -> None:
    live(address, survivor, int(life), int(count), log)


if __name__ == "__main__":
    fork_for_each_line(_live)
