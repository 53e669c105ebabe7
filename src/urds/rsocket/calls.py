"""The r* calls: what rdma/rsocket.h declares, over integer descriptors, with results of Python.

A number is what `rsocket` or `raccept` gave, and a descriptor, so that it can be polled; no other
call of the system works on it. A `Socket` that the program made itself has methods instead. Errors
are OSError with the errno of the original; data are returned, not filled in, but for the calls that
take several buffers. Source: docs/reference/rsocket.md 11.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from socket import AF_INET, SHUT_RDWR, SOCK_CLOEXEC, SOCK_STREAM
from typing import Any, Final

from urds.rsocket.constants import ANY_OFFSET, PROT_WRITE
from urds.rsocket.errors import os_error
from urds.rsocket.poll import forget, register, socket_of
from urds.rsocket.repoll import close_instance
from urds.rsocket.socket import Socket
from urds.rsocket.stream_socket import BACKLOG_DEFAULT

_close_on_exec: Final[set[int]] = set()  # only remembered: a child has no rsockets anyway


# -- numbers


def _known(descriptor: int) -> Socket:
    socket = socket_of(descriptor)
    if socket is None:
        raise os_error(errno.EBADF, f"{descriptor} is no number of rsocket() or raccept()")
    return socket


# -- making and connecting


def rsocket(domain: int = AF_INET, type: int = SOCK_STREAM, protocol: int = 0) -> int:
    """Make a socket; return its number. Raises OSError: ENOTSUP, EMFILE; SettingError."""
    number = register(Socket(domain, type, protocol))
    if type & SOCK_CLOEXEC:
        _close_on_exec.add(number)
    return number


def rbind(descriptor: int, address: Any) -> None:
    """Take a local address; see `Socket.bind`."""
    _known(descriptor).bind(address)


def rlisten(descriptor: int, backlog: int = BACKLOG_DEFAULT) -> None:
    """Listen; see `Socket.listen`."""
    _known(descriptor).listen(backlog)


def raccept(descriptor: int) -> tuple[int, Any]:
    """Take the next connection; return its number and the peer's address.

    Raises OSError: EBADF (not listening), EAGAIN.
    """
    listener = _known(descriptor)
    try:
        accepted, address = listener.accept()
    except OSError as refused:
        if refused.errno == errno.EINVAL:
            raise os_error(errno.EBADF, f"{descriptor} does not listen") from None
        raise
    return register(accepted), address


def rconnect(descriptor: int, address: Any) -> None:
    """Connect; see `Socket.connect`."""
    _known(descriptor).connect(address)


def rshutdown(descriptor: int, how: int = SHUT_RDWR) -> None:
    """End one direction or both; see `Socket.shutdown`."""
    _known(descriptor).shutdown(how)


def rclose(descriptor: int) -> None:
    """Close, an instance of `repoll_create` too. Raises OSError: EBADF."""
    if close_instance(descriptor):
        return
    socket = _known(descriptor)
    forget(descriptor)
    _close_on_exec.discard(descriptor)
    socket.close()


# -- receiving


def rrecv(descriptor: int, bytes_max: int, flags: int = 0) -> bytes:
    """Receive; see `Socket.recv`."""
    return _known(descriptor).recv(bytes_max, flags)


def rrecvfrom(descriptor: int, bytes_max: int, flags: int = 0) -> tuple[bytes, Any]:
    """Receive; return the bytes and whose they are."""
    return _known(descriptor).recvfrom(bytes_max, flags)


def rrecvmsg(
    descriptor: int, buffers: Iterable[Any], flags: int = 0, *, ancillary_bytes_max: int = 0
) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
    """Receive into all buffers; see `Socket.recvmsg_into`."""
    return _known(descriptor).recvmsg_into(buffers, ancillary_bytes_max, flags)


def rread(descriptor: int, bytes_max: int) -> bytes:
    """Receive without flags."""
    return _known(descriptor).recv(bytes_max)


def rreadv(descriptor: int, buffers: Iterable[Any]) -> int:
    """Receive into all buffers; return how many bytes."""
    return _known(descriptor).recvmsg_into(buffers)[0]


# -- sending


def rsend(descriptor: int, data: Any, flags: int = 0) -> int:
    """Send; return how many bytes were taken. See `Socket.send`."""
    return _known(descriptor).send(data, flags)


def rsendto(descriptor: int, data: Any, address: Any, flags: int = 0) -> int:
    """Send to an address; a stream takes None only, else EISCONN."""
    if address is None:
        return _known(descriptor).send(data, flags)
    return _known(descriptor).sendto(data, flags, address)


def rsendmsg(
    descriptor: int,
    buffers: Iterable[Any],
    flags: int = 0,
    *,
    ancillary: Iterable[tuple[int, int, Any]] = (),
    address: Any = None,
) -> int:
    """Send all buffers; see `Socket.sendmsg`."""
    return _known(descriptor).sendmsg(buffers, ancillary, flags, address)


def rwrite(descriptor: int, data: Any) -> int:
    """Send without flags."""
    return _known(descriptor).send(data)


def rwritev(descriptor: int, buffers: Iterable[Any]) -> int:
    """Send all buffers; return how many bytes were taken."""
    return _known(descriptor).sendmsg(buffers)


# -- names, options, flags


def rgetpeername(descriptor: int) -> Any:
    """Return the peer's address. Raises OSError: EBADF, ENOTCONN."""
    return _known(descriptor).getpeername()


