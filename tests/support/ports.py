"""Ports for programs that are told one, as free as the kernel can say; and the one host of IPv6."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.waiting import wait_until
from urds.rds.constants import RDS_TCP_PORT

_HELD_S_MAX = 120.0
_TRIED_MAX = 64


@contextmanager
def sole_ipv6_host() -> Iterator[None]:
    """Wait until no other test process of this network namespace is the host ::1, of any user.

    One process can be, at the fixed port of RDS; of IPv4 each has a subnet of its own.
    """
    with socket.socket(socket.AF_UNIX) as held:
        wait_until(lambda: _takes(held, "\0urds-tests-ipv6-host"), _HELD_S_MAX)
        wait_until(_is_released)  # a node keeps an address for `idle_s` behind its last socket
        yield


def _is_released() -> bool:
    """Tell whether no process is the host ::1."""
    with socket.socket(socket.AF_INET6) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("::1", RDS_TCP_PORT))
        except OSError as failure:
            if failure.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def _takes(held: socket.socket, name: str) -> bool:
    """Bind to an abstract name, which ends with the process; return False if another has it."""
    try:
        held.bind(name)
    except OSError as failure:
        if failure.errno != errno.EADDRINUSE:
            raise
        return False
    return True


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
