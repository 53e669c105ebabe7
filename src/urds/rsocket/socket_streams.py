"""`StreamSocket`: connections of stream sockets. Bind, listen, accept, connect, shut down, close.

A bound port is held by a socket of the kernel until it is listened at or connected from: devices
know ports only from then on. Source: rsocket.md sections 2.4, 8, 11; what it leaves open is as in
Linux's TCP.
"""

from __future__ import annotations

import errno
from functools import partial
from socket import (
    IPPROTO_TCP,
    SHUT_RD,
    SHUT_RDWR,
    SHUT_WR,
    SO_KEEPALIVE,
    SOL_SOCKET,
    TCP_KEEPIDLE,
    TCP_NODELAY,
)
from typing import TYPE_CHECKING, Any, Final

from urds.rsocket import devices, options, socket_names
from urds.rsocket.link import Link, LinkState
from urds.rsocket.listening import Listening, Reservation
from urds.rsocket.refusals import refusal
from urds.rsocket.socket_mapping import MappingSocket
from urds.rsocket.socket_waiting import Patience
from urds.rsocket.stream import Shut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urds.rsocket.opening import Opening
    from urds.rsocket.stream import StreamStats
    from urds.verbs.providers.base import Address

BACKLOG_DEFAULT: Final = 128
# Options that act on a connection that is there, beside TCP_NODELAY.
_OF_KEEPALIVE: Final = {(SOL_SOCKET, SO_KEEPALIVE), (IPPROTO_TCP, TCP_KEEPIDLE)}
_SHUT: Final = {SHUT_RD: Shut.RD, SHUT_WR: Shut.WR, SHUT_RDWR: Shut.RDWR}
_STATES: Final = {
    LinkState.IDLE: options.TcpState.CLOSE,
    LinkState.CONNECTING: options.TcpState.SYN_SENT,
    LinkState.CONNECTED: options.TcpState.ESTABLISHED,
    LinkState.OVER: options.TcpState.CLOSE,
}


