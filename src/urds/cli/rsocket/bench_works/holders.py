"""The two processes of `urds rsocket bench connections`: one holds all clients, one all servers.

The server waits for all its connections at once, in `Repoll` or the kernel's epoll, and echoes each
message. The client makes them in batches, so that connects overlap, and does one work per line of
standard input; both report on request what they hold. Lines are JSON objects.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from urds.cli.child import run_child, start_line
from urds.cli.rsocket.sockets import (
    KERNEL,
    LOOPBACK,
    AnySocket,
    choose_devices,
    listening,
    new_socket,
)
from urds.common.progress import progress_thread

_BATCH: Final = 16  # connects under way: as many as tcp0 lets one host have unanswered
_BACKLOG: Final = 1024
_BYTES: Final = 64  # of an echo
_WAIT_S: Final = 60.0
_STDIN: Final = -1
_LISTENER: Final = -2


class Waiting:
    """A set of sockets to wait for: `Repoll`, or the kernel's epoll. Members have numbers."""

    def __init__(self, *, is_kernel: bool) -> None:
        self._is_kernel = is_kernel
        self._numbers: dict[int, int] = {}
        if is_kernel:
            self._set: Any = select.epoll()
        else:
            from urds import rsocket

            self._set = rsocket.Repoll()

    def add(self, file: Any, number: int, events: int = select.EPOLLIN) -> None:
        """Wait for a socket or a descriptor, too."""
        if self._is_kernel:
            self._numbers[file if isinstance(file, int) else file.fileno()] = number
            self._set.register(file, events)
        else:
            self._set.register(file, events, number)

    def remove(self, file: Any) -> None:
        """Wait for it no more."""
        self._set.unregister(file)

    def ready(self, wait_s: float | None) -> list[int]:
        """Return the numbers of members that are ready."""
        found = self._set.poll(wait_s)
        return [self._numbers[name] if self._is_kernel else name for name, _ in found]

    def close(self) -> None:
        """Close the set."""
        self._set.close()


