"""What a socket has without messages: kind, names, options, waiting times, descriptor, end.

The base of `socket.Socket`, which adds sending and receiving. Any thread may make any call. `_lock`
guards what changes rarely; no call holds it while it waits, but for a bind, which sets up a
listener. Source: linux v6.12 net/rds/af_rds.c, net/rds/bind.c; docs/reference/rds.md 3.1, 3.2.
"""

from __future__ import annotations

import errno
import math
import socket as system
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final, NoReturn, overload

from urds.common.errors import ErrorReason, os_error
from urds.common.forks import renewed
from urds.common.readiness import Placeholder
from urds.common.records import replace
from urds.common.seconds import seconds_of
from urds.common.socket_calls import INT, SocketCalls, option_value, refused
from urds.common.types import IPAddress
from urds.rds import addresses, options
from urds.rds.addresses import Call, GivenAddress, SocketAddress
from urds.rds.constants import (
    AF_RDS,
    SIOCRDSGETTOS,
    SIOCRDSSETTOS,
    SOCK_SEQPACKET,
    SOL_RDS,
    SOL_SOCKET,
    InfoOpt,
    SockOpt,
    Transport,
)
from urds.rds.runtime.process import process

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from urds.rds.runtime.backend import Backend, Mailbox, MailboxSettings

_NS: Final = 1_000_000_000
_US: Final = 1_000
_FOREVER_NS: Final = 1 << 62  # what both planes can add to their clocks; 146 years
_FOREVER_S: Final = _FOREVER_NS / _NS
_FIONBIO: Final = 0x5421
_SOCK_NONBLOCK: Final = 0o4000
_SOCK_CLOEXEC: Final = 0o2000000
_PLACED: Final = ("sendto", "recvfrom", "recv_into")  # the mailbox's own methods, in a bound socket
_UNBOUND_NAME: Final = (0, bytes(14))  # AF_UNSPEC, as CPython shows a name it does not know


