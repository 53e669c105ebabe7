"""What the tools of `urds rsocket` run over: rsockets of chosen devices, or plain kernel sockets.

Both have the calls of `socket.socket`, so every tool has one set of loops and a baseline of the
same program (`-T s`). Which devices rsockets open is decided once per process, before the first
one is made; a tool that compares devices therefore starts a process for each.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, Self

from urds import verbs
from urds.cli.exits import UsageError

KERNEL: Final = "kernel"
DEVICES_VARIABLE: Final = "URDS_RSOCKET_DEVICES"
LOOPBACK: Final = "127.0.0.1"
_SHORT_NAMES: Final = {"shm": "shm0", "tcp": "tcp0", "udp": "udp0"}


class AnySocket(Protocol):
    """What a tool needs of a socket, by the calls of `socket.socket`."""

    def bind(self, address: Any, /) -> None:
        """Take a local address."""

    def listen(self, backlog: int, /) -> None:
        """Let others connect."""

    def accept(self) -> tuple[Any, Any]:
        """Return the next connection and where it comes from."""

    def connect(self, address: Any, /) -> None:
        """Connect."""

    def sendall(self, data: Any, /) -> None:
        """Send everything."""

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send what fits now."""

    def sendto(self, data: Any, address: Any, /) -> int:
        """Send one datagram."""

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0, /) -> int:
        """Receive into a buffer."""

    def recvfrom_into(self, buffer: Any, /) -> tuple[int, Any]:
        """Receive one datagram and where it comes from."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Set an option."""

    def getsockopt(self, level: int, option: int, /) -> int:
        """Return an option."""

    def setblocking(self, flag: bool, /) -> None:
        """Wait in calls, or not."""

    def settimeout(self, value: float | None, /) -> None:
        """Wait so many seconds in calls."""

    def getsockname(self) -> Any:
        """Return the local address."""

    def shutdown(self, how: int, /) -> None:
        """End one direction or both."""

    def fileno(self) -> int:
        """Return a descriptor for `select.poll`."""

    def close(self) -> None:
        """Close."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(self, *_: Any) -> None:
        """Close."""


def device_names(text: str) -> tuple[str, ...]:
    """Return the devices of a comma list; `shm` is short for shm0. Raises UsageError."""
    names = tuple(_SHORT_NAMES.get(name, name) for name in text.split(",") if name)
    known = [device.name for device in verbs.get_device_list()]
    for name in names:
        if name not in known:
            raise UsageError(f"--device {name}, there are {', '.join(known)}")
    return names


def choose_devices(names: tuple[str, ...]) -> None:
    """Let the rsockets of this process, and of its children, open these devices; none: default."""
    if names:
        os.environ[DEVICES_VARIABLE] = ",".join(names)


def new_socket(
    *, is_kernel: bool, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM
) -> AnySocket:
    """Make a socket of the kernel, or an rsocket."""
    if is_kernel:
        return socket.socket(family, kind)
    from urds import rsocket

    return rsocket.Socket(family, kind)


def new_memory(octets: int, *, is_kernel: bool) -> memoryview:
    """Return zeroed memory to receive into: what rsockets reach without a copy, if it is theirs."""
    if is_kernel:
        return memoryview(bytearray(octets))
    from urds import rsocket

    return rsocket.allocate(octets)


@contextmanager
def listening(sock: AnySocket, address: Any, *, backlog: int = 16) -> Iterator[AnySocket]:
    """Listen at an address; port 0 takes a free one."""
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(backlog)
        yield sock
