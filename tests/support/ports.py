"""Ports for programs that are told one, as free as the kernel can say; and the one host of IPv6."""

import errno
import fcntl
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TRIED_MAX = 64


@contextmanager
def sole_ipv6_host() -> Iterator[None]:
    """Wait until no other test process of this machine is the host ::1.

    One process can be, at the fixed port of RDS; of IPv4 each has a subnet of its own.
    """
    with (Path(tempfile.gettempdir()) / "urds-tests-ipv6-host").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    """Return a port that no socket of TCP or UDP has at any address of IPv4.

    The kernel draws it, and seldom the same again soon: tests beside this one get others.
    """
    for _ in range(_TRIED_MAX):
        with (
            socket.socket() as stream,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        ):
            stream.bind(("", 0))
            port: int = stream.getsockname()[1]
            try:
                datagrams.bind(("", port))
            except OSError as failure:
                if failure.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    raise AssertionError(f"no port is free for both in {_TRIED_MAX} tries")
