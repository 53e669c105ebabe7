"""`DatagramSocket`: datagrams with the calls of `socket.socket`. What it sends may get lost.

A datagram goes whole or not at all, and what exceeds the receiver's buffer is cut off. Source:
docs/reference/rsocket.md 10-12.
"""

from __future__ import annotations

import errno
import socket as system
from collections.abc import Iterable
from typing import Any, Final

from urds.common.receive_buffers import (
    all_writable,
    checked_ancillary_size,
    checked_size,
    fill,
    writable,
)
from urds.common.types import HostPort
from urds.rsocket import addresses, options
from urds.rsocket.constants import SOL_RDMA
from urds.rsocket.core.datagram import DatagramSettings, DatagramStats
from urds.rsocket.errors import closed, os_error
from urds.rsocket.link import devices
from urds.rsocket.link.datagram_link import DatagramLink
from urds.rsocket.socket import Socket
from urds.rsocket.waiting import CallTimeout

SLOT_BYTES: Final = 2048  # of one datagram with its headers; docs/reference/rsocket.md 10
_DONTWAIT: Final = int(system.MSG_DONTWAIT)
_PEEK: Final = int(system.MSG_PEEK)
_TRUNC: Final = int(system.MSG_TRUNC)
_SEND_FLAGS: Final = int(system.MSG_DONTWAIT | system.MSG_NOSIGNAL | system.MSG_DONTROUTE)
_RECEIVE_FLAGS: Final = int(
    system.MSG_DONTWAIT
    | system.MSG_PEEK
    | system.MSG_TRUNC
    | system.MSG_NOSIGNAL
    | system.MSG_CMSG_CLOEXEC
)
_NEVER: Final = 0.0


