"""A second process with sockets of its own, over the carrier of this one.

Calls are sent as they are, `peer.socket().sendto(…)`; what they return or raise comes back.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from tests.rds.sockets.hosts import host

ANSWER_S = 20.0
END_S = 5.0


class RemoteSocket:
    """Stands for a socket of the other process."""

    def __init__(self, peer: RemotePeer, number: int) -> None:
        self._peer = peer
        self._number = number

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._peer.ask(self._number, name, arguments)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function of a module there, with the socket as its first argument."""
        return self._peer.ask(self._number, function, arguments)


class RemotePeer:
    """The process, for a `with` block; `settings` are its tunables."""

    def __init__(self, **settings: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._link, there = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(there, settings), daemon=True)
        self._process.start()
        there.close()

    def socket(self) -> RemoteSocket:
        """Make a socket there."""
        return RemoteSocket(self, self.ask(None, "socket", ()))

    def receive_one(self, sender: Any) -> None:
        """Bind `sender` here and a socket there, and have one message arrive."""
        receiver = self.socket()
        receiver.bind((host(2), 4000))
        sender.bind((host(1), 0))
        sender.sendto(b"x", (host(2), 4000))
        receiver.settimeout(ANSWER_S / 2)
        assert receiver.recv(10) == b"x"

    def ask(self, number: int | None, call: str | Callable[..., Any], arguments: Any) -> Any:
        """Have a call made; return or raise what it did. Raises TimeoutError without an answer."""
        self._link.send((number, call, arguments))
        if not self._link.poll(ANSWER_S):
            raise TimeoutError(f"no answer to {call} within {ANSWER_S:g} s")
        good, value = self._link.recv()
        if not good:
            raise value
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._link.close()
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(link: Connection, settings: dict[str, Any]) -> None:
    """Answer calls until the other side hangs up."""
    import urds

    urds.configure(**settings)
    sockets: dict[int, urds.Socket] = {}
    numbers = itertools.count()
    while True:
        try:
            number, call, arguments = link.recv()
        except EOFError:
            break
        try:
            if number is None:
                number = next(numbers)
                sockets[number] = urds.Socket()
                value: Any = number
            elif callable(call):
                value = call(sockets[number], *arguments)
            else:
                value = getattr(sockets[number], call)(*arguments)
            answer = (True, value)
        except Exception as failure:  # whatever it is belongs to the caller
            answer = (False, failure)
        link.send(answer)
    for sock in sockets.values():
        sock.close()