class StreamSocket(MappingSocket):
    """A stream: reliable octets in order, between two sockets."""

    __slots__ = ("_bound", "_is_told", "_listening", "_reservation")

    def _begin(self, family: int, kind: int, proto: int, chosen: options.Options) -> None:
        self._link: Link | None = None
        self._listening: Listening | None = None
        self._bound: Address | None = None
        self._reservation: Reservation | None = None
        self._is_told = False  # whether a call has said that the connect went well
        super()._begin(family, kind, proto, chosen)

    # -- before a connection

    def bind(self, address: Any, /) -> None:
        """Take an address of this host; port 0 chooses a free one.

        Raises OSError: EINVAL (bound or connected already), EADDRINUSE, EADDRNOTAVAIL.
        """
        self._check_open()
        name = socket_names.parse(address, self._family, "bind")
        with self._lock:
            if self._bound is not None or self._behind() is not None:
                raise refusal(errno.EINVAL, f"bound to {self.getsockname()} already")
            self._bound = name
            if all(opening.adapter.has_own_time for opening in devices.openings()):
                try:
                    self._reservation = Reservation(name, reuse=self._options.reuse_address)
                except OSError:
                    self._bound = None
                    raise
                self._bound = self._reservation.address

    def listen(self, backlog: int = BACKLOG_DEFAULT, /) -> None:
        """Let peers connect: to a free port of any address unless bound. Again: nothing.

        Raises OSError: EINVAL for a socket that connects or did, EADDRINUSE.
        """
        with self._lock:
            self._check_open()
            if self._link is not None:
                raise refusal(errno.EINVAL, "listen of a socket that connects")
            if self._listening is not None:
                return
            self._listening = Listening(
                self._bound or socket_names.unbound(self._family),
                backlog,
                options.stream_settings(self._options),
                devices.openings(),
            )
            self._bound = self._listening.local
            self._listening.on_change = self.watchers.tell
            self._attend()
            self._tell()

    def accept(self) -> tuple[StreamSocket, Any]:
        """Take the next connection; return its socket and the peer's address.

        The new socket has this one's options, but waits as a new socket does. Raises OSError:
        EINVAL (not listening), EAGAIN, ETIMEDOUT.
        """
        self._check_open()
        listening = self._listening
        if listening is None:
            raise refusal(errno.EINVAL, "accept of a socket that does not listen")
        link = listening.accept()
        patience = None if link is not None else Patience(self._wait_s)
        while link is None:
            assert patience is not None
            patience.until(
                partial(devices.wait, listening.openings),
                lambda: listening.readiness().readable or self._is_over,
            )
            self._check_open()
            link = listening.accept()
        if self.watchers:
            self.watchers.tell()
        accepted = StreamSocket.__new__(type(self))
        accepted._take_over(link, self)
        return accepted, accepted._peer_shown()

    def _take_over(self, link: Link, listener: StreamSocket) -> None:
        self._begin(listener._family, listener._kind, listener._proto, listener._options)
        self._link, self._is_told = link, True
        link.on_change = self.watchers.tell

    def connect(self, address: Any, /) -> None:
        """Connect, over the first device on which somebody listens there.

        Raises OSError: ECONNREFUSED, ETIMEDOUT, EINPROGRESS (it goes on; poll for writing, then
        SO_ERROR), EALREADY (it goes on since an earlier call), EISCONN.
        """
        link = self._begin_connect(address)
        if link.state is LinkState.CONNECTING:
            if self._wait_s == 0:
                raise refusal(errno.EINPROGRESS)
            self._link_for_data()
        self._check_open()
        if link.state is LinkState.CONNECTED or link.stream is not None:
            self._is_told = True
            return
        raise self._connect_error(link)

    def _begin_connect(self, address: Any) -> Link:
        """Return the link that connects: the one under way, or a new one."""
        self._check_open()
        peer = socket_names.reachable(socket_names.parse(address, self._family, "connect"))
        with self._lock:
            self._check_open()
            if self._listening is not None:
                raise refusal(errno.EISCONN, "connect of a socket that listens")
            link = self._link
            if link is not None and not self._is_failed(link):
                return self._connect_again(link)
            if link is not None and link.error:
                raise self._connect_error(link)
            link = Link(devices.openings(), options.stream_settings(self._options))
            self._link = link
            link.on_change = self.watchers.tell
            if self._reservation is not None:
                self._reservation.close()
            try:
                link.connect(peer, local=self._bound)
            except OSError:
                self._link = None
                raise
            self._attend()
            self._tell()  # a socket that connects is not writable yet
            return link

    def _connect_again(self, link: Link) -> Link:
        """Judge a connect on a socket that connects, or has connected."""
        if link.state is LinkState.CONNECTING:
            if self._wait_s == 0:
                raise refusal(errno.EALREADY, f"a connect to {link.peer} is under way")
        elif self._is_told:
            raise refusal(errno.EISCONN, f"with {link.peer}")
        return link

    @staticmethod
    def _is_failed(link: Link) -> bool:
        return link.state is LinkState.OVER and (bool(link.error) or link.stream is None)

    @staticmethod
    def _connect_error(link: Link) -> OSError:
        return refusal(link.take_error() or errno.ECONNABORTED, link.reason)

    # -- names and options

    def getpeername(self) -> Any:
        """Return the peer's address. Raises OSError: ENOTCONN."""
        self._check_open()
        link = self._link
        if link is None or link.stream is None or link.state is LinkState.CONNECTING:
            raise refusal(errno.ENOTCONN)
        return self._peer_shown()

    @property
    def link(self) -> Link | None:
        """The connection behind the socket, None before there is one."""
        return self._link

    @property
    def stats(self) -> StreamStats | None:
        """What happened on the connection so far; None before there is one."""
        stream = None if self._link is None else self._link.stream
        return None if stream is None else stream.stats

    @property
    def openings(self) -> Sequence[Opening]:
        """The devices that can change its readiness; once connected the one that connects."""
        link = self._link
        if link is None or link.state is LinkState.CONNECTING:
            return super().openings
        return (link.opening,)

    def _behind(self) -> Link | Listening | None:
        return self._listening if self._link is None else self._link

    def _local(self) -> Address | None:
        link = self._link
        return (link.local if link is not None else None) or self._bound

    def _life(self) -> options.Life:
        link = self._link
        if self._listening is not None:
            return options.Life(options.TcpState.LISTEN, None)
        if link is None:
            return options.Life(options.TcpState.CLOSE, None)
        return options.Life(_STATES[link.state], link.opening.adapter.attributes.link.mtu_bytes)

    def _apply(self, level: int, option: int) -> None:
        link = self._link
        if self._listening is not None:
            self._listening.settings = options.stream_settings(self._options)
        if link is None or link.stream is None:
            return
        with link.opening.adapter.lock:
            if (level, option) == (IPPROTO_TCP, TCP_NODELAY):
                link.stream.set_no_delay(self._options.no_delay)
            elif (level, option) in _OF_KEEPALIVE:
                link.stream.set_keepalive(options.keepalive_ns(self._options))
                link.opening.mark(link)  # which plans its alarm

    def _take_error(self) -> int:
        return 0 if self._link is None else self._link.take_error()

    # -- the end

    def shutdown(self, how: int, /) -> None:
        """End sending, receiving or both; what was accepted still leaves. Never waits.

        Raises OSError: EINVAL for another `how`, ENOTCONN.
        """
        self._check_open()
        if how not in _SHUT:
            raise refusal(errno.EINVAL, f"how {how} is not from {SHUT_RD} to {SHUT_RDWR}")
        link = self._link
        if link is None:
            raise refusal(errno.ENOTCONN)
        link.shut_down(_SHUT[how])
        self._wake()

    def _let_go(self) -> None:
        link, listening, reservation = self._link, self._listening, self._reservation
        if reservation is not None:
            reservation.close()
        if listening is not None:
            listening.close()
        if link is None:
            return
        self._unmap_all()
        linger_s = self._options.linger_s
        link.close(linger_s)
        if linger_s:
            leaving = link.opening.leaving
            devices.wait((link.opening,), lambda: link not in leaving, linger_s)

    def _let_go_soon(self) -> None:
        if self._reservation is not None:
            self._reservation.close()
        behind = self._behind()
        if behind is not None:
            behind.openings[0].adapter.call_soon(behind.close)

    def _abandon_in_child(self) -> None:
        super()._abandon_in_child()
        self._link = self._listening = None
        if self._reservation is not None:
            self._reservation.close()
