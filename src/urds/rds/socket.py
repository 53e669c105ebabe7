"""`Socket`: the API of rds(7) with the methods of `socket.socket`. Thin: no protocol here.

A socket holds its options and, once bound, a mailbox. The calls of every message, `sendto` and
`recvfrom`, are then the mailbox's own methods, placed in the instance: a Python function between
would cost 30 % of the rate. So is `recv_into` of a compiled mailbox, which does what is here. That
is why waiting times are in the mailbox's settings and each change of them replaces those. All other
calls pass through here, in Linux's order of checks.
Source: linux v6.12 net/rds/send.c, net/rds/recv.c; docs/reference/rds.md 3.4, 3.5.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, overload

from urds.common.errors import ErrorReason, os_error
from urds.common.receive_buffers import (
    all_writable,
    checked_ancillary_size,
    checked_size,
    fill,
    writable,
)
from urds.common.socket_calls import SocketCalls
from urds.rds import addresses, options
from urds.rds.addresses import Call, GivenAddress, SocketAddress
from urds.rds.constants import (
    AF_RDS,
    MSG_CMSG_CLOEXEC,
    MSG_DONTWAIT,
    MSG_ERRQUEUE,
    MSG_OOB,
    MSG_PEEK,
    MSG_TRUNC,
    SOCK_SEQPACKET,
)
from urds.rds.socket_base import SocketBase
from urds.rds.socket_rdma import RdmaSocket

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    from urds.rds.cmsg import Ancillary
    from urds.rds.runtime.backend import Mailbox, Message, Notice

_NS: Final = 1_000_000_000
# As integers: an enum makes each operation on flags twenty times as long.
_DONTWAIT: Final = int(MSG_DONTWAIT)
_TRUNC: Final = int(MSG_TRUNC)
_RECEIVE_BYTES_DEFAULT: Final = 1 << 20


def socket(family: int = AF_RDS, type: int = SOCK_SEQPACKET, proto: int = 0) -> Socket:
    """Return a new socket, as `socket.socket` does. Raises OSError for any other kind."""
    return Socket(family, type, proto)


class Socket(RdmaSocket):
    """An RDS socket; isinstance says that it is a `socket.socket` too.

    Raises OSError: EAFNOSUPPORT for another family, ESOCKTNOSUPPORT for another type or protocol.
    """

    # -- sending

    def send(self, data: ReadableBuffer, flags: int = 0, /) -> int:
        """Send to the default destination; see `sendto`."""
        mailbox, target = self._mailbox, self._reachable_peer
        if mailbox is None or target is None or flags:
            return self._send((data,), (), flags, None)
        return mailbox.sendto(data, target)  # type: ignore[arg-type]  # other buffers are copied

    def sendall(self, data: ReadableBuffer, flags: int = 0, /) -> None:
        """Send to the default destination: a datagram goes whole or not at all."""
        self.send(data, flags)

    @overload  # type: ignore[override]  # the parent's take addresses of every family
    def sendto(self, data: ReadableBuffer, address: GivenAddress, /) -> int: ...
    @overload
    def sendto(self, data: ReadableBuffer, flags: int, address: GivenAddress, /) -> int: ...
    def sendto(self, data: ReadableBuffer, flags_or_address: Any, address: Any = None, /) -> int:
        """Queue one message; return its length. Success means queued, and delivered in time.

        The buffer is the caller's again at once: what is not `bytes` is copied. Raises OSError:
        EMSGSIZE, EAGAIN (queue full), ENOBUFS (the port is congested), ETIMEDOUT, EHOSTUNREACH
        (given up), EACCES (peer not allowed).
        """
        if address is None:
            return self._send((data,), (), 0, flags_or_address)
        return self._send((data,), (), flags_or_address, address)

    def sendmsg(  # type: ignore[override]  # as sendto
        self,
        buffers: Iterable[ReadableBuffer],
        ancdata: Iterable[tuple[int, int, ReadableBuffer]] = (),
        flags: int = 0,
        address: GivenAddress | None = None,
        /,
        *,
        copy: bool = True,
    ) -> int:
        """Queue one message gathered from `buffers`, with control messages; see `cmsg`.

        With `copy=False` one buffer of 8 KiB or more may be sent without a copy: it must not
        change before the message is acknowledged (`unacknowledged` is 0 then).
        """
        return self._send(tuple(buffers), tuple(ancdata), flags, address, copy=copy)

    def send_many(self, messages: Iterable[tuple[ReadableBuffer, GivenAddress | None]]) -> int:
        """Queue messages, address None meaning the default destination; return how many.

        A list or tuple goes in one call, anything else message by message. Stops at the first
        refused one; raises its OSError if no message was queued before it, so that going on with
        the rest never hides an error.
        """
        mailbox, peer = self._bound(), self._reachable_peer
        if peer is None and self._peer is not None:
            peer = addresses.socket_address(*self._peer)  # refused with its reason
        if isinstance(messages, list | tuple):
            return mailbox.send_many(messages, peer) if messages else 0
        count = 0
        try:
            for message in messages:
                count += mailbox.send_many((message,), peer)  # type: ignore[arg-type]  # as in sendto
        except OSError:
            if not count:
                raise
        return count

    def cancel(self, address: GivenAddress | None = None) -> int:
        """Take back what is not acknowledged to exactly `address`, or everything; return how many.

        A message taken back may still arrive, if it was on its way.
        """
        if address is None:
            return self._bound().cancel(None, None)
        peer, port = addresses.parse(address, Call.SEND)
        return self._bound().cancel(peer, port)

    # -- receiving

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Take one message; see `recvfrom`."""
        return self.recvfrom(bufsize, flags)[0]

    def recvfrom(self, bufsize: int, flags: int = 0, /) -> tuple[bytes, SocketAddress]:
        """Take one message and its source; what exceeds `bufsize` bytes is discarded.

        A notification comes as no bytes from None. A thread that blocks here reads the connections
        of the process, or waits for the thread that does: `plane.python.waiting`. Raises OSError:
        EAGAIN, ETIMEDOUT.
        """
        payload, _, _, source = self.recvmsg(bufsize, 0, flags)
        return payload, source  # type: ignore[return-value]  # None with notifications only

    def recv_region(
        self, bufsize: int, flags: int = 0, /
    ) -> tuple[bytes, SocketAddress | None, int | None]:
        """Take one message, its source, and the cookie of the region that its sender gave with it.

        The cookie is for `rdma_write` and its like, None without one; it can be kept and used
        until its owner frees the region. A notification comes as no bytes from None. Raises
        OSError as `recvfrom`.
        """
        from urds.rds import cmsg
        from urds.rds.runtime.backend import Message

        bufsize = checked_size(bufsize, "recv_region")
        taken = self._take(flags)
        if not isinstance(taken, Message):
            return b"", None, None
        cookie = cmsg.destination_cookie(taken.extension)
        return taken.payload[:bufsize], taken.source, cookie

    def recvmsg(
        self, bufsize: int, ancbufsize: int = 0, flags: int = 0, /
    ) -> tuple[bytes, list[Ancillary], int, SocketAddress | None]:
        """Take one message, or one notification without data, with its control messages.

        Return payload, control messages, MSG_TRUNC and MSG_CTRUNC as they apply, and the source.
        """
        bufsize = checked_size(bufsize, "recvmsg")
        payload, ancillary, result_flags, source = self._receive(ancbufsize, flags)
        if len(payload) > bufsize:
            result_flags |= _TRUNC
        return payload[:bufsize], ancillary, result_flags, source

    def recvmsg_into(
        self, buffers: Iterable[WriteableBuffer], ancbufsize: int = 0, flags: int = 0, /
    ) -> tuple[int, list[Ancillary], int, SocketAddress | None]:
        """Take one message into `buffers`, one after the other; the payload is copied.

        Return the bytes copied, or the whole length with MSG_TRUNC in `flags`; then as `recvmsg`.
        Raises TypeError if one of them cannot be written; then no message was taken.
        """
        return self._receive_into(all_writable(buffers), ancbufsize, flags)

    def _receive_into(
        self, views: list[memoryview], ancillary_bytes_max: int, flags: int
    ) -> tuple[int, list[Ancillary], int, SocketAddress | None]:
        payload, ancillary, result_flags, source = self._receive(ancillary_bytes_max, flags)
        copied = fill(views, payload)
        if copied < len(payload):
            result_flags |= _TRUNC
        count = len(payload) if flags & _TRUNC else copied
        return count, ancillary, result_flags, source

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """Take one message into a buffer; see `recvfrom_into`."""
        return self._receive_into([writable(buffer, nbytes, "recv_into")], 0, index(flags))[0]

    def recvfrom_into(
        self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0
    ) -> tuple[int, SocketAddress]:
        """Take one message into a buffer, at most `nbytes` of it; 0 is the whole buffer.

        Return the bytes copied and the source. Raises TypeError if the buffer cannot be written,
        ValueError if it is smaller than `nbytes`; then no message was taken.
        """
        views = [writable(buffer, nbytes, "recvfrom_into")]
        count, _, _, source = self._receive_into(views, 0, flags)
        return count, source  # type: ignore[return-value]  # as recvfrom

    def recv_many(
        self, count_max: int, bufsize: int = _RECEIVE_BYTES_DEFAULT
    ) -> list[tuple[bytes, SocketAddress]]:
        """Wait for a message as `recvfrom` does, then take what is there, up to `count_max`."""
        if count_max < 1:
            raise ValueError(f"count_max {count_max} is below 1")
        bufsize = checked_size(bufsize, "recv_many")
        wait_ns = self._wait_ns(self._options.receive_wait_ns)
        mailbox = self._mailbox or self._wait_for_mailbox(wait_ns)
        if mailbox is None:
            raise _nothing_came(wait_ns)
        return mailbox.recv_many(count_max, bufsize)

    def _receive(
        self, ancillary_bytes_max: int, flags: int
    ) -> tuple[bytes, list[Ancillary], int, SocketAddress | None]:
        """Take the first message or notification, whole. Source: docs/reference/rds.md 3.5."""
        ancillary_bytes_max = checked_ancillary_size(ancillary_bytes_max)
        from urds.rds import cmsg
        from urds.rds.runtime.backend import CongestionNotice, OperationNotices

        result_flags = flags & int(MSG_CMSG_CLOEXEC)
        if flags & MSG_OOB:  # nothing is ever out of band: kernel parity
            return b"", [], result_flags, None
        taken = self._take(flags, notices_max=ancillary_bytes_max // cmsg.RDMA_STATUS_BYTES)
        payload, source = b"", None
        if isinstance(taken, OperationNotices):
            control = [cmsg.rdma_status(one.token, one.status) for one in taken]
        elif isinstance(taken, CongestionNotice):
            control = [cmsg.congestion_update(taken.groups)]
        else:
            control = self._control_of(taken)
            payload, source = taken.payload, taken.source
        ancillary, truncated = cmsg.fit(control, ancillary_bytes_max)
        return payload, ancillary, result_flags | truncated, source

    def _take(self, flags: int, *, notices_max: int = 1) -> Message | Notice:
        """Take what is first; at most `notices_max` notifications of operations, one at least."""
        wait_ns = 0 if flags & _DONTWAIT else self._wait_ns(self._options.receive_wait_ns)
        taken: Message | Notice | None = None
        if not flags & MSG_ERRQUEUE:  # that queue is always empty
            mailbox = self._mailbox or self._wait_for_mailbox(wait_ns)
            if mailbox is not None:
                peek = bool(flags & MSG_PEEK)
                taken = mailbox.receive(wait_ns=wait_ns, peek=peek, notices_max=notices_max)
        if taken is None:
            raise _nothing_came(0 if flags & MSG_ERRQUEUE else wait_ns)
        return taken

    def _control_of(self, message: Message) -> list[Ancillary]:
        from urds.rds import cmsg

        control = []
        cookie = cmsg.destination_cookie(message.extension)
        if cookie is not None:
            control.append(cmsg.rdma_destination(cookie))
        if message.time_ns:
            new = self._options.timestamp in (options.SO_TIMESTAMP_NEW, options.SO_TIMESTAMPNS_NEW)
            control.append(cmsg.timestamp(message.time_ns, new=new))
        if message.trace:
            control.append(cmsg.latency(message.trace))
        return control

    def _wait_for_mailbox(self, wait_ns: int | None) -> Mailbox | None:
        """Wait until another thread binds or closes: a socket without an address gets nothing."""
        with self._lock:
            self._lock.wait_for(
                lambda: self._mailbox is not None or self._closed,
                None if wait_ns is None else wait_ns / _NS,
            )
            self._check_open()
            return self._mailbox


def _nothing_came(wait_ns: int | None) -> OSError:
    """Return the error of a receive that waited for so long."""
    return os_error(ErrorReason.TIMED_OUT if wait_ns else ErrorReason.NOTHING_TO_RECEIVE)


# A program knows no other class: a TypeError about arguments shall not name a base.
for _base in (SocketCalls, SocketBase, RdmaSocket):
    for _name, _call in vars(_base).items():
        if isinstance(_call, FunctionType):
            _call.__qualname__ = f"{Socket.__qualname__}.{_name}"
