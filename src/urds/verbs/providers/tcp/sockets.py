"""Sockets of the tcp provider: addresses, options, a TCP listener."""

import errno
import ipaddress
import socket
from contextlib import suppress
from struct import Struct
from typing import Any, Final

from urds.common.ip_sockets import name_of
from urds.common.socket_class import KernelSocket
from urds.common.types import HostPort

_LINGER: Final = Struct("ii")


def resolve(address: HostPort) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Return family and socket address of a numeric IP and port. Raises OSError (EINVAL)."""
    host, port = address
    try:
        ip = ipaddress.ip_address(host)
        if not 0 <= port <= 0xFFFF:
            raise ValueError
    except ValueError:
        raise OSError(errno.EINVAL, f"no numeric IP address and port: {host!r}, {port}") from None
    return socket.AF_INET if ip.version == 4 else socket.AF_INET6, name_of(host, port)


def host_of(gid: bytes) -> str:
    """Return the numeric address that a GID stands for."""
    ip = ipaddress.IPv6Address(gid)
    return str(ip.ipv4_mapped or ip)


def prepare(connection: socket.socket, *, send_bytes: int = 0, receive_bytes: int = 0) -> None:
    """Set what every TCP connection has: no Nagle, no waiting, keep-alive, buffer sizes."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A host that vanished is found out after 5 s and five more tries.
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 5)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if send_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)


def reset(connection: socket.socket) -> None:
    """Make the close send a RST: the peer sees ECONNRESET."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(1, 0))


def listening(local: HostPort, *, backlog: int) -> socket.socket:
    """Return a listening, non-blocking socket. Raises OSError: EADDRINUSE, EADDRNOTAVAIL."""
    family, name = resolve(local)
    listener = KernelSocket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(name)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
