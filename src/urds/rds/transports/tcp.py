"""TCP connections as RDS/TCP wants them: listening, connecting, their options.

It knows addresses and sockets, no message and no rule of connecting; those are `control`'s. Port
16385, TCP_NODELAY on both sides, keep-alive 5 s / 5 s / 5, the local end bound to the RDS address,
since a peer takes the connection's addresses for the RDS addresses.
Source: linux v6.12 net/rds/tcp.c, net/rds/tcp_listen.c, net/rds/tcp_connect.c.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
from collections.abc import Iterable
from contextlib import suppress
from struct import Struct
from typing import Final, Self

from urds.common.errors import ErrorReason, os_error
from urds.common.ip_sockets import name_of
from urds.common.records import record
from urds.common.socket_class import KernelSocket
from urds.common.types import IPAddress

_BACKLOG = 64
_SIOCINQ = 0x541B
_SIOCOUTQ = 0x5411
_INT = Struct("i")
_LINGER = Struct("ii")
_PORT_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
PORT_RANGE_DEFAULT: Final = (32768, 60999)
_UNSPECIFIED: Final = bytes(16)  # a socket address of family AF_UNSPEC


@record(kw_only=True)
class TcpSettings:
    """Options of every connection; 0 leaves a buffer to the kernel's own tuning."""

    port: int = 16385
    send_buffer_bytes: int = 0
    receive_buffer_bytes: int = 0
    keepalive_idle_s: int = 5
    keepalive_interval_s: int = 5
    keepalive_count: int = 5


class TcpStream(socket.socket):
    """A connected, non-blocking TCP socket; a `plane.contract.Stream`."""

    @classmethod
    def take(cls, connection: socket.socket) -> Self:
        """Take over a socket's descriptor."""
        stream = cls(fileno=connection.detach())
        stream.setblocking(False)
        return stream

    def expect(self, byte_count: int, /) -> None:
        """Be readable only once so many bytes are here; the kernel caps it by its buffer.

        Source: socket(7), SO_RCVLOWAT; linux v6.12 net/ipv4/tcp.c (tcp_set_rcvlowat).
        """
        with suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, byte_count)

    def waiting(self) -> int:
        """Return the bytes that `recv` would give, 0 once closed. Source: tcp(7), SIOCINQ."""
        byte_count = 0
        with suppress(OSError, ValueError):  # another thread may close it at any time
            byte_count = _INT.unpack(fcntl.ioctl(self, _SIOCINQ, bytes(_INT.size)))[0]
        return byte_count

    def unacknowledged(self) -> int:
        """Return the bytes written that the peer's TCP has not acknowledged; true after a reset.

        Source: tcp(7), SIOCOUTQ.
        """
        byte_count: int = _INT.unpack(fcntl.ioctl(self, _SIOCOUTQ, bytes(_INT.size)))[0]
        return byte_count

    def unanswered_retransmits(self) -> int:
        """Return how often TCP has retransmitted its oldest bytes since the peer last took any.

        A peer with a closed window is probed instead, and counts 0 while it answers. Before the
        connection stands, its request counts. Source: tcp(7), TCP_INFO; linux v6.12
        include/uapi/linux/tcp.h (tcpi_retransmits), net/ipv4/tcp_timer.c.
        """
        with suppress(OSError):
            return self.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 3)[2]
        return 0

    def abort_on_close(self) -> None:
        """Have the descriptor end with a reset, which drops what is not acknowledged."""
        with suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(1, 0))

    def reset(self) -> None:
        """Close with a reset: nothing stays in TIME_WAIT, the peer learns at once."""
        self.abort_on_close()
        self.close()


