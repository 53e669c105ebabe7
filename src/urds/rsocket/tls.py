"""TLS over a stream rsocket: `ssl.SSLContext.wrap_socket` for sockets that OpenSSL cannot read.

`wrap_socket(context, sock)` takes a `StreamSocket` over, connected or listening, and returns a
`TlsSocket`, which has the calls of `ssl.SSLSocket` that programs use; `ssl_object` has the others.
OpenSSL works on memory (`ssl.MemoryBIO`), the bytes go by the rsocket.

One thread may send while another receives. `_guard` is held by calls of the TLS object, which
never wait; `_sending` and `_receiving` keep records in order, while their holder waits for the
peer. A thread that receives waits for no `_sending`: the holder sends what it leaves.
"""

from __future__ import annotations

import errno
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from socket import MSG_DONTWAIT, SHUT_RD
from typing import Any, Final, Self, TypeVar

from urds.common.forks import renewed
from urds.common.receive_buffers import writable
from urds.common.socket_calls import refused
from urds.rsocket import options
from urds.rsocket.errors import os_error
from urds.rsocket.link.devices import Readiness
from urds.rsocket.link.stream_link import StreamLink, wait_on
from urds.rsocket.socket import Socket
from urds.rsocket.stream_socket import StreamSocket
from urds.rsocket.waiting import CallTimeout

WRITE_BYTES_MAX: Final = 1 << 16  # of one send: what a socket that never waits may have to keep
READ_BYTES: Final = 1 << 16
_DONTWAIT: Final = int(MSG_DONTWAIT)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Terms:
    """What `wrap_socket` was told, for this socket and for those that it accepts."""

    context: ssl.SSLContext
    server_side: bool
    server_hostname: str | None
    session: ssl.SSLSession | None
    begins_at_once: bool  # with the handshake
    is_quiet: bool  # about an end without the peer's farewell


def wrap_socket(
    context: ssl.SSLContext,
    sock: StreamSocket,
    server_side: bool = False,
    do_handshake_on_connect: bool = True,
    suppress_ragged_eofs: bool = True,
    server_hostname: str | None = None,
    session: ssl.SSLSession | None = None,
) -> TlsSocket:
    """Take a rsocket over and return its `TlsSocket`; as `context.wrap_socket(sock, ...)`.

    `sock` is closed; a listening one then accepts TLS connections. Raises ValueError for names
    that the context wants or the side cannot have, ssl.SSLError, OSError.
    """
    if server_side and server_hostname:
        raise ValueError("server_hostname can only be specified in client mode")
    if server_side and session is not None:
        raise ValueError("session can only be specified in client mode")
    if context.check_hostname and not server_hostname:
        raise ValueError("check_hostname requires server_hostname")
    made = TlsSocket.__new__(TlsSocket)
    sock._hand_over(made)
    terms = _Terms(
        context, server_side, server_hostname, session,
        do_handshake_on_connect, suppress_ragged_eofs,
    )  # fmt: skip
    made._start(terms)
    if made.link is not None:
        made._handshake_at_once()
    return made