def held() -> dict[str, int]:
    """Return what this process has: resident bytes, descriptors, threads, blocks of Python."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {
        "resident_bytes": pages * resource.getpagesize(),
        "descriptors": _entries("/proc/self/fd") - 1,  # the listing has one itself
        "threads": _entries("/proc/self/task"),
        "blocks": sys.getallocatedblocks(),
    }


def _entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def _begin(is_kernel: bool) -> None:
    """Make what a process has once: the first close that has to linger would, or none."""
    if not is_kernel:
        progress_thread.call_soon(lambda: None)


# -- the server


def serve(way: str) -> None:
    """Echo on every connection until standard input ends."""
    is_kernel = way == KERNEL
    _begin(is_kernel)
    waiting, sockets = Waiting(is_kernel=is_kernel), dict[int, AnySocket]()
    place, made = memoryview(bytearray(_BYTES)), 0
    listener = new_socket(is_kernel=is_kernel)
    with listening(listener, (LOOPBACK, 0), backlog=_BACKLOG):
        listener.setblocking(False)
        waiting.add(listener, _LISTENER)
        waiting.add(sys.stdin.fileno(), _STDIN)
        _tell(port=listener.getsockname()[1])
        while True:
            for number in waiting.ready(None):
                if number == _STDIN:
                    if not sys.stdin.readline():
                        return
                    _tell(connections=len(sockets), **held())
                elif number == _LISTENER:
                    with suppress(BlockingIOError):
                        while True:
                            sock = listener.accept()[0]
                            sock.setblocking(False)
                            sockets[made] = sock
                            waiting.add(sock, made)
                            made += 1
                else:
                    _echo(waiting, sockets, number, place)


def _echo(waiting: Waiting, sockets: dict[int, AnySocket], number: int, place: memoryview) -> None:
    sock = sockets[number]
    try:
        count = sock.recv_into(place)
        if count:
            sock.sendall(place[:count])
            return
    except BlockingIOError:
        return
    except ConnectionError:
        pass
    waiting.remove(sock)
    sock.close()
    del sockets[number]


# -- the client


class Client:
    """All connections of one side, and what is done with them."""

    def __init__(self, way: str, port: int) -> None:
        self._is_kernel = way == KERNEL
        _begin(self._is_kernel)
        self._target = (LOOPBACK, port)
        self._sockets: list[AnySocket] = []
        self._place = memoryview(bytearray(_BYTES))

    def connect(self, count: int) -> dict[str, float]:
        """Make so many more, in batches; return the seconds of each phase."""
        create_s = ask_s = wait_s = 0.0
        clock_s = time.perf_counter
        while count:
            batch = min(count, _BATCH)
            start_s = clock_s()
            made = [new_socket(is_kernel=self._is_kernel) for _ in range(batch)]
            for sock in made:
                sock.setblocking(False)
            created_s = clock_s()
            for sock in made:
                with suppress(BlockingIOError):
                    sock.connect(self._target)
            asked_s = clock_s()
            self._await_all(made)
            create_s += created_s - start_s
            ask_s += asked_s - created_s
            wait_s += clock_s() - asked_s
            self._sockets += made
            count -= batch
        return {"create": create_s, "ask": ask_s, "wait": wait_s}

    def _await_all(self, made: list[AnySocket]) -> None:
        waiting = Waiting(is_kernel=self._is_kernel)
        for number, sock in enumerate(made):
            waiting.add(sock, number, select.EPOLLOUT)
        left = set(range(len(made)))
        while left:
            ready = waiting.ready(_WAIT_S)
            if not ready:
                raise TimeoutError(f"{len(left)} connects were not answered")
            for number in ready:
                sock = made[number]
                error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    raise OSError(error, os.strerror(error))
                waiting.remove(sock)
                sock.setblocking(True)
                left.discard(number)
        waiting.close()

    def echo_each(self) -> dict[str, float]:
        """Do one echo on each connection, one after another; return the seconds."""
        start_s = time.perf_counter()
        for number, sock in enumerate(self._sockets):
            self._echo(sock, number)
        return {"echo": time.perf_counter() - start_s}

    def echo_one(self, count: int) -> dict[str, float]:
        """Do echoes on one connection while the others are idle; return the median's seconds."""
        sock, times_s = self._sockets[len(self._sockets) // 2], []
        for number in range(count):
            start_s = time.perf_counter()
            self._echo(sock, number)
            times_s.append(time.perf_counter() - start_s)
        return {"median": sorted(times_s)[count // 2]}

    def _echo(self, sock: AnySocket, number: int) -> None:
        data = number.to_bytes(8, "big") * (_BYTES // 8)
        sock.sendall(data)
        taken = 0
        while taken < _BYTES:
            count = sock.recv_into(self._place[taken:])
            if not count:
                raise ConnectionError(f"connection {number} ended")
            taken += count
        if bytes(self._place) != data:
            raise OSError(f"connection {number} echoed other bytes")

    def close(self) -> dict[str, float]:
        """Close all; return the seconds."""
        start_s = time.perf_counter()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        return {"close": time.perf_counter() - start_s}

    def held(self) -> dict[str, Any]:
        """Return what this process has now."""
        return {"connections": len(self._sockets), **held()}


def main() -> int:
    """Run one of both."""
    start = start_line()
    way = start["way"]
    choose_devices(() if way == KERNEL else (way,))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        if start["port"] is None:
            serve(way)
        else:
            client = Client(way, start["port"])
            _tell(port=start["port"])
            for line in sys.stdin:
                command = json.loads(line)
                _tell(answer=getattr(client, command["work"])(**command["details"]))
    except OSError as failure:
        _tell(error=f"{way}: {failure}")
        return 1
    return 0


def _tell(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    run_child(main)
