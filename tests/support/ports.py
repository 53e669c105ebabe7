"""Ports for programs that are told one: as free as the kernel can say."""

import errno
import socket

_TRIED_MAX = 64


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
