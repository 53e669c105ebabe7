"""`StreamSocket`: a stream over RDMA. Bind, listen, accept, connect, send, receive, map, close.

A bound port is held by a socket of the kernel until it is listened at or connected from: devices
know ports only from then on. `create_connection` and `create_server` are those of the `socket`
module. Source: docs/reference/rsocket.md 2.4, 6, 8, 11; what it leaves open
is as in Linux's TCP.
"""

from __future__ import annotations

import errno
import os
import socket as system
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from urds.common.ip_sockets import host_port
from urds.common.receive_buffers import (
    all_writable,
    checked_ancillary_size,
    checked_size,
    writable,
)
from urds.common.socket_calls import c_int
from urds.common.types import HostPort
from urds.rsocket import addresses, options
from urds.rsocket.constants import ANY_OFFSET, PROT_WRITE
from urds.rsocket.core.stream.records import Shut, StreamStats
from urds.rsocket.errors import os_error
from urds.rsocket.link import devices
from urds.rsocket.link.listener import ANY_IPV4, PortReservation, StreamListener
from urds.rsocket.link.stream_link import LinkState, StreamLink
from urds.rsocket.socket import Socket
from urds.rsocket.stream_transfer import MappedBuffers, StreamTransfer, write_mapped
from urds.rsocket.waiting import CallTimeout

BACKLOG_DEFAULT: Final = 128
# What callers written for the `socket` module pass for no timeout of their own.
TIMEOUT_DEFAULT: Final[Any] = getattr(system, "_GLOBAL_DEFAULT_TIMEOUT", object())
# Options that act on a connection that is there, beside TCP_NODELAY.
_OF_KEEPALIVE: Final = {
    (system.SOL_SOCKET, system.SO_KEEPALIVE),
    (system.IPPROTO_TCP, system.TCP_KEEPIDLE),
}
_SHUT: Final = {system.SHUT_RD: Shut.RD, system.SHUT_WR: Shut.WR, system.SHUT_RDWR: Shut.RDWR}
_STATES: Final = {
    LinkState.IDLE: options.TcpState.CLOSE,
    LinkState.CONNECTING: options.TcpState.SYN_SENT,
    LinkState.CONNECTED: options.TcpState.ESTABLISHED,
    LinkState.OVER: options.TcpState.CLOSE,
}


