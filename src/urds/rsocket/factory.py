"""Functions that make sockets, as the `socket` module has them."""

from __future__ import annotations

import socket as system
from socket import AF_INET, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET
from typing import Any

from urds.rsocket.socket import Socket
from urds.rsocket.stream_socket import BACKLOG_DEFAULT


class _Unset:
    """The mark of an argument that was not given, for None is a value."""


_UNSET = _Unset()


def socket(family: int = AF_INET, type: int = SOCK_STREAM, proto: int = 0) -> Socket:
    """Return a new socket, as `socket.socket` does; see `Socket`."""
    return Socket(family, type, proto)


def create_connection(
    address: tuple[str, int],
    timeout: float | _Unset | None = _UNSET,
    source_address: tuple[str, int] | None = None,
) -> Socket:
    """Connect to a host and port, trying each address of the host; return the socket.

    `timeout`, in seconds, bounds each attempt and stays the socket's. Raises OSError: that of the
    last attempt.
    """
    host, port = address
    problem: OSError | None = None
    for family, _, _, _, name in system.getaddrinfo(host, port, type=SOCK_STREAM):
        try:
            made = Socket(family)
        except OSError as error:
            problem = error
            continue
        try:
            if not isinstance(timeout, _Unset):
                made.settimeout(timeout)
            if source_address is not None:
                made.bind(source_address)
            made.connect(name)
            return made
        except OSError as error:
            problem = error
            made.close()
        except BaseException:
            made.close()
            raise
    raise problem or OSError(f"no address of {host!r}")


def create_server(address: Any, *, family: int = AF_INET, backlog: int = BACKLOG_DEFAULT) -> Socket:
    """Return a socket that listens at an address, of which a closed one may be a moment ago."""
    made = Socket(family)
    try:
        made.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(backlog)
    except BaseException:
        made.close()
        raise
    return made
