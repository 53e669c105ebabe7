"""`Socket`: an rsocket with the methods of `socket.socket`. What streams and datagrams share.

Kind, names, options, waiting times, readiness and its descriptor, the end, a fork; `Socket(...)`
makes one of the two classes that carry data. Any thread may call anything; sending and receiving
take no lock but the device's. `_lock` guards what changes rarely and is never held by a call that
waits; order: `_lock`, then the lock of a device, then the descriptor's own. A call that closes a
socket ends the calls that wait on it, with EBADF.
Source: docs/reference/rsocket.md 2, 6, 8, 11 (rdma-core 691953d8).
"""

from __future__ import annotations

import errno
import os
import socket as system
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from socket import AF_INET, IPPROTO_TCP, IPPROTO_UDP, SO_ERROR, SOCK_DGRAM, SOCK_STREAM, SOL_SOCKET
from typing import Any, Final, NoReturn, Self
from weakref import WeakMethod, WeakSet

from urds.common.forks import renewed
from urds.common.readiness import ReadinessDescriptor
from urds.common.seconds import seconds_of
from urds.common.socket_calls import INT, SocketCalls, c_int, option_value, refused
from urds.common.types import HostPort
from urds.rsocket import addresses, options, settings
from urds.rsocket.constants import ANY_OFFSET, PROT_WRITE
from urds.rsocket.core.datagram import DatagramStats
from urds.rsocket.core.stream.records import StreamStats
from urds.rsocket.errors import closed, os_error
from urds.rsocket.link.datagram_link import DatagramLink
from urds.rsocket.link.devices import DeviceContext, Readiness
from urds.rsocket.link.listener import StreamListener
from urds.rsocket.link.stream_link import StreamLink
from urds.rsocket.waiting import Watchers

WAIT_S_MAX: Final = 1 << 31
_NONBLOCK: Final = int(system.SOCK_NONBLOCK)
_FLAGS: Final = int(system.SOCK_NONBLOCK | system.SOCK_CLOEXEC)
_PROTOCOLS: Final = {SOCK_STREAM: (0, -1, IPPROTO_TCP), SOCK_DGRAM: (0, -1, IPPROTO_UDP)}
_IDLE: Final = Readiness(False, False, True, False)

_open: Final[WeakSet[Socket]] = WeakSet()
_classes: Final[dict[int, type[Socket]]] = {}  # by type