class StreamSocket(Socket, kind=system.SOCK_STREAM):
    """A stream: reliable bytes in order, between two sockets."""

    # With a dict: methods of a compiled stream are placed in the socket.
    __slots__ = ("__dict__", "_has_reported", "_listener", "_mapped", "_reservation", "_transfer")

    def _begin(self, family: int, kind: int, proto: int, chosen: options.RsocketOptions) -> None:
        self._transfer = StreamTransfer(self.watchers)
        self._mapped = MappedBuffers(self._transfer)
        self._listener: StreamListener | None = None
        self._reservation: PortReservation | None = None
        self._has_reported = False  # a call has said that the connect went well
        super()._begin(family, kind, proto, chosen)

    # -- before a connection

    def bind(self, address: Any, /) -> None:
        """Take an address of this host; port 0 chooses a free one.

        Raises OSError: EINVAL (bound or connected already), EADDRINUSE, EADDRNOTAVAIL.
        """
        self._check_open()
        name = addresses.unmapped(addresses.parse(address, self._family, "bind"))
        if _is_foreign(self, name):
            raise os_error(errno.EINVAL, f"IPV6_V6ONLY, and {name[0]} is IPv4")
        with self._lock:
            if self._reservation is not None or self._readiness_source() is not None:
                raise os_error(errno.EINVAL, f"bound to {self.getsockname()} already")
            is_dual, reuse = _is_dual(self, name), self._options.reuse_address
            taken = PortReservation(name, devices.contexts(), is_dual=is_dual, reuse=reuse)
            self._reservation = taken

    def listen(self, backlog: int = BACKLOG_DEFAULT, /) -> None:
        """Let peers connect: to a free port of any address unless bound. Again: nothing.

        At `::` those of IPv4 connect too, unless IPV6_V6ONLY is set.
        Raises OSError: EINVAL for a socket that connects or did, EADDRINUSE.
        """
        backlog = c_int(backlog)
        with self._lock:
            self._check_open()
            if self._transfer.link is not None:
                raise os_error(errno.EINVAL, "listen of a socket that connects")
            if self._listener is not None:
                return
            address = self._local() or addresses.unbound(self._family)
            if self._reservation is not None:
                self._reservation.make_room()
            self._listener = StreamListener(
                address,
                backlog,
                options.stream_settings(self._options),
                devices.contexts(),
                is_dual=_is_dual(self, address),
            )
            self._listener.on_change = self.watchers.tell
            self._attend()
            self.watchers.tell()

    def accept(self) -> tuple[StreamSocket, Any]:
        """Take the next connection; return its socket and the peer's address.

        The new socket has this one's options, but waits as a new socket does. Raises OSError:
        EINVAL (not listening), EAGAIN, ETIMEDOUT.
        """
        self._check_open()
        listener = self._listener
        if listener is None:
            raise os_error(errno.EINVAL, "accept of a socket that does not listen")
        link, call_timeout = listener.accept(), CallTimeout(self._timeout_s)
        while link is None:
            call_timeout.until(
                partial(devices.wait, listener.contexts),
                lambda: listener.readiness().readable or self._is_over,
            )
            self._check_open()
            link = listener.accept()
        self.watchers.tell()
        accepted = StreamSocket.__new__(type(self))
        accepted._adopt(link, self)
        return accepted, accepted._peer_shown()

    def _adopt(self, link: StreamLink, listener: StreamSocket) -> None:
        self._begin(listener._family, listener._kind, listener._proto, listener._options)
        self._transfer.link, self._has_reported = link, True
        link.show(self.watchers)
        _place(self)

    def _hand_over(self, heir: StreamSocket) -> None:
        """Give what stands behind to a socket that has none yet, and close."""
        with self._lock:
            self._check_open()
            heir._begin(self._family, self._kind, self._proto, self._options)
            heir._timeout_s, heir._has_reported = self._timeout_s, self._has_reported
            heir._transfer.link, self._transfer.link = self._transfer.link, None
            heir._listener, self._listener = self._listener, None
            heir._reservation, self._reservation = self._reservation, None
            if heir._transfer.link is not None:
                heir._transfer.link.show(heir.watchers)
            elif heir._listener is not None:
                heir._listener.on_change = heir.watchers.tell
            self.__dict__.clear()
            _place(heir)
        self.close()

    def connect(self, address: Any, /) -> None:
        """Connect, over the first device on which a socket listens there.

        Raises OSError: ECONNREFUSED, ETIMEDOUT, EINPROGRESS (it goes on; poll for writing, then
        SO_ERROR), EALREADY (it goes on since an earlier call), EISCONN.
        """
        link = self._begin_connect(address)
        if link.state is LinkState.CONNECTING:
            if self._timeout_s == 0:
                raise os_error(errno.EINPROGRESS)
            self._transfer.connected_link(CallTimeout(self._timeout_s))
        self._check_open()
        if link.state is LinkState.CONNECTED or link.stream is not None:
            self._has_reported = True
            _place(self)
            return
        raise _connect_error(link.take_error(), link.peer, link.reason)

    def _begin_connect(self, address: Any) -> StreamLink:
        """Return the link that connects: the one under way, or a new one."""
        self._check_open()
        peer = addresses.unmapped(addresses.parse(address, self._family, "connect"))
        peer = addresses.reachable(peer)
        if _is_foreign(self, peer):
            raise os_error(errno.ENETUNREACH, f"IPV6_V6ONLY, and {peer[0]} is IPv4")
        with self._lock:
            self._check_open()
            if self._listener is not None:
                raise os_error(errno.EISCONN, "connect of a socket that listens")
            link = self._transfer.link
            is_over = link is not None and link.state is LinkState.OVER
            if link is not None and not (is_over and (link.error or link.stream is None)):
                return self._connect_again(link)
            if link is not None and link.error:
                raise _connect_error(link.take_error(), link.peer, link.reason)
            local = None
            if self._reservation is not None:
                self._reservation.close()
                local = self._reservation.address
            link = StreamLink(devices.contexts(), options.stream_settings(self._options))
            self._transfer.link = link
            link.show(self.watchers)
            if local is not None and _is_dual(self, local) and ":" not in peer[0]:
                local = ANY_IPV4, local[1]
            try:
                link.connect(peer, local=local)
            except OSError as error:
                self._transfer.link = None
                raise _connect_error(error.errno, peer, error.strerror) from None
            self._attend()
            self.watchers.tell()  # a socket that connects is not writable yet
            return link

    def _connect_again(self, link: StreamLink) -> StreamLink:
        """Check a connect on a socket that connects, or has connected."""
        if link.state is LinkState.CONNECTING:
            if self._timeout_s == 0:
                raise os_error(errno.EALREADY, f"a connect to {link.peer} is under way")
        elif self._has_reported:
            raise os_error(errno.EISCONN, f"with {link.peer}")
        return link

    def settimeout(self, wait_s: float | None, /) -> None:
        """See `Socket.settimeout`."""
        super().settimeout(wait_s)
        self._transfer.set_wait(self._timeout_s)

    # -- sending

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send bytes and return how many were taken.

        From 16 KiB up they are written from the caller's memory, which is free again on return.
        Raises OSError: EAGAIN, ETIMEDOUT, ENOTCONN, EPIPE (shut down), ECONNRESET.
        """
        if self._transfer.may_serve:
            _place(self)
        return self._transfer.send(memoryview(data).cast("B"), flags, self._timeout_s)

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        """Send everything. After an error it is not known how much was sent."""
        self._transfer.send_all(memoryview(data).cast("B"), flags, self._timeout_s)

    def sendto(self, data: Any, flags_or_address: Any, address: Any = None, /) -> int:
        """Fail with EISCONN for an address; without one as `send`."""
        flags, target = (0, flags_or_address) if address is None else (flags_or_address, address)
        if target is not None:
            self._transfer.connected_link(CallTimeout(self._timeout_s))
            raise os_error(errno.EISCONN, f"a stream takes no address, not {target!r}")
        return self.send(data, flags)

    def sendmsg(
        self,
        buffers: Iterable[Any],
        ancdata: Iterable[tuple[int, int, Any]] = (),
        flags: int = 0,
        address: Any = None,
        /,
    ) -> int:
        """Send all buffers, one after the other; return how many bytes were taken.

        Small ones are copied into one message. Raises OSError: ENOTSUP for control messages,
        EISCONN for an address; else as `send`.
        """
        if tuple(ancdata):
            raise os_error(errno.ENOTSUP, "control messages")
        views = [memoryview(one).cast("B") for one in buffers]
        if address is not None:
            return self.sendto(b"", flags, address)
        return self._transfer.send_views(views, flags, self._timeout_s)

    # -- receiving

    def recv(self, bytes_max: int, flags: int = 0, /) -> bytes:
        """Receive at most `bytes_max` bytes; none at the end of the stream.

        MSG_WAITALL waits for all of them, MSG_PEEK leaves them there and waits for none but the
        first. Raises OSError: EAGAIN, ETIMEDOUT, ENOTCONN, ECONNRESET.
        """
        if type(bytes_max) is not int or bytes_max < 0:
            bytes_max = checked_size(bytes_max, "recv")
        if self._transfer.may_serve:
            _place(self)
        return self._transfer.receive(bytes_max, flags, self._timeout_s)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive into a buffer, at most `nbytes` bytes; 0 is the whole buffer.

        Return how many; 0 at the end of the stream. Raises ValueError if the buffer is smaller
        than `nbytes`, OSError as `recv`. With MSG_WAITALL and memory of `allocate` the peer
        writes there itself: if the time is over before all has come, what is behind the bytes
        that were returned stays the peer's until the bytes that it writes there are read.
        """
        view = writable(buffer, nbytes, "recv_into")
        return self._transfer.receive_into(view, flags, self._timeout_s)

    def recvfrom(self, bytes_max: int, flags: int = 0, /) -> tuple[bytes, Any]:
        """Receive as `recv` does; return the bytes and the peer's address."""
        return self.recv(bytes_max, flags), self._peer_shown()

    def recvfrom_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> tuple[int, Any]:
        """Receive as `recv_into` does; return how many bytes and the peer's address."""
        view = writable(buffer, nbytes, "recvfrom_into")
        return self._transfer.receive_into(view, flags, self._timeout_s), self._peer_shown()

    def recvmsg(
        self, bytes_max: int, ancillary_bytes_max: int = 0, flags: int = 0, /
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        """Receive as `recv` does; there are no control messages.

        There may be room for them. Raises as `recv`.
        """
        checked_ancillary_size(ancillary_bytes_max)
        return self.recv(bytes_max, flags), [], 0, self._peer_shown()

    def recvmsg_into(
        self, buffers: Iterable[Any], ancillary_bytes_max: int = 0, flags: int = 0, /
    ) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
        """Receive into all buffers, one after the other; else as `recvmsg`."""
        checked_ancillary_size(ancillary_bytes_max)
        count = self._transfer.receive_views(all_writable(buffers), flags, self._timeout_s)
        return count, [], 0, self._peer_shown()

    # -- mapped buffers

    def map_buffer(
        self, buffer: Any, offset: int = ANY_OFFSET, protection: int = PROT_WRITE
    ) -> int:
        """Let the peer write into a buffer from `offset` on, by default its address; return it.

        PROT_NONE registers the buffer and does not tell the peer. Raises OSError: EINVAL (no
        connection, another protection, an offset out of range), ENOMEM (the peer has no slot
        that is free); TypeError for a buffer that cannot be written.
        """
        return self._mapped.map(buffer, offset, protection)

    def unmap_buffer(self, buffer: Any) -> None:
        """Take a buffer back: on return the peer cannot write there any more.

        A urds peer is told; another's write there breaks the connection. Raises OSError (EINVAL)
        unless exactly these bytes are mapped.
        """
        self._check_open()
        self._mapped.unmap(buffer)

    def write_mapped(self, data: Any, offset: int, flags: int = 0) -> int:
        """Write into what the peer has mapped from `offset` on; return how many bytes were.

        Fewer at the first byte that is not mapped, 0 if that is the first of all; else as many,
        and in the same time, as `send`. From 16 KiB up they are written from the caller's memory
        straight into the peer's. Raises OSError as `send`.
        """
        return write_mapped(self._transfer, data, offset, flags, self._timeout_s)

    # -- names and options

    def getpeername(self) -> Any:
        """Return the peer's address. Raises OSError: ENOTCONN."""
        self._check_open()
        link = self._transfer.link
        if link is None or link.stream is None or link.state is LinkState.CONNECTING:
            raise os_error(errno.ENOTCONN)
        return self._peer_shown()

    @property
    def link(self) -> StreamLink | None:
        """The connection behind the socket, None before there is one."""
        return self._transfer.link

    @property
    def stats(self) -> StreamStats | None:
        """What happened on the connection so far; None before there is one."""
        link = self._transfer.link
        return None if link is None or link.stream is None else link.stream.stats

    def _readiness_source(self) -> StreamLink | StreamListener | None:
        return self._listener if self._transfer.link is None else self._transfer.link

    def _peer_shown(self) -> Any:
        link = self._transfer.link
        if link is None or link.peer is None:
            return None
        return addresses.shown(link.peer, self._family)

    def _local(self) -> HostPort | None:
        sources = (self._transfer.link, self._listener)
        found = next((one.local for one in sources if one is not None and one.local), None)
        return self._reservation.address if found is None and self._reservation else found

    def _socket_info(self) -> options.SocketInfo:
        return _info(self, self._transfer.link)

    def _apply(self, level: int, option: int) -> None:
        link = self._transfer.link
        if self._listener is not None:
            self._listener.settings = options.stream_settings(self._options)
        if link is None or link.stream is None:
            return
        with link.context.adapter.lock:
            if (level, option) == (system.IPPROTO_TCP, system.TCP_NODELAY):
                link.stream.sending.set_no_delay(self._options.no_delay)
            elif (level, option) in _OF_KEEPALIVE:
                link.stream.keepalive.set_interval(options.keepalive_ns(self._options))
                link.context.mark(link)  # which plans its keepalive

    def _take_error(self) -> int:
        return 0 if self._transfer.link is None else self._transfer.link.take_error()

    # -- the end

    def shutdown(self, how: int, /) -> None:
        """End sending, receiving or both; what was accepted still leaves. Never waits.

        Raises OSError: EINVAL for another `how`, ENOTCONN.
        """
        self._check_open()
        if c_int(how) not in _SHUT:
            raise os_error(errno.EINVAL, f"how {how}, from {system.SHUT_RD} to {system.SHUT_RDWR}")
        link = self._transfer.link
        if link is None:
            raise os_error(errno.ENOTCONN)
        link.shut_down(_SHUT[how])
        self._wake()

    def _release(self) -> None:
        self._transfer.is_closed = True
        self.__dict__.clear()
        for one in (self._reservation, self._listener):
            if one is not None:
                one.close()
        link = self._transfer.link
        if link is None:
            return
        self._mapped.unmap_all()
        linger_s = self._options.linger_s
        link.close(linger_s)
        if linger_s:
            leaving = link.context.leaving
            devices.wait((link.context,), lambda: link not in leaving, linger_s)

    def _release_soon(self) -> None:
        if self._reservation is not None:
            self._reservation.close()
        source = self._readiness_source()
        if source is not None:
            for call in (self._mapped.unmap_all, source.close):
                source.contexts[0].adapter.call_soon(call)

    def _abandon_in_child(self) -> None:
        super()._abandon_in_child()
        self.__dict__.clear()
        self._transfer.is_closed = True
        self._transfer.link = self._listener = None
        if self._reservation is not None:
            self._reservation.close()


def socket(family: int = system.AF_INET, type: int = system.SOCK_STREAM, proto: int = 0) -> Socket:
    """Return a new socket, as `socket.socket` does; see `Socket`."""
    return Socket(family, type, proto)


def _place(socket: StreamSocket) -> None:
    """Place the calls of a compiled stream in the socket, where none is overridden."""
    link, own = socket._transfer.link, type(socket)
    if link is None or link.native is None or link.state is LinkState.CONNECTING:
        return
    native = link.native.native
    socket._transfer.serve(native, socket._timeout_s)
    for name in ("send", "sendall", "recv", "recv_into", "write_mapped"):
        if getattr(own, name) is getattr(StreamSocket, name):
            socket.__dict__[name] = getattr(native, name)


def _info(socket: StreamSocket, link: StreamLink | None) -> options.SocketInfo:
    state, segment_bytes = options.TcpState.CLOSE, None
    if socket._listener is not None:
        state = options.TcpState.LISTEN
    elif link is not None:
        state = _STATES[link.state]
        segment_bytes = link.context.adapter.attributes.link.mtu_bytes
    return options.SocketInfo(state, segment_bytes, family=socket._family)


def _is_dual(socket: StreamSocket, address: HostPort) -> bool:
    """Return whether an address of the socket is one of both IP versions."""
    return address[0] == "::" and not socket._options.v6_only


def _is_foreign(socket: StreamSocket, address: HostPort) -> bool:
    """Return whether it is an IPv4 address and the socket has IPv6 only."""
    is_ipv4 = ":" not in address[0]
    return is_ipv4 and socket._family == system.AF_INET6 and socket._options.v6_only


def _connect_error(code: int | None, peer: HostPort | None, reason: str | None) -> OSError:
    """Return what a connect raises: errno, the peer's address, and a reason that says more."""
    code = code or errno.ECONNABORTED
    detail = "connect" if peer is None else f"connect to {host_port(peer)}"
    if reason and os.strerror(code) not in reason and not reason.startswith("connect to"):
        detail += f": {reason}"
    return os_error(code, detail)


def create_connection(
    address: tuple[str | None, int],
    timeout: Any = TIMEOUT_DEFAULT,
    source_address: tuple[str, int] | None = None,
    *,
    all_errors: bool = False,
) -> StreamSocket:
    """Connect to a host and port, trying each address of the host; return the socket.

    `timeout`, in seconds, bounds each attempt and stays the socket's; not given it is the default.
    Raises OSError: that of the last attempt; with `all_errors` an ExceptionGroup of all.
    """
    host, port = address
    problems: list[OSError] = []
    for family, _, _, _, name in system.getaddrinfo(host, port, type=system.SOCK_STREAM):
        try:
            made = StreamSocket(family)
        except OSError as error:
            problems.append(error)
            continue
        try:
            if timeout is not TIMEOUT_DEFAULT:
                made.settimeout(timeout)
            if source_address is not None:
                made.bind(source_address)
            made.connect(name)
            return made
        except OSError as error:
            problems.append(error)
            made.close()
        except BaseException:
            made.close()
            raise
    if all_errors and problems:
        raise ExceptionGroup("create_connection failed", problems)
    raise problems[-1] if problems else OSError(f"no address of {host!r}")


def create_server(
    address: Any,
    *,
    family: int = system.AF_INET,
    backlog: int | None = None,
    reuse_port: bool = False,
    dualstack_ipv6: bool = False,
) -> StreamSocket:
    """Return a socket that listens at an address, of which a closed one may be a moment ago.

    `dualstack_ipv6`: at `::`, for IPv4 clients too. Raises ValueError if the family is another;
    OSError: EADDRINUSE, EADDRNOTAVAIL, ENOTSUP (`reuse_port`: a port has one listening rsocket).
    """
    if dualstack_ipv6 and family != system.AF_INET6:
        raise ValueError("dualstack_ipv6 requires the IPv6 family")
    made = StreamSocket(family)
    try:
        made.setsockopt(system.SOL_SOCKET, system.SO_REUSEADDR, 1)
        if reuse_port:
            made.setsockopt(system.SOL_SOCKET, system.SO_REUSEPORT, 1)
        if family == system.AF_INET6:
            made.setsockopt(system.IPPROTO_IPV6, system.IPV6_V6ONLY, not dualstack_ipv6)
        made.bind(address)
        made.listen(BACKLOG_DEFAULT if backlog is None else backlog)
    except BaseException as failure:
        made.close()
        if isinstance(failure, OSError) and failure.errno == errno.EADDRINUSE:
            raise os_error(errno.EADDRINUSE, f"listen at {address}") from failure
        raise
    return made
