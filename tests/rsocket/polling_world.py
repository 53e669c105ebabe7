"""Sockets over one device of this process, for the tests of waiting."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

from tests.support.waiting import BUSY_S, ENDLESS_S
from urds.rsocket.link import devices
from urds.rsocket.socket import Socket
from urds.verbs.device import find_device

DEVICES = ("shm0", "tcp0", "udp0")
HOST = "127.0.0.1"
WAIT_S = ENDLESS_S
# The machine is shared by many tests: how much longer than asked a wait may take.
LATE_S = BUSY_S


class World:
    """Makes sockets and closes them at the end."""

    def __init__(self, device: str, closing: contextlib.ExitStack) -> None:
        self.device = device
        self._closing = closing

    def socket(self) -> Socket:
        """Make a socket that fails a test that hangs."""
        made = Socket()
        made.settimeout(WAIT_S)
        self._closing.callback(made.close)
        return made

    def listener(self, backlog: int = 16) -> Socket:
        listener = self.socket()
        listener.bind((HOST, 0))
        listener.listen(backlog)
        return listener

    def pair(self) -> tuple[Socket, Socket]:
        """Return two connected ends."""
        listener, client = self.listener(), self.socket()
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
        accepted.settimeout(WAIT_S)
        self.keep(accepted)
        listener.close()
        return client, accepted

    def keep(self, socket: Socket) -> None:
        """Close a socket at the end that another test has made."""
        self._closing.callback(socket.close)

    def pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        for end in ends:
            self._closing.callback(os.close, end)
        return ends

    def later(self, call: Callable[[], object], after_s: float = 0.05) -> threading.Timer:
        """Call something on another thread, soon."""
        timer = threading.Timer(after_s, call)
        timer.start()
        self._closing.callback(timer.join)
        return timer


@contextlib.contextmanager
def world(device: str) -> Iterator[World]:
    """Open one device for a while, and use nothing but that."""
    with contextlib.ExitStack() as closing:
        adapter = find_device(device).open_adapter()
        closing.callback(adapter.close)
        closing.enter_context(devices.use(adapter))
        with contextlib.ExitStack() as sockets:
            yield World(device, sockets)


def fill(socket: Socket) -> int:
    """Send without waiting until nothing more is taken; return how many bytes were."""
    socket.setblocking(False)
    sent, end_s = 0, time.monotonic() + WAIT_S
    rejects = 0
    while rejects < 20 and time.monotonic() < end_s:
        try:
            sent += socket.send(bytes(1 << 16))
            rejects = 0
        except BlockingIOError:
            rejects += 1
            time.sleep(0.002)
    return sent


def drain(socket: Socket, count: int) -> None:
    """Receive that many bytes."""
    socket.settimeout(WAIT_S)
    while count:
        count -= len(socket.recv(min(count, 1 << 18)))