class Socket(SocketCalls):
    """An rsocket; also a `socket.socket` for isinstance.

    What is made is a `StreamSocket` or a `DatagramSocket`: derive from one of these.
    Raises OSError (ENOTSUP) for families other than AF_INET and AF_INET6, types other than
    SOCK_STREAM and SOCK_DGRAM, protocols that do not belong to the type, and any descriptor.
    """

    __slots__ = (
        "_descriptor",
        "_family",
        "_is_over",
        "_kind",
        "_lock",
        "_options",
        "_proto",
        "_timeout_s",
        "watchers",
    )

    watchers: Watchers

    def __init_subclass__(cls, *, kind: int | None = None) -> None:
        """Make `cls` the class of sockets of a type."""
        super().__init_subclass__()
        if kind is not None:
            _classes[kind] = cls

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
            chosen = _classes.get(type & ~_FLAGS, _classes[SOCK_STREAM])
        made: Self = super().__new__(chosen)
        made._closed = made._is_over = True  # until all went well
        made.watchers = Watchers()
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
            raise os_error(errno.ENOTSUP, f"family {family}, type {type:#x}, protocol {proto}")
        if fileno is not None:
            raise os_error(errno.ENOTSUP, "no rsocket can be made of a descriptor")
        self._begin(family, kind, max(proto, 0), options.defaults(settings.current()))
        if type != -1 and type & _NONBLOCK:
            self._timeout_s = 0.0

    def _begin(self, family: int, kind: int, proto: int, chosen: options.RsocketOptions) -> None:
        # The parent's __init__ would ask the kernel for a socket: it has none, so that a call past
        # our methods gets EBADF.
        self._io_refs = 0
        self._family, self._kind, self._proto = family, kind, proto
        self._options = chosen
        self._timeout_s = system.getdefaulttimeout()
        self._lock = renewed(threading.RLock())
        self._descriptor = _SocketDescriptor(self.watchers)
        self._closed = self._is_over = False
        _open.add(self)

    # -- what the two classes know

    def _readiness_source(self) -> StreamLink | StreamListener | DatagramLink | None:
        """Return what is ready or not: a link, a listener, None while there is neither."""
        raise NotImplementedError

    def _release(self) -> None:
        """Close what stands behind; waits as long as SO_LINGER asks for."""
        raise NotImplementedError

    def _release_soon(self) -> None:
        """Close what stands behind as a finaliser may: without a lock, and later."""
        raise NotImplementedError

    def _local(self) -> HostPort | None:
        raise NotImplementedError

    def _socket_info(self) -> options.SocketInfo:
        raise NotImplementedError

    def _take_error(self) -> int:
        raise NotImplementedError

    def _has_begun(self) -> bool:
        return self._readiness_source() is not None

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
    def link(self) -> StreamLink | DatagramLink | None:
        """What carries the bytes; None where there is no connection, or no more."""
        raise NotImplementedError

    @property
    def stats(self) -> StreamStats | DatagramStats | None:
        """What happened so far; None where there is no connection, or no more."""
        raise NotImplementedError

    def getsockname(self) -> Any:
        """Return our address; zeros before there is one."""
        self._check_open()
        return addresses.shown(self._local() or addresses.unbound(self._family), self._family)

    # -- options

    def setsockopt(
        self, level: int, option: int, value: Any, value_bytes: int | None = None, /
    ) -> None:
        """Set an option to an integer or to bytes; see `options` for what each takes.

        Raises OSError: ENOTSUP for an unknown one, EINVAL for a bad value or one that is late.
        """
        data = _option_bytes(value, value_bytes)
        with self._lock:
            self._check_open()
            self._options = options.set_option(
                self._options,
                level=level,
                option=option,
                data=data,
                has_begun=self._has_begun(),
                is_bound=self._local() is not None,
            )
            self._apply(level, option)

    def getsockopt(self, level: int, option: int, buffer_bytes: int = 0, /) -> Any:
        """Return an option as an integer, or as bytes if `buffer_bytes` is given.

        SO_ERROR is what went wrong since it was last asked for. Raises OSError: ENOTSUP, EINVAL.
        """
        self._check_open()
        if buffer_bytes < 0:
            raise os_error(errno.EINVAL, f"buffer of {buffer_bytes} bytes")
        if (level, option) == (SOL_SOCKET, SO_ERROR):
            data = INT.pack(self._take_error())[: buffer_bytes or INT.size]
        else:
            data = options.get_option(
                self._options,
                self._socket_info(),
                level=level,
                option=option,
                buffer_bytes=buffer_bytes or INT.size,
            )
        return option_value(data, buffer_bytes)

    # -- waiting times

    def settimeout(self, wait_s: float | None, /) -> None:
        """Wait that long in each call; None is for ever, 0 never.

        Raises ValueError below 0 and for NaN, OverflowError beyond WAIT_S_MAX, TypeError.
        """
        if wait_s is not None:
            wait_s = seconds_of(wait_s, "timeout")
            if wait_s > WAIT_S_MAX:
                raise OverflowError(f"timeout of {wait_s} s, limit {WAIT_S_MAX}")
        self._check_open()
        self._timeout_s = wait_s

    def __repr__(self) -> str:
        kind, state = f"<urds.rsocket.{type(self).__qualname__}", " [closed]"
        words = f" family={self.family.name} type={self.type.name} proto={self._proto}"
        if self._is_over:
            return f"{kind}{state}{words}>"
        local = self._local()
        words += f" laddr={addresses.shown(local, self._family)}" if local else ""
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
        """Refuse (EOPNOTSUPP): the descriptor carries no bytes.

        The number that `fileno` gave is the caller's from then on, as it would be otherwise:
        `ssl.SSLContext.wrap_socket` has made a socket of its own of it when it calls this.
        """
        with self._lock:
            self._descriptor.give_up()
            self._descriptor = _SocketDescriptor(self.watchers)
        detail = "detach: no bytes go through an rsocket's descriptor (TLS: urds.rsocket.tls)"
        raise os_error(errno.EOPNOTSUPP, detail)

    dup = refused("dup")  # the descriptor carries no bytes

    def sendfile(self, file: Any, offset: int = 0, count: int | None = None) -> int:
        """Send a file from `offset` to its end, or `count` bytes of it; return how many.

        Raises ValueError for a socket that never waits or is no stream.
        """
        return self._sendfile_use_send(file, offset, count)  # type: ignore[attr-defined,no-any-return]  # not in the stubs

    # -- readiness

    @property
    def closed(self) -> bool:
        """Whether the socket is closed, and no file of `makefile` keeps it."""
        return self._is_over

    @property
    def contexts(self) -> Sequence[DeviceContext]:
        """The devices that can change its readiness; none while nothing stands behind."""
        source = self._readiness_source()
        return () if source is None else source.contexts

    def readiness(self) -> Readiness:
        """Return what can be done now without waiting. Raises OSError: EBADF."""
        self._check_open()
        source = self._readiness_source()
        return _IDLE if source is None else source.readiness()

    def fileno(self) -> int:
        """Return a descriptor for select, poll and epoll; -1 once closed.

        It is readable and writable when the socket is; no bytes of it go through. From the
        first call on, threads of the devices' own make them progress.
        """
        with self._lock:
            if self._is_over:
                return -1
            return self._descriptor.fileno(_weakly(self._shown), self.contexts)

    def _shown(self) -> tuple[bool, bool]:
        """Return what the descriptor shows. Takes no lock: `sync` holds one of its own."""
        source = self._readiness_source()
        if source is None:
            return False, not self._is_over
        now = source.readiness()
        return now.readable, now.writable

    def _attend(self) -> None:
        """Have the devices progress for a sleeper on the descriptor. `_lock` held."""
        self._descriptor.attend(self.contexts)

    def _wake(self) -> None:
        """Notify watchers and waiting calls that readiness may have changed."""
        self.watchers.tell()
        for context in self.contexts:
            with context.adapter.lock:
                context.tell()

    # -- the end

    def close(self) -> None:
        """Close; idempotent. What was accepted leaves in the background, for 30 s at most.

        With SO_LINGER the call waits that long for it; with 0 seconds of it nothing leaves and
        the peer sees the connection break. A file of `makefile` keeps the socket until it closes.
        """
        self._closed = True
        if self._io_refs <= 0:
            self._close()

    def _decref_socketios(self) -> None:
        if self._io_refs > 0:
            self._io_refs -= 1
        if self._closed:
            self.close()

    def _close(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        _open.discard(self)
        try:
            self._release()
        finally:  # a signal handler may end a linger with an exception
            self._wake()
            with self._lock:
                self._descriptor.close()

    def _abandon_in_child(self) -> None:
        """Be closed in the child of a fork: links and devices are the parent's."""
        self._closed = self._is_over = True
        self._descriptor.abandon_in_child()

    def __del__(self) -> None:
        # A finaliser may run inside any call of any thread: it waits for no device.
        if getattr(self, "_is_over", True) or sys.is_finalizing():
            return
        warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
        self._is_over = True
        self._release_soon()
        self._descriptor.close_only()

    def _check_open(self) -> None:
        if self._is_over:
            raise closed()

    def _refuse(self, call: str) -> NoReturn:
        self._check_open()
        raise os_error(errno.EOPNOTSUPP, f"{call} of a {self.type.name} rsocket")


class _SocketDescriptor:
    """The descriptor that shows the readiness of a socket, made when it is asked for first.

    Devices that can change the readiness are attended from then on: they progress by themselves.
    """

    __slots__ = ("_attended", "_descriptor", "_watchers")

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._descriptor: ReadinessDescriptor | None = None
        self._attended: list[DeviceContext] = []

    def fileno(
        self, shown: Callable[[], tuple[bool, bool]], contexts: Sequence[DeviceContext]
    ) -> int:
        """Return the number; the descriptor shows what `shown` returns, (readable, writable)."""
        if self._descriptor is None:
            self._descriptor = ReadinessDescriptor(shown)
            self._watchers.add(self._descriptor.sync)
            self._descriptor.sync()  # what came before no watcher was told
            self.attend(contexts)
        return self._descriptor.fileno()

    def attend(self, contexts: Sequence[DeviceContext]) -> None:
        """Attend these devices too, if there is a descriptor."""
        if self._descriptor is None:
            return
        for context in contexts:
            if context not in self._attended:
                with context.adapter.lock:
                    context.adapter.add_external_waiter()
                self._attended.append(context)

    def close(self) -> None:
        """Close it and attend no device any more."""
        for context in self._attended:
            with context.adapter.lock:
                context.adapter.remove_external_waiter()
        self._attended.clear()
        if self._descriptor is not None:
            self._watchers.remove(self._descriptor.sync)
            self._descriptor.close()

    def give_up(self) -> None:
        """Close all but the number, which is another owner's now."""
        if self._descriptor is not None:
            self._descriptor.give_up()
        self.close()

    def close_only(self) -> None:
        """Close it without the lock of a device, as a finaliser may."""
        if self._descriptor is not None:
            self._descriptor.close()

    def abandon_in_child(self) -> None:
        """Close the child's copy after a fork."""
        self._attended = []
        if self._descriptor is not None:
            self._descriptor.abandon_in_child()


def _option_bytes(value: Any, value_bytes: int | None) -> bytes:
    """Return an option's bytes, from the forms that `socket.socket.setsockopt` takes."""
    if value is None:
        raise os_error(errno.EINVAL, f"{value_bytes} bytes at no address")
    if isinstance(value, int):
        return INT.pack(c_int(value))
    return bytes(value)


def _weakly(shown: Callable[[], tuple[bool, bool]]) -> Callable[[], tuple[bool, bool]]:
    """Return a call of a socket's method that does not keep the socket alive."""
    reference = WeakMethod(shown)

    def call() -> tuple[bool, bool]:
        method = reference()
        return (False, False) if method is None else method()

    return call


def _abandon_all() -> None:
    for one in list(_open):
        one._abandon_in_child()
    _open.clear()


os.register_at_fork(after_in_child=_abandon_all)
