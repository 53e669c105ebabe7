"""Have `socket.socket` and what calls it make rsockets of TCP's sockets, in this process.

Served are AF_INET and AF_INET6 streams: `socket.socket`, `socket.create_connection`,
`socket.create_server`, and so `http.server`, `http.client`, `socketserver` and the like; and
`ssl.SSLContext.wrap_socket`. Everything else stays with the kernel: datagrams, other families,
classes derived from `socket.socket`, sockets made of a descriptor, other processes (children
too), and code in C that has sockets of its own. Both ends of a connection must be rsockets.
"""

from __future__ import annotations

import socket
from typing import Final

from urds.common import socket_class
from urds.rsocket.stream_socket import StreamSocket

_FAMILIES: Final = (-1, socket.AF_INET, socket.AF_INET6)
_TYPES: Final = (-1, socket.SOCK_STREAM)
_FLAGS: Final = int(socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
_PROTOCOLS: Final = (-1, 0, socket.IPPROTO_TCP)


def install() -> None:
    """Make each new TCP socket of this process an rsocket; idempotent."""
    from urds.rsocket import tls  # which costs the import of OpenSSL

    socket_class.serve(_choice)
    tls.serve()


def uninstall() -> None:
    """Let `socket.socket` ask the kernel again; rsockets already made stay as they are."""
    from urds.rsocket import tls

    socket_class.withdraw(_choice)
    tls.withdraw()


def _choice(family: int, kind: int, proto: int) -> type[StreamSocket] | None:
    kind = kind if kind == -1 else kind & ~_FLAGS
    is_tcp = family in _FAMILIES and kind in _TYPES and proto in _PROTOCOLS
    return StreamSocket if is_tcp else None