class SocketBase(SocketCalls):
    """Everything but sending and receiving; see `socket.Socket`."""

    def __init__(
        self,
        family: int = AF_RDS,
        type: int = SOCK_SEQPACKET,
        proto: int = 0,
        fileno: int | None = None,
    ) -> None:
        # The parent's __init__ would ask the kernel for a socket. Its own state stays "closed", so
        # that a caller that bypasses these methods gets EBADF.
        self._io_refs = 0
        self._closed = True
        if family != AF_RDS:
            raise os_error(ErrorReason.FAMILY_UNKNOWN, f"family {family}")
        if type & ~(_SOCK_NONBLOCK | _SOCK_CLOEXEC) != SOCK_SEQPACKET or proto not in (0, -1):
            raise os_error(ErrorReason.SOCKET_TYPE, f"type {type}, protocol {proto}")
        if fileno is not None:
            raise os_error(ErrorReason.NOT_SUPPORTED, "no socket can be made of a descriptor")
        self._lock = renewed(threading.Condition())
        self._settings = process.settings()
        self._options = options.defaults(self._settings)
        self._timeout_s = 0.0 if type & _SOCK_NONBLOCK else system.getdefaulttimeout()
        self._backend: Backend | None = None
        self._mailbox: Mailbox | None = None
        self._peer: tuple[IPAddress, int] | None = None
        self._reachable_peer: SocketAddress | None = None  # the peer, if of the bound family
        self._placeholder: Placeholder | None = None
        self._closed = False

    # -- names

    def bind(self, address: GivenAddress, /) -> None:  # type: ignore[override]  # of AF_RDS only
        """Take a local address and port; port 0 chooses a free one.

        Raises OSError: EINVAL for an address that is not unicast, port 1, or a bound socket;
        EADDRINUSE, EADDRNOTAVAIL, ENOPROTOOPT as rds(7) has them.
        """
        with self._lock:
            self._check_open()
            local, port = addresses.parse(address, Call.BIND)
            if self._mailbox is not None:
                raise os_error(ErrorReason.ALREADY_BOUND, f"to {self.getsockname()}")
            settings = self._mailbox_settings()
            try:
                backend, mailbox = process.bind(local, port, settings, self._options.transport)
            except OSError as refused:
                if refused.errno == errno.EADDRINUSE:  # kernel parity
                    self._set_transport(None)
                raise
            try:
                self._adopt(backend, mailbox)
            except BaseException:  # no descriptor left, or a signal handler raised: not bound
                self._let_go(backend, mailbox)
                raise
        if self._mailbox_settings() != settings:  # a signal handler set something meanwhile
            self._tell_mailbox()

    def _adopt(self, backend: Backend, mailbox: Mailbox) -> None:
        """Take a mailbox as its own, and wake the calls that wait for that. Lock held."""
        transport = backend.transport_of(mailbox)
        if self._placeholder is not None:
            self._placeholder.become(mailbox.fileno())
        self._check_open()  # a signal handler may have closed or bound it in this very call
        if self._mailbox is not None:
            raise os_error(ErrorReason.ALREADY_BOUND, f"to {self.getsockname()}")
        self._backend, self._mailbox = backend, mailbox
        self._set_transport(transport)
        if not self._settings.strict_linux:  # strictness checks flags first
            self.__dict__["sendto"] = mailbox.sendto
        self.__dict__["recvfrom"] = mailbox.recvfrom
        if (recv_into := getattr(mailbox, "recv_into", None)) is not None:  # a compiled one's
            self.__dict__["recv_into"] = recv_into
        self._note_peer()
        self._note_beside()
        self._lock.notify_all()

    def _let_go(self, backend: Backend, mailbox: Mailbox) -> None:
        """Have the control thread, or the next bind, close a mailbox. Takes no lock."""
        if self._mailbox is mailbox:
            self._mailbox = None
            for placed in _PLACED:
                self.__dict__.pop(placed, None)
        process.connected.pop((mailbox.local, mailbox.port), None)
        backend.abandoned(mailbox, self._linger_ns())

    def connect(self, address: GivenAddress, /) -> None:  # type: ignore[override]  # as bind
        """Set the default destination; nothing is sent. It may be called again, before bind too.

        Raises OSError: EDESTADDRREQ for 0.0.0.0, EINVAL or EPROTOTYPE for other addresses that
        are not unicast, EAFNOSUPPORT for another family.
        """
        with self._lock:
            self._check_open()
            self._peer = addresses.parse(address, Call.CONNECT)
            self._note_peer()
            self._note_beside()

    def connect_ex(self, address: GivenAddress, /) -> int:  # type: ignore[override]  # as bind
        """Connect; return 0 or the errno. An unknown name still raises."""
        return super().connect_ex(address)

    def getsockname(self) -> SocketAddress:
        """Return the bound address; zeros of the peer's family, or of none, before bind."""
        mailbox, peer = self._mailbox, self._peer
        if mailbox is not None:
            return addresses.socket_address(mailbox.local, mailbox.port)
        self._check_open()
        if peer is None:
            return _UNBOUND_NAME  # type: ignore[return-value]  # bound ones have an address
        return ("0.0.0.0", 0) if peer[0].version == 4 else ("::", 0, 0, 0)

    def getpeername(self) -> SocketAddress:
        """Return the default destination. Raises OSError (ENOTCONN) if there is none."""
        self._check_open()
        if self._peer is None:
            raise os_error(ErrorReason.NOT_CONNECTED)
        return addresses.socket_address(*self._peer)

    @property
    def unacknowledged(self) -> int:
        """How many messages of this socket peers have not acknowledged, those not sent included.

        0 means that each lies in its receiver's queue (towards Linux: in its host's TCP). A socket
        of a node says 1 for any number of them. Raises OSError (EBADF) once closed; `urds.drain`
        waits for the messages of closed sockets too.
        """
        mailbox = self._mailbox
        if mailbox is None:
            self._check_open()
            return 0
        return mailbox.unacknowledged()

    # -- options

    def setsockopt(
        self,
        level: int,
        optname: int,
        value: int | ReadableBuffer | None,
        optlen: int | None = None,
        /,
    ) -> None:
        """Set an option to an integer or to bytes; see `options` for what each takes.

        Raises OSError as Linux does: ENOPROTOOPT for an unknown one, EINVAL, EFAULT, EDOM.
        """
        data = option_bytes(value, optlen)
        with self._lock:
            self._check_open()
            cancels = level == SOL_RDS and optname == SockOpt.CANCEL_SENT_TO
            while not cancels:
                before = self._options
                after = options.set_option(
                    before,
                    level=level,
                    option=optname,
                    data=data,
                    settings=self._settings,
                )
                if self._options is before:  # else a signal handler set one meanwhile
                    self._options = after
                    break
        if cancels:
            self._bound().cancel(*options.cancel_target(data, self._settings))
        else:
            self._tell_mailbox()
            if (level, optname) == (SOL_SOCKET, options.SO_LINGER):
                self._note_beside()

    @overload
    def getsockopt(self, level: int, optname: int, /) -> int: ...
    @overload
    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...
    def getsockopt(self, level: int, optname: int, buflen: int = 0, /) -> int | bytes:
        """Return an option as an integer, or as bytes if `buflen` is given.

        A list of RDS_INFO_* comes whole or raises OSError (ENOSPC), whose text tells its length;
        unlike in `socket.socket`, `buflen` has no limit.
        """
        self._check_open()
        if buflen < 0:
            raise os_error(ErrorReason.BAD_ARGUMENT, f"buffer of {buflen} bytes")
        room = buflen or INT.size
        if level == SOL_RDS and InfoOpt.COUNTERS <= optname <= InfoOpt.V6_IB_CONNECTIONS:
            data = self._info(optname, room)
        else:
            data = options.get_option(self._options, level=level, option=optname, buffer_bytes=room)
        value: int | bytes = option_value(data, buflen)
        return value

    def ioctl(self, request: int, value: int = 0) -> int:
        """Get or set the type of service, or set non-blocking; return the new value.

        Over RDMA a peer has one connection per type of service, 0 to 255, which is chosen once and
        before the first send. TCP sends every one as 0, which is what is reported: kernel parity.
        Raises OSError: ENOTTY for any other request, and for setting it before bind unless
        SO_RDS_TRANSPORT chose a transport; EINVAL for a second choice, or after a send.
        """
        with self._lock:
            self._check_open()
            if request == _FIONBIO:
                self._timeout_s = 0.0 if value else None
            elif request == SIOCRDSSETTOS and self._options.transport is not None:
                self._set_tos(value)
            elif request != SIOCRDSGETTOS:
                raise os_error(ErrorReason.NOT_A_TTY, f"request {request:#x}")
        self._tell_mailbox()
        return 0 if request == _FIONBIO else self._options.tos

    def _set_tos(self, value: int) -> None:
        """Choose it, once. Source: linux v6.12 net/rds/af_rds.c (rds_ioctl)."""
        has_route = self._mailbox is not None and self._mailbox.has_route
        if self._options.tos or has_route:
            detail = f"type of service is {self._options.tos} for good"
            raise os_error(ErrorReason.BAD_ARGUMENT, detail)
        if self._options.transport is Transport.IB:
            tos = value & 0xFF  # a byte is all that is read: kernel parity
            self._options = replace(self._options, tos=tos)

    def _info(self, option: int, room: int) -> bytes:
        from urds.rds.runtime import info

        backend = self._backend or process.backend()
        return info.answer(
            option,
            backend.snapshot(),
            counters=backend.counters(),
            connected=backend.connected_peers(),
            buffer_bytes=room,
        )

    # -- waiting times

    def settimeout(self, timeout: float | None, /) -> None:
        """Set how many seconds sends and receives wait; None is for ever, 0 never.

        More than 146 years are for ever, infinity too. Raises ValueError for a negative time or
        NaN, TypeError for what is no number, and changes nothing then.
        """
        if timeout is not None:
            timeout = seconds_of(timeout, "timeout")
        with self._lock:
            self._timeout_s = timeout
        self._tell_mailbox()

    def _wait_ns(self, option_wait_ns: int | None) -> int | None:
        """Return how long a call waits: `settimeout` outranks SO_SNDTIMEO and SO_RCVTIMEO."""
        if self._timeout_s is None:
            return _finite(option_wait_ns)
        if self._timeout_s > _FOREVER_S:
            return None
        return _finite(math.ceil(self._timeout_s * _NS))  # up, as CPython: else 1e-10 is never

    def _mailbox_settings(self) -> MailboxSettings:
        from urds.rds.runtime.backend import ALL_GROUPS, MailboxSettings

        chosen = self._options
        return MailboxSettings(
            send_bytes_max=chosen.send_bytes_max,
            receive_bytes_max=chosen.receive_bytes_max,
            send_wait_ns=self._wait_ns(chosen.send_wait_ns),
            receive_wait_ns=self._wait_ns(chosen.receive_wait_ns),
            monitor=chosen.monitor,
            monitor_mask=ALL_GROUPS if chosen.monitor_mask is None else chosen.monitor_mask,
            timestamps=bool(chosen.timestamp),
            traces=chosen.traces,
            tos=chosen.tos,
            busy_poll_ns=chosen.busy_poll_us * _US,
            single_account=self._settings.strict_linux,
        )

    def _tell_mailbox(self) -> None:
        """Pass the present settings to the mailbox, if there is one. No lock held.

        The thread that has the mailbox's locks may wait for `_lock`, in a finaliser.
        """
        while (mailbox := self._mailbox) is not None:
            chosen, timeout_s = self._options, self._timeout_s
            mailbox.configure(self._mailbox_settings())
            if self._options is chosen and self._timeout_s is timeout_s:
                break  # else a signal handler set something meanwhile

    # -- descriptor and end

    def fileno(self) -> int:
        """Return a descriptor for select, poll and epoll; -1 once closed.

        It is readable while something waits here and writable while there is room to send; no
        message goes through it.
        """
        with self._lock:
            if self._closed:
                return -1
            if self._placeholder is not None:
                return self._placeholder.fileno()
            mailbox = self._mailbox
            if mailbox is None:
                return self._placeholder_made().fileno()
        try:
            return mailbox.fileno()
        except OSError:
            if self._closed:  # by another thread meanwhile
                return -1
            raise

    def _placeholder_made(self) -> Placeholder:
        """Return the placeholder of the descriptor until bind. Lock held."""
        if self._placeholder is None:
            made = Placeholder()
            if self._placeholder is None:  # else a signal handler was faster
                self._placeholder = made
            else:
                made.close()
        return self._placeholder

    def close(self) -> None:
        """Unbind; idempotent. Messages that were not read are dropped.

        Unacknowledged messages get the time `linger_s` of the settings in the background; with
        SO_LINGER they get its time in this call, with 0 seconds of it none; then they are cancelled
        (`plane.python.shutdown`). A signal handler or
        finaliser may close: inside another call of its thread SO_LINGER waits in the background. A
        handler that raises ends the wait; the socket is closed all the same, and its port free.
        """
        mailbox: Mailbox | None = None
        try:
            with self._lock:
                if self._closed:
                    return
                mailbox, self._closed = self._mailbox, True
                self._mailbox = None
                for placed in _PLACED:
                    self.__dict__.pop(placed, None)
                self._lock.notify_all()
            if mailbox is not None:
                self._end(mailbox)
        except BaseException:
            if mailbox is not None and self._backend is not None:
                self._let_go(self._backend, mailbox)
            raise
        finally:
            if self._closed and self._placeholder is not None:
                self._placeholder.close()

    def _end(self, mailbox: Mailbox) -> None:
        """Close a mailbox and free its port; inside another call soon, for it may hold any lock."""
        backend = self._backend
        assert backend is not None, "bound sockets have a backend"
        if backend.is_inside():
            self._let_go(backend, mailbox)
            return
        process.connected.pop((mailbox.local, mailbox.port), None)
        mailbox.close(self._linger_ns())
        backend.closed(mailbox)

    def _linger_ns(self) -> int | None:
        if self._options.linger_s is not None:
            return self._options.linger_s * _NS
        return 0 if self._settings.strict_linux else None

    def __del__(self) -> None:
        # A finaliser may run inside any call of any thread: it takes no lock and closes nothing.
        if self._closed:
            return
        try:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
        finally:  # a program may make an exception of the warning
            self._closed = True
            if self._mailbox is not None and self._backend is not None:
                self._let_go(self._backend, self._mailbox)
            if self._placeholder is not None:
                self._placeholder.close()

    def __repr__(self) -> str:
        words = [f"<urds.{type(self).__qualname__}", "family=AF_RDS", "type=SOCK_SEQPACKET"]
        if self._closed and self._mailbox is None:
            return " ".join([*words[:1], "[closed]", *words[1:]]) + ">"
        if self._mailbox is not None:
            words.append(f"laddr={self.getsockname()}")
        if self._peer is not None:
            words.append(f"raddr={addresses.socket_address(*self._peer)}")
        return " ".join(words) + ">"

    # -- for other modules

    @property
    def mailbox(self) -> Mailbox:
        """The mailbox of a bound socket, for event loops. Raises OSError (ENOTCONN) before."""
        return self._bound()

    @property
    def family(self) -> system.AddressFamily:
        """AF_RDS."""
        return system.AddressFamily(AF_RDS)

    @property
    def type(self) -> system.SocketKind:
        """SOCK_SEQPACKET."""
        return system.SocketKind(SOCK_SEQPACKET)

    @property
    def proto(self) -> int:
        """0."""
        return 0

    listen = refused("listen")  # datagrams have no connections to wait for
    accept = refused("accept")
    shutdown = refused("shutdown")  # kernel parity
    detach = refused("detach")  # the descriptor carries no messages
    dup = refused("dup")
    makefile = refused("makefile")  # a file would lose the borders of messages
    sendfile = refused("sendfile")  # a file is no datagram

    # -- state

    def _refuse(self, call: str) -> NoReturn:
        self._check_open()
        raise os_error(ErrorReason.NOT_SUPPORTED, call)

    def _check_open(self) -> None:
        if self._closed:
            raise os_error(ErrorReason.CLOSED)

    def _bound(self) -> Mailbox:
        mailbox = self._mailbox
        if mailbox is None:
            self._check_open()
            raise os_error(ErrorReason.NOT_BOUND)
        return mailbox

    def _set_transport(self, transport: Transport | None) -> None:
        self._options = replace(self._options, transport=transport)

    def _note_peer(self) -> None:
        """Keep the connected peer for `send` and rds-info."""
        mailbox, peer = self._mailbox, self._peer
        if mailbox is None or peer is None:
            return
        process.connected[mailbox.local, mailbox.port] = peer
        same = peer[0].version == mailbox.local.version
        self._reachable_peer = addresses.socket_address(*peer) if same else None

    def _note_beside(self) -> None:
        """Tell the backend what its plane does not obey."""
        backend, mailbox = self._backend, self._mailbox
        if backend is not None and mailbox is not None:
            backend.note(mailbox, self._peer, self._options.linger_s)


def _finite(wait_ns: int | None) -> int | None:
    """Return a waiting time, None for one that no clock reaches."""
    return None if wait_ns is None or wait_ns > _FOREVER_NS else wait_ns


def option_bytes(value: Any, value_bytes: int | None) -> bytes:
    """Return an option's bytes, from the forms that `socket.socket.setsockopt` takes."""
    if value is None:
        if value_bytes:
            raise os_error(ErrorReason.OPTION_FAULT, f"{value_bytes} bytes at no address")
        return b""
    if isinstance(value, int):
        if not -(1 << 31) <= value < 1 << 31:
            raise OverflowError(f"{value} is not a C int; give 8 bytes instead")
        return INT.pack(value)
    return bytes(value)
