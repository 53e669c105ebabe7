"""Connected pairs of rsockets in one process, over a device, and threads to use them from."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from urds.rsocket.link import devices
from urds.rsocket.socket import Socket
from urds.rsocket.stream_socket import create_connection, create_server

DEVICES = ("shm0", "tcp0", "udp0")
HOST = "127.0.0.1"
WAIT_S = 20.0


@contextmanager
def using(names: str) -> Iterator[None]:
    """Let sockets made meanwhile use these devices."""
    before = os.environ.get(devices.DEVICES_VARIABLE)
    os.environ[devices.DEVICES_VARIABLE] = names
    try:
        yield
    finally:
        if before is None:
            del os.environ[devices.DEVICES_VARIABLE]
        else:
            os.environ[devices.DEVICES_VARIABLE] = before


def error_of(call: Callable[..., object], *arguments: object) -> int:
    """Return the errno of the OSError that a call raises."""
    with pytest.raises(OSError) as caught:
        call(*arguments)
    assert caught.value.errno is not None
    return caught.value.errno


class Pair:
    """A listener, a socket connected to it, and the one it accepted."""

    def __init__(self) -> None:
        self.listener = create_server((HOST, 0))
        self.listener.settimeout(WAIT_S)
        self.client = create_connection(self.listener.getsockname(), WAIT_S)
        self.server, self.client_address = self.listener.accept()
        self.server.settimeout(WAIT_S)

    @property
    def both(self) -> tuple[Socket, Socket]:
        return self.client, self.server

    def close(self) -> None:
        for one in (self.client, self.server, self.listener):
            one.close()


@contextmanager
def pair_over(names: str) -> Iterator[Pair]:
    """Make a pair over these devices."""
    with using(names):
        made = Pair()
        try:
            yield made
        finally:
            made.close()


class Task:
    """A call in a thread of its own, whose result or error is asked for later."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        """Wait for the call; return or raise what it did."""
        self._thread.join(WAIT_S)
        assert self.is_done, "the call has not come back"
        if self._error is not None:
            raise self._error
        return self._result


def receive_exactly(source: Socket, byte_count: int) -> bytes:
    """Receive until there are so many bytes, or the end."""
    found = bytearray()
    while len(found) < byte_count and (data := source.recv(byte_count - len(found))):
        found += data
    return bytes(found)
