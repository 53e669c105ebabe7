"""`Socket`: an rsocket with the methods of `socket.socket`. What streams and datagrams share.

Kind, names, options and waiting times; `Socket(...)` makes one of the two classes that carry data.
Any thread may call anything; sending and receiving take no lock but the device's.
Source: rsocket.md sections 2, 6, 8, 11 (rdma-core 691953d8).
"""

from __future__ import annotations

import errno
import socket as system
import sys
from socket import AF_INET, IPPROTO_TCP, IPPROTO_UDP, SO_ERROR, SOCK_DGRAM, SOCK_STREAM, SOL_SOCKET
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from urds.rsocket import options, settings, socket_names
from urds.rsocket.constants import ANY_OFFSET, PROT_WRITE
from urds.rsocket.refusals import refusal
from urds.rsocket.socket_base import SocketBase

if TYPE_CHECKING:
    from urds.rsocket.datagram_link import DatagramLink
    from urds.rsocket.dgram import DatagramStats
    from urds.rsocket.link import Link
    from urds.rsocket.stream import StreamStats
    from urds.verbs.providers.base import Address

WAIT_S_MAX: Final = 1 << 31
_INT: Final = Struct("=i")
_NONBLOCK: Final = int(system.SOCK_NONBLOCK)
_FLAGS: Final = int(system.SOCK_NONBLOCK | system.SOCK_CLOEXEC)
_PROTOCOLS: Final = {SOCK_STREAM: (0, -1, IPPROTO_TCP), SOCK_DGRAM: (0, -1, IPPROTO_UDP)}