class DatagramSocket(Socket, kind=system.SOCK_DGRAM):
    """Datagrams over a queue pair where the peer has one, over UDP where not."""

    __slots__ = ("_link",)

    def _begin(self, family: int, kind: int, proto: int, chosen: options.RsocketOptions) -> None:
        self._link: DatagramLink | None = DatagramLink(
            devices.contexts(), settings=DatagramSettings(), family=family
        )
        super()._begin(family, kind, proto, chosen)
        self._link.on_change = self.watchers.tell

    # -- addresses

    def bind(self, address: Any, /) -> None:
        """Take an address of this host; port 0 chooses a free one.

        Raises OSError: EINVAL (bound already), EADDRINUSE, EADDRNOTAVAIL.
        """
        link = self._open_link()
        link.bind(addresses.parse(address, self._family, "bind"))

    def connect(self, address: Any, /) -> None:
        """Choose the target of `send`; only its datagrams are received from then on.

        Raises OSError: EADDRNOTAVAIL, ENETUNREACH.
        """
        link = self._open_link()
        link.connect(addresses.reachable(addresses.parse(address, self._family, "connect")))

    def getpeername(self) -> Any:
        """Return the chosen target. Raises OSError: ENOTCONN."""
        link = self._open_link()
        if link.peer is None:
            raise os_error(errno.ENOTCONN)
        return addresses.shown(link.peer, self._family)

    @property
    def link(self) -> DatagramLink | None:
        """What sends and receives; None once the socket is closed."""
        return self._link

    @property
    def stats(self) -> DatagramStats | None:
        """What was sent, received and dropped, and why; None once the socket is closed."""
        return None if self._link is None else self._link.stats

    # -- sending

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send to the chosen target; see `sendto`."""
        return self._send(data, flags, None)

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        """Send to the chosen target: a datagram goes whole or not at all."""
        self._send(data, flags, None)

    def sendto(self, data: Any, flags_or_address: Any, address: Any = None, /) -> int:
        """Send one datagram; return its length. Never waits.

        Raises OSError: EMSGSIZE (it does not fit a slot), EDESTADDRREQ, ENETUNREACH, ECONNREFUSED
        of an earlier one.
        """
        flags, target = (0, flags_or_address) if address is None else (flags_or_address, address)
        return self._send(data, flags, target)

    def sendmsg(
        self,
        buffers: Iterable[Any],
        ancdata: Iterable[tuple[int, int, Any]] = (),
        flags: int = 0,
        address: Any = None,
        /,
    ) -> int:
        """Send one datagram of all buffers. Raises OSError: ENOTSUP for control messages."""
        if tuple(ancdata):
            raise os_error(errno.ENOTSUP, "control messages")
        return self._send(b"".join(memoryview(one).cast("B") for one in buffers), flags, address)

    def _send(self, data: Any, flags: int, target: Any) -> int:
        if flags & ~_SEND_FLAGS:
            raise os_error(errno.EOPNOTSUPP, f"flags {flags & ~_SEND_FLAGS:#x}")
        link = self._open_link()
        if target is not None:
            target = addresses.parse(target, self._family, "sendto")
        return link.send(data, target)

    # -- receiving

    def recv(self, bytes_max: int, flags: int = 0, /) -> bytes:
        """Take one datagram; see `recvfrom`."""
        return self.recvfrom(bytes_max, flags)[0]

    def recvfrom(self, bytes_max: int, flags: int = 0, /) -> tuple[bytes, Any]:
        """Take one datagram and its source; what exceeds `bytes_max` is lost.

        MSG_PEEK leaves it there. Raises OSError: EAGAIN, ETIMEDOUT, ECONNREFUSED.
        """
        bytes_max = checked_size(bytes_max, "recvfrom")
        payload, source = self._receive(flags)
        return payload[:bytes_max], source

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Take one datagram into a buffer; see `recvfrom_into`."""
        return self._receive_into([writable(buffer, nbytes, "recv_into")], flags)[0]

    def recvfrom_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> tuple[int, Any]:
        """Take one datagram into a buffer; return how many bytes, and the source.

        With MSG_TRUNC it is the length of the datagram. Raises TypeError if the buffer cannot be
        written, ValueError if it is smaller than `nbytes`; then no datagram was taken.
        """
        views = [writable(buffer, nbytes, "recvfrom_into")]
        count, _, source = self._receive_into(views, flags)
        return count, source

    def recvmsg(
        self, bytes_max: int, ancillary_bytes_max: int = 0, flags: int = 0, /
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        """Take one datagram and its source; MSG_TRUNC in the flags says that it was cut."""
        bytes_max = checked_size(bytes_max, "recvmsg")
        checked_ancillary_size(ancillary_bytes_max)
        payload, source = self._receive(flags)
        cut = _TRUNC if len(payload) > bytes_max else 0
        return payload[:bytes_max], [], cut, source

    def recvmsg_into(
        self, buffers: Iterable[Any], ancillary_bytes_max: int = 0, flags: int = 0, /
    ) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
        """Take one datagram into all buffers, one after the other; else as `recvmsg`."""
        checked_ancillary_size(ancillary_bytes_max)
        count, cut, source = self._receive_into(all_writable(buffers), flags)
        return count, [], cut, source

    def _receive_into(self, views: list[memoryview], flags: int) -> tuple[int, int, Any]:
        """Take one datagram into buffers; return its bytes there, MSG_TRUNC, and its source."""
        payload, source = self._receive(flags)
        copied = fill(views, payload)
        cut = _TRUNC if len(payload) > copied else 0
        return len(payload) if flags & _TRUNC else copied, cut, source

    def _receive(self, flags: int) -> tuple[bytes, Any]:
        if flags & ~_RECEIVE_FLAGS:
            raise os_error(errno.EOPNOTSUPP, f"flags {flags & ~_RECEIVE_FLAGS:#x}")
        link = self._open_link()
        peek = bool(flags & _PEEK)
        taken, call_timeout = link.receive(peek=peek), None
        while taken is None:
            call_timeout = call_timeout or CallTimeout(
                _NEVER if flags & _DONTWAIT else self._timeout_s
            )
            call_timeout.until(link.wait, lambda: link.readiness().readable or self._is_over)
            if self._is_over:
                raise closed()
            taken = link.receive(peek=peek)
        self.watchers.tell()
        payload, source = taken
        return payload, addresses.shown(source, self._family)

    # -- what `Socket` asks

    def _open_link(self) -> DatagramLink:
        link = self._link
        if link is None or self._is_over:
            raise closed()
        return link

    def _readiness_source(self) -> DatagramLink | None:
        return self._link

    def _local(self) -> HostPort | None:
        return None if self._link is None else self._link.local

    def _socket_info(self) -> options.SocketInfo:
        return options.SocketInfo(options.TcpState.CLOSE, None)

    def _take_error(self) -> int:
        return self._open_link().take_error()

    def _has_begun(self) -> bool:
        return self._local() is not None

    def _release(self) -> None:
        if self._link is not None:
            self._link.close()

    def _release_soon(self) -> None:
        if self._link is not None:
            self._link.close_soon()

    def _abandon_in_child(self) -> None:
        super()._abandon_in_child()
        self._link = None

    # -- options

    def setsockopt(
        self, level: int, option: int, value: Any, value_bytes: int | None = None, /
    ) -> None:
        """Set an option of ours at level SOL_RDMA, of the UDP socket at any other.

        SO_RCVBUF also says how many datagrams may wait, before the socket is bound.
        """
        if level == SOL_RDMA:
            super().setsockopt(level, option, value, value_bytes)
            return
        if value is None:
            raise os_error(errno.EINVAL, f"{value_bytes} bytes at no address")
        link = self._open_link()
        link.udp.set_option(level, option, value)
        if (level, option) == (system.SOL_SOCKET, system.SO_RCVBUF) and link.local is None:
            slots = max(1, int(link.udp.get_option(level, option)) // SLOT_BYTES)
            link.settings = DatagramSettings(receive_slots=slots)

    def getsockopt(self, level: int, option: int, buffer_bytes: int = 0, /) -> Any:
        """Return an option: of ours at level SOL_RDMA, SO_ERROR, else of the UDP socket."""
        is_ours = level == SOL_RDMA or (level, option) == (system.SOL_SOCKET, system.SO_ERROR)
        if is_ours:
            return super().getsockopt(level, option, buffer_bytes)
        return self._open_link().udp.get_option(level, option, buffer_bytes)