class TlsSocket(StreamSocket):
    """A stream whose bytes are TLS's. `wrap_socket` makes it."""

    __slots__ = (
        "_decrypted_bytes", "_guard", "_incoming", "_outgoing", "_receiving", "_sending", "_terms",
        "_tls", "_unsent",
    )  # fmt: skip

    _terms: _Terms

    def _begin(self, family: int, kind: int, proto: int, chosen: options.RsocketOptions) -> None:
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._unsent = memoryview(b"")
        self._decrypted_bytes = 0
        self._guard = renewed(threading.Lock())
        self._sending = renewed(threading.Lock())
        self._receiving = renewed(threading.Lock())
        super()._begin(family, kind, proto, chosen)

    def _adopt(self, link: StreamLink, listener: StreamSocket) -> None:
        super()._adopt(link, listener)
        assert isinstance(listener, TlsSocket), "an accepted socket has its listener's class"
        self._start(listener._terms)

    # -- beginning and ending

    def connect(self, address: Any, /) -> None:
        """Connect and make the handshake; see `StreamSocket.connect`."""
        super().connect(address)
        self._handshake_at_once()

    def accept(self) -> tuple[TlsSocket, Any]:
        """Take the next connection and make the handshake; see `StreamSocket.accept`.

        Raises ssl.SSLError, OSError if that fails; the connection is then closed.
        """
        accepted, peer = super().accept()
        assert isinstance(accepted, TlsSocket), "an accepted socket has its listener's class"
        accepted._handshake_at_once()
        return accepted, peer

    def _start(self, terms: _Terms) -> None:
        """Have a TLS object: from here on nothing goes in the clear before `unwrap`."""
        self._terms = terms
        try:
            self._tls = terms.context.wrap_bio(
                self._incoming, self._outgoing, terms.server_side, terms.server_hostname,
                terms.session,
            )  # fmt: skip
        except (OSError, ValueError):
            self.close()
            raise

    def _handshake_at_once(self) -> None:
        if not self._terms.begins_at_once:
            return
        try:
            if self._timeout_s == 0:
                raise ValueError("do_handshake_on_connect of a socket that never waits")
            self.do_handshake()
        except (OSError, ValueError):
            self.close()
            raise

    def do_handshake(self) -> None:
        """Make the handshake, unless it is made. Raises ssl.SSLError, OSError."""
        self._run(self.ssl_object.do_handshake)
        with suppress(ConnectionError):  # a peer that has gone may have left bytes
            self._flush()

    def unwrap(self) -> Self:
        """End TLS in order; return the socket, whose bytes are plain from then on."""
        self._run(self.ssl_object.unwrap)
        self._flush()
        self._tls = None
        return self

    def shutdown(self, how: int, /) -> None:
        """Tell the peer that no more bytes come, then as `StreamSocket.shutdown`."""
        if how != SHUT_RD:
            self._say_farewell()
        super().shutdown(how)

    def _release(self) -> None:
        self._say_farewell()
        super()._release()

    def _say_farewell(self) -> None:
        """Send what is left and a close_notify, as far as that needs no waiting."""
        if self._tls is None:
            return
        with suppress(OSError), self._guard:
            self._tls.unwrap()  # raises, for it would then wait for the peer's
        with suppress(OSError):
            self._flush(_DONTWAIT, waits=False)

    # -- sending

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Encrypt and send bytes; return how many were taken, WRITE_BYTES_MAX at most.

        Raises OSError as `StreamSocket.send`, ssl.SSLWantWriteError instead of EAGAIN.
        """
        tls = self._tls
        if tls is None:
            return super().send(data, flags)
        _demand_no_flags(flags)
        self._flush()  # or nothing of `data` is taken
        view = memoryview(data).cast("B")[:WRITE_BYTES_MAX]
        taken = self._run(lambda: tls.write(view)) if view else 0
        with suppress(TimeoutError, ssl.SSLWantWriteError):  # the next call sends the rest
            self._flush()
        return taken

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        """Send everything. After an error it is not known how much was sent."""
        view = memoryview(data).cast("B")
        while view:
            view = view[self.send(view, flags) :]
        if self._tls is not None:
            self._flush()

    # -- receiving

    def recv(self, bytes_max: int = 1024, flags: int = 0, /) -> bytes:
        """Receive at most `bytes_max` bytes; none at the end of the stream.

        Raises OSError as `StreamSocket.recv`, ssl.SSLWantReadError instead of EAGAIN.
        """
        tls = self._tls
        if tls is None:  # after its end, behind which bytes may have come already
            return self._incoming.read(bytes_max) or super().recv(bytes_max, flags)
        _demand_no_flags(flags)
        return self._read(lambda: tls.read(bytes_max), b"") if bytes_max else b""

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive into a buffer; return how many bytes. See `recv`."""
        view, tls = writable(buffer, nbytes, "recv_into"), self._tls
        if tls is None:
            data = self.recv(len(view), flags)
            view[: len(data)] = data
            return len(data)
        _demand_no_flags(flags)
        return self._read(lambda: _read_into(tls, view), 0) if view else 0

    def read(self, bytes_max: int = 1024, buffer: Any = None) -> Any:
        """Receive bytes, or into a buffer; as `ssl.SSLSocket.read`."""
        return self.recv(bytes_max) if buffer is None else self.recv_into(buffer, bytes_max)

    def write(self, data: Any) -> int:
        """Send bytes; as `ssl.SSLSocket.write`."""
        return self.send(data)

    def pending(self) -> int:
        """Return how many decrypted bytes there are."""
        return self._decrypted_bytes

    def readiness(self) -> Readiness:
        """Return what can be done without waiting; what TLS has to read counts."""
        now = super().readiness()
        return now._replace(readable=now.readable or self._has_bytes())

    def _shown(self) -> tuple[bool, bool]:
        readable, writable = super()._shown()
        return readable or self._has_bytes(), writable

    def _has_bytes(self) -> bool:
        return bool(self._decrypted_bytes or self._incoming.pending)

    def _read(self, call: Callable[[], Result], end: Result) -> Result:
        try:
            return self._run(call, waits=False)
        except ssl.SSLZeroReturnError:
            return end
        except ssl.SSLEOFError:
            if self._terms.is_quiet:
                return end
            raise

    # -- what moves the bytes

    def _run(self, call: Callable[[], Result], *, waits: bool = True) -> Result:
        """Return what a call of the TLS object returns, once it has the bytes that it wants."""
        while True:
            try:
                with self._guard:
                    result = call()
                    self._decrypted_bytes = self.ssl_object.pending()
                self.watchers.tell()
                return result
            except ssl.SSLWantReadError:
                with suppress(ConnectionError):  # why the peer has gone may be among its bytes
                    self._flush(waits=waits)
                self._fill()
            except ssl.SSLError:
                with suppress(OSError):
                    self._flush(waits=waits)  # the alert that says why
                raise

    def _flush(self, flags: int = 0, *, waits: bool = True) -> None:
        """Send what the TLS object has written. `waits`: for another thread that does it."""
        # Again after the release: what a thread that does not wait left meanwhile is sent here.
        while self._outgoing.pending or self._unsent:
            if not self._sending.acquire(blocking=waits):
                return
            try:
                self._send_outgoing(flags)
            except BlockingIOError:
                code, text = ssl.SSL_ERROR_WANT_WRITE, "The operation did not complete (write)"
                raise ssl.SSLWantWriteError(code, text) from None
            finally:
                self._sending.release()

    def _send_outgoing(self, flags: int) -> None:
        wait_s = 0.0 if flags & _DONTWAIT else self._timeout_s
        call_timeout = CallTimeout(wait_s)
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                with self._guard:
                    self._unsent = memoryview(self._outgoing.read())
            link = self._transfer.connected_link(call_timeout)
            # It never waits inside: an exception of a signal handler there would lose the count,
            # and the same records would go once more.
            try:
                self._unsent = self._unsent[super().send(self._unsent, flags | _DONTWAIT) :]
            except BlockingIOError:
                if wait_s == 0:
                    raise
                call_timeout.until(partial(wait_on, link), self._may_send(link))
                self._check_open()

    def _may_send(self, link: StreamLink) -> Callable[[], bool]:
        return lambda: link.readiness().writable or self._is_over

    def _fill(self) -> None:
        """Receive bytes for the TLS object, or the end."""
        with self._receiving:
            if self._incoming.pending:
                return  # another thread was faster
            try:
                data = super().recv(READ_BYTES)
            except BlockingIOError:
                code = ssl.SSL_ERROR_WANT_READ
                raise ssl.SSLWantReadError(code, "The operation did not complete (read)") from None
            with self._guard:
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()

    # -- what TLS knows

    @property
    def ssl_object(self) -> ssl.SSLObject:
        """The TLS object. Raises OSError (ENOTCONN) after `unwrap`."""
        if self._tls is None:
            raise os_error(errno.ENOTCONN, "no TLS connection")
        return self._tls

    @property
    def context(self) -> ssl.SSLContext:
        """The context that the socket was wrapped with."""
        return self._terms.context

    def getpeercert(self, binary_form: bool = False) -> Any:
        """Return the peer's certificate; see `ssl.SSLSocket.getpeercert`."""
        return self.ssl_object.getpeercert(binary_form)

    def cipher(self) -> tuple[str, str, int] | None:
        """Return the cipher in use: name, version of TLS, bits."""
        return None if self._tls is None else self._tls.cipher()

    def version(self) -> str | None:
        """Return the version of TLS in use, `TLSv1.3`."""
        return None if self._tls is None else self._tls.version()

    def selected_alpn_protocol(self) -> str | None:
        """Return the protocol that ALPN chose."""
        return None if self._tls is None else self._tls.selected_alpn_protocol()

    # -- what would go past TLS

    map_buffer, unmap_buffer = Socket.map_buffer, Socket.unmap_buffer
    write_mapped = Socket.write_mapped

    sendto = refused("sendto under TLS")
    sendmsg = refused("sendmsg under TLS")
    recvfrom = refused("recvfrom under TLS")
    recvfrom_into = refused("recvfrom_into under TLS")
    recvmsg = refused("recvmsg under TLS")
    recvmsg_into = refused("recvmsg_into under TLS")


# -- `ssl.SSLContext.wrap_socket`

_kernel_wrap: Final[Any] = ssl.SSLContext.wrap_socket


def serve() -> None:
    """Have `ssl.SSLContext.wrap_socket` take rsockets too, in this process; idempotent."""
    setattr(ssl.SSLContext, "wrap_socket", _wrap)  # noqa: B010 - no assignment to a method


def withdraw() -> None:
    """Have it take kernel sockets only; idempotent."""
    setattr(ssl.SSLContext, "wrap_socket", _kernel_wrap)  # noqa: B010 - no assignment to a method


@wraps(_kernel_wrap)
def _wrap(context: ssl.SSLContext, sock: Any, *arguments: Any, **named: Any) -> Any:
    take = wrap_socket if isinstance(sock, StreamSocket) else _kernel_wrap
    return take(context, sock, *arguments, **named)


def _read_into(tls: ssl.SSLObject, view: memoryview) -> int:
    count: Any = tls.read(len(view), view)  # the stubs know of bytes only
    return int(count)


def _demand_no_flags(flags: int) -> None:
    if flags:
        raise ValueError(f"flags {flags:#x}: a TLS socket takes none")