class Socket(SocketBase):
    """An rsocket; also a `socket.socket` to whoever asks with isinstance.

    What is made is a `StreamSocket` or a `DatagramSocket`: derive from one of these.
    Raises OSError (ENOTSUP) for families other than AF_INET and AF_INET6, types other than
    SOCK_STREAM and SOCK_DGRAM, protocols that do not belong to the type, and any descriptor.
    """

    __slots__ = ("_family", "_kind", "_options", "_proto", "_wait_s")

    _wait_s: float | None

    def __new__(
        cls,
        family: int = AF_INET,
        type: int = SOCK_STREAM,
        proto: int = 0,
        fileno: int | None = None,
    ) -> Self:
        """Make a socket of the class that does the type."""
        chosen: Any = cls
        if cls is Socket:
            from urds.rsocket.socket_datagrams import DatagramSocket
            from urds.rsocket.socket_streams import StreamSocket

            chosen = DatagramSocket if type & ~_FLAGS == SOCK_DGRAM else StreamSocket
        made: Self = super().__new__(chosen)
        made._closed = made._is_over = True  # until all went well
        return made

    def __init__(
        self,
        family: int = AF_INET,
        type: int = SOCK_STREAM,
        proto: int = 0,
        fileno: int | None = None,
    ) -> None:
        family, kind = AF_INET if family == -1 else family, type & ~_FLAGS
        kind = SOCK_STREAM if type == -1 else kind
        known = kind in _PROTOCOLS and proto in _PROTOCOLS[system.SocketKind(kind)]
        if family not in (AF_INET, system.AF_INET6) or not known:
            raise refusal(errno.ENOTSUP, f"family {family}, type {type:#x}, protocol {proto}")
        if fileno is not None:
            raise refusal(errno.ENOTSUP, "no rsocket can be made of a descriptor")
        self._begin(family, kind, max(proto, 0), options.defaults(settings.current()))
        if type != -1 and type & _NONBLOCK:
            self._wait_s = 0.0

    def _begin(self, family: int, kind: int, proto: int, chosen: options.Options) -> None:
        self._family, self._kind, self._proto = family, kind, proto
        self._options = chosen
        self._wait_s = system.getdefaulttimeout()
        super().__init__()

    # -- what the two kinds know

    def _local(self) -> Address | None:
        raise NotImplementedError

    def _life(self) -> options.Life:
        raise NotImplementedError

    def _take_error(self) -> int:
        raise NotImplementedError

    def _has_begun(self) -> bool:
        return self._behind() is not None

    def _apply(self, level: int, option: int) -> None:
        """Tell what stands behind about an option that has been set."""

    # -- names

    @property
    def family(self) -> system.AddressFamily:
        """AF_INET or AF_INET6."""
        return system.AddressFamily(self._family)

    @property
    def type(self) -> system.SocketKind:
        """SOCK_STREAM or SOCK_DGRAM."""
        return system.SocketKind(self._kind)

    @property
    def proto(self) -> int:
        """The protocol asked for, 0 unless one was."""
        return self._proto

    @property
    def link(self) -> Link | DatagramLink | None:
        """What carries the octets; None where there is no connection, or no more."""
        raise NotImplementedError

    @property
    def stats(self) -> StreamStats | DatagramStats | None:
        """What happened so far; None where there is no connection, or no more."""
        raise NotImplementedError

    def connect_ex(self, address: Any, /) -> int:
        """Connect; return 0 or the errno. A name that nobody knows still raises."""
        try:
            self.connect(address)
        except system.gaierror:
            raise
        except OSError as refused:
            return refused.errno or errno.EAGAIN  # a timeout of Python has none
        return 0

    def getsockname(self) -> Any:
        """Return our address; zeros before there is one."""
        self._check_open()
        return socket_names.shown(self._local() or socket_names.unbound(self._family), self._family)

    # -- options

    def setsockopt(
        self, level: int, option: int, value: Any, value_bytes: int | None = None, /
    ) -> None:
        """Set an option to an integer or to octets; see `options` for what each takes.

        Raises OSError: ENOTSUP for an unknown one, EINVAL for a bad value or one that is late.
        """
        octets = _option_octets(value, value_bytes)
        with self._lock:
            self._check_open()
            self._options = options.set_option(
                self._options,
                level=level,
                option=option,
                octets=octets,
                has_begun=self._has_begun(),
            )
            self._apply(level, option)

    def getsockopt(self, level: int, option: int, buffer_bytes: int = 0, /) -> Any:
        """Return an option as an integer, or as octets if `buffer_bytes` is given.

        SO_ERROR is what went wrong since it was last asked for. Raises OSError: ENOTSUP, EINVAL.
        """
        self._check_open()
        if buffer_bytes < 0:
            raise refusal(errno.EINVAL, f"buffer of {buffer_bytes} octets")
        if (level, option) == (SOL_SOCKET, SO_ERROR):
            octets = _INT.pack(self._take_error())[: buffer_bytes or _INT.size]
        else:
            octets = options.get_option(
                self._options,
                self._life(),
                level=level,
                option=option,
                buffer_bytes=buffer_bytes or _INT.size,
            )
        if buffer_bytes:
            return octets
        return int.from_bytes(octets.ljust(_INT.size, b"\0"), sys.byteorder, signed=True)

    # -- waiting times

    @property
    def timeout(self) -> float | None:
        """What `settimeout` set."""
        return self._wait_s

    def settimeout(self, wait_s: float | None, /) -> None:
        """Wait that long in each call; None is for ever, 0 never.

        Raises ValueError below 0, OverflowError beyond WAIT_S_MAX.
        """
        if wait_s is not None and not wait_s >= 0:
            raise ValueError("Timeout value out of range")
        if wait_s is not None and wait_s > WAIT_S_MAX:
            raise OverflowError(f"timeout of {wait_s} s, limit {WAIT_S_MAX}")
        self._check_open()
        self._wait_s = None if wait_s is None else float(wait_s)

    def gettimeout(self) -> float | None:
        """Return what `settimeout` set."""
        return self._wait_s

    def setblocking(self, blocking: bool, /) -> None:
        """Wait for ever (True) or never."""
        self.settimeout(None if blocking else 0.0)

    def getblocking(self) -> bool:
        """Tell whether calls may wait."""
        return self._wait_s != 0

    # -- the words

    def __repr__(self) -> str:
        kind, state = f"<urds.rsocket.{type(self).__qualname__}", " [closed]"
        words = f" family={self.family.name} type={self.type.name} proto={self._proto}"
        if self._is_over:
            return f"{kind}{state}{words}>"
        local = self._local()
        words += f" laddr={socket_names.shown(local, self._family)}" if local else ""
        try:
            words += f" raddr={self.getpeername()}"
        except OSError:
            pass
        return f"{kind}{words}>"

    # -- what only one kind does

    def listen(self, backlog: int = 0, /) -> None:
        """Refuse (EOPNOTSUPP) unless the socket is a stream."""
        self._refuse("listen")

    def accept(self) -> tuple[Socket, Any]:
        """Refuse (EOPNOTSUPP) unless the socket is a stream."""
        self._refuse("accept")

    def map_buffer(
        self, buffer: Any, offset: int = ANY_OFFSET, protection: int = PROT_WRITE
    ) -> int:
        """Refuse (EOPNOTSUPP) unless the socket is a stream."""
        self._refuse("map_buffer")

    def unmap_buffer(self, buffer: Any) -> None:
        """Refuse (EOPNOTSUPP) unless the socket is a stream."""
        self._refuse("unmap_buffer")

    def write_mapped(self, data: Any, offset: int, flags: int = 0) -> int:
        """Refuse (EOPNOTSUPP) unless the socket is a stream."""
        self._refuse("write_mapped")

    # -- what none does

    def detach(self) -> NoReturn:
        """Refuse (EOPNOTSUPP): the descriptor carries no octets."""
        self._refuse("detach")

    def dup(self) -> NoReturn:
        """Refuse (EOPNOTSUPP): the descriptor carries no octets."""
        self._refuse("dup")

    def get_inheritable(self) -> bool:
        """Return False: a child of a fork cannot use the parent's sockets."""
        return False

    def set_inheritable(self, inheritable: bool) -> None:
        """Take False only."""
        if inheritable:
            self._refuse("set_inheritable")

    def sendfile(self, file: Any, offset: int = 0, count: int | None = None) -> int:
        """Send a file from `offset` to its end, or `count` octets of it; return how many.

        Raises ValueError for a socket that never waits or is no stream.
        """
        return self._sendfile_use_send(file, offset, count)  # type: ignore[attr-defined,no-any-return]  # not in the stubs

    # -- state

    def _refuse(self, call: str) -> NoReturn:
        self._check_open()
        raise refusal(errno.EOPNOTSUPP, f"{call} of a {self.type.name} rsocket")


def _option_octets(value: Any, value_bytes: int | None) -> bytes:
    """Return an option's octets, from the forms that `socket.socket.setsockopt` takes."""
    if value is None:
        raise refusal(errno.EINVAL, f"{value_bytes} octets at no address")
    if isinstance(value, int):
        return _INT.pack(value) if -(1 << 31) <= value < 1 << 31 else _too_large(value)
    return bytes(value)


def _too_large(value: int) -> NoReturn:
    raise OverflowError(f"{value} is not a C int")
