"""Nodes that are to be killed: `python -m tests.rds.transports.rdma.killed_peer`.

Reads lines `device address survivor life log`. Each forks a process that is a node at the address,
prints its number, and then sends and receives until it is killed. What it received stands in
the file `log`, a number per line, written before the next message is taken. The process that reads
lines opens no device, so its children begin anew, without a start of Python.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
from typing import Final

import urds
from tests.support.children import fork_for_each_line
from urds.rds.constants import SOL_RDS, SockOpt, Transport
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.process import process
from urds.rds.settings import Settings

PORT: Final = 4000
CELLS_BYTES: Final = 64
WRITTEN, COUNTED = 0, 8  # offsets in a region: the number last written, how often it was added to
HELLO: Final = b"hello"
_SIZES: Final = (12, 100, 4096, 5000, 30_000)


def backend_for(device: str) -> InProcess:
    """Give this process a backend on one device."""
    values = {"rdma_devices": (device,), "drain_s": 0, "linger_s": 0}
    backend = InProcess(Settings.load(values, environ={}))
    process.use(backend)
    return backend


def socket_at(address: str) -> urds.Socket:
    """Return a socket over RDMA."""
    sock = urds.Socket()
    sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, int(Transport.IB))
    sock.bind((address, PORT))
    return sock


def payload_of(life: int, number: int) -> bytes:
    """Return a message's bytes, which both sides know."""
    size = _SIZES[number * 7 % len(_SIZES)]
    head = b"%d %d " % (life, number)
    return head + random.Random(number).randbytes(max(0, size - len(head)))


def numbers_of(payload: bytes) -> tuple[int, int]:
    """Return the life and the number of a message, which has to be whole."""
    life, number = map(int, payload.split(b" ", 2)[:2])
    assert payload == payload_of(life, number), f"message {number} of life {life} is damaged"
    return life, number


def send(
    sock: urds.Socket, target: tuple[str, int], cookie: int, life: int, number: int, flags: int = 0
) -> urds.PendingOperation | None:
    """Send a message, two of four with an operation; a silent operation is one of 16."""
    payload = payload_of(life, number)
    data = number.to_bytes(8, sys.byteorder)
    match number % 4 if cookie else 0:
        case 1:
            return sock.rdma_write(
                data, cookie, target, offset=WRITTEN, payload=payload, flags=flags
            )
        case 2:
            return sock.fetch_add(cookie, 1, target, offset=COUNTED, payload=payload, flags=flags)
    sock.sendto(payload, flags, target)
    return None


class Life:
    """One life of a node."""

    def __init__(self, device: str, address: str, survivor: str, life: int, log: str) -> None:
        self._backend = backend_for(device)
        self._survivor = (survivor, PORT)
        self._life = life
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._sock = socket_at(address)
        self._cells = bytearray(CELLS_BYTES)
        self._cookie = 0
        self._may_begin = threading.Event()

    def lead(self) -> None:
        """Send and receive until the end."""
        region = self._sock.get_mr(self._cells)
        self._sock.send_region(b"%s %d" % (HELLO, self._life), region, self._survivor)
        threading.Thread(target=self._receive, daemon=True).start()
        self._may_begin.wait()
        for number in itertools.count():
            send(self._sock, self._survivor, self._cookie, self._life, number)

    def _receive(self) -> None:
        while True:
            payload, _, cookie = self._sock.recv_region(1 << 20)
            if cookie is not None:
                self._cookie = cookie
                self._may_begin.set()
                continue
            _, number = numbers_of(payload)
            os.write(self._log, b"%d\n" % number)


def _live(device: str, address: str, survivor: str, life: str, log: str) -> None:
    Life(device, address, survivor, int(life), log).lead()


if __name__ == "__main__":
    fork_for_each_line(_live)