def rgetsockname(descriptor: int) -> Any:
    """Return our address. Raises OSError: EBADF."""
    return _known(descriptor).getsockname()


def rsetsockopt(descriptor: int, level: int, option: int, value: Any) -> None:
    """Set an option; see `Socket.setsockopt`."""
    _known(descriptor).setsockopt(level, option, value)


def rgetsockopt(descriptor: int, level: int, option: int, buffer_bytes: int = 0) -> Any:
    """Return an option; see `Socket.getsockopt`."""
    return _known(descriptor).getsockopt(level, option, buffer_bytes)


def rfcntl(descriptor: int, command: int, argument: int = 0) -> int:
    """Get or set flags: O_NONBLOCK acts, FD_CLOEXEC is remembered. Raises OSError: ENOTSUP."""
    socket = _known(descriptor)
    if command == fcntl.F_GETFL:
        return os.O_RDWR | (0 if socket.getblocking() else os.O_NONBLOCK)
    if command == fcntl.F_SETFL:
        socket.setblocking(not argument & os.O_NONBLOCK)
    elif command == fcntl.F_GETFD:
        return fcntl.FD_CLOEXEC if descriptor in _close_on_exec else 0
    elif command != fcntl.F_SETFD:
        raise os_error(errno.ENOTSUP, f"fcntl command {command}")
    elif argument & fcntl.FD_CLOEXEC:
        _close_on_exec.add(descriptor)
    else:
        _close_on_exec.discard(descriptor)
    return 0


# -- mapped buffers


def riomap(
    descriptor: int,
    buffer: Any,
    protection: int = PROT_WRITE,
    flags: int = 0,
    offset: int = ANY_OFFSET,
) -> int:
    """Let the peer write into a buffer; return its offset. See `Socket.map_buffer`.

    No flag means anything.
    """
    return _known(descriptor).map_buffer(buffer, offset, protection)


def riounmap(descriptor: int, buffer: Any) -> None:
    """Take a mapped buffer back; see `Socket.unmap_buffer`."""
    _known(descriptor).unmap_buffer(buffer)


def riowrite(descriptor: int, data: Any, offset: int, flags: int = 0) -> int:
    """Write into what the peer has mapped at `offset`; see `Socket.write_mapped`."""
    return _known(descriptor).write_mapped(data, offset, flags)


os.register_at_fork(after_in_child=_close_on_exec.clear)