def listen(local: IPAddress, settings: TcpSettings) -> socket.socket:
    """Listen on the local address.

    Raises OSError: EADDRNOTAVAIL if no interface has the address, EADDRINUSE if another process
    (or a kernel's rds_tcp) has its port.
    """
    listener = _new_socket(local)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(name_of(str(local), settings.port))
        listener.listen(_BACKLOG)
    except OSError as failure:
        listener.close()
        if failure.errno == errno.EADDRINUSE:
            detail = (
                f"{local} is held by another process (TCP port {settings.port}): end it, start"
                " both after `urds node`, through which processes share addresses, or bind another"
                " address; on loopback each of 127.0.0.0/8 is a host of its own"
            )
            raise os_error(ErrorReason.ADDRESS_HELD_BY_PROCESS, detail) from failure
        if failure.errno in (errno.EADDRNOTAVAIL, errno.EINVAL, errno.EACCES):
            raise os_error(ErrorReason.NOT_LOCAL, f"no interface has {local}") from failure
        raise
    listener.setblocking(False)
    return listener


def accept(
    listener: socket.socket, settings: TcpSettings
) -> tuple[TcpStream, tuple[str, int]] | None:
    """Take one waiting connection with the peer's address and port, None if there is none."""
    while True:
        try:
            connection, name = listener.accept()
        except (BlockingIOError, InterruptedError):
            return None
        except ConnectionAbortedError:
            continue  # it came and went
        stream = TcpStream.take(connection)
        _prepare(stream, settings)
        return stream, (_host_of(name), name[1])


def connect(
    local: IPAddress,
    peer: IPAddress,
    settings: TcpSettings,
    source_ports: Iterable[int] | None = None,
) -> TcpStream:
    """Begin to connect; the stream is writable when it stands or failed (`connect_error`).

    With `source_ports` the first free one is taken. Raises OSError if not even a beginning was
    possible, EADDRINUSE if none of the ports is free.
    """
    for port in (0,) if source_ports is None else source_ports:
        stream = TcpStream.take(_new_socket(local))
        taken: tuple[int, ...] = (errno.EADDRINUSE,)
        try:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _prepare(stream, settings)
            stream.bind(name_of(str(local), port))
            # Of a bound socket it means that the port is taken; of `bind`, that no interface has
            # the address, and no other port would help.
            taken = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
            failure = stream.connect_ex(name_of(str(peer), settings.port))
        except OSError as error:
            failure = error.errno or errno.EIO
        if failure in (0, errno.EINPROGRESS):
            return stream
        stream.close()
        if source_ports is None or failure not in taken:
            raise OSError(failure, f"{os.strerror(failure)}: from {local} to {peer}")
    raise OSError(errno.EADDRINUSE, f"no source port is free from {local} to {peer}")


def connect_error(stream: TcpStream) -> int:
    """Return the errno of a finished attempt to connect, 0 if it stands."""
    return stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def is_decided(stream: TcpStream) -> bool:
    """Tell whether an attempt to connect has finished, well or not."""
    poll = select.poll()
    poll.register(stream, select.POLLOUT)
    return bool(poll.poll(0))


def port_range() -> tuple[int, int]:
    """Return the lowest and highest port that the system gives out by itself."""
    try:
        with open(_PORT_RANGE) as text:  # noqa: PTH123 - pathlib is not worth its import here
            low, high = map(int, text.read().split())
    except (OSError, ValueError):
        return PORT_RANGE_DEFAULT
    return low, high


def reset_in_place(stream: socket.socket) -> None:
    """Make both ends of a connection see a reset while its descriptor stays open.

    A fault on purpose, for tests and demonstrations; no running node uses it.
    Received but unread bytes are thrown away, although TCP acknowledged them: as harsh as a
    fault can be. Raises OSError. Source: connect(2), AF_UNSPEC dissolves the association.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.connect(stream.fileno(), _UNSPECIFIED, len(_UNSPECIFIED)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _new_socket(local: IPAddress) -> socket.socket:
    family = socket.AF_INET if local.version == 4 else socket.AF_INET6
    return KernelSocket(family, socket.SOCK_STREAM)


def _host_of(name: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """Return the peer's literal, with the scope of a link-local address as a number."""
    host = name[0].partition("%")[0]
    return f"{host}%{name[3]}" if len(name) == 4 and name[3] else host


def _prepare(stream: TcpStream, settings: TcpSettings) -> None:
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, settings.keepalive_idle_s)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, settings.keepalive_interval_s)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, settings.keepalive_count)
    if settings.send_buffer_bytes:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
    if settings.receive_buffer_bytes:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
