"""Processes that are to be killed: `python -m tests.rsocket.killed_peer`.

Reads lines `device act`. Each forks a process that listens over that device, prints its process
and port, and then does the act with one connection until it is killed. The one that reads
lines opens no device, so its children begin anew, without a start of Python.
"""

import itertools
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback

from tests.rsocket.socket_pairs import HOST
from urds.rsocket import PROT_WRITE, SOL_RDMA, RdmaOpt, allocate
from urds.rsocket.link.devices import DEVICES_VARIABLE
from urds.rsocket.socket import Socket

BLOCK_BYTES = 4096
SLOTS = 4


def block(number: int) -> bytes:
    """Return the bytes of one block of the stream that both sides know."""
    return random.Random(number).randbytes(BLOCK_BYTES)


def stream(start: int = 0) -> bytes:
    """Return some blocks; the stream repeats them."""
    return b"".join(block(number) for number in range(start, start + 64))


def send_for_ever(one: Socket) -> None:
    """Send the stream in pieces of all sizes."""
    data = stream() * 2
    period, at = len(data) // 2, 0
    rng = random.Random(os.getpid())
    for _ in itertools.count():
        size = rng.choice((1, 100, 3000, 20_000, 150_000))
        one.sendall(data[at : at + size])
        at = (at + size) % period


def flow(one: Socket) -> None:
    """Send and receive without end."""
    threading.Thread(target=send_for_ever, args=(one,), daemon=True).start()
    while one.recv(1 << 17):
        pass


def place(one: Socket) -> None:
    """Receive in place, and map buffers, without end."""
    room = allocate(1 << 20)
    buffer = bytearray(1 << 16)
    for turn in itertools.count():
        one.recv_into(room, 0, socket.MSG_WAITALL)
        if turn % 2:
            one.unmap_buffer(buffer)
        else:
            one.map_buffer(buffer, 0, PROT_WRITE)
        one.sendall(b"next")


def echo(one: Socket) -> None:
    """Send back what comes."""
    while data := one.recv(1 << 16):
        one.sendall(data)


ACTS = {"flow": flow, "place": place, "echo": echo}


def serve(device: str, act: str) -> None:
    """Be the process that is killed, or that ends with its connection."""
    os.environ[DEVICES_VARIABLE] = device
    listener = Socket()
    listener.setsockopt(SOL_RDMA, RdmaOpt.IOMAPSIZE, SLOTS)
    listener.bind((HOST, 0))
    listener.listen(16)
    os.write(1, f"{os.getpid()} {listener.getsockname()[1]}\n".encode())
    accepted, _ = listener.accept()
    try:
        ACTS[act](accepted)
    except OSError:
        time.sleep(60)  # killed as well


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    socket.setdefaulttimeout(60)
    for line in sys.stdin:
        if os.fork() == 0:
            try:
                serve(*line.split())
            except Exception:
                traceback.print_exc()
                print("0 0", flush=True)
            finally:
                os._exit(0)


if __name__ == "__main__":
    main()
